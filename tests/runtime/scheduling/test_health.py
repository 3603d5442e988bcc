"""Health checks of workers: the effect of each answer, and of none."""

import asyncio

import pytest

from antiphon.engines.scripted.engine import ScriptedEngine
from antiphon.engines.scripted.script import Script
from antiphon.runtime.scheduling.base import Requirements, Worker
from antiphon.runtime.scheduling.health import HealthChecker
from antiphon.runtime.scheduling.pool import WorkerPool

pytestmark = pytest.mark.anyio

WANTS = Requirements(model="m", kind="audio")


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Asked(ScriptedEngine):
    """A worker that is asked, and says that it is not well when it is let."""

    def __init__(self):
        super().__init__(Script())
        self.is_asked, self.may_say, self.was_left = asyncio.Event(), asyncio.Event(), False

    async def probe(self):
        self.is_asked.set()
        try:
            await self.may_say.wait()
        except asyncio.CancelledError:
            self.was_left = True
            raise
        raise OSError("busy")


def offered(pool, engine):
    pool.add_worker(Worker(id="w", model="m", engine=engine), 0)


async def meanwhile(pool, engine, happens):
    """The states of all workers after one was asked, while something happened."""
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(HealthChecker(pool, 3600, lambda _id: None).check_all())
        await engine.is_asked.wait()
        happens()
        engine.may_say.set()
    return [each.state for each in pool.workers()]


async def test_a_worker_that_is_not_well_gets_nobody():
    pool, engine = WorkerPool(), Asked()
    offered(pool, engine)
    assert await meanwhile(pool, engine, lambda: None) == ["offline"]


async def test_a_worker_that_got_somebody_while_it_was_asked_is_not_taken_for_ill():
    pool, engine = WorkerPool(), Asked()
    offered(pool, engine)
    assert await meanwhile(pool, engine, lambda: pool.request_lease("q", WANTS, 0)) == ["busy"]


async def test_nor_is_one_that_had_somebody_meanwhile():
    pool, engine = WorkerPool(), Asked()
    offered(pool, engine)
    assert await meanwhile(pool, engine, lambda: pool.end_ticket(pool.request_lease("q", WANTS, 0), 0)) == ["idle"]


async def test_what_a_worker_that_has_gone_says_is_not_taken_for_the_one_that_came_under_its_id():
    pool, engine = WorkerPool(), Asked()
    offered(pool, engine)
    assert await meanwhile(pool, engine, lambda: offered(pool, ScriptedEngine(Script()))) == ["idle"]


async def test_a_worker_that_does_not_say_how_it_is_is_not_well():
    pool = WorkerPool()
    offered(pool, Asked())
    await HealthChecker(pool, 0.001, lambda _id: None).check_all()
    assert [each.state for each in pool.workers()] == ["offline"]


async def test_at_the_end_nobody_is_being_asked():
    pool, engine = WorkerPool(), Asked()
    offered(pool, engine)
    prober = HealthChecker(pool, 0.2, lambda _id: None)
    prober.start()
    async with asyncio.timeout(10):
        await engine.is_asked.wait()
        await prober.close()
    assert engine.was_left
