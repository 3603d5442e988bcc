"""How many requests one upstream gets at once."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

from antiphon.engine_api.engine import EngineOverrun
from antiphon.engines.upstream.faults import overloaded_error


class ConcurrencyLimit:
    """
    A semaphore with a bounded queue.

    A request takes two steps: `reserve`, which never blocks, then a slot for as long as it runs, by `take`, `wait` or `slot`;
    `release` ends the reservation.

    Args:
        timeout_s: how long a request may wait for its slot.
    """

    def __init__(self, max_concurrent: int, max_waiting: int, timeout_s: float) -> None:
        self._free_count = max_concurrent
        self._waiting: deque[asyncio.Future[None]] = deque()
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

    def take(self) -> bool:
        """Hold a slot until `give_back`, if one is free: none is while others wait. Returns whether it is held."""
        if not self._free_count:
            return False
        self._free_count -= 1
        return True

    def give_back(self) -> None:
        """Leave a slot to who has waited for longest."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free_count += 1

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """
        Wait for a free slot, and hold it.

        Raises:
            UpstreamError: none became free in time.
        """
        await self.wait()
        try:
            yield
        finally:
            self.give_back()

    async def wait(self) -> None:
        """
        Wait for a free slot, and hold it until `give_back`.

        Raises:
            UpstreamError: none became free in time.
        """
        if self.take():
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self._timeout_s):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():  # cancelled just as its turn came
                self.give_back()
            else:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(waiter)
            if not isinstance(error, TimeoutError):
                raise
            raise overloaded_error(
                f"The model is overloaded: the request waited {self._timeout_s:g} seconds for its turn. Please try again later.",
                retry_after_s=1,
            ) from None
