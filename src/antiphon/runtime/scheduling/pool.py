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

from antiphon.errors import ClientMistake, Fault, OurFault
from antiphon.runtime.scheduling.base import Wants, Worker, WorkerState
from antiphon.runtime.scheduling.queue import Lane, Queue, Ticket

RETRY_AFTER_S = 10
REMEMBERED = 1024
"""How many tickets that have ended are known, for those who come again."""

Condition = Literal["well", "quarantined", "offline", "draining"]

CONDITIONS: Mapping[Condition, Mapping[str, Condition]] = {
    "well": {"drain": "draining", "quarantine": "quarantined", "lose": "offline"},
    "quarantined": {"drain": "draining", "release": "well", "lose": "offline"},
    "offline": {"drain": "draining", "find": "well"},
    "draining": {"resume": "well"},
}
"""What becomes of a worker when something happens to it; what is not here changes nothing."""

Outcome = Literal["served", "failed", "gave_up"]
"""What became of a place: it was had and left; the worker did not do what it should; whoever had it left before it was of use."""


class Rules(Struct, frozen=True, kw_only=True):
    """
    How many may wait and be served, and when a worker gets nobody.

    Attributes:
        size: the most that wait.
        waiting_per_key: likewise with the same key; 0 for no limit. Also `serving_per_key`.
        priorities: numbers by kind or key; whoever has both counts with their sum.
        failures: one after another, after which a worker gets nobody for `quarantine_s`, and then one conversation to show that it is well.
    """

    size: int = 1000
    waiting_per_key: int = 0
    serving_per_key: int = 0
    priorities: Mapping[str, float] = {}
    failures: int = 3
    quarantine_s: float = 60.0


class Enlisted(Struct, kw_only=True, eq=False):
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
    condition: Condition = "well"
    taken: int = 0
    served: int = 0
    failures: int = 0
    quarantined_until: float = 0
    shown: WorkerState | None = None

    @property
    def state(self) -> WorkerState:
        """As an operator sees it."""
        if self.condition != "well":
            return self.condition
        return "busy" if self.taken else "idle"


class Pool:
    """
    Workers, tickets, and who has whom.

    Attributes:
        queue: those who wait.
        states: how many workers of a model are in which state.
        serving: how many are served, by model; `waiting` likewise.
    """

    def __init__(self, rules: Rules | None = None) -> None:
        self.queue = Queue()
        self.states: Counter[tuple[str, WorkerState]] = Counter()
        self.serving: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        self._rules = rules or Rules()
        self._tickets: dict[str, Ticket] = {}
        self._had: dict[str, Enlisted] = {}
        self._past: OrderedDict[str, Ticket] = OrderedDict()
        self._enlisted: dict[str, Enlisted] = {}
        self._able: defaultdict[Lane, set[str]] = defaultdict(set)
        self._free: defaultdict[Lane, dict[str, Enlisted]] = defaultdict(dict)
        self._waiting_by_key: Counter[str] = Counter()
        self._serving_by_key: Counter[str] = Counter()
        self._count = 0

    # Tickets

    def ticket(self, id: str) -> Ticket | None:
        """The ticket of that id, if it waits or is served."""
        return self._tickets.get(id)

    def served(self) -> Iterator[Ticket]:
        """Those who have a place."""
        return (self._tickets[id] for id in self._had)

    def worker_of(self, ticket: Ticket) -> Enlisted:
        """With whom a ticket has its place."""
        return self._had[ticket.id]

    def ask(self, id: str, wants: Wants, now: float, wall: float = 0, again: str | None = None) -> Ticket:
        """
        A ticket, which has its place at once where there is one.

        Args:
            id: its own; where it comes again, it has the one that it had.
            now: the time, likewise everywhere here; `wall` is the same in Unix seconds.
            again: the id of a ticket whose place came to nothing; it stands where it would be now, no limit of the queue is for it, and it
                waits also where the worker that it had was the last.

        Raises:
            Fault: `worker_busy`, or `queue_full`.
        """
        past = self._past.pop(again, None) if again is not None else None
        if past is None and not self._able.get((wants.model, wants.kind)):
            raise nobody_could()
        worker = self._free_for(wants)
        if worker is None and past is None:
            self._refuse_excess(wants)
        ticket = self._made(id, wants, now, wall) if past is None else _renewed(past)
        self._tickets[ticket.id] = ticket
        if worker is not None:
            self._take(ticket, worker, now, wall)
        else:
            self.queue.add(ticket, is_held=self._is_held(wants.key_id))
            self.waiting[wants.model] += 1
            self._waiting_by_key[wants.key_id] += 1
        return ticket

    def leave(self, ticket: Ticket, now: float, wall: float = 0, outcome: Outcome = "served") -> list[Ticket]:
        """Whoever waited waits no more, or the place that was had can be given to the next; those who have one now."""
        if ticket.state == "ended":
            return []
        worker = None
        if ticket.state == "serving":
            worker = self._give_back(ticket, outcome, now)
        else:
            self._unqueue(ticket)
        ticket.state = "ended"
        del self._tickets[ticket.id]
        self._remember(ticket)
        # Before the place is given on, as whoever the key held back came before others. Also where the ticket only waited: it may have
        # been the one that its key's next place was for.
        key = ticket.wants.key_id
        freed = [] if self._is_held(key) else self.queue.unpark(key)
        got = [] if worker is None else self._fill(worker, now, wall)
        return got + self._serve([each for each in freed if each.state == "queued"], now, wall)

    def _give_back(self, ticket: Ticket, outcome: Outcome, now: float) -> Enlisted:
        """Take note that a place is had no more; with whom it was."""
        wants, worker = ticket.wants, self._had.pop(ticket.id)
        self.serving[wants.model] -= 1
        self._serving_by_key[wants.key_id] -= 1
        worker.taken -= 1
        worker.served += 1
        if outcome == "failed":
            worker.failures += 1
            if worker.failures >= self._rules.failures and worker.condition == "well":
                worker.condition = CONDITIONS["well"]["quarantine"]
                worker.quarantined_until = now + self._rules.quarantine_s
        elif outcome == "served":
            worker.failures = 0
        return worker

    def _made(self, id: str, wants: Wants, now: float, wall: float) -> Ticket:
        self._count += 1
        given = self._rules.priorities
        priority = given.get(wants.kind, 0) + given.get(wants.key_id, 0)
        return Ticket(id=id, wants=wants, number=self._count, priority=priority, enqueued_s=now, enqueued_at=wall)

    def _remember(self, ticket: Ticket) -> None:
        self._past[ticket.id] = ticket
        if len(self._past) > REMEMBERED:
            self._past.popitem(last=False)

    def _refuse_excess(self, wants: Wants) -> None:
        most = self._rules.waiting_per_key
        if most and wants.key_id and self._waiting_by_key[wants.key_id] >= most:
            raise ClientMistake(
                f"As many wait with your key as may: {most}. Please try again later.",
                status=429,
                type="rate_limit_error",
                code="queue_full",
                retry_after_s=RETRY_AFTER_S,
            )
        if len(self.queue) >= self._rules.size:
            raise _full()

    # Workers

    def workers(self) -> Collection[Enlisted]:
        """All workers, in the order in which they came."""
        return self._enlisted.values()

    def worker(self, worker_id: str) -> Enlisted | None:
        """The worker of that id, if it is there."""
        return self._enlisted.get(worker_id)

    def offer(self, worker: Worker, now: float, wall: float = 0) -> list[Ticket]:
        """A worker is there, or is back; those who have a place now."""
        self.withdraw(worker.id)
        condition: Condition = "draining" if worker.is_draining else "well"
        enlisted = self._enlisted[worker.id] = Enlisted(worker=worker, joined_at=wall, condition=condition)
        return self._fill(enlisted, now, wall)

    def withdraw(self, worker_id: str) -> Enlisted | None:
        """A worker is gone, and with it what it counted; None where there is no such one."""
        enlisted = self._enlisted.pop(worker_id, None)
        if enlisted is not None:
            self._happens(enlisted, "drain")
        return enlisted

    def drain(self, worker_id: str) -> Enlisted | None:
        """A worker is to get nobody more; None where there is no such one."""
        enlisted = self._enlisted.get(worker_id)
        if enlisted is not None:
            self._happens(enlisted, "drain")
        return enlisted

    def resume(self, worker_id: str, now: float, wall: float = 0) -> list[Ticket]:
        """A worker that was drained may get somebody again; those who have a place now."""
        if (enlisted := self._enlisted.get(worker_id)) is None:
            return []
        self._happens(enlisted, "resume")
        return self._fill(enlisted, now, wall)

    def lose(self, worker_id: str) -> None:
        """A worker does not answer."""
        if (enlisted := self._enlisted.get(worker_id)) is not None:
            self._happens(enlisted, "lose")

    def find(self, worker_id: str, now: float, wall: float = 0) -> list[Ticket]:
        """A worker answers again; those who have a place now."""
        if (enlisted := self._enlisted.get(worker_id)) is None:
            return []
        self._happens(enlisted, "find")
        return self._fill(enlisted, now, wall)

    def release(self, now: float, wall: float = 0) -> list[Ticket]:
        """The quarantine of some may be over; those who have a place now."""
        got = []
        for enlisted in self._enlisted.values():
            if enlisted.condition == "quarantined" and enlisted.quarantined_until <= now:
                self._happens(enlisted, "release")
                got += self._fill(enlisted, now, wall)
        return got

    def next_release_s(self) -> float | None:
        """When the next quarantine is over."""
        ends = [enlisted.quarantined_until for enlisted in self._enlisted.values() if enlisted.condition == "quarantined"]
        return min(ends, default=None)

    def stranded(self, model: str) -> list[Ticket]:
        """Those who wait for what no worker of a model does any more."""
        return [ticket for ticket in self.queue.waiting(model) if not self._able.get((model, ticket.wants.kind))]

    def _happens(self, enlisted: Enlisted, event: str) -> None:
        enlisted.condition = CONDITIONS[enlisted.condition].get(event, enlisted.condition)
        self._settle(enlisted)

    def _room(self, enlisted: Enlisted) -> bool:
        """Whether a worker can take one more; one that has failed so often gets one, to show that it is well."""
        if enlisted.condition != "well":
            return False
        slots = 1 if enlisted.failures >= self._rules.failures else enlisted.worker.slots
        return slots is None or enlisted.taken < slots

    def _settle(self, enlisted: Enlisted) -> None:
        """Have a worker stand where it belongs: last among those with room, as whoever had nobody for longest is first."""
        worker = enlisted.worker
        has_room, is_able = self._room(enlisted), enlisted.condition != "draining"
        for kind in worker.kinds:
            lane = (worker.model, kind)
            self._free[lane].pop(worker.id, None)
            if has_room:
                self._free[lane][worker.id] = enlisted
            if is_able:
                self._able[lane].add(worker.id)
            else:
                self._able[lane].discard(worker.id)
        self._show(enlisted, enlisted.state if self._enlisted.get(worker.id) is enlisted else None)

    def _show(self, enlisted: Enlisted, state: WorkerState | None) -> None:
        model = enlisted.worker.model
        if enlisted.shown is not None:
            self.states[model, enlisted.shown] -= 1
        if state is not None:
            self.states[model, state] += 1
        enlisted.shown = state

    # Bringing both together

    def _is_held(self, key: str) -> bool:
        most = self._rules.serving_per_key
        return bool(most and key) and self._serving_by_key[key] >= most

    def _free_for(self, wants: Wants) -> Enlisted | None:
        if self._is_held(wants.key_id):
            return None
        return next(iter(self._free[wants.model, wants.kind].values()), None)

    def _fill(self, enlisted: Enlisted, now: float, wall: float) -> list[Ticket]:
        """Give a worker's places to those who wait for them."""
        worker = enlisted.worker
        if self._enlisted.get(worker.id) is not enlisted:  # it has been withdrawn, and another may have its id by now
            return []
        got = []
        while self._room(enlisted):
            ticket = self.queue.first(worker.model, worker.kinds, self._is_held)
            if ticket is None:
                break
            self._unqueue(ticket)
            self._take(ticket, enlisted, now, wall)
            got.append(ticket)
        self._settle(enlisted)
        return got

    def _serve(self, tickets: list[Ticket], now: float, wall: float) -> list[Ticket]:
        """Give those a place for whom there is one."""
        got = []
        for ticket in tickets:
            if (enlisted := self._free_for(ticket.wants)) is not None:
                self._unqueue(ticket)
                self._take(ticket, enlisted, now, wall)
                got.append(ticket)
        return got

    def _unqueue(self, ticket: Ticket) -> None:
        self.queue.remove(ticket)
        self.waiting[ticket.wants.model] -= 1
        self._waiting_by_key[ticket.wants.key_id] -= 1

    def _take(self, ticket: Ticket, enlisted: Enlisted, now: float, wall: float) -> None:
        ticket.state, ticket.assigned_s, ticket.assigned_at = "serving", now, wall
        self._had[ticket.id] = enlisted
        self.serving[ticket.wants.model] += 1
        self._serving_by_key[ticket.wants.key_id] += 1
        enlisted.taken += 1
        self._settle(enlisted)


def _renewed(past: Ticket) -> Ticket:
    past.state, past.assigned_s, past.assigned_at = "queued", None, None
    return past


def nobody_could() -> Fault:
    """No worker does what is wanted."""
    return OurFault(
        "No worker is there for this. Please try again later.",
        status=503,
        type="service_unavailable_error",
        code="worker_busy",
        retry_after_s=RETRY_AFTER_S,
    )


def shutting_down() -> Fault:
    """Nobody gets a place any more."""
    return OurFault(
        "The server is shutting down. Please try again.",
        status=503,
        type="service_unavailable_error",
        code="shutdown",
        retry_after_s=5,
    )


def _full() -> Fault:
    return OurFault(
        "The queue is full. Please try again later.",
        status=503,
        type="service_unavailable_error",
        code="queue_full",
        retry_after_s=RETRY_AFTER_S,
    )
