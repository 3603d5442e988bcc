"""Failover and affinity in every protocol over HTTP: another upstream after a failure, the same one for a conversation."""

import contextlib
import json

import pytest

from antiphon.server.processes.run import background_server
from support.engines.upstreams import CUT, HALF, STREAM_HEAD, chunk, closing, streamed, whole
from support.server.chat_protocols import PIXEL, ask, question, send
from support.server.raw_upstream import playing
from support.server.scripted_server import configured

NEW = ("chat", "messages")
HELLO = streamed("hello")
SAID = {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
WHOLE_HELLO = whole("200 OK", {"choices": [SAID], "data": []})
OH = {"error": {"message": "Oh.", "code": 500}}
NAMES = ("antiphon-model", "antiphon-attempts", "antiphon-upstream", "antiphon-fallback")


async def silent(writer):
    writer.write(HALF[: HALF.index(b"\r\n\r\n") + 4])


FAILURES = {
    "500": whole("500 Oh", OH),
    "cut": CUT,
    "error first": STREAM_HEAD + chunk(b"data: " + json.dumps(OH).encode() + b"\n\n") + b"0\r\n\r\n",
    "stall": silent,
}


@contextlib.contextmanager
def serving(tmp_path, first, second, *third, **options):
    """A server whose model `m` has two upstreams, `one` and `two`, that play so; `third` is the play of its fallback, `other`."""
    with contextlib.ExitStack() as stack:
        (first_url, one), (second_url, two), *rest = (stack.enter_context(playing(play)) for play in (first, second, *third))
        common = {"engine": "chat", "quirks": "generic"}
        fallback = options.pop("other", {})
        upstreams = [{"name": "one", "base_url": first_url, "weight": 9}, {"name": "two", "base_url": second_url}]
        models = {"m": {**common, "balance": "least_outstanding", "upstreams": upstreams, **options}}
        for other_url, _server in rest:
            models["m"]["fallback"] = ["other"]
            models["other"] = {**common, "base_url": other_url, "retries": 0, **fallback}
        if "fallback" in options:
            models |= {name: {"engine": "scripted"} for name in options["fallback"]}
        config = configured(tmp_path, models, **{"server.upstream_header": True})
        yield stack.enter_context(background_server(config)), one, two, *(server for _url, server in rest)


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("protocol", NEW)
def test_a_stream_that_fails_before_its_first_word_is_another_upstreams(tmp_path, protocol, failure):
    with serving(tmp_path, FAILURES[failure], HELLO, failover_after_s=0.2) as (url, one, two):
        reply = ask(url, protocol, "m", stream=True)
        assert (reply.status, reply.text) == (200, "hello")
        assert [reply.headers[name] for name in NAMES] == ["m", "2", "two", None]
        assert (len(one.asked), len(two.asked)) == (1, 1)


@pytest.mark.parametrize("protocol", NEW)
def test_a_whole_answer_that_fails_is_another_upstreams(tmp_path, protocol):
    with serving(tmp_path, FAILURES["500"], WHOLE_HELLO) as (url, *_):
        reply = ask(url, protocol, "m")
        assert (reply.status, reply.text) == (200, "hello")
        assert [reply.headers[name] for name in NAMES] == ["m", "2", "two", None]


@pytest.mark.parametrize(("path", "field"), [("/v1/completions", "prompt"), ("/v1/embeddings", "input")])
def test_prompts_and_texts_go_to_the_next_upstream_too(tmp_path, path, field):
    with serving(tmp_path, FAILURES["500"], WHOLE_HELLO) as (url, *_):
        reply = send(url, "chat", {"model": "m", field: "Hi"}, path=path)
        assert (reply.status, [reply.headers[name] for name in NAMES]) == (200, ["m", "2", "two", None])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", NEW)
def test_a_failure_says_how_many_were_asked(tmp_path, protocol, stream):
    with serving(tmp_path, CUT, FAILURES["500"]) as (url, *_):
        reply = ask(url, protocol, "m", stream=stream)
        status = {"chat": 502, "messages": 500}[protocol]  # Anthropic's API has no 502
        assert (reply.status, reply.headers["antiphon-attempts"]) == (status, "2")
        assert b"127.0.0.1" not in reply.body


def test_a_stream_that_broke_after_its_first_word_is_not_begun_again(tmp_path):
    with serving(tmp_path, closing(HALF), HELLO) as (url, _, two):
        for protocol in NEW:
            reply = ask(url, protocol, "m", stream=True)
            assert (reply.text, "error" in reply.events[-1], reply.headers["antiphon-attempts"]) == ("half", True, "1")
        assert not two.asked


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", NEW)
def test_another_model_says_so(tmp_path, protocol, stream):
    with serving(tmp_path, CUT, FAILURES["500"], HELLO if stream else WHOLE_HELLO) as (url, *_):
        reply = ask(url, protocol, "m", stream=stream)
        assert (reply.status, reply.text) == (200, "hello")
        assert reply.headers["antiphon-model"] == "other"
        assert reply.headers["antiphon-fallback"] == "m>other; reason=overload"


def test_a_chat_is_not_passed_on_to_a_model_that_lacks_what_it_needs(tmp_path):
    lacking = {"abilities": {"images": False, "tools": False}}
    with serving(tmp_path, CUT, CUT, WHOLE_HELLO, other=lacking) as (url, _, _, other):
        assert ask(url, "chat", "m", image=True).status == 502
        assert ask(url, "chat", "m", tools=True).status == 502
        assert not other.asked
        escaped = json.dumps({"type": "image_url", "image_url": {"url": PIXEL}})
        assert ask(url, "chat", "m", escaped).status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_is_translated_for_a_fallback_that_is_no_server_of_chats(tmp_path, stream):
    with serving(tmp_path, CUT, CUT, fallback=["own"]) as (url, *_):
        reply = ask(url, "chat", "m", stream=stream)
        assert reply.status == 200 and reply.text and reply.headers["antiphon-model"] == "own"


@pytest.mark.parametrize("protocol", NEW)
def test_what_a_client_names_as_its_session_stays_together(tmp_path, protocol):
    with serving(tmp_path, WHOLE_HELLO, WHOLE_HELLO, balance="affinity") as (url, *_):

        def homes(headers, **fields):
            return {
                send(url, protocol, question(protocol, "m", f"Hi {number}", **fields), headers).headers["antiphon-upstream"]
                for number in range(6)
            }

        assert len(homes({"x-session-id": "s"})) == 1
        assert len(homes({"session_id": "s"})) == 1
        if protocol == "chat":
            assert len(homes({}, prompt_cache_key="k")) == 1
        else:
            assert len(homes({}, metadata={"user_id": json.dumps({"session_id": "s"})})) == 1


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
def test_prompts_and_texts_of_a_session_stay_together(tmp_path, path):
    with serving(tmp_path, WHOLE_HELLO, WHOLE_HELLO, balance="affinity") as (url, *_):
        bodies = [{"model": "m", "prompt": f"Hi {number}", "input": f"Hi {number}"} for number in range(6)]
        assert len({send(url, "chat", body, {"x-session-id": "s"}, path).headers["antiphon-upstream"] for body in bodies}) == 1
