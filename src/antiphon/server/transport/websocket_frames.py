"""
WebSocket frames in and out, without a socket.

picows splits, unmasks and checks single frames. This module adds what it leaves to its user: fragmented messages, frame
order, UTF-8, reserved bits, close codes and the size limit of messages.

Source: RFC 6455 sections 5 to 7.
"""

import codecs
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from picows import WSFrame, WSListener, WSMsgType, WSTransport
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # not in its stubs; see docs/decisions/0014

from antiphon.server.transport import logs

MESSAGE_LIMIT_BYTES = 16 << 20

BUFFER_BYTES = 2048
"""Initial and smallest buffer of the parser: a frame with 20 ms of speech fits."""

LARGE_FRAME_BYTES = 96 << 10
"""
After a larger frame, the parser is replaced, because it never shrinks its buffer. A second of a MiniCPM-o client's audio,
85 KB, is not larger: it comes every second.
"""

NORMAL, PROTOCOL_ERROR, UNSUPPORTED, INVALID_TEXT, POLICY_VIOLATION, TOO_BIG = 1000, 1002, 1003, 1007, 1008, 1009
INTERNAL_ERROR, SERVICE_RESTART = 1011, 1012

NO_STATUS = 1005
"""Stands for a Close without a code (RFC 6455 section 7.4.1)."""

_KNOWN_CODES = frozenset({1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014})
"""Codes below 3000 that a Close may carry (RFC 6455 7.4 and its IANA registry)."""

_CONTROL_LIMIT_BYTES = 125

_HANDSHAKE = (
    b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
"""The parser wants a handshake before frames. The client's own was answered already, so it gets this one."""

_TEXT, _BINARY, _CONTINUATION = WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION


class FrameListener(Protocol):
    """Receives what the reader reads."""

    def on_binary(self, content: bytes) -> None:
        """A complete binary message."""

    def on_ping(self, payload: bytes) -> None:
        """A Ping, to be answered."""

    def on_close(self, code: int | None) -> None:
        """A Close, with its code if it has one. Nothing follows."""

    def on_protocol_error(self, code: int, reason: str) -> None:
        """Invalid or refused input; nothing follows. `code` is the one to close with."""


class _Nobody:
    def on_binary(self, content: bytes) -> None:
        pass

    def on_ping(self, payload: bytes) -> None:
        pass

    def on_close(self, code: int | None) -> None:
        pass

    def on_protocol_error(self, code: int, reason: str) -> None:
        pass


_NOBODY = _Nobody()


class FrameReader(WSListener):
    """
    Reads the frames that a client sends.

    Args:
        on_text: takes complete text messages, as valid UTF-8. Separate from `listener`, because nearly all messages go
            this way.
        limit_bytes: the largest message.

    Attributes:
        frames: number of frames read.
    """

    __slots__ = (
        "_decode",
        "_fake_transport",
        "_has_large_buffer",
        "_is_over",
        "_is_paused",
        "_limit_bytes",
        "_listener",
        "_message_type",
        "_on_text",
        "_on_text_view",
        "_parser",
        "_parts",
        "_tail_bytes",
        "_waiting_frames",
        "frames",
    )

    def __init__(self, listener: FrameListener, on_text: Callable[[bytes], None], limit_bytes: int = MESSAGE_LIMIT_BYTES) -> None:
        self.frames = 0
        self._limit_bytes = limit_bytes
        self._listener: FrameListener = listener
        self._on_text = on_text
        self._on_text_view: Callable[[memoryview], bool] | None = None
        self._message_type: WSMsgType | None = None
        self._parts = bytearray()
        self._decode: Callable[[bytes, bool], str] | None = None
        self._is_over = self._is_paused = False
        self._waiting_frames: deque[_Frame] = deque()
        self._has_large_buffer = False
        self._tail_bytes = 0
        self._start_parser()

    def _start_parser(self) -> None:
        self._fake_transport = _FakeTransport()
        # Without handshake timeout and pings of its own: the connection has them.
        self._parser: Any = WSProtocol(
            None, None, False, lambda _request: self, _LOG, True, None, False, 0, 0, 1, False, self._limit_bytes, None, BUFFER_BYTES
        )
        self._parser.connection_made(self._fake_transport)
        self._parser.get_buffer(0)[: len(_HANDSHAKE)] = _HANDSHAKE
        self._parser.buffer_updated(len(_HANDSHAKE))

    def room(self) -> memoryview:
        """
        Where to write what comes next, before a call of `advance`. The parser reads it there.

        It is less than the parser has room for: the parser doubles its buffer whenever a part fills it, needed or not.
        """
        room: memoryview = self._parser.get_buffer(0)
        return room[: len(room) * 7 // 8]

    def advance(self, size_bytes: int) -> None:
        """Read what was written to `room`, and deliver every message that it completes, or keep it for `resume`."""
        if self._is_over:
            return
        if self._has_large_buffer:
            self._tail_bytes = -1
        self._parser.buffer_updated(size_bytes)
        if self._has_large_buffer or self._fake_transport.refusal is not None:
            self._finish_reading()

    def _finish_reading(self) -> None:
        if self._is_paused:
            return
        if self._fake_transport.refusal is not None:
            self._report_refusal()
        elif self._has_large_buffer and self._tail_bytes == 0:
            self._has_large_buffer = False
            self._start_parser()

    def _report_refusal(self) -> None:
        assert self._fake_transport.refusal is not None
        if not self._is_over:
            code, reason = self._fake_transport.refusal
            if code == TOO_BIG:
                reason = f"The message is larger than {self._limit_bytes} bytes."
            elif code == PROTOCOL_ERROR:
                reason = "A frame is not as RFC 6455 defines it."
            self._fail(code, reason)  # not in the parser's words, which show its insides

    def _fail(self, code: int, reason: str) -> None:
        self.end()
        self._listener.on_protocol_error(code, reason)

    def pause(self) -> None:
        """Deliver nothing until `resume`, neither of what is being read now nor of what comes: its user feeds little more."""
        self._is_paused = True

    def resume(self) -> None:
        """Deliver what has waited, until the next `pause`, and go on."""
        self._is_paused = False
        try:
            while self._waiting_frames and not self._is_paused:
                self._on_frame(*self._waiting_frames.popleft())
        except Exception:  # as the parser, which calls otherwise
            _LOG.exception()
            self._fail(INTERNAL_ERROR, "")
        if not self._is_over:
            self._finish_reading()

    def show(self, on_text_view: Callable[[memoryview], bool]) -> None:
        """See `ServerWebSocket.show`."""
        self._on_text_view = on_text_view

    def mute(self) -> None:
        """Ignore text messages from now on; a Close is still read."""
        self._on_text, self._on_text_view = ignore_text, None

    def end(self) -> None:
        """Read nothing more."""
        self._is_over = True
        self._parts = bytearray()
        self._waiting_frames.clear()

    def release(self) -> None:
        """Drop the references to parser and listener, which form cycles; not from within the parser."""
        self.end()
        self.mute()
        self._parser = None
        self._listener = _NOBODY

    # What the parser calls

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """A frame from the parser."""
        if self._is_over:
            return
        self.frames += 1
        self._tail_bytes = frame.tail_size
        kind, is_last, is_reserved = frame.msg_type, bool(frame.fin), bool(frame.rsv1 or frame.rsv2 or frame.rsv3)
        is_whole_text = kind is _TEXT and is_last and not is_reserved and self._message_type is None and not self._is_paused
        if is_whole_text and self._on_text_view is not None:
            view = frame.get_payload_as_memoryview()
            if len(view) <= LARGE_FRAME_BYTES and self._on_text_view(view):
                return
        payload = frame.get_payload_as_bytes()
        if len(payload) > LARGE_FRAME_BYTES:
            self._has_large_buffer = True
        if self._is_paused:
            self._waiting_frames.append(_Frame(kind, is_last, is_reserved, payload))
        elif is_whole_text and payload.isascii():
            self._on_text(payload)  # as `_on_frame` does, which nearly every frame is spared
        else:
            self._on_frame(kind, is_last, is_reserved, payload)

    def _on_frame(self, kind: WSMsgType, is_last: bool, is_reserved: bool, payload: bytes) -> None:
        if is_reserved:
            self._fail(PROTOCOL_ERROR, "A reserved bit is set, and no extension was agreed on.")
        elif kind is _TEXT and is_last and self._message_type is None:
            if payload.isascii() or _is_utf8(payload):
                self._on_text(payload)
            else:
                self._fail(INVALID_TEXT, "The text is not valid UTF-8.")
        elif kind in (_TEXT, _BINARY, _CONTINUATION):
            self._append_frame(kind, is_last, payload)
        else:
            self._on_control_frame(kind, payload)

    def _append_frame(self, message_type: WSMsgType, is_last: bool, payload: bytes) -> None:
        if (message_type is _CONTINUATION) is (self._message_type is None):
            self._fail(PROTOCOL_ERROR, "There is nothing to continue." if self._message_type is None else "A message is not finished yet.")
            return
        if message_type is not _CONTINUATION:
            self._message_type = message_type
            self._decode = codecs.getincrementaldecoder("utf-8")().decode if message_type is _TEXT else None
        if len(self._parts) + len(payload) > self._limit_bytes:
            self._fail(TOO_BIG, f"The message is larger than {self._limit_bytes} bytes.")
            return
        try:
            if self._decode is not None:
                self._decode(payload, bool(is_last))
        except UnicodeDecodeError:
            self._fail(INVALID_TEXT, "The text is not valid UTF-8.")
            return
        self._parts += payload
        if is_last:
            self._deliver_message()

    def _deliver_message(self) -> None:
        whole, self._parts = bytes(self._parts), bytearray()
        kind, self._message_type, self._decode = self._message_type, None, None
        (self._on_text if kind is _TEXT else self._listener.on_binary)(whole)

    def _on_control_frame(self, message_type: WSMsgType, payload: bytes) -> None:
        if message_type is WSMsgType.PING:
            self._listener.on_ping(payload)
        elif message_type is WSMsgType.CLOSE:
            code = int.from_bytes(payload[:2], "big") if payload else None
            if code is not None and code not in _KNOWN_CODES and not 3000 <= code < 5000:
                self._fail(PROTOCOL_ERROR, f"A Close must not have the code {code}.")
            elif not _is_utf8(payload[2:]):  # RFC 6455 8.1, as of any text
                self._fail(INVALID_TEXT, "The reason of the Close is not valid UTF-8.")
            else:
                self.end()
                self._listener.on_close(code)


class _Frame(NamedTuple):
    """A frame that waits."""

    kind: WSMsgType
    is_last: bool
    is_reserved: bool
    payload: bytes


class _FakeTransport:
    """
    The transport of the parser; nothing that is written to it is sent.

    Attributes:
        refusal: code and reason of the Close that the parser wanted to send.
    """

    __slots__ = ("refusal",)

    def __init__(self) -> None:
        self.refusal: tuple[int, str] | None = None

    def write(self, out: bytes) -> None:
        """The parser's handshake response, or its Close."""
        if out[0] == 0x88 and self.refusal is None:
            self.refusal = int.from_bytes(out[2:4], "big"), bytes(out[4:]).decode()

    def get_extra_info(self, name: str) -> object:
        """Claims encryption: else the parser would write to the socket directly."""
        return {"socket": _NO_SOCKET, "ssl_object": True}.get(name)

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        pass

    abort = close


class _NoSocket:
    def fileno(self) -> int:
        return -1

    def setsockopt(self, *_option: int) -> None:
        pass

    def getsockopt(self, *_option: int) -> int:
        return 0


class _Log:
    """The parser's log; only exceptions in our callbacks are logged."""

    def isEnabledFor(self, _level: int) -> bool:
        return False

    def info(self, *_args: object) -> None:
        pass

    debug = error = warning = info

    def exception(self, *_args: object) -> None:
        logs.get().exception("defect")


_NO_SOCKET, _LOG = _NoSocket(), _Log()


def ignore_text(_text: bytes) -> None:
    """Drops a message."""


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


# Out


def frame_header(message_type: WSMsgType, size_bytes: int) -> bytes:
    """The header of an unfragmented frame."""
    return _header(0x80 | message_type.value, size_bytes)


def _header(first: int, size_bytes: int) -> bytes:
    if size_bytes < 126:
        return bytes((first, size_bytes))
    if size_bytes < 1 << 16:
        return bytes((first, 126, size_bytes >> 8, size_bytes & 0xFF))
    return bytes((first, 127)) + size_bytes.to_bytes(8, "big")


_TEXT_BYTE = 0x80 | _TEXT.value  # looked up once: the value of a member is a call in Python, and every event has a header


def text_header(size_bytes: int) -> bytes:
    """The header of a text message."""
    return _header(_TEXT_BYTE, size_bytes)


def binary_header(size_bytes: int) -> bytes:
    """The header of a binary message."""
    return frame_header(_BINARY, size_bytes)


def close_frame(code: int | None, reason: str = "") -> bytes:
    """A Close; a reason that is too long is cut."""
    payload = b"" if code is None else code.to_bytes(2, "big") + _truncate_reason(reason)
    return frame_header(WSMsgType.CLOSE, len(payload)) + payload


def _truncate_reason(reason: str) -> bytes:
    whole = reason.encode()
    limit_bytes = _CONTROL_LIMIT_BYTES - 2
    return whole if len(whole) <= limit_bytes else whole[:limit_bytes].decode(errors="ignore").encode()


def ping_frame() -> bytes:
    """A Ping."""
    return frame_header(WSMsgType.PING, 0)


def pong_frame(payload: bytes) -> bytes:
    """The answer to a Ping."""
    return frame_header(WSMsgType.PONG, len(payload)) + payload
