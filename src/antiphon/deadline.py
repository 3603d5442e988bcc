"""A deadline that moves: one timer, which looks at the clock when it fires."""

import asyncio
from collections.abc import Callable
from math import inf


class Deadline:
    """
    Calls `on_due` once a time has come, which may move until then: an idle timeout begins anew with every read.

    Moving it later is one assignment to `due_at`; the timer stays where it is, and sets itself again when it fires. A
    timer for each read would cost more than the read. `set` takes any time, also an earlier one, or the first.

    Args:
        loop: the running one, where the caller knows it: finding it is a system call in Python 3.11.

    Attributes:
        due_at: by the loop's clock; infinite when nothing is due, as after `on_due` was called.
    """

    __slots__ = ("_fires_at", "_on_due", "_timer", "due_at", "loop")

    def __init__(self, on_due: Callable[[], object], loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.due_at = inf
        self.loop = loop or asyncio.get_running_loop()
        self._on_due = on_due
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = inf

    def set(self, due_at: float) -> None:
        """Move the deadline, to any time."""
        self.due_at = due_at
        if due_at < self._fires_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._fires_at = self.loop.call_at(due_at, self._on_timer), due_at

    def cancel(self) -> None:
        """Let nothing be due, and leave no timer behind."""
        self.due_at = self._fires_at = inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Cancel for good, and forget the callback: an owner and its deadline refer to each other."""
        self.cancel()
        self._on_due = _do_nothing

    def _on_timer(self) -> None:
        self._timer, self._fires_at = None, inf
        if self.due_at > self.loop.time() + 0.001:  # uvloop counts whole milliseconds, so a timer may fire so much too early
            self.set(self.due_at)
        else:
            self.due_at = inf
            self._on_due()


def _do_nothing() -> None:
    pass
