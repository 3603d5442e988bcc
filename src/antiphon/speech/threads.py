"""Threads for work that is too long for the event loop: few, with room for so much work to wait, and for no more."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from antiphon.errors import Fault, OurFault

T = TypeVar("T")


def nothing_to_stop() -> None:
    """Stops work that is over so soon that it isn't worth stopping."""


class Threads:
    """
    The threads of one part.

    Args:
        name: of the threads.
        at_once: how many there are.
        waiting: how much work may wait for one of them.
    """

    def __init__(self, name: str, at_once: int, waiting: int) -> None:
        self._most = at_once + waiting
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix=name)
        self._is_open = True
        self._under_way: dict[Future[Any], Callable[[], None]] = {}

    @property
    def is_busy(self) -> bool:
        """Whether there is no room for more work."""
        return len(self._unfinished()) >= self._most

    async def run(self, work: Callable[[], T], stop: Callable[[], None] = nothing_to_stop) -> T:
        """
        What the work returns; cancelling this stops it.

        Args:
            work: done in one of the threads.
            stop: makes it end soon, in whatever way; called from another thread, perhaps before it begins.

        Raises:
            errors.Fault: there is too much to do.
        """
        if not self._is_open:
            raise OurFault("This part of speech has been stopped.")
        if self.is_busy:
            raise Fault(
                "The server has more to listen to than it can at the moment. Please try again later.",
                status=503,
                type="service_unavailable_error",
                code="server_is_overloaded",
                retry_after_s=1.0,
            )
        future = self._pool.submit(work)
        self._under_way[future] = stop
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            stop()
            raise

    async def stop(self) -> None:
        """Stop all work, and end when the threads have; idempotent."""
        self._is_open = False
        for stop in self._unfinished().values():
            stop()
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)

    def _unfinished(self) -> dict[Future[Any], Callable[[], None]]:
        # Work that nobody waits for any more still takes a thread until it is over.
        self._under_way = {future: stop for future, stop in self._under_way.items() if not future.done()}
        return self._under_way
