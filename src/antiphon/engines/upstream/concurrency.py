"""How many requests one upstream is given at once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from antiphon.engine_api.engine import EngineOverrun
from antiphon.errors import UpstreamError


class ConcurrencyLimit:
    """
    Room for so many requests at once, and for so many more to wait for it, no longer than `patience_s`.

    A place is taken in two steps: `reserve`, which never blocks, then `held` for as long as the request lasts.
    """

    def __init__(self, max_concurrent: int, max_waiting: int, timeout_s: float) -> None:
        self._semaphore = asyncio.Semaphore(max_concurrent)
        self._max_reservations = max_concurrent + max_waiting
        self._timeout_s = timeout_s
        self._reservation_count = 0

    def reserve(self) -> None:
        """
        Take a place, or one in the queue for it.

        Raises:
            EngineOverrun: the queue is full.
        """
        if self._reservation_count >= self._max_reservations:
            raise EngineOverrun(f"{self._reservation_count} requests are under way or waiting already")
        self._reservation_count += 1

    def release(self) -> None:
        """Give a reserved place back."""
        self._reservation_count -= 1

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """
        Wait for the place to be free, and have it.

        Raises:
            UpstreamError: it took too long.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._semaphore.acquire()
        except TimeoutError:
            raise UpstreamError(
                f"The model is overloaded: the request waited {self._timeout_s:g} seconds for its turn. Please try again later.",
                status=503,
                code="server_is_overloaded",
                type="service_unavailable_error",
                retry_after_s=1,
            ) from None
        try:
            yield
        finally:
            self._semaphore.release()
