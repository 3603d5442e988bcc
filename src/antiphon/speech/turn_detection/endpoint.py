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
CHECK_AFTER_MS = 200
"""Silence after which it is asked how complete the turn sounds."""
UNKNOWN_WAIT_MS = 800
"""Silence that ends a turn of which nobody can say how complete it sounds."""
_HYSTERESIS = 0.15
_MIN_THRESHOLD = 0.01
_COMPLETE, _INCOMPLETE = 0.9, 0.1

WAITS_MS = {"low": (600, 8_000), "medium": (400, 4_000), "auto": (400, 4_000), "high": (250, 2_000)}
"""By eagerness: how long a pause lasts before a turn is over that is surely complete, and one that surely isn't."""


class _TurnEvent(Struct, frozen=True):
    """
    Something that happened.

    Attributes:
        at_ms: where in the conversation's sound.
    """

    at_ms: int


class TurnStarted(_TurnEvent, frozen=True):
    """A turn begins there, with the padding before the speech."""


class TurnPaused(_TurnEvent, frozen=True):
    """Nobody speaks from there on; the turn may be over."""


class TurnCheckRequested(_TurnEvent, frozen=True):
    """How complete does the turn sound that pauses since then? `EndpointDetector.judge` takes the answer."""


class TurnResumed(_TurnEvent, frozen=True):
    """The one who paused speaks again; the turn was not over."""


class TurnEnded(_TurnEvent, frozen=True):
    """The turn is over; it ends there, silence and all."""


EndpointEvent = TurnStarted | TurnPaused | TurnCheckRequested | TurnResumed | TurnEnded


class EndpointState(Enum):
    """Where a turn is."""

    SILENT = auto()
    RISING = auto()
    SPEAKING = auto()
    PAUSED = auto()


class FrameLevel(Enum):
    """What a frame sounds like; `BETWEEN` keeps things as they are."""

    SPEECH = auto()
    BETWEEN = auto()
    SILENCE = auto()


class DurationReached(Enum):
    """What has lasted long enough: speech to be a turn, silence to end one."""

    SPEECH = auto()
    SILENCE = auto()


S, R, T, P = EndpointState.SILENT, EndpointState.RISING, EndpointState.SPEAKING, EndpointState.PAUSED
TRANSITIONS: dict[tuple[EndpointState, FrameLevel | DurationReached], EndpointState] = {
    (S, FrameLevel.SPEECH): R, (S, FrameLevel.BETWEEN): S, (S, FrameLevel.SILENCE): S,
    (R, FrameLevel.SPEECH): R, (R, FrameLevel.BETWEEN): R, (R, FrameLevel.SILENCE): S, (R, DurationReached.SPEECH): T,
    (T, FrameLevel.SPEECH): T, (T, FrameLevel.BETWEEN): T, (T, FrameLevel.SILENCE): P,
    (P, FrameLevel.SPEECH): T, (P, FrameLevel.BETWEEN): P, (P, FrameLevel.SILENCE): P, (P, DurationReached.SILENCE): S,
}  # fmt: skip


class EndpointDetector:
    """
    The turns of one conversation.

    Frames come in order; some may be left out. What is heard before a turn's start or after its end is no part of any turn.
    """

    def __init__(self, settings: TurnDetection) -> None:
        self.state = EndpointState.SILENT
        self._now_ms = 0
        self._min_start_ms = 0  # where the last turn, or what was forgotten, ended
        self._state_since_ms = 0  # of `RISING` its speech, of `PAUSED` its silence
        self._check_at_ms: int | None = None
        self._wait_ms = 0
        self.configure(settings)

    def configure(self, settings: TurnDetection) -> None:
        """Go by other settings from here on; a turn that is open stays open."""
        self._settings = settings
        self._start_threshold = settings.threshold
        self._stop_threshold = min(settings.threshold, max(settings.threshold - _HYSTERESIS, _MIN_THRESHOLD))
        self._min_wait_ms, self._max_wait_ms = WAITS_MS.get(settings.eagerness, WAITS_MS["auto"])
        self._wait_ms = self._default_wait_ms

    @property
    def is_speaking(self) -> bool:
        """Whether a turn is open."""
        return self.state in (EndpointState.SPEAKING, EndpointState.PAUSED)

    def process_frame(self, start_ms: int, probability: float) -> tuple[EndpointEvent, ...]:
        """
        What a frame makes happen.

        Args:
            start_ms: where it starts; no earlier than the end of the one before.
            probability: how likely someone speaks in it.
        """
        self._now_ms = start_ms + FRAME_MS
        return (*self._transition(start_ms, self._level(probability)), *self._check_elapsed())

    def judge(self, paused_at_ms: int, likelihood: float | None) -> tuple[EndpointEvent, ...]:
        """
        What follows from how complete the turn sounds.

        Args:
            paused_at_ms: of the `TurnCheckRequested` that this answers; an answer that comes too late changes nothing.
            likelihood: that the turn is complete, or None if that can't be said.
        """
        if self.state is not EndpointState.PAUSED or paused_at_ms != self._check_at_ms:
            return ()
        self._wait_ms = UNKNOWN_WAIT_MS if likelihood is None else self._scaled_wait_ms(likelihood)
        return tuple(self._check_elapsed())

    def reset(self, at_ms: int) -> None:
        """No turn has started, and none starts before there: it was committed by hand up to there, or dropped."""
        self.state = EndpointState.SILENT
        self._min_start_ms = max(self._min_start_ms, at_ms)

    def _level(self, probability: float) -> FrameLevel:
        if probability >= self._start_threshold:
            return FrameLevel.SPEECH
        return FrameLevel.BETWEEN if probability >= self._stop_threshold else FrameLevel.SILENCE

    def _transition(self, at_ms: int, trigger: FrameLevel | DurationReached) -> Iterator[EndpointEvent]:
        before, self.state = self.state, TRANSITIONS[self.state, trigger]
        match before, self.state:
            case EndpointState.SILENT, EndpointState.RISING:
                self._state_since_ms = at_ms
            case EndpointState.RISING, EndpointState.SPEAKING:
                yield TurnStarted(max(self._state_since_ms - self._settings.prefix_padding_ms, self._min_start_ms))
            case EndpointState.SPEAKING, EndpointState.PAUSED:
                self._state_since_ms, self._check_at_ms, self._wait_ms = at_ms, None, self._default_wait_ms
                yield TurnPaused(at_ms)
            case EndpointState.PAUSED, EndpointState.SPEAKING:
                yield TurnResumed(at_ms)
            case EndpointState.PAUSED, EndpointState.SILENT:
                self._min_start_ms = at_ms
                yield TurnEnded(at_ms)
            case _:
                pass

    def _check_elapsed(self) -> Iterator[EndpointEvent]:
        """What is due after what has lasted until now."""
        lasted_ms = self._now_ms - self._state_since_ms
        if self.state is EndpointState.RISING and lasted_ms >= MIN_SPEECH_MS:
            yield from self._transition(self._now_ms, DurationReached.SPEECH)
        elif self.state is EndpointState.PAUSED:
            if self._is_semantic and self._check_at_ms is None and lasted_ms >= CHECK_AFTER_MS:
                self._check_at_ms = self._state_since_ms
                yield TurnCheckRequested(self._state_since_ms)
            if lasted_ms >= self._wait_ms:
                # To the millisecond, not to the frame; and what goes on after it had to end, as an answer came late, is silence anyway.
                yield from self._transition(self._state_since_ms + self._wait_ms, DurationReached.SILENCE)

    @property
    def _is_semantic(self) -> bool:
        return self._settings.kind == "semantic_vad"

    @property
    def _default_wait_ms(self) -> int:
        return self._max_wait_ms if self._is_semantic else self._settings.silence_duration_ms

    def _scaled_wait_ms(self, likelihood: float) -> int:
        """Doubt costs time in proportion."""
        doubt = min(max((_COMPLETE - likelihood) / (_COMPLETE - _INCOMPLETE), 0.0), 1.0)
        return round(self._min_wait_ms + doubt * (self._max_wait_ms - self._min_wait_ms))
