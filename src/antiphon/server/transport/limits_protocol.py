"""
Limits and deadlines of an HTTP connection: size of the head, slow senders, slow readers, broken framing.

uvicorn has none of these. Each connection has one timer, set for its nearest limit. When a limit moves, as it does with
every chunk of a body, the timer is not touched; all limits are looked at when it fires.
"""

import asyncio
import enum
import urllib.parse
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from math import inf
from typing import Any

import httptools
import msgspec
from uvicorn._types import HTTPScope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from antiphon.deadline import Deadline
from antiphon.errors import ApiError, ClientError
from antiphon.runtime.core.ids import new_id
from antiphon.server.transport import limits
from antiphon.server.transport.host import parse_host
from antiphon.server.transport.limits import ConnectionLimiter
from antiphon.server.transport.response_cycle import ResponseCycle
from antiphon.server.transport.websocket import is_handshake


class Phase(enum.Enum):
    """What the connection is receiving."""

    NOTHING = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()


# A member of an enumeration costs ten times as much as a name: Python 3.11 asks the class of its class first.
_NOTHING, _HEAD, _BODY = Phase.NOTHING, Phase.HEAD, Phase.BODY


class LimitedHttpProtocol(HttpToolsProtocol):
    """
    An HTTP connection with limits.

    Attributes:
        drop_reason: why the server closed it, once it has.
    """

    def __init__(self, limiter: ConnectionLimiter, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.drop_reason: str | None = None
        self._limiter = limiter
        self._address: str | None = None
        self._deadline = Deadline(self._check_limits)
        self._phase = _NOTHING
        self._phase_started_at = 0.0
        self._progress_at = 0.0
        self._idle_since: float | None = None
        self._write_paused_at: float | None = None
        self._refusal: ApiError | None = None
        self._refusal_reason = ""
        self._refused_at: float | None = None
        self._parse_error: ApiError | None = None
        self._is_upgrade = False
        self._after_handshake: bytearray | None = None
        self._header_count = 0
        self._head_bytes = 0
        self._unparsed_bytes = 0
        self._body_bytes = 0
        self._discarded_bytes = 0

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the parent
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        if (error := self._limiter.acquire(address)) is not None:
            self.connections.discard(self)
            transport.write(_error_response(error))
            transport.close()
            return
        self._address = address
        self._enter_phase(_HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.close()
        self._unset_keepalive_if_required()
        if self._address is not None:
            self._limiter.release(self._address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None or self._address is None:
            self._discard(data)
            return
        if self._after_handshake is not None:
            self._buffer_after_handshake(data)
            return
        self._idle_since = None
        if self._phase is _NOTHING:
            self._enter_phase(_HEAD)
        self._unparsed_bytes += len(data)
        try:
            self._parse(data)
            if self._phase is _HEAD and self._head_bytes + self._unparsed_bytes > limits.HEAD_LIMIT_BYTES:
                self.refuse(_head_too_large_error())
            elif self._phase is _BODY and self._unparsed_bytes > self._framing_limit_bytes:
                self.refuse(ClientError("The request's chunks have too much overhead for what they carry."))
        except httptools.HttpParserError as error:
            self.refuse(self._parse_error or self._explain(error))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_paused_at = self.loop.time()
        self._check_at(self._write_paused_at + self._limiter.settings.slow_reader_s)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._write_paused_at = None

    # Callbacks of the parser; an exception ends the parsing

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_count = self._head_bytes = self._discarded_bytes = 0
        if self._phase is not _HEAD:
            self._enter_phase(_HEAD)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_head_bytes(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """
        A header field. Trailer fields are counted and dropped: else they could pass for headers (RFC 9110 6.5.1).

        SDKs send some twenty: so it counts them, and does what the parent does, without a further call.
        """
        self._header_count += 1
        self._unparsed_bytes = 0
        self._head_bytes += len(name) + len(value) + 4
        if self._header_count > limits.HEAD_LIMIT_FIELDS or self._head_bytes > limits.HEAD_LIMIT_BYTES:
            raise self._record_parse_error(_head_too_large_error())
        if self._phase is _HEAD:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        method, version = self.parser.get_method(), self.parser.get_http_version()
        self._is_upgrade = self.parser.should_upgrade()
        if self._is_upgrade and method == b"CONNECT":
            raise self._record_parse_error(ClientError("Not allowed to CONNECT.", status=405))
        if problem := _request_error(self.url, self.headers, version):
            raise self._record_parse_error(ClientError(problem))
        self._enter_phase(_BODY)
        is_handshake_whole = self._is_upgrade and is_handshake(method.decode(), version, self.headers)
        self._is_upgrade = self._is_upgrade and not is_handshake_whole
        if not self._is_upgrade:
            self._begin_request(method, version)
        if is_handshake_whole:
            # Whether it is accepted or not, what follows must not be parsed as a request.
            self.cycle.keep_alive = False
            self._after_handshake = bytearray()

    def _begin_request(self, method: bytes, version: str) -> None:
        """As the parent's `on_headers_complete`, without what this server does not use, and with a cycle of its own."""
        scope, url = self.scope, httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope["method"], scope["http_version"] = method.decode("ascii"), version
        scope["path"] = urllib.parse.unquote(path) if "%" in path else path
        scope["raw_path"], scope["query_string"] = url.path, url.query or b""
        earlier_cycle = self._latest_cycle
        self.cycle = self._new_cycle(scope, keep_alive=version != "1.0" and self.parser.should_keep_alive())
        if earlier_cycle is None or earlier_cycle.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:  # pipelined: it waits for the responses before its own
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def _new_cycle(self, scope: HTTPScope, *, keep_alive: bool) -> RequestResponseCycle:
        return ResponseCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,  # `AccessLogMiddleware` writes our own
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=keep_alive,
            on_response=self.on_response_complete,
        )

    def on_body(self, body: bytes) -> None:
        self._progress_at = self.loop.time()
        self._body_bytes += len(body)
        if self.cycle.response_complete:
            self._discard(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._phase = _NOTHING
        self._unparsed_bytes = 0
        if not self._is_upgrade:
            super().on_message_complete()

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def on_response_complete(self) -> None:
        was_last = not self.pipeline
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
            else:  # a limit like the others: the parent has a timer for each response
                self._idle_since = self.loop.time()
                self._check_at(self._idle_since + self._limiter.settings.keep_alive_s)
        if was_last and self._refusal is not None and not self.transport.is_closing():
            self._send_refusal(self._refusal)
            return
        if self._phase is not _NOTHING:  # not idle: the next request has begun
            self._unset_keepalive_if_required()
        if self.expect_100_continue and self.cycle.response_complete and self.cycle.more_body:
            # RFC 9110 10.1.1: the client may or may not send the body now, so what follows could be either body or
            # request.
            self.transport.close()

    def _discard(self, data: bytes) -> None:
        self._discarded_bytes += len(data)
        if self._discarded_bytes > limits.DISCARD_LIMIT_BYTES:
            self.drop("unwanted_body")

    # Parsing

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            if self._after_handshake is None:
                self._parse(self._head_without_upgrade() + rest)
            else:
                self._buffer_after_handshake(rest)

    def _buffer_after_handshake(self, data: bytes) -> None:
        """Keep bytes that follow a handshake until it is answered."""
        assert self._after_handshake is not None
        self._after_handshake += data
        self.flow.pause_reading()

    def _head_without_upgrade(self) -> bytes:
        """
        The request without its upgrade, which a server may ignore; with it, the parser would skip the body.

        Source: RFC 9110 section 7.8. Java's HTTP client asks for h2c with every first request.
        """
        hops = (b"connection", b"upgrade", b"http2-settings")
        lines = [b"%b: %b\r\n" % field for field in self.headers if field[0] not in hops]
        version = self.parser.get_http_version().encode()
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (self.parser.get_method(), self.url, version, b"".join(lines))
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return head

    def _explain(self, error: httptools.HttpParserError) -> ApiError:
        if self.parser.get_method() == b"PRI":  # the preface with which HTTP/2 begins (RFC 9113 3.4)
            return ClientError("The request must be HTTP/1.1, but is HTTP/2.")
        return ClientError(f"The request is not valid HTTP: {error}.")

    @property
    def _framing_limit_bytes(self) -> int:
        return limits.FRAMING_LIMIT_BYTES + limits.FRAMING_LIMIT_FACTOR * self._body_bytes

    def _count_head_bytes(self, size_bytes: int) -> None:
        self._unparsed_bytes = 0
        self._head_bytes += size_bytes
        if self._head_bytes > limits.HEAD_LIMIT_BYTES:
            raise self._record_parse_error(_head_too_large_error())

    def _record_parse_error(self, error: ApiError) -> ApiError:
        """Remember the error, because the parser wraps what its callbacks raise."""
        self._parse_error = error
        return error

    # Waiting

    def _enter_phase(self, phase: Phase) -> None:
        self._phase = phase
        self._phase_started_at = self._progress_at = now = self.loop.time()
        self._body_bytes = 0
        settings = self._limiter.settings
        due_at = now + (settings.head_timeout_s if phase is _HEAD else settings.body_timeout_s)
        if due_at < self._deadline.due_at:
            self._deadline.set(due_at)

    def _check_at(self, due_at: float) -> None:
        if due_at < self._deadline.due_at:
            self._deadline.set(due_at)

    def _check_limits(self) -> None:
        if self._phase is not _NOTHING and (self.flow.read_paused or (self._phase is _HEAD and self._is_responding)):
            # We are the ones who wait, so the deadline starts anew.
            self._enter_phase(self._phase)
            if self._phase is _BODY:
                self._unparsed_bytes = 0  # like `_body_bytes`, which it is compared with
        due_at, reason = min(self._limits(), default=(inf, ""))
        if due_at > self.loop.time():
            self._check_at(due_at)
        else:
            self._expire(reason)

    def _limits(self) -> Iterator[tuple[float, str]]:
        settings = self._limiter.settings
        if self._refused_at is not None:
            yield self._refused_at + limits.LINGER_S, "refused"
        elif self._phase is _HEAD:
            yield self._phase_started_at + settings.head_timeout_s, "slow_head"
        elif self._phase is _BODY:
            yield self._progress_at + settings.body_timeout_s, "slow_body"
            yield self._phase_started_at + settings.body_timeout_s + self._body_bytes / limits.MIN_BODY_BYTES_PER_S, "slow_body"
        if self._idle_since is not None:
            yield self._idle_since + settings.keep_alive_s, "idle"
        if self._write_paused_at is not None:
            yield self._write_paused_at + settings.slow_reader_s, "slow_reader"

    @property
    def _latest_cycle(self) -> RequestResponseCycle | None:
        """The latest request with its response; None before the first."""
        return self.cycle

    @property
    def _is_responding(self) -> bool:
        return self._latest_cycle is not None and not self._latest_cycle.response_complete

    # Ending

    def _expire(self, reason: str) -> None:
        if reason == "idle":
            self.transport.close()
        elif reason in ("slow_head", "slow_body") and (self._head_bytes or self._unparsed_bytes):
            self.refuse(ClientError("The request did not arrive in time.", status=408, code="request_timeout"), reason)
        else:
            self.drop(reason)

    def drop(self, reason: str) -> None:
        """Close at once and lose unsent data. `reason` is a metrics label."""
        self.count_drop(reason)
        self.transport.abort()

    def count_drop(self, reason: str) -> None:
        """Count why the connection ends; only the first reason counts."""
        if self.drop_reason is None:
            self.drop_reason = reason
            self._limiter.count_dropped(reason)

    def refuse(self, error: ApiError, reason: str = "malformed") -> None:
        """
        Read nothing more, and send the error once the requests before this one are answered (RFC 9112 9.3.2).

        Args:
            reason: a metrics label.
        """
        self._refusal, self._refusal_reason = error, "large_head" if error.status == 431 else reason
        is_body, self._phase = self._phase is _BODY, _NOTHING
        latest = self._latest_cycle
        if is_body and latest is not None and latest.more_body:  # the refused request is one that may already run
            if latest.response_started:  # the error would be read as part of its response
                self.count_drop(self._refusal_reason)
                self.transport.close()
                return
            if self.pipeline:
                self.pipeline.popleft()
                return
            # To the application, the client disconnects.
            latest.disconnected = True
            latest.message_event.set()
        elif self._is_responding or self.pipeline:
            return
        self._send_refusal(error)

    def _send_refusal(self, error: ApiError) -> None:
        """Send the error as the connection's last response."""
        self._unset_keepalive_if_required()
        self.count_drop(self._refusal_reason)
        self._refused_at = self.loop.time()
        self.transport.write(_error_response(error))
        limits.end_writing(self.transport)
        self.flow.resume_reading()
        self._check_at(self._refused_at + limits.LINGER_S)


def _request_error(target: bytes, headers: Sequence[tuple[bytes, bytes]], version: str) -> str | None:
    """
    Why a head is refused that the parser accepts.

    Source: RFC 9112 sections 3.2 (exactly one host, and a valid one), 6.1 (transfer codings) and 2.3 (versions).
    """
    hosts: list[bytes] = []
    codings: list[bytes] = []
    for name, value in headers:
        if name == b"host":
            hosts.append(value)
        elif name == b"transfer-encoding":
            codings.append(value.lower())
    if version not in ("1.0", "1.1"):
        return f"The request must be HTTP/1.1, but is HTTP/{version}."
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        return f"The request must have one Host header, but has {len(hosts)}."
    if hosts and parse_host(hosts[0].decode("latin-1")) is None:
        return "The request's Host header must be a host name or an address, with or without a port, such as localhost:8642."
    if codings and (codings != [b"chunked"] or version == "1.0"):
        return "The request's body must be sent plain or, in HTTP/1.1, chunked."
    if not target.startswith(b"/") and target != b"*":
        scheme, _, rest = target.partition(b"://")
        authority, slash, _ = rest.partition(b"/")
        if scheme.lower() not in (b"http", b"https") or not slash or authority.lower() not in [host.lower() for host in hosts]:
            return "The request's target must be a path, or an address with a path and the same host as in the Host header."
    return None if target.isascii() else "The request's target must be ASCII; other characters are percent-encoded."


def _head_too_large_error() -> ApiError:
    return ClientError(
        f"The request's head is too large. The limit is {limits.HEAD_LIMIT_BYTES} bytes in {limits.HEAD_LIMIT_FIELDS} fields.",
        status=431,
        code="request_header_fields_too_large",
    )


def _error_response(error: ApiError) -> bytes:
    """A complete response, after which the connection is closed."""
    body = msgspec.json.encode(error.body())
    lines = [
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        f"x-request-id: {new_id('req')}",
        *([] if error.retry_after_s is None else [f"retry-after: {max(1, round(error.retry_after_s))}"]),
        "connection: close",
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + body
