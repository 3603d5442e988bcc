"""Looking after workers that have nothing to do: one that does not answer gets nobody until it does."""

import asyncio
from collections.abc import Callable

from antiphon.engine_api.engine import ProbedEngine
from antiphon.runtime.scheduling.pool import WorkerEntry, WorkerPool

MAX_CONCURRENT_PROBES = 16


class HealthChecker:
    """
    Asks workers whether they are well.

    Args:
        found: takes the id of a worker that is well again.
    """

    def __init__(self, pool: WorkerPool, interval_s: float, on_online: Callable[[str], None]) -> None:
        self._pool = pool
        self._interval_s = interval_s
        self._on_online = on_online
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Ask, every few seconds."""
        # It lives until `close`, longer than any one request's task group.
        self._task = asyncio.create_task(self._run(), name="prober")  # noqa: TID251

    async def close(self) -> None:
        """Ask no more; idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def check_all(self) -> None:
        """Ask every worker that has nothing to do, once."""
        door = asyncio.Semaphore(MAX_CONCURRENT_PROBES)
        async with asyncio.TaskGroup() as tasks:
            for enlisted in tuple(self._pool.workers()):
                if enlisted.state in ("idle", "offline") and isinstance(enlisted.worker.engine, ProbedEngine):
                    tasks.create_task(self._probe(enlisted, enlisted.worker.engine, door))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.check_all()

    async def _probe(self, entry: WorkerEntry, engine: ProbedEngine, semaphore: asyncio.Semaphore) -> None:
        async with semaphore:
            given = _lease_total(entry)
            try:
                async with asyncio.timeout(self._interval_s):
                    await engine.probe()
            except Exception:  # whatever is wrong with it, it is not well
                # One that got somebody while it was asked may have been too busy to answer; one that has gone may be back under its id.
                if _lease_total(entry) == given and self._pool.worker(entry.worker.id) is entry:
                    self._pool.mark_offline(entry.worker.id)
            else:
                if entry.condition == "offline":
                    self._on_online(entry.worker.id)


def _lease_total(entry: WorkerEntry) -> int:
    """How many places were given with a worker so far."""
    return entry.served_count + entry.lease_count
