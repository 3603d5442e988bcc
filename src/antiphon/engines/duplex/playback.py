"""
One answer in full duplex: what was sent, what is held back, and how much was played.

Speech is made faster than it is played, and a client can't be asked to return audio. So audio leaves at the pace of the
conversation's clock, the input audio: never more than the lead is sent ahead. Text stands before the audio it belongs
to and leaves with it. The answer is over when all of it was played, and a little later for the delays of networks and
players: speech before that cuts it short, and when its end is sent there is nothing left to play.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from antiphon.audio import duration_ms, size_bytes
from antiphon.engine_api import events as engine_events, history

MAX_PENDING_AUDIO_MS = 300_000
"""The most audio that is held back; the rest of a longer answer is cut."""

PLAYBACK_DELAY_MS = 300
"""How long after its last audio could have been played an answer is over: the delay of networks and players. Many
clients drop audio that they have not played by then."""

_TextEvent = engine_events.AudioTranscriptDelta | engine_events.TextDelta | engine_events.RefusalDelta
_PlayableEvent = _TextEvent | engine_events.AudioDelta | engine_events.Usage | engine_events.EngineMetrics | engine_events.TerminalEvent
"""What full duplex has a place for: no reasoning, and no tool calls."""


class PacedAnswer:
    """
    An answer under way.

    Attributes:
        id: of all its events.
        has_begun: whether any of it was sent.
        is_over: whether its last event was sent.
    """

    def __init__(self, id: str, rate_hz: int) -> None:
        self.id = id
        self.has_begun = False
        self.is_over = False
        self._rate_hz = rate_hz
        self._pending_events: deque[engine_events.EngineEvent] = deque()
        self._pending_bytes = 0
        self._is_complete = False
        self._sent_bytes = 0
        self._played_ms = 0.0
        self._silence_ms = 0.0  # since all that was sent could have been played
        self._timed_text: list[tuple[float, str]] = []  # each with where in the audio it begins, in milliseconds

    @property
    def unplayed_ms(self) -> float:
        """How much of the audio that was sent is still to be played."""
        return duration_ms(self._sent_bytes, self._rate_hz) - self._played_ms

    @property
    def has_pending_events(self) -> bool:
        """Whether events wait for their time."""
        return bool(self._pending_events)

    def append(self, events: Sequence[engine_events.EngineEvent]) -> bool:
        """Append events as they are made; False once the answer takes no more."""
        for event in events:
            if self._is_complete:
                break
            if isinstance(event, _PlayableEvent):
                self._enqueue(event)
        return not self._is_complete

    def _enqueue(self, event: engine_events.EngineEvent) -> None:
        if isinstance(event, engine_events.AudioDelta):
            self._pending_bytes += len(event.pcm)
            if duration_ms(self._pending_bytes, self._rate_hz) > MAX_PENDING_AUDIO_MS:
                event = engine_events.ResponseEnded(self.id, "length")
        self._is_complete = isinstance(event, engine_events.TerminalEvent)
        self._pending_events.append(event)

    def advance(self, ms: float) -> None:
        """Let time pass for the player."""
        newly_played_ms = min(ms, self.unplayed_ms)
        self._played_ms += newly_played_ms
        self._silence_ms += ms - newly_played_ms

    def pop_due(self, lead_ms: float) -> Iterator[engine_events.EngineEvent]:
        """The events that are due; they count as sent. An answer with no other events has no end either."""
        while self._pending_events and (event := self._pop_next(lead_ms)) is not None:
            self.is_over = isinstance(event, engine_events.TerminalEvent)
            if self.has_begun or not isinstance(event, engine_events.ResponseEnded):
                self.has_begun = True
                yield event

    def _pop_next(self, lead_ms: float) -> engine_events.EngineEvent | None:
        event = self._pending_events[0]
        if isinstance(event, engine_events.AudioDelta):
            return self._pop_audio(event, size_bytes(max(0.0, lead_ms - self.unplayed_ms), self._rate_hz))
        if isinstance(event, engine_events.TerminalEvent):
            is_early = self._sent_bytes > 0 and self._silence_ms < PLAYBACK_DELAY_MS
        else:
            is_early = self.unplayed_ms >= lead_ms
        if is_early:
            return None
        if isinstance(event, _TextEvent):
            self._timed_text.append((duration_ms(self._sent_bytes, self._rate_hz), event.text))
        return self._pending_events.popleft()

    def _pop_audio(self, event: engine_events.AudioDelta, room_bytes: int) -> engine_events.AudioDelta | None:
        if room_bytes < min(len(event.pcm), 2):
            return None
        self._pending_events.popleft()
        if len(event.pcm) > room_bytes:
            self._pending_events.appendleft(engine_events.AudioDelta(event.id, event.pcm[room_bytes:]))
            event = engine_events.AudioDelta(event.id, event.pcm[:room_bytes])
        self._sent_bytes += len(event.pcm)
        self._silence_ms = 0.0
        self._pending_bytes -= len(event.pcm)
        return event

    @property
    def pending_usage(self) -> engine_events.Usage | None:
        """Its usage, if that is known and was not sent."""
        return next((event for event in reversed(self._pending_events) if isinstance(event, engine_events.Usage)), None)

    @property
    def _is_fully_played(self) -> bool:
        """Whether no audio is left to play."""
        return self.is_over or (
            self._is_complete
            and self.unplayed_ms <= 0
            and not any(isinstance(event, engine_events.AudioDelta) for event in self._pending_events)
        )

    def message(self) -> history.Message | None:
        """The answer as the model is to remember it: the text whose audio began to play; None if there is none."""
        is_cut = self._sent_bytes > 0 and not self._is_fully_played
        texts = [text for at_ms, text in self._timed_text if not is_cut or at_ms < self._played_ms]
        if not "".join(texts).strip():
            return None
        return history.Message("assistant", (history.TextPart("".join(texts)),), played_ms=round(self._played_ms) if is_cut else None)
