"""Bodies of chat requests: accepted and refused ones, and the words of the errors."""

import json

import pytest
from hypothesis import given, strategies as st

from antiphon.errors import ClientError
from antiphon.wire.chat.messages import ChatAssistantMessage, ChatFunctionCall, ChatUserMessage
from antiphon.wire.chat.request import decode_chat_request

HI = [{"role": "user", "content": "Hi"}]


def read(**fields):
    return decode_chat_request(json.dumps({"messages": HI, **fields}).encode())


def refusal(body):
    with pytest.raises(ClientError) as raised:
        decode_chat_request(body if isinstance(body, bytes) else json.dumps(body).encode())
    assert raised.value.status in (400, 413)
    return raised.value


def test_messages_are_read_by_their_role():
    request = read(messages=[*HI, {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}])
    user, assistant = request.messages
    assert isinstance(user, ChatUserMessage) and isinstance(assistant, ChatAssistantMessage)
    (call,) = assistant.tool_calls
    assert isinstance(call, ChatFunctionCall), "several programs leave its type out"


def test_fields_that_the_api_does_not_have_are_kept():
    request = read(top_k=5, thinking={"type": "enabled"})
    assert dict(request.extra) == {"top_k": 5, "thinking": {"type": "enabled"}}


def test_null_is_as_good_as_absent():
    fields = (
        "audio logit_bias logprobs max_tokens n parallel_tool_calls response_format seed stop stream tool_choice tools top_p user".split()
    )
    request = read(**dict.fromkeys(fields))
    assert (request.choice_count, request.is_stream, request.is_spoken, request.includes_usage) == (1, False, False, False)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"messages": []}, "empty_array", "messages"),
        ({"messages": "Hi"}, "invalid_type", "messages"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "invalid_value", "messages[0].role"),
        ({"messages": [{"content": "Hi"}]}, "missing_required_parameter", "messages[0].role"),
        ({"messages": [{"role": 5, "content": "Hi"}]}, "invalid_type", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "invalid_type", "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "missing_required_parameter", "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": [{"type": "video_url"}]}]}, "invalid_value", "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "missing_required_parameter",
            "messages[0].content[0].image_url",
        ),
        ({"n": 0}, "integer_below_min_value", "n"),
        ({"n": 129}, "integer_above_max_value", "n"),
        ({"temperature": 2.1}, "decimal_above_max_value", "temperature"),
        ({"temperature": "hot"}, "invalid_type", "temperature"),
        ({"top_logprobs": 21, "logprobs": True}, "integer_above_max_value", "top_logprobs"),
        ({"top_logprobs": 1}, None, "top_logprobs"),
        ({"stop": ["x"] * 17}, "array_above_max_length", "stop"),
        ({"logit_bias": {"1": 101}}, "decimal_above_max_value", "logit_bias.1"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "object_above_max_properties", "metadata"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "invalid_parameter_combination", "max_tokens"),
        ({"max_tokens": 0}, "integer_below_min_value", "max_tokens"),
        ({"stream_options": {"include_usage": True}}, None, "stream_options"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}], "functions": [{"name": "f"}]}, None, "functions"),
        ({"tools": [{"type": "magic"}]}, "invalid_value", "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].function"),
        ({"tool_choice": "maybe"}, "invalid_value", "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "missing_required_parameter", "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}}, "invalid_value", "response_format.json_schema.name"),
        ({"modalities": ["text", "audio"]}, "missing_required_parameter", "audio"),
        ({"reasoning_effort": "huge"}, "invalid_value", "reasoning_effort"),
    ],
)
def test_what_is_wrong_is_named(fields, code, param):
    error = refusal({"messages": HI, **fields})
    assert (error.code, error.param, error.type) == (code, param, "invalid_request_error")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"Hi"', b"{}", b'{"messages": ' + b"[" * 100 + b"]" * 100 + b"}", b'{"messages":"\xff"}']
)
def test_what_is_no_chat_is_refused(body):
    refusal(body)


texts = st.text(max_size=4)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
part = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image_url", "input_audio", "file", "refusal", "x"])},
    optional={"text": anything, "image_url": anything, "file": anything, "input_audio": anything, "refusal": anything},
)
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "function", "x"])},
    optional={"content": texts | st.lists(part, max_size=2) | anything, "tool_calls": anything, "tool_call_id": anything, "name": anything},
)
FIELDS = [
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "response_format",
    "n",
    "stop",
    "audio",
    "modalities",
    "logit_bias",
    "stream_options",
]


@given(messages=st.lists(message, max_size=3), fields=st.dictionaries(st.sampled_from(FIELDS), anything, max_size=3))
def test_whatever_a_client_sends_is_read_or_refused_as_its_mistake(messages, fields):
    try:
        decode_chat_request(json.dumps({"messages": messages, **fields}).encode())
    except ClientError as error:
        assert error.status == 400
