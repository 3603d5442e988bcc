"""Both sides of a recording on one clock: the person on the left, the answers on the right."""

from collections.abc import Iterable, Mapping
from struct import pack, unpack
from typing import Any, NamedTuple

from antiphon.audio import SAMPLE_BYTES, WAV_HEADER_BYTES, wav_header
from antiphon.runtime.recording.events import IN, OUT, find_media
from antiphon.runtime.recording.files import EventLine

RATE_HZ = 24_000

_MAX_JITTER_S = 0.3
"""How much later than expected a piece may come and still belong right behind the one before it."""


class PcmAudio(NamedTuple):
    """What is in a file: s16le mono."""

    pcm: bytes
    rate_hz: int


def read_wav(file: bytes) -> PcmAudio:
    """The sound in a file of a recording."""
    return PcmAudio(file[WAV_HEADER_BYTES:], int.from_bytes(file[24:28], "little"))


def mix_to_wav(lines: Iterable[EventLine], audio_files: Mapping[str, PcmAudio]) -> bytes:
    """
    A WAV file of both sides.

    What was sent faster than it sounds is put where a player would have played it, and ends where the answer was cut short.

    Args:
        sounds: the files that the lines speak of, by name.
    """
    plain = {name: resample_linear(sound) for name, sound in audio_files.items()}
    rates = {name: sound.rate_hz for name, sound in audio_files.items()}
    lanes = {IN: bytearray(), OUT: bytearray()}
    for line in lines:
        if line.direction == OUT and _is_playback_cut(line.event):
            del lanes[OUT][_bytes_at(line.at_s) :]
        for media in find_media(line.event):
            if media.file in plain:
                begins, ends = (_scale_offset(offset, rates[media.file]) for offset in (media.offset, media.offset + media.bytes))
                _append_chunk(lanes[line.direction], plain[media.file][begins:ends], line)
    return _interleave(lanes[IN], lanes[OUT])


def _append_chunk(channel: bytearray, chunk: bytes, line: EventLine) -> None:
    """Put a piece where it belongs."""
    ends = _bytes_at(line.at_s)
    begins = max(0, ends - len(chunk)) if line.direction == IN else ends
    slack = _bytes_at(_MAX_JITTER_S) if line.direction == IN else 0
    if begins > len(channel) + slack:
        channel.extend(bytes(begins - len(channel)))
    channel.extend(chunk)


def _bytes_at(at_s: float) -> int:
    return int(at_s * RATE_HZ) * SAMPLE_BYTES


def _scale_offset(offset: int, rate_hz: int) -> int:
    return offset // SAMPLE_BYTES * RATE_HZ // rate_hz * SAMPLE_BYTES


def _is_playback_cut(event: Any) -> bool:
    """Whether an event says that what was not played yet is not to be played."""
    if event.get("type") == "response.done":
        return bool(event.get("response", {}).get("status") == "cancelled")
    return event.get("type") == "output_audio_buffer.cleared" or bool(event.get("interrupted"))


def resample_linear(audio: PcmAudio) -> bytes:
    """The sound at 24 kHz, with straight lines between the samples: to be listened to, and nothing more."""
    if audio.rate_hz == RATE_HZ:
        return audio.pcm
    count = len(audio.pcm) // SAMPLE_BYTES
    samples = unpack(f"<{count}h", audio.pcm[: count * SAMPLE_BYTES])
    following = (*samples[1:], *samples[-1:])
    places = (divmod(place * audio.rate_hz, RATE_HZ) for place in range(count * RATE_HZ // audio.rate_hz))
    values = [samples[at] + (following[at] - samples[at]) * rest // RATE_HZ for at, rest in places]
    return pack(f"<{len(values)}h", *values)


def _interleave(left: bytearray, right: bytearray) -> bytes:
    length = max(len(left), len(right))
    sides = [bytes(side).ljust(length, b"\0") for side in (left, right)]
    both = bytearray(2 * length)
    for at, side in enumerate(sides):
        both[2 * at :: 4] = side[::2]
        both[2 * at + 1 :: 4] = side[1::2]
    return wav_header(RATE_HZ, len(both), channels=2) + both
