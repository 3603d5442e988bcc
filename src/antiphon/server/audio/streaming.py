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

from antiphon.errors import ApiError
from antiphon.runtime.core.sessions import LiveSessions
from antiphon.server.transport import connection
from antiphon.wire.codec.types import Tagged, encode

EVENT_STREAM_TYPE = "text/event-stream; charset=utf-8"


class CancellableRequest:
    """
    Work for a client that may leave, in a server that may stop.

    Attributes:
        fault: why the server ended it; None where it did not.
    """

    def __init__(self) -> None:
        self.error: ApiError | None = None
        self._task: asyncio.Task[None] | None = None
        self._client_gone = asyncio.Event()

    async def run(self, scope: Scope, live_sessions: LiveSessions, work: Callable[[], Awaitable[None]]) -> None:
        """
        Do the work, until it is done or nobody waits for it.

        Raises:
            ApiError: the work's, or that the server stops.
        """

        async def held() -> None:
            await work()

        async with asyncio.TaskGroup() as tasks:
            self._task = tasks.create_task(held())
            line = connection.from_scope(scope)
            with line.notify(self), live_sessions.track(self):
                await asyncio.wait([self._task])
                if self.error is not None and line.cycle.response_started:
                    line.drop("broken_off")
                    await self._client_gone.wait()
        if self.error is not None and not self._client_gone.is_set():
            raise self.error

    def shut_down(self, fault: ApiError) -> None:
        """The server stops."""
        self.error = fault
        self._cancel()

    def hang_up(self) -> None:
        """The client is gone."""
        self._client_gone.set()
        self._cancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def pause(self) -> None:
        """The client is behind; whoever sends to it waits of itself."""

    def resume(self) -> None:
        """The client has caught up."""


class HttpResponseWriter:
    """
    The way to one client.

    Args:
        media_type: of the answer; with `EVENTS` it can tell of a failure.
    """

    def __init__(self, scope: Scope, send: Send, media_type: str) -> None:
        self._connection = connection.from_scope(scope)
        self._send = send
        self._media_type = media_type
        self._has_begun = False

    async def send_event(self, event: Tagged) -> None:
        """Send an event."""
        await self.send_chunk(_encode_sse(event.type, encode(event)))

    async def send_chunk(self, chunk: bytes) -> None:
        """Send more of the answer; its head goes before the first."""
        if not chunk:
            return
        await self._send_head()
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def end(self) -> None:
        """The answer is whole."""
        await self._send_head()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, fault: ApiError) -> None:
        """
        Tell of a failure.

        Raises:
            ApiError: that one, where nothing was sent yet.
        """
        if not self._has_begun:
            raise fault
        if self._media_type == EVENT_STREAM_TYPE:
            await self.send_chunk(_encode_sse("error", msgspec.json.encode(fault.body())))
            await self.end()
            return
        self._connection.drop("broken_off")
        await asyncio.Event().wait()  # until that is known, which ends this

    async def _send_head(self) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        headers = [(b"content-type", self._media_type.encode()), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})


def _encode_sse(event_type: str, json: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event_type.encode(), json)


async def write_all(writer: HttpResponseWriter, items: AsyncIterator[Any]) -> None:
    """
    Send all of an answer: bytes as they are, events framed.

    Raises:
        ApiError: it failed before anything was sent.
    """
    try:
        async with aclosing(items) as each:  # type: ignore[type-var]  # a generator's
            async for piece in each:
                await (writer.send_chunk(piece) if isinstance(piece, bytes) else writer.send_event(piece))
    except ApiError as fault:
        await writer.fail(fault)
    else:
        await writer.end()
