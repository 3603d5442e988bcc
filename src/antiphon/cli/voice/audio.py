"""Audio files: reading recordings for a conversation, and writing its answers."""

import importlib.util
import wave
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from antiphon import audio
from antiphon.cli.common import lazy
from antiphon.cli.common.shell import UsageError
from antiphon.errors import ClientError
from antiphon.installation import install_hint, missing_modules
from antiphon.speech.base import INPUT_RATE_HZ

RATE_HZ = 24_000
"""In both directions: the Realtime API takes PCM at this rate only."""

CHUNK_MS = 20

SAMPLE = Path(__file__).with_name("sample.wav")
"""
The question "What is the capital of France?", for those who have no recording. A WAV file, as other formats need an
extra. Made with antiphon itself: its text is ours, and the voice is Piper's en_US-joe-medium (CC0-1.0).
"""

_UNSIGNED_TO_SIGNED = bytes(value ^ 0x80 for value in range(256))
"""A translation table from unsigned to signed samples of 8 bits."""


class InputRecording(Struct, frozen=True):
    """
    A recording of someone speaking.

    Attributes:
        name: of its file.
        pcm: s16le mono, at the rate asked of `read_recording`.
    """

    name: str
    pcm: bytes


def read_recordings(paths: Sequence[Path], cwd: Path, rate_hz: int = RATE_HZ, *, is_sample: bool = False) -> list[InputRecording]:
    """
    Read audio files, as `read_recording` does.

    Args:
        is_sample: the value of `--sample`: the question that comes with antiphon stands for them.

    Raises:
        UsageError: one can't be read; or there are some beside the sample.
    """
    if is_sample and paths:
        raise UsageError("--sample takes the place of recordings: name none beside it.")
    return [read_recording(cwd / path, rate_hz) for path in ((SAMPLE,) if is_sample else paths)]


def read_recording(path: Path, rate_hz: int = RATE_HZ) -> InputRecording:
    """
    Read an audio file: WAV of any rate, width and number of channels; other formats with the extra `speech`.

    Args:
        rate_hz: of the result.

    Raises:
        UsageError: the file can't be read, or holds no audio.
    """
    try:
        pcm = _read_wav(path, rate_hz)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.") from None
    except (wave.Error, EOFError):
        pcm = _read_other(path, rate_hz)
    if not pcm:
        raise UsageError(f"{path} has no audio in it.")
    return InputRecording(path.name, pcm)


def _read_wav(path: Path, target_hz: int) -> bytes:
    with wave.open(str(path)) as file:
        channels, width, rate_hz = file.getnchannels(), file.getsampwidth(), file.getframerate()
        frames = file.readframes(file.getnframes())
    if not rate_hz:
        raise wave.Error("the sample rate is 0")
    # A file that was cut off may end within a frame.
    whole = frames[: len(frames) - len(frames) % (width * channels)]
    return to_rate(_to_mono(_to_16_bit(whole, width), channels), rate_hz, target_hz)


def _read_other(path: Path, target_hz: int) -> bytes:
    if absent := missing_modules(("numpy", "soundfile", "soxr")):
        raise UsageError(
            f"{path} is no plain WAV file, and to read other formats these packages are missing: {', '.join(absent)}. "
            f"{install_hint('speech')}"
        )
    try:
        file = lazy.decode.AudioFileReader(path.read_bytes())
        return to_rate(b"".join(iter(file.read, b"")), INPUT_RATE_HZ, target_hz)
    except ClientError as error:
        raise UsageError(f"{path}: {error.message}") from None


def _to_16_bit(frames: bytes, width: int) -> bytes:
    """Samples of `width` bytes as s16le: their two most significant bytes."""
    if width == audio.SAMPLE_BYTES:
        return frames
    pcm = bytearray(audio.SAMPLE_BYTES * (len(frames) // width))
    # A WAV file's samples of 8 bits have no sign; all wider ones do.
    pcm[1::2] = frames.translate(_UNSIGNED_TO_SIGNED) if width == 1 else frames[width - 1 :: width]
    if width > 1:
        pcm[::2] = frames[width - 2 :: width]
    return bytes(pcm)


def _to_mono(pcm: bytes, channels: int) -> bytes:
    if channels == 1:
        return pcm
    samples = array("h", pcm)
    by_channel = [samples[channel::channels] for channel in range(channels)]
    return array("h", [sum(frame) // channels for frame in zip(*by_channel, strict=True)]).tobytes()


def to_rate(pcm: bytes, rate_hz: int, target_hz: int = RATE_HZ) -> bytes:
    """Resample s16le mono: with soxr where that is installed, else by linear interpolation."""
    if rate_hz == target_hz:
        return pcm
    if importlib.util.find_spec("soxr") is None:
        return interpolate(pcm, rate_hz, target_hz)
    return lazy.resample.resample(pcm, rate_hz, target_hz)


def interpolate(pcm: bytes, rate_hz: int, target_hz: int = RATE_HZ) -> bytes:
    """Resample s16le by linear interpolation: good enough to be understood."""
    samples = array("h", pcm)
    last = len(samples) - 1

    def between(index: int) -> int:
        source, rest = divmod(index * rate_hz, target_hz)
        sample, following = samples[min(source, last)], samples[min(source + 1, last)]
        return sample + (following - sample) * rest // target_hz

    return array("h", map(between, range(len(samples) * target_hz // rate_hz))).tobytes()


def split_chunks(pcm: bytes) -> Iterator[bytes]:
    """The audio in chunks of `CHUNK_MS`."""
    size = audio.size_bytes(CHUNK_MS, RATE_HZ)
    return (pcm[offset : offset + size] for offset in range(0, len(pcm), size))


SILENT_CHUNK = bytes(audio.size_bytes(CHUNK_MS, RATE_HZ))
