"""Conversations that wait for a place: what they hear meanwhile, and that places come back whatever happens."""

import asyncio
import contextlib

import pytest

from antiphon.engine_api import commands, events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engines.scripted.engine import ScriptedEngine
from antiphon.engines.scripted.script import Script
from antiphon.errors import ServerError
from antiphon.runtime.scheduling.engine import QueuedEngine, WorkerTimeouts
from support.runtime.queued_stage import Heard, Stage, asked, free, places, settings, states

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_a_place_that_is_free_is_had_at_once_and_answers_as_the_worker_does():
    coordinator, heard = places(ScriptedEngine(Script())), Heard()
    async with QueuedEngine(coordinator, "m").open(settings("chat"), heard) as conversation:
        conversation.send(asked())
        await heard.until(events.ResponseEnded)
    assert [type(word) for word in heard.words][:1] == [events.WorkerAssigned]
    assert heard.words[0].worker == "w0"
    await free(coordinator)
    assert states(coordinator) == [("idle", 0)]


async def test_who_waits_is_told_where_and_gets_the_place_when_it_has_been_left():
    stage = Stage()
    coordinator, first, second = places(stage), Heard(), Heard()
    engine = QueuedEngine(coordinator, "m")
    stage.leaving.clear()
    async with contextlib.AsyncExitStack() as stack:
        waiting = None
        async with engine.open(settings(), first) as had:
            await first.until(events.WorkerAssigned)
            waiting = await stack.enter_async_context(engine.open(settings(), second))
            word = await second.until(events.QueueUpdate)
            assert (word.position, word.queue_length) == (1, 1) and word.wait_s > 0
            waiting.send(commands.StartDuplex())
            had.send(commands.StartDuplex())
            stage.leaving.set()
        await second.until(events.WorkerAssigned)
        assert stage.told == [commands.StartDuplex(), commands.StartDuplex()]
        assert word.id == second.words[-1].id
    await free(coordinator)
    assert states(coordinator) == [("idle", 0)]


async def test_a_place_is_given_to_the_next_only_when_the_worker_has_been_left():
    stage = Stage()
    coordinator, first, second = places(stage), Heard(), Heard()
    engine = QueuedEngine(coordinator, "m")
    stage.leaving.clear()
    async with engine.open(settings(), first):
        await first.until(events.WorkerAssigned)
    async with engine.open(settings(), second):
        await stage.reached("leaving")
        await second.until(events.QueueUpdate)
        assert states(coordinator) == [("busy", 1)]
        stage.leaving.set()
        await second.until(events.WorkerAssigned)
    await free(coordinator)


@pytest.mark.parametrize("at", ["opening", "open", "leaving"])
async def test_a_client_that_vanishes_leaves_no_place_behind(at):
    stage = Stage()
    coordinator = places(stage)
    engine, heard = QueuedEngine(coordinator, "m"), Heard()
    if at == "opening":
        stage.opening.clear()
    if at == "leaving":
        stage.leaving.clear()

    async def visit():
        async with engine.open(settings(), heard):
            if at != "leaving":
                await asyncio.Event().wait()
            await heard.until(events.WorkerAssigned)

    client = asyncio.create_task(visit())  # noqa: TID251 - it is cancelled
    await stage.reached(at)
    client.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await client
    stage.leaving.set()
    await free(coordinator)
    assert states(coordinator) == [("idle", 0)]
    assert stage.open_now == 0
    await engine.stop()


async def test_a_client_that_vanishes_before_its_task_has_begun_leaves_nothing_behind():
    coordinator = places(Stage())
    async with QueuedEngine(coordinator, "m").open(settings(), Heard()):
        pass
    await free(coordinator)
    assert (states(coordinator), coordinator.tickets()) == ([("idle", 0)], [])


async def test_a_client_that_vanishes_while_it_waits_has_no_ticket_at_once():
    stage = Stage()
    coordinator, first, second = places(stage), Heard(), Heard()
    engine = QueuedEngine(coordinator, "m")
    async with engine.open(settings(), first):
        await first.until(events.WorkerAssigned)
        async with engine.open(settings(), second):
            await second.until(events.QueueUpdate)
        await asyncio.sleep(0)
        assert [seen.state for seen in coordinator.tickets()] == ["serving"]
    await free(coordinator)
    assert states(coordinator) == [("idle", 0)]


async def test_a_client_that_vanishes_in_the_moment_of_its_assignment_holds_no_worker():
    stage = Stage()
    coordinator, first = places(stage), Heard()
    engine = QueuedEngine(coordinator, "m")
    for turns in range(12):  # each a turn of the loop later, so that every point of the way is met
        second = Heard()
        async with engine.open(settings(), first):
            await first.until(events.WorkerAssigned)
            waiting = contextlib.AsyncExitStack()
            await waiting.enter_async_context(engine.open(settings(), second))
            await second.until(events.QueueUpdate)
        for _ in range(turns):
            await asyncio.sleep(0)
        closing = asyncio.create_task(waiting.aclose())  # noqa: TID251 - likewise
        closing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await closing
        await waiting.aclose()
        await engine.stop()
        assert (states(coordinator), coordinator.tickets(), stage.open_now) == ([("idle", 0)], [], 0)
        first.words.clear()


async def test_leaving_a_worker_that_hangs_is_cut_short_and_counts_as_its_failure():
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    stage.leaving.clear()
    async with QueuedEngine(coordinator, "m", timeouts=WorkerTimeouts(close_s=0.01)).open(settings(), heard):
        await heard.until(events.WorkerAssigned)
    await free(coordinator)
    assert [(seen.lease_count, seen.failure_count) for seen in coordinator.workers()] == [(0, 1)]


async def test_what_was_never_asked_for_or_has_begun_is_not_ended_by_the_queue():
    stage = Stage()
    stage.opening.clear()
    coordinator, heard = places(stage), Heard()
    async with QueuedEngine(coordinator, "m").open(settings("responses"), heard) as conversation:
        conversation.send(commands.Cancel("resp_0"))
        conversation.send(asked("resp_1"))
        conversation.send(commands.Cancel("resp_1"))
        assert heard.words == [events.ResponseEnded("resp_1", "cancelled")]
        stage.opening.set()
        await heard.until(events.WorkerAssigned)
        assert [type(word) for word in heard.words] == [events.ResponseEnded, events.WorkerAssigned]
    await free(coordinator)


async def test_whoever_has_left_is_told_nothing_more():
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    engine = QueuedEngine(coordinator, "m")
    async with engine.open(settings(), heard) as conversation:
        await heard.until(events.WorkerAssigned)
    conversation.send(asked())
    stage.say((events.TextDelta("a", "x"),))
    await engine.stop()
    assert [type(word) for word in heard.words] == [events.WorkerAssigned]
    assert not engine._conversations


async def test_that_the_server_stops_is_told_once():
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    engine = QueuedEngine(coordinator, "m")
    stage.leaving.clear()
    async with engine.open(settings(), heard), asyncio.TaskGroup() as tasks:
        await heard.until(events.WorkerAssigned)
        stopping = tasks.create_task(engine.stop())
        await heard.until(events.EngineLost)
        stage.say((events.TextDelta("a", "x"),))
        stage.leaving.set()
        await stopping
        await engine.stop()
    assert [type(word) for word in heard.words] == [events.WorkerAssigned, events.EngineLost]


async def test_a_model_can_what_its_first_worker_can_as_often_as_anybody_comes():
    class Counting(Stage):
        capabilities = Capabilities(sees=True, sessions=1)

        async def count(self, ask):
            return 7

    engine = QueuedEngine(places(Counting()), "m")
    assert (engine.capabilities, engine.has_worker) == (Capabilities(sees=True), True)
    assert await engine.count(asked()) == 7
    nobody = QueuedEngine(places(), "m")
    assert (nobody.capabilities, nobody.has_worker) == (Capabilities(), False)
    with pytest.raises(ServerError) as refused:
        await nobody.count(asked())
    assert refused.value.code == "worker_busy"


async def test_an_answer_asked_for_and_cancelled_while_waiting_ends_and_is_never_begun():
    stage = Stage()
    coordinator, first, second = places(stage), Heard(), Heard()
    engine = QueuedEngine(coordinator, "m")
    async with engine.open(settings("responses"), second):
        await second.until(events.WorkerAssigned)
        async with engine.open(settings("responses"), first) as conversation:
            conversation.send(asked("resp_1"))
            conversation.send(asked("resp_2"))
            conversation.send(commands.Cancel("resp_1"))
            assert (await first.until(events.ResponseEnded)) == events.ResponseEnded("resp_1", "cancelled")


async def test_a_queue_that_is_full_is_told_to_whoever_asks():
    stage = Stage()
    coordinator, first = places(stage, size=0), Heard()
    engine = QueuedEngine(coordinator, "m")
    async with engine.open(settings(), first):
        await first.until(events.WorkerAssigned)
        for kind, last in (
            ("video", (events.ResponseFailed, events.EngineLost)),
            ("responses", (events.ResponseFailed,)),
            ("realtime", (events.ResponseFailed, events.EngineError)),
        ):
            refused = Heard()
            async with engine.open(settings(kind), refused) as conversation:
                conversation.send(asked())
                assert (await refused.until(*last)).code == "queue_full"


async def test_where_no_worker_could_do_it_nobody_waits():
    heard = Heard()
    async with QueuedEngine(places(), "m").open(settings(), heard):
        assert (await heard.until(events.EngineLost)).code == "worker_busy"


async def test_the_end_of_the_server_is_told_to_those_who_wait_and_those_who_are_served():
    stage = Stage()
    coordinator, first, second = places(stage), Heard(), Heard()
    engine = QueuedEngine(coordinator, "m")
    async with engine.open(settings(), first), engine.open(settings(), second):
        await first.until(events.WorkerAssigned)
        await second.until(events.QueueUpdate)
        await coordinator.close()
        assert (await second.until(events.EngineLost)).code == "server_shutting_down"
        await engine.stop()
        assert (await first.until(events.EngineLost)).code == "server_shutting_down"
        assert stage.open_now == 0


async def test_a_client_that_was_behind_before_its_place_is_still():
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    async with QueuedEngine(coordinator, "m").open(settings(), heard) as conversation:
        conversation.pause()
        await heard.until(events.WorkerAssigned)
        conversation.resume()
        assert stage.told == ["pause", "resume"]


async def test_what_the_worker_says_before_its_conversation_is_open_comes_after_the_assignment():
    class Hasty(Stage):
        @contextlib.asynccontextmanager
        async def open(self, settings, deliver):
            deliver((events.DuplexStarted(),))
            async with super().open(settings, deliver) as conversation:
                yield conversation

    coordinator, heard = places(Hasty()), Heard()
    async with QueuedEngine(coordinator, "m").open(settings(), heard):
        await heard.until(events.WorkerAssigned, events.DuplexStarted)
