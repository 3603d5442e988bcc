"""
Queue updates for the tickets that wait.

A change only marks its model. A sweep then sends the updates, in slices of a millisecond between which other tasks run,
and pauses nine times as long as it took. So updates use a tenth of one core at most, however many tickets wait.
"""

import asyncio
import time
from collections.abc import Callable, Iterator

from msgspec import Struct

from antiphon.engine_api import events
from antiphon.runtime.scheduling.eta import WaitForecast
from antiphon.runtime.scheduling.queue import Ticket, TicketQueue
from antiphon.runtime.upkeep import one_round

DEBOUNCE_S = 0.05
"""How long changes are collected before a sweep."""

SLICE_S = 0.001
MAX_EXACT_POSITION = 64
"""Up to this position a new ticket gets its own forecast at once; further back it gets that of the last ticket."""


class _LastUpdate(Struct):
    """The last update sent for a ticket."""

    position: int
    at_s: float


class PositionNotifier:
    """
    Sends queue updates.

    Args:
        notify: called with each update.
        forecast: gives a model's forecast as of now.
        update_s: seconds after which an update is repeated even if nothing changed.
    """

    def __init__(
        self, queue: TicketQueue, notify: Callable[[events.QueueUpdate], None], forecast: Callable[[str], WaitForecast], update_s: float
    ) -> None:
        self._queue = queue
        self._notify = notify
        self._forecast = forecast
        self._update_s = update_s
        self._last_updates: dict[str, _LastUpdate] = {}
        self._last_wait_s: dict[str, float] = {}
        self._changed_models: set[str] = set()
        self._sweep: Iterator[None] | None = None
        self._sweep_s = 0.0
        self._idle_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def admit(self, ticket: Ticket) -> None:
        """Send the first update of a new ticket."""
        model = ticket.requirements.model
        position = self._queue.position(ticket)
        wait_s = self._last_wait_s.get(model, 0.0)
        if position <= MAX_EXACT_POSITION or model not in self._last_wait_s:
            forecast = self._forecast(model)
            # Each call takes a slot, so that those ahead have theirs first.
            for _, ahead in zip(range(position), self._queue.tickets(model), strict=False):
                wait_s = forecast.next_wait_s(ahead.requirements.kind)
        self._send_update(ticket, position, wait_s, time.monotonic())
        # Not every change is marked, so that even a queue in which nothing moves tells its clients that they still wait.
        self._arm(time.monotonic() + self._update_s)
        if position < self._queue.length(model):  # ahead of others, by its priority or as a retry
            self.mark_changed(model)

    def mark_changed(self, model: str) -> None:
        """Report that leases of a model began or ended, or that its queue changed."""
        if self._queue.length(model):
            self._changed_models.add(model)
            self._arm(max(time.monotonic() + DEBOUNCE_S, self._idle_until_s))

    def close(self) -> None:
        """Send no more updates."""
        self._is_closed = True
        self._sweep = None
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, at_s: float) -> None:
        """Start a sweep at that time, unless one is due sooner."""
        if self._sweep is not None or self._is_closed:
            return
        loop = asyncio.get_running_loop()
        loop_s = loop.time() + at_s - time.monotonic()
        if self._timer is not None:
            if self._timer.when() <= loop_s:
                return
            self._timer.cancel()
        self._timer = loop.call_at(loop_s, self._begin_sweep)

    def _begin_sweep(self) -> None:
        self._timer = None
        # Before the sweep: what changes while it runs is for the next one.
        self._changed_models.clear()
        self._sweep, self._sweep_s = self._sweep_steps(), 0.0
        self._continue_sweep()

    def _continue_sweep(self) -> None:
        if self._sweep is None:
            return
        begin_s = time.monotonic()
        for _ in self._sweep:
            if time.monotonic() - begin_s > SLICE_S:
                self._sweep_s += time.monotonic() - begin_s
                asyncio.get_running_loop().call_soon(self._continue_sweep)
                return
        self._sweep_s += time.monotonic() - begin_s
        self._end_sweep()

    def _end_sweep(self) -> None:
        now = time.monotonic()
        self._sweep = None
        self._idle_until_s = now + 9 * self._sweep_s
        if self._changed_models:
            self._arm(max(now + DEBOUNCE_S, self._idle_until_s))
        elif len(self._queue):
            self._arm(max(now + self._update_s, self._idle_until_s))

    def _sweep_steps(self) -> Iterator[None]:
        """Send all updates that are due, looking at one ticket a step."""
        # Built anew by each sweep, so that tickets which have left are forgotten.
        previous, self._last_updates = self._last_updates, {}
        for model in self._queue.models():
            forecast, position, wait_s = self._forecast(model), 0, 0.0
            for ticket in self._queue.tickets(model):
                if ticket.state != "queued":  # it has left since the sweep began
                    continue
                position += 1
                wait_s = forecast.next_wait_s(ticket.requirements.kind)
                # A ticket that came since the sweep began has its update in the new ones.
                last = self._last_updates.get(ticket.id) or previous.get(ticket.id)
                now = time.monotonic()
                if last is None or last.position != position or now - last.at_s >= self._update_s:
                    self._send_update(ticket, position, wait_s, now)
                else:
                    self._last_updates[ticket.id] = last
                yield
            self._last_wait_s[model] = wait_s

    def _send_update(self, ticket: Ticket, position: int, wait_s: float, now: float) -> None:
        self._last_updates[ticket.id] = _LastUpdate(position, now)
        length = self._queue.length(ticket.requirements.model)
        with one_round("queue updates"):
            self._notify(events.QueueUpdate(id=ticket.id, position=position, queue_length=length, wait_s=wait_s))
