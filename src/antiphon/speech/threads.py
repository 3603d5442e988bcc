"""Threads for work that would block the event loop: few, with a bounded queue."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from antiphon.errors import overloaded_error, shutting_down

T = TypeVar("T")


def do_nothing() -> None:
    """The `stop` of work that is too short to stop."""


class BoundedThreadPool:
    """
    The threads of one component.

    Args:
        name: of the threads.
        max_workers: how many threads there are.
        max_pending: how many calls may wait for one; more are refused.
    """

    def __init__(self, name: str, max_workers: int, max_pending: int) -> None:
        self._max_workers = max_workers
        self._max_unfinished = max_workers + max_pending
        self._pool = ThreadPoolExecutor(max_workers, thread_name_prefix=name)
        self._is_open = True
        self._stop_callbacks: dict[Future[Any], Callable[[], None]] = {}

    @property
    def is_busy(self) -> bool:
        """Whether the queue is full."""
        return len(self._unfinished_work()) >= self._max_unfinished

    @property
    def has_free_thread(self) -> bool:
        """Whether work would begin at once."""
        return len(self._unfinished_work()) < self._max_workers

    async def run(self, work: Callable[[], T], stop: Callable[[], None] = do_nothing) -> T:
        """
        The result of `work`; cancelling this stops it.

        Args:
            work: runs in one of the threads.
            stop: makes `work` end soon; called from another thread, perhaps before it starts.

        Raises:
            ApiError: the queue is full, or the server stops.
        """
        if not self._is_open:
            raise shutting_down()
        if self.is_busy:
            raise overloaded_error("The server has too much audio to process at the moment. Please try again later.")
        future = self._pool.submit(work)
        self._stop_callbacks[future] = stop
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            stop()
            raise

    async def stop(self) -> None:
        """Stop all work, and wait for the threads to end; idempotent."""
        self._is_open = False
        for stop in self._unfinished_work().values():
            stop()
        # In a thread, as it waits for the work under way.
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)

    def _unfinished_work(self) -> dict[Future[Any], Callable[[], None]]:
        # Cancelled work still takes a thread until it ends.
        self._stop_callbacks = {future: stop for future, stop in self._stop_callbacks.items() if not future.done()}
        return self._stop_callbacks
