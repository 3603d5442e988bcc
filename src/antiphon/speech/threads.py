"""Threads for work that is too long for the event loop: few, with room for so much work to wait, and for no more."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from antiphon.errors import ApiError, ServerError

T = TypeVar("T")


def do_nothing() -> None:
    """Stops work that is over so soon that it isn't worth stopping."""


class BoundedThreadPool:
    """
    The threads of one part.

    Args:
        name: of the threads.
        at_once: how many there are.
        waiting: how much work may wait for one of them.
    """

    def __init__(self, name: str, max_workers: int, max_pending: int) -> None:
        self._max_unfinished = max_workers + max_pending
        self._pool = ThreadPoolExecutor(max_workers, thread_name_prefix=name)
        self._is_open = True
        self._stop_callbacks: dict[Future[Any], Callable[[], None]] = {}

    @property
    def is_busy(self) -> bool:
        """Whether there is no room for more work."""
        return len(self._unfinished_work()) >= self._max_unfinished

    async def run(self, work: Callable[[], T], stop: Callable[[], None] = do_nothing) -> T:
        """
        What the work returns; cancelling this stops it.

        Args:
            work: done in one of the threads.
            stop: makes it end soon, in whatever way; called from another thread, perhaps before it begins.

        Raises:
            ApiError: there is too much to do.
        """
        if not self._is_open:
            raise ServerError("This part of speech has been stopped.")
        if self.is_busy:
            raise ApiError(
                "The server has more to listen to than it can at the moment. Please try again later.",
                status=503,
                type="service_unavailable_error",
                code="server_is_overloaded",
                retry_after_s=1.0,
            )
        future = self._pool.submit(work)
        self._stop_callbacks[future] = stop
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            stop()
            raise

    async def stop(self) -> None:
        """Stop all work, and end when the threads have; idempotent."""
        self._is_open = False
        for stop in self._unfinished_work().values():
            stop()
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)

    def _unfinished_work(self) -> dict[Future[Any], Callable[[], None]]:
        # Work that nobody waits for any more still takes a thread until it is over.
        self._stop_callbacks = {future: stop for future, stop in self._stop_callbacks.items() if not future.done()}
        return self._stop_callbacks
