"""
Telling those who wait where they are.

Whatever changes only notes that something has. A sweep tells them, in slices of a millisecond between which others have their turn,
and rests nine times as long as it took. So telling costs a tenth of the machine at most, however many wait.
"""

import asyncio
import time
from collections.abc import Callable, Iterator

from msgspec import Struct

from antiphon.engine_api import events as talk_events
from antiphon.runtime.scheduling.eta import Outlook
from antiphon.runtime.scheduling.queue import Queue, Ticket

SETTLE_S = 0.05
"""How long changes are gathered."""

SLICE_S = 0.001
NEAR = 64
"""Up to so many ahead, whoever comes is told at once how long it will take; further behind it is much as for whoever was last."""


class _Told(Struct):
    """What someone was told last, and when."""

    position: int
    at_s: float


class Teller:
    """
    Tells positions.

    Args:
        tell: takes what somebody is to be told.
        outlook: of a model, as it is now.
        update_s: seconds after which somebody is told again though nothing has changed.
    """

    def __init__(
        self, queue: Queue, tell: Callable[[talk_events.Waiting], None], outlook: Callable[[str], Outlook], update_s: float
    ) -> None:
        self._queue = queue
        self._tell = tell
        self._outlook = outlook
        self._update_s = update_s
        self._last: dict[str, _Told] = {}
        self._tail_s: dict[str, float | None] = {}
        self._changed: set[str] = set()
        self._walk: Iterator[None] | None = None
        self._walked_s = 0.0
        self._rest_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def admit(self, ticket: Ticket) -> None:
        """Tell one who has just come."""
        model = ticket.wants.model
        position = self._queue.position(ticket)
        wait_s = self._tail_s.get(model)
        if position <= NEAR:
            outlook = self._outlook(model)
            for _, ahead in zip(range(position), self._queue.waiting(model), strict=False):
                wait_s = outlook.next(ahead.wants.kind)
        self._say(ticket, position, wait_s, time.monotonic())
        self._arm(time.monotonic() + self._update_s)
        if position < self._queue.length(model):  # by its priority, or as one that comes again
            self.changed(model)

    def changed(self, model: str) -> None:
        """Places of a model were given or given back, or somebody left the queue, or came into it before others."""
        if self._queue.length(model):
            self._changed.add(model)
            self._arm(max(time.monotonic() + SETTLE_S, self._rest_until))

    def close(self) -> None:
        """Tell nobody any more."""
        self._is_closed = True
        self._walk = None
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, at_s: float) -> None:
        """Sweep at that time, or sooner where that was meant already."""
        if self._walk is not None or self._is_closed:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + at_s - time.monotonic()
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._changed.clear()
        self._walk, self._walked_s = self._steps(), 0.0
        self._go_on()

    def _go_on(self) -> None:
        """One slice of the sweep."""
        if self._walk is None:
            return
        begun_at = time.monotonic()
        for _ in self._walk:
            if time.monotonic() - begun_at > SLICE_S:
                self._walked_s += time.monotonic() - begun_at
                asyncio.get_running_loop().call_soon(self._go_on)
                return
        self._walked_s += time.monotonic() - begun_at
        self._end()

    def _end(self) -> None:
        now = time.monotonic()
        self._walk = None
        self._rest_until = now + 9 * self._walked_s
        if self._changed:
            self._arm(max(now + SETTLE_S, self._rest_until))
        elif len(self._queue):
            self._arm(max(now + self._update_s, self._rest_until))

    def _steps(self) -> Iterator[None]:
        """Tell everybody who is to be told, one a step."""
        told, self._last = self._last, {}
        for model in self._queue.models():
            outlook, position, wait_s = self._outlook(model), 0, None
            for ticket in self._queue.waiting(model):
                if ticket.state != "queued":  # it has left since the sweep began
                    continue
                position += 1
                wait_s = outlook.next(ticket.wants.kind)
                last = self._last.get(ticket.id) or told.get(ticket.id)
                now = time.monotonic()
                if last is None or last.position != position or now - last.at_s >= self._update_s:
                    self._say(ticket, position, wait_s, now)
                else:
                    self._last[ticket.id] = last
                yield
            self._tail_s[model] = wait_s

    def _say(self, ticket: Ticket, position: int, wait_s: float | None, now: float) -> None:
        self._last[ticket.id] = _Told(position, now)
        length = self._queue.length(ticket.wants.model)
        self._tell(talk_events.Waiting(id=ticket.id, position=position, queue_length=length, wait_s=wait_s))
