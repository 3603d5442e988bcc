"""
An HTTP connection that hands a streaming route its transport, or becomes a WebSocket.

The server underneath parses requests, frames the head and keeps the connection; between the head and the end of a stream the route
writes chunks straight to the transport, so that an event costs no `await`. Both meet through the request's scope.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from starlette.types import Send

from antiphon.server.transport import websocket
from antiphon.server.transport.limits import BACKLOG_LIMIT_BYTES, TokenBucket
from antiphon.server.transport.limits_protocol import LimitedHttpProtocol
from antiphon.server.transport.websocket import Headers, ServerWebSocket, WebSocketListener
from antiphon.server.transport.websocket_frames import MESSAGE_LIMIT_BYTES, SERVICE_RESTART

SCOPE_KEY = "antiphon.connection"


class ConnectionListener(Protocol):
    """Whoever writes to the transport, can be told to hold on, and wants to know when nobody reads any more."""

    def pause(self) -> None:
        """The client is behind."""

    def resume(self) -> None:
        """The client has caught up."""

    def hang_up(self) -> None:
        """The client is gone."""


class CoalescingTransport:
    """
    The way out for one answer: its head waits for the first of its body, so that both leave in one write.

    A write wakes whoever reads, which costs more than all that went into the head.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None
        self._has_begun = False

    def write(self, out: bytes) -> None:
        """Send `out`, or hold it if it is the head."""
        if not self._has_begun and not out.startswith(b"HTTP/1.1 100 "):
            self._has_begun, self._head = True, out
            return
        head, self._head = self._head or b"", None
        if not self._transport.is_closing():  # of requests in a row, only the last is told that its client has gone
            self._transport.write(head + out)

    def close(self) -> None:
        """Close the connection once all has left."""
        if self._head is not None:
            self.write(b"")
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether nothing more can be sent."""
        return self._transport.is_closing()


class ServerConnection(LimitedHttpProtocol):
    """One client's connection; `self.transport` is what a stream writes to."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._listener: ConnectionListener | None = None
        self._websocket: ServerWebSocket | None = None

    def data_received(self, data: bytes) -> None:
        """The client has sent something."""
        if self._websocket is None:
            super().data_received(data)
        else:
            self._websocket.receive(data)

    def shutdown(self) -> None:
        """The server stops."""
        if self._websocket is None:
            super().shutdown()
        else:
            self._websocket.close(SERVICE_RESTART, "The server is shutting down.")

    def on_message_begin(self) -> None:
        """A request begins: its scope learns where it came in."""
        super().on_message_begin()
        self.scope["extensions"] = {SCOPE_KEY: self}  # type: ignore[dict-item]  # ours, not one of ASGI's

    async def upgrade(
        self,
        send: Send,
        listener: WebSocketListener,
        *,
        subprotocol: str | None = None,
        headers: Headers = (),
        on_binary: Callable[[bytes], None] | None = None,
        bucket: TokenBucket | None = None,
        limit_bytes: int = MESSAGE_LIMIT_BYTES,
    ) -> ServerWebSocket:
        """
        Become a WebSocket, in answer to the request under way; whoever asks for it stays until `wait_closed` returns.

        Args:
            send: the request's; the head that it sends has the headers of every answer.
            listener: whom the WebSocket is for. It hears nothing, save that the client has gone, before `resume_reading` is called.
            subprotocol: the one chosen, of those that the client offers.
            headers: more of them for the answer.
            on_binary: takes messages of bytes; without it they are refused.
            pace: how fast the client may send, where that is not the usual.
            limit_bytes: the most that a message of the client's may have.

        Raises:
            ClientError: the request is not a handshake, or not one in order; nothing was sent.
        """
        if self._after_handshake is None:
            raise websocket.upgrade_required("This address is served over a WebSocket: the request must ask for an upgrade.")
        answer = [*websocket.handshake_headers(self.headers, subprotocol), *headers]
        if not self.transport.is_closing():
            # A 101 has no body, nor any word on how long it would be; and its connection is kept.
            self.cycle.chunked_encoding, self.cycle.keep_alive = False, True
            await send({"type": "http.response.start", "status": 101, "headers": answer})
            await send({"type": "http.response.body"})
        self._unset_keepalive_if_required()
        self.flow.pause_reading()
        self._websocket = self._listener = ServerWebSocket(
            self, listener, bucket or TokenBucket(), bytes(self._after_handshake), on_binary, limit_bytes
        )
        self._after_handshake.clear()
        self.parser = None  # type: ignore[assignment]  # as when a connection is lost: no HTTP comes any more
        if self.transport.is_closing():
            self._websocket.hang_up()
        return self._websocket

    @property
    def heartbeat_s(self) -> float:
        """Seconds of silence after which a client is asked whether it is there."""
        return self._limiter.settings.heartbeat_s

    def pause_reading(self) -> None:
        """Read nothing more for now."""
        self.flow.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        self.flow.resume_reading()

    @property
    def is_overfull(self) -> bool:
        """Whether more waits for the client than for any that it is worth waiting for."""
        return self.flow.write_paused and self.transport.get_write_buffer_size() > BACKLOG_LIMIT_BYTES

    @contextlib.contextmanager
    def notify(self, listener: ConnectionListener) -> Iterator[None]:
        """Tell `stream` when the client falls behind, catches up or leaves."""
        self._listener = listener
        if self.transport.is_closing():  # it left while its request was being made out
            listener.hang_up()
        try:
            yield
        finally:
            self._listener = None

    def on_headers_complete(self) -> None:
        """The head is whole: the request goes to the application."""
        before = self._latest_cycle
        super().on_headers_complete()
        # An answer to HEAD has no body for its head to leave with.
        if self._latest_cycle is not before and self.scope["method"] != "HEAD":
            self.cycle.transport = CoalescingTransport(self.transport)  # type: ignore[assignment]  # has all of a transport that is used there

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone, or was closed."""
        super().connection_lost(exc)
        if self._listener is not None:
            self._listener.hang_up()

    def pause_writing(self) -> None:
        """The transport's buffer is above its high-water mark."""
        super().pause_writing()
        if self._listener is not None:
            self._listener.pause()

    def resume_writing(self) -> None:
        """The transport's buffer has drained."""
        super().resume_writing()
        if self._listener is not None:
            self._listener.resume()


def is_handshake(scope: Any) -> bool:
    """Whether a request asks for a WebSocket, so that it may `upgrade`."""
    return websocket.is_handshake(scope["method"], scope["http_version"], scope["headers"])


def from_scope(scope: Any) -> ServerConnection:
    """The connection that a request came in on."""
    connection: ServerConnection = scope["extensions"][SCOPE_KEY]
    return connection
