"""
Server-sent events: a session's client that writes straight to the transport.

The response's head waits for the first output of the engine, for a second at most, or for ten once the engine was
refused and tries again. Where the answer may be stored, it waits for the first event however long that takes: there is
none until the store has taken it, and it may yet fail. A request that fails before the head gets a plain HTTP error, which every SDK
understands and retries, instead of a stream that breaks.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from starlette.types import Scope, Send

from antiphon.errors import ApiError
from antiphon.protocols.session import TextRun
from antiphon.server.responses.text_sink import EventParts, SseTextSink
from antiphon.server.transport import connection
from antiphon.wire.codec.stream_encoder import StreamEncoder
from antiphon.wire.responses.events import OPENING_EVENTS

MAX_HEAD_DELAY_S = 1.0
"""After this, the head is sent with the first event, even if the engine is still silent."""

MAX_HELD_HEAD_DELAY_S = 10.0
"""
The same from the first refusal on, if the engine tries again: the next answer is likely a refusal too, and only a
status tells that to an SDK. Three retries, each up to two seconds apart, and a second for each of four answers
(`engines.upstream.client`). Proxies wait for longer: Heroku's for 30 s, nginx for 60 s.
"""

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would buffer the stream
]


KEEP_ALIVE = b": keep-alive\n\n"
"""A comment, which clients skip."""

EventT = TypeVar("EventT")


class EventStream(Generic[EventT]):
    """
    The client of a streamed response.

    Args:
        headers: of the response, besides those of every stream; they are read when the head is sent.
        opening_events: types of events that come before any output.
        heartbeat: what is sent after a silence, so that proxies keep the connection.
        awaits_event: the head is not sent before the first event.

    Attributes:
        error: why it ended early.
        is_open: whether the head was sent; before that, `error` can still be an HTTP error.
        event_count: how many events were sent.
        first_token_at: when the first event with output came, by `time.perf_counter`.
        last_event: the latest event, but for text that took the fast path.
        is_quiet: whether nothing was sent since the last look at it.
        send: takes an event.
    """

    def __init__(
        self,
        encoding: StreamEncoder[EventT],
        scope: Scope,
        send: Send,
        heartbeat_s: float,
        headers: Mapping[str, str] = MappingProxyType({}),
        opening_events: tuple[type, ...] = OPENING_EVENTS,
        heartbeat: bytes = KEEP_ALIVE,
        *,
        awaits_event: bool = True,
    ) -> None:
        self.error: ApiError | None = None
        self.is_open = False
        self.event_count = 0
        self.first_token_at: float | None = None
        self.last_event: EventT | None = None
        self.is_quiet = False
        self._encoding = encoding
        self._encode_sse_into = encoding.encode_sse_into
        self._stream_end = encoding.stream_end
        self._opening_events = opening_events
        self._connection = connection.from_scope(scope)
        self._is_chunked = scope.get("http_version") != "1.0"
        self._send_asgi = send
        self._headers = headers
        self._out = bytearray()
        self._pending_events: list[EventT] = []
        # A plain list append, so that an event costs no call of ours; `flush` encodes them in one batch.
        self.send: Callable[[EventT], None] = self._pending_events.append
        self._loop = self._connection.loop  # to find the running loop is a system call in Python 3.11
        self._ready_to_open: asyncio.Future[None] = self._loop.create_future()
        self._head_delay_s = MAX_HEAD_DELAY_S
        self._head_timer: asyncio.TimerHandle | None = None
        self._is_head_due = False
        self._awaits_event = awaits_event
        self._heartbeat = heartbeat
        self._heartbeat_s = heartbeat_s
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._is_over = False

    def flush(self) -> None:
        """
        Encode the pending events and write them as one chunk. Those before the end of the body leave together with it.
        """
        out = self._out
        if self._pending_events:
            if self.first_token_at is None and not all(isinstance(event, self._opening_events) for event in self._pending_events):
                self.first_token_at = time.perf_counter()
                self._let_open()
            # The head was due before there was an event to go with it; this is the first.
            elif self._is_head_due:
                self._let_open()
            # What is held with the head is written with the first output: a role chunk depends on it.
            if self._ready_to_open.done():
                self._encode_pending()
        if not out or not self.is_open or self._is_over:
            return
        connection = self._connection
        if connection.transport.is_closing():
            out.clear()
            return
        self.is_quiet = False
        # The engine was paused when the transport filled up. One that sends on all the same must not fill the memory.
        if connection.flow.write_paused and connection.is_overfull:
            connection.drop("backlog")
        else:
            connection.transport.write(b"".join((b"%x\r\n" % len(out), out, b"\r\n")) if self._is_chunked else bytes(out))
        out.clear()

    def _encode_pending(self) -> None:
        if batch := self._pending_events:
            self._encode_sse_into(batch, self._out)
            self.event_count += len(batch)
            self.last_event = batch[-1]
            batch.clear()

    def open_text(self, run: TextRun[EventT]) -> SseTextSink | None:
        """Where to write text that follows; None while something else is to be sent first, or where no two events are alike."""
        connection = self._connection
        # Texts go straight to the transport, and would overtake what still waits here.
        is_busy = self._out or self._pending_events or connection.flow.write_paused or not self._is_chunked
        if not self.is_open or self._is_over or self.first_token_at is None or is_busy or not self._encoding.is_stateless:
            return None
        parts = EventParts(lambda text: self._encode(run.sample(text)), is_numbered=run.number is not None)
        return SseTextSink(parts, run.number or 0, run.texts, self, connection.transport) if parts.is_complete else None

    def _encode(self, event: EventT) -> bytes:
        out = bytearray()
        self._encode_sse_into((event,), out)
        return bytes(out)

    def close(self, error: ApiError | None) -> None:
        self.error = error
        self._is_over = True
        self._let_open()

    def _let_open(self) -> None:
        if not self._ready_to_open.done():
            self._ready_to_open.set_result(None)

    def hold_head(self) -> None:
        """The engine was refused, and tries again: wait longer for what comes of it before the head is sent."""
        # Once only: each further refusal would put the head off again.
        if self._head_delay_s == MAX_HEAD_DELAY_S:
            self._head_delay_s = MAX_HELD_HEAD_DELAY_S
            if self._head_timer is not None:
                self._set_head_timer()

    def _set_head_timer(self) -> None:
        self._cancel_head_timer()
        self._head_timer = self._loop.call_later(self._head_delay_s, self._on_head_due)

    def _on_head_due(self) -> None:
        if not self._awaits_event:
            self._let_open()
            return
        # A stored response has no event before the store has taken it; until then it may fail, with a status of its own.
        self._is_head_due = True
        self.flush()

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    async def open(self) -> None:
        """Send the head when the first output is there; send nothing if the session failed before."""
        self._set_head_timer()
        await self._ready_to_open
        self._cancel_head_timer()
        if self._is_over and self.error is not None:
            return
        headers = [*HEADERS, *((name.encode(), value.encode()) for name, value in self._headers.items())]
        await self._send_asgi({"type": "http.response.start", "status": 200, "headers": headers})
        # The connection holds the head until now, so that both leave in one write; a short response adds its end, too.
        self._encode_pending()
        if not self._is_over:
            out, self._out = self._out, bytearray()
            await self._send_asgi({"type": "http.response.body", "body": bytes(out), "more_body": True})
        self.is_open = True
        self.flush()
        self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        """Send something after a silence, so that proxies keep the connection."""
        if self.is_quiet and not self._is_over:
            self._out += self._heartbeat
            self.flush()
        self.is_quiet = True
        self._heartbeat_timer = self._loop.call_later(self._heartbeat_s, self._send_heartbeat)

    def stop_heartbeat(self) -> None:
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()

    async def end(self) -> None:
        """Send the rest and end the body; the connection stays usable."""
        await self._send_asgi({"type": "http.response.body", "body": bytes(self._out + self._stream_end), "more_body": False})


async def run_stream(client: EventStream[EventT], run: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]) -> bool:
    """
    Run a session with a streaming client until it is over.

    Args:
        run: the driver's, which awaits its argument once the session has begun.

    Returns:
        False where nothing was streamed, and `client.error` is to be sent as an HTTP error.
    """
    try:
        await run(client.open)
    finally:
        client.stop_heartbeat()
    if client.is_open:
        await client.end()
    return client.is_open
