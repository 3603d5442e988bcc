"""What a server of chat completions is sent: every column of the table of their differences, and what none of them is sent."""

import json
from base64 import b64encode

import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from antiphon.audio import wav_file
from antiphon.engine_api import commands, history as engine_history
from antiphon.engine_api.options import CustomTool, FunctionTool, JsonObject, Sampling, ToolChoice
from antiphon.engines.chat.quirks import QUIRKS, Quirks
from antiphon.engines.chat.request import BLOCKED_KEYS, encode_request
from antiphon.errors import ClientError

PNG = "data:image/png;base64,iVBORw0KGgo="
GET = FunctionTool("get", "Gets", {"type": "object"}, strict=True)
SHELL = CustomTool("shell", "Runs", syntax="regex", grammar="[a-z]+", namespace="tools")


def text(role, words):
    return engine_history.Message(role, (engine_history.TextPart(words),))


def ask(**more):
    return commands.Respond(**{"id": "resp_1", "history": (text("user", "Hi"),)} | more)


def sent(quirks=None, **more):
    return json.loads(encode_request(ask(**more), "m1", quirks or QUIRKS["generic"]))


EVERYTHING = ask(
    history=(
        text("developer", "Be brief."),
        text("user", "Hi"),
        engine_history.ReasoningItem("Hm."),
        text("assistant", "Hello."),
        text("system", "Be kind."),
        engine_history.Message("user", (engine_history.TextPart("This?"), engine_history.ImagePart(PNG, detail="low"))),
        engine_history.ReasoningItem("Look."),
        engine_history.ToolCall("c1", "get", ""),
        engine_history.ToolCall("c2", "shell", "ls", custom=True, namespace="tools"),
        engine_history.ToolResult("c1", (engine_history.TextPart("1"),)),
        engine_history.ToolResult("c2", (engine_history.ImagePart(PNG),)),
        text("user", "Go on"),
    ),
    instructions="You are a bird.",
    tools=(GET, SHELL),
    tool_choice=ToolChoice("required", ("get",)),
    parallel_tool_calls=False,
    sampling=Sampling(temperature=0.5, top_p=0.9, max_tokens=9, presence_penalty=0.1, frequency_penalty=0.2, extra={"seed": 7}),
    format=JsonObject(),
    reasoning_effort="high",
)

CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "get", "arguments": "{}"}},
    {"id": "c2", "type": "function", "function": {"name": "tools__shell", "arguments": '{"input":"ls"}'}},
]
PICTURE = {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}


def test_a_whole_conversation_as_openai_is_sent_it():
    body = json.loads(encode_request(EVERYTHING, "m1", QUIRKS["openai"]))
    assert body["messages"] == [
        {"role": "developer", "content": "You are a bird."},
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "This?"}, PICTURE]},
        {"role": "assistant", "content": None, "tool_calls": CALLS},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "See what follows."},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG, "detail": "auto"}}]},
        {"role": "user", "content": "Go on"},
    ]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["get", "tools__shell"]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "get"}}
    assert (body["max_completion_tokens"], body["parallel_tool_calls"], body["seed"]) == (9, False, 7)
    assert (body["response_format"], body["reasoning_effort"]) == ({"type": "json_object"}, "high")


@pytest.mark.parametrize("kind", QUIRKS)
def test_the_media_of_instructions_follow_them_as_the_users(kind):
    words = [engine_history.TextPart(words) for words in ("Find this: ", " Be quick.")]
    instructions = engine_history.Message("developer", (words[0], engine_history.ImagePart(PNG, detail="low"), words[1]))
    lone = engine_history.Message("system", (engine_history.ImagePart(PNG, detail="low"),))
    role = "developer" if kind == "openai" else "system"
    assert sent(QUIRKS[kind], history=(instructions, text("user", "Hi"), lone))["messages"] == [
        {"role": role, "content": "Find this:  Be quick."},
        {"role": "user", "content": [PICTURE]},
        {"role": "user", "content": "Hi"},
        {"role": "user", "content": [PICTURE]},
    ]


def test_the_same_conversation_as_an_open_models_server_is_sent_it():
    body = json.loads(encode_request(EVERYTHING, "m1", QUIRKS["llamacpp"]))
    assert body["messages"][:4] == [
        {"role": "system", "content": "You are a bird.\n\nBe brief.\n\nBe kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello.", "reasoning_content": "Hm."},
        {"role": "user", "content": [{"type": "text", "text": "This?"}, PICTURE]},
    ]
    assert body["messages"][4] == {"role": "assistant", "content": None, "reasoning_content": "Look.", "tool_calls": CALLS}
    assert [tool["function"]["name"] for tool in body["tools"]] == ["get"]
    assert (body["tool_choice"], body["max_tokens"]) == ("required", 9)
    assert "parallel_tool_calls" not in body
    assert body["chat_template_kwargs"] == {"enable_thinking": True}


COLUMNS = {
    "developer_role": (False, True, lambda body: [message["role"] for message in body["messages"]].count("developer")),
    "system_anywhere": (False, True, lambda body: [message["role"] for message in body["messages"]].count("system")),
    "max_tokens_field": ("max_tokens", "max_completion_tokens", lambda body: "max_tokens" in body),
    "tool_choice": ("named", "none", lambda body: "tool_choice" in body),
    "parallel_tool_calls": (True, None, lambda body: "parallel_tool_calls" in body),
    "json_object": (True, False, lambda body: body["response_format"]["type"]),
    "reasoning_field": (None, "reasoning", lambda body: [message.get("reasoning") for message in body["messages"]]),
    "thinking_switch": (False, True, lambda body: "chat_template_kwargs" in body),
}


@pytest.mark.parametrize("column", COLUMNS)
def test_a_column_changes_what_it_says_and_nothing_else(column):
    usual, other, shown = COLUMNS[column]
    plain = json.loads(encode_request(EVERYTHING, "m1", Quirks(**{column: usual})))
    changed = json.loads(encode_request(EVERYTHING, "m1", Quirks(**{column: other})))
    assert shown(plain) != shown(changed)
    touched = {
        "developer_role": {"messages"},
        "system_anywhere": {"messages"},
        "reasoning_field": {"messages"},
        "max_tokens_field": {"max_tokens", "max_completion_tokens"},
        "tool_choice": {"tool_choice"},
        "parallel_tool_calls": {"parallel_tool_calls"},
        "json_object": {"response_format"},
        "thinking_switch": {"chat_template_kwargs"},
    }[column]
    assert {key for key in plain | changed if plain.get(key) != changed.get(key)} == touched


def test_every_column_has_its_test():
    elsewhere = {"logprobs", "files", "image_urls", "tokenizer"}
    assert set(COLUMNS) | elsewhere == set(Quirks.__struct_fields__)


def test_log_probabilities_are_refused_where_there_are_none():
    with pytest.raises(ClientError, match="no log probabilities"):
        sent(QUIRKS["lmstudio"], sampling=Sampling(top_logprobs=0))
    assert sent(sampling=Sampling(top_logprobs=0))["logprobs"] is True


def test_a_document_is_refused_where_none_is_taken():
    with pytest.raises(ClientError, match="takes none"):
        sent(history=(engine_history.Message("user", (engine_history.FilePart(inline="data:application/pdf;base64,JVBERg=="),)),))


@pytest.mark.parametrize(
    "part", [engine_history.ImagePart(file_id="file_1"), engine_history.ImagePart("cat.png"), engine_history.ImagePart("javascript:x")]
)
def test_a_picture_that_is_nowhere_is_refused(part):
    with pytest.raises(ClientError, match="can't be given the image"):
        sent(history=(engine_history.Message("user", (part,)),))


@pytest.mark.parametrize("row", QUIRKS)
def test_what_asks_for_something_else_or_of_somebody_else_stays_here(row):
    extra = dict.fromkeys(BLOCKED_KEYS, "evil") | {
        "top_k": 5,
        "chat_template_kwargs": {"chat_template": "evil", "tokenize": "evil", "x": 1},
    }
    body = sent(QUIRKS[row], sampling=Sampling(extra=extra))
    assert "evil" not in json.dumps(body)
    assert (body["top_k"], body["model"], body["stream"], body["chat_template_kwargs"]) == (5, "m1", True, {"x": 1})


def test_what_the_protocol_says_goes_before_what_stands_beside_it():
    body = sent(sampling=Sampling(temperature=0.5, extra={"temperature": 2, "max_tokens": 7}))
    assert (body["temperature"], body["max_tokens"]) == (0.5, 7)


def test_speech_goes_as_a_recording_and_what_the_assistant_said_aloud_as_words():
    heard, said = engine_history.SpeechPart(b"abcd", 8_000, "turn_1", "Hi"), engine_history.SpeechPart(b"abcd", 8_000, None, "Hello.")
    history = (engine_history.Message("user", (heard,)), engine_history.Message("assistant", (said,)), text("user", "Go on"))
    messages = sent(history=history)["messages"]
    (recording,) = messages[0]["content"]
    assert recording == {"type": "input_audio", "input_audio": {"data": b64encode(wav_file(b"abcd", 8_000)).decode(), "format": "wav"}}
    assert messages[1] == {"role": "assistant", "content": "Hello."}


PARTS = st.one_of(
    st.text(max_size=9).map(engine_history.TextPart),
    st.text(max_size=9).map(engine_history.RefusalPart),
    st.just(engine_history.ImagePart(PNG)),
    st.just(engine_history.AudioPart("UklGRg==", "wav")),
    st.just(engine_history.SpeechPart(b"ab", 24_000, "turn_1", "hi")),
)
TURNS = st.one_of(
    st.builds(engine_history.Message, st.sampled_from(["system", "developer", "user"]), st.lists(PARTS, min_size=1, max_size=3).map(tuple)),
    st.builds(
        engine_history.Message, st.just("assistant"), st.lists(st.text(max_size=9).map(engine_history.TextPart), max_size=2).map(tuple)
    ),
    st.text(max_size=9).map(engine_history.ReasoningItem),
    st.builds(engine_history.ToolCall, st.sampled_from(["c1", "c2"]), st.just("get"), st.sampled_from(["", "{}"]), st.booleans()),
    st.builds(engine_history.ToolResult, st.sampled_from(["c1", "c2"]), st.lists(PARTS, max_size=2).map(tuple)),
)


@given(st.lists(TURNS, max_size=8).map(tuple), st.sampled_from(list(QUIRKS)))
def test_any_conversation_makes_messages_that_servers_take(history, row):
    messages = json.loads(encode_request(structs.replace(EVERYTHING, history=history), "m1", QUIRKS[row]))["messages"]
    assert messages[0]["content"].startswith("You are a bird.")
    for before, message in zip([None, *messages], messages, strict=False):
        assert message["role"] in {"system", "developer", "user", "assistant", "tool"}
        assert message["content"] is not None or message["tool_calls"]
        if message["role"] in ("tool", "assistant"):
            assert message["content"] is None or isinstance(message["content"], str), "these take text alone"
        if message["role"] == "system" and not QUIRKS[row].system_anywhere:
            assert before is None, "instructions lead"


def test_an_answer_that_nobody_reads_piece_by_piece_is_asked_for_whole():
    body = sent(whole=True)
    assert body["stream"] is False
    assert "stream_options" not in body
