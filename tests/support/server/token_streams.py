"""
Streams of tokens from an upstream's bytes to a client's, all in one event loop and without a socket: the same bytes may
be played with the fast path and without it.
"""

import asyncio
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

from antiphon.config.load import ModelEntry
from antiphon.engine_api import commands
from antiphon.engine_api.engine import BuildContext
from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import shutting_down
from antiphon.protocols.chat.relay import RelayEncoder, RelaySession
from antiphon.protocols.chat.session import ChatSession
from antiphon.protocols.messages.request import ResolvedMessagesRequest, messages_engine_request
from antiphon.protocols.messages.session import MessagesSession
from antiphon.protocols.responses.session import ResponsesSession
from antiphon.runtime.balancing.build import build_engine
from antiphon.runtime.core.driver import Driver
from antiphon.runtime.core.metrics import Metrics
from antiphon.server.responses.event_stream import EventStream, run_stream
from antiphon.server.transport.connection import SCOPE_KEY
from antiphon.stores.memory import MemoryStore
from antiphon.wire.chat.stream import ChunkEncoder
from antiphon.wire.messages.events import MessageEncoder
from antiphon.wire.messages.request import decode_messages_request
from antiphon.wire.responses.profiles import ENCODERS
from support.protocols import chat_dialogues
from support.protocols.responses_dialogues import NOISE, order_for
from support.protocols.words import ID

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TURNS = 6
"""Of the event loop: enough for whatever a step has set going."""

WINDOW_BYTES = 1 << 10
"""As much as a slow client's connection buffers."""


class Upstream(asyncio.Transport):
    """The connection to a server that plays its part; what comes while it is not read waits."""

    def __init__(self, protocol):
        super().__init__()
        self.protocol = protocol
        self.log = []
        self.waiting = []
        self.is_reading = True
        self.is_over = False

    def write(self, data):
        self.log.append("asked")

    def is_closing(self):
        return self.is_over

    def pause_reading(self):
        self.log.append("pause")
        self.is_reading = False

    def resume_reading(self):
        self.log.append("resume")
        self.is_reading = True

    def receive(self, data):
        self.waiting.append(data)
        self.pump()

    def pump(self):
        while self.waiting and self.is_reading and not self.is_over:
            self.protocol.data_received(self.waiting.pop(0))

    def abort(self):
        self.log.append("abort")
        self.end(None)

    close = abort

    def end(self, error):
        if not self.is_over:
            self.is_over = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, error)


class Downstream:
    """The client's connection, as a stream's client sees it; it may read slowly, and go away."""

    def __init__(self, loop):
        self.loop = loop
        self.writes = []
        self.listener = None
        self.is_slow = self.is_gone = False
        self.buffered_bytes = 0
        self.transport = self
        self.flow = SimpleNamespace(write_paused=False)
        self.is_overfull = False

    def write(self, data):
        self.writes.append(bytes(data))
        if self.is_slow:
            self.buffered_bytes += len(data)
        if self.buffered_bytes > WINDOW_BYTES and not self.flow.write_paused:
            self.flow.write_paused = True
            self.listener.pause()

    def read_on(self):
        self.is_slow, self.buffered_bytes = False, 0
        if self.flow.write_paused:
            self.flow.write_paused = False
            self.listener.resume()

    def is_closing(self):
        return self.is_gone

    def drop(self, reason):
        self.writes.append(reason)

    def leave(self):
        self.is_gone = True


class Loop(asyncio.SelectorEventLoop):
    """Whose every connection is one to the upstream that plays, and whose time goes on when the test says so."""

    def __init__(self):
        self.now = 1000.0
        super().__init__()
        self.upstreams = []

    def time(self):
        return self.now

    async def create_connection(self, factory, *_where, **_how):
        upstream = Upstream(factory())
        self.upstreams.append(upstream)
        upstream.protocol.connection_made(upstream)
        return upstream, upstream.protocol


class Ordinary:
    """An engine without the fast path: who must see each event returns nothing."""

    def __init__(self, engine):
        self.engine = engine
        self.capabilities = engine.capabilities

    def open(self, settings, deliver):
        def take(events):
            deliver(events)

        return self.engine.open(settings, take)


class Watched:
    """An engine whose deliveries are counted."""

    def __init__(self, engine, *, fast):
        self.engine = engine
        self.capabilities = engine.capabilities
        self.delivered = 0
        self._is_fast = fast

    def open(self, settings, deliver):
        def take(events):
            self.delivered += len(events)
            route = deliver(events)
            return route if self._is_fast else None  # who must see each event returns nothing

        return self.engine.open(settings, take)


def _ids():
    numbers = itertools.count(1)
    return lambda prefix: f"{prefix}_{next(numbers)}"


class SlowStore(MemoryStore):
    """A store that takes a turn of the event loop, and remembers all that was to be stored."""

    def __init__(self):
        super().__init__()
        self.log = []

    async def put(self, record, turn=None):
        self.log.append(record)
        await asyncio.sleep(0)
        await super().put(record, turn)

    async def finish(self, record, turn=None):
        self.log.append(record)
        return await super().finish(record, turn)


def _responses(profile):
    def make(*, is_padded, is_stored, **_more):
        order = order_for(store=is_stored)
        return ResponsesSession(order, _ids(), NOISE if is_padded else None), order, ENCODERS[profile].stream(), {}

    return make


def _chat(*, is_padded, **_more):
    chat = chat_dialogues.chat(stream=True, n=1)
    encoder = ChunkEncoder("chatcmpl-1", 1000, "m", paddings=NOISE if is_padded else None)
    return ChatSession(chat, _ids()), chat, encoder, {"opening_events": ()}


def _relay(**_more):
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}).encode()
    relay = commands.Relay(id=ID, path="chat/completions", body=body, stream=True, model="a name")
    return RelaySession(relay, None), relay, RelayEncoder(), {"opening_events": ()}


def _messages(**_more):
    body = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    request = decode_messages_request(json.dumps(body).encode())
    resolved = ResolvedMessagesRequest(id=ID, model="m", request=request, capabilities=chat_dialogues.ALL, unsign=lambda _: None)
    session = MessagesSession(resolved, messages_engine_request(resolved).respond, _ids(), 25)
    return session, resolved, MessageEncoder(), {"opening_events": ()}


PROTOCOLS = {
    "openai": _responses("openai"),
    "open-responses": _responses("open-responses"),
    "eugpt": _responses("eugpt"),
    "chat": _chat,
    "relay": _relay,
    "messages": _messages,
}


class Played:
    """
    What became of a stream.

    Attributes:
        seen: all that must not depend on the way that its tokens took.
        delivered: how many events the engine delivered.
    """

    def __init__(self, seen, delivered):
        self.seen = seen
        self.delivered = delivered


def play(steps, protocol="openai", *, fast, options=None, is_balanced=False, is_padded=True, is_stored=False):
    """
    Play a stream.

    Args:
        steps: bytes that the upstream sends, or the name of a method of `Stage`.
        options: of the engine.
        is_balanced: whether the engine is in front of several upstreams.
    """
    with asyncio.Runner(loop_factory=Loop) as runner:
        stage = Stage(runner.get_loop(), protocol, options or {}, is_balanced, fast, is_padded=is_padded, is_stored=is_stored)
        return runner.run(stage.play(steps))


class Stage:
    """One stream and all that is around it."""

    def __init__(self, loop, protocol, options, is_balanced, is_fast, **fields):
        self.loop = loop
        base = {"base_url": "http://127.0.0.1:9/v1", "quirks": "generic", **options}
        if is_balanced:
            base["upstreams"] = [{"name": "a", "base_url": base.pop("base_url")}]
        context = BuildContext(weights_folder=Path(), base_folder=Path())
        self.engine = Watched(build_engine(ModelEntry(name="m", engine="chat", options=base), context, lambda name: None), fast=is_fast)
        self.session, self.opening, encoder, client = PROTOCOLS[protocol](**fields)
        self.store, self.metrics = SlowStore(), Metrics()
        self.downstream = Downstream(loop)
        self.asgi = []
        scope = {"extensions": {SCOPE_KEY: self.downstream}}
        self.client = EventStream(encoder, scope, self._send, 15.0, **client)
        self.driver = Driver(self.session, self.client, self.store, lambda: 1001.0, self.metrics)
        self.downstream.listener = self.driver

    async def _send(self, message):
        self.asgi.append((len(self.downstream.writes), message))

    async def play(self, steps):
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(run_stream(self.client, self._run))
            for _ in range(30):
                await asyncio.sleep(0)
            self.upstream = self.loop.upstreams[0]
            self.upstream.receive(HEAD)
            for step in steps:
                if isinstance(step, bytes):
                    self.upstream.receive(step)
                else:
                    await getattr(self, step)()
            await self.read_on()
            self.upstream.end(None)
            while not running.done():
                await self.wait()
        return Played(self._seen(), self.engine.delivered)

    async def _run(self, meanwhile):
        await self.driver.run(self.engine, ConversationSettings(model="m"), self.opening, meanwhile)

    async def turn(self):
        """Let everybody act."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self.upstream.pump()

    async def wait(self):
        """Let time pass: less than an upstream may be silent, more than a client."""
        self.loop.now += 25
        await self.turn()

    async def slow(self):
        """The client reads no more."""
        self.downstream.is_slow = True

    async def read_on(self):
        """The client reads again."""
        self.downstream.read_on()
        await self.turn()

    async def fall_behind(self):
        """The client's connection is full, and over its limit; what was read of the upstream before still comes."""
        self.downstream.flow.write_paused = self.downstream.is_overfull = True
        self.driver.pause()
        self.upstream.is_reading = True

    async def leave(self):
        """The client goes, which is known a moment later."""
        self.downstream.leave()
        asyncio.get_running_loop().call_soon(self.driver.hang_up)

    async def stop(self):
        """The server stops."""
        self.driver.shut_down(shutting_down())

    async def cut(self):
        """The upstream's connection ends."""
        self.upstream.end(ConnectionResetError())

    def _seen(self):
        client, session = self.client, self.session
        return {
            "writes": self.downstream.writes,
            "asgi": self.asgi,
            "upstream": self.upstream.log,
            "stored": self.store.log,
            "events": client.event_count,
            "error": repr(client.error),
            "last": type(client.last_event).__name__,
            "tokens": session.tokens,
            "outcome": getattr(session, "outcome", None),
            "connections": len(self.loop.upstreams),
        }
