"""Keys, limits, metrics, silence, drain and clients that leave: as for responses."""

import json
import signal

import openai
import pytest

from antiphon.server.processes.run import background_server
from support.engines.upstreams import CUT, whole
from support.server.key_server import KeyServer, numbers
from support.server.own_process import serving
from support.server.plain_http import post
from support.server.raw_http import connect, request, rest_of, statuses, until
from support.server.raw_upstream import playing
from support.server.scripted_server import SCRIPT, configured

PATH = "/v1/chat/completions"
MODELS = {
    "parrot": {"engine": "scripted", **SCRIPT},
    "slow": {"engine": "scripted", "pace_ms": 5, **SCRIPT},
    "silent": {"engine": "scripted", "answers": [{"lines": [{"text": "So"}, {"wait_ms": 60_000}]}]},
}


def asked(question):
    return [{"role": "user", "content": question}]


def ask(model="parrot", question="Hi", **fields):
    return request("POST", PATH, json.dumps({"model": model, "messages": asked(question), **fields}).encode())


def client_of(url, key="none"):
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


@pytest.mark.anyio
async def test_a_key_needs_its_scope(tmp_path):
    server = KeyServer(tmp_path, MODELS)
    reader, writer = await server.key(scopes=("responses:read",)), await server.key(scopes=("responses:write",))
    with server.serving() as url, client_of(url, reader) as client, client_of(url, writer) as other:
        with pytest.raises(openai.PermissionDeniedError):
            client.chat.completions.create(model="parrot", messages=asked("Hi"))
        assert other.chat.completions.create(model="parrot", messages=asked("Hi")).choices
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.retrieve("chatcmpl-1")
        with client_of(url, "sk-wrong") as nobody, pytest.raises(openai.AuthenticationError):
            nobody.chat.completions.create(model="parrot", messages=asked("Hi"))


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_are_counted_by_what_an_answer_came_to(tmp_path, stream):
    server = KeyServer(tmp_path, MODELS)
    key = await server.key(tokens_per_minute=8)
    with server.serving() as url, client_of(url, key) as client:
        raw = client.chat.completions.with_raw_response.create(model="parrot", messages=asked("one two three"), stream=stream)
        assert raw.headers["x-ratelimit-remaining-tokens"] == ("8" if stream else "0")
        if stream:
            list(raw.parse())
        with pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(model="parrot", messages=asked("Hi"))
        assert refused.value.type == "tokens"


@pytest.mark.anyio
async def test_each_choice_is_a_running_response_of_the_key(tmp_path):
    server = KeyServer(tmp_path, MODELS)
    key = await server.key(streams=2)
    with server.serving() as url, client_of(url, key) as client:
        assert len(client.chat.completions.create(model="parrot", messages=asked("Hi"), n=2).choices) == 2
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="parrot", messages=asked("Hi"), n=3)
        assert len(client.chat.completions.create(model="parrot", messages=asked("Hi"), n=2).choices) == 2


def test_a_client_that_leaves_stops_the_engine_and_the_metrics_say_so(tmp_path):
    with background_server(configured(tmp_path, MODELS)) as url:
        with connect(url) as connection:
            connection.sendall(ask("slow", "sing", stream=True))
            until(connection, b"la")
        for _ in range(2000):  # each look is a round trip
            if count := numbers(url).get(("gen_ai_server_request_duration_seconds_count", "slow", "cancelled")):
                break
        assert count == 1
        with client_of(url) as client:
            client.chat.completions.create(model="parrot", messages=asked("one two"))
            list(client.chat.completions.create(model="parrot", messages=asked("one two"), stream=True))
        seen = numbers(url)
    assert seen["gen_ai_server_request_duration_seconds_count", "parrot", "completed"] == 2
    assert seen["gen_ai_server_time_to_first_token_seconds_count", "parrot"] == 1
    assert (seen["antiphon_tokens_total", "parrot", "input"], seen["antiphon_tokens_total", "parrot", "output"]) == (4, 8)


def test_a_silent_stream_is_kept_alive_by_comments(tmp_path):
    with background_server(configured(tmp_path, MODELS, **{"server.heartbeat_s": 0.1})) as url, connect(url) as connection:
        connection.sendall(ask("silent", stream=True))
        until(connection, b'"So"')
        until(connection, b": keep-alive\n\n")


def test_a_stream_under_way_ends_in_order_and_no_new_one_is_taken_while_the_server_drains(tmp_path):
    with serving(tmp_path) as (process, url):
        with connect(url) as connection, connect(url) as late:
            connection.sendall(ask("short", stream=True))
            begun = until(connection, b'"la')
            process.send_signal(signal.SIGTERM)
            late.sendall(request(path="/readyz"))
            assert statuses(rest_of(late)) == [503]
            with connect(url) as refused:
                refused.sendall(ask())
                assert statuses(rest_of(refused)) == [503]
            answer = begun + rest_of(connection)
        assert answer.count(b'"delta":{"content":"la"}') == 60
        assert b'"finish_reason":"stop"' in answer and b"data: [DONE]\n\n" in answer
        assert process.wait(10) == 0


def test_a_stream_that_outlasts_the_drain_is_told_why(tmp_path):
    with serving(tmp_path, drain_s=0.5) as (process, url):
        with connect(url) as connection:
            connection.sendall(ask("endless", stream=True))
            until(connection, b"la")
            process.send_signal(signal.SIGTERM)
            answer = rest_of(connection)
        assert b'"code":"server_shutting_down"' in answer
        assert b'"finish_reason":"' not in answer
        assert process.wait(10) == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("play", "status", "code"),
    [
        (CUT, 502, "upstream_broke_off"),
        (whole("503 No", {"error": "down"}, retry_after=9), 503, "server_is_overloaded"),
        (whole("429 No", {"error": {"message": "slow"}}, retry_after=9), 429, "rate_limit_exceeded"),
        (whole("401 No", {"error": {"message": "key sk-secret"}}), 502, "upstream_credentials"),
    ],
)
def test_an_upstream_that_fails_before_the_first_word_is_a_status(tmp_path, play, status, code, stream):
    with playing(play) as (upstream, _):
        options = {"engine": "chat", "base_url": upstream, "retries": 0, "quirks": "generic"}
        with background_server(configured(tmp_path, {"m": options})) as url:
            got, _, body = post(url, {"messages": asked("Hi"), "stream": stream}, PATH)
    assert (got, json.loads(body)["error"]["code"]) == (status, code)
    assert b"sk-secret" not in body
