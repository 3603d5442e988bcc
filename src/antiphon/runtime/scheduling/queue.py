"""
Who waits, in which order: the queue as a plain structure that knows no clock and no worker.

The law of the order: a ticket's rank is when it came, brought forward by `AHEAD_S` for each number of its priority. A rank never
changes, so that within a class the order is that of coming, and whoever has a low priority is overtaken only by those who came at most
that much later: nobody starves.

A lane holds the tickets that ask for the same: one kind of conversation with one model. Lanes are sorted lists; what is put in or taken
out is found by bisection, and moving the rest of 10,000 is a copy of 80 KB, some microseconds.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from heapq import merge
from typing import Literal

from msgspec import Struct

from antiphon.engine_api.options import ConversationKind
from antiphon.runtime.scheduling.base import Requirements

PRIORITY_STEP_S = 600.0
"""How much earlier a ticket counts for each number of its priority: about as long as a conversation takes."""

TicketState = Literal["queued", "serving", "ended"]


class Ticket(Struct, kw_only=True, eq=False):
    """
    Someone who wants a place.

    Attributes:
        enqueued_s: when it came, by the clock of the pool; `enqueued_at` in Unix seconds, for people.
        number: in the order of coming.
        assigned_s: when it got its place; likewise `assigned_at`.
        is_parked: whether it must wait because of its key, whatever place there is.
    """

    id: str
    requirements: Requirements
    number: int
    priority: float
    enqueued_s: float
    enqueued_at: float
    state: TicketState = "queued"
    assigned_s: float | None = None
    assigned_at: float | None = None
    is_parked: bool = False

    @property
    def rank(self) -> "Rank":
        """What tickets are sorted by; no two have the same."""
        return (self.enqueued_s - self.priority * PRIORITY_STEP_S, self.number, self)


Rank = tuple[float, int, Ticket]
Lane = tuple[str, ConversationKind]
"""A model, and a kind of conversation."""


class TicketQueue:
    """The tickets that wait."""

    def __init__(self) -> None:
        self._ranks: dict[str, dict[ConversationKind, list[Rank]]] = {}
        self._eligible: defaultdict[Lane, list[Rank]] = defaultdict(list)
        self._parked_by_key: defaultdict[str, defaultdict[Lane, list[Rank]]] = defaultdict(lambda: defaultdict(list))
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def models(self) -> list[str]:
        """Those for which someone waits."""
        return [model for model in self._ranks if self.length(model)]

    def length(self, model: str) -> int:
        """How many wait for a model."""
        return sum(map(len, self._ranks.get(model, {}).values()))

    def add(self, ticket: Ticket, *, is_parked: bool = False) -> None:
        """One more who waits; `is_held` says that its key may have no place more."""
        wants = ticket.requirements
        insort(self._ranks.setdefault(wants.model, {}).setdefault(wants.kind, []), ticket.rank)
        ticket.is_parked = is_parked
        lanes = self._parked_by_key[wants.key_id] if is_parked else self._eligible
        insort(lanes[wants.model, wants.kind], ticket.rank)
        self._length += 1

    def remove(self, ticket: Ticket) -> None:
        """One less; it waits."""
        wants = ticket.requirements
        _remove_rank(self._ranks[wants.model][wants.kind], ticket.rank)
        if ticket.is_parked:
            _remove_rank(self._parked_by_key[wants.key_id][wants.model, wants.kind], ticket.rank)
        else:
            _remove_rank(self._eligible[wants.model, wants.kind], ticket.rank)
        self._length -= 1

    def position(self, ticket: Ticket) -> int:
        """1 for who is next among those who wait for the same model."""
        rank = ticket.rank
        return 1 + sum(bisect_left(line, rank) for line in self._ranks[ticket.requirements.model].values())

    def peek(self, model: str, kinds: Collection[ConversationKind], is_key_at_limit: Callable[[str], bool]) -> Ticket | None:
        """
        The next who can be served.

        Args:
            kinds: those that can be.
            is_held: whether a key may have no place more. Its tickets are parked when they are met, so that they are met once.
        """
        heads = [head for kind in kinds if (head := self._head((model, kind), is_key_at_limit)) is not None]
        return min(heads)[2] if heads else None

    def _head(self, lane: Lane, is_key_at_limit: Callable[[str], bool]) -> Rank | None:
        ready = self._eligible.get(lane)
        while ready:
            head = ready[0]
            key = head[2].requirements.key_id
            if not is_key_at_limit(key):
                return head
            del ready[0]
            head[2].is_parked = True
            insort(self._parked_by_key[key][lane], head)
        return None

    def unpark(self, key: str) -> list[Ticket]:
        """The first of each lane whom a key held back can be served again; a key's places come back one by one, so these are enough."""
        parked = self._parked_by_key[key] if key in self._parked_by_key else {}
        freed = sorted(line.pop(0) for line in parked.values() if line)
        for rank in freed:
            ticket = rank[2]
            ticket.is_parked = False
            insort(self._eligible[ticket.requirements.model, ticket.requirements.kind], rank)
        if not any(parked.values()):
            self._parked_by_key.pop(key, None)
        return [rank[2] for rank in freed]

    def tickets(self, model: str) -> Iterator[Ticket]:
        """All who wait for a model now, in their order, while others may come and go."""
        return (rank[2] for rank in merge(*[line.copy() for line in self._ranks.get(model, {}).values()]))


def _remove_rank(ranks: list[Rank], rank: Rank) -> None:
    at = bisect_left(ranks, rank)
    assert ranks[at] is rank or ranks[at][2] is rank[2], "who leaves the queue is in it"
    del ranks[at]
