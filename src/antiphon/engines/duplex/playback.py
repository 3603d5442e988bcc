"""
One answer of a conversation in full duplex: what has been said of it, what is held back, and how much was heard.

Speech is made faster than it is heard, and what was sent can't be taken back from a client that plays it. So sound leaves at the pace of
the conversation's own clock, which is the sound that comes in: at no time more of it is on its way than the lead. Words stand before the
sound that they are heard in and leave with it. The answer is over when all of it was heard, and a little later for what networks and
players take, so that whoever speaks before that cuts it short, and whatever says that it is over finds nothing left to be played.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from antiphon.audio import bytes_of, ms_of
from antiphon.engine_api import events as talk_events, history as turns

MOST_HELD_MS = 300_000
"""The most sound that is held back; of an answer that is longer, the rest is left out."""

PLAYED_MS = 300
"""How much later than it could have been heard an answer is over: so long at most networks and players take, and many a client drops then
what it has not played."""

Ends = talk_events.Ended | talk_events.Broke

_WORDS = (talk_events.Spoken, talk_events.Text, talk_events.Refusal)
_BESIDE = (talk_events.Used, talk_events.Measured)


class Answer:
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
        self._held: deque[talk_events.FromEngine] = deque()
        self._held_bytes = 0
        self._has_all = False
        self._sent_bytes = 0
        self._heard_ms = 0.0
        self._quiet_ms = 0.0  # since all that was sent could have been heard
        self._words: list[tuple[float, str]] = []  # each with where in the sound it begins

    @property
    def ahead_ms(self) -> float:
        """How much of what was sent is yet to be heard."""
        return ms_of(self._sent_bytes, self._rate_hz) - self._heard_ms

    @property
    def is_held(self) -> bool:
        """Whether something waits for time to pass."""
        return bool(self._held)

    def take(self, words: Sequence[talk_events.FromEngine]) -> bool:
        """More of it, as it was made; whether more is still wanted."""
        for word in words:
            if self._has_all:
                break
            if isinstance(word, (*_WORDS, *_BESIDE, talk_events.Sound, talk_events.Ended, talk_events.Broke)):
                self._hold(word)
        return not self._has_all

    def _hold(self, word: talk_events.FromEngine) -> None:
        if isinstance(word, talk_events.Sound):
            self._held_bytes += len(word.pcm)
            if ms_of(self._held_bytes, self._rate_hz) > MOST_HELD_MS:
                word = talk_events.Ended(self.id, "length")
        self._has_all = isinstance(word, Ends)
        self._held.append(word)

    def hear(self, ms: float) -> None:
        """So much time has passed for whoever listens."""
        heard_ms = min(ms, self.ahead_ms)
        self._heard_ms += heard_ms
        self._quiet_ms += ms - heard_ms

    def due(self, lead_ms: float) -> Iterator[talk_events.FromEngine]:
        """What may be said now; once given, it counts as said. An answer that says nothing has no end either."""
        while self._held and (word := self._next(lead_ms)) is not None:
            self.is_over = isinstance(word, Ends)
            if self.has_begun or not isinstance(word, talk_events.Ended):
                self.has_begun = True
                yield word

    def _next(self, lead_ms: float) -> talk_events.FromEngine | None:
        word = self._held[0]
        if isinstance(word, talk_events.Sound):
            return self._sound(word, bytes_of(max(0.0, lead_ms - self.ahead_ms), self._rate_hz))
        if isinstance(word, Ends):
            is_early = self._sent_bytes > 0 and self._quiet_ms < PLAYED_MS
        else:
            is_early = self.ahead_ms >= lead_ms
        if is_early:
            return None
        if isinstance(word, _WORDS):
            self._words.append((ms_of(self._sent_bytes, self._rate_hz), word.text))
        return self._held.popleft()

    def _sound(self, word: talk_events.Sound, room_bytes: int) -> talk_events.Sound | None:
        if room_bytes < min(len(word.pcm), 2):
            return None
        self._held.popleft()
        if len(word.pcm) > room_bytes:
            self._held.appendleft(talk_events.Sound(word.id, word.pcm[room_bytes:]))
            word = talk_events.Sound(word.id, word.pcm[:room_bytes])
        self._sent_bytes += len(word.pcm)
        self._quiet_ms = 0.0
        self._held_bytes -= len(word.pcm)
        return word

    @property
    def used(self) -> talk_events.Used | None:
        """What it has cost, where that is known and was not said."""
        return next((word for word in reversed(self._held) if isinstance(word, talk_events.Used)), None)

    @property
    def _was_heard(self) -> bool:
        """Whether there is nothing more of it to hear."""
        return self.is_over or (
            self._has_all and self.ahead_ms <= 0 and not any(isinstance(word, talk_events.Sound) for word in self._held)
        )

    def message(self) -> turns.Message | None:
        """What the model is to remember of it: the words that had begun to be heard; None where there were none."""
        is_cut = self._sent_bytes > 0 and not self._was_heard
        heard = [text for at_ms, text in self._words if not is_cut or at_ms < self._heard_ms]
        if not "".join(heard).strip():
            return None
        return turns.Message("assistant", (turns.TextPart("".join(heard)),), heard_ms=round(self._heard_ms) if is_cut else None)
