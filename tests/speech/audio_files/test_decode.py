"""Recordings in files: of any depth and rate, with any channels, and none that take more than they may."""

import io
import math
from struct import pack

import numpy as np
import pytest
import soundfile

from antiphon.audio import streaming_wav_header, wav_file
from antiphon.errors import ClientError
from antiphon.speech.audio_files.decode import AudioFileReader, AudioFiles
from antiphon.speech.base import INPUT_RATE_HZ
from support.speech.running import run

HZ = 440


def tone(seconds, rate_hz, hz=HZ):
    return 0.5 * np.sin(2 * math.pi * hz * np.arange(int(seconds * rate_hz)) / rate_hz).astype(np.float32)


def written(samples, rate_hz, kind, encoding):
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format=kind, subtype=encoding)
    return file.getvalue()


def heard(file, **options):
    recording = AudioFileReader(file, **options)
    return np.frombuffer(b"".join(iter(recording.read, b"")), "<i2").astype(np.float32) / 32_768


def is_tone(sound, seconds, hz=HZ, level=0.5):
    """Whether a sound is so long, and mostly of that pitch and level."""
    middle = sound[len(sound) // 4 : len(sound) // 4 * 3]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    pitch = spectrum.argmax() * INPUT_RATE_HZ / len(middle)
    loudness = math.sqrt(2 * float(np.mean(np.square(middle))))
    return abs(len(sound) / INPUT_RATE_HZ - seconds) < 0.06 and abs(pitch - hz) < 3 and abs(loudness - level) < 0.08


@pytest.mark.parametrize("encoding", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"])
def test_wav_files_are_read_whatever_their_depth(encoding):
    assert is_tone(heard(written(tone(1, 22_050), 22_050, "WAV", encoding)), 1)


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 16_000, 24_000, 44_100, 48_000, 96_000])
def test_files_are_read_whatever_their_rate(rate_hz):
    assert is_tone(heard(written(tone(1, rate_hz), rate_hz, "WAV", "PCM_16")), 1)


@pytest.mark.parametrize(
    ("kind", "encoding"), [("FLAC", "PCM_16"), ("FLAC", "PCM_24"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")]
)
def test_files_are_read_whatever_their_kind(kind, encoding):
    assert is_tone(heard(written(tone(2, 48_000), 48_000, kind, encoding)), 2)


def test_channels_are_mixed():
    left, right = tone(1, 16_000, 440), tone(1, 16_000, 880)
    sound = heard(written(np.stack([left, right], axis=1), 16_000, "WAV", "PCM_16"))
    assert np.allclose(sound, (left + right) / 2, atol=1e-3)


def test_what_is_louder_than_can_be_is_as_loud_as_can_be_and_what_is_no_number_is_silence():
    samples = np.array([2.0, -2.0, math.nan, math.inf, 0.25] * 1000, np.float32)
    sound = heard(written(samples, 16_000, "WAV", "FLOAT"))
    assert np.allclose(sound[:5], [1, -1, 0, 1, 0.25], atol=1e-3)


@pytest.mark.parametrize("length", [0xFFFF_FFFF, 0x7FFF_FFFF, 100_000_000, 0])
def test_a_wav_file_that_does_not_know_its_length_is_read_to_its_end(length):
    pcm = (tone(1, 16_000) * 32_767).astype("<i2").tobytes()
    file = bytearray(streaming_wav_header(16_000) + pcm)
    file[40:44] = pack("<I", length)
    assert is_tone(heard(bytes(file)), 1)


def test_a_flac_file_that_does_not_know_its_length_is_read_to_its_end():
    file = bytearray(written(tone(3, 24_000), 24_000, "FLAC", "PCM_16"))
    file[21] &= 0xF0
    file[22:26] = bytes(4)  # how many samples, in its head
    assert is_tone(heard(bytes(file)), 3)


def test_a_file_that_is_cut_off_is_read_up_to_there():
    file = wav_file((tone(2, 16_000) * 32_767).astype("<i2").tobytes(), 16_000)
    assert is_tone(heard(file[: len(file) // 2]), 1)


def test_no_more_is_read_than_may_be():
    file = written(np.zeros(8_000 * 61, np.float32), 8_000, "FLAC", "PCM_16")
    assert len(heard(file, max_duration_s=61)) == 61 * INPUT_RATE_HZ
    with pytest.raises(ClientError, match="longer than 60 seconds") as caught:
        heard(file, max_duration_s=60)
    assert caught.value.code == "audio_too_long"


def test_so_little_of_a_file_is_unpacked_at_once_that_its_size_does_not_matter():
    file = written(np.zeros((4_000, 8), np.float32), 4_000, "FLAC", "PCM_16")
    recording = AudioFileReader(file)
    assert len(recording.read()) <= 2 * (1 << 20) // 8 * 4


@pytest.mark.parametrize(("rate_hz", "channels"), [(1, 1), (3_999, 1), (400_000, 1), (16_000, 40)])
def test_rates_and_channels_that_nobody_has_are_refused(rate_hz, channels):
    with pytest.raises(ClientError) as caught:
        AudioFileReader(written(np.zeros((4_000, channels), np.float32), rate_hz, "WAV", "PCM_16"))
    assert (caught.value.code, caught.value.param) == ("invalid_value", "file")


@pytest.mark.parametrize(
    ("kind", "encoding"), [("AIFF", "PCM_16"), ("AU", "PCM_16"), ("CAF", "PCM_16"), ("WAV", "IMA_ADPCM"), ("W64", "PCM_16")]
)
def test_kinds_that_nobody_sends_are_refused(kind, encoding):
    with pytest.raises(ClientError, match="Supported formats"):
        AudioFileReader(written(tone(1, 16_000), 16_000, kind, encoding))


def test_pieces_come_from_threads_and_together_are_the_whole():
    file = written(tone(30, 48_000), 48_000, "FLAC", "PCM_16")

    async def scenario():
        recordings = AudioFiles()
        pieces = [pcm async for pcm in recordings.decode(file)]
        await recordings.stop()
        return pieces

    pieces = run(scenario())
    assert len(pieces) > 1
    assert sum(map(len, pieces)) == 2 * 30 * INPUT_RATE_HZ


def test_no_recording_is_shorter_than_a_tenth_of_a_second():
    async def scenario():
        recordings = AudioFiles()
        try:
            with pytest.raises(ClientError, match="too short"):
                _ = [pcm async for pcm in recordings.decode(wav_file(bytes(3_000), 16_000))]
        finally:
            await recordings.stop()

    run(scenario())
