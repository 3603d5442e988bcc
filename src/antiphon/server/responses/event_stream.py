"""
Server-sent events over a connection: a session's client that writes to the transport itself.

The head is held until the engine has said something, for a second at most: a request that fails before its first word is then answered
with a plain HTTP error, which every SDK understands and retries, instead of a stream that dies.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

from starlette.types import Scope, Send

from antiphon.errors import ApiError
from antiphon.server.responses.metrics import OPENING_EVENTS
from antiphon.server.transport import connection
from antiphon.wire.responses.profiles import EventEncoder

MAX_HEAD_DELAY_S = 1.0

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """
    The client of a streamed response.

    Args:
        headers: of the answer, besides those of every stream.

    Attributes:
        fault: why it ended, where that was not the plain end.
        is_open: whether the head has left; else `fault` can still be told as an error over HTTP.
        events: how many were sent.
        first_at: when the first came that says something, by the clock for durations; None before.
        last: the latest event; None before the first.
        send: takes an event.
    """

    def __init__(
        self, encoding: EventEncoder, scope: Scope, send: Send, heartbeat_s: float, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.error: ApiError | None = None
        self.is_open = False
        self.event_count = 0
        self.first_token_at: float | None = None
        self.last_event: Any = None
        self._encode_sse_into = encoding.encode_sse_into
        self._stream_end = encoding.stream_end
        self._connection = connection.from_scope(scope)
        self._send_asgi = send
        self._headers = [*HEADERS, *((name.encode(), value.encode()) for name, value in headers.items())]
        self._out = bytearray()
        self._pending_events: list[Any] = []
        # Only noted, so that a token's event costs no call of its own: what came together is encoded together.
        self.send: Callable[[Any], None] = self._pending_events.append
        self._ready_to_open = asyncio.Event()
        self._heartbeat_s = heartbeat_s
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._is_over = False
        self._is_quiet = False

    def flush(self) -> None:
        """Encode what was sent, and hand it to the transport as one chunk; what comes last leaves together with the end."""
        said, out = self._pending_events, self._out
        if said:
            self._encode_sse_into(said, out)
            self.event_count += len(said)
            self.last_event = said[-1]
            if self.first_token_at is None and not all(isinstance(event, OPENING_EVENTS) for event in said):
                self.first_token_at = time.perf_counter()
                self._ready_to_open.set()
            said.clear()
        if not out or not self.is_open or self._is_over:
            return
        connection = self._connection
        if connection.transport.is_closing():
            out.clear()
            return
        self._is_quiet = False
        if connection.flow.write_paused and connection.is_overfull:
            connection.drop("backlog")
        else:
            connection.transport.write(b"".join((b"%x\r\n" % len(out), out, b"\r\n")))
        out.clear()

    def close(self, fault: ApiError | None) -> None:
        """Nothing more comes."""
        self.error = fault
        self._is_over = True
        self._ready_to_open.set()

    async def open(self) -> None:
        """Send the head as soon as it is due, and not at all if there is a fault to be told instead."""
        hold = asyncio.get_running_loop().call_later(MAX_HEAD_DELAY_S, self._ready_to_open.set)
        await self._ready_to_open.wait()
        hold.cancel()
        if self._is_over and self.error is not None:
            return
        await self._send_asgi({"type": "http.response.start", "status": 200, "headers": self._headers})
        if not self._is_over:
            out, self._out = self._out, bytearray()
            await self._send_asgi({"type": "http.response.body", "body": bytes(out), "more_body": True})
        self.is_open = True
        self.flush()
        self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        """Break a silence, so that nothing between here and the client takes the stream for dead."""
        if self._is_quiet and not self._is_over:
            self._out += b": keep-alive\n\n"
            self.flush()
        self._is_quiet = True
        self._heartbeat_timer = asyncio.get_running_loop().call_later(self._heartbeat_s, self._send_heartbeat)

    def stop_heartbeat(self) -> None:
        """No more heartbeats; whoever opened the stream says so at its end."""
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()

    async def end(self) -> None:
        """Send what is left, and end the body, so that the connection can serve the next request."""
        await self._send_asgi({"type": "http.response.body", "body": bytes(self._out + self._stream_end), "more_body": False})


async def run_stream(client: EventStream, run: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]) -> bool:
    """
    Run a session whose client streams, until it is over or the client is gone.

    Args:
        run: a driver's, which awaits what it is given once the session has begun.

    Returns:
        False when nothing was streamed and `client.fault` is to be told instead.
    """
    try:
        await run(client.open)
    finally:
        client.stop_heartbeat()
    if client.is_open:
        await client.end()
    return client.is_open
