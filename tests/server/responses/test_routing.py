"""Requests that leave the model to the server, in every way into the Responses API."""

import asyncio
import json
import urllib.request

import openai
import pytest

from antiphon.runtime.resolve_request import KnownHistory
from antiphon.server.processes.run import background_server
from antiphon.server.responses.routing import request_features
from antiphon.wire.responses.request import decode_request
from support.server.key_server import KeyServer
from support.server.plain_http import post
from support.server.scripted_server import SCRIPT, configured

ROUTES = [
    {
        "default": "small",
        "rules": [
            {"model": "large", "category": "vision", "when": {"has_images": True}},
            {"model": "large", "category": "reasoning", "when": {"min_input_tokens": 100}},
            {"model": "large", "category": "maths", "when": {"pattern": "(?i)prove"}},
        ],
    },
    {"name": "fresh", "default": "small", "stick": "none", "rules": [{"model": "large", "when": {"min_input_tokens": 100}}]},
]
LONG = "word " * 200
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGD4DwABBAEAwS2OUAAAAABJRU5ErkJggg=="


@pytest.fixture(scope="module")
def routed_url(tmp_path_factory):
    models = {
        "small": {"engine": "scripted", "abilities": {"images": False, "context_window": 1000}, **SCRIPT},
        "large": {"engine": "scripted", **SCRIPT},
    }
    with background_server(configured(tmp_path_factory.mktemp("home"), models, routing=ROUTES)) as url:
        yield url


@pytest.fixture(scope="module")
def routed_client(routed_url):
    with openai.OpenAI(base_url=f"{routed_url}/v1", api_key="none", max_retries=0) as made:
        yield made


def answered(url: str, **fields: object) -> tuple[str, str | None]:
    status, headers, body = post(url, {"model": "auto", **fields})
    assert status == 200, body
    return json.loads(body)["model"], headers.get("antiphon-route")


def test_a_request_goes_to_the_model_of_the_rule_that_fits(routed_url):
    assert answered(routed_url, input="Hi") == ("small", 'category=general; source=default; reason="No rule fits; default model"')
    assert answered(routed_url, input=LONG) == ("large", 'category=reasoning; source=rule; rule=2; reason="Input length > 100 tokens"')
    image = [{"role": "user", "content": [{"type": "input_image", "image_url": PIXEL}, {"type": "input_text", "text": "What is it?"}]}]
    assert answered(routed_url, input=image)[0] == "large"
    assert answered(routed_url, input="Prove it")[1] == 'category=maths; source=rule; rule=3; reason="The text matches a pattern"'


def test_a_named_model_is_left_alone(routed_url):
    assert answered(routed_url, model="small", input=LONG) == ("small", None)


def test_a_stream_says_it_in_its_head_and_its_response(routed_client):
    with routed_client.responses.with_streaming_response.create(model="auto", input=LONG, stream=True) as response:
        assert "source=rule" in response.headers["antiphon-route"]
        lines = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    assert {line["response"]["model"] for line in lines if "response" in line} == {"large"}


def test_a_conversation_stays_with_its_model_however_it_goes_on(routed_client, routed_url):
    first = routed_client.responses.create(model="auto", input="Hello there")
    assert first.model == "small"
    longer = {"model": "auto", "input": LONG, "previous_response_id": first.id}
    assert routed_client.responses.create(**longer).model == "small"
    assert routed_client.responses.create(**longer | {"model": "fresh"}).model == "large"
    whole = [
        {"role": "user", "content": "Hello there"},
        {"role": "assistant", "content": "You said: Hello there"},
        {"role": "user", "content": LONG},
    ]
    assert answered(routed_url, input=whole) == (
        "small",
        'category=general; source=conversation; reason="The conversation began with this model"',
    )
    conversation = routed_client.conversations.create()
    models = [routed_client.responses.create(model="auto", input=text, conversation=conversation.id).model for text in (LONG, "And?")]
    assert models == ["large", "large"]


def test_a_response_is_continued_by_either_form_of_its_id(routed_url):
    status, _, body = post(routed_url, {"model": "auto", "input": LONG}, "/eugpt/v1/responses")
    first = json.loads(body)
    assert (status, first["model"]) == (200, "large") and not first["id"].startswith("resp_")
    model, route = answered(routed_url, input="And?", previous_response_id=first["id"])
    assert model == "large" and "source=conversation" in route
    counted = {"model": "auto", "input": "And?", "previous_response_id": first["id"]}
    assert post(routed_url, counted, "/v1/responses/input_tokens")[0] == 200


def test_a_conversation_that_outgrows_its_model_gets_a_larger_one(routed_client):
    first = routed_client.responses.create(model="auto", input="Hello again")
    assert first.model == "small"
    assert routed_client.responses.create(model="auto", input="word " * 1000, previous_response_id=first.id).model == "large"


def test_what_a_stored_response_was_answered_by_is_enough(routed_client):
    pinned = routed_client.responses.create(model="large", input="Hi")
    assert routed_client.responses.create(model="auto", input="And now?", previous_response_id=pinned.id).model == "large"


def test_tokens_are_counted_by_the_model_that_would_answer(routed_url):
    for text, source in (("Hi", "default"), (LONG, "rule")):
        status, headers, _ = post(routed_url, {"model": "auto", "input": text}, "/v1/responses/input_tokens")
        assert (status, f"source={source}" in headers["antiphon-route"]) == (200, True)


def test_a_compaction_is_made_by_the_model_of_the_conversation(routed_url):
    turns = [{"role": "user", "content": f"Read {LONG}"}, {"role": "assistant", "content": "Yes."}]
    status, headers, _ = post(routed_url, {"model": "auto", "input": turns}, "/v1/responses/compact")
    assert (status, "source=rule; rule=2" in headers["antiphon-route"]) == (200, True)


def test_a_background_response_says_it_at_once(routed_client):
    raw = routed_client.responses.with_raw_response.create(model="auto", input=LONG, background=True)
    assert "category=reasoning" in raw.headers["antiphon-route"]
    assert raw.parse().model == "large"


def test_models_list_the_routes_and_an_unknown_name_is_told_of_them(routed_client):
    assert [model.id for model in routed_client.models.list()] == ["small", "large", "auto", "fresh"]
    assert routed_client.models.retrieve("auto").id == "auto"
    with pytest.raises(openai.NotFoundError) as error:
        routed_client.responses.create(model="nope", input="Hi")
    assert "'small', 'large', 'auto', and 'fresh'" in error.value.body["message"]


def test_routes_are_counted(routed_url):
    answered(routed_url, input="Prove that")
    with urllib.request.urlopen(f"{routed_url}/metrics") as reply:
        body = reply.read()
    assert b'antiphon_routes_total{category="maths",gen_ai_request_model="large",route="auto",source="rule"}' in body


# What of a request counts


def features(**fields: object):
    return request_features(decode_request(json.dumps(fields).encode()), KnownHistory((), 0), response_id="resp_1")


def test_the_text_is_the_last_that_the_user_said():
    items = [
        {"role": "user", "content": "First"},
        {"role": "user", "content": [{"type": "input_text", "text": "<system-reminder>x</system-reminder>Second"}]},
        {"role": "assistant", "content": "Third"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "Fourth"},
    ]
    assert features(input=items, instructions="Fifth").text == "Second"


def test_tools_formats_and_media_are_seen():
    tools = [
        {"type": "function", "name": "f", "parameters": {}},
        {"type": "custom", "name": "c"},
        {"type": "web_search"},
        {"type": "shell"},
    ]
    schema = {"format": {"type": "json_schema", "name": "x", "schema": {}}}
    seen = features(input="Hi", tools=tools, text=schema, top_logprobs=2, max_output_tokens=100)
    assert (seen.has_tools, seen.has_function_tools, seen.has_custom_tools, seen.hosted_tools) == (True, True, True, ("web_search",))
    assert (seen.json_schema, seen.json_object, seen.top_logprobs, seen.output_tokens) == (True, False, 2, 100)
    content = [
        {"type": "input_file", "file_id": "file_1"},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    ]
    output = [{"type": "input_image", "image_url": PIXEL}]
    items = [{"role": "user", "content": content}, {"type": "function_call_output", "call_id": "c", "output": output}]
    seen = features(input=items)
    assert (seen.has_files, seen.has_audio, seen.has_images, seen.has_tools) == (True, True, True, False)


def test_a_key_may_have_a_rule_of_its_own(tmp_path):
    rules = [{"model": "second", "category": "night", "when": {"key": "laptop", "hours": "0-24"}}]
    server = KeyServer(tmp_path, routing={"default": "parrot", "rules": rules})
    key = asyncio.run(server.key())
    with server.serving() as url, openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        assert client.responses.create(model="auto", input="Hi").model == "second"


def test_a_conversation_is_known_by_its_beginning_once_it_has_an_answer():
    hello = {"role": "user", "content": "Hello"}
    answer = {"role": "assistant", "content": "Hi"}
    first = features(input=[hello], instructions="Be kind", prompt_cache_key="app")
    assert (first.continues, len(first.begins)) == ((), 2)
    later = features(input=[hello, answer, {"role": "user", "content": "And?"}], instructions="Be kind", prompt_cache_key="app")
    assert later.continues == first.begins[1:]
    other = features(input=[{"role": "user", "content": "Bye"}, answer, hello], instructions="Be kind", prompt_cache_key="app")
    assert not {*other.continues} & {*later.continues}


def test_what_waited_when_the_server_stopped_is_not_routed_again(tmp_path):
    song = {"engine": "scripted", "pace_ms": 10, "answers": [{"lines": [{"text": "la ", "repeat": 100000}]}]}
    models = {"endless": song, "small": {"engine": "scripted", **SCRIPT}, "large": {"engine": "scripted", **SCRIPT}}
    settings = {"background.running": 1, "server.drain_s": 0, "logging.level": "error"}
    before = configured(tmp_path, models, routing=ROUTES[0], **settings)
    after = configured(tmp_path, models, routing={"default": "small"}, **settings)
    with background_server(before, is_persistent=True) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        running = client.responses.create(model="endless", input="Sing.", background=True)
        while client.responses.retrieve(running.id).status == "queued":
            pass
        waiting = client.responses.create(model="auto", input=LONG, background=True)
        assert (waiting.status, waiting.model) == ("queued", "large")
    with background_server(after, is_persistent=True) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        assert client.responses.create(model="auto", input=LONG).model == "small"
        while (done := client.responses.retrieve(waiting.id)).status in ("queued", "in_progress"):
            pass
        assert (done.status, done.model) == ("completed", "large")
