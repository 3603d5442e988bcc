"""Relayed answers: what is passed on, repaired and held back."""

import asyncio
import json

import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api import events
from antiphon.engines.chat.relay_response import RelayStreamReader, WholeRelayReader
from antiphon.errors import ApiError, UpstreamError

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "org/upstream"}


def chunk(*choices, **more):
    return {**HEAD, "choices": list(choices), **more}


def part(delta, index=0, finish=None, **more):
    return {"index": index, "delta": delta, "finish_reason": finish, **more}


START, END = part({"role": "assistant", "content": ""}), part({}, finish="stop")


class Reading:
    """What a reader makes of a stream."""

    def __init__(self, stream, *, done=True, is_chat=True, choices=1, wants_usage=False, cut=False):
        self.mends, self.out = [], []
        reader = RelayStreamReader("r1", "asked", is_chat=is_chat, choices=choices, wants_usage=wants_usage, count_mend=self.mends.append)
        encoded = [event if isinstance(event, bytes) else json.dumps(event, separators=(",", ":")).encode() for event in stream]
        self.is_over = reader.read([*encoded, *([b"[DONE]"] if done else [])], self.out)
        if cut:
            reader.cut(self.out)
        elif not done:
            self.is_over = reader.finish(self.out)

    @property
    def data(self):
        return [event.data for event in self.out if isinstance(event, events.RelayData)]

    @property
    def chunks(self):
        return [json.loads(data) for data in self.data]

    @property
    def end(self):
        return self.out[-1]


def asked(each):
    return {**each, "model": "asked"}


EXTRAS = {
    "reasoning": part({"reasoning": "hm", "reasoning_content": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}),
    "logprobs": part({"content": "a"}, logprobs={"content": [{"token": "a", "logprob": -0.0, "bytes": None, "top_logprobs": []}]}),
    "vllm": part({"content": "a"}, stop_reason=128009, token_ids=[1, 2]),
    "audio": part({"audio": {"id": "audio_1", "data": "AAAA", "transcript": "hi", "expires_at": 5}}),
    "annotations": part({"annotations": [{"type": "url_citation", "url_citation": {"url": "https://x.example"}}], "citations": [1]}),
    "custom call": part({"tool_calls": [{"index": 0, "id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}]}),
    "named call": part(
        {"tool_calls": [{"index": 3, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"model":"x"}'}}]}
    ),
    "refusal": part({"refusal": "no"}),
    "function": part({"function_call": {"name": "f", "arguments": ""}}),
}


@pytest.mark.parametrize("choice", EXTRAS.values(), ids=EXTRAS)
def test_every_field_of_a_choice_reaches_the_client(choice):
    stream = [chunk(START), chunk(choice, system_fingerprint="fp", service_tier="flex", obfuscation="xx"), chunk(END)]
    reading = Reading(stream)
    assert reading.chunks == [asked(each) for each in stream]
    assert not reading.mends and reading.end == events.ResponseEnded("r1", "stop")


EXTRA_KEYS = {
    "prompt_logprobs": [None, {"1": {"logprob": -0.5}}],
    "prompt_token_ids": [1, 2],
    "timings": {"predicted_per_second": 61.0},
    "metrics": {"time_to_first_token_ms": 1.0},
    "citations": ["https://x.example"],
    "x_groq": {"id": "req"},
    "big": 12345678901234567890123,
}


@pytest.mark.parametrize("key", EXTRA_KEYS)
def test_every_field_of_a_chunk_reaches_the_client_byte_for_byte(key):
    stream = [chunk(START), chunk(part({"content": "a"}), **{key: EXTRA_KEYS[key]}), chunk(END, **{key: EXTRA_KEYS[key]})]
    encoded = [json.dumps(each).replace('"org/upstream"', '"asked"').encode() for each in stream]
    reading = Reading([each.replace(b'"asked"', b'"org/upstream"') for each in encoded])
    assert [data.replace(b'"model":"asked"', b'"model": "asked"') for data in reading.data] == encoded


def test_answers_come_in_any_order():
    stream = [
        chunk(part({"role": "assistant", "content": ""}, 1)),
        chunk(part({"role": "assistant", "content": ""}, 0), part({"content": "b"}, 1)),
        chunk(part({"content": "a"}, 0)),
        chunk(part({}, 1, "length")),
        chunk(part({}, 0, "stop")),
    ]
    reading = Reading(stream, choices=2)
    assert reading.chunks == [asked(each) for each in stream] and not reading.mends


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10, "prompt_cache_hit_tokens": 2, "cost": 0.00012}


def test_usage_goes_to_who_asked_for_it_and_is_counted_for_all():
    usage = chunk(usage=USAGE)
    stream = [chunk(START), chunk(END, usage=None), usage]
    reading = Reading(stream, wants_usage=True)
    assert reading.chunks[-1] == asked(usage)
    counted = [event for event in reading.out if isinstance(event, events.Usage)]
    assert [(each.input_tokens, each.output_tokens) for each in counted] == [(7, 3)]
    unasked = Reading(stream)
    assert len(unasked.chunks) == 2 and any(isinstance(event, events.Usage) for event in unasked.out)


def test_a_chunk_with_usage_and_no_choices_gets_the_key_that_clients_read():
    reading = Reading([chunk(START), chunk(END), {**HEAD, "usage": USAGE}], wants_usage=True)
    assert reading.chunks[-1]["choices"] == [] and reading.mends == ["choices"]


def test_a_missing_role_comes_before_the_first_words_of_each_answer():
    reading = Reading(
        [chunk(part({"content": "a"})), chunk(part({"content": "b"}, 1)), chunk(part({}, 0, "stop"), part({}, 1, "stop"))], choices=2
    )
    roles = [(each["choices"][0]["index"], each["choices"][0]["delta"].get("role")) for each in reading.chunks[:4]]
    assert roles == [(0, "assistant"), (0, None), (1, "assistant"), (1, None)]
    assert all(each["id"] == "chatcmpl-1" and each["model"] == "asked" for each in reading.chunks)
    assert reading.mends == ["role"]


def test_missing_indices_are_counted_for_choices_and_for_calls():
    def call(id, arguments, **more):
        return {"tool_calls": [{**({"id": id} if id else {}), "function": {"arguments": arguments}, **more}]}

    stream = [
        chunk({"delta": {"role": "assistant"}}),
        chunk({"delta": call("a", "")}),
        chunk({"delta": call(None, "{}")}),
        chunk({"delta": call("b", "")}),
        chunk({"delta": call("a", " ")}),
        chunk({"delta": {}, "finish_reason": "tool_calls"}),
    ]
    reading = Reading(stream)
    assert [each["choices"][0]["index"] for each in reading.chunks] == [0] * 6
    assert [each["choices"][0]["delta"]["tool_calls"][0]["index"] for each in reading.chunks[1:5]] == [0, 0, 1, 0]
    assert reading.mends == ["index"]


def test_a_stream_that_ends_without_saying_so_is_complete_if_its_answers_are():
    reading = Reading([chunk(START), chunk(END)], done=False)
    assert reading.is_over and reading.mends == ["done"] and reading.end == events.ResponseEnded("r1", "stop")
    assert not Reading([chunk(START), chunk(part({"content": "a"}))], done=False).is_over


def test_a_whole_answer_to_a_request_for_a_stream_becomes_one():
    message = {"role": "assistant", "content": "hi", "reasoning_content": "hm", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}
    whole = {**HEAD, "object": "chat.completion", "choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": USAGE}
    reading = Reading([whole], done=False)
    assert reading.is_over and set(reading.mends) == {"index", "stream", "done"}
    (only,) = reading.chunks
    assert only["object"] == "chat.completion.chunk" and only["choices"][0]["index"] == 0
    assert only["choices"][0]["delta"] == {**message, "tool_calls": [{**message["tool_calls"][0], "index": 0}]}


def test_what_a_server_has_computed_stays_with_it():
    reading = Reading([chunk(START), chunk(END, kv_transfer_params={"remote_host": "10.0.0.1"})])
    assert b"10.0.0.1" not in b"".join(reading.data) and reading.chunks[-1]["choices"] == [END]


def test_an_answer_that_grows_too_long_ends_as_incomplete():
    reading = Reading([chunk(START), chunk(part({"content": "a"}))], done=False, cut=True)
    assert reading.chunks[-1]["choices"][0]["finish_reason"] == "length" and reading.end == events.ResponseEnded("r1", "length")


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"error": {"message": "out of memory", "type": "server_error", "code": None}}, "failed"),
        ({"object": "error", "message": "boom", "code": 500}, "500"),
        ({**chunk(END), "error": "bad"}, "failed"),
        (chunk(part({}, finish="abort")), "abort"),
        (b"{nonsense", "no chat completion"),
    ],
)
def test_an_error_in_the_stream_ends_it(event, text):
    with pytest.raises(ApiError, match=text):
        Reading([chunk(START), chunk(part({"content": "a"})), event])


def test_texts_that_look_like_keys_are_texts():
    for text in ('"error"', 'say "usage": {"a": 1}', '"model":"org/upstream"', "finish_reason", '"tool_calls":[{'):
        stream = [chunk(START), chunk(part({"content": text})), chunk(END)]
        assert Reading(stream).chunks == [asked(each) for each in stream]


@given(
    texts=st.lists(st.text(max_size=20), max_size=6),
    spaces=st.booleans(),
    model=st.text(min_size=1, max_size=10).filter(lambda text: text.isprintable()),
)
def test_any_text_survives(texts, spaces, model):
    stream = [{**each, "model": model} for each in (chunk(START), *(chunk(part({"content": text})) for text in texts), chunk(END))]
    separators = (", ", ": ") if spaces else (",", ":")
    reading = Reading([json.dumps(each, separators=separators, ensure_ascii=spaces).encode() for each in stream])
    assert reading.chunks == [asked(each) for each in stream]


def test_texts_of_completions_are_passed_on_and_get_no_role():
    stream = [
        chunk({"index": 0, "text": "a", "logprobs": {"tokens": ["a"]}, "finish_reason": None}),
        chunk({"index": 0, "text": "", "finish_reason": "length"}),
    ]
    reading = Reading(stream, is_chat=False)
    assert reading.chunks == [asked(each) for each in stream]
    assert reading.end == events.ResponseEnded("r1", "length") and not reading.mends


# Whole answers


def whole(body, has_choices=True):
    mends, out = [], []
    stream = RelayStreamReader("r1", "asked", is_chat=True, choices=1, wants_usage=True, count_mend=mends.append, is_whole=True)
    reader = WholeRelayReader("r1", "asked", stream, has_choices=has_choices, count_mend=mends.append)
    assert reader.read([body if isinstance(body, bytes) else json.dumps(body).encode()], out) and not out
    return asyncio.run(reader.conclude()), mends


ANSWER = {
    **HEAD,
    "object": "chat.completion",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "hi", "reasoning": "hm"}, "finish_reason": "length", "stop_reason": None}
    ],
    "usage": USAGE,
    "prompt_logprobs": None,
    "timings": {"predicted_ms": 1.0},
    "service_tier": "default",
}


def test_a_whole_answer_is_as_it_came_but_for_the_name():
    out, mends = whole({**ANSWER, "kv_transfer_params": None})
    assert json.loads(out[0].data) == asked(ANSWER) and not mends
    assert b'"predicted_ms": 1.0' in out[0].data
    assert out[1].input_tokens == 7 and out[2] == events.ResponseEnded("r1", "length")


def test_choices_of_a_whole_answer_are_numbered():
    out, mends = whole({**ANSWER, "choices": [{"message": {"content": "a"}}, {"message": {"content": "b"}}]})
    assert [choice["index"] for choice in json.loads(out[0].data)["choices"]] == [0, 1] and mends == ["index"]


def test_vectors_are_passed_on_with_their_usage():
    body = {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": "AACAPw=="}],
        "model": "x",
        "usage": {"prompt_tokens": 3},
    }
    out, _ = whole(body, has_choices=False)
    assert json.loads(out[0].data) == {**body, "model": "asked"}
    assert (out[1].input_tokens, out[1].output_tokens) == (3, 0)


@pytest.mark.parametrize("body", [{"error": "bad"}, {"object": "error", "message": "bad"}, {"id": "x"}, {"choices": 3}, b"nonsense", b"[]"])
def test_what_is_no_answer_is_an_error(body):
    with pytest.raises(UpstreamError):
        whole(body)


BROKEN = {
    "a message that is a text": chunk({"index": 0, "message": "hi"}),
    "a message that is a list": chunk({"index": 0, "message": ["hi"]}),
    "a number out of range": b'{"choices":[{"message":{"content":"a"}}],"x":1e999}',
    "no number": b'{"choices":[{"index":0,"delta":{"content":"a"},"logprob":NaN}]}',
    "half an event": b'{"choices":[{"index":0,"delta":{"content":"a',
    "a control character": b'{"choices":[{"index":0,"delta":{"content":"a\x00"}}]}',
}


@pytest.mark.parametrize("event", BROKEN.values(), ids=BROKEN)
def test_an_event_that_would_break_clients_is_an_error_instead(event):
    with pytest.raises(UpstreamError) as raised:
        Reading([chunk(START), event])
    assert raised.value.code == "upstream_malformed"


@pytest.mark.parametrize("text", [b"a\xffb", b"a\\ud800b"])
def test_broken_characters_of_a_stream_are_replaced(text):
    event = b'{"choices":[{"index":0,"delta":{"content":"%b"}}]}' % text
    first, second = Reading([event, event], done=False).data[-2:]
    assert [json.loads(data)["choices"][0]["delta"]["content"] for data in (first, second)] == ["a\ufffdb"] * 2


@pytest.mark.parametrize("text", [b"a\xffb", b"a\\ud800b"])
def test_broken_characters_of_a_whole_answer_are_replaced(text):
    body = b'{"choices":[{"index":0,"message":{"content":"%b"},"finish_reason":"%b"}]}' % (text, text)
    assert json.loads(whole(body)[0][0].data)["choices"][0]["message"]["content"] == "a\ufffdb"


def test_a_whole_answer_with_an_error_out_of_range_is_an_upstream_error():
    with pytest.raises(UpstreamError):
        whole(b'{"error":{"code":1e999}}')


def test_another_model_in_the_middle_of_a_stream_is_renamed_as_well():
    other = {**chunk(part({"content": "a"})), "model": "org/other"}
    assert {each["model"] for each in Reading([chunk(START), other, chunk(END)]).chunks} == {"asked"}


def test_null_in_the_place_of_choices_or_of_a_delta_is_mended():
    reading = Reading([chunk(START), {**HEAD, "choices": None}, chunk(part(None)), chunk(END)])
    assert [each["choices"] for each in reading.chunks] == [[START], [], [part({})], [END]]
    assert reading.mends == ["choices", "delta"]


@pytest.mark.parametrize("message", [None, "hi", ["hi"]])
def test_a_whole_answer_whose_message_is_none_is_an_upstream_error(message):
    with pytest.raises(UpstreamError) as raised:
        whole({**HEAD, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    assert raised.value.code == "upstream_malformed"


def test_a_stream_that_is_too_long_before_its_answer_is_an_error():
    (end,) = Reading([], done=False, cut=True).out
    assert isinstance(end, events.ResponseFailed) and end.code == "upstream_malformed"
