"""The coordinator of one process: the pool with a clock, and those who wait for it."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager

from antiphon.config.settings import QueueSettings, WorkerSettings
from antiphon.engine_api import events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import ConversationKind
from antiphon.errors import ApiError, ServerError
from antiphon.runtime.core.metrics import Metrics
from antiphon.runtime.scheduling.base import OnQueueUpdate, Requirements, TicketView, Worker, WorkerView
from antiphon.runtime.scheduling.eta import LeaseDurations, WaitForecast
from antiphon.runtime.scheduling.health import HealthChecker
from antiphon.runtime.scheduling.pool import LeaseOutcome, PoolRules, WorkerEntry, WorkerPool, no_worker_error, shutting_down_error
from antiphon.runtime.scheduling.positions import PositionNotifier
from antiphon.runtime.scheduling.queue import Ticket

ABSENCE_S = 30.0
"""How long somebody waits for a worker that has gone: it may come back, as after the restart of a machine."""


class LocalCoordinator:
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
        absence_s: float = ABSENCE_S,
    ) -> None:
        self.settings = queue or QueueSettings()
        workers = workers or WorkerSettings()
        self._pool = WorkerPool(_pool_rules(self.settings, workers))
        self._clock = clock
        self._absence_s = absence_s
        self._metrics = metrics or Metrics()
        self._metrics.attach_pool(self._pool.waiting_counts, self._pool.serving_counts, self._pool.worker_counts)
        self.lease_durations = LeaseDurations()
        self._waiters: dict[str, _Waiter] = {}
        self._notifier = PositionNotifier(self._pool.queue, self._notify, self._forecast, self.settings.update_s)
        self._health_checker = HealthChecker(self._pool, workers.probe_s, self._on_worker_online)
        self._quarantine_timer: asyncio.TimerHandle | None = None
        self._absence_timers: dict[str, asyncio.TimerHandle] = {}
        self._is_closed = False

    async def start(self) -> None:
        """From now on workers are looked after."""
        self._health_checker.start()

    async def close(self) -> None:
        """Whoever waits is told that the server stops, and nobody gets a place any more; idempotent."""
        self._is_closed = True
        for waiter in tuple(self._waiters.values()):
            waiter.refuse(shutting_down_error())
        for handle in (self._quarantine_timer, *self._absence_timers.values()):
            if handle is not None:
                handle.cancel()
        self._notifier.close()
        await self._health_checker.close()

    def lease(
        self, requirements: Requirements, on_queue_update: OnQueueUpdate, retry_of: str | None = None
    ) -> AbstractAsyncContextManager["LocalLease"]:
        """A place; see `coordinator.Coordinator.lease`."""
        return self._lease(requirements, on_queue_update, retry_of)

    @contextlib.asynccontextmanager
    async def _lease(self, requirements: Requirements, on_queue_update: OnQueueUpdate, retry_of: str | None) -> AsyncIterator["LocalLease"]:
        ticket = self._request_lease(requirements, retry_of)
        outcome: LeaseOutcome = "gave_up"
        leased = None
        try:
            if ticket.state == "queued":
                await self._wait(ticket, on_queue_update, is_retry=retry_of is not None)
            self._metrics.queue_waits[requirements.model].observe(self._clock() - ticket.enqueued_s)
            leased = LocalLease(ticket.id, self._pool.assigned_worker(ticket))
            yield leased
            outcome = "served"
        finally:
            # Nothing here awaits, so that nothing can keep the place from being given back.
            self._end_ticket(ticket, "failed" if leased is not None and leased.has_failed else outcome)

    def _request_lease(self, requirements: Requirements, retry_of: str | None) -> Ticket:
        if self._is_closed:
            raise shutting_down_error()
        try:
            return self._pool.request_lease(f"q_{secrets.token_hex(6)}", requirements, self._clock(), time.time(), retry_of)
        except ApiError:
            self._metrics.queue_tickets[requirements.model, requirements.kind, "refused"] += 1
            raise

    async def _wait(self, ticket: Ticket, on_queue_update: OnQueueUpdate, *, is_retry: bool) -> None:
        waiter = self._waiters[ticket.id] = _Waiter(on_queue_update)
        try:
            self._notifier.admit(ticket)
            if is_retry:
                self._arm_absence_timer(ticket.requirements.model)
            await waiter.assignment
        finally:
            del self._waiters[ticket.id]

    def _end_ticket(self, ticket: Ticket, outcome: LeaseOutcome) -> None:
        now, wants = self._clock(), ticket.requirements
        if outcome == "served" and ticket.assigned_s is not None:
            self.lease_durations.observe(wants.model, wants.kind, now - ticket.assigned_s)
        self._metrics.queue_tickets[wants.model, wants.kind, outcome] += 1
        self._assign(self._pool.end_ticket(ticket, now, time.time(), outcome))
        self._notifier.mark_changed(wants.model)
        self._arm_quarantine_timer()

    def _assign(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._waiters[ticket.id].assign()
            self._notifier.mark_changed(ticket.requirements.model)

    def _notify(self, update: events.QueueUpdate) -> None:
        self._waiters[update.id].on_queue_update(update)

    # Workers

    def add_worker(self, worker: Worker) -> None:
        """A worker is there, or is back."""
        self._assign(self._pool.add_worker(worker, self._clock(), time.time()))

    def remove_worker(self, worker_id: str) -> bool:
        """A worker is gone, or is to go; whether it was there."""
        enlisted = self._pool.remove_worker(worker_id)
        if enlisted is None:
            return False
        if enlisted.worker.link is not None:
            enlisted.worker.link.dismiss()
        self._arm_absence_timer(enlisted.worker.model)
        return True

    def drain(self, worker_id: str) -> bool:
        """Give no more places with a worker; whether it is there."""
        enlisted = self._pool.drain(worker_id)
        if enlisted is None:
            return False
        if enlisted.worker.link is not None:
            enlisted.worker.link.drain()
        self._arm_absence_timer(enlisted.worker.model)
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

    def _on_worker_online(self, worker_id: str) -> None:
        """A worker that did not answer does so again."""
        self._assign(self._pool.mark_online(worker_id, self._clock(), time.time()))

    def _arm_quarantine_timer(self) -> None:
        """See to it that quarantines end; asked for only when a place was given back."""
        at = self._pool.next_quarantine_end_s()
        if at is not None and self._quarantine_timer is None and not self._is_closed:
            self._quarantine_timer = asyncio.get_running_loop().call_later(max(0.0, at - self._clock()), self._end_quarantines)

    def _end_quarantines(self) -> None:
        self._quarantine_timer = None
        self._assign(self._pool.end_quarantines(self._clock(), time.time()))
        self._arm_quarantine_timer()

    def _arm_absence_timer(self, model: str) -> None:
        """Those whom no worker of a model is left for wait for a while, in case one comes back; however others come and go meanwhile."""
        if self._pool.unservable_tickets(model) and not self._is_closed:
            if (patience := self._absence_timers.get(model)) is not None:
                patience.cancel()
            self._absence_timers[model] = asyncio.get_running_loop().call_later(self._absence_s, self._refuse_unservable, model)

    def _refuse_unservable(self, model: str) -> None:
        del self._absence_timers[model]
        for ticket in self._pool.unservable_tickets(model):
            self._waiters[ticket.id].refuse(no_worker_error())

    # What can be seen

    @property
    def waiting_count(self) -> int:
        """How many wait."""
        return len(self._pool.queue)

    def cancel(self, ticket_id: str) -> bool:
        """Have a ticket wait no longer; whether it did."""
        ticket = self._pool.ticket(ticket_id)
        if ticket is None or ticket.state != "queued":
            return False
        fault = ServerError("The ticket has been cancelled.", status=503, type="service_unavailable_error", code="worker_busy")
        self._waiters[ticket_id].refuse(fault)
        return True

    def ticket(self, ticket_id: str) -> TicketView | None:
        """One ticket; None where there is no such, or it has ended."""
        ticket = self._pool.ticket(ticket_id)
        if ticket is None:
            return None
        if ticket.state == "serving":
            return self._ticket_view(ticket)
        return next(seen for seen in self._waiting_tickets(ticket.requirements.model) if seen.id == ticket_id)

    def tickets(self) -> Sequence[TicketView]:
        """All tickets: those that wait in their order, model by model, then those served."""
        waiting = [seen for model in self._pool.queue.models() for seen in self._waiting_tickets(model)]
        return [*waiting, *self.serving_tickets()]

    def serving_tickets(self) -> Sequence[TicketView]:
        """Those who have a place."""
        return [self._ticket_view(ticket) for ticket in self._pool.serving_tickets()]

    def workers(self) -> Sequence[WorkerView]:
        """All workers."""
        return [
            WorkerView(
                worker=each.worker,
                state=each.state,
                lease_count=each.lease_count,
                served_count=each.served_count,
                failure_count=each.failure_count,
                joined_at=each.joined_at,
                silent_s=None if each.worker.link is None else each.worker.link.silent_s,
            )
            for each in self._pool.workers()
        ]

    def first_worker(self, model: str) -> Worker | None:
        """The worker of a model that has been there for longest; None where there is none."""
        return next((each.worker for each in self._pool.workers() if each.worker.model == model), None)

    def capabilities(self, model: str) -> Capabilities | None:
        """What the workers of a model can do, as the first of them says; None where there is none."""
        worker = self.first_worker(model)
        return None if worker is None else worker.engine.capabilities

    def _waiting_tickets(self, model: str) -> Iterable[TicketView]:
        outlook = self._forecast(model)
        for position, ticket in enumerate(self._pool.queue.tickets(model), start=1):
            yield self._ticket_view(ticket, position, outlook.next_wait_s(ticket.requirements.kind))

    def _ticket_view(self, ticket: Ticket, position: int | None = None, wait_s: float | None = None) -> TicketView:
        return TicketView(
            id=ticket.id,
            requirements=ticket.requirements,
            state="queued" if ticket.state == "queued" else "serving",
            enqueued_at=ticket.enqueued_at,
            position=position,
            wait_s=wait_s,
            worker_id=self._pool.assigned_worker(ticket).worker.id if ticket.state == "serving" else None,
            assigned_at=ticket.assigned_at,
        )

    def _forecast(self, model: str) -> WaitForecast:
        now = self._clock()
        places: list[tuple[tuple[ConversationKind, ...], float]] = []
        for ticket in self._pool.serving_tickets():
            enlisted = self._pool.assigned_worker(ticket)
            if enlisted.worker.model == model and enlisted.condition == "well" and ticket.assigned_s is not None:
                left = self.lease_durations.remaining_s(model, ticket.requirements.kind, now - ticket.assigned_s)
                places += [] if left is None else [(enlisted.worker.kinds, left)]
        places += [
            (each.worker.kinds, each.quarantined_until - now)
            for each in self._pool.workers()
            if each.condition == "quarantined" and each.worker.model == model
        ]
        return WaitForecast(places, lambda kind: self.lease_durations.mean_s(model, kind))


class LocalLease:
    """A place that is had; see `coordinator.Lease`."""

    def __init__(self, ticket_id: str, entry: WorkerEntry) -> None:
        self.ticket_id = ticket_id
        self.worker = entry.worker
        self.has_failed = False

    def mark_failed(self) -> None:
        """The worker did not do what it should."""
        self.has_failed = True


class _Waiter:
    """
    Someone who waits.

    Attributes:
        place: done when there is one.
    """

    def __init__(self, on_queue_update: OnQueueUpdate) -> None:
        self.on_queue_update = on_queue_update
        self.assignment: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def assign(self) -> None:
        """There is a place; where nobody waits any more, leaving gives it back."""
        if not self.assignment.done():
            self.assignment.set_result(None)

    def refuse(self, fault: ApiError) -> None:
        """There will be none."""
        if not self.assignment.done():
            self.assignment.set_exception(fault)


def _pool_rules(queue: QueueSettings, workers: WorkerSettings) -> PoolRules:
    return PoolRules(
        max_waiting=queue.size,
        max_waiting_per_key=queue.waiting_per_key,
        max_serving_per_key=queue.serving_per_key,
        priorities=queue.priority_by_name,
        max_failures=workers.failures,
        quarantine_s=workers.quarantine_s,
    )
