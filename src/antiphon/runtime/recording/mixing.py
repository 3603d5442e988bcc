"""Mixes both sides of a recording into a stereo file: the person on the left, the responses on the right."""

from collections.abc import Iterable, Mapping, Sequence
from struct import pack, unpack
from typing import NamedTuple

from antiphon.audio import SAMPLE_BYTES, WAV_HEADER_BYTES, wav_header
from antiphon.runtime.recording.events import IN, OUT
from antiphon.runtime.recording.files import EventLine, wav_rate_hz
from antiphon.runtime.recording.timeline import RATE_HZ, AudioSegment, Timeline


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
    rates_hz = {name: sound.rate_hz for name, sound in audio_files.items()}
    timeline = Timeline(lines, rates_hz)
    return _interleave(*(_lay_out(timeline.segments(side), pcm, rates_hz) for side in (IN, OUT)))


def _lay_out(segments: Sequence[AudioSegment], pcm: Mapping[str, bytes], rates_hz: Mapping[str, int]) -> bytearray:
    channel = bytearray()
    for segment in segments:
        if segment.played:
            begin = _scale_offset(segment.media.offset, rates_hz[segment.media.file])
            # Silence up to where it was played.
            channel.extend(bytes(max(0, segment.start * SAMPLE_BYTES - len(channel))))
            channel.extend(pcm[segment.media.file][begin : begin + segment.played * SAMPLE_BYTES])
    return channel


def _scale_offset(offset: int, rate_hz: int) -> int:
    return offset // SAMPLE_BYTES * RATE_HZ // rate_hz * SAMPLE_BYTES


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


def wav_duration_s(mix: bytes) -> float:
    """How long a mix is."""
    return (len(mix) - WAV_HEADER_BYTES) / (2 * SAMPLE_BYTES * RATE_HZ)


def _interleave(left: bytearray, right: bytearray) -> bytes:
    length = max(len(left), len(right))
    sides = [bytes(side).ljust(length, b"\0") for side in (left, right)]
    both = bytearray(2 * length)
    for index, side in enumerate(sides):
        both[2 * index :: 4] = side[::2]
        both[2 * index + 1 :: 4] = side[1::2]
    return wav_header(RATE_HZ, len(both), channels=2) + both
