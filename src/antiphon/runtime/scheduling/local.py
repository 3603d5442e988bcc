"""The coordinator of one process: the pool with a clock, and the tasks that wait for a worker."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType

from antiphon.config.settings import QueueSettings, WorkerSettings
from antiphon.engine_api import events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import ConversationKind
from antiphon.errors import ApiError, overloaded_error, shutting_down
from antiphon.runtime.core.ids import new_short_id
from antiphon.runtime.core.metrics import Metrics
from antiphon.runtime.scheduling.base import OnQueueUpdate, Requirements, TicketView, Worker, WorkerView
from antiphon.runtime.scheduling.eta import LeaseDurations, WaitForecast, first_guesses
from antiphon.runtime.scheduling.health import HealthChecker
from antiphon.runtime.scheduling.pool import LeaseOutcome, PoolRules, WorkerEntry, WorkerPool, no_worker_error
from antiphon.runtime.scheduling.positions import PositionNotifier
from antiphon.runtime.scheduling.queue import Ticket

ABSENCE_S = 30.0
"""How long tickets wait when no worker is left: one may come back, such as after the restart of its machine."""


class LocalCoordinator:
    """
    The `Coordinator` of one process.

    Args:
        limits_s: how long conversations of a kind may last, for a first estimate.

    Attributes:
        settings: of the queue.
        lease_durations: how long leases last, for estimates.
    """

    def __init__(
        self,
        queue: QueueSettings | None = None,
        workers: WorkerSettings | None = None,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        absence_s: float = ABSENCE_S,
        limits_s: Mapping[ConversationKind, float] = MappingProxyType({}),
    ) -> None:
        self.settings = queue or QueueSettings()
        workers = workers or WorkerSettings()
        self._pool = WorkerPool(_pool_rules(self.settings, workers))
        self._clock = clock
        self._absence_s = absence_s
        self._metrics = metrics or Metrics()
        self._metrics.attach_pool(self._pool.waiting_counts, self._pool.serving_counts, self._pool.worker_counts)
        self.lease_durations = LeaseDurations(first_guesses(limits_s))
        self._waiters: dict[str, _Waiter] = {}
        self._cancelled_ids: set[str] = set()
        self._notifier = PositionNotifier(self._pool.queue, self._notify, self._forecast, self.settings.update_s)
        self._health_checker = HealthChecker(self._pool, workers.probe_s, self._on_worker_online)
        self._quarantine_timer: asyncio.TimerHandle | None = None
        self._absence_timers: dict[str, asyncio.TimerHandle] = {}
        self._is_closed = False
        self._has_queue = True

    async def start(self) -> None:
        """Start the health checks, which need a running event loop."""
        self._health_checker.start()

    def close_queue(self) -> None:
        """
        Fail all waiting tickets, and from now on every one that would have to wait, as the server is about to stop;
        idempotent. What has a worker keeps it.
        """
        self._has_queue = False
        for waiter in tuple(self._waiters.values()):
            waiter.refuse(shutting_down())

    async def close(self) -> None:
        """Fail all waiting tickets and give out no more leases; idempotent."""
        self._is_closed = True
        self.close_queue()
        for handle in (self._quarantine_timer, *self._absence_timers.values()):
            if handle is not None:
                handle.cancel()
        self._notifier.close()
        await self._health_checker.close()

    def lease(
        self, requirements: Requirements, on_queue_update: OnQueueUpdate, retry_of: str | None = None
    ) -> AbstractAsyncContextManager["LocalLease"]:
        return self._lease(requirements, on_queue_update, retry_of)

    @contextlib.asynccontextmanager
    async def _lease(self, requirements: Requirements, on_queue_update: OnQueueUpdate, retry_of: str | None) -> AsyncIterator["LocalLease"]:
        ticket = self._request_lease(requirements, retry_of)
        outcome: LeaseOutcome = "gave_up"
        lease = None
        try:
            if ticket.state == "queued":
                await self._wait(ticket, on_queue_update, is_retry=retry_of is not None)
            self._metrics.queue_waits[requirements.model].observe(self._clock() - ticket.enqueued_s)
            lease = LocalLease(ticket.id, self._pool.assigned_worker(ticket))
            yield lease
            outcome = "served"
        finally:
            # Nothing here awaits, so that nothing can keep the lease from being released.
            # The waiting task sees its cancellation by `cancel` as a mere error; here it gets its own outcome in the metrics.
            if ticket.id in self._cancelled_ids:
                self._cancelled_ids.remove(ticket.id)
                outcome = "cancelled"
            self._end_ticket(ticket, "failed" if lease is not None and lease.has_failed else outcome)

    def _request_lease(self, requirements: Requirements, retry_of: str | None) -> Ticket:
        if self._is_closed:
            raise shutting_down()
        try:
            return self._pool.request_lease(new_short_id("q"), requirements, self._clock(), time.time(), retry_of)
        except ApiError:
            self._metrics.queue_tickets[requirements.model, requirements.kind, "refused"] += 1
            raise

    async def _wait(self, ticket: Ticket, on_queue_update: OnQueueUpdate, *, is_retry: bool) -> None:
        if not self._has_queue:
            raise shutting_down()
        waiter = self._waiters[ticket.id] = _Waiter(on_queue_update)
        try:
            self._notifier.admit(ticket)
            # A new ticket is refused where no worker serves it, so only a retry can wait without one.
            if is_retry:
                self._arm_absence_timer(ticket.requirements.model)
            await waiter.assignment
        finally:
            del self._waiters[ticket.id]

    def _end_ticket(self, ticket: Ticket, outcome: LeaseOutcome) -> None:
        now, requirements = self._clock(), ticket.requirements
        # What failed, or was abandoned, says nothing about how long a conversation takes.
        if outcome == "served" and ticket.assigned_s is not None:
            self.lease_durations.observe(requirements.model, requirements.kind, now - ticket.assigned_s)
        self._metrics.queue_tickets[requirements.model, requirements.kind, outcome] += 1
        self._assign(self._pool.end_ticket(ticket, now, time.time(), outcome))
        self._notifier.mark_changed(requirements.model)
        self._arm_quarantine_timer()

    def _assign(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._waiters[ticket.id].assign()
            self._notifier.mark_changed(ticket.requirements.model)

    def _notify(self, update: events.QueueUpdate) -> None:
        self._waiters[update.id].on_queue_update(update)

    # Workers

    def add_worker(self, worker: Worker) -> None:
        self._assign(self._pool.add_worker(worker, self._clock(), time.time()))

    def remove_worker(self, worker_id: str) -> bool:
        entry = self._pool.remove_worker(worker_id)
        if entry is None:
            return False
        if entry.worker.link is not None:
            entry.worker.link.dismiss()
        self._arm_absence_timer(entry.worker.model)
        return True

    def drain(self, worker_id: str) -> bool:
        entry = self._pool.drain(worker_id)
        if entry is None:
            return False
        if entry.worker.link is not None:
            entry.worker.link.drain()
        self._arm_absence_timer(entry.worker.model)
        return True

    def resume(self, worker_id: str) -> bool:
        entry = self._pool.worker(worker_id)
        if entry is None:
            return False
        if entry.worker.link is not None:
            entry.worker.link.resume()  # first, as it refuses conversations while it drains
        self._assign(self._pool.resume(worker_id, self._clock(), time.time()))
        return True

    def _on_worker_online(self, worker_id: str) -> None:
        self._assign(self._pool.mark_online(worker_id, self._clock(), time.time()))

    def _arm_quarantine_timer(self) -> None:
        """Set the timer for the end of the next quarantine; one can only begin when a lease ends."""
        end_s = self._pool.next_quarantine_end_s()
        # All quarantines are equally long, so none ends before the one that the timer is already set for.
        if end_s is not None and self._quarantine_timer is None and not self._is_closed:
            self._quarantine_timer = asyncio.get_running_loop().call_later(max(0.0, end_s - self._clock()), self._end_quarantines)

    def _end_quarantines(self) -> None:
        self._quarantine_timer = None
        self._assign(self._pool.end_quarantines(self._clock(), time.time()))
        self._arm_quarantine_timer()

    def _arm_absence_timer(self, model: str) -> None:
        """
        Give tickets that no worker serves any more a while, in case one comes back; each further loss starts the time
        anew.
        """
        if self._pool.unservable_tickets(model) and not self._is_closed:
            if (timer := self._absence_timers.get(model)) is not None:
                timer.cancel()
            self._absence_timers[model] = asyncio.get_running_loop().call_later(self._absence_s, self._refuse_unservable, model)

    def _refuse_unservable(self, model: str) -> None:
        del self._absence_timers[model]
        # Asked anew: a worker may have come since the timer was set.
        for ticket in self._pool.unservable_tickets(model):
            self._waiters[ticket.id].refuse(no_worker_error())

    # For operators

    @property
    def waiting_count(self) -> int:
        return len(self._pool.queue)

    def cancel(self, ticket_id: str) -> bool:
        ticket = self._pool.ticket(ticket_id)
        if ticket is None or ticket.state != "queued":
            return False
        self._cancelled_ids.add(ticket_id)
        self._waiters[ticket_id].refuse(overloaded_error("The ticket was cancelled.", code="worker_busy", retry_after_s=None))
        return True

    def ticket(self, ticket_id: str) -> TicketView | None:
        ticket = self._pool.ticket(ticket_id)
        if ticket is None:
            return None
        if ticket.state == "serving":
            return self._ticket_view(ticket)
        return next(view for view in self._waiting_tickets(ticket.requirements.model) if view.id == ticket_id)

    def tickets(self) -> Sequence[TicketView]:
        waiting = [view for model in self._pool.queue.models() for view in self._waiting_tickets(model)]
        return [*waiting, *self.serving_tickets()]

    def serving_tickets(self) -> Sequence[TicketView]:
        return [self._ticket_view(ticket) for ticket in self._pool.serving_tickets()]

    def workers(self) -> Sequence[WorkerView]:
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
        return next((each.worker for each in self._pool.workers() if each.worker.model == model), None)

    def capabilities(self, model: str) -> Capabilities | None:
        worker = self.first_worker(model)
        return None if worker is None else worker.engine.capabilities

    def _waiting_tickets(self, model: str) -> Iterable[TicketView]:
        forecast = self._forecast(model)
        for position, ticket in enumerate(self._pool.queue.tickets(model), start=1):
            yield self._ticket_view(ticket, position, forecast.next_wait_s(ticket.requirements.kind))

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
        slots: list[tuple[tuple[ConversationKind, ...], float]] = []
        for ticket in self._pool.serving_tickets():
            entry = self._pool.assigned_worker(ticket)
            # A worker in any other condition gets no next ticket when this conversation ends.
            if entry.worker.model == model and entry.condition == "well" and ticket.assigned_s is not None:
                slots.append(
                    (entry.worker.kinds, self.lease_durations.remaining_s(model, ticket.requirements.kind, now - ticket.assigned_s))
                )
        slots += [
            (each.worker.kinds, each.quarantined_until - now)
            for each in self._pool.workers()
            if each.condition == "quarantined" and each.worker.model == model
        ]
        return WaitForecast(slots, lambda kind: self.lease_durations.mean_s(model, kind))


class LocalLease:
    """The `WorkerLease` of a `LocalCoordinator`."""

    def __init__(self, ticket_id: str, entry: WorkerEntry) -> None:
        self.ticket_id = ticket_id
        self.worker = entry.worker
        self.has_failed = False

    def mark_failed(self) -> None:
        self.has_failed = True


class _Waiter:
    """
    A task that waits for a worker.

    Attributes:
        assignment: done when it has one.
    """

    def __init__(self, on_queue_update: OnQueueUpdate) -> None:
        self.on_queue_update = on_queue_update
        self.assignment: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def assign(self) -> None:
        """Wake the task; if it no longer waits, ending its ticket releases the worker."""
        if not self.assignment.done():
            self.assignment.set_result(None)

    def refuse(self, error: ApiError) -> None:
        if not self.assignment.done():
            self.assignment.set_exception(error)


def _pool_rules(queue: QueueSettings, workers: WorkerSettings) -> PoolRules:
    return PoolRules(
        max_waiting=queue.size,
        max_waiting_per_key=queue.waiting_per_key,
        max_serving_per_key=queue.serving_per_key,
        priorities=queue.priority_by_name,
        max_failures=workers.failures,
        quarantine_s=workers.quarantine_s,
    )
