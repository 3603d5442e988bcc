"""What every engine promises, whatever answers: the contract of `engines/base.py`."""

import asyncio
import contextlib
import json
import os
import socket
import wave
from pathlib import Path

import pytest
from aiohttp import web

from antiphon import talk, talk_events, turns
from antiphon.audio import bytes_of, ms_of
from antiphon.config import load
from antiphon.engines.base import Place
from antiphon.engines.worker import RemoteEngine
from antiphon.engines.worker_end import StreamPipe
from antiphon.runtime.engine_types import ENGINES, builder
from antiphon.runtime.speech import Speech
from antiphon.runtime.worker_process import embedded
from antiphon.runtime.worker_serving import Serving
from antiphon.server.run import background
from antiphon.settings import SpeechSettings
from antiphon.speech.resample import resampled
from antiphon.wire.worker_link import VERSION, Hello

SETTINGS = talk.Settings(model="m")
CASES = [
    pytest.param("scripted", {"pace_ms": 1}, id="scripted"),
    pytest.param("scripted", {}, id="scripted-at-once"),
    pytest.param("chat", {"quirks": "generic"}, id="chat"),
    pytest.param("responses", {}, id="responses"),
    pytest.param("realtime", {"model": "slow"}, id="realtime"),
    pytest.param("realtime", {"dialect": "beta"}, id="realtime-beta"),
    pytest.param("worker", {"pace_ms": 1}, id="worker"),
    pytest.param("worker", {}, id="worker-at-once"),
    pytest.param("omni", {}, id="omni"),
    pytest.param("local", {"model": "smollm2-135m-instruct", "context": 1024}, id="local", marks=pytest.mark.weights),
    pytest.param("child", {"model": "smollm2-135m-instruct", "context": 1024}, id="child", marks=pytest.mark.weights),
]


def weights():
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("ANTIPHON_MODELS") or cache / "antiphon" / "models")


def ask(id, text="Count from one to a hundred in words.", **more):
    more.setdefault("sampling", talk.Sampling(max_tokens=24))
    return talk.Respond(id=id, history=(turns.Message("user", (turns.TextPart(text),)),), **more)


class Listener:
    """Takes an engine's words, and can wait for some."""

    def __init__(self):
        self.words = []
        self.telling = False
        self._changed = asyncio.Event()

    def __call__(self, words):
        assert not self.telling, "an engine may not deliver from within `tell`"
        assert words, "an engine has no reason to deliver nothing"
        self.words.extend(words)
        self._changed.set()

    async def until(self, condition):
        async with asyncio.timeout(60):
            while not condition(self.words):
                self._changed.clear()
                await self._changed.wait()

    def ends(self, id):
        return [word for word in self.words if word.id == id and isinstance(word, talk_events.Ended | talk_events.Broke)]

    async def end_of(self, id):
        await self.until(lambda _: self.ends(id))
        return self.ends(id)[0]


@contextlib.asynccontextmanager
async def conversing(engine):
    listener = Listener()
    async with engine.open(SETTINGS, listener) as conversation:

        def tell(word):
            listener.telling = True
            conversation.tell(word)
            listener.telling = False

        yield listener, conversation, tell


async def counting(reader, writer):
    """A model server that counts to as many as it is asked, one every two milliseconds, while somebody listens."""
    try:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await count(reader, writer)
    finally:
        writer.close()


async def count(reader, writer):
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
    asked = json.loads(await reader.readexactly(length) or b"{}")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
    chunk, last = COUNTS[head.split()[1].decode()]
    for number in range(asked.get("max_tokens") or asked.get("max_completion_tokens") or asked.get("max_output_tokens") or 0):
        writer.write(f"data: {json.dumps(chunk(f' {number}'))}\n\n".encode())
        await writer.drain()
        await asyncio.sleep(0.002)
    writer.write(f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n".encode())


def chat_chunk(text):
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


def text_delta(text):
    return {"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": text}


CUT_OFF = {"status": "incomplete", "usage": {"input_tokens": 9, "output_tokens": 24}}
COUNTS = {
    "/v1/chat/completions": (
        chat_chunk,
        {
            "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 24},
        },
    ),
    "/v1/responses": (text_delta, {"type": "response.incomplete", "response": CUT_OFF}),
}
"""For each path what says a number, and what says that it was the last."""


@contextlib.asynccontextmanager
async def counting_model():
    """The address of a MiniCPM-o server that counts."""

    async def health(_request):
        return web.json_response({"status": "ready", "worker_status": "idle"})

    async def close(_request):
        return web.json_response({"ok": True})

    async def serve(request):
        model = web.WebSocketResponse()
        await model.prepare(request)
        with contextlib.suppress(ConnectionError):
            async for message in model:
                if message.json()["type"] == "session.init":
                    await model.send_json({"type": "session.created", "session_id": "sess_1"})
                    continue
                most = message.json()["input"]["generation"]["max_new_tokens"]
                for number in range(most):
                    await model.send_json({"type": "response.output.delta", "kind": "text", "text": f" {number}"})
                    await asyncio.sleep(0.002)
                await model.send_json({"type": "response.done", "metrics": {"kv_cache_length": 9 + most, "n_tokens": most}})
        return model

    app = web.Application()
    app.add_routes([web.get("/health", health), web.post("/sessions/{id}/close", close), web.get("/backend", serve)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield "ws://{}:{}".format(*runner.addresses[0])
    finally:
        await runner.cleanup()


SERVERS = {}
"""Addresses of the servers that outlast a test."""


@pytest.fixture(scope="module", autouse=True)
def realtime_server(tmp_path_factory):
    """A server of ours, before scripted models: `m`, which says all at once, and `slow`."""
    home = tmp_path_factory.mktemp("home")
    models = [{"name": "m", "engine": "scripted"}, {"name": "slow", "engine": "scripted", "pace_ms": 1}]
    config = load({"models": models, "logging.level": "error"}, None, {"HOME": str(home)}, home, etc=home / "none.toml").config
    with background(config) as address:
        SERVERS["realtime"] = f"{address}/v1"
        yield


@contextlib.asynccontextmanager
async def linked(engine):
    """The engine as it is at the other end of a link."""
    ours, theirs = socket.socketpair()
    remote = RemoteEngine()
    await engine.start()
    async with Serving() as serving:
        for end, sock in ((serving.end, theirs), (remote.end, ours)):
            sock.setblocking(False)
            await asyncio.get_running_loop().create_connection(lambda end=end: StreamPipe(end), sock=sock)
        serving.serve(engine)
        serving.end.send(Hello(version=VERSION, abilities=engine.abilities))
        yield remote
    await engine.stop()


def with_engine(name, options, scenario):
    """Build the engine, start it, play the scenario, stop it."""

    async def play():
        if name in SERVERS:
            await play_before(options | {"base_url": SERVERS[name]})
            return
        upstream = await asyncio.start_server(counting, "127.0.0.1", 0)
        async with upstream:
            address = f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}/v1"
            await play_before(options | ({"base_url": address} if name in ("chat", "responses") else {}))

    async def play_before(options):
        place = Place(weights=weights(), base=Path())
        if name == "cascade":
            speech = Speech(SpeechSettings(), weights(), {})
            await play_with(speech.around(builder("scripted")("m", options, place)))
            await speech.stop()
        elif name == "worker":
            async with linked(builder("scripted")("m", options, place)) as remote:
                await play_with(remote)
        elif name == "omni":
            async with counting_model() as address:
                await play_with(builder("omni")("m", options | {"workers": [address]}, place))
        elif name == "child":
            inside = builder("local")("m", options, place)
            await play_with(embedded(ENGINES["local"], "m", options, place, inside.abilities))
        else:
            await play_with(builder(name)("m", options, place))

    async def play_with(engine):
        await engine.start()
        try:
            await scenario(engine)
        finally:
            await engine.stop()
            await engine.stop()

    asyncio.run(play())


@pytest.mark.parametrize(("name", "options"), CASES)
def test_every_answer_has_one_end_and_its_words_carry_its_id(name, options):
    async def scenario(engine):
        async with conversing(engine) as (listener, _, tell):
            tell(ask("resp_1"))
            tell(ask("resp_2"))
            for id in ("resp_1", "resp_2"):
                assert (await listener.end_of(id)).reason in ("stop", "length")
            for id in ("resp_1", "resp_2"):
                said = [word for word in listener.words if word.id == id]
                assert len(listener.ends(id)) == 1
                assert said[-1] is listener.ends(id)[0], "the end comes last"
                assert "".join(word.text for word in said if isinstance(word, talk_events.Text)).strip()
                (used,) = (word for word in said if isinstance(word, talk_events.Used))
                assert used.input_tokens > 0
                assert used.output_tokens > 0

    with_engine(name, options, scenario)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_cancelled_answer_ends_as_cancelled_or_had_ended_before(name, options):
    async def scenario(engine):
        async with conversing(engine) as (listener, _, tell):
            tell(ask("resp_1", sampling=talk.Sampling(max_tokens=500)))
            tell(talk.Cancel("resp_1"))
            await listener.end_of("resp_1")
            tell(ask("resp_2"))
            await listener.until(lambda words: any(word.id == "resp_2" for word in words))
            tell(talk.Cancel("resp_2"))
            tell(talk.Cancel("resp_2"))
            tell(talk.Cancel("resp_never"))
            await listener.end_of("resp_2")
            tell(ask("resp_3"))
            assert (await listener.end_of("resp_3")).reason in ("stop", "length")
            assert [len(listener.ends(id)) for id in ("resp_1", "resp_2", "resp_3", "resp_never")] == [1, 1, 1, 0]

    with_engine(name, options, scenario)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_leaving_a_conversation_delivers_nothing_more(name, options):
    async def scenario(engine):
        async with conversing(engine) as (listener, _, tell):
            tell(ask("resp_1"))
        count = len(listener.words)
        async with conversing(engine) as (other, _, tell):
            tell(ask("resp_2"))
            await other.end_of("resp_2")
        assert len(listener.words) == count

    with_engine(name, options, scenario)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_paused_conversation_goes_on_when_it_is_resumed(name, options):
    async def scenario(engine):
        async with conversing(engine) as (listener, conversation, tell):
            conversation.pause()
            tell(ask("resp_1"))
            conversation.resume()
            assert (await listener.end_of("resp_1")).reason in ("stop", "length")

    with_engine(name, options, scenario)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_an_engine_that_stops_ends_what_it_was_saying(name, options):
    async def scenario(engine):
        async with conversing(engine) as (listener, _, tell):
            tell(ask("resp_1", sampling=talk.Sampling(max_tokens=500)))
            await listener.until(lambda words: words)
            await engine.stop()
            await listener.end_of("resp_1")

    with_engine(name, options, scenario)


def test_every_engine_is_held_to_the_contract():
    assert {case.values[0] for case in CASES} - {"child"} == set(ENGINES)


# Engines that listen, and those that speak

RATE_HZ = 24_000
BUZZ = (b"\0\x20" * 60 + b"\0\xe0" * 60) * 120
"""600 ms that any ear of ours takes for speech."""


def recording(name):
    """A person's voice, which ears that know people's voices know for speech."""
    with wave.open(str(Path(__file__).parent.parent / "speech" / "recordings" / f"{name}.wav")) as file:
        return resampled(file.readframes(file.getnframes()), file.getframerate(), RATE_HZ)


SILENCE = bytes(bytes_of(1000, RATE_HZ))
DEAF = {"audio_in": False, "audio_out": False, "listens": False}
"""What an engine within a cascade can't do by itself."""

LIVE_CASES = [
    pytest.param("scripted", {}, BUZZ, id="scripted"),
    pytest.param("scripted", {"pace_ms": 1}, BUZZ, id="scripted-paced"),
    pytest.param("realtime", {"model": "slow"}, BUZZ, id="realtime"),
    pytest.param("realtime", {"dialect": "beta"}, BUZZ, id="realtime-beta"),
    pytest.param("worker", {"pace_ms": 1}, BUZZ, id="worker"),
    pytest.param("cascade", {"abilities": DEAF}, recording("cards_001"), id="cascade", marks=pytest.mark.weights),
]
"""Each with half a second or more of speech that the engine knows for speech: s16le at 24 kHz."""

LISTEN = talk.Configure(rate_hz=RATE_HZ, turn_detection=talk.TurnDetection(), transcription=talk.Transcription())
BY_HAND = talk.Configure(rate_hz=RATE_HZ, transcription=talk.Transcription())
VOICE = talk.Voice(rate_hz=RATE_HZ)


async def say(tell, *sounds):
    """Tell the sound in pieces of 20 ms, each when the one before has been taken."""
    pcm = b"".join(sounds)
    size = bytes_of(20, RATE_HZ)
    for start in range(0, len(pcm), size):
        tell(talk.Hear(pcm[start : start + size]))
        await asyncio.sleep(0)


def of(words, *kinds):
    return [word for word in words if isinstance(word, kinds)]


def transcribed(words):
    """The ids of the turns whose transcripts are over."""
    return [word.id for word in of(words, talk_events.HeardAll, talk_events.NotHeard)]


def check_turns(words, dropped=()):
    """Speech starts and stops by turns, its clock runs forward, a transcript is over once. Turns in `dropped` were ended from without."""
    open_id, clock_ms, begun = None, 0, set()
    for word in of(words, talk_events.SpeechStarted, talk_events.SpeechStopped):
        assert word.at_ms >= clock_ms
        clock_ms = word.at_ms
        if isinstance(word, talk_events.SpeechStarted):
            assert open_id is None or open_id in dropped, "a turn starts when the one before is over"
            assert word.id not in begun, "every turn has an id of its own"
            open_id = word.id
            begun.add(word.id)
        else:
            assert word.id == open_id
            open_id = None
    over = []
    for word in of(words, talk_events.Heard, talk_events.HeardSegment, talk_events.HeardAll, talk_events.NotHeard):
        assert word.id not in over, "nothing is heard of a turn whose transcript is over"
        if isinstance(word, talk_events.HeardAll | talk_events.NotHeard):
            over.append(word.id)


def check_spoken(said):
    """Sound is whole samples, and words stand before the sound that they are heard in."""
    aloud = of(said, talk_events.Spoken, talk_events.Sound)
    assert all(word.pcm and len(word.pcm) % 2 == 0 for word in of(aloud, talk_events.Sound))
    assert isinstance(aloud[0], talk_events.Spoken)
    assert isinstance(aloud[-1], talk_events.Sound)
    assert not of(said, talk_events.Text), "what is spoken is not written too"


def live(name, options, scenario):
    async def listened(engine):
        assert engine.abilities.listens
        async with conversing(engine) as (listener, conversation, tell):
            await scenario(listener, conversation, tell)

    with_engine(name, options, listened)


@pytest.mark.parametrize(("name", "options", "speech"), LIVE_CASES)
def test_turns_start_and_stop_in_order_and_each_is_transcribed_once(name, options, speech):
    async def scenario(listener, _, tell):
        tell(LISTEN)
        await say(tell, SILENCE, speech, SILENCE, speech, SILENCE)
        await listener.until(lambda words: len(transcribed(words)) == 2)
        check_turns(listener.words)
        stopped = of(listener.words, talk_events.SpeechStopped)
        assert transcribed(listener.words) == [word.id for word in stopped]
        first, second = of(listener.words, talk_events.SpeechStarted)
        speech_ms = ms_of(len(speech), RATE_HZ)
        assert 0 <= first.at_ms <= 1000 + speech_ms, "the clock is the sound's, not the wall's"
        assert stopped[0].at_ms <= second.at_ms <= stopped[1].at_ms <= 3000 + 2 * speech_ms

    live(name, options, scenario)


@pytest.mark.parametrize(("name", "options", "speech"), LIVE_CASES)
def test_several_turns_in_one_piece_of_sound_all_come_out(name, options, speech):
    async def scenario(listener, _, tell):
        tell(LISTEN)
        tell(talk.Hear((speech + SILENCE) * 3))
        await listener.until(lambda words: len(transcribed(words)) == 3)
        check_turns(listener.words)
        assert len(of(listener.words, talk_events.SpeechStopped)) == 3

    live(name, options, scenario)


@pytest.mark.parametrize(("name", "options", "speech"), LIVE_CASES)
def test_a_turn_committed_by_hand_is_transcribed_under_the_id_it_was_given(name, options, speech):
    async def scenario(listener, _, tell):
        tell(BY_HAND)
        for id in ("hand_1", "hand_2"):
            await say(tell, speech, SILENCE)
            tell(talk.Commit(id))
        await listener.until(lambda words: len(transcribed(words)) == 2)
        check_turns(listener.words)
        assert set(transcribed(listener.words)) == {"hand_1", "hand_2"}
        assert not of(listener.words, talk_events.SpeechStarted, talk_events.SpeechStopped)

    live(name, options, scenario)


@pytest.mark.parametrize(("name", "options", "speech"), LIVE_CASES)
def test_nothing_more_is_said_of_a_turn_that_was_forgotten(name, options, speech):
    async def scenario(listener, _, tell):
        tell(LISTEN)
        await say(tell, speech)
        await listener.until(lambda words: of(words, talk_events.SpeechStarted))
        (started,) = of(listener.words, talk_events.SpeechStarted)
        tell(talk.Forget())
        count = len(listener.words)
        await say(tell, SILENCE, speech, SILENCE)
        await listener.until(transcribed)
        check_turns(listener.words, dropped=(started.id,))
        assert started.id not in [word.id for word in listener.words[count:]]

    live(name, options, scenario)


@pytest.mark.parametrize(("name", "options", "speech"), LIVE_CASES)
def test_a_turn_that_was_committed_while_it_was_open_is_over_and_transcribed(name, options, speech):
    async def scenario(listener, _, tell):
        tell(LISTEN)
        await say(tell, speech)
        await listener.until(lambda words: of(words, talk_events.SpeechStarted))
        (started,) = of(listener.words, talk_events.SpeechStarted)
        tell(talk.Commit(started.id))
        await say(tell, SILENCE, speech, SILENCE)
        await listener.until(lambda words: len(transcribed(words)) == 2)
        check_turns(listener.words, dropped=(started.id,))
        assert [word.id for word in of(listener.words, talk_events.SpeechStopped)] != [started.id]
        assert transcribed(listener.words)[0] == started.id

    live(name, options, scenario)


@pytest.mark.parametrize(("name", "options", "speech"), LIVE_CASES)
def test_a_turn_is_answered_aloud_with_one_end(name, options, speech):
    async def scenario(listener, _, tell):
        tell(LISTEN)
        await say(tell, speech, SILENCE)
        await listener.until(lambda words: of(words, talk_events.SpeechStopped))
        (stopped,) = of(listener.words, talk_events.SpeechStopped)
        heard = turns.Message("user", (turns.SpeechPart(speech, RATE_HZ, stopped.id),))
        tell(talk.Respond(id="resp_1", history=(heard,), voice=VOICE))
        assert (await listener.end_of("resp_1")).reason == "stop"
        said = [word for word in listener.words if word.id == "resp_1"]
        check_spoken(said)
        assert len(listener.ends("resp_1")) == 1
        assert said[-1] is listener.ends("resp_1")[0]
        (used,) = of(said, talk_events.Used)
        assert 0 < used.input_audio_tokens <= used.input_tokens
        assert 0 < used.output_audio_tokens <= used.output_tokens

    live(name, options, scenario)


@pytest.mark.parametrize(("name", "options", "speech"), LIVE_CASES)
def test_speech_that_is_cut_off_ends_once_while_the_next_turn_goes_on(name, options, speech):
    async def scenario(listener, _, tell):
        tell(LISTEN)
        tell(ask("resp_1", voice=VOICE))
        await listener.until(lambda words: of(words, talk_events.Sound))
        await say(tell, speech)
        await listener.until(lambda words: of(words, talk_events.SpeechStarted))
        tell(talk.Cancel("resp_1"))
        await listener.end_of("resp_1")
        await say(tell, SILENCE)
        await listener.until(transcribed)
        assert len(listener.ends("resp_1")) == 1
        check_turns(listener.words)

    live(name, options, scenario)


@pytest.mark.parametrize(("name", "options", "speech"), LIVE_CASES)
def test_leaving_in_the_middle_of_speech_delivers_nothing_more(name, options, speech):
    async def scenario(engine):
        async with conversing(engine) as (listener, _, tell):
            tell(LISTEN)
            tell(ask("resp_1", voice=VOICE))
            await say(tell, speech, SILENCE)
            tell(talk.Hear(speech + SILENCE))
        count = len(listener.words)
        async with conversing(engine) as (other, _, tell):
            tell(ask("resp_2"))
            await other.end_of("resp_2")
        assert len(listener.words) == count

    with_engine(name, options, scenario)


@pytest.mark.parametrize(("name", "options"), [case for case in CASES if case.values[0] not in {live.values[0] for live in LIVE_CASES}])
def test_an_engine_that_does_not_listen_takes_no_notice_of_sound(name, options):
    async def scenario(engine):
        assert not engine.abilities.listens
        async with conversing(engine) as (listener, _, tell):
            for word in (LISTEN, talk.Hear(BUZZ + SILENCE), talk.Commit("hand_1"), talk.Hear(BUZZ), talk.Forget()):
                tell(word)
            tell(ask("resp_1"))
            assert (await listener.end_of("resp_1")).reason in ("stop", "length")
            assert {word.id for word in listener.words} == {"resp_1"}

    with_engine(name, options, scenario)
