"""Conversations whose worker can't start, refuses, or is lost: their events, and which ones get another slot."""

import asyncio
import contextlib

import pytest

from antiphon.engine_api import commands, events
from antiphon.errors import ClientError, UpstreamError
from antiphon.runtime.scheduling.base import Worker
from antiphon.runtime.scheduling.engine import QueuedEngine, WorkerTimeouts
from antiphon.runtime.scheduling.local import LocalCoordinator
from support.runtime.queued_stage import Heard, Stage, asked, free, places, settings

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_a_worker_that_does_not_begin_is_left_for_another_and_then_given_up():
    bad, good = Stage(), Stage()
    bad.fails = [UpstreamError("10.0.0.5 refused"), UpstreamError("10.0.0.5 refused")]
    coordinator, heard = places(bad, good), Heard()
    async with QueuedEngine(coordinator, "m").open(settings(), heard):
        assert (await heard.until(events.WorkerAssigned)).worker == "w1"
    assert [seen.failure_count for seen in coordinator.workers()] == [1, 0]
    good.fails = [UpstreamError("10.0.0.5 refused")]
    heard = Heard()
    async with QueuedEngine(coordinator, "m").open(settings(), heard) as conversation:
        conversation.send(asked())
        lost = await heard.until(events.ResponseFailed, events.EngineLost)
        assert lost.code == "session_failed"
        assert "10.0.0.5" not in lost.message
    await free(coordinator)


async def test_a_worker_that_takes_too_long_to_begin_is_left_for_another():
    slow, good = Stage(), Stage()
    slow.opening.clear()
    coordinator, heard = places(slow, good), Heard()
    async with QueuedEngine(coordinator, "m", timeouts=WorkerTimeouts(open_s=0.01)).open(settings(), heard):
        assert (await heard.until(events.WorkerAssigned)).worker == "w1"
    await free(coordinator)
    assert [seen.failure_count for seen in coordinator.workers()] == [1, 0]


async def test_a_worker_that_was_lost_and_then_crashes_takes_nothing_from_the_next():
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    stage.leaving.clear()
    async with QueuedEngine(coordinator, "m").open(settings("realtime"), heard) as conversation:
        await heard.until(events.WorkerAssigned)
        stage.say((events.EngineLost(code="backend_error", message="The worker has been lost."),))
        await heard.until(events.EngineError)
        conversation.send(asked("resp_2"))
        await heard.until(events.QueueUpdate)
        stage.crash()
        stage.leaving.set()
        await heard.until(events.WorkerAssigned)
        assert stage.told == [asked("resp_2")]
        assert [type(word) for word in heard.words] == [
            events.WorkerAssigned,
            events.EngineError,
            events.QueueUpdate,
            events.WorkerAssigned,
        ]
    await free(coordinator)


@pytest.mark.parametrize("before", [(), (events.TextDelta("resp_1", "Hel"),)])
async def test_what_a_worker_said_last_comes_before_its_loss_and_nothing_is_delivered_empty(before):
    stage, heard, sizes = Stage(), Heard(), []
    coordinator = places(stage)

    def deliver(batch):
        sizes.append(len(batch))
        heard(batch)

    async with QueuedEngine(coordinator, "m").open(settings("realtime"), deliver):
        await heard.until(events.WorkerAssigned)
        stage.say((*before, events.EngineLost(code="backend_error", message="The worker has been lost.")))
        await heard.until(events.EngineError)
    assert tuple(heard.words[1 : 1 + len(before)]) == before
    assert 0 not in sizes
    await free(coordinator)


async def test_whoever_comes_again_stands_where_they_stood():
    bad = Stage()
    bad.fails = [UpstreamError("no")]
    bad.opening.clear()
    coordinator, first, second = places(bad), Heard(), Heard()
    engine = QueuedEngine(coordinator, "m")
    async with engine.open(settings(), first):
        await bad.reached("opening")
        async with engine.open(settings(), second), contextlib.AsyncExitStack() as stack:
            await second.until(events.QueueUpdate)
            third = Heard()
            await stack.enter_async_context(engine.open(settings(), third))
            assert (await third.until(events.QueueUpdate)).position == 2
            bad.opening.set()
            # The place went to the second when the first's came to nothing; the first waits before the third, who came later.
            await second.until(events.WorkerAssigned)
            again = await first.until(events.QueueUpdate)
            assert again.position == 1
        assert (await first.until(events.WorkerAssigned)).id == again.id


async def test_what_the_client_did_wrong_is_no_workers_failure():
    stage = Stage()
    stage.fails = [ClientError("There is no such voice.", code="invalid_value")]
    coordinator, heard = places(stage), Heard()
    async with QueuedEngine(coordinator, "m").open(settings("responses"), heard) as conversation:
        conversation.send(asked())
        broke = await heard.until(events.ResponseFailed)
        assert (broke.status, broke.message) == (400, "There is no such voice.")
    assert [seen.failure_count for seen in coordinator.workers()] == [0]


async def test_whoever_comes_again_waits_for_a_while_where_no_worker_is_left():
    stage = Stage()
    stage.opening.clear()
    stage.fails = [UpstreamError("no")]
    coordinator, heard = LocalCoordinator(absence_s=0.01), Heard()
    coordinator.add_worker(Worker(id="w0", model="m", engine=stage))
    async with QueuedEngine(coordinator, "m").open(settings(), heard):
        await stage.reached("opening")
        coordinator.remove_worker("w0")
        stage.opening.set()
        await heard.until(events.QueueUpdate)
        assert (await heard.until(events.EngineLost)).code == "worker_busy"
    await free(coordinator)


async def test_what_a_worker_that_did_not_begin_had_said_is_not_told_as_of_the_next():
    class Hasty(Stage):
        @contextlib.asynccontextmanager
        async def open(self, settings, deliver):
            deliver((events.EngineLost(code="backend_error", message="No GPU."),))
            async with super().open(settings, deliver) as conversation:
                yield conversation

    bad, good = Hasty(), Stage()
    bad.fails = [UpstreamError("no")]
    coordinator, heard = places(bad, good), Heard()
    async with QueuedEngine(coordinator, "m").open(settings(), heard):
        assert (await heard.until(events.WorkerAssigned)).worker == "w1"
        assert [type(word) for word in heard.words] == [events.WorkerAssigned]
    await free(coordinator)


async def test_a_worker_that_refuses_what_is_asked_once_it_has_begun_has_failed():
    class Refusing(Stage):
        @contextlib.asynccontextmanager
        async def open(self, settings, deliver):
            async with super().open(settings, deliver) as conversation:
                yield conversation
            raise ClientError("There is no such voice.", code="invalid_value")

    coordinator, heard = places(Refusing()), Heard()
    async with QueuedEngine(coordinator, "m").open(settings(), heard):
        await heard.until(events.WorkerAssigned)
    await free(coordinator)
    assert [seen.failure_count for seen in coordinator.workers()] == [1]


@pytest.mark.parametrize("how", ["says so", "crashes"])
async def test_in_full_duplex_a_worker_that_is_lost_ends_the_conversation(how):
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    async with QueuedEngine(coordinator, "m").open(settings(), heard) as conversation:
        await heard.until(events.WorkerAssigned)
        stage.say((events.AudioTranscriptDelta("duplex_1", "Hel"),))
        if how == "crashes":
            stage.crash()
        else:
            stage.say((events.EngineLost(code="backend_error", message="The worker has been lost."),))
        lost = await heard.until(events.AudioTranscriptDelta, events.ResponseFailed, events.EngineLost)
        assert (heard.words[-2].id, lost.code) == ("duplex_1", "backend_error")
        conversation.send(commands.AppendAudio(b""))
        conversation.send(asked())
        await heard.until(events.EngineLost, events.ResponseFailed)
    await free(coordinator)
    assert [(seen.lease_count, seen.failure_count) for seen in coordinator.workers()] == [(0, 1)]


async def test_what_was_said_before_the_worker_was_lost_is_told_and_what_comes_after_it_is_not():
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    lost = events.EngineLost(code="backend_error", message="The worker has been lost.")
    async with QueuedEngine(coordinator, "m").open(settings("realtime"), heard) as conversation:
        await heard.until(events.WorkerAssigned)
        for id in ("resp_1", "resp_2"):
            conversation.send(asked(id))
        stage.say((events.TextDelta("resp_1", "Hello"), events.ResponseEnded("resp_1")))
        stage.say((events.TextDelta("resp_2", "Hel"), lost, events.TextDelta("resp_2", "lo")))
        stage.say((events.TextDelta("resp_2", "lo"),))
        told = heard.words[1:]
        assert told[:3] == [events.TextDelta("resp_1", "Hello"), events.ResponseEnded("resp_1"), events.TextDelta("resp_2", "Hel")]
        assert [(type(word), getattr(word, "id", "")) for word in told[3:]] == [(events.ResponseFailed, "resp_2"), (events.EngineError, "")]
        stage.say((lost,))
        assert len(heard.words) == 6
    await free(coordinator)
    assert [seen.failure_count for seen in coordinator.workers()] == [1]


async def test_a_worker_that_says_that_it_stops_has_not_failed():
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    async with QueuedEngine(coordinator, "m").open(settings(), heard):
        await heard.until(events.WorkerAssigned)
        stage.say((events.EngineLost(code="server_shutting_down", message="Bye."),))
    await free(coordinator)
    assert [(seen.served_count, seen.failure_count) for seen in coordinator.workers()] == [(1, 0)]


async def test_a_worker_that_is_lost_and_cannot_be_left_is_cut_off():
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    stage.leaving.clear()
    async with QueuedEngine(coordinator, "m", timeouts=WorkerTimeouts(close_s=0.01)).open(settings("responses"), heard):
        await heard.until(events.WorkerAssigned)
        stage.say((events.EngineLost(code="server_shutting_down", message="Bye."),))
        await free(coordinator)
    assert [(seen.lease_count, seen.failure_count) for seen in coordinator.workers()] == [(0, 1)]


async def test_a_realtime_session_takes_a_new_place_when_its_worker_is_lost():
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    async with QueuedEngine(coordinator, "m").open(settings("realtime"), heard) as conversation:
        await heard.until(events.WorkerAssigned)
        conversation.send(commands.Configure(rate_hz=16_000))
        conversation.send(asked("resp_1"))
        stage.crash()
        await heard.until(events.ResponseFailed, events.EngineError)
        assert not any(isinstance(word, events.EngineLost) for word in heard.words)
        stage.told.clear()
        conversation.send(asked("resp_2"))
        await heard.until(events.WorkerAssigned)
        assert [type(word) for word in stage.told] == [commands.Configure, commands.Respond]
    await free(coordinator)


async def test_a_realtime_session_whose_worker_is_lost_takes_a_new_place_for_what_is_heard_and_others_for_questions():
    stage = Stage()
    coordinator = places(stage)
    for kind, takes in (("realtime", [commands.AppendAudio]), ("responses", [])):
        heard = Heard()
        async with QueuedEngine(coordinator, "m").open(settings(kind), heard) as conversation:
            await heard.until(events.WorkerAssigned)
            stage.crash()
            await free(coordinator)
            stage.told.clear()
            conversation.send(commands.ForceListen())
            assert coordinator.tickets() == []
            conversation.send(commands.AppendAudio(b"ab"))
            assert bool(coordinator.tickets()) is False  # the stay has not begun
            await asyncio.sleep(0)
            assert len(coordinator.tickets()) == len(takes)
        await free(coordinator)


async def test_sound_that_goes_on_after_a_refusal_does_not_ask_for_a_place_again_at_once():
    stage = Stage()
    coordinator, first = places(stage, size=0), Heard()
    engine = QueuedEngine(coordinator, "m")
    async with contextlib.AsyncExitStack() as stack:
        refused = Heard()
        async with engine.open(settings(), first):
            await first.until(events.WorkerAssigned)
            conversation = await stack.enter_async_context(engine.open(settings("realtime"), refused))
            await refused.until(events.EngineError)
        await free(coordinator)
        conversation.send(commands.AppendAudio(b"ab"))
        await asyncio.sleep(0)
        assert coordinator.tickets() == []
        conversation.send(asked())
        await refused.until(events.WorkerAssigned)
        assert stage.told == [commands.AppendAudio(b"ab"), asked()]
    await free(coordinator)


async def test_an_answer_that_a_worker_has_no_room_for_breaks_and_one_that_it_had_is_not_over_with_it():
    stage = Stage()
    stage.opening.clear()
    stage.is_full = True
    coordinator, heard = places(stage), Heard()
    async with QueuedEngine(coordinator, "m").open(settings("responses"), heard) as conversation:
        conversation.send(commands.ForceListen())
        conversation.send(asked("resp_1"))
        stage.opening.set()
        broke = await heard.until(events.ResponseFailed)
        assert (broke.id, broke.code, broke.status) == ("resp_1", "server_is_overloaded", 503)
        stage.crash()
        await free(coordinator)
        assert heard.words[1:] == [broke]
    await free(coordinator)


async def test_an_answer_that_was_asked_for_before_its_place_breaks_with_the_worker():
    stage = Stage()
    coordinator, heard = places(stage, failures=9), Heard()
    async with QueuedEngine(coordinator, "m").open(settings("responses"), heard) as conversation:
        conversation.send(asked("resp_1"))
        await heard.until(events.WorkerAssigned)
        stage.crash()
        assert (await heard.until(events.ResponseFailed)).id == "resp_1"
        heard.words.clear()
        stage.fails = [UpstreamError("no")] * 2
        conversation.send(asked("resp_2"))
        assert (await heard.until(events.ResponseFailed)).id == "resp_2"
        assert len(heard.words) == 1
        stage.told.clear()
        conversation.send(asked("resp_3"))
        await heard.until(events.WorkerAssigned)
        assert stage.told == [asked("resp_3")]  # the other is over
    await free(coordinator)
