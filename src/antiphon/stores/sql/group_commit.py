"""
Group commit: writes that wait at the same time become durable in one transaction.

A commit costs far more than the rows in it. While one batch is being committed the next gathers, so the busier the server, the
larger the batches, and a write never waits for company.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from antiphon.errors import ServerError

_MAX_BATCH_WRITES = 500

WriteT = TypeVar("WriteT")


class GroupCommit(Generic[WriteT]):
    """
    The one writer of a store.

    Args:
        commit: writes a batch in one transaction, all or nothing, and returns what to tell each of its callers.
        is_common: whether a failed batch would fail in the same way with any other writes. If not, one write spoilt it for all, and
            each is tried by itself.
    """

    def __init__(self, commit: Callable[[Sequence[WriteT]], Awaitable[Sequence[bool]]], is_systemic: Callable[[Exception], bool]) -> None:
        self._commit = commit
        self._is_systemic = is_systemic
        self._pending_writes: deque[tuple[WriteT, asyncio.Future[bool]]] = deque()  # bounded by its callers, who all wait
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write; before the first `write`."""
        # It lives from the store's `open` to its `close`, longer than any one caller's task group.
        self._task = asyncio.create_task(self._run(), name="store writer")  # noqa: TID251

    async def stop(self) -> None:
        """Write what is waiting, and end; idempotent."""
        task, self._task = self._task, None
        self._wake.set()
        if task:
            await task

    async def write(self, write: WriteT) -> bool:
        """
        What `commit` said of this write, once it is durable. A caller that is cancelled doesn't take its write back.

        Raises:
            ServerError: the store is closed.
            Exception: what `commit` raised.
        """
        if self._task is None:
            raise ServerError("The store is closed.", status=503)
        written = asyncio.get_running_loop().create_future()
        self._pending_writes.append((write, written))
        self._wake.set()
        return bool(await written)

    async def _run(self) -> None:
        while self._task or self._pending_writes:
            await self._wake.wait()
            self._wake.clear()
            while self._pending_writes:
                await self._commit_batch([self._pending_writes.popleft() for _ in range(min(len(self._pending_writes), _MAX_BATCH_WRITES))])

    async def _commit_batch(self, batch: Sequence[tuple[WriteT, "asyncio.Future[bool]"]]) -> None:
        try:
            answers = await self._commit([write for write, _ in batch])
        except Exception as error:  # whatever it is, it belongs to the callers; the writer serves the next ones
            if len(batch) > 1 and not self._is_systemic(error):
                for one in batch:
                    await self._commit_batch([one])
                return
            for _, written in batch:
                if not written.done():
                    written.set_exception(error)
        else:
            for (_, written), answer in zip(batch, answers, strict=True):
                if not written.done():  # its caller was cancelled
                    written.set_result(answer)
