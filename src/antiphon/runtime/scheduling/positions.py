"""
Telling those who wait where they are.

Whatever changes only notes that something has. A sweep tells them, in slices of a millisecond between which others have their turn,
and rests nine times as long as it took. So telling costs a tenth of the machine at most, however many wait.
"""

import asyncio
import time
from collections.abc import Callable, Iterator

from msgspec import Struct

from antiphon.engine_api import events
from antiphon.runtime.scheduling.eta import WaitForecast
from antiphon.runtime.scheduling.queue import Ticket, TicketQueue

DEBOUNCE_S = 0.05
"""How long changes are gathered."""

SLICE_S = 0.001
MAX_EXACT_POSITION = 64
"""Up to so many ahead, whoever comes is told at once how long it will take; further behind it is much as for whoever was last."""


class _LastUpdate(Struct):
    """What someone was told last, and when."""

    position: int
    at_s: float


class PositionNotifier:
    """
    Tells positions.

    Args:
        tell: takes what somebody is to be told.
        outlook: of a model, as it is now.
        update_s: seconds after which somebody is told again though nothing has changed.
    """

    def __init__(
        self, queue: TicketQueue, notify: Callable[[events.QueueUpdate], None], forecast: Callable[[str], WaitForecast], update_s: float
    ) -> None:
        self._queue = queue
        self._notify = notify
        self._forecast = forecast
        self._update_s = update_s
        self._last_updates: dict[str, _LastUpdate] = {}
        self._last_wait_s: dict[str, float | None] = {}
        self._changed_models: set[str] = set()
        self._sweep: Iterator[None] | None = None
        self._sweep_s = 0.0
        self._idle_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def admit(self, ticket: Ticket) -> None:
        """Tell one who has just come."""
        model = ticket.requirements.model
        position = self._queue.position(ticket)
        wait_s = self._last_wait_s.get(model)
        if position <= MAX_EXACT_POSITION:
            outlook = self._forecast(model)
            for _, ahead in zip(range(position), self._queue.tickets(model), strict=False):
                wait_s = outlook.next_wait_s(ahead.requirements.kind)
        self._send_update(ticket, position, wait_s, time.monotonic())
        self._arm(time.monotonic() + self._update_s)
        if position < self._queue.length(model):  # by its priority, or as one that comes again
            self.mark_changed(model)

    def mark_changed(self, model: str) -> None:
        """Places of a model were given or given back, or somebody left the queue, or came into it before others."""
        if self._queue.length(model):
            self._changed_models.add(model)
            self._arm(max(time.monotonic() + DEBOUNCE_S, self._idle_until_s))

    def close(self) -> None:
        """Tell nobody any more."""
        self._is_closed = True
        self._sweep = None
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, at_s: float) -> None:
        """Sweep at that time, or sooner where that was meant already."""
        if self._sweep is not None or self._is_closed:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + at_s - time.monotonic()
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self._begin_sweep)

    def _begin_sweep(self) -> None:
        self._timer = None
        self._changed_models.clear()
        self._sweep, self._sweep_s = self._sweep_steps(), 0.0
        self._continue_sweep()

    def _continue_sweep(self) -> None:
        """One slice of the sweep."""
        if self._sweep is None:
            return
        begun_at = time.monotonic()
        for _ in self._sweep:
            if time.monotonic() - begun_at > SLICE_S:
                self._sweep_s += time.monotonic() - begun_at
                asyncio.get_running_loop().call_soon(self._continue_sweep)
                return
        self._sweep_s += time.monotonic() - begun_at
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
        """Tell everybody who is to be told, one a step."""
        told, self._last_updates = self._last_updates, {}
        for model in self._queue.models():
            outlook, position, wait_s = self._forecast(model), 0, None
            for ticket in self._queue.tickets(model):
                if ticket.state != "queued":  # it has left since the sweep began
                    continue
                position += 1
                wait_s = outlook.next_wait_s(ticket.requirements.kind)
                last = self._last_updates.get(ticket.id) or told.get(ticket.id)
                now = time.monotonic()
                if last is None or last.position != position or now - last.at_s >= self._update_s:
                    self._send_update(ticket, position, wait_s, now)
                else:
                    self._last_updates[ticket.id] = last
                yield
            self._last_wait_s[model] = wait_s

    def _send_update(self, ticket: Ticket, position: int, wait_s: float | None, now: float) -> None:
        self._last_updates[ticket.id] = _LastUpdate(position, now)
        length = self._queue.length(ticket.requirements.model)
        self._notify(events.QueueUpdate(id=ticket.id, position=position, queue_length=length, wait_s=wait_s))
