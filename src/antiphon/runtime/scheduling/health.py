"""Health checks of idle workers: one that does not answer gets no tickets until it does."""

import asyncio
from collections.abc import Callable

from antiphon.engine_api.engine import ProbedEngine
from antiphon.runtime.scheduling.pool import WorkerEntry, WorkerPool
from antiphon.runtime.upkeep import one_round

MAX_CONCURRENT_PROBES = 16


class HealthChecker:
    """
    Probes idle and offline workers.

    Args:
        on_online: called with the id of a worker that answers again.
    """

    def __init__(self, pool: WorkerPool, interval_s: float, on_online: Callable[[str], None]) -> None:
        self._pool = pool
        self._interval_s = interval_s
        self._on_online = on_online
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Probe every `interval_s` until `close`."""
        # It lives until `close`, longer than any one request's task group.
        self._task = asyncio.create_task(self._run(), name="health checker")  # noqa: TID251

    async def close(self) -> None:
        """Stop; idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def check_all(self) -> None:
        """Probe every idle or offline worker once."""
        semaphore = asyncio.Semaphore(MAX_CONCURRENT_PROBES)
        async with asyncio.TaskGroup() as tasks:
            for entry in tuple(self._pool.workers()):
                # A busy worker shows by its conversation whether it lives, and may be too busy to answer.
                if entry.state in ("idle", "offline") and isinstance(entry.worker.engine, ProbedEngine):
                    tasks.create_task(self._probe(entry, entry.worker.engine, semaphore))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            with one_round("health checks"):
                await self.check_all()

    async def _probe(self, entry: WorkerEntry, engine: ProbedEngine, semaphore: asyncio.Semaphore) -> None:
        async with semaphore:
            leases_before = _lease_total(entry)
            try:
                async with asyncio.timeout(self._interval_s):
                    await engine.probe()
            except Exception:  # any failure counts
                # A worker that got a ticket meanwhile may be too busy to answer; one that left may be back under the
                # same id.
                if _lease_total(entry) == leases_before and self._pool.worker(entry.worker.id) is entry:
                    self._pool.mark_offline(entry.worker.id)
            else:
                if entry.condition == "offline":
                    self._on_online(entry.worker.id)


def _lease_total(entry: WorkerEntry) -> int:
    """How many tickets a worker got so far."""
    return entry.served_count + entry.lease_count
