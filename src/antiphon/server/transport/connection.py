"""
An HTTP connection that lets a streaming route write to its transport, or becomes a WebSocket.

uvicorn parses requests, writes the head and keeps the connection. Between head and end of a stream the route writes
chunks straight to the transport, so that an event costs no `await`. Routes find the connection in the request's scope.
"""

import asyncio
import functools
import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec
import uvicorn
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn._types import HTTPScope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from antiphon.config.settings import ServerSettings
from antiphon.errors import ClientError
from antiphon.runtime.core.metrics import Metrics
from antiphon.server.tls.gate import TlsGate
from antiphon.server.transport import websocket
from antiphon.server.transport.limits import BACKLOG_LIMIT_BYTES, ConnectionLimiter, TokenBucket, raise_file_limit
from antiphon.server.transport.limits_protocol import LimitedHttpProtocol
from antiphon.server.transport.websocket import Headers, ServerWebSocket, WebSocketListener
from antiphon.server.transport.websocket_frames import MESSAGE_LIMIT_BYTES, SERVICE_RESTART

SCOPE_KEY = "antiphon.connection"


class ConnectionListener(Protocol):
    """Writes to the transport, and must know whether the client reads."""

    def pause(self) -> None:
        """The write buffer is full: send less."""

    def resume(self) -> None:
        """The write buffer has drained."""

    def hang_up(self) -> None:
        """The client has gone."""


class CoalescingTransport:
    """
    Holds a response's head until its first body chunk, so that both leave in one write.

    Every write wakes the reader, which costs more than making the head.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None
        self._has_begun = False

    def write(self, out: bytes) -> None:
        """Send `out`, or hold it if it is the head. `100 Continue` is sent at once."""
        if not self._has_begun and not out.startswith(b"HTTP/1.1 100 "):
            self._has_begun, self._head = True, out
            return
        head, self._head = self._head or b"", None
        if not self._transport.is_closing():  # with pipelined requests, only the last one learns that the client has gone
            self._transport.write(head + out)

    def close(self) -> None:
        """Close once everything was sent."""
        if self._head is not None:
            self.write(b"")
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class ServerConnection(LimitedHttpProtocol):
    """One client's connection."""

    _listener: ConnectionListener | None = None
    _websocket: ServerWebSocket | None = None

    def shutdown(self) -> None:
        if self._websocket is None:
            super().shutdown()
        elif not self._websocket.has_more:
            self._websocket.close(SERVICE_RESTART, "The server is shutting down.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {SCOPE_KEY: self}  # type: ignore[dict-item]  # our own extension

    async def upgrade(
        self,
        send: Send,
        listener: WebSocketListener | None,
        *,
        subprotocol: str | None = None,
        headers: Headers = (),
        on_binary: Callable[[bytes], None] | None = None,
        bucket: TokenBucket | None = None,
        limit_bytes: int = MESSAGE_LIMIT_BYTES,
    ) -> ServerWebSocket:
        """
        Become a WebSocket, in answer to the current request. The caller's task stays until `wait_closed` returns.

        Args:
            send: the request's ASGI `send`.
            listener: receives the client's messages once `resume_reading` was called; before that, only
                `on_disconnect`. None to ignore them.
            subprotocol: the selected one, of those that the client offers.
            headers: more headers for the response.
            on_binary: takes binary messages; without it they are refused.
            bucket: how fast the client may send; None for the usual limits.
            limit_bytes: the largest message that the client may send.

        Raises:
            ClientError: the request is not a valid handshake; nothing was sent.
        """
        if self._after_handshake is None:
            raise websocket.upgrade_required("This address is for WebSockets: the request must ask for an upgrade.")
        answer = [*websocket.handshake_headers(self.headers, subprotocol), *headers]
        if not self.transport.is_closing():
            # A 101 has no body and so no length (RFC 9110 8.6), and its connection stays open.
            self.cycle.chunked_encoding, self.cycle.keep_alive = False, True
            await send({"type": "http.response.start", "status": 101, "headers": answer})
            await send({"type": "http.response.body"})
        self._unset_keepalive_if_required()
        self.flow.pause_reading()
        self._websocket = self._listener = ServerWebSocket(
            self, listener, bucket or TokenBucket(), bytes(self._after_handshake), on_binary, limit_bytes
        )
        self._after_handshake.clear()
        self.parser = None  # type: ignore[assignment]  # no HTTP follows
        if self.transport.is_closing():
            self._websocket.hang_up()
        else:  # while it does not read: only when it begins to, is the protocol asked how it takes what it gets
            self.transport.set_protocol(self._websocket)
        return self._websocket

    @property
    def heartbeat_s(self) -> float:
        return self._limiter.settings.heartbeat_s

    def pause_reading(self) -> None:
        self.flow.pause_reading()

    def resume_reading(self) -> None:
        self.flow.resume_reading()

    @property
    def backlog_bytes(self) -> int:
        return self.transport.get_write_buffer_size() if self.flow.write_paused else 0

    @property
    def is_overfull(self) -> bool:
        """Whether the write buffer is over its limit."""
        return self.backlog_bytes > BACKLOG_LIMIT_BYTES

    def notify(self, listener: ConnectionListener) -> "Notification":
        """While this is entered, call `listener` when the client falls behind, catches up or leaves."""
        return Notification(self, listener)

    def begin_notifying(self, listener: ConnectionListener) -> None:
        self._listener = listener
        if self.transport.is_closing():  # it left while its request was read
            listener.hang_up()

    def end_notifying(self) -> None:
        self._listener = None

    def _new_cycle(self, scope: HTTPScope, *, keep_alive: bool) -> RequestResponseCycle:
        cycle = super()._new_cycle(scope, keep_alive=keep_alive)
        if scope["method"] != "HEAD":  # a response to HEAD has no body that its head could wait for
            cycle.transport = CoalescingTransport(self.transport)  # type: ignore[assignment]  # has the methods that uvicorn uses
        return cycle

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._listener is not None:
            self._listener.hang_up()
        # They refer to this, and would only be freed together with it by a full collection.
        self._listener = self._websocket = None
        self.scope = self.cycle = None  # type: ignore[assignment]  # as before the first request
        self.expect_100_continue = False

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._listener is not None:
            self._listener.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._listener is not None:
            self._listener.resume()


class Notification(AbstractContextManager[None]):
    """Tells a listener of one connection's client while this is entered. A class, as a generator would cost three times as much."""

    __slots__ = ("_connection", "_listener")

    def __init__(self, connection: ServerConnection, listener: ConnectionListener) -> None:
        self._connection = connection
        self._listener = listener

    def __enter__(self) -> None:
        self._connection.begin_notifying(self._listener)

    def __exit__(self, *_error: object) -> None:
        self._connection.end_notifying()


def is_handshake(scope: Scope) -> bool:
    """Whether a request is a WebSocket handshake, so that it may `upgrade`."""
    return websocket.is_handshake(scope["method"], scope["http_version"], scope["headers"])


def from_scope(scope: Scope) -> ServerConnection:
    """The connection that a request came in on."""
    connection: ServerConnection = scope["extensions"][SCOPE_KEY]
    return connection


def uvicorn_config(
    app: ASGIApp, settings: ServerSettings, metrics: Metrics, graceful_shutdown_s: int, tls: Callable[[], ssl.SSLContext] | None = None
) -> uvicorn.Config:
    """How uvicorn serves an application over our connections, within their limits; with `tls` by HTTPS alone."""
    limiter = ConnectionLimiter(settings, metrics, raise_file_limit(settings.connections))

    def config(served_app: ASGIApp, http: Callable[..., asyncio.Protocol]) -> uvicorn.Config:
        return uvicorn.Config(
            served_app,
            http=http,  # type: ignore[arg-type]  # called like the class that uvicorn expects
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=graceful_shutdown_s,
            timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]  # only passed to `call_later`
            backlog=2048,
        )

    connect = functools.partial(ServerConnection, limiter)
    if tls is None:
        return config(app, connect)
    plain_config = config(_answer_plain_http, connect)

    def open_gate(**parts: Any) -> TlsGate:
        secure, plain = functools.partial(connect, **parts), functools.partial(connect, **parts | {"config": plain_config})
        return TlsGate(tls, secure, plain, limiter, parts["server_state"].connections, settings.head_timeout_s)

    return config(app, open_gate)


async def _answer_plain_http(scope: Scope, receive: Receive, send: Send) -> None:
    """Lead a browser to the same address with HTTPS, and tell every other client of it."""
    request = Request(scope)
    if scope["method"] == "GET" and "text/html" in request.headers.get("accept", ""):
        response: Response = RedirectResponse(request.url.replace(scheme="https"))
    else:
        message = "This server speaks HTTPS only: the address must begin with https:// or wss://."
        body = msgspec.json.encode(ClientError(message, code="tls_required").body())
        response = Response(body, 400, media_type="application/json")
    response.headers["connection"] = "close"
    await response(scope, receive, send)
