"""
Truncation: what of a conversation is dropped where it is longer than the model's context window. One rule for all
engines.

The oldest turns go first, a tool call together with its results. Instructions, system and developer messages stay, and
so does the newest turn, which is to be answered.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from typing import TypeVar

from antiphon.engine_api import commands, history as engine_history

RESERVED_OUTPUT_TOKENS = 512
"""Room for the output if the request sets no limit."""

T = TypeVar("T")

History = tuple[engine_history.HistoryItem, ...]


def output_room(request: commands.Respond, window: int) -> int:
    """How many tokens of the context window truncation leaves for the output."""
    return min(request.sampling.max_tokens or RESERVED_OUTPUT_TOKENS, window // 4)


def droppable_groups(history: Sequence[engine_history.HistoryItem]) -> list[range]:
    """
    The parts of the history that truncation may drop, oldest first, each as a whole.

    Never the last one, which is to be answered, nor system and developer messages. Calls go together with their
    results.
    """
    groups: list[range] = []
    start = 0
    # Each message by itself; what stands between two messages, calls and results, is one group.
    for _, run in groupby(range(len(history)), lambda number: number if isinstance(history[number], engine_history.Message) else None):
        size = len(list(run))
        groups.append(range(start, start + size))
        start += size
    return [group for group in groups[:-1] if not _is_developer_message(history[group[0]])]


def drop_groups(history: Sequence[engine_history.HistoryItem], groups: Iterable[range]) -> History:
    """The history without these."""
    indexes = {index for group in groups for index in group}
    return tuple(item for index, item in enumerate(history) if index not in indexes)


async def drop_oldest(
    history: History,
    measure: Callable[[History], Awaitable[T]],
    size: Callable[[T], int],
    limit: int,
    target: int | None = None,
) -> tuple[History, T] | None:
    """
    The longest end of a history that fits, and its measure; None if the newest turn alone is too long.

    Args:
        measure: a history, such as by the tokens of its prompt; called once for each step of a binary search.
        size: of a measure, in tokens.
        limit: the most tokens.
        target: the most tokens once something is dropped, unless only the newest turn is left; None for `limit`.
    """
    groups = droppable_groups(history)
    low, high, best = 1, len(groups), None
    while low <= high:
        drop_count = (low + high) // 2
        shorter = drop_groups(history, groups[:drop_count])
        measurement = await measure(shorter)
        if size(measurement) <= (limit if target is None or drop_count == len(groups) else target):
            best, high = (shorter, measurement), drop_count - 1
        else:
            low = drop_count + 1
    return best


def _is_developer_message(item: engine_history.HistoryItem) -> bool:
    return isinstance(item, engine_history.Message) and item.role in ("system", "developer")
