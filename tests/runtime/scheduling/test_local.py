"""The coordinator of one process: updates for waiting clients, and workers that join, leave and fail."""

import asyncio
import contextlib

import pytest

from antiphon.config.settings import QueueSettings, WorkerSettings
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engines.scripted.engine import ScriptedEngine
from antiphon.engines.scripted.script import Script
from antiphon.errors import ApiError
from antiphon.runtime.core.metrics import Metrics
from antiphon.runtime.scheduling.base import Coordinator, Requirements, Worker
from antiphon.runtime.scheduling.local import LocalCoordinator

pytestmark = pytest.mark.anyio

WANTS = Requirements(model="m", kind="audio")


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


class Visitor:
    """A client that requests a slot, collects its updates, and holds the slot until it is released."""

    def __init__(self, tasks, coordinator, wants=WANTS):
        self.told, self.lease, self.fault = [], None, None
        self.has_it, self.over, self.changed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.task = tasks.create_task(self._visit(coordinator, wants))

    async def _visit(self, coordinator, wants):
        try:
            async with coordinator.lease(wants, self._tell) as self.lease:
                self.has_it.set()
                await self.over.wait()
        except ApiError as fault:
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
            while not self.told or self.told[-1][: len(expected)] != expected:
                self.changed.clear()
                await self.changed.wait()

    async def until_told_anything(self):
        async with asyncio.timeout(10):
            await self.changed.wait()

    async def leave(self):
        self.over.set()
        await self.task


def worker(id="w", engine=None, **rest):
    return Worker(id=id, model="m", engine=engine or ScriptedEngine(Script()), **rest)


@contextlib.asynccontextmanager
async def open_places(*workers, clock=None, failures=3, metrics=None, absent_s=30, **queue):
    settings = WorkerSettings(failures=failures, quarantine_s=0.01)
    coordinator = LocalCoordinator(QueueSettings(**queue), settings, metrics, clock or Clock(), absent_s)
    for each in workers:
        coordinator.add_worker(each)
    async with asyncio.TaskGroup() as tasks:
        yield coordinator, lambda wants=WANTS: Visitor(tasks, coordinator, wants)
        await coordinator.close()
    assert not coordinator._waiters
    assert coordinator._notifier._timer is None or coordinator._notifier._timer.cancelled()


async def test_those_who_wait_are_told_when_they_move_up_and_once_when_they_come():
    async with open_places(worker(), update_s=3600) as (_, visit):
        first = await visit().served()
        second, third = visit(), visit()
        await third.until_told(2, 2)
        await first.leave()
        await third.until_told(1, 1)
        assert [position for position, _, _ in third.told] == [2, 1]
        await (await second.served()).leave()
        await (await third.served()).leave()


async def test_those_whom_somebody_goes_before_are_told():
    async with open_places(worker(), priorities=("chat=1",), update_s=3600) as (_, visit):
        first = await visit().served()
        second = visit()
        await second.until_told(1, 1)
        third = visit(Requirements(model="m", kind="chat"))
        await second.until_told(2, 2)
        assert [seen[:2] for seen in third.told] == [(1, 2)]
        for each in (first, third, second):
            await (await each.served()).leave()


async def test_those_behind_whoever_leaves_the_queue_are_told():
    async with open_places(worker(), update_s=3600) as (_, visit):
        first = await visit().served()
        second, third = visit(), visit()
        await third.until_told(2, 2)
        second.task.cancel()
        await third.until_told(1, 1)
        await first.leave()
        await (await third.served()).leave()


async def test_those_who_move_up_as_a_worker_comes_are_told():
    async with open_places(worker(), update_s=3600) as (coordinator, visit):
        first = await visit().served()
        second, third = visit(), visit()
        await third.until_told(2, 2)
        coordinator.add_worker(worker("v"))
        await third.until_told(1, 1)
        for each in (first, second, third):
            await (await each.served()).leave()


async def test_those_whose_place_stays_the_same_are_told_so_now_and_then():
    async with open_places(worker(), update_s=0.001) as (_, visit):
        first = await visit().served()
        second = visit()
        async with asyncio.timeout(10):
            while len(second.told) < 5:
                second.changed.clear()
                await second.changed.wait()
        assert {seen[:2] for seen in second.told} == {(1, 1)}
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


async def test_how_long_it_took_is_counted_from_coming_and_how_long_it_is_had_from_having_it():
    clock, metrics = Clock(), Metrics()
    async with open_places(worker(), clock=clock, metrics=metrics) as (coordinator, visit):
        first = await visit().served()
        second = visit()
        await second.until_told(1, 1)
        clock.now_s = 40
        await first.leave()
        await second.served()
        clock.now_s = 100
        await second.leave()
        third = await visit().served()
        clock.now_s = 130
        third.lease.mark_failed()  # which says nothing of how long it takes
        await third.leave()
    assert coordinator.lease_durations.means() == {("m", "audio"): ((40 + 60) / 2, 2)}
    assert metrics.queue_waits["m"].total == 40


async def test_how_long_it_will_take_counts_the_places_of_the_model_that_will_be_given_again():
    clock = Clock()
    others = [Worker(id=id, model="n", engine=ScriptedEngine(Script())) for id in ("n well", "n ill")]
    async with open_places(worker("drained"), worker("ill"), worker("w"), *others, clock=clock, failures=1) as (coordinator, visit):
        drained, ill = [await visit().served() for _ in range(2)]
        of_other = [await visit(Requirements(model="n", kind="audio")).served() for _ in range(2)]
        clock.now_s = 50
        well = await visit().served()
        clock.now_s = 100
        for model in "mn":
            coordinator.lease_durations.observe(model, "audio", 100)
        coordinator.drain("drained")
        for each in (ill, of_other[1]):
            each.lease.mark_failed()
            await each.leave()
        assert [seen.state for seen in coordinator.workers()] == ["draining", "quarantined", "busy", "busy", "quarantined"]
        waiting = [visit(), visit()]
        await waiting[1].until_told(2, 2, 50)
        assert waiting[0].told == [(1, 1, pytest.approx(0.01))]
        for each in (drained, well, of_other[0]):
            await each.leave()
        clock.now_s = 200
        for each in waiting:
            await (await each.served()).leave()


async def test_a_ticket_can_be_looked_up_and_cancelled_while_it_waits():
    async with open_places(worker()) as (coordinator, visit):
        first = await visit().served()
        second = visit()
        await second.until_told(1, 1)
        (waiting,) = [seen for seen in coordinator.tickets() if seen.state == "queued"]
        assert coordinator.ticket(waiting.id) == waiting
        assert coordinator.cancel(waiting.id)
        assert (await second.served()).fault.code == "worker_busy"
        assert coordinator.ticket(waiting.id) is None
        assert coordinator.ticket(first.lease.ticket_id).worker_id == "w"
        assert not coordinator.cancel(first.lease.ticket_id)
        await first.leave()


async def test_tickets_are_those_that_wait_in_their_order_and_then_those_served():
    async with open_places(worker()) as (coordinator, visit):
        first = await visit().served()
        second, third = visit(), visit()
        await third.until_told(2, 2)
        seen = coordinator.tickets()
        assert [(each.state, each.position) for each in seen] == [("queued", 1), ("queued", 2), ("serving", None)]
        assert [coordinator.ticket(each.id) for each in seen] == list(seen)
        for each in (first, second, third):
            await (await each.served()).leave()


async def test_a_ticket_that_has_just_got_its_place_cannot_be_cancelled():
    async with open_places(worker()) as (coordinator, visit):
        first = await visit().served()
        second = visit()
        await second.until_told(1, 1)
        (waiting, _) = coordinator.tickets()
        coordinator.add_worker(worker("v"))
        assert not coordinator.cancel(waiting.id)  # though whoever waits has not come to know of it
        assert (await second.served()).fault is None
        for each in (first, second):
            await each.leave()


async def test_a_place_that_is_given_to_a_ticket_that_was_just_cancelled_comes_back():
    async with open_places(worker()) as (coordinator, visit):
        first = await visit().served()
        second = visit()
        await second.until_told(1, 1)
        assert coordinator.cancel(coordinator.tickets()[0].id)
        coordinator.add_worker(worker("v"))
        assert (await second.served()).fault.code == "worker_busy"
        assert [(seen.state, seen.lease_count) for seen in coordinator.workers()] == [("busy", 1), ("idle", 0)]
        await first.leave()


async def test_the_end_comes_also_to_whoever_has_just_been_refused():
    async with open_places(worker()) as (coordinator, visit):
        first = await visit().served()
        second = visit()
        await second.until_told(1, 1)
        assert coordinator.cancel(coordinator.tickets()[0].id)
        await coordinator.close()
        assert (await second.served()).fault.code == "worker_busy"
        await first.leave()


async def test_a_key_has_its_part_of_the_queue():
    async with open_places(worker(), waiting_per_key=1) as (_, visit):
        first = await visit().served()
        mine = visit(Requirements(model="m", kind="audio", key_id="me"))
        await mine.until_told(1, 1)
        assert (await visit(Requirements(model="m", kind="audio", key_id="me")).served()).fault.status == 429
        await first.leave()
        await (await mine.served()).leave()


async def test_a_worker_in_quarantine_is_back_when_its_time_is_over():
    async with open_places(worker(), failures=1) as (coordinator, visit):
        first = await visit().served()
        first.lease.mark_failed()
        second = visit()
        clock = coordinator._clock
        await second.until_told(1, 1)
        await first.leave()
        assert [seen.state for seen in coordinator.workers()] == ["quarantined"]
        clock.now_s = 60
        await (await second.served()).leave()
        assert [(seen.state, seen.failure_count) for seen in coordinator.workers()] == [("idle", 0)]


async def test_quarantines_end_one_after_another_and_again():
    clock = Clock()
    async with open_places(worker("w"), worker("v"), failures=1, clock=clock) as (_, visit):
        had = [await visit().served() for _ in range(2)]
        for each in had:
            each.lease.mark_failed()
            await each.leave()
            clock.now_s += 0.005
        waiting = [visit() for _ in range(2)]
        for each in waiting:
            await each.until_told_anything()
        clock.now_s = 0.012  # the first is over, the second not yet; nobody leaves a place meanwhile
        await waiting[0].served()
        clock.now_s = 1
        await waiting[1].served()
        waiting[0].lease.mark_failed()  # its trial
        await waiting[0].leave()
        again = visit()
        await again.until_told_anything()
        clock.now_s = 2
        await (await again.served()).leave()
        await waiting[1].leave()


async def test_when_the_queue_is_closed_who_waits_or_would_have_to_is_told_and_who_is_served_goes_on():
    async with open_places(worker("w"), worker("v")) as (coordinator, visit):
        first, second, waiting = await visit().served(), await visit().served(), visit()
        await waiting.until_told(1, 1)
        coordinator.close_queue()
        late = visit()
        for refused in (waiting, late):
            assert (await refused.served()).fault.code == "server_shutting_down"
        assert not first.task.done() and coordinator.waiting_count == 0
        await second.leave()
        third = await visit().served()
        assert third.fault is None  # what is under way may still get a free worker
        await first.leave()
        await third.leave()


async def test_a_coordinator_that_is_closed_waits_for_nothing_more():
    async with open_places(worker("w"), worker("v", is_draining=True), failures=1) as (coordinator, visit):
        first = await visit().served()
        waiting = visit()
        await waiting.until_told(1, 1)
        coordinator.drain("w")
        await coordinator.close()
        assert [handle.cancelled() for handle in coordinator._absence_timers.values()] == [True]
        coordinator.remove_worker("v")
        await waiting.served()
        first.lease.mark_failed()
        await first.leave()
        assert [handle.cancelled() for handle in coordinator._absence_timers.values()] == [True]
    async with open_places(worker("w"), worker("v"), failures=1) as (coordinator, visit):
        for is_last in (False, True):
            visitor = await visit().served()
            visitor.lease.mark_failed()
            if is_last:
                alarm = coordinator._quarantine_timer
                await coordinator.close()
                assert alarm.cancelled()
                coordinator._quarantine_timer = None
            await visitor.leave()
        assert coordinator._quarantine_timer is None


async def test_when_the_last_worker_is_drained_those_who_wait_do_so_for_a_while():
    async with open_places(worker(), absent_s=0.01) as (coordinator, visit):
        first = await visit().served()
        second = visit()
        await second.until_told(1, 1)
        assert coordinator.drain("w")
        assert (await second.served()).fault.code == "worker_busy"
        await first.leave()


async def test_workers_of_another_model_that_come_and_go_keep_nobody_waiting():
    async with open_places(worker(), absent_s=0.1) as (coordinator, visit):
        first = await visit().served()
        second = visit()
        await second.until_told(1, 1)
        coordinator.remove_worker("w")
        async with asyncio.timeout(10):
            while not second.has_it.is_set():
                coordinator.add_worker(Worker(id="other", model="n", engine=ScriptedEngine(Script())))
                coordinator.remove_worker("other")
                await asyncio.sleep(0.02)
        assert second.fault.code == "worker_busy"
        await first.leave()


async def test_when_the_last_worker_goes_those_who_wait_do_so_for_a_while():
    async with open_places(worker(), absent_s=0.01) as (coordinator, visit):
        first = await visit().served()
        second = visit()
        await second.until_told(1, 1)
        coordinator.remove_worker("w")
        coordinator.add_worker(worker("v"))
        await (await second.served()).leave()
        third_first, third = await visit().served(), visit()
        await third.until_told(1, 1)
        coordinator.remove_worker("v")
        assert (await third.served()).fault.code == "worker_busy"
        await first.leave()
        await third_first.leave()


async def test_nobody_gets_a_place_from_a_coordinator_that_is_closed():
    async with open_places(worker()) as (coordinator, visit):
        await coordinator.close()
        assert (await visit().served()).fault.code == "server_shutting_down"


class Moody(ScriptedEngine):
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
        await coordinator._health_checker.check_all()
        assert [seen.state for seen in coordinator.workers()] == ["offline"]
        waiting = visit()
        await waiting.until_told(1, 1)
        moody.is_well = True
        await coordinator._health_checker.check_all()
        await waiting.served()
        asked = moody.asked
        await coordinator._health_checker.check_all()
        assert moody.asked == asked  # it has somebody, and is left alone
        await waiting.leave()


async def test_workers_are_asked_again_and_again():
    moody = Moody()
    coordinator = LocalCoordinator(workers=WorkerSettings(probe_s=0.001))
    coordinator.add_worker(worker(engine=moody))
    await coordinator.start()
    async with asyncio.timeout(10):
        while moody.asked < 3:  # noqa: ASYNC110 - being asked sets no event
            await asyncio.sleep(0.001)
    await coordinator.close()
    assert coordinator._health_checker._task.done()
    await coordinator.close()


async def test_what_happens_is_counted():
    metrics = Metrics()
    async with open_places(worker(), metrics=metrics, size=1) as (_, visit):
        first = await visit().served()
        second = visit()
        await second.until_told(1, 1)
        assert (await visit().served()).fault.code == "queue_full"
        counted = metrics.snapshot()
        assert (counted.queue_waiting["m"], counted.queue_serving["m"], counted.workers["m", "busy"]) == (1, 1, 1)
        second.task.cancel()
        await asyncio.wait([second.task])
        await first.leave()
    assert dict(metrics.queue_tickets) == {("m", "audio", "refused"): 1, ("m", "audio", "gave_up"): 1, ("m", "audio", "served"): 1}
    assert sum(metrics.queue_waits["m"].counts) == 1


async def test_what_the_workers_can_do_is_what_the_first_of_them_says():
    coordinator: Coordinator = LocalCoordinator()
    assert (coordinator.capabilities("m"), coordinator.first_worker("m")) == (None, None)
    coordinator.add_worker(Worker(id="other", model="n", engine=ScriptedEngine(Script())))
    coordinator.add_worker(worker(engine=ScriptedEngine(Script(), Capabilities(sees=True))))
    coordinator.add_worker(worker("v"))
    assert coordinator.capabilities("m") == Capabilities(sees=True)


class Link:
    """The control of a worker that joined; it collects its calls."""

    silent_s = 1.5
    is_ending = False

    def __init__(self):
        self.told = []

    def drain(self):
        self.told.append("drain")

    def resume(self):
        self.told.append("resume")

    def dismiss(self):
        self.told.append("dismiss")


async def test_a_worker_that_joined_is_told_what_becomes_of_it():
    link = Link()
    async with open_places(worker(link=link, version="1.2.3")) as (coordinator, _):
        (seen,) = coordinator.workers()
        assert (seen.silent_s, seen.worker.version) == (1.5, "1.2.3")
        assert coordinator.drain("w")
        assert coordinator.resume("w")
        assert coordinator.remove_worker("w")
        assert not coordinator.remove_worker("w")
        assert not coordinator.drain("w")
        assert not coordinator.resume("w")
        assert link.told == ["drain", "resume", "dismiss"]


async def test_whoever_waits_for_a_worker_that_was_drained_has_it_when_it_is_resumed():
    async with open_places(worker(link=Link())) as (coordinator, visit):
        first = await visit().served()
        second = visit()
        await second.until_told(1, 1)
        coordinator.drain("w")
        await first.leave()
        assert second.lease is None
        coordinator.resume("w")
        await (await second.served()).leave()


async def test_a_worker_that_was_drained_before_it_came_gets_nobody():
    async with open_places(worker(), absent_s=0) as (coordinator, visit):
        first = await visit().served()
        second = visit()
        await second.until_told(1, 1)
        coordinator.add_worker(worker("drained", is_draining=True))
        assert [seen.state for seen in coordinator.workers()] == ["busy", "draining"]
        assert second.lease is None
        coordinator.remove_worker("w")
        assert (await second.served()).fault.code == "worker_busy"
        await first.leave()
        assert [each.state for each in coordinator.serving_tickets()] == []
