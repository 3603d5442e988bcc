"""
A WebSocket on a connection that came in over HTTP: the handshake, and what is sent, heard and not put up with after it.

Everything that arrives is handled in the connection's own callback: messages are told in their order, and whoever takes long holds up
nothing but itself.
"""

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol

from antiphon.errors import ClientError
from antiphon.server.transport import websocket_frames as frames
from antiphon.server.transport.limits import DISCARD_LIMIT_BYTES, TokenBucket

VERSION = b"13"

CLOSE_S = 5.0
"""How long the other side gets to answer a Close."""

LINGER_S = 2.0
"""How long a client that was refused may go on sending: cut off at once, it would not read why."""

MAX_UNANSWERED_HEARTBEATS = 2
"""How many heartbeats' time a client has to answer a Ping, or to say anything else."""

PROBE_S = 0.25
"""How often a client that is not read is written to: only writing finds out that its connection is no more."""

RATE_CHECK_BYTES = 16 << 10
"""How much comes before it is looked whether it comes too fast: each look costs as much as reading a frame."""

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

Headers = Sequence[tuple[bytes, bytes]]


class WebSocketListener(Protocol):
    """Whoever a WebSocket is for."""

    def on_text(self, text: bytes) -> None:
        """A message of text, whole and valid UTF-8."""

    def on_disconnect(self) -> None:
        """Nothing that is sent from now on reaches the client; told once, however it came to that."""

    def pause(self) -> None:
        """The client is behind with reading."""

    def resume(self) -> None:
        """The client has caught up."""


class WebSocketTransport(Protocol):
    """The connection, as its WebSocket sees it."""

    transport: asyncio.Transport

    @property
    def heartbeat_s(self) -> float:
        """Seconds of silence after which a client is asked whether it is there."""

    @property
    def is_overfull(self) -> bool:
        """Whether more waits for the client than for any that it is worth waiting for."""

    def pause_reading(self) -> None:
        """Read nothing more for now."""

    def resume_reading(self) -> None:
        """Read on."""

    def count_drop(self, reason: str) -> None:
        """The connection ends, and why."""

    def drop(self, reason: str) -> None:
        """Close at once; counted."""


class ServerWebSocket:
    """
    An open WebSocket. Nothing is read before `resume_reading` is called for the first time, so that its owner can get ready.

    Args:
        behind_head: what came with the handshake's head already.
        on_binary: takes messages of bytes; without it they are refused.
        limit_bytes: the most that a message may have.

    Attributes:
        close_code: with which either side closed first, `NO_CODE` for a Close without one; None as long as none did, for ever where the
            connection was just lost.
    """

    __slots__ = (
        "_abort_timer",
        "_after_handshake",
        "_bucket",
        "_closed_future",
        "_connection",
        "_counted_frames",
        "_discarded_bytes",
        "_heartbeat_timer",
        "_is_closing",
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
    )

    def __init__(
        self,
        connection: WebSocketTransport,
        listener: WebSocketListener,
        bucket: TokenBucket,
        after_handshake: bytes = b"",
        on_binary: Callable[[bytes], None] | None = None,
        limit_bytes: int = frames.MESSAGE_LIMIT_BYTES,
    ) -> None:
        self.close_code: int | None = None
        self._connection = connection
        self._listener = listener
        self._on_binary = on_binary
        self._bucket = bucket
        self._reader = frames.FrameReader(self, listener.on_text, limit_bytes)
        self._out: list[bytes] = []
        self._after_handshake = after_handshake
        self._is_reading_paused = True
        self._is_closing = self._is_discarding = self._is_disconnected = False
        self._discarded_bytes = self._uncounted_bytes = self._counted_frames = 0
        self._silent_heartbeats = 0
        self._throttle_timer: asyncio.TimerHandle | None = None
        self._abort_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None
        loop = asyncio.get_running_loop()
        self._closed_future = loop.create_future()
        self._heartbeat_timer = loop.call_later(connection.heartbeat_s, self._check_heartbeat)

    # For its owner

    def send(self, text: bytes) -> None:
        """Send a message of text; it leaves at the next `flush`."""
        if not self._is_closing:
            self._out += (frames.text_header(len(text)), text)

    def send_binary(self, content: bytes) -> None:
        """Send a message of bytes; it leaves at the next `flush`."""
        if not self._is_closing:
            self._out += (frames.binary_header(len(content)), content)

    def flush(self) -> None:
        """What was sent leaves, in one write; a client that lets too much wait is dropped instead."""
        out = self._out
        if not out:
            return
        connection = self._connection
        if connection.is_overfull:
            connection.drop("backlog")
            # What has come with this already asks for answers that nobody will read, each of which may be large.
            self._is_closing = True
            self._reader.mute()
        elif not connection.transport.is_closing():
            connection.transport.write(b"".join(out))
        out.clear()

    def close(self, code: int = frames.NORMAL, reason: str = "") -> None:
        """Send what was sent and a Close; the connection ends when it is answered, or is not for too long."""
        if self._is_closing:
            return
        self._send_close(code, reason)
        self._abort_after(CLOSE_S)
        self._resume_transport()

    def pause_reading(self) -> None:
        """Tell of nothing more for now, but for what is here already; the client is to feel it."""
        if not self._is_closing:
            self._is_reading_paused = True
            self._pause_transport()

    def resume_reading(self) -> None:
        """Tell of what comes."""
        self._is_reading_paused = False
        pending, self._after_handshake = self._after_handshake, b""
        if pending:
            self.receive(pending)
        self._resume_transport()

    @property
    def is_overfull(self) -> bool:
        """Whether more waits for the client than for any that it is worth waiting for."""
        return self._connection.is_overfull

    async def wait_closed(self) -> None:
        """Wait until the connection has ended."""
        await asyncio.shield(self._closed_future)

    # The connection's callbacks

    def receive(self, chunk: bytes) -> None:
        """The client has sent something."""
        self._silent_heartbeats = 0
        if self._is_discarding:
            self._discard(chunk)
            return
        self._reader.feed(chunk)
        if self._out:
            self.flush()
        self._uncounted_bytes += len(chunk)
        if self._uncounted_bytes > RATE_CHECK_BYTES:
            self._check_rate()

    def pause(self) -> None:
        """The client is behind with reading."""
        self._listener.pause()

    def resume(self) -> None:
        """The client has caught up."""
        self._listener.resume()

    def hang_up(self) -> None:
        """The connection has ended."""
        self._is_closing = True
        for timer in (self._heartbeat_timer, self._abort_timer, self._throttle_timer, self._probe_timer):
            if timer is not None:
                timer.cancel()
        self._out.clear()
        self._reader.release()
        self._notify_disconnect()
        if not self._closed_future.done():
            self._closed_future.set_result(None)

    # What came in

    def on_binary(self, content: bytes) -> None:
        """A message of bytes."""
        if self._is_closing:
            return
        if self._on_binary is None:
            self.close(frames.UNSUPPORTED, "Messages must be text.")
        else:
            self._on_binary(content)

    def on_ping(self, payload: bytes) -> None:
        """The client asks whether anyone is there."""
        if not self._is_closing:
            self._out.append(frames.pong_frame(payload))

    def on_close(self, code: int | None) -> None:
        """The client has closed, or agrees to be; the server is the one to drop the connection (RFC 6455 section 7.1.1)."""
        if not self._is_closing:
            self.close_code = frames.NO_STATUS if code is None else code
            self._send_close(code)
        self._abort_after(CLOSE_S)
        self._connection.transport.close()
        self._notify_disconnect()

    def on_protocol_error(self, code: int, reason: str) -> None:
        """What the client sends can't be read on; it is told, and what it is still sending is read and dropped, so that it reads why."""
        self._connection.count_drop(
            "large_message" if code == frames.TOO_BIG else "defect" if code == frames.INTERNAL_ERROR else "malformed"
        )
        if not self._is_closing:
            self._send_close(code, reason)
        self._is_discarding = True
        if not self._connection.transport.is_closing():
            self._connection.transport.write_eof()
        self._abort_after(LINGER_S)
        self._resume_transport()
        self._notify_disconnect()

    def _discard(self, chunk: bytes) -> None:
        self._discarded_bytes += len(chunk)
        if self._discarded_bytes > DISCARD_LIMIT_BYTES:
            self._connection.transport.abort()

    # Reading as fast as is fair

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
        if self._is_closing or (not self._is_reading_paused and self._throttle_timer is None):
            self._connection.resume_reading()

    def _pause_transport(self) -> None:
        self._connection.pause_reading()
        if self._probe_timer is None:
            self._probe_timer = asyncio.get_running_loop().call_later(PROBE_S, self._probe)

    # Whether anyone is there

    def _probe(self) -> None:
        """Write to a client that is not read something that it need not answer (RFC 6455 section 5.5.3)."""
        self._probe_timer = None
        if not self._is_closing and (self._is_reading_paused or self._throttle_timer is not None):
            self._out.append(frames.pong_frame(b""))
            self.flush()
            self._probe_timer = asyncio.get_running_loop().call_later(PROBE_S, self._probe)

    def _check_heartbeat(self) -> None:
        """Ask a silent client whether it is there. While nothing is read of it, its silence is not its own."""
        is_read = not self._is_reading_paused and self._throttle_timer is None
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
            self._listener.on_disconnect()


# The handshake


def is_handshake(method: str, version: str, headers: Headers) -> bool:
    """Whether a request asks for a WebSocket, and has no body that could be taken for frames."""
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
    The headers of a 101 to a handshake.

    Raises:
        ClientError: the handshake is not in order.

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
    """What is asked for can only be had over a WebSocket."""
    return ClientError(message, status=426, code="upgrade_required")
