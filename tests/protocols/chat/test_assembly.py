"""A whole answer made of the chunks of a stream has what they have."""

import json

import pytest
from hypothesis import given, strategies as st

from antiphon.errors import UpstreamError
from antiphon.protocols.chat.assembly import Assembly

HEAD = {"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "m"}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def piece(delta, finish=None, index=0, **more):
    return {**HEAD, "choices": [{"index": index, "delta": delta, "finish_reason": finish, **more}]}


def assembled(*chunks):
    assembly = Assembly()
    for chunk in chunks:
        assembly.add(json.dumps(chunk).encode())
    return json.loads(assembly.result())


def call(index, arguments, **more):
    return {"index": index, "function": {"arguments": arguments, **more.pop("function", {})}, **more}


def test_texts_are_joined_and_unknown_fields_are_kept():
    answer = assembled(
        piece({"role": "assistant", "content": ""}),
        piece({"reasoning_content": "h"}, token_ids=[1]),
        piece({"reasoning_content": "m", "role": "assistant"}, token_ids=[2]),
        piece({"content": "Hel"}, logprobs={"content": [{"token": "Hel"}]}),
        piece({"content": "lo"}, logprobs={"content": [{"token": "lo"}]}),
        {**piece({}, "stop", stop_reason="</s>"), "system_fingerprint": "fp"},
        {**HEAD, "choices": [], "usage": USAGE, "obfuscation": "abc"},
    )
    assert answer == {
        **HEAD,
        "object": "chat.completion",
        "system_fingerprint": "fp",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "reasoning_content": "hm"},
                "logprobs": {"content": [{"token": "Hel"}, {"token": "lo"}]},
                "finish_reason": "stop",
                "stop_reason": "</s>",
                "token_ids": [1, 2],
            }
        ],
        "usage": USAGE,
    }


def test_calls_are_put_together_by_their_index():
    answer = assembled(
        piece({"role": "assistant", "content": "", "tool_calls": [call(0, "", id="a", type="function", function={"name": "get_"})]}),
        piece({"tool_calls": [call(0, '{"x"', id="a", type="function", function={"name": "time"})]}),
        piece({"tool_calls": [call(1, "{", id="b", type="function", function={"name": "g"}), call(0, ":1}")]}),
        piece({"tool_calls": [call(1, "}", function={"name": "g"})]}, "tool_calls"),
    )
    message = answer["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"function": {"arguments": '{"x":1}', "name": "get_time"}, "id": "a", "type": "function"},
        {"function": {"arguments": "{}", "name": "g"}, "id": "b", "type": "function"},
    ]


def test_choices_are_in_their_order_and_prompts_are_continued():
    answer = assembled(piece({"content": "b"}, "stop", 1), piece({"content": "a"}, "length"))
    assert [(each["index"], each["message"]["content"], each["finish_reason"]) for each in answer["choices"]] == [
        (0, "a", "length"),
        (1, "b", "stop"),
    ]
    text = {"id": "c", "object": "text_completion"}
    answer = assembled(
        {**text, "choices": [{"index": 0, "text": "a", "logprobs": {"tokens": ["a"]}, "finish_reason": None}]},
        {**text, "choices": [{"index": 0, "text": "b", "logprobs": {"tokens": ["b"]}, "finish_reason": "stop"}]},
    )
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [{"index": 0, "text": "ab", "logprobs": {"tokens": ["a", "b"]}, "finish_reason": "stop"}]


@given(st.lists(st.tuples(st.sampled_from(["content", "refusal", "reasoning"]), st.text(max_size=5)), max_size=20))
def test_each_text_is_that_of_its_pieces(pieces):
    message = assembled(piece({"role": "assistant"}), *(piece({name: text}) for name, text in pieces))["choices"][0]["message"]
    for name in {name for name, _ in pieces}:
        assert message[name] == "".join(text for each, text in pieces if each == name)


@pytest.mark.parametrize(
    "chunk", [b"{", b"[]", b"{}", b'{"choices":5}', b'{"choices":[1]}', b'{"choices":[{}]}', b'{"choices":[{"index":"a"}]}']
)
def test_what_is_no_chunk_is_an_error_of_the_server(chunk):
    with pytest.raises(UpstreamError):
        Assembly().add(chunk)
