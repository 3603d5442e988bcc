"""Upstream servers on real sockets, whose behaviour and faults a test chooses, and an engine in front of them."""

import asyncio
import contextlib
import json
import ssl
from pathlib import Path

import uvloop

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.engine import BuildContext
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.chat.engine import build

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def event(text=None, finish=None, **more):
    delta = {} if text is None else {"content": text}
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}).encode() + b"\n\n"


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def streamed(text):
    """A whole streamed answer that leaves the connection open."""
    return STREAM_HEAD + chunk(event(text)) + chunk(event(finish="stop") + DONE) + b"0\r\n\r\n"


def whole(status, body, **headers):
    """An answer that is one JSON body."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"content-type": "application/json", "content-length": len(text)} | {
        name.replace("_", "-"): told for name, told in headers.items()
    }
    return f"HTTP/1.1 {status}\r\n".encode() + b"".join(f"{name}: {told}\r\n".encode() for name, told in lines.items()) + b"\r\n" + text


def ask(id="resp_1", text="Hi", **more):
    return commands.Respond(id=id, history=(history.Message("user", (history.TextPart(text),)),), **more)


class Server:
    """
    A server that answers its n-th request with its n-th play, and all further ones with the last.

    A play is bytes, or a function that gets the writer. `CUT` closes the connection.

    Attributes:
        asked: all requests, each as its head and its JSON.
        connections: how many there were.
        left: how many the other side closed or broke.
        serving: a task for each open connection.
    """

    def __init__(self, *plays, tls=None):
        self.plays = plays
        self.asked = []
        self.connections = 0
        self.left = 0
        self.changed = asyncio.Event()
        self._tls = tls
        self._is_over = False
        self.serving = set()

    @contextlib.asynccontextmanager
    async def open(self):
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls) as server:
            self.port = server.sockets[0].getsockname()[1]
            try:
                yield self
            finally:
                self._is_over = True
                for _ in range(10):
                    await asyncio.sleep(0)  # asyncio leaves a connection open that it accepted but not yet attached to the server
                server.close()
                for task in self.serving:
                    task.cancel()
                if self.serving:
                    await asyncio.wait(self.serving)

    async def until(self, condition):
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def _serve(self, reader, writer):
        if self._is_over:  # it was accepted in the turn of the loop that closed the server
            writer.transport.abort()
            return
        task = asyncio.current_task()
        self.serving.add(task)
        self.connections += 1
        try:
            await self._answer_all(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left += 1
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            self.serving.discard(task)
            self.changed.set()
            writer.transport.abort()

    async def _answer_all(self, reader, writer):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
            body = await reader.readexactly(length)
            play = self.plays[min(len(self.asked), len(self.plays) - 1)]
            self.asked.append((head.decode(), json.loads(body) if body else None))
            self.changed.set()
            if callable(play):
                await play(writer)
            elif play is CUT:
                return
            else:
                writer.write(play)
                await writer.drain()


def served(certificates):
    """The TLS context of a server with these certificates."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    return context


CUT = object()


def closing(data):
    """A play that sends this and closes the connection."""

    async def play(writer):
        writer.write(data)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        raise asyncio.IncompleteReadError(b"", None)

    return play


def resetting(data):
    """A play that sends this and breaks the connection."""

    async def play(writer):
        writer.write(data)
        await writer.drain()
        writer.transport.abort()
        raise ConnectionResetError

    return play


class Heard:
    """The events of an engine."""

    def __init__(self):
        self.words = []
        self._changed = asyncio.Event()

    def __call__(self, words):
        self.words.extend(words)
        self._changed.set()

    async def until(self, condition):
        while not condition(self.words):
            self._changed.clear()
            await self._changed.wait()

    def ends(self, id):
        return [word for word in self.words if word.id == id and isinstance(word, events.ResponseEnded | events.ResponseFailed)]

    async def end_of(self, id="resp_1"):
        await self.until(lambda _words: self.ends(id))
        assert len(self.ends(id)) == 1
        return self.ends(id)[0]

    def text(self, id="resp_1"):
        return "".join(word.text for word in self.words if word.id == id and isinstance(word, events.TextDelta))


class Watched:
    """An observer that remembers."""

    def __init__(self):
        self.states, self.failures, self.mends = [], [], []

    def on_upstream_state(self, name, state):
        self.states.append(state)

    def on_upstream_error(self, name, reason):
        self.failures.append(reason)

    def on_upstream_mend(self, name, kind):
        self.mends.append(kind)


def engine_for(base_url, place=None, **options):
    settings = {"base_url": base_url, "quirks": "generic", "retries": 0, **options}
    return build("m", settings, place or BuildContext(weights_folder=Path(), base_folder=Path()))


@contextlib.asynccontextmanager
async def before(server, place=None, *, scheme="http", host="127.0.0.1", **options):
    """A conversation with an engine in front of the server; yields it and its events."""
    engine = engine_for(f"{scheme}://{host}:{server.port}/v1", place, **options)
    await engine.start()
    heard = Heard()
    try:
        async with engine.open(ConversationSettings(model="m1"), heard) as conversation:
            yield conversation, heard
    finally:
        await engine.stop()


def run(scenario):
    """The result of a coroutine, on uvloop as in the server."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(scenario)


def playing(*plays, place=None, asks=("resp_1",), tls=None, **options):
    """The events of requests that a server with these plays gets one after the other; and the server."""

    async def play():
        async with asyncio.timeout(20), Server(*plays, tls=tls).open() as server, before(server, place, **options) as (conversation, heard):
            for id in asks:
                conversation.send(ask(id) if isinstance(id, str) else id)
                await heard.end_of(id if isinstance(id, str) else id.id)
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left
        return heard, server

    return run(play())


HALF = STREAM_HEAD + chunk(event("half"))
BUSY = whole("429 Too Many Requests", {"error": {"message": "slow down"}}, retry_after=1)
DOWN = whole("503 Service Unavailable", {"error": {"message": "down"}})


def watched(**more):
    """An observer, and a build context with it."""
    watcher = Watched()
    return watcher, BuildContext(weights_folder=Path(), base_folder=Path(), observer=watcher, **more)


def last_of(*plays, **options):
    """The last event from a server with these plays; and the server."""
    heard, server = playing(*plays, **options)
    return heard.words[-1], server
