"""
How long those who wait will have to: from how long places have been held, played forward.

Where nothing is known yet nothing is said. An estimate that is too early is worse than none.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from antiphon.engine_api.options import Kind

WEIGHT: Final = 0.2
"""What the latest conversation counts for in the average; the first few count alike."""

FLOOR_S: Final[dict[Kind, float]] = {"responses": 0, "realtime": 2, "chat": 1, "audio": 5, "video": 5}
"""Conversations shorter than this came to nothing, and say nothing of how long one takes."""

OVERDUE: Final = 0.25
"""Of the average: what a conversation that is longer than most may still take."""


class Holding:
    """How long places are held, as an average that forgets, by model and kind."""

    def __init__(self) -> None:
        self._means: dict[tuple[str, Kind], tuple[float, int]] = {}

    def note(self, model: str, kind: Kind, held_s: float) -> None:
        """A conversation that ended as it should was so long."""
        if held_s < FLOOR_S[kind]:
            return
        mean, count = self._means.get((model, kind), (0.0, 0))
        self._means[model, kind] = mean + max(WEIGHT, 1 / (count + 1)) * (held_s - mean), count + 1

    def mean(self, model: str, kind: Kind) -> float | None:
        """The average; None where there was none yet."""
        found = self._means.get((model, kind))
        return found and found[0]

    def all(self) -> Mapping[tuple[str, Kind], tuple[float, int]]:
        """All averages, each with how many conversations are in it."""
        return self._means

    def left(self, model: str, kind: Kind, elapsed_s: float) -> float | None:
        """How much longer a conversation will take that has taken `elapsed_s`; None where nobody knows."""
        mean = self.mean(model, kind)
        return None if mean is None else max(mean - elapsed_s, OVERDUE * mean)


class Outlook:
    """
    A model's places in the time to come, given one after another to those who wait, in their order.

    Args:
        places: each as the kinds it takes, and the seconds until it is free; those of which nobody knows are left out, which makes
            what is said late rather than early.
        mean: the average of a kind.
    """

    def __init__(self, places: Iterable[tuple[tuple[Kind, ...], float]], mean: Callable[[Kind], float | None]) -> None:
        self._mean = mean
        self._free_in: dict[tuple[Kind, ...], list[float]] = {}
        for kinds, free_in_s in places:
            self._free_in.setdefault(kinds, []).append(free_in_s)
        for times in self._free_in.values():
            heapq.heapify(times)

    def next(self, kind: Kind) -> float | None:
        """Seconds until the next who waits has a place; it then has it for as long as others had theirs."""
        able = [times for kinds, times in self._free_in.items() if kind in kinds and times]
        if not able:
            return None
        times = min(able, key=lambda times: times[0])
        mean = self._mean(kind)
        if mean is None:
            return heapq.heappop(times)
        at = times[0]
        heapq.heapreplace(times, at + mean)
        return at
