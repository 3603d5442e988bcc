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

from antiphon.errors import ClientMistake
from antiphon.server.transport import websocket_frames as frames
from antiphon.server.transport.limits import SWALLOW_LIMIT_BYTES, Pace

VERSION = b"13"

CLOSE_S = 5.0
"""How long the other side gets to answer a Close."""

LINGER_S = 2.0
"""How long a client that was refused may go on sending: cut off at once, it would not read why."""

BEATS_TO_ANSWER = 2
"""How many heartbeats' time a client has to answer a Ping, or to say anything else."""

FEEL_S = 0.25
"""How often a client that is not read is written to: only writing finds out that its connection is no more."""

PAY_BYTES = 16 << 10
"""How much comes before it is looked whether it comes too fast: each look costs as much as reading a frame."""

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

Headers = Sequence[tuple[bytes, bytes]]


class Listener(Protocol):
    """Whoever a WebSocket is for."""

    def on_text(self, text: bytes) -> None:
        """A message of text, whole and valid UTF-8."""

    def on_gone(self) -> None:
        """Nothing that is sent from now on reaches the client; told once, however it came to that."""

    def pause(self) -> None:
        """The client is behind with reading."""

    def resume(self) -> None:
        """The client has caught up."""


class Line(Protocol):
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

    def count(self, reason: str) -> None:
        """The connection ends, and why."""

    def drop(self, reason: str) -> None:
        """Close at once; counted."""


class Socket:
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
        "_beat_timer",
        "_end_timer",
        "_ended",
        "_feel_timer",
        "_has_gone",
        "_held",
        "_incoming",
        "_is_closing",
        "_is_deaf",
        "_is_held",
        "_line",
        "_listener",
        "_on_binary",
        "_out",
        "_pace",
        "_pace_timer",
        "_paid_frames",
        "_silent_beats",
        "_unpaid_bytes",
        "_unwanted_bytes",
        "close_code",
    )

    def __init__(
        self,
        line: Line,
        listener: Listener,
        pace: Pace,
        behind_head: bytes = b"",
        on_binary: Callable[[bytes], None] | None = None,
        limit_bytes: int = frames.MESSAGE_LIMIT_BYTES,
    ) -> None:
        self.close_code: int | None = None
        self._line = line
        self._listener = listener
        self._on_binary = on_binary
        self._pace = pace
        self._incoming = frames.Incoming(self, listener.on_text, limit_bytes)
        self._out: list[bytes] = []
        self._held = behind_head
        self._is_held = True
        self._is_closing = self._is_deaf = self._has_gone = False
        self._unwanted_bytes = self._unpaid_bytes = self._paid_frames = 0
        self._silent_beats = 0
        self._pace_timer: asyncio.TimerHandle | None = None
        self._end_timer: asyncio.TimerHandle | None = None
        self._feel_timer: asyncio.TimerHandle | None = None
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        self._beat_timer = loop.call_later(line.heartbeat_s, self._beat)

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
        line = self._line
        if line.is_overfull:
            line.drop("backlog")
            # What has come with this already asks for answers that nobody will read, each of which may be large.
            self._is_closing = True
            self._incoming.mute()
        elif not line.transport.is_closing():
            line.transport.write(b"".join(out))
        out.clear()

    def close(self, code: int = frames.NORMAL, reason: str = "") -> None:
        """Send what was sent and a Close; the connection ends when it is answered, or is not for too long."""
        if self._is_closing:
            return
        self._say_close(code, reason)
        self._end_within(CLOSE_S)
        self._read_on()

    def pause_reading(self) -> None:
        """Tell of nothing more for now, but for what is here already; the client is to feel it."""
        if not self._is_closing:
            self._is_held = True
            self._read_no_more()

    def resume_reading(self) -> None:
        """Tell of what comes."""
        self._is_held = False
        held, self._held = self._held, b""
        if held:
            self.receive(held)
        self._read_on()

    @property
    def is_overfull(self) -> bool:
        """Whether more waits for the client than for any that it is worth waiting for."""
        return self._line.is_overfull

    async def wait_closed(self) -> None:
        """Wait until the connection has ended."""
        await asyncio.shield(self._ended)

    # The connection's callbacks

    def receive(self, received: bytes) -> None:
        """The client has sent something."""
        self._silent_beats = 0
        if self._is_deaf:
            self._swallow(received)
            return
        self._incoming.feed(received)
        if self._out:
            self.flush()
        self._unpaid_bytes += len(received)
        if self._unpaid_bytes > PAY_BYTES:
            self._pay()

    def pause(self) -> None:
        """The client is behind with reading."""
        self._listener.pause()

    def resume(self) -> None:
        """The client has caught up."""
        self._listener.resume()

    def hang_up(self) -> None:
        """The connection has ended."""
        self._is_closing = True
        for timer in (self._beat_timer, self._end_timer, self._pace_timer, self._feel_timer):
            if timer is not None:
                timer.cancel()
        self._out.clear()
        self._incoming.release()
        self._gone()
        if not self._ended.done():
            self._ended.set_result(None)

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
            self.close_code = frames.NO_CODE if code is None else code
            self._say_close(code)
        self._end_within(CLOSE_S)
        self._line.transport.close()
        self._gone()

    def on_flaw(self, code: int, reason: str) -> None:
        """What the client sends can't be read on; it is told, and what it is still sending is read and dropped, so that it reads why."""
        self._line.count("large_message" if code == frames.TOO_BIG else "defect" if code == frames.DEFECT else "malformed")
        if not self._is_closing:
            self._say_close(code, reason)
        self._is_deaf = True
        if not self._line.transport.is_closing():
            self._line.transport.write_eof()
        self._end_within(LINGER_S)
        self._read_on()
        self._gone()

    def _swallow(self, received: bytes) -> None:
        self._unwanted_bytes += len(received)
        if self._unwanted_bytes > SWALLOW_LIMIT_BYTES:
            self._line.transport.abort()

    # Reading as fast as is fair

    def _pay(self) -> None:
        frames_come = self._incoming.frames
        owed_s = self._pace.spend(frames_come - self._paid_frames, self._unpaid_bytes)
        self._paid_frames, self._unpaid_bytes = frames_come, 0
        if owed_s and self._pace_timer is None and not self._is_closing:
            self._read_no_more()
            self._pace_timer = asyncio.get_running_loop().call_later(owed_s, self._paid)

    def _paid(self) -> None:
        self._pace_timer = None
        self._read_on()

    def _read_on(self) -> None:
        if self._is_closing or (not self._is_held and self._pace_timer is None):
            self._line.resume_reading()

    def _read_no_more(self) -> None:
        self._line.pause_reading()
        if self._feel_timer is None:
            self._feel_timer = asyncio.get_running_loop().call_later(FEEL_S, self._feel)

    # Whether anyone is there

    def _feel(self) -> None:
        """Write to a client that is not read something that it need not answer (RFC 6455 section 5.5.3)."""
        self._feel_timer = None
        if not self._is_closing and (self._is_held or self._pace_timer is not None):
            self._out.append(frames.pong_frame(b""))
            self.flush()
            self._feel_timer = asyncio.get_running_loop().call_later(FEEL_S, self._feel)

    def _beat(self) -> None:
        """Ask a silent client whether it is there. While nothing is read of it, its silence is not its own."""
        is_read = not self._is_held and self._pace_timer is None
        self._silent_beats = self._silent_beats + 1 if is_read else 0
        if self._silent_beats > 1 + BEATS_TO_ANSWER:
            self._line.drop("dead_peer")
            return
        if self._silent_beats > 1 and not self._is_closing:
            self._out.append(frames.ping_frame())
            self.flush()
        self._beat_timer = asyncio.get_running_loop().call_later(self._line.heartbeat_s, self._beat)

    # Ending

    def _say_close(self, code: int | None, reason: str = "") -> None:
        self.close_code = self.close_code or code
        self._out.append(frames.close_frame(code, reason))
        self.flush()
        self._is_closing = True
        self._incoming.mute()

    def _end_within(self, seconds: float) -> None:
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._end_timer = asyncio.get_running_loop().call_later(seconds, self._line.transport.abort)

    def _gone(self) -> None:
        if not self._has_gone:
            self._has_gone = True
            self._listener.on_gone()


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


def _tokens(headers: Headers, wanted: bytes) -> set[bytes]:
    return {token.strip().lower() for name, value in headers if name == wanted for token in value.split(b",")}


def answer_to(headers: Headers, subprotocol: str | None) -> list[tuple[bytes, bytes]]:
    """
    The headers of a 101 to a handshake.

    Raises:
        ClientMistake: the handshake is not in order.

    Source: RFC 6455 section 4.2.
    """
    versions = [value for name, value in headers if name == b"sec-websocket-version"]
    if versions != [VERSION]:
        raise upgrade_required("The WebSocket version must be 13.")
    keys = [value for name, value in headers if name == b"sec-websocket-key"]
    if len(keys) != 1 or not _is_key(keys[0]):
        raise ClientMistake("A WebSocket handshake must have one header Sec-WebSocket-Key with 16 bytes in base64.")
    accept = base64.b64encode(hashlib.sha1(keys[0] + _MAGIC, usedforsecurity=False).digest())
    chosen = [] if subprotocol is None else [(b"sec-websocket-protocol", subprotocol.encode())]
    return [(b"upgrade", b"websocket"), (b"connection", b"upgrade"), (b"sec-websocket-accept", accept), *chosen]


def _is_key(value: bytes) -> bool:
    try:
        return len(base64.b64decode(value, validate=True)) == 16
    except binascii.Error:
        return False


def upgrade_required(message: str) -> ClientMistake:
    """What is asked for can only be had over a WebSocket."""
    return ClientMistake(message, status=426, code="upgrade_required")
