"""Looking after workers that have nothing to do: one that does not answer gets nobody until it does."""

import asyncio
from collections.abc import Callable

from antiphon.engine_api.engine import ProbedEngine
from antiphon.runtime.scheduling.pool import Enlisted, Pool

AT_ONCE = 16


class Prober:
    """
    Asks workers whether they are well.

    Args:
        found: takes the id of a worker that is well again.
    """

    def __init__(self, pool: Pool, every_s: float, found: Callable[[str], None]) -> None:
        self._pool = pool
        self._every_s = every_s
        self._found = found
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Ask, every few seconds."""
        # It lives until `close`, longer than any one request's task group.
        self._task = asyncio.create_task(self._ask_again_and_again(), name="prober")  # noqa: TID251

    async def close(self) -> None:
        """Ask no more; idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def look(self) -> None:
        """Ask every worker that has nothing to do, once."""
        door = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            for enlisted in tuple(self._pool.workers()):
                if enlisted.state in ("idle", "offline") and isinstance(enlisted.worker.engine, ProbedEngine):
                    tasks.create_task(self._ask(enlisted, enlisted.worker.engine, door))

    async def _ask_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.look()

    async def _ask(self, enlisted: Enlisted, engine: ProbedEngine, door: asyncio.Semaphore) -> None:
        async with door:
            given = _given(enlisted)
            try:
                async with asyncio.timeout(self._every_s):
                    await engine.probe()
            except Exception:  # whatever is wrong with it, it is not well
                # One that got somebody while it was asked may have been too busy to answer; one that has gone may be back under its id.
                if _given(enlisted) == given and self._pool.worker(enlisted.worker.id) is enlisted:
                    self._pool.lose(enlisted.worker.id)
            else:
                if enlisted.condition == "offline":
                    self._found(enlisted.worker.id)


def _given(enlisted: Enlisted) -> int:
    """How many places were given with a worker so far."""
    return enlisted.served + enlisted.taken
