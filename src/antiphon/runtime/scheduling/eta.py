"""
Estimated waiting times: how long leases lasted so far, played forward over the queue.

Without data there is no estimate. One that is too early is worse than none.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from antiphon.engine_api.options import ConversationKind

EMA_ALPHA: Final = 0.2
"""Weight of the latest conversation in the average; the first few have equal weights."""

MIN_LEASE_S: Final[dict[ConversationKind, float]] = {"responses": 0, "realtime": 2, "chat": 1, "audio": 5, "video": 5}
"""Shorter conversations failed or were abandoned, and are left out of the average."""

OVERDUE_FRACTION: Final = 0.25
"""Of the average: what a conversation is expected to take still when it already took longer than that."""


class LeaseDurations:
    """How long leases last, as an exponential moving average by model and kind."""

    def __init__(self) -> None:
        self._means: dict[tuple[str, ConversationKind], tuple[float, int]] = {}

    def observe(self, model: str, kind: ConversationKind, duration_s: float) -> None:
        """Add a conversation that ended normally."""
        if duration_s < MIN_LEASE_S[kind]:
            return
        mean, count = self._means.get((model, kind), (0.0, 0))
        self._means[model, kind] = mean + max(EMA_ALPHA, 1 / (count + 1)) * (duration_s - mean), count + 1

    def mean_s(self, model: str, kind: ConversationKind) -> float | None:
        """The average; None without data."""
        entry = self._means.get((model, kind))
        return entry and entry[0]

    def means(self) -> Mapping[tuple[str, ConversationKind], tuple[float, int]]:
        """All averages, each with its number of conversations."""
        return self._means

    def remaining_s(self, model: str, kind: ConversationKind, elapsed_s: float) -> float | None:
        """How much longer a conversation will take after `elapsed_s`; None without data."""
        mean = self.mean_s(model, kind)
        return None if mean is None else max(mean - elapsed_s, OVERDUE_FRACTION * mean)


class WaitForecast:
    """
    Simulates when each waiting ticket of a model gets a worker, in the order of the queue.

    Args:
        slots: each as the kinds it takes, and the seconds until it is free; slots without an estimate are left out,
            which makes the forecast late rather than early.
        mean_s: the average duration of a kind.
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
        """Seconds until the next ticket is served; from then on it occupies its slot for the average time."""
        capable = [times for kinds, times in self._free_in_s.items() if kind in kinds and times]
        if not capable:
            return None
        times = min(capable, key=lambda times: times[0])
        mean = self._mean_s(kind)
        if mean is None:
            return heapq.heappop(times)
        free_in_s = times[0]
        heapq.heapreplace(times, free_in_s + mean)
        return free_in_s
