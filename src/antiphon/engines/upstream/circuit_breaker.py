"""
The circuit breaker: an upstream that failed several times in a row gets no requests for a while, then one request at a
time.

`MOVES` is all of its logic.
"""

import math
import time
from collections import deque
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


RATE_FAILURES = 5
RATE_WINDOW_S = 10.0
MAX_OUTCOMES = 128
"""How many of the latest outcomes count for the rate."""

# A member of an enumeration costs ten times as much as a name: Python 3.11 asks the class of its class first.
_CLOSED = CircuitState.CLOSED
_COOLDOWN_OVER = CircuitEvent.COOLDOWN_OVER
_HALF_OPEN = CircuitState.HALF_OPEN
_SUCCESS = CircuitEvent.SUCCESS
_OPEN = CircuitState.OPEN
_TOO_MANY_FAILURES = CircuitEvent.TOO_MANY_FAILURES
_NO_OUTCOME = CircuitEvent.NO_OUTCOME


class CircuitBreaker:
    """
    Decides whether a request may be sent to an upstream.

    Args:
        max_failures: so many in a row open it.
        cooldown_s: how long it then stays open.
        on_state_change: called with every new state.
        clock: monotonic, in seconds.
        max_cooldown_s: where a trial fails the next cooldown is twice as long, up to this; None for no longer one.
        jitter: a factor for each cooldown.
        counts_rate: whether it also opens where `RATE_FAILURES` requests failed in `RATE_WINDOW_S`, and more than half:
            an upstream that fails fast looks idle, and now and then one may succeed.
    """

    def __init__(
        self,
        max_failures: int,
        cooldown_s: float,
        on_state_change: Callable[[CircuitState], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        max_cooldown_s: float | None = None,
        jitter: Callable[[], float] = lambda: 1.0,
        counts_rate: bool = False,
    ) -> None:
        self.state = _CLOSED
        self._max_failures = max_failures
        self._first_cooldown_s = cooldown_s
        self._next_cooldown_s = cooldown_s
        self._max_cooldown_s = max_cooldown_s or cooldown_s
        self._cooldown_s = cooldown_s
        self._jitter = jitter
        self._counts_rate = counts_rate
        self._outcomes: deque[tuple[float, bool]] = deque(maxlen=MAX_OUTCOMES)
        self._on_state_change = on_state_change
        self._clock = clock
        self._failures = 0
        self._cooldown_from = 0.0

    def retry_after_s(self) -> float | None:
        """
        None when a request may be sent, whose outcome must then be recorded; else the seconds to wait, at least 1.
        """
        remaining_s = self.remaining_s()
        if remaining_s > 0:
            return max(remaining_s, 1.0)
        if self.state is _CLOSED:
            return None
        now = self._clock()
        # A trial may itself hang for minutes: after another cooldown the next one is made.
        self._cooldown_from = now
        self._advance(_COOLDOWN_OVER)
        return None

    def remaining_s(self) -> float:
        """The seconds to wait, without asking to pass; 0 if a request may be sent."""
        if self.state is _CLOSED:
            return 0.0
        return max(0.0, self._cooldown_from + self._cooldown_s - self._clock())

    def record_success(self) -> None:
        """An answer began, or the upstream refused the request with a proper error."""
        self._failures = 0
        self._record(is_failure=False)
        if self.state is _HALF_OPEN:
            self._next_cooldown_s = self._first_cooldown_s
            self._outcomes.clear()
        self._advance(_SUCCESS)

    def record_failure(self) -> None:
        """The upstream failed to answer."""
        self._failures += 1
        self._record(is_failure=True)
        if self.state is _HALF_OPEN or self._failures >= self._max_failures or self._fails_often():
            self.open()

    def open(self, cooldown_s: float | None = None) -> None:
        """Open, if it is not; with `cooldown_s` for that long."""
        if self.state is not _OPEN:
            self._cooldown_from = self._clock()
            self._cooldown_s = (cooldown_s or self._next_cooldown_s) * self._jitter()
            self._next_cooldown_s = min(2 * self._next_cooldown_s, self._max_cooldown_s)
        self._advance(_TOO_MANY_FAILURES)

    def record_abandonment(self) -> None:
        """The request was cancelled before it had an outcome; the next one may be the trial."""
        if self.state is _HALF_OPEN:
            self._cooldown_from = -math.inf
        self._advance(_NO_OUTCOME)

    def _record(self, *, is_failure: bool) -> None:
        if self._counts_rate:
            self._outcomes.append((self._clock(), is_failure))

    def _fails_often(self) -> bool:
        since = self._clock() - RATE_WINDOW_S
        outcomes = [is_failure for at, is_failure in self._outcomes if at >= since]
        failures = sum(outcomes)
        return failures >= RATE_FAILURES and 2 * failures > len(outcomes)

    def _advance(self, event: CircuitEvent) -> None:
        before, self.state = self.state, MOVES[self.state][event]
        if self.state is not before:
            self._on_state_change(self.state)
