"""
The circuit breaker: an upstream that failed several times in a row is left alone for a while, then tried with one request at a time.

`MOVES` is the whole law.
"""

import math
import time
from collections.abc import Callable
from enum import StrEnum


class CircuitState(StrEnum):
    """What requests meet: they pass, they are turned away, or one of them is being tried."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitEvent(StrEnum):
    """What was learnt: an answer began, the failures became too many, the time of rest is over, or the trial told nothing."""

    SUCCESS = "success"
    TOO_MANY_FAILURES = "too_many"
    COOLDOWN_OVER = "rested"
    NO_OUTCOME = "nothing"


MOVES: dict[CircuitState, dict[CircuitEvent, CircuitState]] = {
    CircuitState.CLOSED: {
        CircuitEvent.SUCCESS: CircuitState.CLOSED,
        CircuitEvent.TOO_MANY_FAILURES: CircuitState.OPEN,
        CircuitEvent.COOLDOWN_OVER: CircuitState.CLOSED,
        CircuitEvent.NO_OUTCOME: CircuitState.CLOSED,
    },
    CircuitState.OPEN: {
        # A request from before it opened, answered late, says nothing about now.
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
    Decides whether an upstream may be asked.

    Args:
        most_failures: so many in a row open it.
        rest_s: how long it then stays open.
        changed: called with every new state.
        clock: seconds that never go back.
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
        """None when a request may go, and its outcome is then to be told; else the seconds until asking again makes sense."""
        if self.state is CircuitState.CLOSED:
            return None
        now = self._clock()
        left_s = self._cooldown_from + self._cooldown_s - now
        if left_s > 0:
            return max(left_s, 1.0)
        # A trial may itself hang for minutes: after as long a rest another is made.
        self._cooldown_from = now
        self._advance(CircuitEvent.COOLDOWN_OVER)
        return None

    def record_success(self) -> None:
        """An answer began, or the upstream said in good order that there will be none."""
        self._failures = 0
        self._advance(CircuitEvent.SUCCESS)

    def record_failure(self) -> None:
        """No answer came."""
        self._failures += 1
        if self.state is CircuitState.HALF_OPEN or self._failures >= self._max_failures:
            if self.state is not CircuitState.OPEN:
                self._cooldown_from = self._clock()
            self._advance(CircuitEvent.TOO_MANY_FAILURES)

    def record_abandonment(self) -> None:
        """The request was called off before anything came of it; the next one may be the trial."""
        if self.state is CircuitState.HALF_OPEN:
            self._cooldown_from = -math.inf
        self._advance(CircuitEvent.NO_OUTCOME)

    def _advance(self, event: CircuitEvent) -> None:
        before, self.state = self.state, MOVES[self.state][event]
        if self.state is not before:
            self._on_state_change(self.state)
