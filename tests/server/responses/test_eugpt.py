"""The profile `eugpt` over HTTP where the server chooses the model, another one answers, and the answer is rewritten."""

import json
import urllib.request
from contextlib import ExitStack

import pytest

from antiphon.server.processes.run import background_server
from support.protocols.eugpt_page import EXAMPLES
from support.server.model_server import playing
from support.server.plain_http import events_in, post
from support.server.scripted_server import configured

LONG = "word " * 600
ROUTING = {
    "default": "small",
    "stick": "none",
    "rules": [
        {"model": "gpt-oss-120b", "category": "reasoning", "when": {"min_input_tokens": 500}},
        {"model": "tired", "category": "rest", "when": {"pattern": "tired"}},
    ],
}
ROUTE = {"model_id": "gpt-oss-120b", "category": "reasoning", "source": "router", "reasoning": "Input length > 500 tokens"}
BY_DEFAULT = {"model_id": "small", "category": "general", "source": "router", "reasoning": "No rule fits; default model"}
TO_TIRED = {"model_id": "tired", "category": "rest", "source": "router", "reasoning": "The text matches a pattern"}

REWRITES = [
    {"name": "spelling", "models": ["gpt-oss-120b", "small"], "kind": "rule", "rules": [{"pattern": "wrold", "replacement": "world"}]},
    {"name": "failing", "models": ["small", "tired"], "kind": "spelling", "model": "mute", "when": {"min_chars": 30}},
]
FAILURES = {
    "server_is_overloaded": ({"status": 503, "type": "service_unavailable_error"}, "overloaded"),
    "upstream_timeout": ({"status": 504}, "upstream_timeout"),
    "model_not_found": ({"status": 404, "type": "invalid_request_error"}, "model_not_found"),
    "upstream_credentials": ({"status": 502}, "internal_error"),
    "not_ours": ({"status": 401}, "internal_error"),
    "forbidden": ({"status": 403, "type": "invalid_request_error"}, "invalid_request"),
    "image_too_large": ({"status": 400, "type": "invalid_request_error"}, "invalid_request"),
    "rate_limit_exceeded": ({"status": 429, "type": "rate_limit_error"}, "rate_limit_exceeded"),
}
"""The code of an upstream's failure: what else the failure has, and its code in this profile."""

SCRIPT = [
    *(
        {"when": f"fail by {code}", "lines": [{"text": "So"}, {"failure": {"message": "It broke.", "code": code, **fields}}]}
        for code, (fields, _) in FAILURES.items()
    ),
    {"when": "hold on", "lines": [{"text": "So"}, {"wait_ms": 60000}]},
    {"when": "long", "say": "This is an answer to be rewritten: {input}"},
    {"say": "A wrold: {input}"},
]

SEARCH = {"type": "web_search_call", "id": "ws_abc123", "status": "in_progress"}
FOUND = SEARCH | {"status": "completed", "action": {"type": "search", "query": "", "sources": [{"type": "url", "title": "", "url": ""}]}}
MESSAGE = {"type": "message", "id": "msg_up", "role": "assistant", "status": "in_progress", "content": []}
PART = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def searched(_body):
    """What a server says that searches the web itself, and then misspells a word."""
    place = {"item_id": "msg_up", "output_index": 1, "content_index": 0}
    done = MESSAGE | {"status": "completed", "content": [PART | {"text": "Hello, wrold."}]}
    return [
        {"type": "response.output_item.added", "output_index": 0, "item": SEARCH},
        {"type": "response.output_item.done", "output_index": 0, "item": FOUND},
        {"type": "response.output_item.added", "output_index": 1, "item": MESSAGE},
        {"type": "response.content_part.added", **place, "part": PART},
        {"type": "response.output_text.delta", **place, "delta": "Hello"},
        {"type": "response.output_text.delta", **place, "delta": ", wrold."},
        {"type": "response.output_text.done", **place, "text": "Hello, wrold."},
        {"type": "response.output_item.done", "output_index": 1, "item": done},
        {"type": "response.completed", "response": {"status": "completed"}},
    ]


@pytest.fixture(scope="module")
def settings():
    with playing(searched) as (upstream, _):
        models = {
            "gpt-oss-120b": {"engine": "responses", "base_url": upstream, "tools": ["web_search"], "retries": 0},
            "small": {"engine": "scripted", "answers": SCRIPT},
            "tired": {"engine": "chat", "base_url": "http://127.0.0.1:9/v1", "quirks": "generic", "retries": 0, "fallback": ["small"]},
            "mute": {"engine": "scripted", "answers": [{"lines": [{"failure": {"message": "No."}}]}]},
        }
        yield {"models": models, "routing": ROUTING, "rewrites": REWRITES, "logging.level": "error"}


@pytest.fixture(scope="module")
def address(settings, tmp_path_factory):
    with background_server(configured(tmp_path_factory.mktemp("home"), **settings)) as url:
        yield url


def streamed(address, text, model="auto", **fields):
    status, _, body = post(address, {"model": model, "input": text, "stream": True, **fields}, "/eugpt/v1/responses")
    assert status == 200, body
    events = events_in(body)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def whole(address, text, model="auto", **fields):
    status, _, body = post(address, {"model": model, "input": text, **fields}, "/eugpt/v1/responses")
    assert status == 200, body
    return json.loads(body)


def get(address, id, base="/eugpt/v1", query=""):
    with urllib.request.urlopen(f"{address}{base}/responses/{id}{query}") as reply:
        return events_in(reply.read()) if query else json.load(reply)


def ended(address, id):
    while (response := get(address, id))["status"] in ("queued", "in_progress"):
        pass
    return response


def masked(value):
    """A value without the numbers, ids and times in it."""
    if isinstance(value, list):
        return [masked(each) for each in value]
    if not isinstance(value, dict):
        return value
    names = {"id", "created_at", "call_id", "sequence_number"}
    return {name: "" if name in names else masked(each) for name, each in value.items()}


def of_type(events, name):
    return [event for event in events if event["type"] == f"response.{name}"]


def test_the_page_s_examples_are_one_conversation(address):
    page = {json.loads(line)["type"]: line for line in EXAMPLES}
    added, done = (json.loads(page[f"response.output_item.{name}"]) for name in ("added", "done"))
    part, delta, text = (json.loads(page[f"response.{name}"]) for name in ("content_part.added", "output_text.delta", "output_text.done"))
    call, message = {"output_index": 0}, {"output_index": 1}
    expected = [
        json.loads(page["response.created"]),
        json.loads(page["response.routing.completed"]),
        added | call,
        done | call,
        added | message | {"item": {"type": "message", "role": "assistant"}},
        part | message,
        delta | message,
        delta | message | {"delta": ", wrold."},
        json.loads(page["response.rewrite.in_progress"]),
        text | message,
        done | message | {"item": {"type": "message", "role": "assistant", "status": "completed"}},
        json.loads(page["response.completed"]),
    ]
    got = streamed(address, LONG, tools=[{"type": "web_search"}])
    for event, example in zip(got, expected, strict=True):
        assert json.dumps(masked(event)) == json.dumps(masked(example))  # the order of keys too


@pytest.mark.parametrize("fields", [{}, {"background": True}, {"store": False}])
def test_the_choice_of_a_model_comes_second_and_only_where_there_was_one(address, fields):
    for text, route in (("Hi", BY_DEFAULT), (LONG, ROUTE)):
        events = streamed(address, text, **fields)
        assert list(events[1].items()) == [("type", "response.routing.completed"), ("sequence_number", 1), *route.items()]
        assert len(of_type(events, "routing.completed")) == 1
        assert events[0]["response"]["model"] == events[-1]["response"]["model"] == route["model_id"]
    events = streamed(address, "Hi", "small", **fields)
    assert not of_type(events, "routing.completed") and events[0]["response"]["model"] == "small"


def test_a_whole_answer_has_its_route_now_and_later_in_this_profile_alone(address):
    answer = whole(address, LONG)
    assert list(answer) == ["id", "object", "created_at", "model", "status", "output_text", "tool_calls", "routing"]
    assert answer["routing"] == ROUTE and answer["model"] == "gpt-oss-120b" and answer["output_text"] == "Hello, world."
    assert get(address, answer["id"]) == answer
    for base in ("/v1", "/openresponses/v1"):
        other = get(address, answer["id"], base)
        assert not {"routing", "rewrite", "notes", "output_text"} & set(other) and other["model"] == "gpt-oss-120b"
    assert "routing" not in whole(address, "Hi", "small")


def test_a_response_that_was_made_under_another_profile_has_its_route_too(address):
    _, _, body = post(address, {"model": "auto", "input": "Hi"})
    assert get(address, json.loads(body)["id"])["routing"] == BY_DEFAULT


def test_a_background_response_has_its_route_at_once_and_at_its_end(address):
    queued = whole(address, LONG, background=True)
    assert queued["status"] == "queued" and queued["routing"] == ROUTE
    assert ended(address, queued["id"]) == queued | {"status": "completed", "output_text": "Hello, world."} | {
        "tool_calls": ended(address, queued["id"])["tool_calls"]
    }
    running = whole(address, "hold on", background=True)
    _, _, body = post(address, {}, f"/eugpt/v1/responses/{running['id']}/cancel")
    assert json.loads(body)["status"] == "cancelled" and json.loads(body)["routing"] == BY_DEFAULT
    assert get(address, running["id"])["routing"] == BY_DEFAULT


@pytest.mark.parametrize("fields", [{}, {"background": True}])
@pytest.mark.parametrize("model", ["auto", "tired"])
def test_the_end_says_who_answered_where_it_was_another_model(address, model, fields):
    events = streamed(address, "tired?", model, **fields)
    assert [event["model_id"] for event in of_type(events, "routing.completed")] == (["tired"] if model == "auto" else [])
    assert (events[0]["response"]["model"], events[-1]["response"]["model"]) == ("tired", "small")
    assert get(address, events[0]["response"]["id"])["model"] == "small"
    if fields:
        assert get(address, events[0]["response"]["id"], query="?stream=true&starting_after=2") == events[3:]
    answer = whole(address, "tired?", model)
    assert answer["model"] == "small" and answer.get("routing") == (TO_TIRED if model == "auto" else None)
    assert get(address, answer["id"]) == answer and get(address, answer["id"], "/v1")["model"] == "tired"


def test_a_rewrite_that_failed_is_told_in_whole_answers_too(address):
    for events in (streamed(address, "long", "small"), streamed(address, "long", "small", background=True)):
        assert events[-1]["response"]["rewrite"] == {"status": "failed"} and len(of_type(events, "rewrite.in_progress")) == 1
        assert get(address, events[0]["response"]["id"])["rewrite"] == {"status": "failed"}
    answer = whole(address, "long", "small")
    assert answer["rewrite"] == {"status": "failed"} and answer["output_text"] == "This is an answer to be rewritten: long"
    assert get(address, answer["id"]) == answer
    assert "rewrite" not in whole(address, "Hi", "small")


def test_another_server_knows_it_from_the_store(settings, tmp_path):
    with ExitStack() as first:
        url = first.enter_context(background_server(configured(tmp_path, **settings), is_persistent=True))
        answer, background = whole(url, "long and tired"), ended(url, whole(url, LONG, background=True)["id"])
        events = streamed(url, "tired", background=True)
    with background_server(configured(tmp_path, **settings | {"routing": {"default": "small"}}), is_persistent=True) as url:
        assert get(url, answer["id"]) == answer and get(url, background["id"]) == background
        assert (answer["routing"], answer["model"], answer["rewrite"]) == (TO_TIRED, "small", {"status": "failed"})
        assert background["routing"] == ROUTE
        assert get(url, events[0]["response"]["id"], query="?stream=true") == events


@pytest.mark.parametrize("code", FAILURES)
def test_a_failure_has_one_code_and_message_in_the_stream_and_later(address, code):
    created, *_, failure = streamed(address, f"fail by {code}", "small", background=True)
    assert (failure["type"], failure["code"], failure["message"]) == ("error", FAILURES[code][1], "It broke.")
    stored = get(address, created["response"]["id"])
    assert (stored["status"], stored["error"]) == ("failed", {"code": failure["code"], "message": failure["message"]})
    assert "failure" not in get(address, created["response"]["id"], "/v1")


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
def test_what_is_not_there_is_told_by_the_id_that_was_asked_for(address, method):
    id = "550e8400-e29b-41d4-a716-446655440000"
    path = f"{address}/eugpt/v1/responses/{id}" + "/cancel" * (method == "POST")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(path, method=method))
    with caught.value as reply:
        message = json.load(reply)["error"]["message"]
    assert id in message and "resp_" not in message
    status, _, body = post(address, {"model": "small", "input": "Hi", "previous_response_id": id}, "/eugpt/v1/responses")
    assert status >= 400 and id in json.loads(body)["error"]["message"]
