"""Conversations whose worker does not begin, refuses, or is lost: what they hear, and who gets another place."""

import asyncio
import contextlib

import pytest

from antiphon.engine_api import commands, events as talk_events
from antiphon.errors import ClientMistake, UpstreamTrouble
from antiphon.runtime.scheduling.base import Worker
from antiphon.runtime.scheduling.engine import Patience, Queued
from antiphon.runtime.scheduling.local import Places
from support.runtime.queued_stage import Heard, Stage, asked, free, places, settings

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_a_worker_that_does_not_begin_is_left_for_another_and_then_given_up():
    bad, good = Stage(), Stage()
    bad.fails = [UpstreamTrouble("10.0.0.5 refused"), UpstreamTrouble("10.0.0.5 refused")]
    coordinator, heard = places(bad, good), Heard()
    async with Queued(coordinator, "m").open(settings(), heard):
        assert (await heard.until(talk_events.Assigned)).worker == "w1"
    assert [seen.failures for seen in coordinator.workers()] == [1, 0]
    good.fails = [UpstreamTrouble("10.0.0.5 refused")]
    heard = Heard()
    async with Queued(coordinator, "m").open(settings(), heard) as conversation:
        conversation.tell(asked())
        lost = await heard.until(talk_events.Broke, talk_events.Lost)
        assert lost.code == "session_failed"
        assert "10.0.0.5" not in lost.message
    await free(coordinator)


async def test_a_worker_that_takes_too_long_to_begin_is_left_for_another():
    slow, good = Stage(), Stage()
    slow.opening.clear()
    coordinator, heard = places(slow, good), Heard()
    async with Queued(coordinator, "m", patience=Patience(open_s=0.01)).open(settings(), heard):
        assert (await heard.until(talk_events.Assigned)).worker == "w1"
    await free(coordinator)
    assert [seen.failures for seen in coordinator.workers()] == [1, 0]


async def test_a_worker_that_was_lost_and_then_crashes_takes_nothing_from_the_next():
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    stage.leaving.clear()
    async with Queued(coordinator, "m").open(settings("realtime"), heard) as conversation:
        await heard.until(talk_events.Assigned)
        stage.say((talk_events.Lost(code="backend_error", message="The worker has been lost."),))
        await heard.until(talk_events.Trouble)
        conversation.tell(asked("resp_2"))
        await heard.until(talk_events.Waiting)
        stage.crash()
        stage.leaving.set()
        await heard.until(talk_events.Assigned)
        assert stage.told == [asked("resp_2")]
        assert [type(word) for word in heard.words] == [
            talk_events.Assigned,
            talk_events.Trouble,
            talk_events.Waiting,
            talk_events.Assigned,
        ]
    await free(coordinator)


async def test_whoever_comes_again_stands_where_they_stood():
    bad = Stage()
    bad.fails = [UpstreamTrouble("no")]
    bad.opening.clear()
    coordinator, first, second = places(bad), Heard(), Heard()
    engine = Queued(coordinator, "m")
    async with engine.open(settings(), first):
        await bad.reached("opening")
        async with engine.open(settings(), second), contextlib.AsyncExitStack() as stack:
            await second.until(talk_events.Waiting)
            third = Heard()
            await stack.enter_async_context(engine.open(settings(), third))
            assert (await third.until(talk_events.Waiting)).position == 2
            bad.opening.set()
            # The place went to the second when the first's came to nothing; the first waits before the third, who came later.
            await second.until(talk_events.Assigned)
            again = await first.until(talk_events.Waiting)
            assert again.position == 1
        assert (await first.until(talk_events.Assigned)).id == again.id


async def test_what_the_client_did_wrong_is_no_workers_failure():
    stage = Stage()
    stage.fails = [ClientMistake("There is no such voice.", code="invalid_value")]
    coordinator, heard = places(stage), Heard()
    async with Queued(coordinator, "m").open(settings("responses"), heard) as conversation:
        conversation.tell(asked())
        broke = await heard.until(talk_events.Broke)
        assert (broke.status, broke.message) == (400, "There is no such voice.")
    assert [seen.failures for seen in coordinator.workers()] == [0]


async def test_whoever_comes_again_waits_for_a_while_where_no_worker_is_left():
    stage = Stage()
    stage.opening.clear()
    stage.fails = [UpstreamTrouble("no")]
    coordinator, heard = Places(absent_s=0.01), Heard()
    coordinator.offer(Worker(id="w0", model="m", engine=stage))
    async with Queued(coordinator, "m").open(settings(), heard):
        await stage.reached("opening")
        coordinator.withdraw("w0")
        stage.opening.set()
        await heard.until(talk_events.Waiting)
        assert (await heard.until(talk_events.Lost)).code == "worker_busy"
    await free(coordinator)


async def test_what_a_worker_that_did_not_begin_had_said_is_not_told_as_of_the_next():
    class Hasty(Stage):
        @contextlib.asynccontextmanager
        async def open(self, settings, deliver):
            deliver((talk_events.Lost(code="backend_error", message="No GPU."),))
            async with super().open(settings, deliver) as conversation:
                yield conversation

    bad, good = Hasty(), Stage()
    bad.fails = [UpstreamTrouble("no")]
    coordinator, heard = places(bad, good), Heard()
    async with Queued(coordinator, "m").open(settings(), heard):
        assert (await heard.until(talk_events.Assigned)).worker == "w1"
        assert [type(word) for word in heard.words] == [talk_events.Assigned]
    await free(coordinator)


async def test_a_worker_that_refuses_what_is_asked_once_it_has_begun_has_failed():
    class Refusing(Stage):
        @contextlib.asynccontextmanager
        async def open(self, settings, deliver):
            async with super().open(settings, deliver) as conversation:
                yield conversation
            raise ClientMistake("There is no such voice.", code="invalid_value")

    coordinator, heard = places(Refusing()), Heard()
    async with Queued(coordinator, "m").open(settings(), heard):
        await heard.until(talk_events.Assigned)
    await free(coordinator)
    assert [seen.failures for seen in coordinator.workers()] == [1]


@pytest.mark.parametrize("how", ["says so", "crashes"])
async def test_in_full_duplex_a_worker_that_is_lost_ends_the_conversation(how):
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    async with Queued(coordinator, "m").open(settings(), heard) as conversation:
        await heard.until(talk_events.Assigned)
        stage.say((talk_events.Spoken("duplex_1", "Hel"),))
        if how == "crashes":
            stage.crash()
        else:
            stage.say((talk_events.Lost(code="backend_error", message="The worker has been lost."),))
        lost = await heard.until(talk_events.Spoken, talk_events.Broke, talk_events.Lost)
        assert (heard.words[-2].id, lost.code) == ("duplex_1", "backend_error")
        conversation.tell(commands.Hear(b""))
        conversation.tell(asked())
        await heard.until(talk_events.Lost, talk_events.Broke)
    await free(coordinator)
    assert [(seen.taken, seen.failures) for seen in coordinator.workers()] == [(0, 1)]


async def test_what_was_said_before_the_worker_was_lost_is_told_and_what_comes_after_it_is_not():
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    lost = talk_events.Lost(code="backend_error", message="The worker has been lost.")
    async with Queued(coordinator, "m").open(settings("realtime"), heard) as conversation:
        await heard.until(talk_events.Assigned)
        for id in ("resp_1", "resp_2"):
            conversation.tell(asked(id))
        stage.say((talk_events.Text("resp_1", "Hello"), talk_events.Ended("resp_1")))
        stage.say((talk_events.Text("resp_2", "Hel"), lost, talk_events.Text("resp_2", "lo")))
        stage.say((talk_events.Text("resp_2", "lo"),))
        told = heard.words[1:]
        assert told[:3] == [talk_events.Text("resp_1", "Hello"), talk_events.Ended("resp_1"), talk_events.Text("resp_2", "Hel")]
        assert [(type(word), getattr(word, "id", "")) for word in told[3:]] == [(talk_events.Broke, "resp_2"), (talk_events.Trouble, "")]
        stage.say((lost,))
        assert len(heard.words) == 6
    await free(coordinator)
    assert [seen.failures for seen in coordinator.workers()] == [1]


async def test_a_worker_that_says_that_it_stops_has_not_failed():
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    async with Queued(coordinator, "m").open(settings(), heard):
        await heard.until(talk_events.Assigned)
        stage.say((talk_events.Lost(code="shutdown", message="Bye."),))
    await free(coordinator)
    assert [(seen.served, seen.failures) for seen in coordinator.workers()] == [(1, 0)]


async def test_a_worker_that_is_lost_and_cannot_be_left_is_cut_off():
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    stage.leaving.clear()
    async with Queued(coordinator, "m", patience=Patience(leave_s=0.01)).open(settings("responses"), heard):
        await heard.until(talk_events.Assigned)
        stage.say((talk_events.Lost(code="shutdown", message="Bye."),))
        await free(coordinator)
    assert [(seen.taken, seen.failures) for seen in coordinator.workers()] == [(0, 1)]


async def test_a_realtime_session_takes_a_new_place_when_its_worker_is_lost():
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    async with Queued(coordinator, "m").open(settings("realtime"), heard) as conversation:
        await heard.until(talk_events.Assigned)
        conversation.tell(commands.Configure(rate_hz=16_000))
        conversation.tell(asked("resp_1"))
        stage.crash()
        await heard.until(talk_events.Broke, talk_events.Trouble)
        assert not any(isinstance(word, talk_events.Lost) for word in heard.words)
        stage.told.clear()
        conversation.tell(asked("resp_2"))
        await heard.until(talk_events.Assigned)
        assert [type(word) for word in stage.told] == [commands.Configure, commands.Respond]
    await free(coordinator)


async def test_a_realtime_session_whose_worker_is_lost_takes_a_new_place_for_what_is_heard_and_others_for_questions():
    stage = Stage()
    coordinator = places(stage)
    for kind, takes in (("realtime", [commands.Hear]), ("responses", [])):
        heard = Heard()
        async with Queued(coordinator, "m").open(settings(kind), heard) as conversation:
            await heard.until(talk_events.Assigned)
            stage.crash()
            await free(coordinator)
            stage.told.clear()
            conversation.tell(commands.Listen())
            assert coordinator.tickets() == []
            conversation.tell(commands.Hear(b"ab"))
            assert bool(coordinator.tickets()) is False  # the stay has not begun
            await asyncio.sleep(0)
            assert len(coordinator.tickets()) == len(takes)
        await free(coordinator)


async def test_sound_that_goes_on_after_a_refusal_does_not_ask_for_a_place_again_at_once():
    stage = Stage()
    coordinator, first = places(stage, size=0), Heard()
    engine = Queued(coordinator, "m")
    async with contextlib.AsyncExitStack() as stack:
        refused = Heard()
        async with engine.open(settings(), first):
            await first.until(talk_events.Assigned)
            conversation = await stack.enter_async_context(engine.open(settings("realtime"), refused))
            await refused.until(talk_events.Trouble)
        await free(coordinator)
        conversation.tell(commands.Hear(b"ab"))
        await asyncio.sleep(0)
        assert coordinator.tickets() == []
        conversation.tell(asked())
        await refused.until(talk_events.Assigned)
        assert stage.told == [commands.Hear(b"ab"), asked()]
    await free(coordinator)


async def test_an_answer_that_a_worker_has_no_room_for_breaks_and_one_that_it_had_is_not_over_with_it():
    stage = Stage()
    stage.opening.clear()
    stage.is_full = True
    coordinator, heard = places(stage), Heard()
    async with Queued(coordinator, "m").open(settings("responses"), heard) as conversation:
        conversation.tell(commands.Listen())
        conversation.tell(asked("resp_1"))
        stage.opening.set()
        broke = await heard.until(talk_events.Broke)
        assert (broke.id, broke.code, broke.status) == ("resp_1", "server_is_overloaded", 503)
        stage.crash()
        await free(coordinator)
        assert heard.words[1:] == [broke]
    await free(coordinator)


async def test_an_answer_that_was_asked_for_before_its_place_breaks_with_the_worker():
    stage = Stage()
    coordinator, heard = places(stage, failures=9), Heard()
    async with Queued(coordinator, "m").open(settings("responses"), heard) as conversation:
        conversation.tell(asked("resp_1"))
        await heard.until(talk_events.Assigned)
        stage.crash()
        assert (await heard.until(talk_events.Broke)).id == "resp_1"
        heard.words.clear()
        stage.fails = [UpstreamTrouble("no")] * 2
        conversation.tell(asked("resp_2"))
        assert (await heard.until(talk_events.Broke)).id == "resp_2"
        assert len(heard.words) == 1
        stage.told.clear()
        conversation.tell(asked("resp_3"))
        await heard.until(talk_events.Assigned)
        assert stage.told == [asked("resp_3")]  # the other is over
    await free(coordinator)
