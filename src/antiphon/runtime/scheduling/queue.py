"""
The order of waiting tickets: a plain structure that knows neither clock nor worker.

The law of the order: a ticket's rank is its time of arrival, brought forward by `PRIORITY_STEP_S` for each unit of its
priority. A rank never changes. So tickets of one priority are served in order of arrival, and one of low priority is
overtaken only by those that arrived at most that much later: no ticket starves.

A lane holds the tickets with the same needs: one kind of conversation with one model. Lanes are sorted lists, searched
by bisection; inserting into 10,000 tickets copies 80 KB, which takes some microseconds.
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
"""How much earlier a ticket counts for each unit of its priority: about the length of a conversation."""

TicketState = Literal["queued", "serving", "ended"]


class Ticket(Struct, kw_only=True, eq=False):
    """
    A conversation's place in the queue, and later its lease.

    Attributes:
        number: counts up in order of arrival.
        enqueued_s: time of arrival by the pool's clock; `enqueued_at` in Unix seconds, for people.
        assigned_s: when it got its worker, by the pool's clock; `assigned_at` in Unix seconds.
        is_parked: whether its key's limit keeps it waiting even if a worker is free.
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
        """The sort key of tickets, unique to each."""
        return (self.enqueued_s - self.priority * PRIORITY_STEP_S, self.number, self)


Rank = tuple[float, int, Ticket]
Lane = tuple[str, ConversationKind]
"""A model and a kind of conversation."""


class TicketQueue:
    """The waiting tickets."""

    def __init__(self) -> None:
        # Every waiting ticket is in `_ranks`, for its position, and in one of the other two, for its turn.
        self._ranks: dict[str, dict[ConversationKind, list[Rank]]] = {}
        self._eligible: defaultdict[Lane, list[Rank]] = defaultdict(list)
        self._parked_by_key: defaultdict[str, defaultdict[Lane, list[Rank]]] = defaultdict(lambda: defaultdict(list))
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def models(self) -> list[str]:
        """Models with waiting tickets."""
        return [model for model in self._ranks if self.length(model)]

    def length(self, model: str) -> int:
        """How many tickets wait for a model."""
        return sum(map(len, self._ranks.get(model, {}).values()))

    def add(self, ticket: Ticket, *, is_parked: bool = False) -> None:
        """Add a ticket; `is_parked` if its key is at its limit."""
        needs = ticket.requirements
        insort(self._ranks.setdefault(needs.model, {}).setdefault(needs.kind, []), ticket.rank)
        ticket.is_parked = is_parked
        lanes = self._parked_by_key[needs.key_id] if is_parked else self._eligible
        insort(lanes[needs.model, needs.kind], ticket.rank)
        self._length += 1

    def remove(self, ticket: Ticket) -> None:
        """Remove a waiting ticket."""
        needs = ticket.requirements
        _remove_rank(self._ranks[needs.model][needs.kind], ticket.rank)
        if ticket.is_parked:
            _remove_rank(self._parked_by_key[needs.key_id][needs.model, needs.kind], ticket.rank)
        else:
            _remove_rank(self._eligible[needs.model, needs.kind], ticket.rank)
        self._length -= 1

    def position(self, ticket: Ticket) -> int:
        """The position among the tickets for the same model; 1 is next."""
        rank = ticket.rank
        return 1 + sum(bisect_left(line, rank) for line in self._ranks[ticket.requirements.model].values())

    def peek(self, model: str, kinds: Collection[ConversationKind], is_key_at_limit: Callable[[str], bool]) -> Ticket | None:
        """
        The first ticket that can be served.

        Args:
            kinds: of conversation that the free worker takes.
            is_key_at_limit: whether a key may have no more leases. Its tickets are parked when they are found, so each
                is found once.
        """
        heads = [head for kind in kinds if (head := self._head((model, kind), is_key_at_limit)) is not None]
        return min(heads)[2] if heads else None

    def _head(self, lane: Lane, is_key_at_limit: Callable[[str], bool]) -> Rank | None:
        eligible = self._eligible.get(lane)
        while eligible:
            head = eligible[0]
            key = head[2].requirements.key_id
            if not is_key_at_limit(key):
                return head
            del eligible[0]
            head[2].is_parked = True
            insort(self._parked_by_key[key][lane], head)
        return None

    def unpark(self, key: str) -> list[Ticket]:
        """
        Make a key's first parked ticket of each lane eligible again, and return them; leases end one by one, so these
        suffice.
        """
        lanes = self._parked_by_key[key] if key in self._parked_by_key else {}
        ranks = sorted(line.pop(0) for line in lanes.values() if line)
        for rank in ranks:
            ticket = rank[2]
            ticket.is_parked = False
            insort(self._eligible[ticket.requirements.model, ticket.requirements.kind], rank)
        if not any(lanes.values()):
            self._parked_by_key.pop(key, None)
        return [rank[2] for rank in ranks]

    def tickets(self, model: str) -> Iterator[Ticket]:
        """The tickets that wait for a model now, in order; the queue may change while they are iterated."""
        return (rank[2] for rank in merge(*[line.copy() for line in self._ranks.get(model, {}).values()]))


def _remove_rank(ranks: list[Rank], rank: Rank) -> None:
    index = bisect_left(ranks, rank)
    assert ranks[index] is rank or ranks[index][2] is rank[2], "only a waiting ticket can be removed"
    del ranks[index]
