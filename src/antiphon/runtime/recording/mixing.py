"""Mixes both sides of a recording into a stereo file: the person on the left, the responses on the right."""

from collections.abc import Iterable, Mapping
from struct import pack, unpack
from typing import NamedTuple

from antiphon.audio import SAMPLE_BYTES, WAV_HEADER_BYTES, wav_header
from antiphon.runtime.recording.events import IN, OUT, EventFields, find_media
from antiphon.runtime.recording.files import EventLine, wav_rate_hz

RATE_HZ = 24_000

MAX_JITTER_S = 0.3
"""How far from its pace audio may arrive and still count as continuous."""


class PcmAudio(NamedTuple):
    """The content of an audio file: s16le mono."""

    pcm: bytes
    rate_hz: int


def read_wav(file: bytes) -> PcmAudio:
    """The audio of a WAV file of a recording."""
    return PcmAudio(file[WAV_HEADER_BYTES:], wav_rate_hz(file))


def mix_to_wav(lines: Iterable[EventLine], audio_files: Mapping[str, PcmAudio]) -> bytes:
    """
    A stereo WAV file of both sides.

    Audio that was sent faster than it plays is put where a player would have played it, and ends where the response was
    interrupted.

    Args:
        audio_files: the files that the lines refer to, by name.
    """
    pcm = {name: resample_linear(sound) for name, sound in audio_files.items()}
    rates = {name: sound.rate_hz for name, sound in audio_files.items()}
    channels = {IN: bytearray(), OUT: bytearray()}
    for line in lines:
        if line.direction == OUT and _is_playback_cut(line.fields):
            del channels[OUT][_bytes_at(line.at_s) :]
        for media in find_media(line.event):
            if media.file in pcm:
                begin, end = (_scale_offset(offset, rates[media.file]) for offset in (media.offset, media.offset + media.bytes))
                _append_chunk(channels[line.direction], pcm[media.file][begin:end], line)
    return _interleave(channels[IN], channels[OUT])


def _append_chunk(channel: bytearray, chunk: bytes, line: EventLine) -> None:
    # A microphone sends audio when it is over, a server before it plays.
    end = _bytes_at(line.at_s)
    begin = max(0, end - len(chunk)) if line.direction == IN else end
    slack = _bytes_at(MAX_JITTER_S) if line.direction == IN else 0
    if begin > len(channel) + slack:
        channel.extend(bytes(begin - len(channel)))
    channel.extend(chunk)


def _bytes_at(at_s: float) -> int:
    return int(at_s * RATE_HZ) * SAMPLE_BYTES


def _scale_offset(offset: int, rate_hz: int) -> int:
    return offset // SAMPLE_BYTES * RATE_HZ // rate_hz * SAMPLE_BYTES


def _is_playback_cut(event: EventFields) -> bool:
    """Whether an event discards the audio that was not played yet."""
    if event.get("type") == "response.done":
        return bool(event.get("response", {}).get("status") == "cancelled")
    return event.get("type") == "output_audio_buffer.cleared" or bool(event.get("interrupted"))


def resample_linear(audio: PcmAudio) -> bytes:
    """The audio at 24 kHz, linearly interpolated: good enough to listen to."""
    if audio.rate_hz == RATE_HZ:
        return audio.pcm
    count = len(audio.pcm) // SAMPLE_BYTES
    samples = unpack(f"<{count}h", audio.pcm[: count * SAMPLE_BYTES])
    following = (*samples[1:], *samples[-1:])
    positions = (divmod(index * audio.rate_hz, RATE_HZ) for index in range(count * RATE_HZ // audio.rate_hz))
    values = [samples[index] + (following[index] - samples[index]) * rest // RATE_HZ for index, rest in positions]
    return pack(f"<{len(values)}h", *values)


def _interleave(left: bytearray, right: bytearray) -> bytes:
    length = max(len(left), len(right))
    sides = [bytes(side).ljust(length, b"\0") for side in (left, right)]
    both = bytearray(2 * length)
    for index, side in enumerate(sides):
        both[2 * index :: 4] = side[::2]
        both[2 * index + 1 :: 4] = side[1::2]
    return wav_header(RATE_HZ, len(both), channels=2) + both
