"""The chat engine before a server that plays what a test tells it, byte by byte."""

import asyncio
import json
from pathlib import Path

import pytest

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.engine import BuildContext
from antiphon.engine_api.options import ConversationSettings, FunctionTool
from antiphon.engines.chat.engine import build
from antiphon.errors import ServerError

SSE = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def chunk(delta, finish=None, **more):
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}) + "\n\n"


USAGE = "data: " + json.dumps(
    {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}}
)
HELLO = SSE + chunk({"role": "assistant", "content": ""}) + chunk({"content": "Héllo"}) + chunk({"content": " you"}, "stop") + USAGE
HELLO += "\n\ndata: [DONE]\n\n"


def reply(status, body, *headers):
    text = body if isinstance(body, str) else json.dumps(body)
    lines = [f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(text.encode())}", "connection: close", *headers]
    return "\r\n".join(lines) + "\r\n\r\n" + text


def ask(text="Hi", **more):
    return commands.Respond(id="resp_1", history=(history.Message("user", (history.TextPart(text),)),), **more)


def answered(script, respond=None, split=0, secrets=None, **options):
    """What the engine says when the server plays `script`, and the requests that it was sent."""

    async def play():
        asked, words, over = [], [], asyncio.Event()

        async def serve(reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
            body = await reader.readexactly(length)
            if body:
                asked.append((head.decode(), json.loads(body)))
            told = (script if body else reply("404 Not Found", {})).encode()
            for start in range(0, len(told), split or len(told)):
                writer.write(told[start : start + (split or len(told))])
                await writer.drain()
            writer.close()

        def deliver(said):
            words.extend(said)
            if any(isinstance(word, events.ResponseEnded | events.ResponseFailed) for word in said):
                over.set()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            settings = {"base_url": f"http://127.0.0.1:{port}/v1", "retries": 0, "quirks": "generic", **options}
            engine = build("mock", settings, BuildContext(weights_folder=Path(), base_folder=Path(), secrets=secrets or {}))
            await engine.start()
            async with asyncio.timeout(20), engine.open(ConversationSettings(model="mock-1"), deliver) as conversation:
                conversation.send(respond or ask())
                await over.wait()
            await engine.stop()
        return words, asked

    return asyncio.run(play())


def text_of(words):
    return "".join(word.text for word in words if isinstance(word, events.TextDelta))


@pytest.mark.parametrize("split", [0, 1, 7, 64])
def test_a_stream_is_read_however_it_is_cut(split):
    words, asked = answered(HELLO, split=split)
    assert text_of(words) == "Héllo you"
    assert words[-2:] == [
        events.Usage(id="resp_1", input_tokens=7, output_tokens=3, cached_tokens=2),
        events.ResponseEnded("resp_1", "stop"),
    ]
    head, body = asked[0]
    assert head.startswith("POST /v1/chat/completions ")
    assert (body["model"], body["stream"], body["messages"]) == ("mock-1", True, [{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("media_type", ["text/plain; charset=utf-8", "application/octet-stream"])
def test_a_stream_that_its_server_does_not_call_one_is_read(media_type, split):
    words, _ = answered(HELLO.replace("text/event-stream", media_type), split=split)
    assert words[-1] == events.ResponseEnded("resp_1")
    assert "".join(word.text for word in words if isinstance(word, events.TextDelta)) == "Héllo you"


@pytest.mark.parametrize("body", ["It works!", "d", "dating"])
def test_a_text_that_is_no_stream_is_none(body):
    words, _ = answered(HELLO.partition("data:")[0].replace("text/event-stream", "text/plain") + body)
    assert [type(word) for word in words] == [events.ResponseFailed]


def test_reasoning_comes_before_the_text():
    words, _ = answered(SSE + chunk({"reasoning_content": "Hm."}) + chunk({"content": "Yes"}, "stop") + "data: [DONE]\n\n")
    assert words[0] == events.ReasoningDelta("resp_1", "Hm.")
    assert text_of(words) == "Yes"


def test_calls_are_told_one_after_the_other():
    first = {"tool_calls": [{"index": 0, "id": "call_a", "type": "function", "function": {"name": "f", "arguments": ""}}]}
    more = {"tool_calls": [{"index": 0, "function": {"arguments": '{"x":1}'}}]}
    second = {"tool_calls": [{"index": 1, "id": "call_b", "type": "function", "function": {"name": "g", "arguments": "{}"}}]}
    script = SSE + chunk(first) + chunk(more) + chunk(second) + chunk({}, "tool_calls") + "data: [DONE]\n\n"
    words, asked = answered(script, ask(tools=(FunctionTool("f"), FunctionTool("g"))))
    assert [word.name for word in words if isinstance(word, events.ToolCallStarted)] == ["f", "g"]
    assert [word.text for word in words if isinstance(word, events.ToolArgumentsDelta) and word.text] == ['{"x":1}', "{}"]
    assert [tool["function"]["name"] for tool in asked[0][1]["tools"]] == ["f", "g"]
    assert words[-1] == events.ResponseEnded("resp_1", "stop")


@pytest.mark.parametrize(("finish", "reason"), [("stop", "stop"), ("length", "length"), ("content_filter", "content_filter")])
def test_every_finish_reason_has_its_end(finish, reason):
    words, _ = answered(SSE + chunk({"content": "x"}, finish) + "data: [DONE]\n\n")
    assert words[-1] == events.ResponseEnded("resp_1", reason)


CONTEXT = {"error": {"message": "This model's maximum context length is 4096 tokens.", "code": "context_length_exceeded"}}


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        (reply("429 Too Many Requests", {"error": {"message": "slow down"}}, "retry-after: 7"), 429, "rate_limit_exceeded"),
        (reply("400 Bad Request", CONTEXT), 400, "context_length_exceeded"),
        (reply("401 Unauthorized", {"error": {"message": "bad key"}}), 502, None),
        (reply("500 Internal Server Error", {"error": {"message": "boom"}}), 502, None),
        (reply("200 OK", "<html>hello</html>"), 502, None),
        (SSE + chunk({"content": "half"}), 502, None),
        (SSE + 'data: {"choices": [{"ind', 502, None),
        (SSE + chunk({"content": "x"}) + 'data: {"error": {"message": "gone", "code": 500}}\n\n', 502, None),
        ("", 502, None),
    ],
)
def test_a_failure_is_told_once_and_as_what_it_is(script, status, code):
    words, _ = answered(script)
    (broke,) = (word for word in words if isinstance(word, events.ResponseFailed))
    assert words[-1] is broke
    assert broke.status == status or (status == 502 and broke.status >= 500)
    assert code is None or broke.code == code


def test_a_server_that_is_not_there_is_told():
    words, _ = answered(HELLO, base_url="http://127.0.0.1:9/v1")
    assert words[-1].status in (502, 503)


def test_the_key_that_the_configuration_names_goes_upstream():
    _, asked = answered(HELLO, api_key_env="MOCK_KEY", secrets={"MOCK_KEY": "s3cret"})
    assert "authorization: bearer s3cret" in asked[0][0].lower()


@pytest.mark.parametrize(("options", "named"), [({}, "base_url"), ({"base_url": "http://x/v1", "colour": 1}, "colour")])
def test_a_wrong_option_is_named(options, named):
    with pytest.raises(ServerError, match=named):
        build("mock", options, BuildContext(weights_folder=Path(), base_folder=Path()))
