"""The responses engine in front of a server that plays the test's bytes: its requests, and how answers fail."""

import asyncio
import json
from base64 import b64encode
from pathlib import Path

import pytest

from antiphon.audio import wav_file
from antiphon.engine_api import commands, events, history as engine_history
from antiphon.engine_api.engine import BuildContext
from antiphon.engine_api.options import ConversationSettings, CustomTool, FunctionTool, HostedTool, JsonSchema, Sampling, ToolChoice
from antiphon.engines.responses.engine import build
from antiphon.errors import ServerError
from support.engines.responses_events import CALLED, ID, SAID, SEEN, THOUGHT, USAGE, WHOLE, frames, over, shown

SSE = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def reply(status, body, *headers):
    text = body if isinstance(body, str) else json.dumps(body)
    lines = [f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(text.encode())}", "connection: close", *headers]
    return "\r\n".join(lines) + "\r\n\r\n" + text


def ask(*history, **more):
    history = history or (engine_history.Message("user", (engine_history.TextPart("Hi"),)),)
    return commands.Respond(id=ID, history=history, **more)


def answered(script, respond=None, **options):
    """What the engine says when the server plays `script`, and the requests that it was sent."""

    async def play():
        asked, words, done = [], [], asyncio.Event()

        async def serve(reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            asked.append((head.decode(), json.loads(await reader.readexactly(length))))
            writer.write(script.encode())
            await writer.drain()
            writer.close()

        def deliver(said):
            words.extend(said)
            if any(isinstance(word, events.ResponseEnded | events.ResponseFailed) for word in said):
                done.set()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            engine = build("mock", {"base_url": url, "retries": 0, **options}, BuildContext(weights_folder=Path(), base_folder=Path()))
            async with asyncio.timeout(20), engine.open(ConversationSettings(model="mock-1"), deliver) as conversation:
                conversation.send(respond or ask())
                await done.wait()
            await engine.stop()
        return words, asked

    return asyncio.run(play())


def body_for(respond, **options):
    return answered(SSE + frames([over()]), respond, **options)[1][0][1]


def test_a_stream_is_asked_for_and_nothing_is_kept_upstream():
    words, [(head, body)] = answered(SSE + frames(WHOLE))
    assert shown(words) == SEEN
    assert head.startswith("POST /v1/responses ")
    said = {"type": "message", "role": "user", "content": "Hi"}
    assert body == {"model": "mock-1", "input": [said], "stream": True, "store": False}


def test_a_server_that_does_not_stream_is_understood():
    whole = {"id": "resp_x", "object": "response", "status": "completed", "output": [THOUGHT, SAID, CALLED], "usage": USAGE}
    words, _ = answered(reply("200 OK", whole))
    assert shown(words) == SEEN


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        (SSE + frames(WHOLE[:-1]), 502, "upstream_broke_off"),
        (SSE + frames(WHOLE[:-1]) + "data: [DONE]\n\n", 502, "upstream_broke_off"),
        (SSE + 'data: {"type": "respon', 502, None),
        (reply("429 Too Many Requests", {"error": {"message": "slow down"}}, "retry-after: 7"), 429, "rate_limit_exceeded"),
        (reply("401 Unauthorized", {"error": {"message": "bad key"}}), 502, "upstream_credentials"),
        ("", 502, None),
    ],
)
def test_an_answer_without_its_end_broke(script, status, code):
    words, _ = answered(script)
    (broke,) = (word for word in words if isinstance(word, events.ResponseEnded | events.ResponseFailed))
    assert words[-1] is broke
    assert broke.status == status
    assert code is None or broke.code == code


def test_a_request_asks_for_all_that_was_asked():
    body = body_for(
        ask(
            instructions="Be brief.",
            sampling=Sampling(0.5, 0.9, max_tokens=64, top_logprobs=2, extra={"seed": 7, "base_url": "http://elsewhere"}),
            format=JsonSchema("n", {"type": "object"}, strict=True),
            truncate=True,
            reasoning_effort="low",
            reasoning_summary="auto",
            verbosity="high",
            encrypt_reasoning=True,
        )
    )
    del body["input"], body["model"]
    assert body == {
        "instructions": "Be brief.",
        "stream": True,
        "store": False,
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 64,
        "top_logprobs": 2,
        "seed": 7,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}, "verbosity": "high"},
        "truncation": "auto",
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
    }


def test_speech_goes_as_a_recording_and_what_the_assistant_said_aloud_as_words():
    heard, said = engine_history.SpeechPart(b"abcd", 8_000, "turn_1", "Hi"), engine_history.SpeechPart(b"abcd", 8_000, None, "Hello.")
    user, assistant = body_for(ask(engine_history.Message("user", (heard,)), engine_history.Message("assistant", (said,))))["input"]
    recording = {"data": b64encode(wav_file(b"abcd", 8_000)).decode(), "format": "wav"}
    assert user == {"type": "message", "role": "user", "content": [{"type": "input_audio", "input_audio": recording}]}
    assert assistant == {"type": "message", "role": "assistant", "content": "Hello."}


PDF = engine_history.FilePart(inline="data:application/pdf;base64,JVBERi0=", filename="a.pdf")


def test_a_conversation_is_told_as_items_without_ids():
    history = (
        engine_history.Message("developer", (engine_history.TextPart("Be kind."),)),
        engine_history.Message(
            "user", (engine_history.TextPart("What is this?"), engine_history.ImagePart("data:image/png;base64,iVBORw0KGgo=", detail="low"))
        ),
        engine_history.Message("user", (PDF, engine_history.AudioPart("AA", "wav"))),
        engine_history.ReasoningItem("Hm.", ("In short.",), "c2VhbA"),
        engine_history.ReasoningItem(),
        engine_history.ToolCall("call_1", "find", "", namespace="gh"),
        engine_history.ToolResult("call_1", (engine_history.TextPart("one"), engine_history.TextPart("two"))),
        engine_history.ToolCall("call_2", "apply_patch", "*** Begin", custom=True),
        engine_history.ToolResult("call_2", (engine_history.TextPart("ok"),)),
        engine_history.Message("assistant", (engine_history.TextPart("A cat."),), "commentary"),
        engine_history.Message("assistant", (engine_history.RefusalPart("No."),)),
        engine_history.HostedToolItem({"type": "web_search_call", "id": "ws_1"}),
    )
    assert body_for(ask(*history))["input"] == [
        {"type": "message", "role": "developer", "content": "Be kind."},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What is this?"},
                {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"},
            ],
        },
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_file", "file_data": "data:application/pdf;base64,JVBERi0=", "filename": "a.pdf"},
                {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
            ],
        },
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "In short."}],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
            "encrypted_content": "c2VhbA",
        },
        {"type": "function_call", "call_id": "call_1", "name": "gh__find", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}],
        },
        {"type": "custom_tool_call", "call_id": "call_2", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "ok"},
        {"type": "message", "role": "assistant", "content": "A cat.", "phase": "commentary"},
        {
            "type": "message",
            "id": "msg_10",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "refusal", "refusal": "No."}],
        },
        {"type": "web_search_call", "id": "ws_1"},
    ]


@pytest.mark.parametrize("part", [engine_history.ImagePart(file_id="file_1"), engine_history.FilePart(file_id="file_1")])
def test_an_uploaded_file_of_this_server_is_not_asked_for_upstream(part):
    words, asked = answered("", ask(engine_history.Message("user", (part,))))
    assert (words[-1].status, words[-1].code) == (400, "unsupported_parameter")
    assert not asked


PAGE = engine_history.ImagePart("http://127.0.0.1:1/a.png")


def test_a_picture_that_a_client_names_by_its_address_is_not_fetched_upstream():
    words, asked = answered("", ask(engine_history.Message("user", (PAGE,))))
    assert (words[-1].status, words[-1].code) == (400, "invalid_url")
    assert not asked


def test_an_upstream_may_be_trusted_to_fetch():
    body = body_for(ask(engine_history.Message("user", (PAGE,))), fetch_urls="upstream")
    assert body["input"][0]["content"][0]["image_url"] == PAGE.url


TOOLS = (
    FunctionTool("f", "Does f.", {"type": "object"}, True),
    FunctionTool("find", namespace="gh"),
    FunctionTool("find", namespace="hub"),
    CustomTool("edit", "Edits.", "lark", "start: /x/"),
)
PLAIN_F = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True, "description": "Does f."}
EDIT = {
    "type": "custom",
    "name": "edit",
    "description": "Edits.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"},
}


def found(name):
    return {"type": "function", "name": name, "parameters": None, "strict": None}


def test_namespaces_are_told_as_longer_names_to_a_server_that_does_not_know_them():
    body = body_for(ask(tools=TOOLS, namespaces={"gh": "Code."}, parallel_tool_calls=False))
    told = found("gh__find") | {"description": "(All tools named gh__…: Code.)"}
    assert body["tools"] == [PLAIN_F, told, found("hub__find"), EDIT]
    assert body["parallel_tool_calls"] is False
    assert "tool_choice" not in body


def test_namespaces_are_told_as_they_are_to_a_server_that_knows_them():
    history = (
        engine_history.ToolCall("call_1", "find", "{}", namespace="gh"),
        engine_history.ToolResult("call_1", (engine_history.TextPart("x"),)),
    )
    body = body_for(ask(*history, tools=TOOLS, namespaces={"gh": "Code."}), namespaces=True)
    assert body["tools"] == [
        PLAIN_F,
        EDIT,
        {"type": "namespace", "name": "gh", "description": "Code.", "tools": [found("find")]},
        {"type": "namespace", "name": "hub", "description": "", "tools": [found("find")]},
    ]
    assert body["input"][0] == {"type": "function_call", "call_id": "call_1", "name": "find", "namespace": "gh", "arguments": "{}"}


def test_only_what_may_be_called_is_offered():
    choice = ToolChoice("required", ("hub.find", "web_search"))
    hosted = (HostedTool("web_search", {"type": "web_search"}), HostedTool("mcp", {"type": "mcp", "server_label": "x"}))
    body = body_for(ask(tools=TOOLS, hosted_tools=hosted, tool_choice=choice))
    assert body["tools"] == [found("hub__find"), {"type": "web_search"}]
    assert body["tool_choice"] == "required"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "base_url"),
        ({"base_url": "http://x/v1", "ids": "mine"}, "ids"),
        ({"base_url": "http://x/v1", "abilities": {"flies": True}}, "flies"),
        ({"base_url": "http://x/v1", "abilities": {"hosted": ["mcp"]}}, "hosted"),
    ],
)
def test_a_wrong_option_is_named(options, named):
    with pytest.raises(ServerError, match=named):
        build("mock", options, BuildContext(weights_folder=Path(), base_folder=Path()))


def test_what_is_usual_differs_at_openai():
    place = BuildContext(weights_folder=Path(), base_folder=Path())
    theirs = build("m", {"base_url": "https://api.openai.com/v1", "tools": ["web_search"]}, place).capabilities
    usual = build("m", {"base_url": "http://127.0.0.1/v1", "abilities": {"images": False}}, place).capabilities
    assert (theirs.grammars, theirs.penalties, theirs.hosted) == (True, False, ("web_search",))
    assert (usual.grammars, usual.penalties, usual.hosted, usual.images) == (False, True, (), False)
