"""The coordinator of one process: the pool with a clock, and those who wait for it."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager

from antiphon.config.settings import QueueSettings, WorkerSettings
from antiphon.engine_api import events as talk_events
from antiphon.engine_api.capabilities import Abilities
from antiphon.engine_api.options import Kind
from antiphon.errors import Fault, OurFault
from antiphon.runtime.core.metrics import Metrics
from antiphon.runtime.scheduling.base import TicketSeen, Told, Wants, Worker, WorkerSeen
from antiphon.runtime.scheduling.eta import Holding, Outlook
from antiphon.runtime.scheduling.health import Prober
from antiphon.runtime.scheduling.pool import Enlisted, Outcome, Pool, Rules, nobody_could, shutting_down
from antiphon.runtime.scheduling.positions import Teller
from antiphon.runtime.scheduling.queue import Ticket

ABSENT_S = 30.0
"""How long somebody waits for a worker that has gone: it may come back, as after the restart of a machine."""


class Places:
    """
    Gives out places with the workers that were offered; see `coordinator.Coordinator`.

    Attributes:
        settings: of the queue.
        holding: how long places are held.
    """

    def __init__(
        self,
        queue: QueueSettings | None = None,
        workers: WorkerSettings | None = None,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        absent_s: float = ABSENT_S,
    ) -> None:
        self.settings = queue or QueueSettings()
        workers = workers or WorkerSettings()
        self._pool = Pool(_rules(self.settings, workers))
        self._clock = clock
        self._absent_s = absent_s
        self._metrics = metrics or Metrics()
        self._metrics.watch_places(self._pool.waiting, self._pool.serving, self._pool.states)
        self.holding = Holding()
        self._waiters: dict[str, _Waiter] = {}
        self._teller = Teller(self._pool.queue, self._tell, self._outlook, self.settings.update_s)
        self._prober = Prober(self._pool, workers.probe_s, self._found)
        self._alarm: asyncio.TimerHandle | None = None
        self._patience: dict[str, asyncio.TimerHandle] = {}
        self._is_closed = False

    async def start(self) -> None:
        """From now on workers are looked after."""
        self._prober.start()

    async def close(self) -> None:
        """Whoever waits is told that the server stops, and nobody gets a place any more; idempotent."""
        self._is_closed = True
        for waiter in tuple(self._waiters.values()):
            waiter.refuse(shutting_down())
        for handle in (self._alarm, *self._patience.values()):
            if handle is not None:
                handle.cancel()
        self._teller.close()
        await self._prober.close()

    def lease(self, wants: Wants, told: Told, again: str | None = None) -> AbstractAsyncContextManager["Leased"]:
        """A place; see `coordinator.Coordinator.lease`."""
        return self._lease(wants, told, again)

    @contextlib.asynccontextmanager
    async def _lease(self, wants: Wants, told: Told, again: str | None) -> AsyncIterator["Leased"]:
        ticket = self._ask(wants, again)
        outcome: Outcome = "gave_up"
        leased = None
        try:
            if ticket.state == "queued":
                await self._wait(ticket, told, is_again=again is not None)
            self._metrics.queue_waits[wants.model].observe(self._clock() - ticket.enqueued_s)
            leased = Leased(ticket.id, self._pool.worker_of(ticket))
            yield leased
            outcome = "served"
        finally:
            # Nothing here awaits, so that nothing can keep the place from being given back.
            self._leave(ticket, "failed" if leased is not None and leased.has_failed else outcome)

    def _ask(self, wants: Wants, again: str | None) -> Ticket:
        if self._is_closed:
            raise shutting_down()
        try:
            return self._pool.ask(f"q_{secrets.token_hex(6)}", wants, self._clock(), time.time(), again)
        except Fault:
            self._metrics.queue_tickets[wants.model, wants.kind, "refused"] += 1
            raise

    async def _wait(self, ticket: Ticket, told: Told, *, is_again: bool) -> None:
        waiter = self._waiters[ticket.id] = _Waiter(told)
        try:
            self._teller.admit(ticket)
            if is_again:
                self._watch_absence(ticket.wants.model)
            await waiter.place
        finally:
            del self._waiters[ticket.id]

    def _leave(self, ticket: Ticket, outcome: Outcome) -> None:
        now, wants = self._clock(), ticket.wants
        if outcome == "served" and ticket.assigned_s is not None:
            self.holding.note(wants.model, wants.kind, now - ticket.assigned_s)
        self._metrics.queue_tickets[wants.model, wants.kind, outcome] += 1
        self._assign(self._pool.leave(ticket, now, time.time(), outcome))
        self._teller.changed(wants.model)
        self._watch_quarantine()

    def _assign(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._waiters[ticket.id].assign()
            self._teller.changed(ticket.wants.model)

    def _tell(self, waiting: talk_events.Waiting) -> None:
        self._waiters[waiting.id].told(waiting)

    # Workers

    def offer(self, worker: Worker) -> None:
        """A worker is there, or is back."""
        self._assign(self._pool.offer(worker, self._clock(), time.time()))

    def withdraw(self, worker_id: str) -> bool:
        """A worker is gone, or is to go; whether it was there."""
        enlisted = self._pool.withdraw(worker_id)
        if enlisted is None:
            return False
        if enlisted.worker.link is not None:
            enlisted.worker.link.dismiss()
        self._watch_absence(enlisted.worker.model)
        return True

    def drain(self, worker_id: str) -> bool:
        """Give no more places with a worker; whether it is there."""
        enlisted = self._pool.drain(worker_id)
        if enlisted is None:
            return False
        if enlisted.worker.link is not None:
            enlisted.worker.link.drain()
        self._watch_absence(enlisted.worker.model)
        return True

    def resume(self, worker_id: str) -> bool:
        """Give places with a worker again that was drained; whether it is there."""
        enlisted = self._pool.worker(worker_id)
        if enlisted is None:
            return False
        if enlisted.worker.link is not None:
            enlisted.worker.link.resume()  # before anybody comes to it
        self._assign(self._pool.resume(worker_id, self._clock(), time.time()))
        return True

    def _found(self, worker_id: str) -> None:
        """A worker that did not answer does so again."""
        self._assign(self._pool.find(worker_id, self._clock(), time.time()))

    def _watch_quarantine(self) -> None:
        """See to it that quarantines end; asked for only when a place was given back."""
        at = self._pool.next_release_s()
        if at is not None and self._alarm is None and not self._is_closed:
            self._alarm = asyncio.get_running_loop().call_later(max(0.0, at - self._clock()), self._release)

    def _release(self) -> None:
        self._alarm = None
        self._assign(self._pool.release(self._clock(), time.time()))
        self._watch_quarantine()

    def _watch_absence(self, model: str) -> None:
        """Those whom no worker of a model is left for wait for a while, in case one comes back; however others come and go meanwhile."""
        if self._pool.stranded(model) and not self._is_closed:
            if (patience := self._patience.get(model)) is not None:
                patience.cancel()
            self._patience[model] = asyncio.get_running_loop().call_later(self._absent_s, self._give_up, model)

    def _give_up(self, model: str) -> None:
        del self._patience[model]
        for ticket in self._pool.stranded(model):
            self._waiters[ticket.id].refuse(nobody_could())

    # What can be seen

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._pool.queue)

    def cancel(self, ticket_id: str) -> bool:
        """Have a ticket wait no longer; whether it did."""
        ticket = self._pool.ticket(ticket_id)
        if ticket is None or ticket.state != "queued":
            return False
        fault = OurFault("The ticket has been cancelled.", status=503, type="service_unavailable_error", code="worker_busy")
        self._waiters[ticket_id].refuse(fault)
        return True

    def ticket(self, ticket_id: str) -> TicketSeen | None:
        """One ticket; None where there is no such, or it has ended."""
        ticket = self._pool.ticket(ticket_id)
        if ticket is None:
            return None
        if ticket.state == "serving":
            return self._seen(ticket)
        return next(seen for seen in self._waiting(ticket.wants.model) if seen.id == ticket_id)

    def tickets(self) -> Sequence[TicketSeen]:
        """All tickets: those that wait in their order, model by model, then those served."""
        waiting = [seen for model in self._pool.queue.models() for seen in self._waiting(model)]
        return [*waiting, *self.served()]

    def served(self) -> Sequence[TicketSeen]:
        """Those who have a place."""
        return [self._seen(ticket) for ticket in self._pool.served()]

    def workers(self) -> Sequence[WorkerSeen]:
        """All workers."""
        return [
            WorkerSeen(
                worker=each.worker,
                state=each.state,
                taken=each.taken,
                served=each.served,
                failures=each.failures,
                joined_at=each.joined_at,
                silent_s=None if each.worker.link is None else each.worker.link.silent_s,
            )
            for each in self._pool.workers()
        ]

    def first(self, model: str) -> Worker | None:
        """The worker of a model that has been there for longest; None where there is none."""
        return next((each.worker for each in self._pool.workers() if each.worker.model == model), None)

    def offers(self, model: str) -> Abilities | None:
        """What the workers of a model can do, as the first of them says; None where there is none."""
        worker = self.first(model)
        return None if worker is None else worker.engine.abilities

    def _waiting(self, model: str) -> Iterable[TicketSeen]:
        outlook = self._outlook(model)
        for position, ticket in enumerate(self._pool.queue.waiting(model), start=1):
            yield self._seen(ticket, position, outlook.next(ticket.wants.kind))

    def _seen(self, ticket: Ticket, position: int | None = None, wait_s: float | None = None) -> TicketSeen:
        return TicketSeen(
            id=ticket.id,
            wants=ticket.wants,
            state="queued" if ticket.state == "queued" else "serving",
            enqueued_at=ticket.enqueued_at,
            position=position,
            wait_s=wait_s,
            worker_id=self._pool.worker_of(ticket).worker.id if ticket.state == "serving" else None,
            assigned_at=ticket.assigned_at,
        )

    def _outlook(self, model: str) -> Outlook:
        now = self._clock()
        places: list[tuple[tuple[Kind, ...], float]] = []
        for ticket in self._pool.served():
            enlisted = self._pool.worker_of(ticket)
            if enlisted.worker.model == model and enlisted.condition == "well" and ticket.assigned_s is not None:
                left = self.holding.left(model, ticket.wants.kind, now - ticket.assigned_s)
                places += [] if left is None else [(enlisted.worker.kinds, left)]
        places += [
            (each.worker.kinds, each.quarantined_until - now)
            for each in self._pool.workers()
            if each.condition == "quarantined" and each.worker.model == model
        ]
        return Outlook(places, lambda kind: self.holding.mean(model, kind))


class Leased:
    """A place that is had; see `coordinator.Lease`."""

    def __init__(self, ticket_id: str, enlisted: Enlisted) -> None:
        self.ticket_id = ticket_id
        self.worker = enlisted.worker
        self.has_failed = False

    def failed(self) -> None:
        """The worker did not do what it should."""
        self.has_failed = True


class _Waiter:
    """
    Someone who waits.

    Attributes:
        place: done when there is one.
    """

    def __init__(self, told: Told) -> None:
        self.told = told
        self.place: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def assign(self) -> None:
        """There is a place; where nobody waits any more, leaving gives it back."""
        if not self.place.done():
            self.place.set_result(None)

    def refuse(self, fault: Fault) -> None:
        """There will be none."""
        if not self.place.done():
            self.place.set_exception(fault)


def _rules(queue: QueueSettings, workers: WorkerSettings) -> Rules:
    return Rules(
        size=queue.size,
        waiting_per_key=queue.waiting_per_key,
        serving_per_key=queue.serving_per_key,
        priorities=queue.numbers,
        failures=workers.failures,
        quarantine_s=workers.quarantine_s,
    )
