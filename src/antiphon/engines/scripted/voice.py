"""
The voice of a scripted engine: soft tones as long as its words, or recordings.
"""

import math
import wave
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from struct import pack, unpack
from typing import NamedTuple

from antiphon.audio import SAMPLE_BYTES, bytes_of
from antiphon.engine_api import events as talk_events
from antiphon.engine_api.options import Voice
from antiphon.errors import OurFault

LETTER_MS = 60
"""How long a character sounds, spaces too, at speed 1: what people say in a minute is some 900 of them."""

TONE_HZ = 200
LOUDEST = 3277
"""Of the tone: a tenth of full scale, -20 dBFS."""

PIECE_MS = 100
"""The longest sound in one word to the protocol."""


class Recording(NamedTuple):
    """Sound from a file: s16le mono."""

    pcm: bytes
    rate_hz: int


class Recordings:
    """The WAV files that a script plays, by the names that it has for them."""

    def __init__(self, folder: Path, names: Iterable[str] = ()) -> None:
        """
        Read them all.

        Raises:
            OurFault: one can't be read, or is not 16 bits mono.
        """
        self._read = {name: _recording(folder / name) for name in names}

    def play(self, name: str, voice: Voice) -> bytes:
        """All of a recording, as fast as the voice and at its rate."""
        pcm, rate_hz = self._read[name]
        return _stretched(pcm, rate_hz * voice.speed / voice.rate_hz)


def _recording(path: Path) -> Recording:
    try:
        with wave.open(str(path)) as file:
            if (file.getnchannels(), file.getsampwidth()) != (1, SAMPLE_BYTES):
                raise wave.Error("it is not 16 bits mono")
            return Recording(file.readframes(file.getnframes()), file.getframerate())
    except OSError as error:
        raise OurFault(f"The recording {path} can't be read: {error.strerror}.") from None
    except (wave.Error, EOFError) as error:
        raise OurFault(f"The recording {path} is no WAV file that can be played: {str(error) or 'it is cut off'}.") from None


@lru_cache(maxsize=16)
def _stretched(pcm: bytes, step: float) -> bytes:
    """The sound read `step` samples at a time, between which there are straight lines."""
    if step == 1:
        return pcm
    samples = unpack(f"<{len(pcm) // SAMPLE_BYTES}h", pcm)
    count = int(len(samples) / step)
    return pack(f"<{count}h", *(_between(samples, number * step) for number in range(count)))


def _between(samples: tuple[int, ...], place: float) -> int:
    left = int(place)
    right = samples[min(left + 1, len(samples) - 1)]
    return round(samples[left] + (right - samples[left]) * (place - left))


def tone(ms: float, voice: Voice) -> bytes:
    """A tone of that length at speed 1, the same each time."""
    wanted = bytes_of(ms / voice.speed, voice.rate_hz)
    period = _period(voice.rate_hz)
    return (period * (wanted // len(period) + 1))[:wanted]


@lru_cache(maxsize=16)
def _period(rate_hz: int) -> bytes:
    count = round(rate_hz / TONE_HZ)
    return pack(f"<{count}h", *(round(LOUDEST * math.sin(2 * math.pi * number / count)) for number in range(count)))


def spoken(id: str, pieces: list[str], recording: bytes | None, voice: Voice) -> Iterator[talk_events.FromEngine]:
    """Words, each before its sound: a tone as long as it is, or its share of a recording."""
    for number, piece in enumerate(pieces):
        yield talk_events.Spoken(id, piece)
        if recording is None:
            yield from sounding(id, tone(LETTER_MS * len(piece), voice), voice)
        else:
            yield from sounding(id, _share(recording, number, len(pieces)), voice)


def _share(pcm: bytes, number: int, count: int) -> bytes:
    samples = len(pcm) // SAMPLE_BYTES
    return pcm[samples * number // count * SAMPLE_BYTES : samples * (number + 1) // count * SAMPLE_BYTES]


def sounding(id: str, pcm: bytes, voice: Voice) -> Iterator[talk_events.FromEngine]:
    """Sound, in pieces of a length that is usual."""
    size = bytes_of(PIECE_MS, voice.rate_hz)
    for start in range(0, len(pcm), size):
        yield talk_events.Sound(id, pcm[start : start + size])
