"""
How long those who wait will have to: from how long places have been held, played forward.

Where nothing is known yet nothing is said. An estimate that is too early is worse than none.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from antiphon.engine_api.options import ConversationKind

EMA_ALPHA: Final = 0.2
"""What the latest conversation counts for in the average; the first few count alike."""

MIN_LEASE_S: Final[dict[ConversationKind, float]] = {"responses": 0, "realtime": 2, "chat": 1, "audio": 5, "video": 5}
"""Conversations shorter than this came to nothing, and say nothing of how long one takes."""

OVERDUE_FRACTION: Final = 0.25
"""Of the average: what a conversation that is longer than most may still take."""


class LeaseDurations:
    """How long places are held, as an average that forgets, by model and kind."""

    def __init__(self) -> None:
        self._means: dict[tuple[str, ConversationKind], tuple[float, int]] = {}

    def observe(self, model: str, kind: ConversationKind, duration_s: float) -> None:
        """A conversation that ended as it should was so long."""
        if duration_s < MIN_LEASE_S[kind]:
            return
        mean, count = self._means.get((model, kind), (0.0, 0))
        self._means[model, kind] = mean + max(EMA_ALPHA, 1 / (count + 1)) * (duration_s - mean), count + 1

    def mean_s(self, model: str, kind: ConversationKind) -> float | None:
        """The average; None where there was none yet."""
        found = self._means.get((model, kind))
        return found and found[0]

    def means(self) -> Mapping[tuple[str, ConversationKind], tuple[float, int]]:
        """All averages, each with how many conversations are in it."""
        return self._means

    def remaining_s(self, model: str, kind: ConversationKind, elapsed_s: float) -> float | None:
        """How much longer a conversation will take that has taken `elapsed_s`; None where nobody knows."""
        mean = self.mean_s(model, kind)
        return None if mean is None else max(mean - elapsed_s, OVERDUE_FRACTION * mean)


class WaitForecast:
    """
    A model's places in the time to come, given one after another to those who wait, in their order.

    Args:
        places: each as the kinds it takes, and the seconds until it is free; those of which nobody knows are left out, which makes
            what is said late rather than early.
        mean: the average of a kind.
    """

    def __init__(
        self, slots: Iterable[tuple[tuple[ConversationKind, ...], float]], mean_s: Callable[[ConversationKind], float | None]
    ) -> None:
        self._mean_s = mean_s
        self._free_in_s: dict[tuple[ConversationKind, ...], list[float]] = {}
        for kinds, free_in_s in slots:
            self._free_in_s.setdefault(kinds, []).append(free_in_s)
        for times in self._free_in_s.values():
            heapq.heapify(times)

    def next_wait_s(self, kind: ConversationKind) -> float | None:
        """Seconds until the next who waits has a place; it then has it for as long as others had theirs."""
        able = [times for kinds, times in self._free_in_s.items() if kind in kinds and times]
        if not able:
            return None
        times = min(able, key=lambda times: times[0])
        mean = self._mean_s(kind)
        if mean is None:
            return heapq.heappop(times)
        at = times[0]
        heapq.heapreplace(times, at + mean)
        return at
