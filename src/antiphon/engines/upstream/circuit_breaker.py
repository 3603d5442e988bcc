"""
The circuit breaker: an upstream that failed several times in a row is left alone for a while, then tried with one request at a time.

`MOVES` is the whole law.
"""

import math
import time
from collections.abc import Callable
from enum import StrEnum


class State(StrEnum):
    """What requests meet: they pass, they are turned away, or one of them is being tried."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Finding(StrEnum):
    """What was learnt: an answer began, the failures became too many, the time of rest is over, or the trial told nothing."""

    SUCCESS = "success"
    TOO_MANY = "too_many"
    RESTED = "rested"
    NOTHING = "nothing"


MOVES: dict[State, dict[Finding, State]] = {
    State.CLOSED: {
        Finding.SUCCESS: State.CLOSED,
        Finding.TOO_MANY: State.OPEN,
        Finding.RESTED: State.CLOSED,
        Finding.NOTHING: State.CLOSED,
    },
    State.OPEN: {
        # A request from before it opened, answered late, says nothing about now.
        Finding.SUCCESS: State.OPEN,
        Finding.TOO_MANY: State.OPEN,
        Finding.RESTED: State.HALF_OPEN,
        Finding.NOTHING: State.OPEN,
    },
    State.HALF_OPEN: {
        Finding.SUCCESS: State.CLOSED,
        Finding.TOO_MANY: State.OPEN,
        Finding.RESTED: State.HALF_OPEN,
        Finding.NOTHING: State.OPEN,
    },
}


class Breaker:
    """
    Decides whether an upstream may be asked.

    Args:
        most_failures: so many in a row open it.
        rest_s: how long it then stays open.
        changed: called with every new state.
        clock: seconds that never go back.
    """

    def __init__(
        self, most_failures: int, rest_s: float, changed: Callable[[State], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.state = State.CLOSED
        self._most_failures = most_failures
        self._rest_s = rest_s
        self._changed = changed
        self._clock = clock
        self._failures = 0
        self._rests_from = 0.0

    def refuses_for_s(self) -> float | None:
        """None when a request may go, and its outcome is then to be told; else the seconds until asking again makes sense."""
        if self.state is State.CLOSED:
            return None
        now = self._clock()
        left_s = self._rests_from + self._rest_s - now
        if left_s > 0:
            return max(left_s, 1.0)
        # A trial may itself hang for minutes: after as long a rest another is made.
        self._rests_from = now
        self._move(Finding.RESTED)
        return None

    def succeeded(self) -> None:
        """An answer began, or the upstream said in good order that there will be none."""
        self._failures = 0
        self._move(Finding.SUCCESS)

    def failed(self) -> None:
        """No answer came."""
        self._failures += 1
        if self.state is State.HALF_OPEN or self._failures >= self._most_failures:
            if self.state is not State.OPEN:
                self._rests_from = self._clock()
            self._move(Finding.TOO_MANY)

    def learnt_nothing(self) -> None:
        """The request was called off before anything came of it; the next one may be the trial."""
        if self.state is State.HALF_OPEN:
            self._rests_from = -math.inf
        self._move(Finding.NOTHING)

    def _move(self, finding: Finding) -> None:
        before, self.state = self.state, MOVES[self.state][finding]
        if self.state is not before:
            self._changed(self.state)
