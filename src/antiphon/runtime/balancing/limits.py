"""How often something may happen: requests and tokens of an upstream in a minute, tries beyond the first."""

from collections import deque
from collections.abc import Callable

RETRY_WINDOW_S = 10.0
FREE_RETRIES = 3
"""So many are made in any case: of a few requests, the share is less than one."""

RATE_WINDOW_S = 60.0


class SlidingWindow:
    """
    A sum over the latest seconds, in steps of a second.

    Args:
        window_s: the length of the window.
        clock: monotonic, in seconds.
    """

    def __init__(self, window_s: float, clock: Callable[[], float]) -> None:
        self._window_s = window_s
        self._clock = clock
        self._steps: deque[tuple[int, int]] = deque()
        self._total = 0

    @property
    def total(self) -> int:
        """The sum now."""
        oldest = self._clock() - self._window_s
        # A step counts until its last moment has left the window.
        while self._steps and self._steps[0][0] + 1 <= oldest:
            self._total -= self._steps.popleft()[1]
        return self._total

    def add(self, amount: int) -> None:
        """Add to the sum, as of now."""
        step = int(self._clock())
        if self._steps and self._steps[-1][0] == step:
            self._steps[-1] = (step, self._steps[-1][1] + amount)
        else:
            self._steps.append((step, amount))
        self._total += amount

    def wait_s(self, limit: int, amount: int = 1) -> float:
        """The seconds until `amount` more stay within `limit`; 0 if they do now."""
        excess = self.total + amount - limit
        if excess <= 0:
            return 0.0
        now = self._clock()
        for step, count in self._steps:
            excess -= count
            if excess <= 0:
                return max(0.0, step + 1 + self._window_s - now)
        # The amount alone is more than the limit.
        return self._window_s


class RetryBudget:
    """
    Bounds the tries beyond the first of one model's requests, so that an outage does not multiply its load.

    Args:
        share: of the requests of the last seconds.
        clock: monotonic, in seconds.
    """

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self._share = share
        self._requests = SlidingWindow(RETRY_WINDOW_S, clock)
        self._retries = SlidingWindow(RETRY_WINDOW_S, clock)

    def count_request(self) -> None:
        """Count a request; retries may be a share of these."""
        self._requests.add(1)

    def take(self) -> bool:
        """Whether one more try may be made, which is then counted."""
        if self._retries.total >= FREE_RETRIES + self._share * self._requests.total:
            return False
        self._retries.add(1)
        return True
