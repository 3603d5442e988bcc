"""How chunks are written: as the official types read them, one to an event, whatever their text."""

import json

import pytest
from hypothesis import given, strategies as st
from openai.types.chat import ChatCompletionChunk as TheirChunk

from antiphon.wire.chat.response import ChatChunkChoice, ChatDelta, ChatToolCallDelta, ChatUsage, FunctionDelta
from antiphon.wire.chat.stream import ChoiceChunk, ChunkEncoder, ContentDelta, RoleChunk, StreamError, UsageChunk
from antiphon.wire.codec.types import EXTRA_NAME

NOISE = ["x" * length for length in range(16, 0, -1)]
USAGE = UsageChunk(ChatUsage(prompt_tokens=1, completion_tokens=2, total_tokens=3))


def written(*events, **options):
    encoder, out = ChunkEncoder("chatcmpl-1", 5, "m", **options), bytearray()
    encoder.encode_sse_into(events, out)
    *records, rest = bytes(out).decode().split("\n\n")
    assert rest == ""
    assert all(record.startswith("data: ") and "\n" not in record and "\r" not in record for record in records)
    return [json.loads(record.removeprefix("data: ")) for record in records]


events = st.lists(
    st.one_of(
        st.builds(ContentDelta, st.integers(0, 1), st.text()),
        st.builds(RoleChunk, st.integers(0, 1)),
        st.text().map(lambda text: ChoiceChunk(ChatChunkChoice(index=0, delta=ChatDelta(refusal=text)), len(text))),
        st.just(USAGE),
    ),
    max_size=5,
)


@given(events=events, usage=st.booleans(), padded=st.booleans())
def test_every_chunk_is_one_of_the_official_types(events, usage, padded):
    chunks = written(*events, choice_count=2, includes_usage=usage, paddings=NOISE if padded else None)
    assert len(chunks) == len(events)
    for event, chunk in zip(events, chunks, strict=True):
        TheirChunk.model_validate(chunk, strict=True)
        assert ("usage" in chunk) == (usage or event is USAGE)
        if isinstance(event, ContentDelta):
            assert chunk["choices"][0]["delta"] == {"content": event.text}
            assert (len(event.text) + len(chunk["obfuscation"])) % 16 == 0 if padded else "obfuscation" not in chunk


def test_a_text_that_looks_like_a_marker_stays_as_it_is():
    text = f'"{EXTRA_NAME}":0,'
    assert written(ContentDelta(0, text))[0]["choices"][0]["delta"]["content"] == text


CALL = ChatToolCallDelta(index=0, id="call_1", type="function", function=FunctionDelta(name="f", arguments=""))


@pytest.mark.parametrize(
    ("events", "contents"),
    [
        ([RoleChunk(0), ContentDelta(0, "a")], [""]),
        ([RoleChunk(0)], [""]),
        ([RoleChunk(0), ChoiceChunk(ChatChunkChoice(index=0, delta=ChatDelta(tool_calls=[CALL])))], [None]),
        ([RoleChunk(0), ChoiceChunk(ChatChunkChoice(index=0, delta=ChatDelta(function_call=FunctionDelta(name="f"))))], [None]),
        ([RoleChunk(0), ContentDelta(0, "a"), ChoiceChunk(ChatChunkChoice(index=0, delta=ChatDelta(tool_calls=[CALL])))], [""]),
        ([RoleChunk(0), RoleChunk(1), ChoiceChunk(ChatChunkChoice(index=1, delta=ChatDelta(tool_calls=[CALL])))], ["", None]),
    ],
)
def test_the_first_chunk_has_null_content_where_a_call_follows_at_once(events, contents):
    deltas = [chunk["choices"][0]["delta"] for chunk in written(*events, choice_count=2)]
    assert [delta["content"] for delta in deltas if "role" in delta] == contents


def test_an_error_is_the_body_of_one():
    assert written(StreamError({"error": {"message": "a\nb"}})) == [{"error": {"message": "a\nb"}}]


def test_the_tier_is_in_every_chunk():
    assert [chunk["service_tier"] for chunk in written(RoleChunk(0), ContentDelta(0, "a"), USAGE, service_tier="default")] == [
        "default"
    ] * 3
