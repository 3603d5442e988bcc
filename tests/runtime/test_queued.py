"""Conversations that wait for a place: what they hear meanwhile, and that places come back whatever happens."""

import asyncio
import contextlib

import pytest

from antiphon import talk
from antiphon.engines.base import EngineOverrun
from antiphon.engines.scripted import Scripted
from antiphon.engines.scripted_script import Script
from antiphon.errors import ClientMistake, UpstreamTrouble
from antiphon.runtime.coordinator import Worker
from antiphon.runtime.places import Places
from antiphon.runtime.queued import Queued
from antiphon.runtime.queued_keeping import SOUND_LIMIT_BYTES, Kept
from antiphon.settings import QueueSettings, WorkerSettings

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Heard:
    """What a client hears, and a way to wait for it."""

    def __init__(self):
        self.words = []
        self._changed = asyncio.Event()

    def __call__(self, words):
        self.words += words
        self._changed.set()

    async def until(self, *kinds):
        """Wait until the last words are of these types."""
        while [type(word) for word in self.words[-len(kinds) :]] != list(kinds):
            self._changed.clear()
            async with asyncio.timeout(10):
                await self._changed.wait()
        return self.words[-1]


class Stage:
    """
    A worker's engine that does what it is told to, and says where it is.

    Attributes:
        opening: set when a conversation may begin; likewise `leaving`, when it may be left.
    """

    abilities = talk.Abilities(full_duplex=True)

    def __init__(self):
        self.opening, self.leaving = asyncio.Event(), asyncio.Event()
        self.opening.set()
        self.leaving.set()
        self.at = asyncio.Queue()
        self.told = []
        self.open_now = 0
        self.say = None
        self.fails = []
        self.crash = None

    async def start(self):
        pass

    async def stop(self):
        pass

    @contextlib.asynccontextmanager
    async def open(self, settings, deliver):
        self.at.put_nowait("opening")
        await self.opening.wait()
        if self.fails:
            raise self.fails.pop(0)
        self.open_now += 1
        self.say = deliver
        async with asyncio.TaskGroup() as tasks:
            self.crash = lambda: tasks.create_task(_crash())
            self.at.put_nowait("open")
            try:
                yield self
            finally:
                self.at.put_nowait("leaving")
                try:
                    await self.leaving.wait()
                finally:
                    self.open_now -= 1

    async def reached(self, point):
        async with asyncio.timeout(10):
            while await self.at.get() != point:
                pass

    def tell(self, word):
        self.told.append(word)

    def pause(self):
        self.told.append("pause")

    def resume(self):
        self.told.append("resume")


async def _crash():
    raise RuntimeError("as native code does")


def places(*engines, slots=1, **settings):
    coordinator = Places(QueueSettings(**settings), WorkerSettings(failures=3))
    for number, engine in enumerate(engines):
        coordinator.offer(Worker(id=f"w{number}", model="m", engine=engine, slots=slots))
    return coordinator


def asked(id="resp_1"):
    return talk.Respond(id=id, history=())


def settings(kind="audio", key="", tenant=""):
    return talk.Settings(model="m", kind=kind, key_id=key, tenant=tenant)


def states(coordinator):
    return [(seen.state, seen.taken) for seen in coordinator.workers()]


async def free(coordinator):
    """Wait until nobody has or wants a place."""
    async with asyncio.timeout(10):
        while coordinator.tickets():  # noqa: ASYNC110 - the last to leave sets no event
            await asyncio.sleep(0)


async def test_a_place_that_is_free_is_had_at_once_and_answers_as_the_worker_does():
    coordinator, heard = places(Scripted(Script())), Heard()
    async with Queued(coordinator, "m").open(settings("chat"), heard) as conversation:
        conversation.tell(asked())
        await heard.until(talk.Ended)
    assert [type(word) for word in heard.words][:1] == [talk.Assigned]
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
            await first.until(talk.Assigned)
            waiting = await stack.enter_async_context(engine.open(settings(), second))
            word = await second.until(talk.Waiting)
            assert (word.position, word.queue_length, word.wait_s) == (1, 1, None)
            waiting.tell(talk.Converse())
            had.tell(talk.Converse())
            stage.leaving.set()
        await second.until(talk.Assigned)
        assert stage.told == [talk.Converse(), talk.Converse()]
        assert word.id == second.words[-1].id
    await free(coordinator)
    assert states(coordinator) == [("idle", 0)]


async def test_a_place_is_given_to_the_next_only_when_the_worker_has_been_left():
    stage = Stage()
    coordinator, first, second = places(stage), Heard(), Heard()
    engine = Queued(coordinator, "m")
    stage.leaving.clear()
    async with engine.open(settings(), first):
        await first.until(talk.Assigned)
    async with engine.open(settings(), second):
        await stage.reached("leaving")
        await second.until(talk.Waiting)
        assert states(coordinator) == [("busy", 1)]
        stage.leaving.set()
        await second.until(talk.Assigned)
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
            await heard.until(talk.Assigned)

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
        await first.until(talk.Assigned)
        async with engine.open(settings(), second):
            await second.until(talk.Waiting)
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
            await first.until(talk.Assigned)
            waiting = contextlib.AsyncExitStack()
            await waiting.enter_async_context(engine.open(settings(), second))
            await second.until(talk.Waiting)
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
    async with Queued(coordinator, "m", leave_s=0.01).open(settings(), heard):
        await heard.until(talk.Assigned)
    await free(coordinator)
    assert [(seen.taken, seen.failures) for seen in coordinator.workers()] == [(0, 1)]


async def test_a_worker_that_does_not_begin_is_left_for_another_and_then_given_up():
    bad, good = Stage(), Stage()
    bad.fails = [UpstreamTrouble("10.0.0.5 refused"), UpstreamTrouble("10.0.0.5 refused")]
    coordinator, heard = places(bad, good), Heard()
    async with Queued(coordinator, "m").open(settings(), heard):
        assert (await heard.until(talk.Assigned)).worker == "w1"
    assert [seen.failures for seen in coordinator.workers()] == [1, 0]
    good.fails = [UpstreamTrouble("10.0.0.5 refused")]
    heard = Heard()
    async with Queued(coordinator, "m").open(settings(), heard) as conversation:
        conversation.tell(asked())
        lost = await heard.until(talk.Broke, talk.Lost)
        assert lost.code == "session_failed"
        assert "10.0.0.5" not in lost.message
    await free(coordinator)


async def test_whoever_comes_again_stands_where_they_stood():
    bad = Stage()
    bad.fails = [UpstreamTrouble("no")]
    bad.opening.clear()
    coordinator, first, second = places(bad), Heard(), Heard()
    engine = Queued(coordinator, "m")
    async with engine.open(settings(), first):
        await bad.reached("opening")
        async with engine.open(settings(), second):
            await second.until(talk.Waiting)
            bad.opening.set()
            # The place went to the second when the first's came to nothing; the first waits before whoever else comes.
            await second.until(talk.Assigned)
            assert (await first.until(talk.Waiting)).position == 1
            third = Heard()
            async with engine.open(settings(), third):
                assert (await third.until(talk.Waiting)).position == 2
        await first.until(talk.Assigned)


async def test_what_the_client_did_wrong_is_no_workers_failure():
    stage = Stage()
    stage.fails = [ClientMistake("There is no such voice.", code="invalid_value")]
    coordinator, heard = places(stage), Heard()
    async with Queued(coordinator, "m").open(settings("responses"), heard) as conversation:
        conversation.tell(asked())
        broke = await heard.until(talk.Broke)
        assert (broke.status, broke.message) == (400, "There is no such voice.")
    assert [seen.failures for seen in coordinator.workers()] == [0]


@pytest.mark.parametrize("how", ["says so", "crashes"])
async def test_in_full_duplex_a_worker_that_is_lost_ends_the_conversation(how):
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    async with Queued(coordinator, "m").open(settings(), heard) as conversation:
        await heard.until(talk.Assigned)
        stage.say((talk.Spoken("duplex_1", "Hel"),))
        if how == "crashes":
            stage.crash()
        else:
            stage.say((talk.Lost(code="backend_error", message="The worker has been lost."),))
        lost = await heard.until(talk.Spoken, talk.Broke, talk.Lost)
        assert (heard.words[-2].id, lost.code) == ("duplex_1", "backend_error")
        conversation.tell(talk.Hear(b""))
        conversation.tell(asked())
        await heard.until(talk.Lost, talk.Broke)
    await free(coordinator)
    assert [(seen.taken, seen.failures) for seen in coordinator.workers()] == [(0, 1)]


async def test_a_realtime_session_takes_a_new_place_when_its_worker_is_lost():
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    async with Queued(coordinator, "m").open(settings("realtime"), heard) as conversation:
        await heard.until(talk.Assigned)
        conversation.tell(talk.Configure(rate_hz=16_000))
        conversation.tell(asked("resp_1"))
        stage.crash()
        await heard.until(talk.Broke, talk.Trouble)
        assert not any(isinstance(word, talk.Lost) for word in heard.words)
        stage.told.clear()
        conversation.tell(asked("resp_2"))
        await heard.until(talk.Assigned)
        assert [type(word) for word in stage.told] == [talk.Configure, talk.Respond]
    await free(coordinator)


async def test_an_answer_asked_for_and_cancelled_while_waiting_ends_and_is_never_begun():
    stage = Stage()
    coordinator, first, second = places(stage), Heard(), Heard()
    engine = Queued(coordinator, "m")
    async with engine.open(settings("responses"), second):
        await second.until(talk.Assigned)
        async with engine.open(settings("responses"), first) as conversation:
            conversation.tell(asked("resp_1"))
            conversation.tell(asked("resp_2"))
            conversation.tell(talk.Cancel("resp_1"))
            assert (await first.until(talk.Ended)) == talk.Ended("resp_1", "cancelled")


async def test_a_queue_that_is_full_is_told_to_whoever_asks():
    stage = Stage()
    coordinator, first = places(stage, size=0), Heard()
    engine = Queued(coordinator, "m")
    async with engine.open(settings(), first):
        await first.until(talk.Assigned)
        for kind, last in (("video", (talk.Broke, talk.Lost)), ("responses", (talk.Broke,)), ("realtime", (talk.Broke, talk.Trouble))):
            refused = Heard()
            async with engine.open(settings(kind), refused) as conversation:
                conversation.tell(asked())
                assert (await refused.until(*last)).code == "queue_full"


async def test_where_no_worker_could_do_it_nobody_waits():
    heard = Heard()
    async with Queued(places(), "m").open(settings(), heard):
        assert (await heard.until(talk.Lost)).code == "worker_busy"


async def test_the_end_of_the_server_is_told_to_those_who_wait_and_those_who_are_served():
    stage = Stage()
    coordinator, first, second = places(stage), Heard(), Heard()
    engine = Queued(coordinator, "m")
    async with engine.open(settings(), first), engine.open(settings(), second):
        await first.until(talk.Assigned)
        await second.until(talk.Waiting)
        await coordinator.close()
        assert (await second.until(talk.Lost)).code == "shutdown"
        await engine.stop()
        assert (await first.until(talk.Lost)).code == "shutdown"
        assert stage.open_now == 0


async def test_a_client_that_was_behind_before_its_place_is_still():
    stage = Stage()
    coordinator, heard = places(stage), Heard()
    async with Queued(coordinator, "m").open(settings(), heard) as conversation:
        conversation.pause()
        await heard.until(talk.Assigned)
        conversation.resume()
        assert stage.told == ["pause", "resume"]


async def test_what_the_worker_says_before_its_conversation_is_open_comes_after_the_assignment():
    class Hasty(Stage):
        @contextlib.asynccontextmanager
        async def open(self, settings, deliver):
            deliver((talk.Ready(),))
            async with super().open(settings, deliver) as conversation:
                yield conversation

    coordinator, heard = places(Hasty()), Heard()
    async with Queued(coordinator, "m").open(settings(), heard):
        await heard.until(talk.Assigned, talk.Ready)


def test_sound_is_kept_within_bounds_the_latest_of_it_and_what_is_asked_is_kept_beside_it():
    kept = Kept()
    kept.keep(asked())
    for number in range(100):
        kept.keep(talk.Hear(bytes([number]) * 16_000))
    words = list(kept.take())
    assert isinstance(words[0], talk.Respond)
    assert words[-1].pcm[0] == 99
    assert sum(len(word.pcm) for word in words[1:]) <= SOUND_LIMIT_BYTES


def test_more_answers_than_can_be_kept_are_refused():
    kept = Kept()
    with pytest.raises(EngineOverrun):
        for number in range(1000):
            kept.keep(asked(f"resp_{number}"))
