"""Sound as bytes: the laws of G.711 against a reference that follows them step by step, times, levels, WAV."""

import io
import struct
import wave

import pytest
from hypothesis import given, strategies as st

from antiphon.audio import (
    WAV_HEADER_BYTES,
    ChunkBuffer,
    SampleAligner,
    audio_tokens,
    decode_alaw,
    decode_ulaw,
    duration_ms,
    encode_alaw,
    encode_ulaw,
    peak,
    size_bytes,
    streaming_wav_header,
    wav_file,
    wav_header,
)
from antiphon.errors import ClientError

EVERY_SAMPLE = range(-32768, 32768)
EVERY_CODE = bytes(range(256))


def pcm(*samples):
    return struct.pack(f"<{len(samples)}h", *samples)


def samples(pcm):
    return struct.unpack(f"<{len(pcm) // 2}h", pcm)


def slow_ulaw(sample):
    """The compression of 14 bits by chord and step, as the ITU's software tool library (G.191) does it."""
    magnitude = min(((~sample if sample < 0 else sample) >> 2) + 33, 0x1FFF)
    chord = magnitude.bit_length() - 6
    step = (magnitude >> (chord + 1)) & 0x0F
    return (0x80 if sample >= 0 else 0) | (7 - chord) << 4 | (15 - step)


def slow_alaw(sample):
    """The compression of 12 bits by chord and step, as the ITU's software tool library (G.191) does it."""
    magnitude = (~sample if sample < 0 else sample) >> 4
    chord = max(0, magnitude.bit_length() - 4)
    step = (magnitude >> max(0, chord - 1)) & 0x0F
    return ((0x80 if sample >= 0 else 0) | chord << 4 | step) ^ 0x55


@pytest.mark.parametrize(("encode", "slow"), [(encode_ulaw, slow_ulaw), (encode_alaw, slow_alaw)])
def test_every_sample_is_encoded_as_the_slow_reference_does_it(encode, slow):
    assert encode(pcm(*EVERY_SAMPLE)) == bytes(map(slow, EVERY_SAMPLE))


@pytest.mark.parametrize(
    ("decode", "code", "value"),
    # The quantised values at both ends and at the bounds of chords, of 14 and of 13 bits, as the tables 2 and 1 of G.711 have them.
    [
        *((decode_ulaw, code, value * 4) for code, value in [(0xFF, 0), (0xFE, 2), (0xF0, 30), (0xEF, 33), (0xE0, 93), (0xDF, 99)]),
        *(
            (decode_ulaw, code, value * 4)
            for code, value in [(0x8F, 4191), (0x80, 8031), (0x7F, 0), (0x7E, -2), (0x6F, -33), (0x00, -8031)]
        ),
        *((decode_alaw, code, value * 8) for code, value in [(0xD5, 1), (0xD4, 3), (0xDA, 31), (0xC5, 33), (0xCA, 63), (0xF5, 66)]),
        *((decode_alaw, code, value * 8) for code, value in [(0xA5, 2112), (0xAA, 4032), (0x55, -1), (0x45, -33), (0x2A, -4032)]),
    ],
)
def test_a_code_stands_for_the_value_of_the_standard(decode, code, value):
    assert samples(decode(bytes((code,)))) == (value,)


@pytest.mark.parametrize(("encode", "decode"), [(encode_ulaw, decode_ulaw), (encode_alaw, decode_alaw)])
def test_what_was_decoded_is_encoded_as_it_was(encode, decode):
    # Of the two mu-law codes for nothing, the one for minus nothing is never chosen.
    never = b"\x7f" if encode is encode_ulaw else b""
    codes = bytes(code for code in range(256) if code not in never)
    assert encode(decode(codes)) == codes


@pytest.mark.parametrize(("encode", "decode"), [(encode_ulaw, decode_ulaw), (encode_alaw, decode_alaw)])
def test_a_sample_comes_back_within_half_a_step(encode, decode):
    loudest = max(samples(decode(EVERY_CODE)))
    for before, after in zip(EVERY_SAMPLE, samples(decode(encode(pcm(*EVERY_SAMPLE)))), strict=True):
        assert abs(before - after) <= (abs(before) + 256) / 32 or (abs(before) > loudest and abs(after) == loudest)


@pytest.mark.parametrize("encode", [encode_ulaw, encode_alaw])
def test_no_sound_and_one_sample_are_sound_too(encode):
    assert encode(b"") == b""
    assert len(encode(b"\0\0")) == 1


@pytest.mark.parametrize("encode", [encode_ulaw, encode_alaw])
def test_half_a_sample_is_refused(encode):
    with pytest.raises(ClientError, match="3 bytes"):
        encode(b"abc")


def test_bytes_and_milliseconds_follow_from_each_other():
    assert duration_ms(48_000, 24_000) == 1000
    assert duration_ms(2, 8_000) == 0.125
    assert size_bytes(20, 24_000) == 960
    assert size_bytes(1, 44_100) == 88, "whole samples"
    assert size_bytes(0.1, 8_000) == 0


def test_a_token_that_is_not_full_counts_as_one():
    assert [audio_tokens(ms, 100) for ms in (0, 0.5, 100, 100.5, 1000)] == [0, 1, 1, 2, 10]


def test_the_peak_is_how_far_the_loudest_sample_is_from_silence():
    assert peak(b"") == 0
    assert peak(pcm(3, -7, 5)) == 7
    assert peak(pcm(-32768, 32767)) == 32768


@given(st.lists(st.binary(max_size=7)))
def test_pieces_of_any_length_make_whole_samples_and_lose_nothing(pieces):
    sound = SampleAligner()
    taken = [sound.align(piece) for piece in pieces]
    whole = b"".join(pieces)
    assert all(len(pcm) % 2 == 0 for pcm in taken)
    assert b"".join(taken) == whole[: len(whole) // 2 * 2]


def test_a_wav_file_is_read_by_others():
    with wave.open(io.BytesIO(wav_file(pcm(1, 2, 3), 16_000))) as file:
        assert file.getparams()[:4] == (1, 2, 16_000, 3)
        assert samples(file.readframes(9)) == (1, 2, 3)


def test_a_file_too_long_for_the_lengths_of_its_header_is_one_whose_length_is_not_known():
    longest = 2**32 - 1 - (WAV_HEADER_BYTES - 8)
    assert wav_header(24_000, longest) != streaming_wav_header(24_000)
    assert wav_header(24_000, 2**32) == streaming_wav_header(24_000)


CHUNKS = st.binary(max_size=12) | st.integers(0, 2_000).map(lambda size: bytes(number % 251 for number in range(size)))


@given(steps=st.lists(st.tuples(st.sampled_from(("append", "drop", "read", "clear")), CHUNKS, st.integers(0, 4_000)), max_size=40))
def test_a_chunk_buffer_holds_what_a_bytearray_would(steps):
    buffer, expected = ChunkBuffer(), bytearray()
    for step, chunk, count in steps:
        match step:
            case "append":
                buffer.append(chunk)
                expected += chunk
            case "drop":
                buffer.drop(count)
                del expected[:count]
            case "read":
                assert buffer.read(len(chunk), count) == expected[len(chunk) : count]
            case _ if count < 200:
                buffer.clear()
                expected.clear()
        assert buffer.size_bytes == len(expected)
    assert buffer.read(0, buffer.size_bytes) == expected


def test_a_chunk_buffer_copies_no_chunk_of_ordinary_size_and_joins_short_ones():
    buffer, chunks = ChunkBuffer(), [bytes(960), bytes(1_000_000)]
    for chunk in chunks:
        buffer.append(chunk)
    assert [id(chunk) for chunk in buffer._chunks] == [id(chunk) for chunk in chunks]
    for _ in range(100_000):
        buffer.append(b"ab")
    assert len(buffer._chunks) < 2_000 and buffer.size_bytes == 1_200_960
