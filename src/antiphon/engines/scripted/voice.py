"""The voice of a scripted engine: soft tones as long as its words, or recordings."""

import math
import wave
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from struct import pack, unpack
from typing import NamedTuple

from antiphon.audio import SAMPLE_BYTES, size_bytes
from antiphon.engine_api import events
from antiphon.engine_api.options import Voice
from antiphon.errors import ServerError

LETTER_MS = 60
"""How long a character lasts, spaces too, at speed 1: people say some 900 a minute."""

TONE_HZ = 200
TONE_AMPLITUDE = 3277
"""A tenth of full scale, -20 dBFS."""

CHUNK_MS = 100
"""The most audio in one event."""


class WavRecording(NamedTuple):
    """Audio from a file: s16le mono."""

    pcm: bytes
    rate_hz: int


class ScriptedRecordings:
    """The WAV files that a script plays, by their names in it."""

    def __init__(self, folder: Path, names: Iterable[str] = ()) -> None:
        """
        Read all files.

        Raises:
            ServerError: one can't be read, or is not 16 bits mono.
        """
        self._by_name = {name: _read_wav(folder / name) for name in names}

    def play(self, name: str, voice: Voice) -> bytes:
        """A whole recording, at the voice's speed and rate."""
        pcm, rate_hz = self._by_name[name]
        return _resample(pcm, rate_hz * voice.speed / voice.rate_hz)


def _read_wav(path: Path) -> WavRecording:
    try:
        with wave.open(str(path)) as file:
            if (file.getnchannels(), file.getsampwidth()) != (1, SAMPLE_BYTES):
                raise wave.Error("it is not 16 bits mono")
            return WavRecording(file.readframes(file.getnframes()), file.getframerate())
    except OSError as error:
        raise ServerError(f"The recording {path} can't be read: {error.strerror}.") from None
    except (wave.Error, EOFError) as error:
        raise ServerError(f"The recording {path} is not a playable WAV file: {str(error) or 'it is cut off'}.") from None


@lru_cache(maxsize=16)
def _resample(pcm: bytes, step: float) -> bytes:
    """The audio resampled by linear interpolation, every `step` samples."""
    if step == 1:
        return pcm
    samples = unpack(f"<{len(pcm) // SAMPLE_BYTES}h", pcm)
    count = int(len(samples) / step)
    return pack(f"<{count}h", *(_interpolate(samples, number * step) for number in range(count)))


def _interpolate(samples: tuple[int, ...], position: float) -> int:
    left = int(position)
    right = samples[min(left + 1, len(samples) - 1)]
    return round(samples[left] + (right - samples[left]) * (position - left))


def tone(ms: float, voice: Voice) -> bytes:
    """A tone of that length at speed 1, the same each time."""
    length = size_bytes(ms / voice.speed, voice.rate_hz)
    period = _period(voice.rate_hz)
    return (period * (length // len(period) + 1))[:length]


@lru_cache(maxsize=16)
def _period(rate_hz: int) -> bytes:
    count = round(rate_hz / TONE_HZ)
    return pack(f"<{count}h", *(round(TONE_AMPLITUDE * math.sin(2 * math.pi * number / count)) for number in range(count)))


def spoken_events(id: str, pieces: list[str], recording: bytes | None, voice: Voice) -> Iterator[events.EngineEvent]:
    """Words, each before its audio: a tone as long as the word, or its share of a recording."""
    for number, piece in enumerate(pieces):
        yield events.AudioTranscriptDelta(id, piece)
        if recording is None:
            yield from audio_events(id, tone(LETTER_MS * len(piece), voice), voice)
        else:
            yield from audio_events(id, _share(recording, number, len(pieces)), voice)


def _share(pcm: bytes, number: int, count: int) -> bytes:
    samples = len(pcm) // SAMPLE_BYTES
    return pcm[samples * number // count * SAMPLE_BYTES : samples * (number + 1) // count * SAMPLE_BYTES]


def audio_events(id: str, pcm: bytes, voice: Voice) -> Iterator[events.EngineEvent]:
    """Audio, in events of at most `CHUNK_MS`."""
    size = size_bytes(CHUNK_MS, voice.rate_hz)
    for start in range(0, len(pcm), size):
        yield events.AudioDelta(id, pcm[start : start + size])
