"""Both sides of a recording on one clock: the person on the left, the answers on the right."""

from collections.abc import Iterable, Mapping
from struct import pack, unpack
from typing import Any, NamedTuple

from antiphon.audio import SAMPLE_BYTES, WAV_HEAD_BYTES, wav_head
from antiphon.runtime.recording.events import IN, OUT, media_in
from antiphon.runtime.recording.files import Line

RATE_HZ = 24_000

_JITTER_S = 0.3
"""How much later than expected a piece may come and still belong right behind the one before it."""


class Sound(NamedTuple):
    """What is in a file: s16le mono."""

    pcm: bytes
    rate_hz: int


def sound_of(file: bytes) -> Sound:
    """The sound in a file of a recording."""
    return Sound(file[WAV_HEAD_BYTES:], int.from_bytes(file[24:28], "little"))


def mixed(lines: Iterable[Line], sounds: Mapping[str, Sound]) -> bytes:
    """
    A WAV file of both sides.

    What was sent faster than it sounds is put where a player would have played it, and ends where the answer was cut short.

    Args:
        sounds: the files that the lines speak of, by name.
    """
    plain = {name: resampled(sound) for name, sound in sounds.items()}
    rates = {name: sound.rate_hz for name, sound in sounds.items()}
    lanes = {IN: bytearray(), OUT: bytearray()}
    for line in lines:
        if line.direction == OUT and _is_cut(line.event):
            del lanes[OUT][_bytes_at(line.at_s) :]
        for media in media_in(line.event):
            if media.file in plain:
                begins, ends = (_scaled(offset, rates[media.file]) for offset in (media.offset, media.offset + media.bytes))
                _lay(lanes[line.direction], plain[media.file][begins:ends], line)
    return _stereo(lanes[IN], lanes[OUT])


def _lay(lane: bytearray, piece: bytes, line: Line) -> None:
    """Put a piece where it belongs."""
    ends = _bytes_at(line.at_s)
    begins = max(0, ends - len(piece)) if line.direction == IN else ends
    slack = _bytes_at(_JITTER_S) if line.direction == IN else 0
    if begins > len(lane) + slack:
        lane.extend(bytes(begins - len(lane)))
    lane.extend(piece)


def _bytes_at(at_s: float) -> int:
    return int(at_s * RATE_HZ) * SAMPLE_BYTES


def _scaled(offset: int, rate_hz: int) -> int:
    return offset // SAMPLE_BYTES * RATE_HZ // rate_hz * SAMPLE_BYTES


def _is_cut(event: Any) -> bool:
    """Whether an event says that what was not played yet is not to be played."""
    if event.get("type") == "response.done":
        return bool(event.get("response", {}).get("status") == "cancelled")
    return event.get("type") == "output_audio_buffer.cleared" or bool(event.get("interrupted"))


def resampled(sound: Sound) -> bytes:
    """The sound at 24 kHz, with straight lines between the samples: to be listened to, and nothing more."""
    if sound.rate_hz == RATE_HZ:
        return sound.pcm
    count = len(sound.pcm) // SAMPLE_BYTES
    samples = unpack(f"<{count}h", sound.pcm[: count * SAMPLE_BYTES])
    following = (*samples[1:], *samples[-1:])
    places = (divmod(place * sound.rate_hz, RATE_HZ) for place in range(count * RATE_HZ // sound.rate_hz))
    values = [samples[at] + (following[at] - samples[at]) * rest // RATE_HZ for at, rest in places]
    return pack(f"<{len(values)}h", *values)


def _stereo(left: bytearray, right: bytearray) -> bytes:
    length = max(len(left), len(right))
    sides = [bytes(side).ljust(length, b"\0") for side in (left, right)]
    both = bytearray(2 * length)
    for at, side in enumerate(sides):
        both[2 * at :: 4] = side[::2]
        both[2 * at + 1 :: 4] = side[1::2]
    return wav_head(RATE_HZ, len(both), channels=2) + both
