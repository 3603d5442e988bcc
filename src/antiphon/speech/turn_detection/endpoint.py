"""
When someone's turn begins and when it is over: told from how likely they speak in every frame.

The machine is the table below. It has no clock but the frames: all times are milliseconds of the conversation's sound. `server_vad` takes
so much silence for the end of a turn. `semantic_vad` waits less or more, by how complete the turn sounds: that is asked of a model once a
pause has lasted a little, and only changes how long it may last, as the model errs both ways.
"""

from collections.abc import Iterator
from enum import Enum, auto

from msgspec import Struct

from antiphon.engine_api.options import TurnDetection

FRAME_MS = 32
MIN_SPEECH_MS = 64
"""Less is no speech: a click, a key, a cough cut short. It delays the start of every turn by a frame."""
ASK_AFTER_MS = 200
"""Silence after which it is asked how complete the turn sounds."""
UNKNOWN_WAIT_MS = 800
"""Silence that ends a turn of which nobody can say how complete it sounds."""
_HYSTERESIS = 0.15
_LEAST_THRESHOLD = 0.01
_COMPLETE, _INCOMPLETE = 0.9, 0.1

WAITS_MS = {"low": (600, 8_000), "medium": (400, 4_000), "auto": (400, 4_000), "high": (250, 2_000)}
"""By eagerness: how long a pause lasts before a turn is over that is surely complete, and one that surely isn't."""


class _Edge(Struct, frozen=True):
    """
    Something that happened.

    Attributes:
        at_ms: where in the conversation's sound.
    """

    at_ms: int


class Started(_Edge, frozen=True):
    """A turn begins there, with the padding before the speech."""


class Pausing(_Edge, frozen=True):
    """Nobody speaks from there on; the turn may be over."""


class Asking(_Edge, frozen=True):
    """How complete does the turn sound that pauses since then? `Endpoint.judge` takes the answer."""


class Resumed(_Edge, frozen=True):
    """The one who paused speaks again; the turn was not over."""


class Stopped(_Edge, frozen=True):
    """The turn is over; it ends there, silence and all."""


Happening = Started | Pausing | Asking | Resumed | Stopped


class State(Enum):
    """Where a turn is."""

    SILENT = auto()
    RISING = auto()
    SPEAKING = auto()
    PAUSED = auto()


class Level(Enum):
    """What a frame sounds like; `BETWEEN` keeps things as they are."""

    SPEECH = auto()
    BETWEEN = auto()
    SILENCE = auto()


class Due(Enum):
    """What has lasted long enough: speech to be a turn, silence to end one."""

    SPEECH = auto()
    SILENCE = auto()


S, R, T, P = State.SILENT, State.RISING, State.SPEAKING, State.PAUSED
TABLE: dict[tuple[State, Level | Due], State] = {
    (S, Level.SPEECH): R, (S, Level.BETWEEN): S, (S, Level.SILENCE): S,
    (R, Level.SPEECH): R, (R, Level.BETWEEN): R, (R, Level.SILENCE): S, (R, Due.SPEECH): T,
    (T, Level.SPEECH): T, (T, Level.BETWEEN): T, (T, Level.SILENCE): P,
    (P, Level.SPEECH): T, (P, Level.BETWEEN): P, (P, Level.SILENCE): P, (P, Due.SILENCE): S,
}  # fmt: skip


class Endpoint:
    """
    The turns of one conversation.

    Frames come in order; some may be left out. What is heard before a turn's start or after its end is no part of any turn.
    """

    def __init__(self, asked: TurnDetection) -> None:
        self.state = State.SILENT
        self._now_ms = 0
        self._floor_ms = 0  # where the last turn, or what was forgotten, ended
        self._since_ms = 0  # of `RISING` its speech, of `PAUSED` its silence
        self._asked_at_ms: int | None = None
        self._wait_ms = 0
        self.configure(asked)

    def configure(self, asked: TurnDetection) -> None:
        """Go by other settings from here on; a turn that is open stays open."""
        self._settings = asked
        self._enter_at = asked.threshold
        self._leave_at = min(asked.threshold, max(asked.threshold - _HYSTERESIS, _LEAST_THRESHOLD))
        self._short_ms, self._long_ms = WAITS_MS.get(asked.eagerness, WAITS_MS["auto"])
        self._wait_ms = self._unjudged_ms

    @property
    def speaking(self) -> bool:
        """Whether a turn is open."""
        return self.state in (State.SPEAKING, State.PAUSED)

    def hear(self, start_ms: int, probability: float) -> tuple[Happening, ...]:
        """
        What a frame makes happen.

        Args:
            start_ms: where it starts; no earlier than the end of the one before.
            probability: how likely someone speaks in it.
        """
        self._now_ms = start_ms + FRAME_MS
        return (*self._move(start_ms, self._level(probability)), *self._elapse())

    def judge(self, paused_at_ms: int, likelihood: float | None) -> tuple[Happening, ...]:
        """
        What follows from how complete the turn sounds.

        Args:
            paused_at_ms: of the `Asking` that this answers; an answer that comes too late changes nothing.
            likelihood: that the turn is complete, or None if that can't be said.
        """
        if self.state is not State.PAUSED or paused_at_ms != self._asked_at_ms:
            return ()
        self._wait_ms = UNKNOWN_WAIT_MS if likelihood is None else self._judged_ms(likelihood)
        return tuple(self._elapse())

    def forget(self, at_ms: int) -> None:
        """No turn has started, and none starts before there: it was committed by hand up to there, or dropped."""
        self.state = State.SILENT
        self._floor_ms = max(self._floor_ms, at_ms)

    def _level(self, probability: float) -> Level:
        if probability >= self._enter_at:
            return Level.SPEECH
        return Level.BETWEEN if probability >= self._leave_at else Level.SILENCE

    def _move(self, at_ms: int, by: Level | Due) -> Iterator[Happening]:
        before, self.state = self.state, TABLE[self.state, by]
        match before, self.state:
            case State.SILENT, State.RISING:
                self._since_ms = at_ms
            case State.RISING, State.SPEAKING:
                yield Started(max(self._since_ms - self._settings.prefix_padding_ms, self._floor_ms))
            case State.SPEAKING, State.PAUSED:
                self._since_ms, self._asked_at_ms, self._wait_ms = at_ms, None, self._unjudged_ms
                yield Pausing(at_ms)
            case State.PAUSED, State.SPEAKING:
                yield Resumed(at_ms)
            case State.PAUSED, State.SILENT:
                self._floor_ms = at_ms
                yield Stopped(at_ms)
            case _:
                pass

    def _elapse(self) -> Iterator[Happening]:
        """What is due after what has lasted until now."""
        lasted_ms = self._now_ms - self._since_ms
        if self.state is State.RISING and lasted_ms >= MIN_SPEECH_MS:
            yield from self._move(self._now_ms, Due.SPEECH)
        elif self.state is State.PAUSED:
            if self._semantic and self._asked_at_ms is None and lasted_ms >= ASK_AFTER_MS:
                self._asked_at_ms = self._since_ms
                yield Asking(self._since_ms)
            if lasted_ms >= self._wait_ms:
                # To the millisecond, not to the frame; and what goes on after it had to end, as an answer came late, is silence anyway.
                yield from self._move(self._since_ms + self._wait_ms, Due.SILENCE)

    @property
    def _semantic(self) -> bool:
        return self._settings.kind == "semantic_vad"

    @property
    def _unjudged_ms(self) -> int:
        return self._long_ms if self._semantic else self._settings.silence_duration_ms

    def _judged_ms(self, likelihood: float) -> int:
        """Doubt costs time in proportion."""
        doubt = min(max((_COMPLETE - likelihood) / (_COMPLETE - _INCOMPLETE), 0.0), 1.0)
        return round(self._short_ms + doubt * (self._long_ms - self._short_ms))
