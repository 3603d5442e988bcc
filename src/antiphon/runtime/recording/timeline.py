"""
Where the audio of a recording lies on the recording's clock: as a player would have played it.

Audio that was sent faster than it plays follows the audio before it, and what a client dropped, because the person
interrupted, was not played.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from antiphon.audio import SAMPLE_BYTES
from antiphon.runtime.recording.events import (
    IN,
    INITIAL_ENCODINGS,
    OUT,
    EventDirection,
    EventFields,
    MediaReference,
    audio_encodings,
    find_media,
)
from antiphon.runtime.recording.files import EventLine

RATE_HZ = 24_000
"""Positions are counted in samples at this rate."""

MAX_JITTER_S = 0.3
"""How far from its pace audio may arrive and still count as continuous."""


class AudioSegment(Struct):
    """
    The audio of one event.

    Attributes:
        start: when it begins, in samples after the start of the recording.
        length: of all its audio, in samples.
        played: how many of these samples were played.
    """

    media: MediaReference
    start: int
    length: int
    played: int

    @property
    def end(self) -> int:
        """Where the part that was played ends, in samples after the start of the recording."""
        return self.start + self.played


class _PlaybackCut(NamedTuple):
    """A client stops playing: everything, or one item after `heard_ms` of it."""

    item_id: str | None = None
    heard_ms: int = 0


def track_rates_hz(lines: Iterable[EventLine]) -> Mapping[str, int]:
    """The sample rates of a recording's audio files, as the recorder chose them."""
    rates_hz: dict[str, int] = {}
    encodings = dict(INITIAL_ENCODINGS["realtime"])
    for line in lines:
        if line.fields.get("type") == "session.created" and "session" not in line.fields:  # only in MiniCPM-o's protocol
            encodings = dict(INITIAL_ENCODINGS["minicpmo"])
        encodings.update(audio_encodings(line.fields))
        for media in find_media(line.event):
            if not media.is_image and "/" not in media.file:
                rates_hz.setdefault(media.file, encodings[IN if line.direction == IN else OUT].rate_hz)
    return rates_hz


class _Track:
    """Audio that is one after the other: of the client, or of one response."""

    def __init__(self) -> None:
        self.segments: list[AudioSegment] = []
        self._offsets: list[int] = []  # of the segments, in all of this audio
        self._length = 0

    def append(self, segment: AudioSegment) -> None:
        self.segments.append(segment)
        self._offsets.append(self._length)
        self._length += segment.length

    def at_s(self, position_ms: float, *, is_end: bool = False) -> float | None:
        """
        When the audio at that position was played, or would have been; None without audio.

        Args:
            is_end: where the position is between two pieces, whether it is the end of the first or the start of the
                second.
        """
        if not self.segments:
            return None
        position = min(max(0.0, position_ms * RATE_HZ / 1000), float(self._length))
        index = max(0, (bisect_left if is_end else bisect_right)(self._offsets, position) - 1)
        return (self.segments[index].start + position - self._offsets[index]) / RATE_HZ


class Timeline:
    """
    The audio of both sides on one clock.

    Args:
        lines: of the whole recording.
        rates_hz: sample rates by audio file; audio of other files is left out.
    """

    def __init__(self, lines: Iterable[EventLine], rates_hz: Mapping[str, int]) -> None:
        self._tracks = {IN: _Track(), OUT: _Track()}
        self._answers: dict[str | None, _Track] = {}
        self._items: dict[str | None, _Track] = {}
        self._ends: dict[EventDirection, int] = {IN: 0, OUT: 0}
        self._rates_hz = rates_hz
        for line in lines:
            if line.direction == OUT and (cut := _playback_cut(line.fields)) is not None:
                self._cut(cut, int(line.at_s * RATE_HZ))
            if line.direction in (IN, OUT):
                self._place(line, IN if line.direction == IN else OUT)

    @property
    def end_s(self) -> float:
        """When the last audio ends."""
        return max(self._ends.values()) / RATE_HZ

    def segments(self, direction: EventDirection) -> Sequence[AudioSegment]:
        """The audio of one side, in the order in which it was sent."""
        return self._tracks[direction].segments

    def input_at_s(self, position_ms: float, *, is_end: bool = False) -> float | None:
        """When what is at that position in all of the client's audio was said; None without audio."""
        return self._tracks[IN].at_s(position_ms, is_end=is_end)

    def answer_at_s(self, response_id: str, position_ms: float, *, is_end: bool = False) -> float | None:
        """When what is at that position in a response was played, or would have been; None without audio."""
        track = self._answers.get(response_id)
        return track.at_s(position_ms, is_end=is_end) if track is not None else None

    def heard_ms(self, response_id: str) -> float | None:
        """How much of a response was played; None without audio."""
        track = self._answers.get(response_id)
        return sum(segment.played for segment in track.segments) * 1000 / RATE_HZ if track is not None else None

    def _place(self, line: EventLine, direction: EventDirection) -> None:
        for media in find_media(line.event):
            rate_hz = self._rates_hz.get(media.file)
            if rate_hz is None:
                continue
            length = _samples(media.offset + media.bytes, rate_hz) - _samples(media.offset, rate_hz)
            # A microphone sends audio when it is over, a server before it plays.
            start = int(line.at_s * RATE_HZ) if direction == OUT else max(0, int(line.at_s * RATE_HZ) - length)
            slack = int(MAX_JITTER_S * RATE_HZ) if direction == IN else 0
            if start <= self._ends[direction] + slack:
                start = self._ends[direction]
            self._ends[direction] = start + length
            segment = AudioSegment(media, start, length, length)
            self._tracks[direction].append(segment)
            if direction == OUT:
                self._answers.setdefault(line.fields.get("response_id"), _Track()).append(segment)
                self._items.setdefault(line.fields.get("item_id"), _Track()).append(segment)

    def _cut(self, cut: _PlaybackCut, at: int) -> None:
        segments = self._tracks[OUT].segments
        if cut.item_id is None:
            for segment in reversed(segments):
                if segment.start + segment.length <= at:
                    break
                segment.played = max(0, min(segment.played, at - segment.start))
        elif (item := self._items.get(cut.item_id)) is not None:
            rest = cut.heard_ms * RATE_HZ // 1000
            for segment in item.segments:
                segment.played = max(0, min(segment.played, rest))
                rest -= segment.length
        # What comes next is played behind what was heard, and not behind what was dropped.
        self._ends[OUT] = next((segment.end for segment in reversed(segments) if segment.played), 0)


def _samples(offset_bytes: int, rate_hz: int) -> int:
    return offset_bytes // SAMPLE_BYTES * RATE_HZ // rate_hz


def _playback_cut(event: EventFields) -> _PlaybackCut | None:
    """What of the audio an event discards that was not played yet; None for nothing."""
    kind = event.get("type")
    if kind == "conversation.item.truncated":
        # Realtime: over a WebSocket the client plays the audio, and says how much of an item was heard.
        return _PlaybackCut(event["item_id"], event.get("audio_end_ms", 0))
    if kind == "response.done":
        return _PlaybackCut() if event.get("response", {}).get("status") == "cancelled" else None
    return _PlaybackCut() if kind == "output_audio_buffer.cleared" or event.get("interrupted") else None
