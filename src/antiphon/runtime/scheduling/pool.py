"""
Which ticket gets which worker: the rule alone, without a clock and without waiting.

Every change is reported to the pool with its time, and the pool returns the tickets that have a worker now. The law:
between changes, no ticket waits that a worker with room could serve. So each change only concerns the one worker,
ticket or key that it is about.
"""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Literal

from msgspec import Struct

from antiphon.errors import ApiError, ClientError, overloaded_error
from antiphon.runtime.scheduling.base import Requirements, Worker, WorkerState
from antiphon.runtime.scheduling.queue import Lane, Ticket, TicketQueue

RETRY_AFTER_S = 10
MAX_ENDED_TICKETS = 1024
"""How many ended tickets are remembered, so that a retry gets back the position of its first try."""

WorkerCondition = Literal["well", "quarantined", "offline", "draining"]

TRANSITIONS: Mapping[WorkerCondition, Mapping[str, WorkerCondition]] = {
    "well": {"drain": "draining", "quarantine": "quarantined", "go_offline": "offline"},
    "quarantined": {"drain": "draining", "release": "well", "go_offline": "offline"},
    "offline": {"drain": "draining", "go_online": "well"},
    "draining": {"resume": "well"},
}
"""A worker's next condition by what happens to it; what is not listed changes nothing."""

LeaseOutcome = Literal["served", "failed", "gave_up", "cancelled"]
"""How a ticket ended: the client left after being served; the worker failed; the client left before it had a worker."""


class PoolRules(Struct, frozen=True, kw_only=True):
    """
    How many tickets may wait and be served, and when a worker is put in quarantine.

    Attributes:
        max_waiting_per_key: 0 for no limit.
        max_serving_per_key: 0 for no limit.
        priorities: by kind of conversation or by key id; a ticket with both gets their sum.
        max_failures: in a row, after which a worker gets nothing for `quarantine_s`, and then one conversation as a
            trial.
    """

    max_waiting: int = 1000
    max_waiting_per_key: int = 0
    max_serving_per_key: int = 0
    priorities: Mapping[str, float] = {}
    max_failures: int = 3
    quarantine_s: float = 60.0


class WorkerEntry(Struct, kw_only=True, eq=False):
    """
    A worker and its state in the pool.

    Attributes:
        served_count: conversations that it had.
        failure_count: failures in a row.
        quarantined_until: by the pool's clock, in seconds.
        counted_state: the state under which `worker_counts` counts it; None once it was removed.
    """

    worker: Worker
    joined_at: float = 0
    condition: WorkerCondition = "well"
    lease_count: int = 0
    served_count: int = 0
    failure_count: int = 0
    quarantined_until: float = 0
    counted_state: WorkerState | None = None

    @property
    def state(self) -> WorkerState:
        """The state shown to operators."""
        if self.condition != "well":
            return self.condition
        return "busy" if self.lease_count else "idle"


class WorkerPool:
    """
    Workers, tickets, and which ticket has which worker.

    Attributes:
        queue: the waiting tickets.
        worker_counts: workers by model and state.
        serving_counts: tickets being served, by model.
        waiting_counts: tickets that wait, by model.
    """

    def __init__(self, rules: PoolRules | None = None) -> None:
        self.queue = TicketQueue()
        self.worker_counts: Counter[tuple[str, WorkerState]] = Counter()
        self.serving_counts: Counter[str] = Counter()
        self.waiting_counts: Counter[str] = Counter()
        self._rules = rules or PoolRules()
        self._tickets: dict[str, Ticket] = {}
        self._leases: dict[str, WorkerEntry] = {}
        self._ended_tickets: OrderedDict[str, Ticket] = OrderedDict()
        self._entries: dict[str, WorkerEntry] = {}
        self._capable_ids: defaultdict[Lane, set[str]] = defaultdict(set)
        self._free_entries: defaultdict[Lane, dict[str, WorkerEntry]] = defaultdict(dict)
        self._waiting_by_key: Counter[str] = Counter()
        self._serving_by_key: Counter[str] = Counter()
        self._last_number = 0

    # Tickets

    def ticket(self, id: str) -> Ticket | None:
        """The ticket of that id while it waits or is served."""
        return self._tickets.get(id)

    def serving_tickets(self) -> Iterator[Ticket]:
        """The tickets that have a worker, in the order in which they got it."""
        return (self._tickets[id] for id in self._leases)

    def assigned_worker(self, ticket: Ticket) -> WorkerEntry:
        """The worker of a ticket that is being served."""
        return self._leases[ticket.id]

    def request_lease(self, id: str, requirements: Requirements, now: float, wall: float = 0, retry_of: str | None = None) -> Ticket:
        """
        A new ticket, which has its worker at once if one is free.

        Args:
            id: of a new ticket; a retry keeps the id that it had.
            now: seconds by the pool's clock, here and in every other method; `wall` is the same moment in Unix seconds.
            retry_of: the id of a ticket whose worker failed it. It keeps its rank, no limit of the queue applies to it,
                and it may wait even if no worker is left.

        Raises:
            ApiError: `worker_busy`, or `queue_full`.
        """
        past = self._ended_tickets.pop(retry_of, None) if retry_of is not None else None
        if past is None and not self._capable_ids.get((requirements.model, requirements.kind)):
            raise no_worker_error()
        worker = self._free_worker(requirements)
        # The limits are those of the queue: who gets a worker at once takes no place in it.
        if worker is None and past is None:
            self._check_limits(requirements)
        ticket = self._new_ticket(id, requirements, now, wall) if past is None else _requeue(past)
        self._tickets[ticket.id] = ticket
        if worker is not None:
            self._assign(ticket, worker, now, wall)
        else:
            self.queue.add(ticket, is_parked=self._is_key_at_limit(requirements.key_id))
            self.waiting_counts[requirements.model] += 1
            self._waiting_by_key[requirements.key_id] += 1
        return ticket

    def end_ticket(self, ticket: Ticket, now: float, wall: float = 0, outcome: LeaseOutcome = "served") -> list[Ticket]:
        """A ticket leaves the queue, or its worker; the tickets that have a worker now because of that."""
        if ticket.state == "ended":
            return []
        worker = None
        if ticket.state == "serving":
            worker = self._release(ticket, outcome, now)
        else:
            self._dequeue(ticket)
        ticket.state = "ended"
        del self._tickets[ticket.id]
        self._remember(ticket)
        # Before the worker is given to the next: tickets that their key's limit held back may rank before others. Also
        # if the ticket only waited: it may have been the one to which the key's next worker was promised.
        key = ticket.requirements.key_id
        unparked_tickets = [] if self._is_key_at_limit(key) else self.queue.unpark(key)
        tickets = [] if worker is None else self._fill(worker, now, wall)
        return tickets + self._assign_waiting([each for each in unparked_tickets if each.state == "queued"], now, wall)

    def _release(self, ticket: Ticket, outcome: LeaseOutcome, now: float) -> WorkerEntry:
        requirements, worker = ticket.requirements, self._leases.pop(ticket.id)
        self.serving_counts[requirements.model] -= 1
        self._serving_by_key[requirements.key_id] -= 1
        worker.lease_count -= 1
        worker.served_count += 1
        if outcome == "failed":
            worker.failure_count += 1
            # A worker that is drained or offline gets nothing anyway, and must not come back by the end of a quarantine.
            if worker.failure_count >= self._rules.max_failures and worker.condition == "well":
                worker.condition = TRANSITIONS["well"]["quarantine"]
                worker.quarantined_until = now + self._rules.quarantine_s
        # A client that gave up tells nothing about the worker, so it neither ends a row of failures nor adds to it.
        elif outcome == "served":
            worker.failure_count = 0
        return worker

    def _new_ticket(self, id: str, requirements: Requirements, now: float, wall: float) -> Ticket:
        self._last_number += 1
        priorities = self._rules.priorities
        priority = priorities.get(requirements.kind, 0) + priorities.get(requirements.key_id, 0)
        return Ticket(id=id, requirements=requirements, number=self._last_number, priority=priority, enqueued_s=now, enqueued_at=wall)

    def _remember(self, ticket: Ticket) -> None:
        self._ended_tickets[ticket.id] = ticket
        if len(self._ended_tickets) > MAX_ENDED_TICKETS:
            self._ended_tickets.popitem(last=False)

    def _check_limits(self, requirements: Requirements) -> None:
        limit = self._rules.max_waiting_per_key
        # The limit of a key is the client's to respect (429); a queue that is full for all is the server's problem (503).
        if limit and requirements.key_id and self._waiting_by_key[requirements.key_id] >= limit:
            raise ClientError(
                f"The limit of {limit} waiting with your key is reached. Please try again later.",
                status=429,
                type="rate_limit_error",
                code="queue_full",
                retry_after_s=RETRY_AFTER_S,
            )
        if len(self.queue) >= self._rules.max_waiting:
            raise overloaded_error("The queue is full. Please try again later.", code="queue_full", retry_after_s=RETRY_AFTER_S)

    # Workers

    def workers(self) -> Collection[WorkerEntry]:
        """All workers, in the order in which they were added."""
        return self._entries.values()

    def worker(self, worker_id: str) -> WorkerEntry | None:
        """The worker of that id, or None."""
        return self._entries.get(worker_id)

    def add_worker(self, worker: Worker, now: float, wall: float = 0) -> list[Ticket]:
        """Add a worker; returns the tickets that it serves at once. One with the same id is replaced."""
        self.remove_worker(worker.id)
        condition: WorkerCondition = "draining" if worker.is_draining else "well"
        entry = self._entries[worker.id] = WorkerEntry(worker=worker, joined_at=wall, condition=condition)
        return self._fill(entry, now, wall)

    def remove_worker(self, worker_id: str) -> WorkerEntry | None:
        """Forget a worker and its failures; its tickets keep it until they end. None without such a worker."""
        entry = self._entries.pop(worker_id, None)
        if entry is not None:
            self._apply(entry, "drain")
        return entry

    def drain(self, worker_id: str) -> WorkerEntry | None:
        """Give a worker no more tickets; None without such a worker."""
        entry = self._entries.get(worker_id)
        if entry is not None:
            self._apply(entry, "drain")
        return entry

    def resume(self, worker_id: str, now: float, wall: float = 0) -> list[Ticket]:
        """Give tickets to a drained worker again; returns those that it serves at once."""
        if (entry := self._entries.get(worker_id)) is None:
            return []
        self._apply(entry, "resume")
        return self._fill(entry, now, wall)

    def mark_offline(self, worker_id: str) -> None:
        """Give nothing to a worker that does not answer, until `mark_online`."""
        if (entry := self._entries.get(worker_id)) is not None:
            self._apply(entry, "go_offline")

    def mark_online(self, worker_id: str, now: float, wall: float = 0) -> list[Ticket]:
        """Give tickets to a worker that answers again; returns those that it serves at once."""
        if (entry := self._entries.get(worker_id)) is None:
            return []
        self._apply(entry, "go_online")
        return self._fill(entry, now, wall)

    def end_quarantines(self, now: float, wall: float = 0) -> list[Ticket]:
        """End the quarantines whose time is over; returns the tickets that have a worker now."""
        tickets = []
        for entry in self._entries.values():
            if entry.condition == "quarantined" and entry.quarantined_until <= now:
                self._apply(entry, "release")
                tickets += self._fill(entry, now, wall)
        return tickets

    def next_quarantine_end_s(self) -> float | None:
        """When the next quarantine ends, by the pool's clock."""
        ends = [entry.quarantined_until for entry in self._entries.values() if entry.condition == "quarantined"]
        return min(ends, default=None)

    def unservable_tickets(self, model: str) -> list[Ticket]:
        """Waiting tickets of a kind that no worker of the model serves any more."""
        return [ticket for ticket in self.queue.tickets(model) if not self._capable_ids.get((model, ticket.requirements.kind))]

    def _apply(self, entry: WorkerEntry, event: str) -> None:
        entry.condition = TRANSITIONS[entry.condition].get(event, entry.condition)
        self._reindex(entry)

    def _has_room(self, entry: WorkerEntry) -> bool:
        """
        Whether a worker can take another ticket; after a quarantine it gets one at a time, until it has served one
        well.
        """
        if entry.condition != "well":
            return False
        slots = 1 if entry.failure_count >= self._rules.max_failures else entry.worker.slots
        return slots is None or entry.lease_count < slots

    def _reindex(self, entry: WorkerEntry) -> None:
        """Put a worker into its lanes anew: last among those with room, so that the one idle for longest is first."""
        worker = entry.worker
        # A worker that is offline or in quarantine may be back soon, so tickets wait for it; one that is draining is on its way out.
        has_room, is_capable = self._has_room(entry), entry.condition != "draining"
        for kind in worker.kinds:
            lane = (worker.model, kind)
            self._free_entries[lane].pop(worker.id, None)
            if has_room:
                self._free_entries[lane][worker.id] = entry
            if is_capable:
                self._capable_ids[lane].add(worker.id)
            else:
                self._capable_ids[lane].discard(worker.id)
        self._count_state(entry, entry.state if self._entries.get(worker.id) is entry else None)

    def _count_state(self, entry: WorkerEntry, state: WorkerState | None) -> None:
        model = entry.worker.model
        if entry.counted_state is not None:
            self.worker_counts[model, entry.counted_state] -= 1
        if state is not None:
            self.worker_counts[model, state] += 1
        entry.counted_state = state

    # Matching

    def _is_key_at_limit(self, key: str) -> bool:
        limit = self._rules.max_serving_per_key
        return bool(limit and key) and self._serving_by_key[key] >= limit

    def _free_worker(self, requirements: Requirements) -> WorkerEntry | None:
        if self._is_key_at_limit(requirements.key_id):
            return None
        return next(iter(self._free_entries[requirements.model, requirements.kind].values()), None)

    def _fill(self, entry: WorkerEntry, now: float, wall: float) -> list[Ticket]:
        worker = entry.worker
        if self._entries.get(worker.id) is not entry:  # it was removed, and another may have its id by now
            return []
        tickets = []
        while self._has_room(entry):
            ticket = self.queue.peek(worker.model, worker.kinds, self._is_key_at_limit)
            if ticket is None:
                break
            self._dequeue(ticket)
            self._assign(ticket, entry, now, wall)
            tickets.append(ticket)
        self._reindex(entry)
        return tickets

    def _assign_waiting(self, tickets: list[Ticket], now: float, wall: float) -> list[Ticket]:
        serving = []
        for ticket in tickets:
            if (entry := self._free_worker(ticket.requirements)) is not None:
                self._dequeue(ticket)
                self._assign(ticket, entry, now, wall)
                serving.append(ticket)
        return serving

    def _dequeue(self, ticket: Ticket) -> None:
        self.queue.remove(ticket)
        self.waiting_counts[ticket.requirements.model] -= 1
        self._waiting_by_key[ticket.requirements.key_id] -= 1

    def _assign(self, ticket: Ticket, entry: WorkerEntry, now: float, wall: float) -> None:
        ticket.state, ticket.assigned_s, ticket.assigned_at = "serving", now, wall
        self._leases[ticket.id] = entry
        self.serving_counts[ticket.requirements.model] += 1
        self._serving_by_key[ticket.requirements.key_id] += 1
        entry.lease_count += 1
        self._reindex(entry)


def _requeue(ticket: Ticket) -> Ticket:
    ticket.state, ticket.assigned_s, ticket.assigned_at = "queued", None, None
    return ticket


def no_worker_error() -> ApiError:
    """No worker serves this kind of conversation with the model."""
    return overloaded_error("No worker is available for this. Please try again later.", code="worker_busy", retry_after_s=RETRY_AFTER_S)
