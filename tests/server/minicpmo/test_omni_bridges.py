"""Clients of every protocol before a MiniCPM-o worker that holds no model, over real sockets."""

import asyncio
import base64
import contextlib
import json
import threading

import aiohttp
import pytest

from antiphon.audio import wav_file
from antiphon.server.processes.run import background_server
from support.engines.omni_doubles import Worker, floats_of, loud, sound_of as worker_sound
from support.server.aloud import BY_HAND, TRANSCRIBED, WEIGHTS, append, check_whole, plain, recording, silence, sound_of, words_of
from support.server.realtime_peer import connected, posted
from support.server.scripted_server import configured

pytestmark = pytest.mark.anyio

UNREAD = {"type": "realtime", "audio": {"input": {"transcription": None}}}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@contextlib.contextmanager
def in_a_thread(worker):
    """The worker open in a loop of its own: the one of a test stands still while a server stops."""
    loop, opened = asyncio.new_event_loop(), worker.open()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop).result(10)
        yield worker
    finally:
        asyncio.run_coroutine_threadsafe(opened.__aexit__(None, None, None), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.contextmanager
def serving(home, **settings):
    """A worker, and the address of a server before it."""
    with in_a_thread(Worker(recovers_s=0.02)) as worker:
        models = {"minicpm-o": {"engine": "omni", "workers": [worker.address]}}
        config = configured(home, models, **{"models_dir": str(WEIGHTS), "logging.level": "error"}, **settings)
        with background_server(config) as address:
            yield worker, address
        assert worker.breaches == []


async def test_a_client_of_responses_is_answered_and_its_recording_is_heard_by_the_model(tmp_path):
    with serving(tmp_path) as (worker, url):
        sound = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav_file(loud(500), 16_000)).decode(), "format": "wav"}}
        said = [{"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, sound]}]
        for _ in range(3):
            status, body = await posted(url, "/v1/responses", {"model": "minicpm-o", "input": said})
            assert status == 200, body
            assert body["output"][0]["content"][0]["text"] == "You said: What is it? <audio> "
            assert body["usage"]["output_tokens"] == 6
        text, heard = worker.asked[0]["messages"][-1]["content"]
        assert text == {"type": "text", "text": "What is it?"}
        assert 7_900 <= len(floats_of(heard["data"])) <= 8_000
        assert (worker.sessions, worker.refused) == (3, 0)


async def test_a_client_of_responses_that_asks_for_sound_hears_the_model(tmp_path):
    with serving(tmp_path) as (_, url):
        asked = {"model": "minicpm-o", "input": "Hi", "modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}
        events = []
        async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/responses", json={**asked, "stream": True}) as reply:
            assert reply.status == 200, await reply.text()
            async for line in reply.content:
                if line.startswith(b"data: {"):
                    events.append(json.loads(line[6:]))
        assert len(sound_of(events, "response.audio.delta")) == 3 * 4_800


@pytest.mark.weights
async def test_a_client_of_realtime_talks_to_the_model_itself(tmp_path):
    with serving(tmp_path) as (worker, url):
        async with connected(url, model="minicpm-o") as peer:
            await peer.hear()
            await peer.say("session.update", session=UNREAD)
            await peer.until("session.updated")
            for turns in (1, 2):
                await append(peer, recording("cards_001") + silence(1))
                events = await peer.until("response.done")
                check_whole(events)
                assert events[-1]["response"]["status"] == "completed"
                assert words_of(events).startswith("You said:")
                assert len(sound_of(events)) > 10_000
                *_, last = worker.asked
                heard = [message for message in last["messages"] if message["role"] == "user"]
                assert len(heard) == turns
                assert all(part["type"] == "audio" for message in heard for part in message["content"])
                assert last["tts"]["enabled"] is True
            assert worker.sessions == 1
            assert max(map(abs, floats_of(heard[-1]["content"][0]["data"]))) > 0.01


@pytest.mark.long
@pytest.mark.weights
async def test_what_was_said_to_the_model_is_written_down_for_who_wants_to_read_it(tmp_path):
    with serving(tmp_path) as (worker, url):
        async with connected(url, model="minicpm-o") as peer:
            await peer.hear()
            await peer.say("session.update", session=TRANSCRIBED)
            await peer.until("session.updated")
            await append(peer, recording("cards_001") + silence(1))
            events = await peer.until("conversation.item.input_audio_transcription.completed")
            assert plain(events[-1]["transcript"]) == ["ten", "of", "clubs"]
            if not worker.asked:
                await peer.until("response.done")
            (part,) = worker.asked[0]["messages"][-1]["content"]
            assert part["type"] == "audio"


@pytest.mark.weights
async def test_an_answer_that_is_interrupted_stops_and_the_next_turn_is_answered(tmp_path):
    async def answers_until_it_is_cut(worker):
        while worker.socket is not None and not worker.socket.closed:
            await worker.delta("text", text="more ")
            await worker.delta("audio", audio=worker_sound(2_400))
            await asyncio.sleep(0.002)

    with serving(tmp_path) as (worker, url):
        worker.faults = {1: answers_until_it_is_cut}
        async with connected(url, model="minicpm-o") as peer:
            await peer.hear()
            await peer.say("session.update", session=BY_HAND)
            await peer.until("session.updated")
            text = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go on"}]}
            await peer.say("conversation.item.create", item=text)
            await peer.say("response.create")
            await peer.until("response.output_audio.delta")
            await peer.say("response.cancel")
            events = await peer.until("response.done")
            assert events[-1]["response"]["status"] == "cancelled"
            await peer.say("response.create", response={"input": [], "instructions": "Say hello."})
            events = await peer.until("response.done")
            assert events[-1]["response"]["status"] == "completed", events[-1]
            assert worker.sessions == 2


@pytest.mark.weights
async def test_a_session_goes_on_with_another_place_when_its_worker_was_lost(tmp_path):
    with serving(tmp_path, **{"workers.failures": 100}) as (worker, url):

        async def dies(worker):
            worker.socket._req.transport.abort()

        worker.faults = {1: dies}
        async with connected(url, model="minicpm-o") as peer:
            await peer.hear()
            assert (await peer.ask("one"))[-1]["response"]["status"] == "failed"
            events = await peer.ask("two")
            while events[-1]["response"]["status"] != "completed":
                events = await peer.ask("two")
            assert words_of(events) == "You said: two "


async def test_a_client_of_minicpm_o_has_the_worker_itself(tmp_path):
    with serving(tmp_path) as (worker, url):
        async with aiohttp.ClientSession() as http, http.ws_connect(f"{url}/v1/realtime?mode=video") as socket:

            async def until(type, **fields):
                while True:
                    event = await socket.receive_json(timeout=20)
                    if event["type"] == type and all(event.get(name) == value for name, value in fields.items()):
                        return event

            await until("session.queue_done")
            await socket.send_json({"type": "session.init", "payload": {"system_prompt": "Be kind."}})
            assert (await until("session.created"))["mode"] == "full_duplex"
            sound = base64.b64encode(b"\0\0\x80\x3e" * 16_000).decode()
            await socket.send_json({"type": "input.append", "input": {"audio": sound}})
            assert len(floats_of((await until("response.output.delta", kind="audio"))["audio"])) == 24_000
            await socket.send_json({"type": "input.append", "input": {"audio": sound, "force_listen": True}})
            await until("response.output.delta", kind="listen")
            await socket.send_json({"type": "session.close", "reason": "user_stop"})
            assert (await until("session.closed"))["reason"] == "user_stop"
        assert worker.inits[0]["mode"] == "full_duplex"
        assert worker.inits[0]["system_prompt"] == "Be kind."
