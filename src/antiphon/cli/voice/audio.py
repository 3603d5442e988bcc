"""Recordings as a conversation takes them, and as it gives them back."""

import importlib.util
import wave
from array import array
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from antiphon import audio
from antiphon.cli.common.shell import Shell, UsageError
from antiphon.errors import ClientError

RATE_HZ = 24_000
"""Of the sound in both directions: the one rate of s16le that the Realtime API has."""

CHUNK_MS = 20

_UNSIGNED_TO_SIGNED = bytes(value ^ 0x80 for value in range(256))
"""What makes unsigned samples of 8 bits signed, byte by byte."""


class InputRecording(Struct, frozen=True):
    """
    Someone speaking.

    Attributes:
        name: what its file is called.
        pcm: s16le mono, at the rate that was wanted.
    """

    name: str
    pcm: bytes


def read_recording(path: Path, rate_hz: int = RATE_HZ) -> InputRecording:
    """
    The recording in a file: WAV of any rate, width and number of channels, and with the extra `speech` whatever that reads.

    Args:
        rate_hz: at which its sound is wanted.

    Raises:
        UsageError: it can't be read, or is none.
    """
    try:
        pcm = _read_wav(path, rate_hz)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.") from None
    except (wave.Error, EOFError):
        pcm = _read_other(path, rate_hz)
    if not pcm:
        raise UsageError(f"{path} has no sound in it.")
    return InputRecording(path.name, pcm)


def check_output_path(path: Path) -> None:
    """
    Refuse a path to which no sound can be written; before anything is said, as then it would be too late.

    Raises:
        UsageError: it is a folder, or in one that isn't there.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder; -o takes the name of a WAV file.")
    if not path.parent.is_dir():
        raise UsageError(f"There is no folder {path.parent} to write {path.name} into.")


def _read_wav(path: Path, target_hz: int) -> bytes:
    """The sound in a WAV file of plain samples."""
    with wave.open(str(path)) as file:
        channels, width, rate_hz = file.getnchannels(), file.getsampwidth(), file.getframerate()
        frames = file.readframes(file.getnframes())
    if not rate_hz:
        raise wave.Error("it has no rate")
    whole = frames[: len(frames) - len(frames) % (width * channels)]
    return to_rate(_to_mono(_to_16_bit(whole, width), channels), rate_hz, target_hz)


def _read_other(path: Path, target_hz: int) -> bytes:
    """
    The sound in a file of any other kind.

    Raises:
        UsageError: it has none that can be read.
    """
    if absent := [name for name in ("numpy", "soundfile", "soxr") if importlib.util.find_spec(name) is None]:
        raise UsageError(
            f"{path} is no WAV file of plain samples, and to read others these are not installed: {', '.join(absent)}. "
            "Run `make install`, or `pip install 'antiphon[speech]'`."
        )
    from antiphon.speech import base  # noqa: PLC0415 - of the extra `speech`, without which WAV files are read
    from antiphon.speech.audio_files import decode  # noqa: PLC0415 - of the extra `speech`, without which WAV files are read

    try:
        file = decode.AudioFileReader(path.read_bytes())
        return to_rate(b"".join(iter(file.read, b"")), base.INPUT_RATE_HZ, target_hz)
    except ClientError as mistake:
        raise UsageError(f"{path}: {mistake.message}") from None


def _to_16_bit(frames: bytes, width: int) -> bytes:
    """Samples of `width` bytes as s16le: the two bytes that say most."""
    if width == audio.SAMPLE_BYTES:
        return frames
    pcm = bytearray(audio.SAMPLE_BYTES * (len(frames) // width))
    # A WAV file's samples of 8 bits have no sign; all wider ones do.
    pcm[1::2] = frames.translate(_UNSIGNED_TO_SIGNED) if width == 1 else frames[width - 1 :: width]
    if width > 1:
        pcm[::2] = frames[width - 2 :: width]
    return bytes(pcm)


def _to_mono(pcm: bytes, channels: int) -> bytes:
    """The mean of the channels of interleaved s16le."""
    if channels == 1:
        return pcm
    samples = array("h", pcm)
    apart = [samples[each::channels] for each in range(channels)]
    return array("h", [sum(frame) // channels for frame in zip(*apart, strict=True)]).tobytes()


def to_rate(pcm: bytes, rate_hz: int, target_hz: int = RATE_HZ) -> bytes:
    """s16le at the rate that is wanted."""
    if rate_hz == target_hz:
        return pcm
    if importlib.util.find_spec("soxr") is None:
        return interpolate(pcm, rate_hz, target_hz)
    from antiphon.speech.dsp.resample import resample  # noqa: PLC0415 - of the extra `speech`, which talking to another server needs not

    return resample(pcm, rate_hz, target_hz)


def interpolate(pcm: bytes, rate_hz: int, target_hz: int = RATE_HZ) -> bytes:
    """s16le at the rate that is wanted, each sample on a straight line between its neighbours: good enough to be understood."""
    samples = array("h", pcm)
    last = len(samples) - 1

    def between(index: int) -> int:
        whole, rest = divmod(index * rate_hz, target_hz)
        here, after = samples[min(whole, last)], samples[min(whole + 1, last)]
        return here + (after - here) * rest // target_hz

    return array("h", map(between, range(len(samples) * target_hz // rate_hz))).tobytes()


def split_chunks(pcm: bytes) -> Iterator[bytes]:
    """The sound as it is sent, in pieces of `PIECE_MS`."""
    size = audio.size_bytes(CHUNK_MS, RATE_HZ)
    return (pcm[begin : begin + size] for begin in range(0, len(pcm), size))


SILENT_CHUNK = bytes(audio.size_bytes(CHUNK_MS, RATE_HZ))
"""One piece of it."""


def write_answer(pcm: bytes, rate_hz: int, path: Path, shell: Shell) -> Path | None:
    """Where an answer's sound, s16le, was written to, which is told; None where it has none."""
    if not pcm:
        shell.note(f"the answer has no sound, so {path.name} is not written")
        return None
    path.write_bytes(audio.wav_file(pcm, rate_hz))
    shell.note(f"the answer is in {path.name}: {audio.duration_ms(len(pcm), rate_hz) / 1000:.1f} s")
    return path
