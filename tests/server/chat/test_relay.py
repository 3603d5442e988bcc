"""Chats that are passed on to a server with chat completions: over sockets on both sides, by the official client and by plain HTTP."""

import asyncio
import contextlib
import json
import threading

import openai
import pytest

from antiphon.engine_api.capabilities import Capabilities
from antiphon.server.chat.relay import can_relay, read_head
from antiphon.server.processes.run import background_server
from support.engines.upstreams import CUT, DONE, STREAM_HEAD, chunk, closing, whole
from support.server.plain_http import post
from support.server.raw_http import connect, request, until
from support.server.raw_upstream import playing
from support.server.scripted_server import configured

PATH = "/v1/chat/completions"
ASK = {"model": "mock", "messages": [{"role": "user", "content": "Hi"}]}
HEAD = {"id": "chatcmpl-9", "object": "chat.completion.chunk", "created": 5, "model": "org/real"}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10, "cost": 0.1}


def data(delta, finish=None, **more):
    return {**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def stream(*events, end=DONE):
    body = b"".join(b"data: %b\n\n" % json.dumps(event, separators=(",", ":")).encode() for event in events)
    return STREAM_HEAD + chunk(body + end) + b"0\r\n\r\n"


SPOKEN = stream(
    data({"role": "assistant", "content": ""}),
    data({"reasoning_content": "hm"}),
    data({"content": "Hel"}, token_ids=[1]),
    data({"content": "lo"}),
    data({}, "stop", timings={"ms": 1.0}),
    {**HEAD, "choices": [], "usage": USAGE},
)


@contextlib.contextmanager
def serving(tmp_path, *plays, model="mock", **options):
    with playing(*plays) as (url, upstream):
        entry = {"engine": "chat", "base_url": url, "quirks": "vllm", "retries": 0, **options}
        with background_server(configured(tmp_path, {model: entry, "parrot": {"engine": "scripted"}})) as base_url:
            yield base_url, upstream


def chunks(body):
    *records, last, rest = body.decode().split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    return [json.loads(record.removeprefix("data: ")) for record in records]


def asked(upstream):
    return [body for _head, body in upstream.asked]


def test_a_stream_is_passed_on_event_by_event(tmp_path):
    with serving(tmp_path, SPOKEN, model="mock") as (base_url, upstream):
        body = {**ASK, "stream": True, "top_k": 3, "from_the_future": {"x": None}, "chat_template_kwargs": {"enable_thinking": False}}
        status, headers, reply = post(base_url, body, PATH)
        assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        events = chunks(reply)
        assert [event["choices"][0]["delta"] for event in events] == [
            {"role": "assistant", "content": ""},
            {"reasoning_content": "hm"},
            {"content": "Hel"},
            {"content": "lo"},
            {},
        ]
        assert {event["model"] for event in events} == {"mock"} and {event["id"] for event in events} == {"chatcmpl-9"}
        assert events[2]["token_ids"] == [1] and events[4]["timings"] == {"ms": 1.0}
        assert asked(upstream) == [{**body, "stream_options": {"include_usage": True}}]


def test_a_whole_answer_is_passed_on(tmp_path):
    message = {"role": "assistant", "content": "Hello", "reasoning": "hm", "annotations": []}
    answer = {**HEAD, "object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGE}
    with serving(tmp_path, whole("200 OK", answer), model="mock") as (base_url, upstream):
        assert json.loads(post(base_url, {**ASK, "stream": False}, PATH)[2]) == {**answer, "model": "mock"}
        assert asked(upstream) == [{**ASK, "stream": False}]


WHOLE_SPOKEN = {
    **HEAD,
    "object": "chat.completion",
    "model": "mock",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "reasoning_content": "hm"},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "token_ids": [1],
    "timings": {"ms": 1.0},
    "usage": USAGE,
}


def test_a_server_that_streams_though_it_was_not_asked_to_is_read_to_the_end(tmp_path):
    broken = stream(data({"role": "assistant", "content": "Hel"}), {"error": {"message": "out of memory"}}, end=b"")
    cut = stream(data({"role": "assistant", "content": "Hel"}), end=b"")
    with serving(tmp_path, SPOKEN, broken, cut) as (base_url, _):
        assert json.loads(post(base_url, ASK, PATH)[2]) == WHOLE_SPOKEN
        assert [post(base_url, ASK, PATH)[0] for _ in range(2)] == [502, 502]


def test_a_whole_answer_can_always_be_streamed_by_its_server(tmp_path):
    with serving(tmp_path, SPOKEN, whole("200 OK", WHOLE_SPOKEN | {"model": "org/real"}), always_stream=True) as (base_url, upstream):
        for _ in range(2):  # the second time the server does not stream, although it was asked to
            assert json.loads(post(base_url, {**ASK, "stream": False}, PATH)[2])["choices"][0]["message"]["content"] == "Hello"
        assert asked(upstream) == [{**ASK, "stream": True, "stream_options": {"include_usage": True}}] * 2


def test_what_can_not_be_streamed_is_asked_for_as_a_whole(tmp_path):
    answer = {**HEAD, "object": "text_completion", "choices": [{"index": 0, "text": "lo", "finish_reason": "stop"}], "usage": USAGE}
    body = {"model": "mock", "prompt": "Hel", "best_of": 2}
    with serving(tmp_path, whole("200 OK", answer), always_stream=True) as (base_url, upstream):
        assert json.loads(post(base_url, body, "/v1/completions")[2])["choices"][0]["text"] == "lo"
        assert asked(upstream) == [body]


def test_a_stream_has_its_head_and_comments_before_the_server_says_anything(tmp_path):
    async def silent(writer):
        await asyncio.Event().wait()

    with playing(silent) as (url, _):
        models = {"mock": {"engine": "chat", "base_url": url, "quirks": "vllm"}}
        with background_server(configured(tmp_path, models, **{"server.heartbeat_s": 0.1})) as base_url, connect(base_url) as connection:
            connection.sendall(request("POST", PATH, json.dumps({**ASK, "stream": True}).encode(), content_type="application/json"))
            assert until(connection, b": keep-alive\n\n").startswith(b"HTTP/1.1 200 ")


def test_the_official_client_streams_and_gets_the_usage_that_it_asks_for(tmp_path):
    with serving(tmp_path, SPOKEN) as (base_url, _), openai.OpenAI(base_url=f"{base_url}/v1", api_key="x", max_retries=0) as client:
        with client.chat.completions.stream(**ASK, stream_options={"include_usage": True}) as events:
            completion = events.get_final_completion()
        assert completion.choices[0].message.content == "Hello"
        assert completion.usage.total_tokens == 10 and completion.usage.cost == 0.1


def test_the_tokens_and_the_mends_are_counted(tmp_path):
    broken = stream(
        {**HEAD, "choices": [{"delta": {"content": "a"}}]}, {**HEAD, "choices": [{"delta": {}, "finish_reason": "stop"}]}, end=b""
    )
    with serving(tmp_path, SPOKEN, broken) as (base_url, _):
        for _ in range(2):
            chunks(post(base_url, {**ASK, "stream": True}, PATH)[2])
        with contextlib.closing(openai.DefaultHttpxClient()) as http:
            metrics = http.get(f"{base_url}/metrics").text
        assert 'antiphon_tokens_total{gen_ai_request_model="mock",gen_ai_token_type="input"} 7.0' in metrics
        for kind in ("role", "index", "done"):
            assert f'antiphon_upstream_repairs_total{{repair="{kind}",upstream="mock"}} 1.0' in metrics


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        (
            "400 Bad Request",
            {"message": "bad temperature", "param": "temperature", "code": "invalid_value"},
            (400, "invalid_value", "temperature"),
        ),
        ("400 Bad Request", {"message": "This model's maximum context length is 5 tokens."}, (400, "context_length_exceeded", "messages")),
        ("401 Unauthorized", {"message": "Incorrect key sk-secret"}, (502, "upstream_credentials", None)),
        ("404 Not Found", {"message": "The model `x` does not exist."}, (404, "model_not_found", "model")),
        ("429 Too Many", {"message": "slow down"}, (429, "rate_limit_exceeded", None)),
        ("500 Oops", {"message": "boom"}, (502, "server_error", None)),
        ("503 Busy", {"message": "loading"}, (503, "server_is_overloaded", None)),
    ],
)
def test_errors_have_their_status_and_the_shape_of_the_original(tmp_path, is_stream, status, error, expected):
    with serving(tmp_path, whole(status, {"error": error})) as (base_url, _):
        code, _, body = post(base_url, {**ASK, "stream": is_stream}, PATH)
        told = json.loads(body)["error"]
        assert (code, told["code"], told["param"]) == expected and set(told) == {"message", "type", "param", "code"}
        assert b"sk-secret" not in body
        if expected[1] == "context_length_exceeded":
            assert "This model's maximum context length is 5" in told["message"] and "context_length_exceeded" in told["message"]


def test_an_error_before_the_first_event_has_a_status_and_one_after_it_is_an_event(tmp_path):
    error = {"error": {"message": "out of memory at /opt/vllm/worker.py on 10.1.2.3", "code": 500}}
    plays = (stream(error), stream(data({"role": "assistant", "content": "a"}), error), closing(STREAM_HEAD + chunk(b"data: {")))
    with serving(tmp_path, *plays) as (base_url, _):
        assert post(base_url, {**ASK, "stream": True}, PATH)[0] == 502
        status, _, body = post(base_url, {**ASK, "stream": True}, PATH)
        assert status == 200 and chunks(body)[-1]["error"]["message"].startswith("The model server failed (500). Please try again later.")
        assert post(base_url, {**ASK, "stream": True}, PATH)[0] == 502


def test_a_server_that_comes_back_is_asked_again(tmp_path):
    with serving(tmp_path, whole("503 Busy", {}), CUT, SPOKEN, retries=2) as (base_url, upstream):
        assert chunks(post(base_url, {**ASK, "stream": True}, PATH)[2])[-1]["choices"][0]["finish_reason"] == "stop"
        assert len(upstream.asked) == 3


def test_a_client_that_leaves_stops_the_server(tmp_path):
    has_left = threading.Event()

    async def endless(writer):
        try:
            writer.write(STREAM_HEAD)
            while True:
                writer.write(chunk(b"data: %b\n\n" % json.dumps(data({"role": "assistant", "content": "a"})).encode()))
                await writer.drain()
                await asyncio.sleep(0)
        finally:
            has_left.set()

    with serving(tmp_path, endless) as (base_url, _):
        with openai.OpenAI(base_url=f"{base_url}/v1", api_key="x", max_retries=0) as client:
            with client.chat.completions.create(**ASK, stream=True) as events:
                next(iter(events))
            assert has_left.wait(60)


def test_pages_of_the_operators_network_are_not_fetched_for_a_client(tmp_path):
    with serving(tmp_path, SPOKEN) as (base_url, upstream):
        part = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}}
        status, _, body = post(base_url, {**ASK, "messages": [{"role": "user", "content": [part]}]}, PATH)
        assert status == 400 and json.loads(body)["error"]["code"] == "invalid_url" and not upstream.asked


def test_what_needs_this_servers_files_is_not_passed_on(tmp_path):
    with serving(tmp_path, SPOKEN) as (base_url, upstream):
        part = {"type": "file", "file": {"file_id": "file-of-another"}}
        status, _, _body = post(base_url, {**ASK, "messages": [{"role": "user", "content": [part]}]}, PATH)
        assert 400 <= status < 500 and not upstream.asked


def test_a_wrong_request_is_refused_here_where_its_shape_is_wrong(tmp_path):
    with serving(tmp_path, SPOKEN) as (base_url, upstream):
        for body, param in (({**ASK, "model": 3}, "model"), ({**ASK, "stream": "yes"}, "stream")):
            status, _, reply = post(base_url, body, PATH)
            assert (status, json.loads(reply)["error"]["param"]) == (400, param)
        assert post(base_url, {**ASK, "model": "nobody"}, PATH)[0] == 404 and not upstream.asked


def test_an_operator_can_have_everything_mapped(tmp_path):
    with serving(tmp_path, SPOKEN, abilities={"relays": ["embeddings"]}) as (base_url, _):
        events = chunks(post(base_url, {**ASK, "stream": True, "n": 1, "zeta": 1}, PATH)[2])
        assert {event["id"] for event in events} != {"chatcmpl-9"} and "".join(
            event["choices"][0]["delta"].get("content") or "" for event in events
        ) == "Hello"
        assert post(base_url, {"model": "mock", "prompt": "x"}, "/v1/completions")[0] == 400


def test_stored_completions_are_not_offered_and_nothing_is_stored_elsewhere(tmp_path):
    with serving(tmp_path, SPOKEN) as (base_url, upstream):
        _, headers, _ = post(base_url, {**ASK, "stream": True, "store": True, "metadata": {"a": "b"}}, PATH)
        assert headers["antiphon-not-stored"] == "1" and not {"store", "metadata"} & asked(upstream)[0].keys()


TAKING = Capabilities(relays=("chat/completions", "embeddings"))
SPOKEN_FIELDS = {"modalities": ["text", "audio"], "audio": {"voice": "v", "format": "wav"}}


@pytest.mark.parametrize(
    ("capabilities", "fields", "is_passed_on"),
    [
        (Capabilities(), {}, False),
        (Capabilities(relays=("embeddings",)), {}, False),
        (TAKING, {}, True),
        (TAKING, {"n": 20, "stream": True, "tools": [], "top_k": 3}, True),
        (TAKING, SPOKEN_FIELDS, False),
        (Capabilities(relays=TAKING.relays, audio_out=True), SPOKEN_FIELDS, True),
        (TAKING, {"messages": [{"content": [{"type": "file", "file": {"file_id": "file-1"}}]}]}, False),
    ],
)
def test_a_chat_goes_on_as_it_came_where_the_engine_takes_it_so_and_nothing_is_added(capabilities, fields, is_passed_on):
    body = json.dumps({**ASK, **fields}).encode()
    assert can_relay(capabilities, read_head(body), body) is is_passed_on


# Texts to continue


def test_a_text_is_continued_by_a_server_that_can(tmp_path):
    answer = {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "x",
        "choices": [{"index": 0, "text": " b", "finish_reason": "stop"}],
    }
    streamed = stream({**answer, "choices": [{"index": 0, "text": " b", "finish_reason": "length", "logprobs": None}]})
    with serving(tmp_path, whole("200 OK", {**answer, "usage": USAGE}), streamed) as (base_url, upstream):
        with openai.OpenAI(base_url=f"{base_url}/v1", api_key="x", max_retries=0) as client:
            completion = client.completions.create(model="mock", prompt=[[1, 2]], suffix="d", echo=True, best_of=2, logprobs=1)
            assert (completion.choices[0].text, completion.model, completion.usage.total_tokens) == (" b", "mock", 10)
            events = list(client.completions.create(model="mock", prompt="a", stream=True))
            assert [(event.choices[0].text, event.choices[0].finish_reason) for event in events] == [(" b", "length")]
        assert upstream.asked[0][0].startswith("POST /v1/completions ")
        assert asked(upstream)[0] == {"model": "mock", "prompt": [[1, 2]], "suffix": "d", "echo": True, "best_of": 2, "logprobs": 1}


def test_a_model_without_bare_prompts_says_what_to_use(tmp_path):
    with serving(tmp_path, SPOKEN) as (base_url, _):
        status, _, body = post(base_url, {"model": "parrot", "prompt": "a"}, "/v1/completions")
        error = json.loads(body)["error"]
        assert (status, error["code"], error["param"]) == (400, "unsupported_model", "model") and "/v1/chat/completions" in error["message"]
