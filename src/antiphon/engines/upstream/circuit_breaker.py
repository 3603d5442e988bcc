"""
The circuit breaker: an upstream that failed several times in a row gets no requests for a while, then one request at a
time.

`MOVES` is all of its logic.
"""

import math
import time
from collections.abc import Callable
from enum import StrEnum


class CircuitState(StrEnum):
    """Requests pass (closed), are refused (open), or one of them is tried (half open)."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitEvent(StrEnum):
    """An answer began, the failures became too many, the cooldown is over, or a trial ended without an outcome."""

    SUCCESS = "success"
    TOO_MANY_FAILURES = "too_many_failures"
    COOLDOWN_OVER = "cooldown_over"
    NO_OUTCOME = "no_outcome"


MOVES: dict[CircuitState, dict[CircuitEvent, CircuitState]] = {
    CircuitState.CLOSED: {
        CircuitEvent.SUCCESS: CircuitState.CLOSED,
        CircuitEvent.TOO_MANY_FAILURES: CircuitState.OPEN,
        CircuitEvent.COOLDOWN_OVER: CircuitState.CLOSED,
        CircuitEvent.NO_OUTCOME: CircuitState.CLOSED,
    },
    CircuitState.OPEN: {
        # A late answer to a request from before it opened says nothing about now.
        CircuitEvent.SUCCESS: CircuitState.OPEN,
        CircuitEvent.TOO_MANY_FAILURES: CircuitState.OPEN,
        CircuitEvent.COOLDOWN_OVER: CircuitState.HALF_OPEN,
        CircuitEvent.NO_OUTCOME: CircuitState.OPEN,
    },
    CircuitState.HALF_OPEN: {
        CircuitEvent.SUCCESS: CircuitState.CLOSED,
        CircuitEvent.TOO_MANY_FAILURES: CircuitState.OPEN,
        CircuitEvent.COOLDOWN_OVER: CircuitState.HALF_OPEN,
        CircuitEvent.NO_OUTCOME: CircuitState.OPEN,
    },
}


class CircuitBreaker:
    """
    Decides whether a request may be sent to an upstream.

    Args:
        max_failures: so many in a row open it.
        cooldown_s: how long it then stays open.
        on_state_change: called with every new state.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        max_failures: int,
        cooldown_s: float,
        on_state_change: Callable[[CircuitState], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = CircuitState.CLOSED
        self._max_failures = max_failures
        self._cooldown_s = cooldown_s
        self._on_state_change = on_state_change
        self._clock = clock
        self._failures = 0
        self._cooldown_from = 0.0

    def retry_after_s(self) -> float | None:
        """
        None when a request may be sent, whose outcome must then be recorded; else the seconds to wait, at least 1.
        """
        if self.state is CircuitState.CLOSED:
            return None
        now = self._clock()
        remaining_s = self._cooldown_from + self._cooldown_s - now
        if remaining_s > 0:
            return max(remaining_s, 1.0)
        # A trial may itself hang for minutes: after another cooldown the next one is made.
        self._cooldown_from = now
        self._advance(CircuitEvent.COOLDOWN_OVER)
        return None

    def record_success(self) -> None:
        """An answer began, or the upstream refused the request with a proper error."""
        self._failures = 0
        self._advance(CircuitEvent.SUCCESS)

    def record_failure(self) -> None:
        """The upstream failed to answer."""
        self._failures += 1
        if self.state is CircuitState.HALF_OPEN or self._failures >= self._max_failures:
            if self.state is not CircuitState.OPEN:
                self._cooldown_from = self._clock()
            self._advance(CircuitEvent.TOO_MANY_FAILURES)

    def record_abandonment(self) -> None:
        """The request was cancelled before it had an outcome; the next one may be the trial."""
        if self.state is CircuitState.HALF_OPEN:
            self._cooldown_from = -math.inf
        self._advance(CircuitEvent.NO_OUTCOME)

    def _advance(self, event: CircuitEvent) -> None:
        before, self.state = self.state, MOVES[self.state][event]
        if self.state is not before:
            self._on_state_change(self.state)
