"""WAV files as they come."""

from struct import pack

import pytest
from hypothesis import given, strategies as st

from antiphon.audio import wav_file
from antiphon.speech.audio_files.wav_stream import UnplayableAudio, WavStream

PCM = bytes(range(100))


def taken(file, size):
    stream = WavStream()
    return b"".join(stream.feed(file[at : at + size]) for at in range(0, len(file), size)), stream.rate_hz


@given(st.integers(1, 200))
def test_the_sound_comes_whole_however_the_file_comes(size):
    assert taken(wav_file(PCM, 22_050), size) == (PCM, 22_050)


def test_other_chunks_are_passed_over_and_lengths_not_believed():
    file = wav_file(PCM, 8_000)
    extra = b"LIST" + pack("<I", 3) + b"abc\0"
    endless = file[:36] + extra + b"data\xff\xff\xff\xff" + PCM
    assert taken(endless, 7) == (PCM, 8_000)


@pytest.mark.parametrize(
    "file",
    [
        b"ID3 and so on",
        b"RIFF\0\0\0\0WAVEdata\0\0\0\0",
        wav_file(PCM, 8_000).replace(b"\1\0\1\0", b"\1\0\2\0"),
        b"RIFF\0\0\0\0WAVE" + bytes(70_000),
    ],
)
def test_what_is_not_sixteen_bits_mono_is_refused(file):
    with pytest.raises(UnplayableAudio):
        taken(file, 1000)
