"""Recordings as they are read."""

import itertools
import struct
import wave
from array import array

import pytest

from antiphon.cli.common.shell import UsageError
from antiphon.cli.voice import audio
from antiphon.cli.voice.audio import SAMPLE, interpolate, read_recording, split_chunks
from support.cli.tones import tone, write_wav

SAMPLES = [0, 1000, -1000, 32_767, -32_768] * 40


def wide(width: int) -> bytes:
    """The same samples, `width` bytes each."""
    if width == 1:
        return bytes((sample >> 8) + 128 for sample in SAMPLES)
    return b"".join((sample << 8 * (width - 2)).to_bytes(width, "little", signed=True) for sample in SAMPLES)


@pytest.mark.parametrize("width", [2, 3, 4])
def test_samples_of_any_width_are_read(tmp_path, width):
    assert list(array("h", read_recording(write_wav(tmp_path / "a.wav", wide(width), width=width)).pcm)) == SAMPLES


def test_samples_of_one_byte_have_no_sign(tmp_path):
    assert list(array("h", read_recording(write_wav(tmp_path / "a.wav", wide(1), width=1)).pcm)) == [sample >> 8 << 8 for sample in SAMPLES]


def test_channels_are_mixed_into_one(tmp_path):
    stereo = array("h", [100, 300, -100, -300] * 50).tobytes()
    assert list(array("h", read_recording(write_wav(tmp_path / "a.wav", stereo, channels=2)).pcm)) == [200, -200] * 50


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 44_100, 48_000])
def test_any_rate_becomes_the_one_of_the_conversation(tmp_path, rate_hz):
    recording = read_recording(write_wav(tmp_path / "a.wav", tone(100, rate_hz).tobytes(), rate_hz))
    assert len(recording.pcm) == pytest.approx(2 * 2_400, abs=4)


@pytest.mark.parametrize("rate_hz", [8_000, 48_000])
def test_without_a_resampler_a_slope_stays_one(rate_hz):
    slope = array("h", range(0, 8_000, 8_000 * 10 // rate_hz)).tobytes()
    made = array("h", interpolate(slope, rate_hz))
    assert len(made) == len(slope) // 2 * 24_000 // rate_hz
    steps = {after - here for here, after in itertools.pairwise(made[:-3])}
    assert max(steps) - min(steps) <= 1


def test_a_file_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path):
    path = write_wav(tmp_path / "a.wav", wide(3), width=3)
    path.write_bytes(path.read_bytes()[:-2])
    assert len(read_recording(path).pcm) == 2 * (len(SAMPLES) - 1)


def test_a_recording_is_sent_in_pieces_of_20_ms():
    assert [len(piece) for piece in split_chunks(bytes(2_000))] == [960, 960, 80]


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "can't be read: No such file"), (b"", "a.wav"), (b"hello", "a.wav"), (b"RIFF\x24\0\0\0WAVEfmt ", "a.wav")],
)
def test_what_is_no_recording_is_a_mistake_that_names_it(tmp_path, content, reason):
    path = tmp_path / "a.wav"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=reason):
        read_recording(path)


def test_a_recording_without_sound_is_a_mistake(tmp_path):
    with pytest.raises(UsageError, match="no audio in it"):
        read_recording(write_wav(tmp_path / "a.wav", b""))


def test_a_wav_file_of_another_kind_is_read_where_the_extra_speech_is_installed(tmp_path):
    pytest.importorskip("soundfile")
    samples = struct.pack("<2400f", *[0.5, -0.5] * 1200)
    head = struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(samples), b"WAVE", b"fmt ", 16, 3, 1, 24_000, 96_000, 4, 32, b"data", len(samples)
    )
    (tmp_path / "a.wav").write_bytes(head + samples)
    assert len(read_recording(tmp_path / "a.wav").pcm) == pytest.approx(4_800, abs=4)


def test_silence_is_as_long_as_a_piece():
    assert len(audio.SILENT_CHUNK) == 960


def test_the_sample_is_a_short_plain_wav_file():
    """It takes no extra to be read, and little room in the wheel."""
    with wave.open(str(SAMPLE)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16_000)
        assert 1 < file.getnframes() / file.getframerate() < 3
    assert SAMPLE.stat().st_size < 100_000
