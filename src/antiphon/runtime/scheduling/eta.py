"""
Estimated waiting times: how long leases lasted so far, played forward over the queue.

There is always an estimate, as clients show it. Before a conversation has ended it is a first guess, from the longest
that one may last: an estimate that is too late is better than one that is too early.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from antiphon.config.load import Config
from antiphon.engine_api.options import ConversationKind

EMA_ALPHA: Final = 0.2
"""Weight of the latest conversation in the average; the first few have equal weights."""

MIN_LEASE_S: Final[dict[ConversationKind, float]] = {"responses": 0, "realtime": 2, "chat": 1, "audio": 5, "video": 5}
"""Shorter conversations failed or were abandoned, and are left out of the average."""

OVERDUE_FRACTION: Final = 0.25
"""Of the average: what a conversation is expected to take still when it already took longer than that."""


MAX_FIRST_GUESS_S: Final = 600.0
"""The longest first guess: the time limit of an audio session, the original's longest."""

RESPONSE_GUESS_S: Final = 60.0
"""The first guess for a response, which has no time limit."""


def first_guesses(limits_s: Mapping[ConversationKind, float]) -> Mapping[ConversationKind, float]:
    """How long a conversation is taken to last before any has ended, from the time limits of those kinds that have one."""
    return {"responses": RESPONSE_GUESS_S, **{kind: min(limit_s, MAX_FIRST_GUESS_S) for kind, limit_s in limits_s.items()}}


class LeaseDurations:
    """
    How long leases last, as an exponential moving average by model and kind.

    Args:
        first_guesses: by kind, what stands for the average before there is one.
    """

    def __init__(self, first_guesses: Mapping[ConversationKind, float] = MappingProxyType({})) -> None:
        self._first_guesses = first_guesses
        self._means: dict[tuple[str, ConversationKind], tuple[float, int]] = {}

    def observe(self, model: str, kind: ConversationKind, duration_s: float) -> None:
        """Add a conversation that ended normally."""
        if duration_s < MIN_LEASE_S[kind]:
            return
        mean, count = self._means.get((model, kind), (0.0, 0))
        self._means[model, kind] = mean + max(EMA_ALPHA, 1 / (count + 1)) * (duration_s - mean), count + 1

    def mean_s(self, model: str, kind: ConversationKind) -> float:
        """The average, or the first guess."""
        entry = self._means.get((model, kind))
        return self._first_guesses.get(kind, MAX_FIRST_GUESS_S) if entry is None else entry[0]

    def means(self) -> Mapping[tuple[str, ConversationKind], tuple[float, int]]:
        """All averages, each with its number of conversations."""
        return self._means

    def remaining_s(self, model: str, kind: ConversationKind, elapsed_s: float) -> float:
        """How much longer a conversation will take after `elapsed_s`."""
        mean = self.mean_s(model, kind)
        # Never 0: a conversation that is overdue would make the next ticket's wait look over.
        return max(mean - elapsed_s, OVERDUE_FRACTION * mean)


class WaitForecast:
    """
    Simulates when each waiting ticket of a model gets a worker, in the order of the queue.

    Args:
        slots: each as the kinds it takes, and the seconds until it is free. If none takes a kind, because its worker is
            lost or drained, one is assumed that is free after an average conversation.
        mean_s: the average duration of a kind.
    """

    def __init__(self, slots: Iterable[tuple[tuple[ConversationKind, ...], float]], mean_s: Callable[[ConversationKind], float]) -> None:
        self._mean_s = mean_s
        self._free_in_s: dict[tuple[ConversationKind, ...], list[float]] = {}
        for kinds, free_in_s in slots:
            self._free_in_s.setdefault(kinds, []).append(free_in_s)
        for times in self._free_in_s.values():
            heapq.heapify(times)

    def next_wait_s(self, kind: ConversationKind) -> float:
        """Seconds until the next ticket is served; from then on it occupies its slot for the average time."""
        mean = self._mean_s(kind)
        capable = [times for kinds, times in self._free_in_s.items() if kind in kinds]
        if not capable:
            capable = [self._free_in_s.setdefault((kind,), [mean])]
        times = min(capable, key=lambda times: times[0])
        free_in_s = times[0]
        heapq.heapreplace(times, free_in_s + mean)
        return free_in_s


def time_limits_s(config: Config) -> dict[ConversationKind, float]:
    """How long conversations may last, by kind; a response has no limit."""
    minicpmo = config.minicpmo
    return {
        "realtime": 60 * config.realtime.session_minutes,
        "chat": minicpmo.chat_s,
        "audio": minicpmo.audio_s,
        "video": minicpmo.video_s,
    }
