"""
Who gets which place: the rule, without a clock and without waiting.

Every change is told to the pool with the time at which it happens; it answers with those who have a place now. The law: whenever nothing
happens, nobody waits whom a worker with room could serve. So a change need only be looked at for the one worker, ticket or key that it
is about.
"""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Literal

from msgspec import Struct

from antiphon.errors import ApiError, ClientError, ServerError
from antiphon.runtime.scheduling.base import Requirements, Worker, WorkerState
from antiphon.runtime.scheduling.queue import Lane, Ticket, TicketQueue

RETRY_AFTER_S = 10
MAX_ENDED_TICKETS = 1024
"""How many tickets that have ended are known, for those who come again."""

WorkerCondition = Literal["well", "quarantined", "offline", "draining"]

TRANSITIONS: Mapping[WorkerCondition, Mapping[str, WorkerCondition]] = {
    "well": {"drain": "draining", "quarantine": "quarantined", "lose": "offline"},
    "quarantined": {"drain": "draining", "release": "well", "lose": "offline"},
    "offline": {"drain": "draining", "find": "well"},
    "draining": {"resume": "well"},
}
"""What becomes of a worker when something happens to it; what is not here changes nothing."""

LeaseOutcome = Literal["served", "failed", "gave_up"]
"""What became of a place: it was had and left; the worker did not do what it should; whoever had it left before it was of use."""


class PoolRules(Struct, frozen=True, kw_only=True):
    """
    How many may wait and be served, and when a worker gets nobody.

    Attributes:
        size: the most that wait.
        waiting_per_key: likewise with the same key; 0 for no limit. Also `serving_per_key`.
        priorities: numbers by kind or key; whoever has both counts with their sum.
        failures: one after another, after which a worker gets nobody for `quarantine_s`, and then one conversation to show that it is well.
    """

    max_waiting: int = 1000
    max_waiting_per_key: int = 0
    max_serving_per_key: int = 0
    priorities: Mapping[str, float] = {}
    max_failures: int = 3
    quarantine_s: float = 60.0


class WorkerEntry(Struct, kw_only=True, eq=False):
    """
    A worker, and how it stands with it.

    Attributes:
        failures: one after another.
        quarantined_until: by the pool's clock.
        served: conversations that it has had.
        shown: the state that it was last counted with; None for one that has been withdrawn.
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
        """As an operator sees it."""
        if self.condition != "well":
            return self.condition
        return "busy" if self.lease_count else "idle"


class WorkerPool:
    """
    Workers, tickets, and who has whom.

    Attributes:
        queue: those who wait.
        states: how many workers of a model are in which state.
        serving: how many are served, by model; `waiting` likewise.
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
        """The ticket of that id, if it waits or is served."""
        return self._tickets.get(id)

    def serving_tickets(self) -> Iterator[Ticket]:
        """Those who have a place."""
        return (self._tickets[id] for id in self._leases)

    def assigned_worker(self, ticket: Ticket) -> WorkerEntry:
        """With whom a ticket has its place."""
        return self._leases[ticket.id]

    def request_lease(self, id: str, requirements: Requirements, now: float, wall: float = 0, retry_of: str | None = None) -> Ticket:
        """
        A ticket, which has its place at once where there is one.

        Args:
            id: its own; where it comes again, it has the one that it had.
            now: the time, likewise everywhere here; `wall` is the same in Unix seconds.
            again: the id of a ticket whose place came to nothing; it stands where it would be now, no limit of the queue is for it, and it
                waits also where the worker that it had was the last.

        Raises:
            ApiError: `worker_busy`, or `queue_full`.
        """
        past = self._ended_tickets.pop(retry_of, None) if retry_of is not None else None
        if past is None and not self._capable_ids.get((requirements.model, requirements.kind)):
            raise no_worker_error()
        worker = self._free_worker(requirements)
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
        """Whoever waited waits no more, or the place that was had can be given to the next; those who have one now."""
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
        # Before the place is given on, as whoever the key held back came before others. Also where the ticket only waited: it may have
        # been the one that its key's next place was for.
        key = ticket.requirements.key_id
        freed = [] if self._is_key_at_limit(key) else self.queue.unpark(key)
        got = [] if worker is None else self._fill(worker, now, wall)
        return got + self._assign_waiting([each for each in freed if each.state == "queued"], now, wall)

    def _release(self, ticket: Ticket, outcome: LeaseOutcome, now: float) -> WorkerEntry:
        """Take note that a place is had no more; with whom it was."""
        wants, worker = ticket.requirements, self._leases.pop(ticket.id)
        self.serving_counts[wants.model] -= 1
        self._serving_by_key[wants.key_id] -= 1
        worker.lease_count -= 1
        worker.served_count += 1
        if outcome == "failed":
            worker.failure_count += 1
            if worker.failure_count >= self._rules.max_failures and worker.condition == "well":
                worker.condition = TRANSITIONS["well"]["quarantine"]
                worker.quarantined_until = now + self._rules.quarantine_s
        elif outcome == "served":
            worker.failure_count = 0
        return worker

    def _new_ticket(self, id: str, requirements: Requirements, now: float, wall: float) -> Ticket:
        self._last_number += 1
        given = self._rules.priorities
        priority = given.get(requirements.kind, 0) + given.get(requirements.key_id, 0)
        return Ticket(id=id, requirements=requirements, number=self._last_number, priority=priority, enqueued_s=now, enqueued_at=wall)

    def _remember(self, ticket: Ticket) -> None:
        self._ended_tickets[ticket.id] = ticket
        if len(self._ended_tickets) > MAX_ENDED_TICKETS:
            self._ended_tickets.popitem(last=False)

    def _check_limits(self, requirements: Requirements) -> None:
        most = self._rules.max_waiting_per_key
        if most and requirements.key_id and self._waiting_by_key[requirements.key_id] >= most:
            raise ClientError(
                f"As many wait with your key as may: {most}. Please try again later.",
                status=429,
                type="rate_limit_error",
                code="queue_full",
                retry_after_s=RETRY_AFTER_S,
            )
        if len(self.queue) >= self._rules.max_waiting:
            raise _queue_full_error()

    # Workers

    def workers(self) -> Collection[WorkerEntry]:
        """All workers, in the order in which they came."""
        return self._entries.values()

    def worker(self, worker_id: str) -> WorkerEntry | None:
        """The worker of that id, if it is there."""
        return self._entries.get(worker_id)

    def add_worker(self, worker: Worker, now: float, wall: float = 0) -> list[Ticket]:
        """A worker is there, or is back; those who have a place now."""
        self.remove_worker(worker.id)
        condition: WorkerCondition = "draining" if worker.is_draining else "well"
        enlisted = self._entries[worker.id] = WorkerEntry(worker=worker, joined_at=wall, condition=condition)
        return self._fill(enlisted, now, wall)

    def remove_worker(self, worker_id: str) -> WorkerEntry | None:
        """A worker is gone, and with it what it counted; None where there is no such one."""
        enlisted = self._entries.pop(worker_id, None)
        if enlisted is not None:
            self._apply(enlisted, "drain")
        return enlisted

    def drain(self, worker_id: str) -> WorkerEntry | None:
        """A worker is to get nobody more; None where there is no such one."""
        enlisted = self._entries.get(worker_id)
        if enlisted is not None:
            self._apply(enlisted, "drain")
        return enlisted

    def resume(self, worker_id: str, now: float, wall: float = 0) -> list[Ticket]:
        """A worker that was drained may get somebody again; those who have a place now."""
        if (enlisted := self._entries.get(worker_id)) is None:
            return []
        self._apply(enlisted, "resume")
        return self._fill(enlisted, now, wall)

    def mark_offline(self, worker_id: str) -> None:
        """A worker does not answer."""
        if (enlisted := self._entries.get(worker_id)) is not None:
            self._apply(enlisted, "lose")

    def mark_online(self, worker_id: str, now: float, wall: float = 0) -> list[Ticket]:
        """A worker answers again; those who have a place now."""
        if (enlisted := self._entries.get(worker_id)) is None:
            return []
        self._apply(enlisted, "find")
        return self._fill(enlisted, now, wall)

    def end_quarantines(self, now: float, wall: float = 0) -> list[Ticket]:
        """The quarantine of some may be over; those who have a place now."""
        got = []
        for enlisted in self._entries.values():
            if enlisted.condition == "quarantined" and enlisted.quarantined_until <= now:
                self._apply(enlisted, "release")
                got += self._fill(enlisted, now, wall)
        return got

    def next_quarantine_end_s(self) -> float | None:
        """When the next quarantine is over."""
        ends = [enlisted.quarantined_until for enlisted in self._entries.values() if enlisted.condition == "quarantined"]
        return min(ends, default=None)

    def unservable_tickets(self, model: str) -> list[Ticket]:
        """Those who wait for what no worker of a model does any more."""
        return [ticket for ticket in self.queue.tickets(model) if not self._capable_ids.get((model, ticket.requirements.kind))]

    def _apply(self, entry: WorkerEntry, event: str) -> None:
        entry.condition = TRANSITIONS[entry.condition].get(event, entry.condition)
        self._reindex(entry)

    def _has_room(self, entry: WorkerEntry) -> bool:
        """Whether a worker can take one more; one that has failed so often gets one, to show that it is well."""
        if entry.condition != "well":
            return False
        slots = 1 if entry.failure_count >= self._rules.max_failures else entry.worker.slots
        return slots is None or entry.lease_count < slots

    def _reindex(self, entry: WorkerEntry) -> None:
        """Have a worker stand where it belongs: last among those with room, as whoever had nobody for longest is first."""
        worker = entry.worker
        has_room, is_able = self._has_room(entry), entry.condition != "draining"
        for kind in worker.kinds:
            lane = (worker.model, kind)
            self._free_entries[lane].pop(worker.id, None)
            if has_room:
                self._free_entries[lane][worker.id] = entry
            if is_able:
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

    # Bringing both together

    def _is_key_at_limit(self, key: str) -> bool:
        most = self._rules.max_serving_per_key
        return bool(most and key) and self._serving_by_key[key] >= most

    def _free_worker(self, requirements: Requirements) -> WorkerEntry | None:
        if self._is_key_at_limit(requirements.key_id):
            return None
        return next(iter(self._free_entries[requirements.model, requirements.kind].values()), None)

    def _fill(self, entry: WorkerEntry, now: float, wall: float) -> list[Ticket]:
        """Give a worker's places to those who wait for them."""
        worker = entry.worker
        if self._entries.get(worker.id) is not entry:  # it has been withdrawn, and another may have its id by now
            return []
        got = []
        while self._has_room(entry):
            ticket = self.queue.peek(worker.model, worker.kinds, self._is_key_at_limit)
            if ticket is None:
                break
            self._dequeue(ticket)
            self._assign(ticket, entry, now, wall)
            got.append(ticket)
        self._reindex(entry)
        return got

    def _assign_waiting(self, tickets: list[Ticket], now: float, wall: float) -> list[Ticket]:
        """Give those a place for whom there is one."""
        got = []
        for ticket in tickets:
            if (enlisted := self._free_worker(ticket.requirements)) is not None:
                self._dequeue(ticket)
                self._assign(ticket, enlisted, now, wall)
                got.append(ticket)
        return got

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
    """No worker does what is wanted."""
    return ServerError(
        "No worker is there for this. Please try again later.",
        status=503,
        type="service_unavailable_error",
        code="worker_busy",
        retry_after_s=RETRY_AFTER_S,
    )


def shutting_down_error() -> ApiError:
    """Nobody gets a place any more."""
    return ServerError(
        "The server is shutting down. Please try again.",
        status=503,
        type="service_unavailable_error",
        code="shutdown",
        retry_after_s=5,
    )


def _queue_full_error() -> ApiError:
    return ServerError(
        "The queue is full. Please try again later.",
        status=503,
        type="service_unavailable_error",
        code="queue_full",
        retry_after_s=RETRY_AFTER_S,
    )
