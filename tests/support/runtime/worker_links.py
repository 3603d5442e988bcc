"""A worker at the other end of a link, in the same loop; and either end of a link alone."""

import asyncio
import contextlib
import socket

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.remote.engine import RemoteEngine
from antiphon.framing import FrameDecoder
from antiphon.link import StreamLinkTransport
from antiphon.runtime.workers.server import ConversationServer
from antiphon.wire.internal.worker_link import VERSION, Hello, from_worker_decoder, to_worker_decoder

SETTINGS = ConversationSettings(model="m")


def ask(id, text="one two three", **more):
    return commands.Respond(id=id, history=(history.Message("user", (history.TextPart(text),)),), **more)


class Heard:
    """Collects an engine's events, and can wait for some."""

    def __init__(self):
        self.words = []
        self._changed = asyncio.Event()

    def __call__(self, words):
        self.words.extend(words)
        self._changed.set()

    def of(self, *kinds):
        return [word for word in self.words if isinstance(word, kinds)]

    async def until(self, condition):
        async with asyncio.timeout(30):
            while not condition(self.words):
                self._changed.clear()
                await self._changed.wait()

    async def end_of(self, id):
        def ends(words):
            return [word for word in words if word.id == id and isinstance(word, events.ResponseEnded | events.ResponseFailed)]

        await self.until(ends)
        return ends(self.words)[0]


async def plugged(sock, end):
    sock.setblocking(False)
    await asyncio.get_running_loop().create_connection(lambda: StreamLinkTransport(end), sock=sock)


@contextlib.asynccontextmanager
async def linked(engine, slots=None, **remotely):
    """The started engine as the server has it, and the side that serves it."""
    ours, theirs = socket.socketpair()
    await engine.start()
    remote = RemoteEngine(**remotely)
    try:
        async with ConversationServer(slots) as serving:
            await plugged(theirs, serving.endpoint)
            await plugged(ours, remote.endpoint)
            serving.serve(engine)
            serving.endpoint.send(Hello(version=VERSION, abilities=engine.capabilities, slots=slots))
            await remote.start()
            yield remote, serving
            await remote.stop()
    finally:
        await engine.stop()


class Bare:
    """The bare other end of a link: the frames that it gets."""

    def __init__(self, decoder):
        self._frames = FrameDecoder(decoder)
        self._reader = self._writer = None
        self.came = []

    async def open(self, sock):
        self._reader, self._writer = await asyncio.open_connection(sock=sock)

    async def frame(self, kind):
        """The next frame of a kind."""
        async with asyncio.timeout(10):
            while True:
                for frame in self.came:
                    if isinstance(frame, kind):
                        self.came.remove(frame)
                        return frame
                self.came += self._frames.feed(await self._reader.read(1 << 16))

    def send(self, piece):
        self._writer.write(piece)

    async def end(self):
        """Return when the other end has closed."""
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                while await self._reader.read(1 << 16):
                    pass

    async def close(self):
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


@contextlib.asynccontextmanager
async def bare_worker(**remotely):
    """A server's end, and the worker's bare one."""
    ours, theirs = socket.socketpair()
    remote, bare = RemoteEngine(**remotely), Bare(to_worker_decoder)
    await plugged(ours, remote.endpoint)
    await bare.open(theirs)
    try:
        yield remote, bare
    finally:
        await remote.stop()
        await bare.close()


@contextlib.asynccontextmanager
async def bare_server(engine, **serving_with):
    """A worker's end, and the server's bare one."""
    ours, theirs = socket.socketpair()
    bare = Bare(from_worker_decoder)
    async with ConversationServer(**serving_with) as serving:
        await plugged(theirs, serving.endpoint)
        await bare.open(ours)
        serving.serve(engine)
        try:
            yield serving, bare
        finally:
            await bare.close()
