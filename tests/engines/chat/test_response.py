"""What the chat engine makes of chunks that are not quite those of the original."""

import json

import pytest

from antiphon.engine_api import events as engine_events
from antiphon.engines.chat.response import ChatResponseReader
from antiphon.errors import ApiError

ID = "resp_1"


def words_of(*events, is_over=True):
    reading, words = ChatResponseReader(ID, {}), []
    told = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    assert (reading.read(told, words) or reading.finish(words)) == is_over
    return words


def chunk(content, finish=None):
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}]}


@pytest.mark.parametrize(
    ("told", "input_tokens", "output_tokens"),
    [
        ({"prompt_tokens": 7.0, "completion_tokens": 3.0}, 7, 3),
        ({"prompt_tokens": -7, "completion_tokens": 3}, 0, 3),
        ({"prompt_tokens": 10**30, "completion_tokens": None}, engine_events.MAX_TOKENS, 0),
    ],
)
def test_usage_is_a_number_of_tokens_whatever_was_sent(told, input_tokens, output_tokens):
    used = next(word for word in words_of(chunk("Hi", "stop"), {"choices": [], "usage": told}) if isinstance(word, engine_events.Usage))
    assert (used.input_tokens, used.output_tokens) == (input_tokens, output_tokens)


def test_a_message_that_comes_whole_is_over_whether_it_says_so_or_not():
    assert words_of({"choices": [{"message": {"content": "Hi"}}]}) == [engine_events.TextDelta(ID, "Hi"), engine_events.ResponseEnded(ID)]


def test_calls_of_a_whole_message_are_told_apart_though_they_have_one_id():
    calls = [{"id": "c", "function": {"name": name, "arguments": "{}"}} for name in ("f", "g")]
    words = words_of({"choices": [{"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]})
    assert [word.name for word in words if isinstance(word, engine_events.ToolCallStarted)] == ["f", "g"]


def test_an_error_that_is_not_under_error_is_one_too():
    with pytest.raises(ApiError, match="boom") as raised:
        words_of(chunk("Hi"), {"object": "error", "message": "boom", "code": 400})
    assert raised.value.status == 400


def test_an_event_that_says_nothing_is_passed_over():
    assert words_of({"id": "x"}, b'{"id": "\xff"}', chunk("Hi", "stop")) == [
        engine_events.TextDelta(ID, "Hi"),
        engine_events.ResponseEnded(ID),
    ]


@pytest.mark.parametrize("cut", [rb"a\ud83d", rb"\ude00a", b"a\xf0\x9f"])
def test_parts_of_characters_are_replaced(cut):
    (word,) = words_of(b'{"choices":[{"index":0,"delta":{"content":"%s"}}]}' % cut, is_over=False)
    assert "a" in word.text and "\ufffd" in word.text


@pytest.mark.parametrize(("told", "sequence"), [("END", "END"), (128_009, None), (None, None)])
def test_vllm_says_which_stop_sequence_ended_the_answer(told, sequence):
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": told}]}
    assert words_of(chunk("Hi"), last)[-1] == engine_events.ResponseEnded(ID, "stop", sequence)
    assert words_of({"choices": [{"delta": {}, "finish_reason": "length", "stop_reason": "END"}]})[-1].stop_sequence is None
