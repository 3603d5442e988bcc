"""
Server-sent events over a connection: a session's client that writes to the transport itself.

The head is held until the engine has said something, for a second at most: a request that fails before its first word is then answered
with a plain HTTP error, which every SDK understands and retries, instead of a stream that dies.
"""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive, Scope, Send

from antiphon.errors import Fault
from antiphon.runtime.driver import Driver
from antiphon.server import connection
from antiphon.server.answers import OPENING
from antiphon.wire.profiles import Encoding

Running = Coroutine[Any, Any, None]
"""A driver's `run`, ready to be awaited."""

HOLD_S = 1.0

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """
    The client of a streamed response.

    Attributes:
        fault: why nothing was streamed, once `opened` returned with the head not sent.
        events: how many were sent.
        first_at: when the first came that says something, by the clock for durations; None before.
        last: the latest event; None before the first.
    """

    def __init__(self, encoding: Encoding, scope: Scope, send: Send, heartbeat_s: float) -> None:
        self.fault: Fault | None = None
        self.events = 0
        self.first_at: float | None = None
        self.last: Any = None
        self._encoding = encoding
        self._connection = connection.of(scope)
        self._send = send
        self._out = bytearray()
        self._worth_opening = asyncio.Event()
        self._heartbeat_s = heartbeat_s
        self._heartbeat: asyncio.TimerHandle | None = None
        self._is_open = False
        self._is_over = False
        self._is_quiet = True

    def send(self, event: Any) -> None:
        """Encode into the out-buffer."""
        self._encoding.frame_into(event, self._out)
        self.events += 1
        self.last = event
        if self.first_at is None and not isinstance(event, OPENING):
            self.first_at = time.perf_counter()
            self._worth_opening.set()

    def flush(self) -> None:
        """Hand the out-buffer to the transport, as one chunk."""
        if self._is_open and self._out:
            out, self._out = self._out, bytearray()
            self._write(bytes(out))

    def _write(self, out: bytes) -> None:
        if self._connection.transport.is_closing():
            return
        self._is_quiet = False
        if self._connection.flow.write_paused and self._connection.is_overfull:
            self._connection.drop("backlog")
        else:
            self._connection.transport.write(b"%x\r\n%b\r\n" % (len(out), out))

    def close(self, fault: Fault | None) -> None:
        """Nothing more comes."""
        self.fault = fault
        self._is_over = True
        self._worth_opening.set()

    async def open(self) -> bool:
        """Send the head as soon as it is due; whether it was sent, and not a fault to be told instead."""
        try:
            async with asyncio.timeout(HOLD_S):
                await self._worth_opening.wait()
        except TimeoutError:
            pass
        if self._is_over and self.fault is not None:
            return False
        await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        self._is_open = True
        self.flush()
        self._beat()
        return True

    def _beat(self) -> None:
        """Break a silence, so that nothing between here and the client takes the stream for dead."""
        if self._is_quiet:
            self._write(b": keep-alive\n\n")
        self._is_quiet = True
        self._heartbeat = asyncio.get_running_loop().call_later(self._heartbeat_s, self._beat)

    def rest(self) -> None:
        """No more heartbeats; whoever opened the stream says so at its end."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()

    async def end(self) -> None:
        """End the body, so that the connection can serve the next request."""
        self._out += self._encoding.end
        self.flush()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


async def stream(running: Running, driver: Driver, client: EventStream, scope: Scope, receive: Receive) -> bool:
    """
    Run a session whose client streams, until it is over or the client is gone.

    Returns:
        False when nothing was streamed and `client.fault` is to be told instead.
    """
    paced = connection.of(scope)
    paced.stream_to(driver)
    try:
        async with asyncio.TaskGroup() as tasks:
            opening = tasks.create_task(client.open())
            await watched(running, driver, receive)
        if opened := opening.result():
            await client.end()
        return opened
    finally:
        client.rest()
        paced.stream_to(None)


async def watched(running: Running, driver: Driver, receive: Receive) -> None:
    """Run a session, and tell it when its client has gone."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        driver.hang_up()

    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch())
        await running
        watching.cancel()
