"""One HTTP request and its response: how the body is read, what counts as failure, and how long each part may take."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

from antiphon.deadline import Deadline
from antiphon.engines.upstream.fast_path import FastPath, ReadAccount
from antiphon.engines.upstream.faults import error_from_response, retry_after_s
from antiphon.engines.upstream.http_connection import HttpConnection
from antiphon.errors import ApiError, UpstreamError
from antiphon.wire.codec.sse import EventTooLarge, SseParser

ERROR_LIMIT_BYTES = 64 << 10
"""How much of an error is read; what matters comes first."""

JSON_LIMIT_BYTES = 16 << 20
"""The largest response that is one JSON body; some servers send one though a stream was requested."""

DEFAULT_MAX_RESPONSE_BYTES = 32 << 20
DEFAULT_MAX_RESPONSE_EVENTS = 500_000
"""
More than any model's answer: with 250 bytes for an event, which is a token, 32 MiB are 134,000 tokens. It bounds what
the session keeps of an answer to show it whole at its end, which takes up to fourteen times as much.
"""

OVERRUN_BYTES = 16 << 20
"""
What may still come of a response on a WebSocket after its server was told to stop: sockets hold some MiB on the way.
"""

GENERIC_MEDIA_TYPES = frozenset({"text/plain", "application/octet-stream"})
"""Defaults of web frameworks, also for streams of events whose server sets no type."""

SSE_PREFIXES = (b"data:", b"event:", b"id:", b"retry:", b":", b"\xef\xbb\xbf", b"\n", b"\r\n")
"""What a stream of server-sent events can begin with."""


class ExchangeListener(Protocol):
    """Receives the events of a response."""

    def on_events(self, events: list[bytes]) -> bool:
        """
        The data of the events of one read. Returns whether the response is over.

        Raises:
            ApiError: they can't be read, or say that the response failed.
        """

    def on_stream_end(self) -> bool:
        """The stream ended. Returns whether the response is complete."""

    def on_limit(self) -> bool:
        """
        The response is as long as it may get, and is not read on. Returns whether what came of it can stand as an
        incomplete one.
        """

    def open_fast_path(self, read: bytes, pieces: list[bytes], account: ReadAccount) -> FastPath | None:
        """
        What takes reads of nothing but text from now on; called after the events of a read were passed on.

        Args:
            read: as it came.
            pieces: the body in it.
            account: to be kept of what is taken.
        """


class ResponseLimits(Struct, frozen=True):
    """
    How much one response may come to.

    Attributes:
        max_bytes: as they came: with the names of fields, comments and empty lines.
        max_events: of a stream, or messages of a WebSocket.
    """

    max_bytes: int = DEFAULT_MAX_RESPONSE_BYTES
    max_events: int = DEFAULT_MAX_RESPONSE_EVENTS


class UpstreamFailure(Struct, frozen=True):
    """
    Why there is no complete response.

    Attributes:
        reason: one word, for the metrics.
        may_retry: nothing of the response had come, and another try may help.
        is_stale: the connection was reused, and closed before a response began.
        counts_against_upstream: for the circuit breaker; false where the request is to blame.
        retry_after_s: the least pause before another try.
    """

    error: ApiError
    reason: str
    may_retry: bool = False
    is_stale: bool = False
    counts_against_upstream: bool = False
    retry_after_s: float = 0.0


RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
"""Statuses that may be different a moment later."""

UPSTREAM_FAILURE_STATUSES = frozenset({502, 503, 504})
"""
Statuses that count as failures of the upstream. A 500 does not: some servers answer it to requests they can't take.
"""


def answer_failure_reason(error: ApiError) -> str:
    """Why an answer that began as one is none: it can't be read, or tells of a failure; or it refuses the request."""
    return "garbled" if isinstance(error, UpstreamError) else "refused"


class HttpExchange:
    """
    The receiver of one response.

    Args:
        loop: the running one.
        first_byte_s: the longest wait from the request to the first byte of the body.
        idle_s: the longest wait between two reads after that.
        limits: on the response.
        on_response: called when a response with status 200 begins.

    Attributes:
        outcome: None for a response that was read to its end, or aborted.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: ExchangeListener,
        first_byte_s: float,
        idle_s: float,
        limits: ResponseLimits,
        on_response: Callable[[], None],
    ) -> None:
        self._loop = loop
        self.outcome: asyncio.Future[UpstreamFailure | None] = self._loop.create_future()
        self._listener = listener
        self._on_response = on_response
        self._first_byte_s = first_byte_s
        self._idle_s = idle_s
        self._connection: HttpConnection | None = None
        # How the body is read; None for a stream of events, which nearly every body is. No bound method: that would
        # form a cycle.
        self._body_reader: Callable[[HttpExchange, list[bytes]], None] | None = HttpExchange._read_error_body
        self._parser = SseParser()
        self._body = bytearray()
        self._limit_bytes = ERROR_LIMIT_BYTES
        self._limits = limits
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._has_begun = False
        self._is_paused = False
        self._was_idle = False
        self._deadline = Deadline(self._on_timeout, loop)
        self._account = ReadAccount(limits.max_bytes, limits.max_events, self._deadline, idle_s)

    def start(self, connection: HttpConnection, request: bytes) -> None:
        """Send the request."""
        self._connection = connection
        self._was_idle = connection.has_served
        now = self._loop.time()
        self._deadline.set(now + min(self._first_byte_s, self._idle_s))  # one timer, which does for the reads too
        self._deadline.due_at = now + self._first_byte_s
        connection.send(request, self)
        if self._is_paused and self._connection is not None:
            connection.pause()

    def pause(self) -> None:
        """Stop reading, and the clock of the timeouts."""
        self._is_paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Read on."""
        self._is_paused = False
        self._deadline.due_at = self._loop.time() + self._timeout_s
        if self._connection is not None:
            self._connection.resume()

    def abort(self) -> None:
        """
        Close the connection, which stops the upstream, unless the exchange is over. It calls and keeps its listener no
        longer.
        """
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        self._resolve(None)
        self._body = bytearray()
        del self._listener  # with the request, which its parts that refer to each other would keep

    # Callbacks of the connection

    def on_response_start(self, status: int, headers: Mapping[str, str]) -> None:
        self._status, self._headers = status, headers
        if status != 200:
            return
        self._on_response()
        media_type = headers.get("content-type", "text/event-stream").partition(";")[0].strip().lower()
        if headers.get("content-encoding", "identity") != "identity":
            self._fail_malformed(f"sent its answer in an encoding that was not requested: {headers['content-encoding']}")
        elif media_type == "text/event-stream":
            self._body_reader = None
        elif media_type == "application/json":
            self._body_reader, self._limit_bytes = HttpExchange._read_json_body, min(JSON_LIMIT_BYTES, self._limits.max_bytes)
        elif media_type in GENERIC_MEDIA_TYPES:
            self._body_reader = HttpExchange._sniff_body
        else:
            self._fail_media_type(media_type)

    def on_response_body(self, pieces: list[bytes]) -> None:
        due_at = self._loop.time() + self._idle_s
        if self._has_begun:
            self._deadline.due_at = due_at
        else:
            self._has_begun = True
            self._deadline.set(due_at)
        if self._body_reader is not None:
            self._body_reader(self, pieces)
            return
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        account = self._account
        account.remaining_bytes -= len(piece)
        try:
            events = self._parser.feed(piece)
            account.remaining_events -= len(events)
            if account.remaining_events < 0:
                del events[account.remaining_events :]
            if events and self._listener.on_events(events):
                self._resolve(None)
            elif account.remaining_bytes < 0 or account.remaining_events < 0:
                self._end_at_limit()
        except ApiError as error:
            self._resolve(UpstreamFailure(error, answer_failure_reason(error)), abort_connection=True)
        except EventTooLarge as error:
            self._fail_malformed(f"sent {error}")

    def open_fast_path(self, read: bytes, pieces: list[bytes]) -> FastPath | None:
        if self._body_reader is not None or self._is_paused or self.outcome.done():
            return None
        return self._listener.open_fast_path(read, pieces, self._account)

    def on_response_end(self) -> None:
        self._connection = None
        if self._body_reader is HttpExchange._read_error_body:
            self._fail_with_status()
        else:
            self._deliver_last_events(self._parser.end() if self._body_reader is None else [bytes(self._body)])
            self._end_stream(None)

    def on_response_error(self, problem: str) -> None:
        self._connection = None
        # What came may yet be a complete response, or enough of an error body.
        if self._status and self._body_reader is HttpExchange._read_error_body:
            self._fail_with_status()
        elif self._has_begun:
            self._end_stream(problem)
        else:
            error = UpstreamError(f"The model server {problem}.", code="upstream_broke_off")
            is_stale = self._was_idle and not self._status
            self._resolve(UpstreamFailure(error, "broke_off", may_retry=True, is_stale=is_stale, counts_against_upstream=True))

    # How the body is read

    def _read_json_body(self, pieces: list[bytes]) -> None:
        self._collect(pieces)
        if len(self._body) > self._limit_bytes:
            self._fail_malformed(f"sent an answer larger than {self._limit_bytes} bytes")

    def _sniff_body(self, pieces: list[bytes]) -> None:
        self._collect(pieces)
        head = bytes(self._body[: max(map(len, SSE_PREFIXES))])
        if head.startswith(SSE_PREFIXES):
            self._body_reader = None
            self.on_response_body([bytes(self._body)])
        elif not any(field.startswith(head) for field in SSE_PREFIXES):
            self._fail_media_type(self._headers["content-type"].partition(";")[0])

    def _fail_media_type(self, media_type: str) -> None:
        self._fail_malformed(f"sent {media_type} where a stream of events was expected; its base_url may be wrong")

    def _read_error_body(self, pieces: list[bytes]) -> None:
        self._collect(pieces)
        if len(self._body) > self._limit_bytes:
            self._fail_with_status()

    def _collect(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self._body += piece

    # How it ends

    def _deliver_last_events(self, events: list[bytes]) -> None:
        try:
            if events and not self.outcome.done() and self._listener.on_events(events):
                self._resolve(None)
        except ApiError as error:
            self._resolve(UpstreamFailure(error, "garbled"))

    def _end_stream(self, problem: str | None) -> None:
        if self.outcome.done():
            return
        if self._listener.on_stream_end():
            self._resolve(None)
        else:
            error = UpstreamError(f"The model server {problem or 'ended its answer before it was complete'}.", code="upstream_broke_off")
            self._resolve(UpstreamFailure(error, "broke_off"))

    def _end_at_limit(self) -> None:
        if self._listener.on_limit():
            self._resolve(None, abort_connection=True)
        else:
            self._fail_malformed(f"sent an answer larger than {self._limits.max_bytes} bytes or {self._limits.max_events} events")

    def _fail_with_status(self) -> None:
        after_s = retry_after_s(self._headers)
        self._resolve(
            UpstreamFailure(
                error_from_response(self._status, self._headers, bytes(self._body)),
                str(self._status),
                may_retry=self._status in RETRYABLE_STATUSES and (self._status != 429 or after_s is not None),
                counts_against_upstream=self._status in UPSTREAM_FAILURE_STATUSES,
                retry_after_s=after_s or 0.0,
            ),
            abort_connection=True,
        )

    def _fail_malformed(self, problem: str) -> None:
        error = UpstreamError(f"The model server {problem}.", code="upstream_malformed")
        self._resolve(UpstreamFailure(error, "malformed"), abort_connection=True)

    def _resolve(self, failure: UpstreamFailure | None, *, abort_connection: bool = False) -> None:
        """End the exchange; with `abort_connection` the rest of the response, perhaps a long one, is not read."""
        self._deadline.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            if abort_connection:
                connection.abort()
            else:
                connection.release()
        if not self.outcome.done():
            self.outcome.set_result(failure)

    # Time

    @property
    def _timeout_s(self) -> float:
        return self._idle_s if self._has_begun else self._first_byte_s

    def _on_timeout(self) -> None:
        if self._is_paused:
            self._deadline.set(self._loop.time() + self._timeout_s)
            return
        if self._has_begun and self._listener.on_stream_end():
            self._resolve(None, abort_connection=True)
            return
        phase = "fell silent in the middle of its answer" if self._has_begun else "did not begin to answer"
        error = UpstreamError(f"The model server {phase} for {self._timeout_s:g} seconds.", status=504, code="upstream_timeout")
        self._resolve(UpstreamFailure(error, "timeout", counts_against_upstream=not self._has_begun), abort_connection=True)
