"""Files that are written while they are sent can be played, and all of the sound is in them."""

import io
import math
from typing import get_args

import numpy as np
import pytest
import soundfile

from antiphon.speech.audio_files.decode import AudioFileReader
from antiphon.speech.audio_files.encode import RATE_HZ, AudioFileFormat, open_encoder

SECONDS = 3
TONE = (8000 * np.sin(2 * math.pi * 440 * np.arange(SECONDS * RATE_HZ) / RATE_HZ)).astype("<i2").tobytes()
PIECE_BYTES = 4800


def written(kind):
    """The pieces of a file with the tone."""
    file = open_encoder(kind)
    return [*(file.encode(TONE[at : at + PIECE_BYTES]) for at in range(0, len(TONE), PIECE_BYTES)), file.finish()]


def test_bare_sound_is_what_it_was():
    assert b"".join(written("pcm")) == TONE
    assert b"".join(written("wav"))[44:] == TONE


@pytest.mark.parametrize("kind", [kind for kind in get_args(AudioFileFormat) if kind != "pcm"])
def test_a_file_can_be_read_again(kind):
    recording = AudioFileReader(b"".join(written(kind)))
    sound = np.frombuffer(b"".join(iter(recording.read, b"")), "<i2").astype(np.float32)
    assert len(sound) / 16_000 == pytest.approx(SECONDS, abs=0.1)
    middle = sound[8_000:-8_000]
    assert np.abs(np.fft.rfft(middle)).argmax() * 16_000 / len(middle) == pytest.approx(440, abs=2)
    assert math.sqrt(2 * float(np.mean(np.square(middle)))) == pytest.approx(8000, rel=0.1)


@pytest.mark.parametrize("kind", get_args(AudioFileFormat))
def test_the_first_of_a_file_leaves_long_before_its_last(kind):
    pieces = written(kind)
    begun = next(number for number, piece in enumerate(pieces) if len(piece) > 1000)
    assert begun < len(pieces) / 2


def test_no_frame_of_an_mp3_file_is_empty():
    file = b"".join(written("mp3"))
    assert file.startswith(b"\xff\xf3") and any(file[4:40])


def test_the_libraries_own_reader_agrees_on_the_length_of_those_that_know_it():
    for kind in ("wav", "opus", "mp3"):
        read = soundfile.info(io.BytesIO(b"".join(written(kind))))
        assert read.duration == pytest.approx(SECONDS, abs=0.1)


@pytest.mark.parametrize("kind", get_args(AudioFileFormat))
def test_a_file_of_nothing_can_be_written(kind):
    file = open_encoder(kind)
    assert isinstance(file.encode(b"") + file.finish(), bytes)
