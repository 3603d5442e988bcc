"""All engines, each with the server that it needs to answer."""

import asyncio
import contextlib
import json
import os
import socket
import wave
from pathlib import Path

import pytest
from aiohttp import web

from antiphon.config.load import ModelEntry, load
from antiphon.config.settings import SpeechSettings
from antiphon.engine_api import events
from antiphon.engine_api.engine import BuildContext
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.remote.engine import RemoteEngine
from antiphon.errors import model_not_found
from antiphon.link import StreamLinkTransport
from antiphon.runtime.balancing.build import build_engine
from antiphon.runtime.core.engine_types import ENGINES, load_builder
from antiphon.runtime.speech.service import SpeechService
from antiphon.runtime.workers.child_engine import embedded_engine
from antiphon.runtime.workers.server import ConversationServer
from antiphon.server.processes.run import background_server
from antiphon.speech.dsp.resample import resample
from antiphon.wire.internal.worker_link import VERSION, Hello
from support.engines import shallow_model

SETTINGS = ConversationSettings(model="m")
CONTEXT = BuildContext(weights_folder=Path(), base_folder=Path())


def weights():
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("ANTIPHON_MODELS") or cache / "antiphon" / "models")


class Listener:
    """Collects an engine's events, and can wait for some."""

    def __init__(self):
        self.words = []
        self.take = self.collect
        self._changed = asyncio.Event()

    def __call__(self, words):
        self.take(words)

    def collect(self, words):
        assert words, "an engine has no reason to deliver nothing"
        self.words.extend(words)
        self._changed.set()

    async def until(self, condition):
        async with asyncio.timeout(60):
            while not condition(self.words):
                self._changed.clear()
                await self._changed.wait()

    def ends(self, id):
        return [word for word in self.words if word.id == id and isinstance(word, events.ResponseEnded | events.ResponseFailed)]

    async def end_of(self, id):
        await self.until(lambda _: self.ends(id))
        return self.ends(id)[0]


@contextlib.asynccontextmanager
async def conversing(engine):
    listener = Listener()
    async with engine.open(SETTINGS, listener) as conversation:
        yield listener, conversation, conversation.send


async def counting(reader, writer):
    """A model server that counts to the requested number, one every two milliseconds, while the client is connected."""
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
"""For each path, the function that makes the event of a number, and the last event."""


@contextlib.asynccontextmanager
async def counting_model():
    """A MiniCPM-o server that counts; yields its address."""

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


LOADED = {}
"""
The event loop of a module's tests and a folder for its files, with its transcriber and synthesizer, and local engines, in this process and
in one of their own: they take longer to load than a test takes.
"""


@pytest.fixture(scope="module", autouse=True)
def loop(tmp_path_factory):
    with asyncio.Runner() as runner:
        LOADED.update(loop=runner, folder=tmp_path_factory.mktemp("loaded"))
        yield
        for name in ("speech", "local", "child"):
            if name in LOADED:
                runner.run(LOADED[name].stop())
                runner.run(LOADED.pop(name).stop())
        LOADED.pop("model", None)


def speech():
    if "speech" not in LOADED:
        LOADED["speech"] = SpeechService(SpeechSettings(), weights(), {})
    return LOADED["speech"]


@pytest.fixture(scope="module", autouse=True)
def realtime_server(tmp_path_factory):
    """A server of ours in front of scripted models: `m`, which answers at once, and `slow`."""
    home = tmp_path_factory.mktemp("home")
    models = [{"name": "m", "engine": "scripted"}, {"name": "slow", "engine": "scripted", "pace_ms": 1}]
    flags = {"models": models, "logging.level": "error", "tools.code_interpreter.sandbox": "off"}
    config = load(flags, None, {"HOME": str(home)}, home, system_file=home / "none.toml").config
    with background_server(config) as address:
        SERVERS["realtime"] = f"{address}/v1"
        yield


@contextlib.asynccontextmanager
async def linked(engine):
    """The engine at the other end of a link."""
    ours, theirs = socket.socketpair()
    remote = RemoteEngine()
    await engine.start()
    async with ConversationServer() as serving:
        for end, sock in ((serving.endpoint, theirs), (remote.endpoint, ours)):
            sock.setblocking(False)
            await asyncio.get_running_loop().create_connection(lambda end=end: StreamLinkTransport(end), sock=sock)
        serving.serve(engine)
        serving.endpoint.send(Hello(version=VERSION, abilities=engine.capabilities))
        yield remote
    await engine.stop()


def nowhere(name):
    """A registry without any model."""
    raise model_not_found(name, ())


@contextlib.asynccontextmanager
async def running(engine):
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
        await engine.stop()


def local_engine(name, options, place):
    """A local engine, in this process or in a process of its own."""
    if "model" not in LOADED:
        LOADED["model"] = os.fspath(shallow_model.write(place.weights_folder, LOADED["folder"]))
    options = options | {"path": LOADED["model"], "template": "chatml"}
    inside = load_builder("local")("m", options, place)
    return inside if name == "local" else embedded_engine(ENGINES["local"], "m", options, place, inside.capabilities)


async def play_local(name, options, place, scenario, *, is_shared):
    if not is_shared:
        async with running(local_engine(name, options, place)) as engine:
            await scenario(engine)
        return
    if name not in LOADED:
        engine = local_engine(name, options, place)
        await engine.start()
        LOADED[name] = engine
    await scenario(LOADED[name])


def with_engine(name, options, scenario, *, is_shared=True):
    """
    Build the engine, start it, play the scenario, stop it.

    Args:
        is_shared: a local engine may have played others before, and will play more.
    """

    async def play():
        if name in SERVERS:
            await play_before(options | {"base_url": SERVERS[name]})
            return
        upstream = await asyncio.start_server(counting, "127.0.0.1", 0)
        async with upstream:
            address = f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}/v1"
            if name in ("balanced", "fallback"):
                upstreams = [{"base_url": address}, {"base_url": address}]
                entry = ModelEntry(name="m", engine="chat", options=options | {"upstreams": upstreams})
                await play_with(build_engine(entry, CONTEXT, nowhere))
                return
            await play_before(options | ({"base_url": address} if name in ("chat", "responses") else {}))

    async def play_before(options):
        place = BuildContext(weights_folder=weights(), base_folder=Path())
        if name == "cascade":
            await play_with(speech().with_speech(load_builder("scripted")("m", options, place)))
        elif name == "worker":
            async with linked(load_builder("scripted")("m", options, place)) as remote:
                await play_with(remote)
        elif name == "omni":
            async with counting_model() as address:
                await play_with(load_builder("omni")("m", options | {"workers": [address]}, place))
        elif name in ("local", "child"):
            await play_local(name, options, place, scenario, is_shared=is_shared)
        else:
            await play_with(load_builder(name)("m", options, place))

    async def play_with(engine):
        async with running(engine):
            await scenario(engine)

    LOADED["loop"].run(play())


RATE_HZ = 24_000


BUZZ = (b"\0\x20" * 60 + b"\0\xe0" * 60) * 120
"""600 ms that any of our detectors takes for speech."""


def recording(name):
    """A person's voice, for detectors that tell speech from other sounds."""
    with wave.open(str(Path(__file__).parents[2] / "speech" / "recordings" / f"{name}.wav")) as file:
        return resample(file.readframes(file.getnframes()), file.getframerate(), RATE_HZ)


DEAF = {"audio_in": False, "audio_out": False, "listens": False}
"""Capabilities that an engine in a cascade lacks itself."""


def of(words, *kinds):
    return [word for word in words if isinstance(word, kinds)]
