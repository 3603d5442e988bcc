"""
Detects when a turn begins and ends, from the speech probability of every frame.

The state machine is the table below. Its only clock is the frames: all times are milliseconds of the conversation's
audio. `server_vad` ends a turn after a fixed silence. `semantic_vad` waits shorter or longer, depending on how complete
the turn sounds: a model judges that once a pause has lasted a little. It only changes how long the pause may last, as
the model errs both ways. The end of the transcript may say that the turn goes on, and then makes the wait longer.
"""

from collections.abc import Iterator
from enum import Enum, auto

from msgspec import Struct

from antiphon.engine_api.options import TurnDetection

FRAME_MS = 32
MIN_SPEECH_MS = 64
"""Shorter sounds are no speech: a click, a key, a short cough. This delays the start of every turn by a frame."""
CHECK_AFTER_MS = 200
"""Silence after which a model judges how complete the turn sounds."""
UNKNOWN_WAIT_MS = 800
"""Silence that ends a turn if the model gives no judgement, or has given none by then."""
# Speech ends this far below its threshold, as in `get_speech_timestamps` of silero-vad.
_HYSTERESIS = 0.15
_MIN_THRESHOLD = 0.01
_COMPLETE, _INCOMPLETE = 0.9, 0.1

WAITS_MS = {"low": (600, 8_000), "medium": (400, 4_000), "auto": (400, 4_000), "high": (250, 2_000)}
"""By `eagerness`: the silence that ends a surely complete turn, and a surely incomplete one."""


class _TurnEvent(Struct, frozen=True):
    """
    An event.

    Attributes:
        at_ms: where in the conversation's audio.
    """

    at_ms: int


class TurnStarted(_TurnEvent, frozen=True):
    """A turn begins, with the padding before the speech."""


class TurnPaused(_TurnEvent, frozen=True):
    """Speech stops there; the turn may be over."""


class TurnCheckRequested(_TurnEvent, frozen=True):
    """Asks how complete the turn sounds that pauses since then; `EndpointDetector.judge` takes the answer."""


class TurnResumed(_TurnEvent, frozen=True):
    """Speech goes on after a pause; the turn was not over."""


class TurnEnded(_TurnEvent, frozen=True):
    """The turn is over; it ends there, after the silence."""


EndpointEvent = TurnStarted | TurnPaused | TurnCheckRequested | TurnResumed | TurnEnded


class EndpointState(Enum):
    """Where a turn is."""

    SILENT = auto()
    RISING = auto()
    SPEAKING = auto()
    PAUSED = auto()


class FrameLevel(Enum):
    """What a frame sounds like; `BETWEEN` changes nothing."""

    SPEECH = auto()
    BETWEEN = auto()
    SILENCE = auto()


class DurationReached(Enum):
    """What has lasted long enough: speech to begin a turn, silence to end one."""

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

    Frames come in order; some may be left out. Audio before a turn's start or after its end belongs to no turn.
    """

    def __init__(self, settings: TurnDetection) -> None:
        self.state = EndpointState.SILENT
        self._now_ms = 0
        self._min_start_ms = 0  # where the last turn, or cleared audio, ended
        self._state_since_ms = 0  # start of the speech in `RISING`, of the silence in `PAUSED`
        self._check_at_ms: int | None = None
        self._likelihood: float | None = None
        self._likelihood_limit = 1.0
        self.configure(settings)

    def configure(self, settings: TurnDetection) -> None:
        """Apply other settings from here on; an open turn stays open."""
        self._settings = settings
        self._start_threshold = settings.threshold
        self._stop_threshold = min(settings.threshold, max(settings.threshold - _HYSTERESIS, _MIN_THRESHOLD))
        self._min_wait_ms, self._max_wait_ms = WAITS_MS.get(settings.eagerness, WAITS_MS["auto"])

    @property
    def is_speaking(self) -> bool:
        """Whether a turn is open."""
        return self.state in (EndpointState.SPEAKING, EndpointState.PAUSED)

    def process_frame(self, start_ms: int, probability: float) -> tuple[EndpointEvent, ...]:
        """
        The events of a frame.

        Args:
            start_ms: where it starts; no earlier than the end of the one before.
            probability: that someone speaks in it.
        """
        self._now_ms = start_ms + FRAME_MS
        if self.state is EndpointState.SILENT and probability < self._stop_threshold:  # nearly every frame of a session
            return ()
        return (*self._transition(start_ms, self._level(probability)), *self._check_elapsed())

    def judge(self, paused_at_ms: int, likelihood: float | None) -> tuple[EndpointEvent, ...]:
        """
        Take the judgement of how complete the turn sounds; returns the events that follow.

        Args:
            paused_at_ms: of the `TurnCheckRequested` that this answers; a late answer changes nothing.
            likelihood: that the turn is complete; None if unknown.
        """
        if self.state is not EndpointState.PAUSED or paused_at_ms != self._check_at_ms:
            return ()
        self._likelihood = likelihood
        return tuple(self._check_elapsed())

    def limit(self, paused_at_ms: int, likelihood: float) -> tuple[EndpointEvent, ...]:
        """
        Take how likely the turn is complete at most, from the words of it; returns the events that follow.

        Args:
            paused_at_ms: of the `TurnPaused` that it is about; of another pause it changes nothing.
        """
        if self.state is not EndpointState.PAUSED or paused_at_ms != self._state_since_ms:
            return ()
        # By its sound alone, "Had he married a more" was complete with a likelihood of 0.97 (docs/decisions/0044).
        self._likelihood_limit = likelihood
        return tuple(self._check_elapsed())

    def reset(self, at_ms: int) -> None:
        """
        Drop an open turn, and start none before there: the audio up to there was committed by the client, or cleared.
        """
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
                self._state_since_ms, self._check_at_ms = at_ms, None
                self._likelihood, self._likelihood_limit = None, 1.0
                yield TurnPaused(at_ms)
            case EndpointState.PAUSED, EndpointState.SPEAKING:
                yield TurnResumed(at_ms)
            case EndpointState.PAUSED, EndpointState.SILENT:
                self._min_start_ms = at_ms
                yield TurnEnded(at_ms)
            case _:
                pass

    def _check_elapsed(self) -> Iterator[EndpointEvent]:
        """The events of speech or silence that has lasted long enough by now."""
        lasted_ms = self._now_ms - self._state_since_ms
        if self.state is EndpointState.RISING and lasted_ms >= MIN_SPEECH_MS:
            yield from self._transition(self._now_ms, DurationReached.SPEECH)
        elif self.state is EndpointState.PAUSED:
            if self._is_semantic and self._check_at_ms is None and lasted_ms >= CHECK_AFTER_MS:
                self._check_at_ms = self._state_since_ms
                yield TurnCheckRequested(self._state_since_ms)
            wait_ms = self._wait_ms()
            if lasted_ms >= wait_ms:
                # To the millisecond, not to the frame. If the judgement came late, the time since then was silence
                # anyway.
                yield from self._transition(self._state_since_ms + wait_ms, DurationReached.SILENCE)

    @property
    def _is_semantic(self) -> bool:
        return self._settings.kind == "semantic_vad"

    def _wait_ms(self) -> int:
        """The silence that ends the turn, as far as is known."""
        if not self._is_semantic:
            return self._settings.silence_duration_ms
        wait_ms = UNKNOWN_WAIT_MS if self._likelihood is None else self._scaled_wait_ms(self._likelihood)
        return max(wait_ms, self._scaled_wait_ms(self._likelihood_limit))

    def _scaled_wait_ms(self, likelihood: float) -> int:
        """The silence to wait for, in proportion to the doubt."""
        doubt = min(max((_COMPLETE - likelihood) / (_COMPLETE - _INCOMPLETE), 0.0), 1.0)
        return round(self._min_wait_ms + doubt * (self._max_wait_ms - self._min_wait_ms))
