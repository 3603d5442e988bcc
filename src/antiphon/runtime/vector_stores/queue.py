"""
The files that wait to be indexed: claimed from the store, a few at once, tenant by tenant.

The queue is in the store, so that it outlives a restart, and other servers with the same store work on it, too.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from antiphon.errors import ApiError
from antiphon.records import IndexingJob
from antiphon.runtime.upkeep import one_round
from antiphon.stores.vector_stores import IndexRecords

POLL_S = 3.0
"""How often the store is searched for files that other servers have left; those that this one adds begin at once."""

WATCH_S = 1.0
"""How often the store is asked, while files are indexed, whether some were taken out or cancelled elsewhere."""

RELEASE_S = 2.0
"""How long giving back files may take when the server stops."""

_log = structlog.get_logger(__name__)


class IndexingQueue:
    """
    Indexes waiting files in this process.

    Args:
        work: indexes a file, and ends it in the store; is cancelled where the file is not this server's any more.
        limit: of files at once. Tenants with no file among them get as many places again, one each: a large file takes
            minutes, in which they would wait.
    """

    def __init__(self, indexes: IndexRecords, work: Callable[[IndexingJob], Awaitable[None]], limit: int) -> None:
        self._indexes = indexes
        self._work = work
        self._limit = limit
        self._wake = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._tenants: dict[int, str] = {}
        self._last_tenant = ""

    def start(self) -> None:
        """Begin to claim and index files."""
        # It lives from `start` to `close`, longer than any request.
        self._loop_task = asyncio.create_task(self._run(), name="indexing")  # noqa: TID251

    def wake(self) -> None:
        """Look at once for files that were added, or taken away."""
        self._wake.set()

    async def close(self) -> None:
        """Stop; idempotent. What is not done stays in the store, for other servers to take."""
        if self._loop_task is None:
            return
        tasks = [self._loop_task, *self._tasks.values()]
        self._loop_task = None
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        with contextlib.suppress(ApiError, TimeoutError):  # Otherwise the files are free once this server counts as dead.
            async with asyncio.timeout(RELEASE_S):
                await self._indexes.release()

    async def _run(self) -> None:
        is_free = False
        while True:
            with one_round("indexing queue"):
                if not is_free:  # An earlier process with this server's number may have died with files claimed.
                    await self._indexes.release()
                    is_free = True
                await self._cancel_unclaimed()
                await self._start_next()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH_S if self._tasks else POLL_S):
                    await self._wake.wait()
            self._wake.clear()

    async def _cancel_unclaimed(self) -> None:
        if self._tasks:
            for number in await self._indexes.find_lost([*self._tasks]):
                if (task := self._tasks.get(number)) is not None:
                    task.cancel()

    async def _start_next(self) -> None:
        while len(self._tasks) < 2 * self._limit:
            other_than = {*self._tenants.values()} if len(self._tasks) >= self._limit else ()
            if (job := await self._indexes.claim(self._last_tenant, other_than)) is None:
                return
            self._last_tenant = job.tenant
            if job.file.number in self._tasks:  # Claimed a second time: this server was taken for dead, and is still at work on it.
                return
            # It lives as long as the file takes, at most until `close`.
            task = asyncio.create_task(self._index(job), name=f"indexing {job.file.file_id}")  # noqa: TID251
            self._tasks[job.file.number] = task
            self._tenants[job.file.number] = job.tenant

    async def _index(self, job: IndexingJob) -> None:
        try:
            await self._work(job)
        except Exception:  # A defect met by one file must not keep others from being indexed.
            _log.exception("Indexing a file failed.", file_id=job.file.file_id)
        finally:
            self._tasks.pop(job.file.number, None)
            self._tenants.pop(job.file.number, None)
            self._wake.set()
