"""A worker and its server, each at its end of a link: what one does, and what the other has of it."""

import asyncio
import contextlib

import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api import commands, events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import EngineOverrun
from antiphon.engine_api.options import ConversationSettings, Sampling
from antiphon.engines.remote.engine import BACKLOG_LIMIT_BYTES, PAUSED_OUTPUT_LIMIT_BYTES
from antiphon.engines.scripted.engine import ScriptedEngine
from antiphon.engines.scripted.script import Script
from antiphon.errors import ApiError, ClientError, ServerError
from antiphon.framing import pack_frame
from antiphon.runtime.workers.server import MAX_REQUESTS
from antiphon.wire.internal.worker_link import (
    VERSION,
    CloseConversation,
    ConversationClosed,
    ConversationFailed,
    ConversationOpened,
    CountRequest,
    EngineBuildFailed,
    EngineCommands,
    EngineEvents,
    Failure,
    Hello,
    OpenConversation,
    PauseConversation,
    ProbeRequest,
    RequestAnswered,
)
from support.runtime.worker_links import SETTINGS, Heard, ask, bare_server, bare_worker, linked

HELLO = Hello(version=VERSION, abilities=Capabilities(context_window=77))


def slow(**more):
    return ScriptedEngine(Script(pace_ms=1, **more))


class Engine:
    """An engine that the test controls, and whose conversations can be kept open."""

    capabilities = Capabilities(counts_tokens=True)

    def __init__(self):
        self.told, self.open_now, self.is_paused = [], 0, False
        self.may_leave = asyncio.Event()
        self.may_leave.set()
        self.deliver = None

    async def start(self):
        pass

    async def stop(self):
        pass

    async def count(self, ask):
        if not ask.history:
            raise ClientError("There is nothing to count.", code="empty", status=422)
        if ask.instructions:
            await asyncio.Event().wait()
        return len(ask.history)

    async def probe(self):
        raise ServerError("It has a cold.", status=503)

    @contextlib.asynccontextmanager
    async def open(self, settings, deliver):
        if settings.model == "none":
            raise ClientError("There is no such thing.", code="no_such", param="model", status=404)
        if settings.model == "defect":
            raise ZeroDivisionError("secret")
        if settings.model == "slow":
            await asyncio.Event().wait()
        self.open_now += 1
        self.deliver = deliver
        try:
            yield self
        finally:
            await self.may_leave.wait()
            self.open_now -= 1

    def send(self, word):
        if isinstance(word, commands.Prepare):
            raise EngineOverrun("it sees enough")
        if isinstance(word, commands.Respond) and not word.history:
            raise EngineOverrun("it has said enough")
        self.told.append(word)

    def pause(self):
        self.is_paused = True

    def resume(self):
        self.is_paused = False


def play(scenario):
    asyncio.run(scenario())


async def turns_of_the_loop(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for is not ours to set an event
            await asyncio.sleep(0)


# Conversations


def test_an_engines_abilities_cross_the_link():
    async def scenario():
        async with linked(slow()) as (remote, _):
            assert remote.capabilities == slow().capabilities

    play(scenario)


def test_what_came_together_comes_together():
    async def scenario():
        engine = Engine()
        async with linked(engine) as (remote, _):
            batches = []
            async with remote.open(SETTINGS, batches.append):
                engine.deliver((events.TextDelta("r", "a"), events.TextDelta("r", "b")))
                engine.deliver((events.TextDelta("r", "c"),))
                await turns_of_the_loop(lambda: len(batches) == 2)
            assert [len(batch) for batch in batches] == [2, 1]

    play(scenario)


def test_an_engine_that_refuses_to_begin_refuses_in_its_own_words():
    async def scenario():
        async with linked(Engine()) as (remote, _):
            with pytest.raises(ClientError, match="no such thing") as refused:
                async with remote.open(ConversationSettings(model="none"), Heard()):
                    pass
            assert (refused.value.status, refused.value.code, refused.value.param) == (404, "no_such", "model")

    play(scenario)


def test_a_defect_of_the_engine_ends_its_conversation_without_betraying_itself():
    async def scenario():
        async with linked(Engine()) as (remote, _):
            with pytest.raises(ServerError) as failed:
                async with remote.open(ConversationSettings(model="defect"), Heard()):
                    pass
            assert "secret" not in failed.value.message
            async with remote.open(SETTINGS, Heard()):
                pass

    play(scenario)


def test_a_place_is_free_when_the_engine_has_left_and_not_before():
    async def scenario():
        engine = Engine()
        async with linked(engine, slots=1) as (remote, _):
            engine.may_leave.clear()
            async with asyncio.TaskGroup() as tasks:

                async def converse():
                    async with remote.open(SETTINGS, Heard()):
                        pass
                    assert engine.open_now == 0

                first = tasks.create_task(converse())
                await turns_of_the_loop(lambda: engine.open_now == 1)
                for _ in range(100):
                    await asyncio.sleep(0)
                assert not first.done()
                with pytest.raises(ApiError) as refused:
                    async with remote.open(SETTINGS, Heard()):
                        pass
                assert (refused.value.status, refused.value.code) == (503, "worker_busy")
                engine.may_leave.set()
            async with remote.open(SETTINGS, Heard()):
                pass

    play(scenario)


def test_whoever_is_cancelled_while_leaving_still_leaves_first():
    async def scenario():
        engine = Engine()
        async with linked(engine) as (remote, _):
            engine.may_leave.clear()

            async def converse():
                async with remote.open(SETTINGS, Heard()):
                    await asyncio.Event().wait()

            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(converse())
                await turns_of_the_loop(lambda: engine.open_now == 1)
                for _ in range(3):
                    task.cancel()
                    for _ in range(20):
                        await asyncio.sleep(0)
                    assert not task.done()
                engine.may_leave.set()
                await asyncio.wait([task])
            assert task.cancelled()
            assert engine.open_now == 0

    play(scenario)


def test_a_worker_that_does_not_close_a_conversation_is_lost_even_to_one_who_is_cancelled_while_leaving():
    async def scenario():
        async with bare_worker(leave_timeout_s=0.01) as (remote, bare):

            async def converse():
                async with remote.open(SETTINGS, Heard()):
                    asyncio.current_task().cancel()

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(answer_opens(bare, 1))
                task = tasks.create_task(converse())
                await asyncio.wait([task])
            assert task.cancelled()
            # Its slot may still be taken, so no other conversation may get it.
            with pytest.raises(ApiError, match="worker is gone"):
                async with remote.open(SETTINGS, Heard()):
                    pass

    play(scenario)


def test_whoever_gives_up_before_the_conversation_has_begun_leaves_none_behind():
    async def scenario():
        async with linked(Engine(), slots=1) as (remote, _):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01), remote.open(ConversationSettings(model="slow"), Heard()):
                    pass
            async with remote.open(SETTINGS, Heard()):
                pass

    play(scenario)


def test_a_client_that_is_behind_pauses_its_engine_and_no_other():
    async def scenario():
        engines = [Engine(), Engine()]
        async with linked(engines[0]) as (one, _), linked(engines[1]) as (other, _):
            async with one.open(SETTINGS, Heard()) as conversation, other.open(SETTINGS, Heard()):
                conversation.pause()
                await turns_of_the_loop(lambda: engines[0].is_paused)
                assert not engines[1].is_paused
                conversation.resume()
                await turns_of_the_loop(lambda: not engines[0].is_paused)

    play(scenario)


def test_a_worker_that_goes_on_though_it_was_told_to_wait_loses_that_conversation_alone():
    """Malicious workers: with a client that did not read, what such a one said took 300 MB a second."""

    async def scenario():
        async with bare_worker() as (remote, bare):
            heard, other_heard = Heard(), Heard()
            flood = pack_frame(EngineEvents(1, tuple(events.TextDelta("resp_1", "x" * 100_000) for _ in range(10)))) * (
                2 * PAUSED_OUTPUT_LIMIT_BYTES // 1_000_000
            )
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(answer_opens(bare, 2))
                async with remote.open(SETTINGS, heard) as conversation, remote.open(SETTINGS, other_heard) as other:
                    conversation.send(ask("resp_1"))
                    other.send(ask("resp_2"))
                    bare.send(flood)
                    await heard.until(lambda words: len(words) > 300)
                    heard.words.clear()
                    conversation.pause()
                    bare.send(flood + pack_frame(EngineEvents(2, (events.ResponseEnded("resp_2"),))))
                    await other_heard.end_of("resp_2")
                    assert sum(len(word.text) for word in heard.of(events.TextDelta)) <= PAUSED_OUTPUT_LIMIT_BYTES
                    assert [type(word) for word in heard.words[-2:]] == [events.ResponseFailed, events.EngineLost]
                    assert not remote.endpoint.is_over
                    bare.send(pack_frame(ConversationClosed(1)) + pack_frame(ConversationClosed(2)))

    play(scenario)


def test_a_link_that_is_behind_pauses_the_engine_until_both_it_and_the_client_have_caught_up():
    async def scenario():
        engine = Engine()
        async with linked(engine) as (remote, serving), remote.open(SETTINGS, Heard()) as conversation:
            serving.endpoint.pause()
            assert engine.is_paused
            conversation.pause()
            conversation.pause()
            await turns_of_the_loop(lambda: serving._conversations[1]._is_client_behind)
            serving.endpoint.resume()
            assert engine.is_paused
            conversation.resume()
            await turns_of_the_loop(lambda: not engine.is_paused)

    play(scenario)


def test_an_engine_that_is_overrun_says_so_of_the_word_that_it_had_no_room_for():
    async def scenario():
        async with linked(Engine()) as (remote, _):
            heard = Heard()
            async with remote.open(SETTINGS, heard) as conversation:
                conversation.send(commands.Respond(id="resp_1", history=()))
                conversation.send(commands.Prepare(ask("resp_2")))
                await heard.until(lambda words: len(words) == 2)
            broke, trouble = heard.words
            assert (broke.id, broke.status, broke.code) == ("resp_1", 503, "server_is_overloaded")
            assert isinstance(trouble, events.EngineError)

    play(scenario)


def test_a_worker_that_does_not_read_is_told_no_more_but_to_stop():
    async def scenario():
        async with linked(Engine()) as (remote, _), remote.open(SETTINGS, Heard()) as conversation:
            remote.endpoint.pause()
            for _ in range(BACKLOG_LIMIT_BYTES // (1 << 20)):
                conversation.send(commands.AppendAudio(bytes(1 << 20)))
            with pytest.raises(EngineOverrun):
                conversation.send(commands.AppendAudio(b"\0\0"))
            conversation.send(commands.Cancel("resp_1"))
            remote.endpoint.resume()
            conversation.send(commands.AppendAudio(b"\0\0"))

    play(scenario)


def test_what_can_not_be_sent_breaks_its_answer_and_nothing_else():
    async def scenario():
        async with linked(slow()) as (remote, _):
            heard = Heard()
            async with remote.open(SETTINGS, heard) as conversation:
                conversation.send(ask("resp_1", sampling=Sampling(extra={"seed": 2**80})))
                conversation.send(ask("resp_2"))
                assert (await heard.end_of("resp_1")).status == 400
                assert (await heard.end_of("resp_2")).reason == "stop"

    play(scenario)


# Questions


def test_questions_are_answered_by_the_engine_and_fail_as_it_does():
    async def scenario():
        async with linked(Engine()) as (remote, _):
            assert await remote.count(ask("x")) == 1
            with pytest.raises(ClientError, match="nothing to count"):
                await remote.count(commands.Respond(id="x", history=()))
            with pytest.raises(ApiError, match="cold"):
                await remote.probe()
        async with linked(slow()) as (remote, _):
            await remote.probe()

    play(scenario)


def test_more_questions_than_there_is_room_for_are_refused():
    async def scenario():
        async with linked(Engine()) as (remote, _), asyncio.TaskGroup() as tasks:
            hanging = [tasks.create_task(remote.count(ask("x", instructions="hang"))) for _ in range(MAX_REQUESTS)]
            await turns_of_the_loop(lambda: len(remote._pending_requests) == MAX_REQUESTS)
            with pytest.raises(ApiError) as refused:
                await remote.count(ask("x"))
            assert refused.value.code == "worker_busy"
            for task in hanging:
                task.cancel()

    play(scenario)


# The end of a link


def test_a_worker_that_is_gone_breaks_what_it_was_saying_and_loses_every_conversation():
    async def scenario():
        reasons = []
        async with bare_worker(on_gone=reasons.append) as (remote, bare):
            bare.send(pack_frame(HELLO))
            await remote.start()
            assert remote.capabilities.context_window == 77
            one, other = Heard(), Heard()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(answer_opens(bare, 2))
                async with remote.open(SETTINGS, one) as first, remote.open(SETTINGS, other) as second:
                    first.send(ask("resp_1"))
                    first.send(ask("resp_2"))
                    bare.send(pack_frame(EngineEvents(1, (events.TextDelta("resp_1", "So far"), events.ResponseEnded("resp_1")))))
                    await one.end_of("resp_1")
                    second.send(commands.StartDuplex())
                    bare.send(
                        pack_frame(
                            EngineEvents(
                                2, (events.Listening(), events.AudioTranscriptDelta("own_1", "Hi"), events.AudioDelta("own_1", b"\0\0"))
                            )
                        )
                    )
                    await other.until(lambda words: len(words) == 3)
                    await bare.close()
                    await one.until(lambda words: any(isinstance(word, events.EngineLost) for word in words))
                    await other.until(lambda words: any(isinstance(word, events.EngineLost) for word in words))
                    assert [word.id for word in one.of(events.ResponseFailed)] == ["resp_2"]
                    assert [word.id for word in other.of(events.ResponseFailed)] == ["own_1"]
                    assert one.words[-1].code == other.words[-1].code == "backend_error"
                    assert first.send(ask("resp_3")) is None
                    assert (await one.end_of("resp_3")).status == 503
            with pytest.raises(ApiError):
                async with remote.open(SETTINGS, one):
                    pass
            with pytest.raises(ApiError):
                await remote.probe()
            assert reasons == ["it hung up"]

    play(scenario)


async def answer_opens(bare, count):
    for _ in range(count):
        opened = await bare.frame(OpenConversation)
        bare.send(pack_frame(ConversationOpened(opened.number)))


def test_a_worker_that_leaves_of_itself_loses_that_conversation_alone():
    async def scenario():
        async with bare_worker() as (remote, bare):
            bare.send(pack_frame(HELLO))
            one, other = Heard(), Heard()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(answer_opens(bare, 2))
                async with remote.open(SETTINGS, one) as conversation, remote.open(SETTINGS, other):
                    conversation.send(ask("resp_1"))
                    failure = Failure.from_error(ServerError("The engine broke.", status=500, code="server_error"))
                    bare.send(
                        pack_frame(ConversationFailed(1, failure))
                        + pack_frame(ConversationClosed(1))
                        + pack_frame(EngineEvents(2, (events.Listening(),)))
                    )
                    await other.until(lambda words: words)
                    assert [type(word) for word in one.words] == [events.ResponseFailed, events.EngineLost]
                    assert one.words[0].message == "The engine broke."
                    bare.send(pack_frame(ConversationClosed(2)))

    play(scenario)


def test_a_worker_that_can_not_answer_says_why():
    async def scenario():
        async with bare_worker() as (remote, bare):
            bare.send(
                pack_frame(EngineBuildFailed(Failure.from_error(ServerError("The weights are missing.", code="weights_unavailable"))))
            )
            with pytest.raises(ServerError, match="weights are missing"):
                await remote.start()

    play(scenario)


def test_a_worker_that_does_not_say_what_it_is_is_not_waited_for():
    async def scenario():
        async with bare_worker() as (remote, _):
            with pytest.raises(ApiError, match="did not introduce itself"):
                await remote.wait_for_hello(0.01)

    play(scenario)


def test_a_server_that_is_gone_is_left_by_every_engine():
    async def scenario():
        engine, lost = Engine(), []
        async with bare_server(engine, on_lost=lost.append) as (_, bare):
            bare.send(
                pack_frame(OpenConversation(1, SETTINGS))
                + pack_frame(OpenConversation(2, SETTINGS))
                + pack_frame(OpenConversation(3, ConversationSettings(model="slow")))
            )
            await bare.frame(ConversationOpened)
            await bare.frame(ConversationOpened)
            await bare.close()
            await turns_of_the_loop(lambda: engine.open_now == 0)
            assert lost == ["it hung up"]

    play(scenario)


def test_words_for_a_conversation_that_there_is_not_are_nobodys():
    async def scenario():
        engine = Engine()
        async with bare_server(engine) as (serving, bare):
            frames = (EngineCommands(9, (ask("resp_1"),)), PauseConversation(9), CloseConversation(9), ProbeRequest(1))
            bare.send(b"".join(map(pack_frame, frames)))
            assert (await bare.frame(RequestAnswered)).number == 1
            assert not serving.endpoint.is_over
            assert not engine.told

    play(scenario)


def test_a_number_that_is_used_twice_ends_the_link():
    async def scenario():
        async with bare_server(Engine()) as (serving, bare):
            bare.send(pack_frame(OpenConversation(1, SETTINGS)) * 2)
            await bare.end()
            assert serving.endpoint.is_over

    play(scenario)


GARBAGE = [b"\xff\xff\xff\xff", b"\0\0\0\1\xc1", pack_frame(Hello(version=1, abilities=Capabilities()))[:9] + b"\xc1" * 900]


@pytest.mark.parametrize("garbage", GARBAGE, ids=["oversized", "no frame", "altered"])
def test_garbage_ends_the_link_at_either_end_and_every_conversation_with_it(garbage):
    async def scenario():
        reasons, heard, engine = [], Heard(), Engine()
        async with bare_worker(on_gone=reasons.append) as (remote, bare):
            bare.send(pack_frame(HELLO))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(answer_opens(bare, 1))
                async with remote.open(SETTINGS, heard):
                    bare.send(garbage)
                    await heard.until(lambda words: words)
                    assert isinstance(heard.words[0], events.EngineLost)
            assert "frame" in reasons[0]
        async with bare_server(engine, on_lost=reasons.append) as (_, bare):
            bare.send(pack_frame(OpenConversation(1, SETTINGS)))
            await bare.frame(ConversationOpened)
            bare.send(garbage)
            await bare.end()
            await turns_of_the_loop(lambda: engine.open_now == 0)
        assert "frame" in reasons[1]

    play(scenario)


def test_a_frame_that_is_cut_off_by_the_end_of_the_link_is_nothing():
    async def scenario():
        heard = Heard()
        async with bare_worker() as (remote, bare):
            bare.send(pack_frame(HELLO))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(answer_opens(bare, 1))
                async with remote.open(SETTINGS, heard):
                    bare.send(pack_frame(EngineEvents(1, (events.TextDelta("r", "never whole"),)))[:-2])
                    await bare.close()
                    await heard.until(lambda words: words)
                    assert [type(word) for word in heard.words] == [events.EngineLost]

    play(scenario)


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from([pack_frame(CloseConversation(1)), pack_frame(CountRequest(2, ask("x"))), pack_frame(PauseConversation(1))]),
        )
    )
)
def test_whatever_a_server_sends_a_worker_goes_on_or_hangs_up_and_leaves_nothing_open(pieces):
    async def scenario():
        engine = Engine()
        async with bare_server(engine) as (_, bare):
            bare.send(pack_frame(OpenConversation(1, SETTINGS)))
            for piece in pieces:
                bare.send(piece)
                await asyncio.sleep(0)
            await bare.close()
        assert engine.open_now == 0

    play(scenario)
