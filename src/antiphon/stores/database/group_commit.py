"""
Group commit: all writes that wait at the same time are committed in one transaction.

A commit costs far more than the rows in it. While one batch is committed, the next one gathers: the busier the server,
the larger the batches, and a write never waits for others to join it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from antiphon.errors import ServerError

_MAX_BATCH_WRITES = 500

WriteT = TypeVar("WriteT")
ResultT = TypeVar("ResultT")


class GroupCommit(Generic[WriteT, ResultT]):
    """
    The only writer of a store.

    Args:
        commit: writes a batch in one transaction, all or nothing, and returns the result of each write.
        is_systemic: whether a failed batch would have failed with any other writes. If not, one write is at fault, and
            each is tried by itself.
    """

    def __init__(
        self, commit: Callable[[Sequence[WriteT]], Awaitable[Sequence[ResultT]]], is_systemic: Callable[[Exception], bool]
    ) -> None:
        self._commit = commit
        self._is_systemic = is_systemic
        self._pending_writes: deque[tuple[WriteT, asyncio.Future[ResultT]]] = deque()  # bounded by its callers, who all wait
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task that writes; call it before the first `write`."""
        # It lives from the store's `open` to its `close`, longer than any one caller's task group.
        self._task = asyncio.create_task(self._run(), name="store writer")  # noqa: TID251

    async def stop(self) -> None:
        """Finish the pending writes, and stop; idempotent."""
        task, self._task = self._task, None
        self._wake.set()
        if task:
            await task

    async def write(self, write: WriteT) -> ResultT:
        """
        The result of this write, once it is durable. Cancelling the caller doesn't cancel the write.

        Raises:
            ServerError: the store is closed.
            Exception: `commit` raised it.
        """
        if self._task is None:
            raise ServerError("The store is closed.", status=503)
        result: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        self._pending_writes.append((write, result))
        self._wake.set()
        return await result

    async def _run(self) -> None:
        while self._task or self._pending_writes:
            await self._wake.wait()
            self._wake.clear()
            while self._pending_writes:
                await self._commit_batch([self._pending_writes.popleft() for _ in range(min(len(self._pending_writes), _MAX_BATCH_WRITES))])

    async def _commit_batch(self, batch: Sequence[tuple[WriteT, "asyncio.Future[ResultT]"]]) -> None:
        try:
            results = await self._commit([write for write, _ in batch])
        except Exception as error:  # it belongs to the callers; the writer goes on with the next batch
            if len(batch) > 1 and not self._is_systemic(error):
                for one in batch:
                    await self._commit_batch([one])
                return
            for _, result in batch:
                if not result.done():
                    result.set_exception(error)
        else:
            for (_, result), value in zip(batch, results, strict=True):
                if not result.done():  # else its caller was cancelled
                    result.set_result(value)
