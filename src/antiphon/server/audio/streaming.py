"""
An answer that is made while it is sent, piece by piece, through the server underneath: it waits where the client does not read.

Whatever fails before the first piece is a plain HTTP error. After it, an answer of bytes is broken off, as one that ends would pass for
whole; a stream of events says what failed.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.types import Scope, Send

from antiphon.errors import Fault
from antiphon.runtime.core.sessions import Live
from antiphon.server.transport import connection
from antiphon.wire.codec.types import Tagged, encode

EVENTS = "text/event-stream; charset=utf-8"


class Underway:
    """
    Work for a client that may leave, in a server that may stop.

    Attributes:
        fault: why the server ended it; None where it did not.
    """

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self._task: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()

    async def run(self, scope: Scope, live: Live, work: Callable[[], Awaitable[None]]) -> None:
        """
        Do the work, until it is done or nobody waits for it.

        Raises:
            Fault: the work's, or that the server stops.
        """

        async def held() -> None:
            await work()

        async with asyncio.TaskGroup() as tasks:
            self._task = tasks.create_task(held())
            line = connection.of(scope)
            with line.telling(self), live.during(self):
                await asyncio.wait([self._task])
                if self.fault is not None and line.cycle.response_started:
                    line.drop("broken_off")
                    await self._gone.wait()
        if self.fault is not None and not self._gone.is_set():
            raise self.fault

    def halt(self, fault: Fault) -> None:
        """The server stops."""
        self.fault = fault
        self._stop()

    def hang_up(self) -> None:
        """The client is gone."""
        self._gone.set()
        self._stop()

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def pause(self) -> None:
        """The client is behind; whoever sends to it waits of itself."""

    def resume(self) -> None:
        """The client has caught up."""


class Outlet:
    """
    The way to one client.

    Args:
        media_type: of the answer; with `EVENTS` it can tell of a failure.
    """

    def __init__(self, scope: Scope, send: Send, media_type: str) -> None:
        self._connection = connection.of(scope)
        self._send = send
        self._media_type = media_type
        self._has_begun = False

    async def event(self, event: Tagged) -> None:
        """Send an event."""
        await self.piece(_framed(event.type, encode(event)))

    async def piece(self, piece: bytes) -> None:
        """Send more of the answer; its head goes before the first."""
        if not piece:
            return
        await self._begin()
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self) -> None:
        """The answer is whole."""
        await self._begin()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, fault: Fault) -> None:
        """
        Tell of a failure.

        Raises:
            Fault: that one, where nothing was sent yet.
        """
        if not self._has_begun:
            raise fault
        if self._media_type == EVENTS:
            await self.piece(_framed("error", msgspec.json.encode(fault.body())))
            await self.end()
            return
        self._connection.drop("broken_off")
        await asyncio.Event().wait()  # until that is known, which ends this

    async def _begin(self) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        headers = [(b"content-type", self._media_type.encode()), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})


def _framed(kind: str, json: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), json)


async def sent(outlet: Outlet, pieces: AsyncIterator[Any]) -> None:
    """
    Send all of an answer: bytes as they are, events framed.

    Raises:
        Fault: it failed before anything was sent.
    """
    try:
        async with aclosing(pieces) as each:  # type: ignore[type-var]  # a generator's
            async for piece in each:
                await (outlet.piece(piece) if isinstance(piece, bytes) else outlet.event(piece))
    except Fault as fault:
        await outlet.fail(fault)
    else:
        await outlet.end()
