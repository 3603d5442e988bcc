"""Conversations that wait for a place: what they hear meanwhile, and that places come back whatever happens."""

import asyncio
import contextlib

import pytest

from antiphon.engine_api import commands, events as talk_events
from antiphon.engine_api.capabilities import Abilities
from antiphon.engines.scripted.engine import Scripted
from antiphon.engines.scripted.script import Script
from antiphon.errors import OurFault
from antiphon.runtime.scheduling.engine import Patience, Queued
from support.runtime.queued_stage import Heard, Stage, asked, free, places, settings, states

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_a_place_that_is_free_is_had_at_once_and_answers_as_the_worker_does():
    coordinator, heard = places(Scripted(Script())), Heard()
    async with Queued(coordinator, "m").open(settings("chat"), heard) as conversation:
        conversation.tell(asked())
        await heard.until(talk_events.Ended)
    assert [type(word) for word in heard.words][:1] == [talk_events.Assigned]
    assert heard.words[0].worker == "w0"
    await free(coordinator)
    assert states(coordinator) == [("idle", 0)]


async def test_who_waits_is_told_where_and_gets_the_place_when_it_has_been_left():
    stage = Stage()
    coordinator, first, second = places(stage), Heard(), Heard()
    engine = Queued(coordinator, "m")
    stage.leaving.clear()
    async with contextlib.AsyncExitStack() as stack:
        waiting = None
        async with engine.open(settings(), first) as had:
            await first.until(talk_events.Assigned)
            waiting = await stack.enter_async_context(engine.open(settings(), second))
            word = await second.until(talk_events.Waiting)
            assert (word.position, word.queue_length, word.wait_s) == (1, 1, None)
            waiting.tell(commands.Converse())
            had.tell(commands.Converse())
            stage.leaving.set()
        await second.until(talk_events.Assigned)
        assert stage.told == [commands.Converse(), commands.Converse()]
        assert word.id == second.words[-1].id
    await free(coordinator)
    assert states(coordinator) == [("idle", 0)]


async def test_a_place_is_given_to_the_next_only_when_the_worker_has_been_left():
    stage = Stage()
    coordinator, first, second = places(stage), Heard(), Heard()
    engine = Queued(coordinator, "m")
    stage.leaving.clear()
    async with engine.open(settings(), first):
        await first.until(talk_events.Assigned)
    async with engine.open(settings(), second):
        await stage.reached("leaving")
        await second.until(talk_events.Waiting)
        assert states(coordinator) == [("busy", 1)]
        stage.leaving.set()
        await second.until(talk_events.Assigned)
    await free(coordinator)


@pytest.mark.parametrize("at", ["opening", "open", "leaving"])
async def test_a_client_that_vanishes_leaves_no_place_behind(at):
    stage = Stage()
    coordinator = places(stage)
    engine, heard = Queued(coordinator, "m"), Heard()
    if at == "opening":
        stage.opening.clear()
    if at == "leaving":
        stage.leaving.clear()

    async def visit():
        async with engine.open(settings(), heard):
            if at != "leaving":
                await asyncio.Event().wait()
            await heard.until(talk_events.Assigned)

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
    async with Queued(coordinator, "m").open(settings(), Heard()):
        pass
    await free(coordinator)
    assert (states(coordinator), coordinator.tickets()) == ([("idle", 0)], [])


async def test_a_client_that_vanishes_while_it_waits_has_no_ticket_at_once():
    stage = Stage()
    coordinator, first, second = places(stage), Heard(), Heard()
    engine = Queued(coordinator, "m")
    async with engine.open(settings(), first):
        await first.until(talk_events.Assigned)
        async with engine.open(settings(), second):
            await second.until(talk_events.Waiting)
        await asyncio.sleep(0)
        assert [seen.state for seen in coordinator.tickets()] == ["serving"]
    await free(coordinator)
    assert states(coordinator) == [("idle", 0)]


async def test_a_client_that_vanishes_in_the_moment_of_its_assignment_holds_no_worker():
    stage = Stage()
    coordinator, first = places(stage), Heard()
    engine = Queued(coordinator, "m")
    for turns in range(12):  # each a turn of the loop later, so that every point of the way is met
        second = Heard()
        async with engine.open(settings(), first):
            await first.until(talk_events.Assigned)
            waiting = contextlib.AsyncExitStack()
            await waiting.enter_async_context(engine.open(settings(), second))
            await second.until(talk_events.Waiting)
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
    async with Queued(coordinator, "m", patience=Patience(leave_s=0.01)).open(settings(), heard):
        await heard.until(talk_events.Assigned)
    await free(coordinator)
    assert [(seen.taken, seen.failures) for seen in coordinator.workers()] == [(0, 1)]


async def test_what_was_never_asked_for_or_has_begun_is_not_ended_by_the_queue():
    stage = Stage()
    stage.opening.clear()
    coordinator, heard = places(stage), Heard()
    async with Queued(coordinator, "m").open(settings("responses"), heard) as conversation:
        conversation.tell(commands.Cancel("resp_0"))
        conversation.tell(asked("resp_1"))
        conversation.tell(commands.Cancel("resp_1"))
        assert heard.words == []  # who is telling is not told at the same time
        assert await heard.until(talk_events.Ended) == talk_events.Ended("resp_1", "cancelled")
        stage.opening.set()
        await heard.until(talk_events.Assigned)
        assert [type(word) for word in heard.words] == [talk_events.Ended, talk_events.Assigned]
    await free(coordinator)


async def test_whoever_has_left_is_told_nothing_more():
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    engine = Queued(coordinator, "m")
    async with engine.open(settings(), heard) as conversation:
        await heard.until(talk_events.Assigned)
    conversation.tell(asked())
    stage.say((talk_events.Text("a", "x"),))
    await engine.stop()
    assert [type(word) for word in heard.words] == [talk_events.Assigned]
    assert not engine._open


async def test_that_the_server_stops_is_told_once():
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    engine = Queued(coordinator, "m")
    stage.leaving.clear()
    async with engine.open(settings(), heard), asyncio.TaskGroup() as tasks:
        await heard.until(talk_events.Assigned)
        stopping = tasks.create_task(engine.stop())
        await heard.until(talk_events.Lost)
        stage.say((talk_events.Text("a", "x"),))
        stage.leaving.set()
        await stopping
        await engine.stop()
    assert [type(word) for word in heard.words] == [talk_events.Assigned, talk_events.Lost]


async def test_a_model_can_what_its_first_worker_can_as_often_as_anybody_comes():
    class Counting(Stage):
        abilities = Abilities(sees=True, sessions=1)

        async def count(self, ask):
            return 7

    engine = Queued(places(Counting()), "m")
    assert (engine.abilities, engine.has_worker) == (Abilities(sees=True), True)
    assert await engine.count(asked()) == 7
    nobody = Queued(places(), "m")
    assert (nobody.abilities, nobody.has_worker) == (Abilities(), False)
    with pytest.raises(OurFault) as refused:
        await nobody.count(asked())
    assert refused.value.code == "worker_busy"


async def test_an_answer_asked_for_and_cancelled_while_waiting_ends_and_is_never_begun():
    stage = Stage()
    coordinator, first, second = places(stage), Heard(), Heard()
    engine = Queued(coordinator, "m")
    async with engine.open(settings("responses"), second):
        await second.until(talk_events.Assigned)
        async with engine.open(settings("responses"), first) as conversation:
            conversation.tell(asked("resp_1"))
            conversation.tell(asked("resp_2"))
            conversation.tell(commands.Cancel("resp_1"))
            assert (await first.until(talk_events.Ended)) == talk_events.Ended("resp_1", "cancelled")


async def test_a_queue_that_is_full_is_told_to_whoever_asks():
    stage = Stage()
    coordinator, first = places(stage, size=0), Heard()
    engine = Queued(coordinator, "m")
    async with engine.open(settings(), first):
        await first.until(talk_events.Assigned)
        for kind, last in (
            ("video", (talk_events.Broke, talk_events.Lost)),
            ("responses", (talk_events.Broke,)),
            ("realtime", (talk_events.Broke, talk_events.Trouble)),
        ):
            refused = Heard()
            async with engine.open(settings(kind), refused) as conversation:
                conversation.tell(asked())
                assert (await refused.until(*last)).code == "queue_full"


async def test_where_no_worker_could_do_it_nobody_waits():
    heard = Heard()
    async with Queued(places(), "m").open(settings(), heard):
        assert (await heard.until(talk_events.Lost)).code == "worker_busy"


async def test_the_end_of_the_server_is_told_to_those_who_wait_and_those_who_are_served():
    stage = Stage()
    coordinator, first, second = places(stage), Heard(), Heard()
    engine = Queued(coordinator, "m")
    async with engine.open(settings(), first), engine.open(settings(), second):
        await first.until(talk_events.Assigned)
        await second.until(talk_events.Waiting)
        await coordinator.close()
        assert (await second.until(talk_events.Lost)).code == "shutdown"
        await engine.stop()
        assert (await first.until(talk_events.Lost)).code == "shutdown"
        assert stage.open_now == 0


async def test_a_client_that_was_behind_before_its_place_is_still():
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    async with Queued(coordinator, "m").open(settings(), heard) as conversation:
        conversation.pause()
        await heard.until(talk_events.Assigned)
        conversation.resume()
        assert stage.told == ["pause", "resume"]


async def test_what_the_worker_says_before_its_conversation_is_open_comes_after_the_assignment():
    class Hasty(Stage):
        @contextlib.asynccontextmanager
        async def open(self, settings, deliver):
            deliver((talk_events.Ready(),))
            async with super().open(settings, deliver) as conversation:
                yield conversation

    coordinator, heard = places(Hasty()), Heard()
    async with Queued(coordinator, "m").open(settings(), heard):
        await heard.until(talk_events.Assigned, talk_events.Ready)
