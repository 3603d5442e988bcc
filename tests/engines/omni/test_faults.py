"""Conversations with a MiniCPM-o worker that misbehaves: they end once, and soon."""

import asyncio
import base64
import contextlib
from pathlib import Path

import pytest
from aiohttp import WSCloseCode, web

from antiphon.engine_api import commands, events
from antiphon.engine_api.engine import BuildContext
from antiphon.engine_api.options import ConversationSettings, Sampling
from antiphon.engines.omni.engine import build
from antiphon.errors import ApiError, ServerError
from support.engines.omni_doubles import EventLog, GatewayWorker, Native, Worker, ask, conversing, engine, facing, loud, played, quiet


async def dies(worker):
    worker.socket._req.transport.abort()


async def closes(worker):
    await worker.socket.close(code=WSCloseCode.TRY_AGAIN_LATER)


async def fails(worker):
    await worker.fail("prefill_failed", "CUDA out of memory at /srv/secret/model.py:12")


async def is_silent(_worker):
    pass


async def hangs(worker):
    """Neither answer nor even read any more, as a process that is stopped, and keep the connection."""
    worker.socket._req.transport.pause_reading()


async def is_garbled(worker):
    for frame in ("no JSON", "[]", '{"type": 7}', '{"type": "response.output.delta", "kind": "audio", "audio": "?"}') * 5:
        await worker.socket.send_str(frame)


async def is_huge(worker):
    await worker.socket.send_str('{"type": "response.output.delta", "text": "' + "x" * (17 << 20) + '"}')


BREAKS = {"dies": dies, "closes": closes, "fails": fails, "is garbled": is_garbled, "is huge": is_huge, "is silent": is_silent}


@pytest.mark.parametrize("fault", BREAKS.values(), ids=BREAKS)
def test_a_model_that_fails_while_it_speaks_is_lost_and_its_turn_broke(fault):
    async def scenario():
        async with facing(Worker(faults={2: fault}), timeout_idle_s=0.2) as client:
            client.tell(commands.StartDuplex())
            await client.log.some(events.DuplexStarted)
            client.tell(commands.AppendAudio(loud()))
            (sound, *_) = await client.log.some(events.AudioDelta)
            client.tell(commands.AppendAudio(loud()))
            (lost,) = await client.log.some(events.EngineLost)
            assert lost.code == "backend_error"
            assert "secret" not in lost.message
            (broke,) = client.log.ends(sound.id)
            assert isinstance(broke, events.ResponseFailed)
            assert client.log.words[-2:] == [broke, lost]
            client.tell(commands.AppendAudio(loud()), ask())
            assert isinstance(await client.log.end_of("resp_1"), events.ResponseFailed)
            assert len(client.log.of(events.EngineLost)) == 1

    played(scenario)


@pytest.mark.parametrize("fault", BREAKS.values(), ids=BREAKS)
def test_an_answer_that_fails_midway_broke_once(fault):
    async def scenario():
        async with facing(Worker(faults={1: fault}), "chat", timeout_idle_s=0.2) as client:
            client.tell(ask("resp_1"), ask("resp_2"))
            broke = await client.log.end_of("resp_1")
            assert broke.status in (502, 504)
            assert "secret" not in broke.message
            # A worker that says itself what went wrong is still there.
            assert isinstance(await client.log.end_of("resp_2"), events.ResponseEnded if fault is fails else events.ResponseFailed)
            assert len(client.log.of(events.EngineLost)) == (fault is not fails)

    played(scenario)


@pytest.mark.parametrize("kind", ["audio", "chat"])
def test_a_worker_that_hangs_is_noticed_by_its_silence_and_called_what_it_is(kind):
    async def scenario():
        worker = Worker(faults={1: hangs})
        async with facing(worker, kind=kind, timeout_hang_s=0.2) as client:
            if kind == "audio":
                client.tell(commands.StartDuplex())
                await client.log.some(events.DuplexStarted)
                client.tell(commands.AppendAudio(loud()))
            else:
                client.tell(ask("resp_1"))
                assert isinstance(await client.log.end_of("resp_1"), events.ResponseFailed)
            (lost,) = await client.log.some(events.EngineLost)
            message = "The worker has stopped answering: nothing came from it for 0.2 seconds."
            assert lost == events.EngineLost(code="backend_error", message=message)
            await dies(worker)

    played(scenario)


def test_a_worker_that_answers_no_ping_while_it_begins_a_session_is_waited_for():
    async def scenario():
        async with facing(Worker(creates_s=1.0), timeout_hang_s=0.3) as client:
            client.tell(commands.StartDuplex())
            await client.log.some(events.DuplexStarted)

    played(scenario)


@pytest.mark.parametrize("fault", [dies, fails, is_silent, is_garbled], ids=["dies", "fails", "is silent", "is garbled"])
def test_a_session_that_can_not_begin_is_lost(fault):
    async def scenario():
        async with facing(Worker(on_init=fault), timeout_session_s=0.2, timeout_connect_s=0.3, timeout_release_s=0.5) as client:
            client.tell(commands.StartDuplex(), commands.AppendAudio(loud()), ask())
            await client.log.some(events.EngineLost)
            assert isinstance(await client.log.end_of("resp_1"), events.ResponseFailed)
            assert not client.log.of(events.DuplexStarted)

    played(scenario)


async def _closes_without_a_word(worker):
    worker.on_init = None
    await worker.socket.close()


async def _cuts_the_connection(worker):
    worker.on_init = None
    worker.socket._req.transport.abort()


@pytest.mark.parametrize("ends", [_closes_without_a_word, _cuts_the_connection])
def test_a_native_server_that_is_still_clearing_up_is_asked_again(ends):
    async def scenario():
        async with facing(worker := Native(on_init=ends)) as client:
            client.tell(commands.StartDuplex())
            await client.log.some(events.DuplexStarted)
            assert len(worker.inits) == 2

    played(scenario)


def test_why_a_session_failed_is_told_to_the_operator_and_to_nobody_else():
    notices = []

    async def scenario():
        async with facing(Worker(faults={1: fails}), "chat", notice=notices.append) as client:
            client.tell(ask())
            broke = await client.log.end_of("resp_1")
            assert broke.message == "The worker ended the session (prefill_failed)."

    played(scenario)
    assert [line for line in notices if "CUDA out of memory" in line and "prefill_failed" in line]


def test_a_film_that_can_not_be_read_is_the_clients_mistake():
    async def refuses(worker):
        await worker.fail("video_decode_failed", "ffmpeg: moov atom not found")

    async def scenario():
        async with facing(Worker(faults={1: refuses}), "chat") as client:
            client.tell(ask())
            broke = await client.log.end_of("resp_1")
            assert (broke.status, broke.message) == (400, "The video could not be read.")

    played(scenario)


def test_sound_that_is_no_number_or_not_whole_is_silence_as_far_as_it_is_whole():
    async def speaks_badly(worker):
        await worker.delta("audio", audio=base64.b64encode(b"\0\0\xc0\x7f" * 10 + b"\1").decode())
        await worker.delta("audio", audio=base64.b64encode(b"\0\0\x80\x7f" + b"\0\0\x80\xc0").decode())
        await worker.delta("audio", audio=base64.b64encode(b"\0\0\0\x40" + b"\0\0\0\xc0" + b"\1\2").decode())

    async def scenario():
        async with facing(Worker(faults={1: speaks_badly})) as client:
            client.tell(commands.StartDuplex())
            await client.log.some(events.DuplexStarted)
            client.tell(commands.AppendAudio(loud()))
            sounds = await client.log.some(events.AudioDelta, count=3)
            assert [word.pcm for word in sounds] == [bytes(20), bytes(4), b"\xff\x7f\x00\x80"]

    played(scenario)


@pytest.mark.parametrize("status", ["loading", "error", "busy_chat", "duplex_active"])
def test_a_worker_that_is_not_idle_gets_nobody(status):
    async def scenario():
        async with (worker := Worker()).open():
            worker.status = status
            omni = engine(worker, timeout_connect_s=0.2)
            with pytest.raises(ApiError) as refusal:
                async with conversing(omni):
                    pass
            assert refusal.value.status == 503
            assert worker.sessions == 0
            with pytest.raises(ApiError):
                await next(iter(omni.workers.values())).probe()
            worker.status = None
            await next(iter(omni.workers.values())).probe()
            await omni.stop()

    played(scenario)


def test_a_worker_that_turns_away_who_comes_too_early_is_asked_again():
    class Early(Worker):
        async def serve(self, request):
            if self.refused < 3:
                self.refused += 1
                raise web.HTTPForbidden()
            return await super().serve(request)

    async def scenario():
        async with facing(worker := Early(), "chat") as client:
            client.tell(ask())
            assert await client.log.end_of("resp_1") == events.ResponseEnded("resp_1")
            assert worker.refused == 3

    played(scenario)


def test_a_worker_that_closes_as_it_is_asked_to_begin_is_asked_again():
    async def closes_once(worker):
        worker.on_init = None
        await closes(worker)

    async def scenario():
        async with facing(worker := Worker(on_init=closes_once), "chat") as client:
            client.tell(ask())
            assert await client.log.end_of("resp_1") == events.ResponseEnded("resp_1")
            assert len(worker.inits) == 2

    played(scenario)


def test_a_client_that_is_behind_is_waited_for():
    async def scenario():
        async with facing(worker := Worker(), "chat") as client:
            client.conversation.pause()
            client.tell(ask(text="Count", sampling=Sampling(max_tokens=200)))
            await worker.until(lambda: worker.inits)
            assert not client.log.words
            client.conversation.resume()
            assert await client.log.end_of("resp_1") == events.ResponseEnded("resp_1", "length")

    played(scenario)


def test_a_worker_that_is_not_there_gets_nobody():
    async def scenario():
        async with (worker := Worker()).open():
            pass
        omni = engine(worker)
        with pytest.raises(ApiError, match="can't be reached"):
            async with conversing(omni):
                pass
        with pytest.raises(ApiError):
            await next(iter(omni.workers.values())).probe()
        await omni.stop()

    played(scenario)


def test_a_worker_that_dies_before_the_session_begins_is_lost():
    async def scenario():
        log = EventLog()
        async with contextlib.AsyncExitStack() as stack:
            server = contextlib.AsyncExitStack()
            worker = await server.enter_async_context(Worker().open())
            omni = engine(worker)
            conversation = await stack.enter_async_context(omni.open(ConversationSettings(model="m", kind="audio"), log))
            await server.aclose()
            conversation.send(commands.StartDuplex())
            await log.some(events.EngineLost)
        await omni.stop()

    played(scenario)


def test_a_page_where_a_worker_should_be_gets_nobody():
    async def page(request):
        return web.Response(text="<html>Welcome</html>", content_type="text/html")

    class Page(Worker):
        async def serve(self, request):
            return await page(request)

    class Site(Worker):
        async def health(self, request):
            return await page(request)

    async def scenario():
        for kind in (Page, Site):
            async with (worker := kind()).open():
                omni = engine(worker)
                with pytest.raises(ApiError):
                    async with conversing(omni):
                        pass
                await omni.stop()

    played(scenario)


def test_a_worker_that_does_not_become_idle_is_not_waited_for_longer_than_is_allowed():
    notices = []

    async def scenario():
        async with (worker := Worker()).open():
            omni = engine(worker, timeout_release_s=0.2, timeout_connect_s=0.2, notice=notices.append)
            with pytest.raises(ApiError, match="busy"):
                async with conversing(omni) as client:
                    client.tell(commands.StartDuplex())
                    await client.log.some(events.DuplexStarted)
                    worker.status = "duplex_active"
            with pytest.raises(ApiError, match="busy"):
                async with conversing(omni):
                    pass
            await omni.stop()

    played(scenario)
    assert [line for line in notices if "busy" in line]


@pytest.mark.parametrize("kind", [Worker, GatewayWorker], ids=["python", "worker"])
def test_a_client_that_is_gone_at_any_step_leaves_a_worker_that_takes_the_next(kind):
    options = {"protocol": "worker"} if kind is GatewayWorker else {}

    async def scenario():
        async with (worker := kind(recovers_s=0.02, creates_s=0.05)).open():
            omni = engine(worker, **options)
            for steps in range(5):
                async with conversing(omni) as client:
                    words = [commands.StartDuplex(), commands.AppendAudio(loud()), commands.AppendAudio(loud()), ask()]
                    client.tell(*words[:steps])
                    if steps == 3:
                        await client.log.some(events.AudioDelta)
            async with conversing(omni, "chat") as client:
                client.tell(ask())
                assert await client.log.end_of("resp_1") == events.ResponseEnded("resp_1")
            assert not worker.refused
            await omni.stop()

    played(scenario)


def test_whoever_is_cancelled_while_the_worker_recovers_leaves_it_so_that_the_next_can_wait_for_it():
    async def scenario():
        async with (worker := Worker(recovers_s=0.1)).open():
            omni = engine(worker)

            async def talked():
                async with conversing(omni) as client:
                    client.tell(commands.StartDuplex())
                    await client.log.some(events.DuplexStarted)
                    client.tell(commands.AppendAudio(quiet()))
                    await asyncio.Event().wait()

            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(talked())
                await worker.until(lambda: worker.asked)
                task.cancel()
            assert not worker.is_busy
            await omni.stop()

    played(scenario)


def test_an_engine_that_stops_loses_its_conversations():
    async def scenario():
        async with (worker := Worker()).open():
            omni = engine(worker)
            async with conversing(omni, "chat") as client:
                client.tell(ask(text="Count", sampling=Sampling(max_tokens=5_000)))
                await client.log.some(events.TextDelta)
                await omni.stop()
                assert isinstance(await client.log.end_of("resp_1"), events.ResponseFailed)
                (lost,) = await client.log.some(events.EngineLost)
                assert lost.code == "server_shutting_down"

    played(scenario)


def test_the_key_goes_with_all_that_the_worker_is_asked():
    async def scenario():
        async with (worker := Worker()).open():
            omni = engine(worker, api_key_env="OMNI_KEY", secrets={"OMNI_KEY": "sk-omni"})
            async with conversing(omni):
                pass
            assert {headers["authorization"] for headers in worker.headers} == {"Bearer sk-omni"}
            await omni.stop()

    played(scenario)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "workers"),
        ({"workers": []}, "workers"),
        ({"workers": ["ws://a:1", "http://a:1"]}, "twice"),
        ({"workers": ["ftp://a:1"]}, "base_url"),
        ({"workers": ["ws://a:1"], "worker": 1}, "worker"),
        ({"workers": ["ws://a:1"], "protocol": "stream"}, "disk"),
        ({"workers": ["ws://a:1"], "protocol": "grpc"}, "grpc"),
        ({"workers": ["ws://a:1"], "timeout_idle_s": 0}, "timeout_idle_s"),
        ({"workers": ["ws://a:1"], "api_key": "sk"}, "api_key_env"),
        ({"workers": ["ws://a:1"], "abilities": {"flies": True}}, "flies"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_option_that_is_wrong_is_named(options, named):
    with pytest.raises(ServerError, match=named):
        build("minicpm-o", options, BuildContext(weights_folder=Path(), base_folder=Path()))
