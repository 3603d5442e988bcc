"""
One answer of a conversation in full duplex: what has been said of it, what is held back, and how much was heard.

Speech is made faster than it is heard, and what was sent can't be taken back from a client that plays it. So sound leaves at the pace of
the conversation's own clock, which is the sound that comes in: at no time more of it is on its way than the lead. Words stand before the
sound that they are heard in and leave with it. The answer is over when all of it was heard, and a little later for what networks and
players take, so that whoever speaks before that cuts it short, and whatever says that it is over finds nothing left to be played.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from antiphon.audio import duration_ms, size_bytes
from antiphon.engine_api import events as engine_events, history

MAX_PENDING_AUDIO_MS = 300_000
"""The most sound that is held back; of an answer that is longer, the rest is left out."""

PLAYBACK_DELAY_MS = 300
"""How much later than it could have been heard an answer is over: so long at most networks and players take, and many a client drops then
what it has not played."""

TerminalEvent = engine_events.ResponseEnded | engine_events.ResponseFailed

_TEXT_EVENTS = (engine_events.AudioTranscriptDelta, engine_events.TextDelta, engine_events.RefusalDelta)
_METADATA_EVENTS = (engine_events.Usage, engine_events.EngineMetrics)


class PacedAnswer:
    """
    An answer under way.

    Attributes:
        id: of all its words.
        has_begun: whether any of it was said.
        is_over: whether its last word was.
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
        self._silence_ms = 0.0  # since all that was sent could have been heard
        self._timed_text: list[tuple[float, str]] = []  # each with where in the sound it begins

    @property
    def unplayed_ms(self) -> float:
        """How much of what was sent is yet to be heard."""
        return duration_ms(self._sent_bytes, self._rate_hz) - self._played_ms

    @property
    def has_pending_events(self) -> bool:
        """Whether something waits for time to pass."""
        return bool(self._pending_events)

    def append(self, events: Sequence[engine_events.EngineEvent]) -> bool:
        """More of it, as it was made; whether more is still wanted."""
        for word in events:
            if self._is_complete:
                break
            if isinstance(
                word,
                (*_TEXT_EVENTS, *_METADATA_EVENTS, engine_events.AudioDelta, engine_events.ResponseEnded, engine_events.ResponseFailed),
            ):
                self._enqueue(word)
        return not self._is_complete

    def _enqueue(self, event: engine_events.EngineEvent) -> None:
        if isinstance(event, engine_events.AudioDelta):
            self._pending_bytes += len(event.pcm)
            if duration_ms(self._pending_bytes, self._rate_hz) > MAX_PENDING_AUDIO_MS:
                event = engine_events.ResponseEnded(self.id, "length")
        self._is_complete = isinstance(event, TerminalEvent)
        self._pending_events.append(event)

    def advance(self, ms: float) -> None:
        """So much time has passed for whoever listens."""
        heard_ms = min(ms, self.unplayed_ms)
        self._played_ms += heard_ms
        self._silence_ms += ms - heard_ms

    def pop_due(self, lead_ms: float) -> Iterator[engine_events.EngineEvent]:
        """What may be said now; once given, it counts as said. An answer that says nothing has no end either."""
        while self._pending_events and (word := self._pop_next(lead_ms)) is not None:
            self.is_over = isinstance(word, TerminalEvent)
            if self.has_begun or not isinstance(word, engine_events.ResponseEnded):
                self.has_begun = True
                yield word

    def _pop_next(self, lead_ms: float) -> engine_events.EngineEvent | None:
        word = self._pending_events[0]
        if isinstance(word, engine_events.AudioDelta):
            return self._pop_audio(word, size_bytes(max(0.0, lead_ms - self.unplayed_ms), self._rate_hz))
        if isinstance(word, TerminalEvent):
            is_early = self._sent_bytes > 0 and self._silence_ms < PLAYBACK_DELAY_MS
        else:
            is_early = self.unplayed_ms >= lead_ms
        if is_early:
            return None
        if isinstance(word, _TEXT_EVENTS):
            self._timed_text.append((duration_ms(self._sent_bytes, self._rate_hz), word.text))
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
        """What it has cost, where that is known and was not said."""
        return next((word for word in reversed(self._pending_events) if isinstance(word, engine_events.Usage)), None)

    @property
    def _is_fully_played(self) -> bool:
        """Whether there is nothing more of it to hear."""
        return self.is_over or (
            self._is_complete
            and self.unplayed_ms <= 0
            and not any(isinstance(word, engine_events.AudioDelta) for word in self._pending_events)
        )

    def message(self) -> history.Message | None:
        """What the model is to remember of it: the words that had begun to be heard; None where there were none."""
        is_cut = self._sent_bytes > 0 and not self._is_fully_played
        heard = [text for at_ms, text in self._timed_text if not is_cut or at_ms < self._played_ms]
        if not "".join(heard).strip():
            return None
        return history.Message("assistant", (history.TextPart("".join(heard)),), played_ms=round(self._played_ms) if is_cut else None)
