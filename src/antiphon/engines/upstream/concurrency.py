"""How many requests one upstream is given at once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from antiphon.engine_api.engine import EngineOverrun
from antiphon.errors import UpstreamTrouble


class Slots:
    """
    Room for so many requests at once, and for so many more to wait for it, no longer than `patience_s`.

    A place is taken in two steps: `reserve`, which never blocks, then `held` for as long as the request lasts.
    """

    def __init__(self, at_once: int, waiting: int, patience_s: float) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._most = at_once + waiting
        self._patience_s = patience_s
        self._reserved = 0

    def reserve(self) -> None:
        """
        Take a place, or one in the queue for it.

        Raises:
            EngineOverrun: the queue is full.
        """
        if self._reserved >= self._most:
            raise EngineOverrun(f"{self._reserved} requests are under way or waiting already")
        self._reserved += 1

    def release(self) -> None:
        """Give a reserved place back."""
        self._reserved -= 1

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """
        Wait for the place to be free, and have it.

        Raises:
            UpstreamTrouble: it took too long.
        """
        try:
            async with asyncio.timeout(self._patience_s):
                await self._free.acquire()
        except TimeoutError:
            raise UpstreamTrouble(
                f"The model is overloaded: the request waited {self._patience_s:g} seconds for its turn. Please try again later.",
                status=503,
                code="server_is_overloaded",
                type="service_unavailable_error",
                retry_after_s=1,
            ) from None
        try:
            yield
        finally:
            self._free.release()
