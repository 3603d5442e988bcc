"""
The server's side of a WebSocket: handshake, messages, heartbeats, limits and close.

Everything that arrives is handled synchronously, in the callback of the connection, so messages stay in order.
"""

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol

from antiphon.errors import ClientError
from antiphon.server.transport import websocket_frames as frames
from antiphon.server.transport.limits import BACKLOG_LIMIT_BYTES, DISCARD_LIMIT_BYTES, LINGER_S, TokenBucket, end_writing

VERSION = b"13"

CLOSE_S = 5.0
"""How long the client may take to answer a Close."""

MAX_UNANSWERED_HEARTBEATS = 2
"""Heartbeats after which a client is dropped that sends nothing, not even a Pong."""

PROBE_S = 0.25
"""How often we write to a client while we don't read from it: only a write then notices a lost connection."""

RATE_CHECK_BYTES = 16 << 10
"""Bytes between two checks of the rate: a check costs as much as reading a frame."""

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""RFC 6455 section 1.3."""

Headers = Sequence[tuple[bytes, bytes]]


class WebSocketListener(Protocol):
    """Receives a WebSocket's messages."""

    def on_text(self, text: bytes) -> None:
        """A text message, complete and valid UTF-8."""

    def on_disconnect(self) -> None:
        """From now on nothing reaches the client. Called once, whatever the cause."""

    def pause(self) -> None:
        """The write buffer is full: send less."""

    def resume(self) -> None:
        """The write buffer has drained."""


class WebSocketTransport(Protocol):
    """The connection below a WebSocket."""

    transport: asyncio.Transport

    def eof_received(self) -> None:
        """The client sends nothing more."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""

    def pause_writing(self) -> None:
        """The write buffer is full."""

    def resume_writing(self) -> None:
        """The write buffer has drained."""

    @property
    def heartbeat_s(self) -> float:
        """Seconds of silence after which the client gets a Ping."""

    @property
    def backlog_bytes(self) -> int:
        """What a client that is behind has not read yet; 0 for one that is not behind."""

    def pause_reading(self) -> None:
        """Stop reading from the socket."""

    def resume_reading(self) -> None:
        """Read from the socket again."""

    def count_drop(self, reason: str) -> None:
        """Count why the connection ends."""

    def drop(self, reason: str) -> None:
        """Close at once, and count why."""


class ServerWebSocket(asyncio.BufferedProtocol):
    """
    An open WebSocket. It reads nothing before the first `resume_reading`, so that its owner can get ready.

    It is the transport's protocol, which reads into the parser's own buffer: frames are copied once less, and pass three
    calls less.

    A client that is behind with reading, and sends what has to be answered, is held: nothing more is read from it until
    it has caught up, not even what has arrived already. What needs no answer, such as audio, still gets through.

    Args:
        listener: receives its messages; None to ignore them.
        after_handshake: bytes that arrived together with the handshake.
        on_binary: takes binary messages; without it they are refused.
        limit_bytes: the largest message that the client may send.

    Attributes:
        close_code: of the first Close, from either side; `NO_STATUS` for one without a code; None before, and where the
            connection was lost without a Close.
        has_more: whether its owner closes it when what is still to be sent was sent, also when the server stops.
    """

    __slots__ = (
        "_abort_timer",
        "_after_handshake",
        "_answer_bytes",
        "_bucket",
        "_closed_future",
        "_connection",
        "_counted_frames",
        "_discarded_bytes",
        "_heartbeat_timer",
        "_is_client_held",
        "_is_closing",
        "_is_delivering",
        "_is_discarding",
        "_is_disconnected",
        "_is_reading_paused",
        "_listener",
        "_on_binary",
        "_out",
        "_probe_timer",
        "_reader",
        "_silent_heartbeats",
        "_throttle_timer",
        "_uncounted_bytes",
        "close_code",
        "has_more",
    )

    def __init__(
        self,
        connection: WebSocketTransport,
        listener: WebSocketListener | None,
        bucket: TokenBucket,
        after_handshake: bytes = b"",
        on_binary: Callable[[bytes], None] | None = None,
        limit_bytes: int = frames.MESSAGE_LIMIT_BYTES,
    ) -> None:
        self.close_code: int | None = None
        self.has_more = False
        self._connection = connection
        self._listener = listener
        self._on_binary = on_binary
        self._bucket = bucket
        self._reader = frames.FrameReader(self, frames.ignore_text if listener is None else listener.on_text, limit_bytes)
        self._out: list[bytes] = []
        self._after_handshake = after_handshake
        self._is_reading_paused = True
        self._is_closing = self._is_discarding = self._is_disconnected = False
        self._is_client_held = self._is_delivering = False
        self._answer_bytes = self._discarded_bytes = self._uncounted_bytes = self._counted_frames = 0
        self._silent_heartbeats = 0
        self._throttle_timer: asyncio.TimerHandle | None = None
        self._abort_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None
        loop = asyncio.get_running_loop()
        self._closed_future = loop.create_future()
        self._heartbeat_timer = loop.call_later(connection.heartbeat_s, self._check_heartbeat)

    # For its owner

    def show(self, on_text_view: Callable[[memoryview], bool]) -> None:
        """
        Show text messages where they lie, before they are copied and delivered.

        Args:
            on_text_view: returns whether it has handled the message, which may be no valid UTF-8; else it is delivered to
                the listener. It must not keep the view.
        """
        self._reader.show(on_text_view)

    def send(self, text: bytes) -> None:
        """Queue a text message for the next `flush`."""
        if not self._is_closing:
            self._out += (frames.text_header(len(text)), text)

    def send_binary(self, content: bytes) -> None:
        """Queue a binary message for the next `flush`."""
        if not self._is_closing:
            self._out += (frames.binary_header(len(content)), content)

    def flush(self) -> None:
        """
        Send what is queued in one write; a client whose backlog is over the limit is dropped instead.

        What the client itself asked for does not count: no more is read from it until it has read that.
        """
        out = self._out
        if not out:
            return
        connection = self._connection
        if connection.backlog_bytes > BACKLOG_LIMIT_BYTES + self._answer_bytes:
            connection.drop("backlog")
            # Messages that came with this one would produce more output that is not read.
            self._is_closing = True
            self._reader.mute()
        elif not connection.transport.is_closing():
            connection.transport.write(b"".join(out))
            if self._is_delivering and (backlog_bytes := connection.backlog_bytes):
                self._hold_client(backlog_bytes)
        out.clear()

    def _hold_client(self, backlog_bytes: int) -> None:
        """
        Read nothing more until the client has read.

        Args:
            backlog_bytes: with the answer to its last message, which may be longer than the limit.
        """
        if not self._is_client_held and not self._is_closing:
            self._is_client_held = True
            self._answer_bytes = backlog_bytes
            self._reader.pause()
            self._connection.pause_reading()  # no probe: what waits to be written notices a lost connection

    def close(self, code: int = frames.NORMAL, reason: str = "") -> None:
        """Send what is queued and a Close; the connection ends when the client answers, or after `CLOSE_S`."""
        if self._is_closing:
            return
        self._send_close(code, reason)
        self._abort_after(CLOSE_S)
        self._release_client()

    def pause_reading(self) -> None:
        """Stop reading. Messages that have arrived already are still delivered."""
        if not self._is_closing:
            self._is_reading_paused = True
            self._pause_transport()

    def resume_reading(self) -> None:
        """Start reading, or go on."""
        self._is_reading_paused = False
        pending, self._after_handshake = memoryview(self._after_handshake), b""
        while pending:
            room = self.get_buffer(len(pending))
            size_bytes = min(len(room), len(pending))
            room[:size_bytes] = pending[:size_bytes]
            self.buffer_updated(size_bytes)
            pending = pending[size_bytes:]
        self._resume_transport()

    async def wait_closed(self) -> None:
        """Wait until the connection has ended."""
        await asyncio.shield(self._closed_future)

    # Callbacks of the transport

    def get_buffer(self, _size_hint: int) -> memoryview:
        return self._reader.room()

    def buffer_updated(self, size_bytes: int) -> None:
        self._silent_heartbeats = 0
        if self._is_discarding:
            self._discard(size_bytes)
            return
        self._is_delivering = True
        self._reader.advance(size_bytes)
        if self._out:
            self.flush()
        self._is_delivering = False
        self._uncounted_bytes += size_bytes
        if self._uncounted_bytes > RATE_CHECK_BYTES:
            self._check_rate()

    def eof_received(self) -> None:
        self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    # Callbacks of the connection

    def pause(self) -> None:
        if self._listener is not None:
            self._listener.pause()

    def resume(self) -> None:
        self._answer_bytes = 0
        if self._is_client_held:  # before the listener: an engine would have something to write again and again
            self._release_client()
        if self._listener is not None:
            self._listener.resume()

    def _release_client(self) -> None:
        self._is_client_held = False
        self._is_delivering = True
        self._reader.resume()
        if self._out:
            self.flush()
        self._is_delivering = False
        self._resume_transport()

    def hang_up(self) -> None:
        self._is_closing = True
        for timer in (self._heartbeat_timer, self._abort_timer, self._throttle_timer, self._probe_timer):
            if timer is not None:
                timer.cancel()
        self._out.clear()
        self._after_handshake = b""
        self._reader.release()
        self._notify_disconnect()
        self._listener = self._on_binary = None  # they refer to this
        if not self._closed_future.done():
            self._closed_future.set_result(None)

    # Callbacks of the reader

    def on_binary(self, content: bytes) -> None:
        if self._is_closing:
            return
        if self._on_binary is None:
            self.close(frames.UNSUPPORTED, "Messages must be text.")
        else:
            self._on_binary(content)

    def on_ping(self, payload: bytes) -> None:
        if not self._is_closing:
            self._out.append(frames.pong_frame(payload))

    def on_close(self, code: int | None) -> None:
        """Answer a Close, or get the answer to ours. The server ends the TCP connection (RFC 6455 section 7.1.1)."""
        if not self._is_closing:
            self.close_code = frames.NO_STATUS if code is None else code
            self._send_close(code)
        self._abort_after(CLOSE_S)
        self._connection.transport.close()
        self._notify_disconnect()

    def on_protocol_error(self, code: int, reason: str) -> None:
        """Close with that code, and drop what still arrives, so that the client gets to read the Close."""
        self._connection.count_drop(
            "large_message" if code == frames.TOO_BIG else "defect" if code == frames.INTERNAL_ERROR else "malformed"
        )
        if not self._is_closing:
            self._send_close(code, reason)
        self._is_discarding = True
        if not self._connection.transport.is_closing():
            end_writing(self._connection.transport)
        self._abort_after(LINGER_S)
        self._resume_transport()
        self._notify_disconnect()

    def _discard(self, size_bytes: int) -> None:
        self._discarded_bytes += size_bytes
        if self._discarded_bytes > DISCARD_LIMIT_BYTES:
            self._connection.transport.abort()

    # Rate limit

    def _check_rate(self) -> None:
        frame_count = self._reader.frames
        delay_s = self._bucket.consume(frame_count - self._counted_frames, self._uncounted_bytes)
        self._counted_frames, self._uncounted_bytes = frame_count, 0
        if delay_s and self._throttle_timer is None and not self._is_closing:
            self._pause_transport()
            self._throttle_timer = asyncio.get_running_loop().call_later(delay_s, self._on_throttle_end)

    def _on_throttle_end(self) -> None:
        self._throttle_timer = None
        self._resume_transport()

    def _resume_transport(self) -> None:
        if self._is_closing or not (self._is_reading_paused or self._is_client_held or self._throttle_timer is not None):
            self._connection.resume_reading()

    def _pause_transport(self) -> None:
        self._connection.pause_reading()
        if self._probe_timer is None:
            self._probe_timer = asyncio.get_running_loop().call_later(PROBE_S, self._probe)

    # Heartbeats

    def _probe(self) -> None:
        """Send an unsolicited Pong, which needs no answer (RFC 6455 section 5.5.3)."""
        self._probe_timer = None
        if not self._is_closing and (self._is_reading_paused or self._throttle_timer is not None):
            if not self._connection.backlog_bytes:  # else that is written, and does the same
                self._out.append(frames.pong_frame(b""))
                self.flush()
            self._probe_timer = asyncio.get_running_loop().call_later(PROBE_S, self._probe)

    def _check_heartbeat(self) -> None:
        """Ping a silent client. While we are not reading, its silence does not count."""
        is_read = not (self._is_reading_paused or self._is_client_held or self._throttle_timer is not None)
        self._silent_heartbeats = self._silent_heartbeats + 1 if is_read else 0
        if self._silent_heartbeats > 1 + MAX_UNANSWERED_HEARTBEATS:
            self._connection.drop("dead_peer")
            return
        if self._silent_heartbeats > 1 and not self._is_closing:
            self._out.append(frames.ping_frame())
            self.flush()
        self._heartbeat_timer = asyncio.get_running_loop().call_later(self._connection.heartbeat_s, self._check_heartbeat)

    # Ending

    def _send_close(self, code: int | None, reason: str = "") -> None:
        self.close_code = self.close_code or code
        self._out.append(frames.close_frame(code, reason))
        self.flush()
        self._is_closing = True
        self._reader.mute()

    def _abort_after(self, delay_s: float) -> None:
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._abort_timer = asyncio.get_running_loop().call_later(delay_s, self._connection.transport.abort)

    def _notify_disconnect(self) -> None:
        if not self._is_disconnected:
            self._is_disconnected = True
            if self._listener is not None:
                self._listener.on_disconnect()


# The handshake


def is_handshake(method: str, version: str, headers: Headers) -> bool:
    """
    Whether a request is a WebSocket handshake without a body, which could be taken for frames.

    Source: RFC 6455 section 4.2.1.
    """
    names = {name for name, _ in headers}
    return (
        method == "GET"
        and version == "1.1"
        and b"websocket" in _tokens(headers, b"upgrade")
        and b"upgrade" in _tokens(headers, b"connection")
        and not names & {b"content-length", b"transfer-encoding"}
    )


def _tokens(headers: Headers, field_name: bytes) -> set[bytes]:
    return {token.strip().lower() for name, value in headers if name == field_name for token in value.split(b",")}


def handshake_headers(headers: Headers, subprotocol: str | None) -> list[tuple[bytes, bytes]]:
    """
    The headers of the 101 response to a handshake.

    Raises:
        ClientError: the handshake is invalid.

    Source: RFC 6455 section 4.2.
    """
    versions = [value for name, value in headers if name == b"sec-websocket-version"]
    if versions != [VERSION]:
        raise upgrade_required("The WebSocket version must be 13.")
    keys = [value for name, value in headers if name == b"sec-websocket-key"]
    if len(keys) != 1 or not _is_key(keys[0]):
        raise ClientError("A WebSocket handshake must have one header Sec-WebSocket-Key with 16 bytes in base64.")
    accept = base64.b64encode(hashlib.sha1(keys[0] + _MAGIC, usedforsecurity=False).digest())
    protocol_headers = [] if subprotocol is None else [(b"sec-websocket-protocol", subprotocol.encode())]
    return [(b"upgrade", b"websocket"), (b"connection", b"upgrade"), (b"sec-websocket-accept", accept), *protocol_headers]


def _is_key(value: bytes) -> bool:
    try:
        return len(base64.b64decode(value, validate=True)) == 16
    except binascii.Error:
        return False


def upgrade_required(message: str) -> ClientError:
    """The address works only over a WebSocket."""
    return ClientError(message, status=426, code="upgrade_required")
