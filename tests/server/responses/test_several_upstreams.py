"""A model with several upstreams and a fallback, as clients and operators see it over HTTP."""

import asyncio
import contextlib
import io
import json
import re
import urllib.request

import openai
import pytest

from antiphon.cli.common.shell import Shell
from antiphon.cli.common.upstreams import check_upstreams
from antiphon.cli.main import run
from antiphon.server.processes.run import background_server
from support.engines.upstreams import CUT, HALF, closing, streamed, whole
from support.server.plain_http import events_in, post
from support.server.raw_upstream import playing
from support.server.scripted_server import configured

HELLO = streamed("hello")
WHOLE_HELLO = whole("200 OK", {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]})


def get(base_url, path):
    return urllib.request.urlopen(base_url + path).read()


@contextlib.contextmanager
def serving(tmp_path, first, second, *, fallback=False, server=None, **options):
    """A server whose model `m` has two upstreams, `one` and `two`, that play so."""
    with playing(first) as (first_url, one), playing(second) as (second_url, two):
        model = {
            "engine": "chat",
            "quirks": "generic",
            "balance": "least_outstanding",
            "upstreams": [{"name": "one", "base_url": first_url, "weight": 9}, {"name": "two", "base_url": second_url}],
            **options,
        }
        models = {"m": model | ({"fallback": ["small"]} if fallback else {}), "small": {"engine": "scripted"}}
        with background_server(configured(tmp_path, models, **(server or {}))) as base_url:
            yield base_url, one, two


@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_headers_say_who_answered(tmp_path, is_streamed):
    with serving(tmp_path, CUT, HELLO if is_streamed else WHOLE_HELLO, server={"server.upstream_header": True}) as (base_url, *_):
        status, headers, body = post(base_url, {"model": "m", "input": "Hi", "stream": is_streamed})
    assert status == 200
    assert b"hello" in body
    names = ("antiphon-model", "antiphon-attempts", "antiphon-upstream", "antiphon-fallback")
    assert [headers[name] for name in names] == ["m", "2", "two", None]
    response = events_in(body)[-1]["response"] if is_streamed else json.loads(body)
    assert response["model"] == "m"


def test_another_model_says_so(tmp_path):
    with serving(tmp_path, CUT, whole("503 No", {}), fallback=True) as (base_url, *_):
        for is_streamed in (False, True):
            status, headers, _ = post(base_url, {"model": "m", "input": "Hi", "stream": is_streamed})
            assert status == 200
            assert headers["antiphon-model"] == "small"
            assert headers["antiphon-fallback"] == "m>small; reason=overload"
            assert headers["antiphon-upstream"] is None


def test_a_failure_has_the_status_of_the_last_try_and_says_how_many_there_were(tmp_path):
    with serving(tmp_path, CUT, whole("500 Oh", {"error": {"message": "Oh."}})) as (base_url, *_):
        for is_streamed in (False, True):
            status, headers, body = post(base_url, {"model": "m", "input": "Hi", "stream": is_streamed})
            assert status == 502
            assert headers["antiphon-attempts"] == "2"
            assert "127.0.0.1" not in body.decode()


def test_a_model_with_one_upstream_says_its_name_only(tmp_path):
    with background_server(configured(tmp_path, {"small": {"engine": "scripted"}})) as base_url:
        _, headers, _ = post(base_url, {"model": "small", "input": "Hi"})
    assert (headers["antiphon-model"], headers["antiphon-attempts"]) == ("small", None)


def test_a_stream_that_broke_after_its_first_word_is_not_begun_again(tmp_path):
    with serving(tmp_path, closing(HALF), HELLO) as (base_url, _, two):
        _, headers, body = post(base_url, {"model": "m", "input": "Hi", "stream": True})
        assert not two.asked
    events = events_in(body)
    assert "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta") == "half"
    assert events[-1]["type"] == "response.failed"
    assert headers["antiphon-attempts"] == "1"


def test_a_client_that_is_told_to_wait_for_minutes_does_not_try_again(tmp_path):
    limited = whole("429 No", {"error": {"message": "Oh."}}, retry_after=600)
    with serving(tmp_path, limited, limited) as (base_url, one, two):
        with pytest.raises(openai.RateLimitError) as error, openai.OpenAI(base_url=f"{base_url}/v1", api_key="-") as client:
            client.responses.create(model="m", input="Hi")
        assert len(one.asked) + len(two.asked) == 2
    assert error.value.response.headers["x-should-retry"] == "false"
    assert 600 <= int(error.value.response.headers["retry-after"]) <= 720


def test_what_a_client_names_as_its_session_stays_together(tmp_path):
    def answer(base_url, body, headers=None):
        request = urllib.request.Request(
            f"{base_url}/v1/responses", json.dumps({"model": "m", **body}).encode(), {"content-type": "application/json", **(headers or {})}
        )
        with urllib.request.urlopen(request) as reply:
            return reply.headers["antiphon-upstream"], json.loads(reply.read())["id"]

    names = {"server": {"server.upstream_header": True}, "balance": "affinity"}
    with serving(tmp_path, WHOLE_HELLO, WHOLE_HELLO, **names) as (base_url, *_):
        conversation = json.loads(post(base_url, {}, "/v1/conversations")[2])["id"]
        together = [
            [({"prompt_cache_key": "k", "input": f"Hi {number}"}, {}) for number in range(6)],
            [({"input": f"Hi {number}"}, {"x-session-id": "s"}) for number in range(6)],
            [({"input": f"Hi {number}"}, {"session_id": "s"}) for number in range(6)],
            [({"input": f"Hi {number}", "conversation": conversation}, {}) for number in range(6)],
        ]
        for requests in together:
            assert len({answer(base_url, *request)[0] for request in requests}) == 1
        for number in range(6):
            home, id = answer(base_url, {"input": f"Begin {number}"})
            for _ in range(3):
                assert answer(base_url, {"input": "Go on", "previous_response_id": id})[0] == home


def test_a_doctor_looks_at_every_upstream(tmp_path):
    with playing(HELLO) as (url, _):
        model = {"engine": "chat", "upstreams": [{"base_url": url}, {"base_url": "http://127.0.0.1:9/v1"}]}
        found = check_upstreams(configured(tmp_path, {"m": model}))
    assert sorted((upstream.models, upstream.problem is None) for upstream in found) == [("m", False), ("m", True)]


def test_operators_see_every_upstream(tmp_path):
    with serving(tmp_path, whole("401 No", {}), HELLO) as (base_url, *_):
        for _ in range(3):
            post(base_url, {"model": "m", "input": "Hi", "stream": True})
        for path in ("/status", "/workers"):
            one, two = json.loads(get(base_url, path))["upstreams"]
            assert (one["model"], one["name"], one["state"], one["reason"], one["requests"]) == ("m", "one", "open", "401", 1)
            assert 45 <= one["rest_s"] + 5 <= 85
            assert (two["name"], two["state"], two["answered"], two["outstanding"]) == ("two", "ready", 3, 0)
        metrics = get(base_url, "/metrics").decode()
        out = io.StringIO()
        shell = Shell(environ={"HOME": str(tmp_path), "COLUMNS": "200"}, cwd=tmp_path, stdin=io.StringIO(), stdout=out, stderr=out)
        assert run(["workers", "list", "--url", base_url], shell) == 0
    assert 'antiphon_upstream_attempts_total{outcome="401",upstream="m/one"} 1.0' in metrics
    assert 'antiphon_upstream_attempts_total{outcome="ok",upstream="m/two"} 3.0' in metrics
    assert 'antiphon_upstream_state{state="open",upstream="m/one"} 1.0' in metrics
    assert 'antiphon_upstream_outstanding{upstream="m/two"} 0.0' in metrics
    rows = [line.split() for line in out.getvalue().splitlines()]
    assert next(row for row in rows if row[:1] == ["one"])[:4] == ["one", "m", "open", "9"]


def test_the_log_has_the_reason_and_the_time_of_every_try(tmp_path, capfd):
    with serving(tmp_path, whole("500 Oh", {}), whole("503 No", {}), fallback=True) as (base_url, *_):
        post(base_url, {"model": "m", "input": "Hi"})
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
    (line,) = (line for line in lines if line["event"] == "answered_by" and "fallback" in line)
    assert re.fullmatch(r"m/one=500 t=\d+\+\d+ms; m/two=503 t=\d+\+\d+ms; small=ok t=\d+\+\d+ms", line["attempts"])
    assert (line["fallback"], line["request_id"][:4]) == ("overload", "req_")


def test_a_slow_upstream_holds_nobody_up_for_long(tmp_path):
    async def never(writer):
        writer.write(HALF[: HALF.index(b"\r\n\r\n") + 4])

    with serving(tmp_path, never, HELLO, failover_after_s=0.2) as (base_url, *_):
        _, headers, body = post(base_url, {"model": "m", "input": "Hi", "stream": True})
    assert headers["antiphon-attempts"] == "2"
    assert events_in(body)[-1]["response"]["output"][0]["content"][0]["text"] == "hello"


def test_a_whole_chat_leaves_a_silent_upstream_too(tmp_path):
    async def never(writer):
        await asyncio.Event().wait()

    with serving(tmp_path, never, HELLO, failover_after_s=0.2) as (base_url, *_):
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        _, headers, body = post(base_url, body, "/v1/chat/completions")
    assert headers["antiphon-attempts"] == "2"
    assert json.loads(body)["choices"][0]["message"]["content"] == "hello"
