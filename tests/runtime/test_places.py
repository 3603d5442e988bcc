"""The coordinator of one process: what those who wait are told, and workers that come, go and fail."""

import asyncio
import contextlib

import pytest

from antiphon import talk
from antiphon.engines.scripted import Scripted
from antiphon.engines.scripted_script import Script
from antiphon.errors import Fault
from antiphon.runtime.coordinator import Coordinator, Wants, Worker
from antiphon.runtime.metrics import Metrics
from antiphon.runtime.places import Places
from antiphon.settings import QueueSettings, WorkerSettings

pytestmark = pytest.mark.anyio

WANTS = Wants(model="m", kind="audio")


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


class Visitor:
    """Somebody who wants a place, keeps what they are told, and holds the place until they are let go."""

    def __init__(self, tasks, coordinator, wants=WANTS):
        self.told, self.lease, self.fault = [], None, None
        self.has_it, self.over, self.changed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.task = tasks.create_task(self._visit(coordinator, wants))

    async def _visit(self, coordinator, wants):
        try:
            async with coordinator.lease(wants, self._tell) as self.lease:
                self.has_it.set()
                await self.over.wait()
        except Fault as fault:
            self.fault = fault
            self.has_it.set()

    def _tell(self, waiting):
        self.told.append((waiting.position, waiting.queue_length, waiting.wait_s))
        self.changed.set()

    async def served(self):
        async with asyncio.timeout(10):
            await self.has_it.wait()
        return self

    async def until_told(self, *expected):
        async with asyncio.timeout(10):
            while self.told[-1:] != [expected]:
                self.changed.clear()
                await self.changed.wait()

    async def leave(self):
        self.over.set()
        await self.task


def worker(id="w", engine=None, **rest):
    return Worker(id=id, model="m", engine=engine or Scripted(Script()), **rest)


@contextlib.asynccontextmanager
async def open_places(*workers, clock=None, failures=3, metrics=None, absent_s=30, **queue):
    settings = WorkerSettings(failures=failures, quarantine_s=0.01)
    coordinator = Places(QueueSettings(**queue), settings, metrics, clock or Clock(), absent_s)
    for each in workers:
        coordinator.offer(each)
    async with asyncio.TaskGroup() as tasks:
        yield coordinator, lambda wants=WANTS: Visitor(tasks, coordinator, wants)
        await coordinator.close()


async def test_those_who_wait_are_told_when_they_move_up_and_once_when_they_come():
    async with open_places(worker()) as (_, visit):
        first = await visit().served()
        second, third = visit(), visit()
        await third.until_told(2, 2, None)
        await first.leave()
        await third.until_told(1, 1, None)
        assert [position for position, _, _ in third.told] == [2, 1]
        await (await second.served()).leave()
        await (await third.served()).leave()


async def test_those_whom_somebody_goes_before_are_told():
    async with open_places(worker(), priorities=("chat=1",), update_s=3600) as (_, visit):
        first = await visit().served()
        second = visit()
        await second.until_told(1, 1, None)
        third = visit(Wants(model="m", kind="chat"))
        await second.until_told(2, 2, None)
        assert third.told == [(1, 2, None)]
        for each in (first, third, second):
            await (await each.served()).leave()


async def test_those_whose_place_stays_the_same_are_told_so_now_and_then():
    async with open_places(worker(), update_s=0.001) as (_, visit):
        first = await visit().served()
        second = visit()
        async with asyncio.timeout(10):
            while len(second.told) < 5:
                second.changed.clear()
                await second.changed.wait()
        assert set(second.told) == {(1, 1, None)}
        await first.leave()
        await (await second.served()).leave()


async def test_how_long_it_will_take_is_told_once_it_is_known():
    clock = Clock()
    async with open_places(worker(), clock=clock) as (coordinator, visit):
        first = await visit().served()
        clock.now_s = 100
        await first.leave()
        second = await visit().served()
        clock.now_s = 130
        third, fourth = visit(), visit()
        await third.until_told(1, 1, 70)
        await fourth.until_told(2, 2, 170)
        assert [(seen.position, seen.wait_s) for seen in coordinator.tickets() if seen.state == "queued"] == [(1, 70), (2, 170)]
        for each in (second, third, fourth):
            await (await each.served()).leave()


async def test_a_ticket_can_be_looked_up_and_cancelled_while_it_waits():
    async with open_places(worker()) as (coordinator, visit):
        first = await visit().served()
        second = visit()
        await second.until_told(1, 1, None)
        (waiting,) = [seen for seen in coordinator.tickets() if seen.state == "queued"]
        assert coordinator.ticket(waiting.id) == waiting
        assert coordinator.cancel(waiting.id)
        assert (await second.served()).fault.code == "worker_busy"
        assert coordinator.ticket(waiting.id) is None
        assert coordinator.ticket(first.lease.ticket_id).worker_id == "w"
        assert not coordinator.cancel(first.lease.ticket_id)
        await first.leave()


async def test_a_worker_in_quarantine_is_back_when_its_time_is_over():
    async with open_places(worker(), failures=1) as (coordinator, visit):
        first = await visit().served()
        first.lease.failed()
        second = visit()
        clock = coordinator._clock
        await second.until_told(1, 1, None)
        await first.leave()
        assert [seen.state for seen in coordinator.workers()] == ["quarantined"]
        clock.now_s = 60
        await (await second.served()).leave()
        assert [(seen.state, seen.failures) for seen in coordinator.workers()] == [("idle", 0)]


async def test_when_the_last_worker_goes_those_who_wait_do_so_for_a_while():
    async with open_places(worker(), absent_s=0.01) as (coordinator, visit):
        first = await visit().served()
        second = visit()
        await second.until_told(1, 1, None)
        coordinator.withdraw("w")
        coordinator.offer(worker("v"))
        await (await second.served()).leave()
        third_first, third = await visit().served(), visit()
        await third.until_told(1, 1, None)
        coordinator.withdraw("v")
        assert (await third.served()).fault.code == "worker_busy"
        await first.leave()
        await third_first.leave()


async def test_nobody_gets_a_place_from_a_coordinator_that_is_closed():
    async with open_places(worker()) as (coordinator, visit):
        await coordinator.close()
        assert (await visit().served()).fault.code == "shutdown"


class Moody(Scripted):
    """A worker that says whether it is well."""

    def __init__(self):
        super().__init__(Script())
        self.is_well = True
        self.asked = 0

    async def probe(self):
        self.asked += 1
        if not self.is_well:
            raise OSError("no route to host")


async def test_a_worker_that_does_not_answer_gets_nobody_until_it_does():
    moody = Moody()
    async with open_places(worker(engine=moody)) as (coordinator, visit):
        moody.is_well = False
        await coordinator._prober.look()
        assert [seen.state for seen in coordinator.workers()] == ["offline"]
        waiting = visit()
        await waiting.until_told(1, 1, None)
        moody.is_well = True
        await coordinator._prober.look()
        await waiting.served()
        asked = moody.asked
        await coordinator._prober.look()
        assert moody.asked == asked  # it has somebody, and is left alone
        await waiting.leave()


async def test_workers_are_asked_again_and_again():
    moody = Moody()
    coordinator = Places(workers=WorkerSettings(probe_s=0.001))
    coordinator.offer(worker(engine=moody))
    await coordinator.start()
    async with asyncio.timeout(10):
        while moody.asked < 3:  # noqa: ASYNC110 - being asked sets no event
            await asyncio.sleep(0.001)
    await coordinator.close()
    await coordinator.close()


async def test_what_happens_is_counted():
    metrics = Metrics()
    async with open_places(worker(), metrics=metrics, size=1) as (_, visit):
        first = await visit().served()
        second = visit()
        await second.until_told(1, 1, None)
        assert (await visit().served()).fault.code == "queue_full"
        counted = metrics.snapshot()
        assert (counted.queue_waiting["m"], counted.queue_serving["m"], counted.workers["m", "busy"]) == (1, 1, 1)
        second.task.cancel()
        await asyncio.wait([second.task])
        await first.leave()
    assert dict(metrics.queue_tickets) == {("m", "audio", "refused"): 1, ("m", "audio", "gave_up"): 1, ("m", "audio", "served"): 1}
    assert sum(metrics.queue_waits["m"].counts) == 1


async def test_what_the_workers_can_do_is_what_the_first_of_them_says():
    coordinator: Coordinator = Places()
    assert (coordinator.offers("m"), coordinator.first("m")) == (None, None)
    coordinator.offer(worker(engine=Scripted(Script(), talk.Abilities(sees=True))))
    coordinator.offer(worker("v"))
    assert coordinator.offers("m") == talk.Abilities(sees=True)


class Link:
    """What an operator has of a worker that joined; what it is told is kept."""

    silent_s = 1.5

    def __init__(self):
        self.told = []

    def drain(self):
        self.told.append("drain")

    def dismiss(self):
        self.told.append("dismiss")


async def test_a_worker_that_joined_is_told_what_becomes_of_it():
    link = Link()
    async with open_places(worker(link=link, version="1.2.3")) as (coordinator, _):
        (seen,) = coordinator.workers()
        assert (seen.silent_s, seen.worker.version) == (1.5, "1.2.3")
        assert coordinator.drain("w")
        assert coordinator.withdraw("w")
        assert not coordinator.withdraw("w")
        assert not coordinator.drain("w")
        assert link.told == ["drain", "dismiss"]


async def test_a_worker_that_was_drained_before_it_came_gets_nobody():
    async with open_places(worker(), absent_s=0) as (coordinator, visit):
        first = await visit().served()
        second = visit()
        await second.until_told(1, 1, None)
        coordinator.offer(worker("drained", is_draining=True))
        assert [seen.state for seen in coordinator.workers()] == ["busy", "draining"]
        assert second.lease is None
        coordinator.withdraw("w")
        assert (await second.served()).fault.code == "worker_busy"
        await first.leave()
        assert [each.state for each in coordinator.served()] == []
