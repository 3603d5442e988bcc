"""Server-sent events: whatever the line ends and wherever the pieces are cut."""

import pytest
from hypothesis import given, strategies as st

from antiphon.wire.codec.sse import SseParser


def read(*pieces, limit_bytes=1 << 20):
    parser = SseParser(limit_bytes)
    return [event for piece in pieces for event in parser.feed(piece)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: one\n\ndata: two\n\n", [b"one", b"two"]),
        (b"data: one\r\n\r\ndata: two\r\rdata: three\n\n", [b"one", b"two", b"three"]),
        (b"data: first line\ndata: second\n\n", [b"first line\nsecond"]),
        (b"data:no space\n\ndata:  two spaces\n\n", [b"no space", b" two spaces"]),
        (b": a comment\n\nevent: named\nid: 7\nretry: 3\ndata: x\n\n", [b"x"]),
        (b"event: nothing\n\n\n\n", []),
        (b"data\n\ndata:\n\n", [b"", b""]),
        (b"data: unfinished\n", []),
        (b"\xef\xbb\xbfdata: after a mark\n\n", [b"after a mark"]),
        (b"database: no\ndata: a:b\n\n", [b"a:b"]),
    ],
)
def test_a_stream_is_read_as_the_standard_says_even_byte_by_byte(stream, events):
    assert read(stream) == events
    assert read(*(stream[at : at + 1] for at in range(len(stream)))) == events


LINES = st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8")), min_size=1, max_size=3)


@given(st.lists(LINES, max_size=5), st.sampled_from(["\n", "\r\n", "\r"]), st.data())
def test_what_was_framed_comes_out_again_wherever_it_is_cut(events, end, data):
    stream = "".join("".join(f"data: {line}{end}" for line in lines) + end for lines in events).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert read(*pieces) == ["\n".join(lines).encode() for lines in events]


@given(st.lists(st.binary(max_size=20)))
def test_any_bytes_at_all_are_read_without_a_fault(pieces):
    whole = b"".join(pieces)
    assert read(*pieces) == read(whole)


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 100, b"data: x\n" * 60, b"data: " + b"x" * 100 + b"\n\n"])
def test_an_event_larger_than_the_limit_is_refused(stream):
    with pytest.raises(ValueError, match="larger than 99 bytes"):
        read(stream, limit_bytes=99)


@pytest.mark.parametrize("stream", [b":" + b"x" * 100, b": x\n" * 60, b"event: x\n" * 20, b":" + b"x" * 100 + b"\n\n"])
def test_what_is_no_event_and_larger_than_the_limit_is_not_called_one(stream):
    with pytest.raises(ValueError, match="more than 99 bytes without an event"):
        read(stream, limit_bytes=99)


def test_events_within_the_limit_may_go_on_for_ever():
    assert len(read(*[b"data: " + b"x" * 90 + b"\n\n"] * 100, limit_bytes=99)) == 100
