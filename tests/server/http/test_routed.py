"""A name of `[routing]` as the model of every protocol over HTTP, and of requests that are passed on."""

import json
import urllib.request

import pytest

from antiphon.server.processes.run import background_server
from support.engines.upstreams import whole
from support.server.chat_protocols import ask, question, send
from support.server.raw_upstream import playing
from support.server.scripted_server import SCRIPT, configured

NEW = ("chat", "messages")
LONG = "word " * 200 + "end"
ROUTES = [
    {
        "default": "small",
        "rules": [
            {"model": "passed", "category": "elsewhere", "when": {"pattern": "(?i)pass"}},
            {"model": "large", "category": "vision", "when": {"has_images": True}},
            {"model": "large", "category": "tools", "when": {"has_tools": True}},
            {"model": "large", "category": "reasoning", "when": {"min_input_tokens": 100}},
        ],
    }
]
SAID = {"index": 0, "message": {"role": "assistant", "content": "hello"}, "text": "hello", "finish_reason": "stop"}
ANSWER = whole("200 OK", {"id": "c1", "model": "org/real", "choices": [SAID], "data": []})


@pytest.fixture(scope="module")
def upstream():
    with playing(ANSWER) as (url, server):
        yield url, server


@pytest.fixture(scope="module")
def url(tmp_path_factory, upstream):
    models = {
        "small": {"engine": "scripted", "abilities": {"images": False, "context_window": 1000}, **SCRIPT},
        "large": {"engine": "scripted", **SCRIPT},
        "passed": {"engine": "chat", "base_url": upstream[0], "quirks": "vllm", "retries": 0},
    }
    with background_server(configured(tmp_path_factory.mktemp("home"), models, routing=ROUTES)) as address:
        yield address


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", NEW)
def test_a_request_goes_to_the_model_of_the_rule_that_fits(url, protocol, stream):
    for text, how, model, said in (
        ("Hi", {}, "small", "category=general; source=default"),
        (LONG, {}, "large", "category=reasoning; source=rule; rule=4"),
        ("Hi", {"image": True}, "large", "category=vision; source=rule"),
        ("Hi", {"tools": True}, "large", "category=tools; source=rule"),
    ):
        reply = ask(url, protocol, "auto", text, stream=stream, **how)
        assert (reply.status, reply.model, reply.headers["antiphon-model"]) == (200, model, model)
        assert said in reply.headers["antiphon-route"]
        assert reply.text == f"You said: {text}"
    assert ask(url, protocol, "small", LONG, stream=stream).headers["antiphon-route"] is None


@pytest.mark.parametrize("protocol", NEW)
def test_a_conversation_stays_with_its_model(url, protocol):
    begin = f"Begin {protocol}"
    assert ask(url, protocol, "auto", begin).model == "small"
    reply = ask(url, protocol, "auto", LONG, turns=(begin, f"You said: {begin}"))
    assert (reply.model, "source=conversation" in reply.headers["antiphon-route"]) == ("small", True)
    fresh = ask(url, protocol, "auto", LONG, turns=("Never seen", "No."))
    assert fresh.model == "large"


@pytest.mark.parametrize("protocol", NEW)
def test_a_session_that_its_client_names_stays_though_its_beginning_was_cut_off(url, protocol):
    session = {"x-claude-code-session-id": f"s-{protocol}"}
    assert ask(url, protocol, "auto", "One", headers=session).model == "small"
    assert ask(url, protocol, "auto", LONG, turns=("Shortened", "Yes."), headers=session).model == "small"


@pytest.mark.parametrize("user_id", [json.dumps({"device_id": "d", "session_id": "in-json"}), "user_ab_account__session_0a-1b"])
def test_a_session_in_the_id_of_claude_codes_user_stays(url, user_id):
    metadata = {"user_id": user_id}
    assert ask(url, "messages", "auto", "One", metadata=metadata).model == "small"
    assert ask(url, "messages", "auto", LONG, turns=("Cut", "Yes."), metadata=metadata).model == "small"
    assert ask(url, "messages", "auto", LONG, turns=("Cut too", "Yes."), metadata={"user_id": "somebody"}).model == "large"


def test_a_routes_model_is_passed_its_chats_as_they_are(url, upstream):
    body = question("chat", "auto", "Pass it on", from_the_future={"x": None})
    reply = send(url, "chat", body)
    assert (reply.text, reply.model, reply.headers["antiphon-model"]) == ("hello", "passed", "passed")
    assert "category=elsewhere" in reply.headers["antiphon-route"]
    assert upstream[1].asked[-1][1] == body | {"model": "passed"}


@pytest.mark.parametrize(("path", "field"), [("/v1/completions", "prompt"), ("/v1/embeddings", "input")])
def test_what_can_only_be_passed_on_goes_to_a_model_that_takes_it(url, path, field):
    for value in ("Once upon", ["Once", "upon"], [1, 2], [[1], [2]]):
        reply = send(url, "chat", {"model": "auto", field: value}, path=path)
        assert (reply.status, reply.headers["antiphon-model"]) == (200, "passed")
        assert "source=default" in reply.headers["antiphon-route"]
    assert send(url, "chat", {"model": "passed", field: "Hi"}, path=path).headers["antiphon-route"] is None


def test_tokens_are_counted_by_the_model_that_would_answer(url):
    body = {name: value for name, value in question("messages", "auto", LONG).items() if name not in ("stream", "max_tokens")}
    reply = send(url, "messages", body, path="/v1/messages/count_tokens")
    assert (reply.status, "category=reasoning" in reply.headers["antiphon-route"]) == (200, True)


def test_routes_are_counted_and_bad_requests_are_refused_as_ever(url):
    with urllib.request.urlopen(f"{url}/metrics") as metrics:
        assert b'antiphon_routes_total{category="general",gen_ai_request_model="small",route="auto",source="default"}' in metrics.read()
    for wrong in ({}, {"messages": 3}, {"messages": [3]}, {"messages": [{}]}):
        for protocol in NEW:
            assert send(url, protocol, {"model": "auto", "max_tokens": 5} | wrong).status == 400
    for wrong in ({"tools": [3, {"function": 4}]}, {"max_tokens": "x"}, {"response_format": 3}, {"modalities": {"audio": 1}}):
        assert send(url, "chat", question("chat", "auto") | wrong).status == 400
