"""How many requests one upstream gets at once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from antiphon.engine_api.engine import EngineOverrun
from antiphon.engines.upstream.faults import overloaded_error


class ConcurrencyLimit:
    """
    A semaphore with a bounded queue.

    A request takes two steps: `reserve`, which never blocks, then `slot` for as long as it runs; `release` ends the
    reservation.

    Args:
        timeout_s: how long a request may wait for its slot.
    """

    def __init__(self, max_concurrent: int, max_waiting: int, timeout_s: float) -> None:
        self._semaphore = asyncio.Semaphore(max_concurrent)
        self._max_reservations = max_concurrent + max_waiting
        self._timeout_s = timeout_s
        self._reservation_count = 0

    def reserve(self) -> None:
        """
        Count one more request, running or waiting.

        Raises:
            EngineOverrun: the queue is full.
        """
        if self._reservation_count >= self._max_reservations:
            raise EngineOverrun(f"{self._reservation_count} requests are running or waiting already")
        self._reservation_count += 1

    def release(self) -> None:
        """Undo `reserve`."""
        self._reservation_count -= 1

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """
        Wait for a free slot, and hold it.

        Raises:
            UpstreamError: none became free in time.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._semaphore.acquire()
        except TimeoutError:
            raise overloaded_error(
                f"The model is overloaded: the request waited {self._timeout_s:g} seconds for its turn. Please try again later.",
                retry_after_s=1,
            ) from None
        try:
            yield
        finally:
            self._semaphore.release()
