"""The sound that is no item yet: nothing of it is lost, and its clock is right."""

import pytest
from hypothesis import given, strategies as st

from antiphon.audio import encode_alaw, encode_ulaw
from antiphon.engine_api.options import LOOKBACK_MS
from antiphon.errors import ClientError
from antiphon.protocols.realtime import input_buffer
from antiphon.protocols.realtime.input_buffer import AUDIO_CODECS, PCM_CODEC, InputBuffer

SECOND = bytes(48_000)
ULAW = AUDIO_CODECS["audio/pcmu"]


def test_sound_is_held_until_it_is_committed():
    buffer = InputBuffer()
    buffer.append(SECOND)
    assert (buffer.buffered_bytes, buffer.now_ms) == (48_000, 1_000)
    assert buffer.commit() == SECOND
    assert (buffer.buffered_bytes, buffer.now_ms) == (0, 1_000)


@pytest.mark.parametrize("size", [1, 3, 7, 4_801])
def test_sound_may_be_cut_anywhere_even_within_a_sample(size):
    pcm = bytes(number % 251 for number in range(9_600))
    buffer = InputBuffer()
    given = b"".join(buffer.append(pcm[at : at + size]) for at in range(0, len(pcm), size))
    assert given == buffer.commit() == pcm


def test_half_a_sample_waits_for_its_other_half():
    buffer = InputBuffer()
    assert buffer.append(b"\1") == b""
    assert buffer.buffered_bytes == 0
    assert buffer.append(b"\2") == b"\1\2"


def test_half_a_sample_does_not_outlive_a_clear():
    buffer = InputBuffer()
    buffer.append(b"\1\2\3")
    buffer.clear()
    assert buffer.append(b"\4\5") == b"\4\5"


@pytest.mark.parametrize(("type", "code"), [("audio/pcmu", encode_ulaw), ("audio/pcma", encode_alaw)])
def test_telephone_sound_is_held_as_samples(type, code):
    buffer = InputBuffer(AUDIO_CODECS[type])
    spoken = b"\x00\x10" * 800
    assert buffer.append(code(spoken)) == AUDIO_CODECS[type].decode(code(spoken))
    assert (buffer.buffered_bytes, buffer.now_ms) == (1_600, 100)


@pytest.mark.parametrize("ms", [0, 20, 99])
def test_too_little_sound_is_not_committed_and_still_held(ms):
    buffer = InputBuffer()
    buffer.append(bytes(48 * ms))
    with pytest.raises(ClientError) as raised:
        buffer.commit()
    assert raised.value.code == "input_audio_buffer_commit_empty"
    assert raised.value.message == (
        f"Error committing input audio buffer: buffer too small. Expected at least 100ms of audio, but buffer only has {ms}.00ms of audio."
    )
    assert buffer.buffered_bytes == 48 * ms


def test_a_turn_is_what_lies_between_its_times():
    buffer = InputBuffer()
    buffer.append(b"".join(bytes((number, 0)) * 2_400 for number in range(10)))
    assert buffer.commit_turn(300, 600) == b"".join(bytes((number, 0)) * 2_400 for number in (3, 4, 5))
    assert buffer.cleared_bytes == 3 * 4_800
    assert buffer.buffered_bytes == 4 * 4_800
    assert buffer.buffer_start_ms == 600


def test_of_a_turn_that_began_before_what_is_held_comes_what_is_held():
    buffer = InputBuffer()
    buffer.append(SECOND)
    buffer.clear()
    buffer.append(SECOND)
    assert buffer.commit_turn(500, 1_250) == bytes(12_000)


def test_silence_that_nobody_asks_for_is_let_go_and_the_clock_goes_on():
    buffer = InputBuffer()
    for _ in range(30):
        buffer.append(SECOND)
        buffer.trim()
    assert buffer.buffered_bytes <= 2 * LOOKBACK_MS * 48
    assert buffer.now_ms == 30_000


def test_another_rate_drops_what_is_held_and_the_clock_goes_on():
    buffer = InputBuffer()
    buffer.append(SECOND)
    buffer.set_codec(ULAW)
    assert (buffer.buffered_bytes, buffer.cleared_bytes, buffer.now_ms, buffer.rate_hz) == (0, 48_000, 1_000, 8_000)
    buffer.append(bytes(4_000))
    assert (buffer.now_ms, buffer.buffer_start_ms) == (1_500, 1_000)
    buffer.set_codec(PCM_CODEC)
    buffer.append(SECOND)
    assert buffer.now_ms == 2_500


def test_the_other_law_at_the_same_rate_keeps_what_is_held():
    buffer = InputBuffer(ULAW)
    buffer.append(bytes(800))
    buffer.set_codec(AUDIO_CODECS["audio/pcma"])
    assert buffer.buffered_bytes == 1_600


def test_a_full_buffer_takes_nothing_more():
    buffer = InputBuffer()
    whole = bytes(8 << 20)
    while buffer.buffered_bytes + len(whole) <= input_buffer.BUFFER_LIMIT_BYTES:
        buffer.append(whole)
    held = buffer.buffered_bytes
    with pytest.raises(ClientError) as raised:
        buffer.append(whole)
    assert raised.value.code == "input_audio_buffer_full"
    assert buffer.buffered_bytes == held


steps = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 200_000)),
    st.tuples(st.just("clear")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("trim")),
    st.tuples(st.just("commit_turn"), st.integers(0, 2_000), st.integers(0, 2_000)),
    st.tuples(st.just("recode"), st.sampled_from(sorted(AUDIO_CODECS))),
)


@given(st.lists(steps, max_size=30))
def test_all_that_came_is_committed_or_cleared_or_held(script):
    buffer, now_ms = InputBuffer(), 0
    for name, *arguments in script:
        match name:
            case "append":
                buffer.append(bytes(arguments[0]))
            case "commit" if buffer.buffered_bytes < 100 * buffer.rate_hz * 2 // 1000:
                with pytest.raises(ClientError):
                    buffer.commit()
            case "recode":
                buffer.set_codec(AUDIO_CODECS[arguments[0]])
            case _:
                getattr(buffer, name)(*arguments)
        assert buffer.received_bytes == buffer.committed_bytes + buffer.cleared_bytes + buffer.buffered_bytes
        assert now_ms <= buffer.now_ms
        assert buffer.buffer_start_ms <= buffer.now_ms
        now_ms = buffer.now_ms
