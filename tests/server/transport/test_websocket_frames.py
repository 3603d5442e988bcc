"""What the reader of frames keeps in memory, and what the frames are that go out."""

import asyncio
import itertools
import tracemalloc

import pytest
from hypothesis import given, strategies as st

from antiphon.server.transport.websocket_frames import FrameReader, binary_header, close_frame, ping_frame, pong_frame, text_header
from support.server.raw_socket import BINARY, CONTINUATION, TEXT, frame

MIB = 1 << 20


class Noted:
    """Notes the calls that it gets."""

    def __init__(self):
        self.heard = []

    def on_text(self, text):
        self.heard.append(text)

    on_binary = on_text

    def on_ping(self, payload):
        self.heard.append(("ping", payload))

    def on_close(self, code):
        self.heard.append(("close", code))

    def on_protocol_error(self, code, reason):
        self.heard.append(("flaw", code))


def feed(incoming, piece):
    """Put a piece where the reader wants it, in as many parts as that takes."""
    while piece:
        room = incoming.room()
        part = piece[: len(room)]
        room[: len(part)] = part
        incoming.advance(len(part))
        piece = piece[len(part) :]


def reading(*pieces, after=lambda _incoming: None):
    """The output of a reader that gets these pieces."""

    async def read():
        noted = Noted()
        incoming = FrameReader(noted, noted.on_text)
        for piece in pieces:
            feed(incoming, piece)
        after(incoming)
        incoming.release()
        return noted.heard

    return asyncio.run(read())


def kept_bytes(*pieces):
    """How much memory a reader holds when it has read these pieces."""
    held = []

    def look(_incoming):
        held.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        reading(*pieces, after=look)
    finally:
        tracemalloc.stop()
    return held[0] - before


def test_a_flood_of_small_frames_makes_no_large_buffer():
    flood = frame(TEXT, b"x" * 100) * 2500  # what one read brings
    few, many = kept_bytes(frame(TEXT, b"x")), kept_bytes(*[flood[:-3]], flood[-3:])
    assert len(reading(flood)) == 2500
    assert many - few < 2500 * 200 + 32_768, "what was heard, and little else"


@pytest.mark.parametrize("tail", [b"", frame(TEXT, b"c")], ids=["alone", "with more behind it"])
def test_a_large_frame_leaves_no_large_buffer_once_the_next_ones_are_read(tail):
    large = frame(BINARY, b"x" * MIB)
    pieces = [large[at : at + 65_536] for at in range(0, len(large), 65_536)]
    pieces[-1] += tail
    assert kept_bytes(*pieces, frame(TEXT, b"d")) - MIB < 65_536


def test_frames_are_read_right_across_the_change_of_buffers():
    large = frame(TEXT, b"x" * 100_000)
    stream = frame(TEXT, b"a") + large + frame(TEXT, b"b") + large + large + frame(TEXT, b"c", is_last=False) + frame(CONTINUATION, b"d")
    expected = [b"a", b"x" * 100_000, b"b", b"x" * 100_000, b"x" * 100_000, b"cd"]
    for size in (7, 1000, 99_999, 100_007, len(stream)):
        assert reading(*[stream[at : at + size] for at in range(0, len(stream), size)]) == expected


def test_a_muted_reader_still_hears_a_close():
    def go_on(incoming):
        incoming.mute()
        feed(incoming, frame(TEXT, b"b") + frame(8, b"\x03\xe8") + frame(9, b"late"))

    assert reading(frame(TEXT, b"a"), after=go_on) == [b"a", ("close", 1000)]


@pytest.mark.parametrize(("payload", "heard"), [(b"\x03\xe8\xc3\xbc", ("close", 1000)), (b"\x03\xe8\xc3", ("flaw", 1007))])
def test_the_reason_of_a_close_is_text(payload, heard):
    assert reading(frame(8, payload)) == [heard]


def test_a_flaw_is_told_after_what_was_right_before_it():
    assert reading(frame(TEXT, b"a") + frame(3, b"") + frame(TEXT, b"b")) == [b"a", ("flaw", 1002)]


@st.composite
def streams(draw):
    """Frames of several kinds, some of them wrong, in pieces of any length."""
    texts = st.sampled_from([b"", b"known 1", b"known 2", b"other", "known ü".encode(), b"known \xff", b"known " + b"x" * 120_000])
    kinds = st.sampled_from([TEXT] * 6 + [BINARY, CONTINUATION, 9, 3])
    are_last = st.sampled_from([True] * 4 + [False])
    frames = [frame(draw(kinds), draw(texts)[:100_000], is_last=draw(are_last)) for _ in range(draw(st.integers(1, 8)))]
    stream = b"".join(frames)
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    return [stream[start:end] for start, end in itertools.pairwise([0, *cuts, len(stream)])]


def heard_in_place(pieces, takes, pauses):
    """What is heard where known texts are taken in place or not, by a reader that is paused before some of the pieces."""

    async def read():
        noted = Noted()
        incoming = FrameReader(noted, noted.on_text)

        def take(view):
            if not view[:6] == b"known " or not bytes(view).isascii():
                return False
            noted.on_text(bytes(view))
            return True

        if takes:
            incoming.show(take)
        for number, piece in enumerate(pieces):
            if number in pauses:
                incoming.pause()
            feed(incoming, piece)
            incoming.resume()
        return noted.heard

    return asyncio.run(read())


@given(streams(), st.sets(st.integers(0, 6)))
def test_texts_that_are_taken_in_place_are_heard_as_all_others(pieces, pauses):
    assert heard_in_place(pieces, True, pauses) == heard_in_place(pieces, False, pauses)


def test_a_muted_reader_shows_nothing():
    shown = []

    def go_on(incoming):
        incoming.show(lambda view: shown.append(bytes(view)) or True)
        feed(incoming, frame(TEXT, b"a"))
        incoming.mute()
        feed(incoming, frame(TEXT, b"b"))

    assert reading(after=go_on) == [] and shown == [b"a"]


def test_headers_are_as_short_as_they_can_be():
    assert text_header(125) == b"\x81\x7d"
    assert text_header(126) == b"\x81\x7e\0\x7e"
    assert text_header(65_535) == b"\x81\x7e\xff\xff"
    assert text_header(65_536) == b"\x81\x7f\0\0\0\0\0\1\0\0"
    assert binary_header(0) == b"\x82\0"
    assert (ping_frame(), pong_frame(b"x")) == (b"\x89\0", b"\x8a\1x")


def test_a_reason_that_is_too_long_is_cut_between_characters():
    assert close_frame(None) == b"\x88\0"
    assert close_frame(1000, "bye") == b"\x88\5\x03\xe8bye"
    cut = close_frame(1011, "ü" * 100)
    assert cut == b"\x88\x7c\x03\xf3" + ("ü" * 61).encode()
