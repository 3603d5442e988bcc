"""The profiles over HTTP: by path, by key and by default; one response under all of them."""

import json
import re
import urllib.error
import urllib.request

import pytest

from antiphon.server.processes.run import background_server
from support.server.key_server import KeyServer
from support.server.plain_http import events_in, post
from support.server.scripted_server import configured

MODELS = {
    "parrot": {
        "engine": "scripted",
        "answers": [
            {"when": "break at once", "lines": [{"failure": {"status": 503, "message": "Loading."}}]},
            {"when": "break midway", "lines": [{"text": "So far"}, {"wait_ms": 1}, {"failure": {"message": "It broke."}}]},
            {"when": "call", "lines": [{"call": "now", "arguments": {"zone": "CET"}, "call_id": "call_1"}]},
            {"when": "free", "lines": [{"call": "apply", "input": "*** text ***", "call_id": "call_2"}]},
            {"when": "think", "lines": [{"reasoning": "Hm."}, {"text": "Done."}]},
            {"to": "result", "say": "It is {input}"},
            {"say": "You said: {input}"},
        ],
    }
}
PATHS = {"openai": "/v1", "open-responses": "/openresponses/v1", "eugpt": "/eugpt/v1"}
TOOLS = [{"type": "function", "name": "now", "parameters": {}}, {"type": "custom", "name": "apply"}]
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with background_server(configured(tmp_path_factory.mktemp("home"), MODELS)) as url:
        yield url


def ask(address, profile, text="Hi", **fields):
    status, _, body = post(address, {"model": "parrot", "input": text, "tools": TOOLS, **fields}, f"{PATHS[profile]}/responses")
    return status, json.loads(body)


def stream(address, profile, text="Hi", **fields):
    _, _, body = post(address, {"model": "parrot", "input": text, "tools": TOOLS, "stream": True, **fields}, f"{PATHS[profile]}/responses")
    return body


def request(url, method="GET", body=None, **headers):
    """Status and body of an answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", **headers}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method)) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def get(url):
    return json.loads(request(url)[1])


def is_summary(response):
    return "output" not in response and UUID.fullmatch(response["id"]) is not None


def test_each_path_has_its_profile(address):
    assert is_summary(ask(address, "eugpt")[1])
    assert ask(address, "openai")[1]["output"] and ask(address, "open-responses")[1]["output"]
    assert stream(address, "openai").count(b"[DONE]") == stream(address, "eugpt").count(b"[DONE]") == 0
    assert stream(address, "open-responses").endswith(b"data: [DONE]\n\n")
    assert set(re.findall(rb"^event: (.*)$", stream(address, "eugpt"), re.MULTILINE)) == {b"message"}


def test_open_responses_names_reasoning_and_prefixes_what_it_does_not_know(address):
    events = events_in(stream(address, "open-responses", "think").removesuffix(b"data: [DONE]\n\n"))
    assert {"response.reasoning.delta", "response.reasoning.done"} <= {event["type"] for event in events}
    body = stream(address, "open-responses", "free").removesuffix(b"data: [DONE]\n\n")
    events = events_in(body)
    assert b"event: openai:response.custom_tool_call_input.delta\n" in body
    assert "openai:response.custom_tool_call_input.delta" in [event["type"] for event in events]
    assert events[-1]["response"]["output"][0]["type"] == events[2]["item"]["type"] == "openai:custom_tool_call"
    output = {"type": "openai:custom_tool_call_output", "call_id": "call_2", "output": "noon"}
    history = [{"role": "user", "content": "free"}, events[-1]["response"]["output"][0], output]
    assert ask(address, "open-responses", history)[1]["output"][0]["content"][0]["text"] == "It is noon"


def test_a_failure_within_a_stream_has_the_profile_s_shape(address):
    nested = events_in(stream(address, "open-responses", "break midway").removesuffix(b"data: [DONE]\n\n"))[-2]
    assert nested.keys() == {"type", "sequence_number", "error"}
    flat = events_in(stream(address, "eugpt", "break midway"))[-1]
    assert list(flat.items())[2:] == [("code", "internal_error"), ("message", "It broke.")]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/responses", {"model": "nobody", "input": "Hi"}, 404, "model_not_found"),
        ("/responses", {"model": "parrot", "input": 1}, 400, "invalid_request"),
        ("/responses", {"model": "parrot", "input": "Hi", "previous_response_id": "resp_1"}, 400, "invalid_request"),
        ("/responses", {"model": "parrot", "input": "break at once", "stream": True}, 503, "overloaded"),
        ("/responses", {"model": "parrot", "input": "break at once"}, 503, "overloaded"),
        ("/conversations/conv_1", {"metadata": {}}, 404, "not_found"),
        ("/nothing", {}, 404, "not_found"),
    ],
)
def test_eugpt_has_codes_of_its_own(address, path, body, status, code):
    got = post(address, body, f"/eugpt/v1{path}")
    error = json.loads(got[2])
    assert (got[0], error["error"]["code"]) == (status, code)
    assert list(error) == ["error"] and list(error["error"]) == ["code", "message"]


def test_a_response_is_read_under_every_profile_by_either_id(address):
    for maker in PATHS:
        made = ask(address, maker)[1]
        uuid = get(f"{address}/eugpt/v1/responses/{made['id']}")["id"]
        original = get(f"{address}/v1/responses/{uuid}")["id"]
        assert UUID.fullmatch(uuid) and re.fullmatch("resp_[0-9a-f]{48}", original) and made["id"] in (uuid, original)
        for reader, path in PATHS.items():
            for id in (uuid, original, uuid.upper()):
                told = get(f"{address}{path}/responses/{id}")
                assert told["id"] == (uuid if reader == "eugpt" else original)
                assert is_summary(told) == (reader == "eugpt")
            assert get(f"{address}{path}/responses/{uuid}/input_items")["data"][0]["role"] == "user"


def test_a_conversation_goes_on_from_one_profile_to_the_next(address):
    call = ask(address, "eugpt", "call")[1]
    assert call["tool_calls"] == [{"name": "now", "call_id": "call_1", "arguments": '{"zone":"CET"}', "status": "completed"}]
    output = [{"type": "function_call_output", "call_id": "call_1", "output": "noon"}]
    answer = ask(address, "openai", output, previous_response_id=call["id"])[1]
    assert answer["output"][0]["content"][0]["text"] == "It is noon"
    assert re.fullmatch("resp_[0-9a-f]{48}", answer["previous_response_id"])
    assert ask(address, "eugpt", "On", previous_response_id=answer["id"])[1]["output_text"] == "You said: On"


def test_a_background_response_is_streamed_to_readers_of_every_profile(address):
    body = stream(address, "eugpt", background=True)
    events = events_in(body)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    uuid = events[0]["response"]["id"]
    for after in range(-1, len(events)):
        cursor = f"&starting_after={after}" if after >= 0 else ""
        again = request(f"{address}/eugpt/v1/responses/{uuid}?stream=true{cursor}")[1]
        assert again == b"".join(part + b"\n\n" for part in body.split(b"\n\n")[after + 1 : -1])
    original = request(f"{address}/v1/responses/{uuid}?stream=true")[1]
    assert events_in(original)[1]["type"] == "response.queued" and b"\n: " not in original
    other = request(f"{address}/openresponses/v1/responses/{uuid}?stream=true&starting_after=8")[1]
    assert events_in(other)[0]["sequence_number"] == 9 and other.endswith(b"data: [DONE]\n\n")


def test_a_response_that_waits_or_was_cancelled_is_summed_up_too(address):
    made = ask(address, "eugpt", background=True)[1]
    assert is_summary(made) and made["status"] in ("queued", "in_progress", "completed")
    assert json.loads(request(f"{address}/eugpt/v1/responses/{made['id']}/cancel", "POST")[1])["id"] == made["id"]
    deleted = json.loads(request(f"{address}/eugpt/v1/responses/{made['id']}", "DELETE")[1])
    assert deleted == {"id": made["id"], "object": "response", "deleted": True}
    assert request(f"{address}/v1/responses/{made['id']}")[0] == 404


def test_models_are_listed_under_every_base_path(address):
    for path in PATHS.values():
        assert get(f"{address}{path}/models")["data"][0]["id"] == "parrot"


def test_eugpt_has_no_websocket(address):
    status, body = request(f"{address}/eugpt/v1/responses", upgrade="websocket")
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_request")


def test_the_server_s_default_is_that_of_v1(tmp_path):
    with background_server(configured(tmp_path, MODELS, responses={"profile": "eugpt"})) as address:
        assert is_summary(ask(address, "openai")[1])
        assert "output" in ask(address, "open-responses")[1]


@pytest.mark.anyio
async def test_a_key_s_profile_is_that_of_v1(tmp_path):
    server = KeyServer(tmp_path, MODELS)
    keys = {name: await server.key(profile=name) for name in ("eugpt", "open-responses", None, "of a newer server")}
    with server.serving() as address:
        told = {}
        for name, key in keys.items():
            body, headers = {"model": "parrot", "input": "Hi"}, {"authorization": f"Bearer {key}"}
            told[name] = json.loads(request(f"{address}/v1/responses", "POST", body, **headers)[1])
            assert "output" in json.loads(request(f"{address}/openresponses/v1/responses", "POST", body, **headers)[1])
        assert {name: is_summary(response) for name, response in told.items()} == dict.fromkeys(keys, False) | {"eugpt": True}
        status, unknown = request(f"{address}/eugpt/v1/responses", "POST", {}, authorization="Bearer ak-wrong")
        assert (status, json.loads(unknown)["error"]["code"]) == (401, "authentication_failed")
