"""
One HTTP/1.1 connection to an upstream: requests out, responses in, one at a time.

The parser's callbacks collect what one read brought; the receiver then gets it in one call, in the same call stack as
the socket's event. No task reads, so a token costs no `await`.

A read that brought much is passed on in slices, one in each turn of the event loop, and nothing more is read until then:
an upstream that sends faster than its events can be handled keeps nobody else waiting.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol, cast

import httptools

from antiphon.engines.upstream.fast_path import FastPath

HEAD_LIMIT_BYTES = 64 << 10
NO_RESPONSE = "closed the connection unanswered"
INCOMPLETE_RESPONSE = "closed the connection before its answer was complete"
SLICE_BYTES = 64 << 10
"""The most that is parsed in one turn of the event loop, where it has few lines."""

SLICE_LINES = 512
"""
The same in lines: an event of a stream has two, and costs some 10 us whatever its length. Without it, 256 KiB of empty
comments, which one read may bring, take 100 ms.
"""

UNSLICED_BYTES = 1 << 10
"""A read up to this size is parsed at once, without counting its lines."""

LINGER_S = 1.0
"""How long a released response may take to end, before its connection is closed instead of reused."""


class HttpResponseReceiver(Protocol):
    """Receives one response; called on the event loop."""

    def on_response_start(self, status: int, headers: Mapping[str, str]) -> None:
        """The head is here; header names are in lower case."""

    def on_response_body(self, pieces: list[bytes]) -> None:
        """More of the body: all that one read brought. The list is reused: don't keep it."""

    def open_fast_path(self, read: bytes, pieces: list[bytes]) -> FastPath | None:
        """What takes reads of nothing but text from now on, as `read` perhaps was; `pieces` are those of the body in it."""

    def on_response_end(self) -> None:
        """The body is complete."""

    def on_response_error(self, problem: str) -> None:
        """The response is cut off; `problem` completes the sentence `The model server …`."""


class HttpConnection(asyncio.Protocol):
    """
    A connection, idle or serving one exchange.

    Args:
        on_idle: called when a response has ended and the connection can take another request.
        on_close: called once it is closed.

    Attributes:
        has_served: whether it has carried a response before.
        loop: the event loop, so that nobody has to ask for it: that is a system call in Python 3.11.
    """

    def __init__(self, on_idle: Callable[["HttpConnection"], None], on_close: Callable[["HttpConnection"], None]) -> None:
        self.has_served = False
        self.loop = asyncio.get_running_loop()
        self._on_idle = on_idle
        self._on_close = on_close
        self._transport: asyncio.Transport | None = None
        self._receiver: HttpResponseReceiver | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._fast_path: FastPath | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._is_paused = False
        self._is_reading = True
        self._unread: deque[bytes] = deque()
        self._unread_start = 0  # in the first of them
        self._is_slice_scheduled = False
        self._loss: Exception | None = None
        self._is_lost = False
        self._is_concluded = False
        self._context = contextvars.Context()
        self._reset_response()

    def _reset_response(self) -> None:
        self._status = 0
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        # httptools calls `on_body` for each piece: the list's own method, so no Python function runs.
        self.on_body: Callable[[bytes], None] = self._pieces.append
        self._head_bytes = 0
        self._in_head = True
        self._is_complete = False
        self._can_keep_alive = False

    # For the owner

    @property
    def is_open(self) -> bool:
        """Whether a request can be written to it."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes, receiver: HttpResponseReceiver) -> None:
        """Send a request; its response goes to `receiver`."""
        assert self._transport is not None and self._parser is None
        if not self.is_open:  # closed since it was leased
            receiver.on_response_error(NO_RESPONSE)
            return
        self._reset_response()
        # What is logged of a response has the id of its request, not of the one for which the connection was opened.
        self._context = contextvars.copy_context()
        self._receiver = receiver
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request)

    def release(self) -> None:
        """Call the receiver no more. The connection is reused if the response ends within `LINGER_S`."""
        self._receiver = self._fast_path = None
        self.resume()
        if self._is_lost:
            self._drop_unread()
        elif self._parser is not None and not self._is_complete and self.is_open and self._linger_timer is None:
            self._linger_timer = self.loop.call_later(LINGER_S, self.abort)

    def abort(self) -> None:
        """Close at once: that is what makes an upstream stop generating."""
        self._receiver = self._fast_path = None
        self._drop_unread()
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Stop reading."""
        self._is_paused = True
        self._update_reading()

    def resume(self) -> None:
        """Read on."""
        self._is_paused = False
        self._update_reading()
        self._schedule_slice()

    def _update_reading(self) -> None:
        is_reading = not self._is_paused and not self._unread
        if is_reading is not self._is_reading and self.is_open:
            self._is_reading = is_reading
            transport = cast(asyncio.Transport, self._transport)
            (transport.resume_reading if is_reading else transport.pause_reading)()

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if (fast_path := self._fast_path) is not None:
            if fast_path.take(data):
                return
            self._fast_path = None  # it relies on what came before
        self._context.run(self._receive, data)

    def _receive(self, data: bytes) -> None:
        if len(data) <= UNSLICED_BYTES and not self._unread:
            self._parse(data)
            return
        self._unread.append(data)
        if not self._is_slice_scheduled:
            self._parse_slice()

    def _parse_slice(self) -> None:
        """Parse as much as one turn of the event loop allows; the rest follows in the next ones."""
        self._is_slice_scheduled = False
        if self._is_paused or not self._unread:
            return
        data, start = self._unread[0], self._unread_start
        end = start + _slice_size(data, start)
        if end >= len(data):
            self._unread.popleft()
            end, piece = 0, data[start:]
        else:
            piece = data[start:end]
        self._unread_start = end
        self._parse(piece)
        self._schedule_slice()
        self._update_reading()
        if self._is_lost and not self._unread:
            self._conclude()

    def _schedule_slice(self) -> None:
        if self._unread and not self._is_slice_scheduled:
            self._is_slice_scheduled = True
            self.loop.call_soon(self._parse_slice, context=self._context)

    def _drop_unread(self) -> None:
        self._unread.clear()
        self._unread_start = 0
        if self._is_lost:
            self._conclude()

    def _parse(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:  # bytes without a request
            self.abort()
            return
        is_http = True
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            is_http = self._can_keep_alive = False  # what came before it still counts
        if self._in_head and not self._read_head(len(data)):
            return
        if pieces := self._pieces:
            if self._receiver is not None:
                self._receiver.on_response_body(pieces)
                if not self._unread and self._receiver is not None:
                    self._fast_path = self._receiver.open_fast_path(data, pieces)
            pieces.clear()
        if self._is_complete:
            self._finish()
        elif not is_http:
            self._fail("did not answer in HTTP/1.1")

    def _read_head(self, size_bytes: int) -> bool:
        """Pass on the head if it is complete; returns whether to go on."""
        self._head_bytes += size_bytes
        if self._status:
            self._in_head = False
            if self._receiver is not None:
                self._receiver.on_response_start(self._status, self._headers)
        elif self._head_bytes > HEAD_LIMIT_BYTES:
            self._fail(f"answered with a head larger than {HEAD_LIMIT_BYTES} bytes")
            return False
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost, self._loss = True, exc
        if not self._unread or self._receiver is None:
            self._context.run(self._drop_unread)

    def _conclude(self) -> None:
        """The connection is lost, and all that came was passed on."""
        if self._is_concluded:
            return
        self._is_concluded = True
        self._cancel_linger()
        receiver, self._receiver = self._receiver, None
        if receiver is not None and self._loss is None and not self._in_head and self._ends_with_connection():
            receiver.on_response_end()
        elif receiver is not None:
            receiver.on_response_error(NO_RESPONSE if self._in_head else INCOMPLETE_RESPONSE)
        self._parser = None
        self._on_close(self)

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        if self._is_complete:  # a response without a request; raising ends the parsing
            raise ValueError("a second response")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._status:  # trailers, behind the body, are ignored
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        # RFC 9110 15.2: interim responses, such as 103, precede the final one.
        if status < 200:
            self._headers = {}
        else:
            self._status = status

    def on_message_complete(self) -> None:
        self._is_complete = self._status > 0  # false for an interim response
        assert self._parser is not None
        # The parser knows it only now: after a message it answers for the next one.
        self._can_keep_alive = self._parser.should_keep_alive()

    # How a response ends

    def _ends_with_connection(self) -> bool:
        # RFC 9112 6.3, rule 8: without either header, the body ends when the connection closes.
        return "content-length" not in self._headers and "transfer-encoding" not in self._headers

    def _finish(self) -> None:
        self._cancel_linger()
        receiver, self._receiver = self._receiver, None
        self._parser = self._fast_path = None
        self.has_served = True
        if self._can_keep_alive and self.is_open and not self._unread:  # no bytes without a request
            self.resume()
            self._on_idle(self)
        else:
            self.abort()
        if receiver is not None:
            receiver.on_response_end()

    def _fail(self, problem: str) -> None:
        receiver = self._receiver
        self.abort()
        if receiver is not None:
            receiver.on_response_error(problem)

    def _cancel_linger(self) -> None:
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None


def _slice_size(data: bytes, start: int) -> int:
    """How much of `data` from `start` on is parsed in one turn of the event loop."""
    size = min(len(data) - start, SLICE_BYTES)
    line_count = data.count(b"\n", start, start + size)
    return size if line_count <= SLICE_LINES else max(size * SLICE_LINES // line_count, 1)
