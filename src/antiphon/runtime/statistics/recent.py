"""
How each model performed in the last hour: answers, errors, and the time to the first token.

Times are counted in steps of a tenth, so that an hour of any traffic takes the same memory and those of several
processes add up; a median is right to 5 %.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

WINDOW_MINUTES = 60
FIRST_TOKEN_MINUTES = 15
"""How far back the times to the first token go: an operator wants to see the present state."""

_STEP = math.log(1.1)
_LEAST_S = 0.001
_MAX_STEPS = 140
"""The highest step; it stands for more than ten minutes."""

REFUSED = ""
"""The model's name for requests that were refused before they reached a model."""


class MinuteCounts(Struct, array_like=True):
    """
    What one model did in one minute.

    Attributes:
        first_tokens: how many answers had their first token after that many steps.
    """

    answers: int = 0
    errors: int = 0
    refusals: int = 0
    first_tokens: dict[int, int] = {}


class ModelHealth(Struct, frozen=True):
    """
    How a model did in the last hour.

    Attributes:
        first_token_p50_s: the median time to the first token of the last minutes; None where there was none.
    """

    answers: int = 0
    errors: int = 0
    refusals: int = 0
    first_token_p50_s: float | None = None
    first_token_p99_s: float | None = None


RecentCounts = Mapping[str, Mapping[int, MinuteCounts]]
"""By model, and by minute since 1970."""


class RecentAnswers:
    """
    The answers of this process in the last hour.

    Args:
        clock: Unix seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._minutes: dict[str, dict[int, MinuteCounts]] = {}

    def observe(self, model: str, *, has_failed: bool, first_token_s: float | None = None) -> None:
        """Count an answer that has ended; `model` is a label of the metrics, so that there are not too many."""
        counts = self._counts(model)
        counts.answers += 1
        counts.errors += has_failed
        if first_token_s is not None:
            step = min(_MAX_STEPS, max(0, round(math.log(max(first_token_s, _LEAST_S) / _LEAST_S) / _STEP)))
            counts.first_tokens[step] = counts.first_tokens.get(step, 0) + 1

    def refuse(self) -> None:
        """Count a request that was refused, as a limit was reached or the server was full."""
        self._counts(REFUSED).refusals += 1

    def counts(self) -> RecentCounts:
        """What was counted in the last hour."""
        oldest = int(self._clock()) // 60 - WINDOW_MINUTES
        self._minutes = {
            model: recent
            for model, minutes in self._minutes.items()
            if (recent := {minute: counts for minute, counts in minutes.items() if minute > oldest})
        }
        return self._minutes

    def _counts(self, model: str) -> MinuteCounts:
        minute = int(self._clock()) // 60
        minutes = self._minutes.setdefault(model, {})
        if (counts := minutes.get(minute)) is None:
            counts = minutes[minute] = MinuteCounts()
            minutes.pop(minute - WINDOW_MINUTES, None)
            # After minutes without traffic more than one is too old.
            for old in [each for each in minutes if each <= minute - WINDOW_MINUTES] if len(minutes) > WINDOW_MINUTES else ():
                del minutes[old]
        return counts


def model_health(parts: Iterable[RecentCounts], now: float) -> dict[str, ModelHealth]:
    """How each model did in all of the processes; `REFUSED` stands for the refusals."""
    minutes_by_model: dict[str, list[tuple[int, MinuteCounts]]] = {}
    for part in parts:
        for model, minutes in part.items():
            minutes_by_model.setdefault(model, []).extend(minutes.items())
    return {model: _health(minutes, now) for model, minutes in minutes_by_model.items()}


def server_health(parts: Iterable[RecentCounts], now: float) -> ModelHealth:
    """The figures of all models together, refusals included."""
    return _health([item for part in parts for minutes in part.values() for item in minutes.items()], now)


def _health(minutes: Iterable[tuple[int, MinuteCounts]], now: float) -> ModelHealth:
    answers = errors = refusals = 0
    steps: Counter[int] = Counter()
    present = int(now) // 60
    for minute, counts in minutes:
        if minute <= present - WINDOW_MINUTES:
            continue
        answers, errors, refusals = answers + counts.answers, errors + counts.errors, refusals + counts.refusals
        if minute > present - FIRST_TOKEN_MINUTES:
            steps.update(counts.first_tokens)
    return ModelHealth(answers, errors, refusals, _quantile(steps, 0.5), _quantile(steps, 0.99))


def _quantile(steps: Mapping[int, int], fraction: float) -> float | None:
    rank, total = 0, sum(steps.values())
    for step in sorted(steps):
        rank += steps[step]
        if rank >= fraction * total:
            return float(f"{_LEAST_S * math.exp(step * _STEP):.3g}")
    return None
