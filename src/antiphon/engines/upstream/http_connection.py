"""
One HTTP/1.1 connection to an upstream: requests out, answers in, one at a time.

The parser's callbacks collect what one read brought; the receiver then gets it in one call, in the same call stack as the socket's
event. No task reads, so a token costs no `await`.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol, cast

import httptools

HEAD_LIMIT_BYTES = 64 << 10
NO_RESPONSE = "closed the connection unanswered"
INCOMPLETE_RESPONSE = "closed the connection before its answer was whole"
LINGER_S = 1.0
"""How long an answer that is over may take to end its message, before its connection is given up instead of reused."""


class HttpResponseReceiver(Protocol):
    """Takes one answer; called on the event loop."""

    def on_response_start(self, status: int, headers: Mapping[str, str]) -> None:
        """The head is here; header names are in lower case."""

    def on_response_body(self, pieces: list[bytes]) -> None:
        """More of the body: all that one read brought. The list is used again."""

    def on_response_end(self) -> None:
        """The body is whole."""

    def on_response_error(self, problem: str) -> None:
        """Nothing more comes, though more should have; `why` completes the sentence `The model server …`."""


class HttpConnection(asyncio.Protocol):
    """
    A connection, idle or serving one exchange.

    Args:
        freed: called when an answer has ended and the connection can take another request.
        parted: called once it is of no more use.

    Attributes:
        has_served: whether it has answered before.
    """

    def __init__(self, on_idle: Callable[["HttpConnection"], None], on_close: Callable[["HttpConnection"], None]) -> None:
        self.has_served = False
        self._on_idle = on_idle
        self._on_close = on_close
        self._transport: asyncio.Transport | None = None
        self._receiver: HttpResponseReceiver | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._is_paused = False
        self._reset_response()

    def _reset_response(self) -> None:
        self._status = 0
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        # A piece of the body: only noted, without a call of ours.
        self.on_body: Callable[[bytes], None] = self._pieces.append
        self._head_bytes = 0
        self._in_head = True
        self._is_complete = False
        self._can_keep_alive = False

    # What its owner does

    @property
    def is_open(self) -> bool:
        """Whether a request could be written to it."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes, receiver: HttpResponseReceiver) -> None:
        """Send a request; its answer goes to `receiver`."""
        assert self._transport is not None and self._parser is None
        if not self.is_open:  # since it was leased
            receiver.on_response_error(NO_RESPONSE)
            return
        self._reset_response()
        self._receiver = receiver
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request)

    def release(self) -> None:
        """Tell the receiver nothing more. The connection is kept if the answer's message ends soon."""
        self._receiver = None
        self.resume()
        if self._parser is not None and self.is_open and self._linger_timer is None:
            self._linger_timer = asyncio.get_running_loop().call_later(LINGER_S, self.abort)

    def abort(self) -> None:
        """Give it up at once, which is what stops an upstream that is still generating."""
        self._receiver = None
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Stop reading."""
        if self.is_open and not self._is_paused:
            self._is_paused = True
            cast(asyncio.Transport, self._transport).pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._is_paused:
            self._is_paused = False
            if self.is_open:
                cast(asyncio.Transport, self._transport).resume_reading()

    # What the event loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Bytes came: parse them, then hand on all that they brought."""
        parser = self._parser
        if parser is None:  # nothing was asked
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
            pieces.clear()
        if self._is_complete:
            self._finish()
        elif not is_http:
            self._fail("did not answer in HTTP/1.1")

    def _read_head(self, size_bytes: int) -> bool:
        """Pass on the head if it has come; whether to go on."""
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
        """The connection is gone."""
        self._cancel_linger()
        receiver, self._receiver = self._receiver, None
        if receiver is not None and exc is None and not self._in_head and self._ends_with_connection():
            receiver.on_response_end()
        elif receiver is not None:
            receiver.on_response_error(NO_RESPONSE if self._in_head else INCOMPLETE_RESPONSE)
        self._parser = None
        self._on_close(self)

    # What the parser says

    def on_message_begin(self) -> None:
        """An answer begins; a second one was not asked for, and what is raised here ends the parsing."""
        if self._is_complete:
            raise ValueError("a second answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header is whole; one behind the body says nothing that is needed."""
        if not self._status:
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head is whole; one of an interim answer, such as 103, goes before another."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < 200:
            self._headers = {}
        else:
            self._status = status

    def on_message_complete(self) -> None:
        """The body is whole, unless only an interim head was."""
        self._is_complete = self._status > 0
        assert self._parser is not None
        # The parser knows it only now: behind a message it answers for the next one.
        self._can_keep_alive = self._parser.should_keep_alive()

    # How an answer ends

    def _ends_with_connection(self) -> bool:
        return "content-length" not in self._headers and "transfer-encoding" not in self._headers

    def _finish(self) -> None:
        self._cancel_linger()
        receiver, self._receiver = self._receiver, None
        self._parser = None
        self.has_served = True
        if self._can_keep_alive and self.is_open:
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
