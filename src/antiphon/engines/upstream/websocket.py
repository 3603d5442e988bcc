"""
WebSockets to upstream servers: opened so that giving up leaves no connection behind; frames out, messages in.

The library's parser calls back from the socket's own event. The messages of one read are handed on in one call, on the
loop's next turn, outside of whatever the receiver may be doing. Of many messages some are handed on in each turn, and
nothing is read until they are through. Fragments, limits and the pings that notice a dead peer are ours.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from picows import (
    WSCloseCode,
    WSError,
    WSFrame,
    WSInvalidStatusError,
    WSListener,
    WSMsgType,
    WSParsedURL,
    WSTransport,
    ws_connect,
)

from antiphon.deadline import Deadline
from antiphon.engines.upstream.faults import error_from_response, retry_after_s
from antiphon.engines.upstream.http_exchange import RETRYABLE_STATUSES, UPSTREAM_FAILURE_STATUSES, UpstreamFailure
from antiphon.errors import UpstreamError

MESSAGE_LIMIT_BYTES = 16 << 20

MAX_FRAGMENTS = 16 << 10
"""Of one message; the largest one in fragments of 1 KiB."""

RECEIVE_BUFFER_BYTES = 64 << 10
"""
What the socket collects while it is not read. The library parses in one go whatever it has read, and the system's own
buffers grow to 6 MiB: three million empty frames. On a way of 100 ms there and back this is ten times what audio needs.
"""

MAX_FRAMES_AT_ONCE = 8 << 10
"""In one read. More are so short that they carry nothing."""

MESSAGES_AT_ONCE = 64
"""Handed on in one turn of the event loop; each costs some 20 to 50 us."""

BYTES_AT_ONCE = 256 << 10
"""The same in bytes; one message may be larger."""

PONG_BACKLOG_BYTES = 64 << 10
"""While so much waits to be sent, pings get no answer: a peer that reads nothing can't make it grow."""

PING_AFTER_S = 20.0
CLOSE_TIMEOUT_S = 1.0

# The library logs what the upstream does; the client that asked is told that anyway.
_log = logging.getLogger("antiphon.engines.realtime.engine")
_log.setLevel(logging.CRITICAL)


async def connect_websocket(
    listener: WSListener,
    url: str,
    headers: Mapping[str, str],
    tls: ssl.SSLContext | None,
    *,
    timeout_s: float,
    message_limit_bytes: int,
    log: logging.Logger,
    receive_buffer_bytes: int | None = None,
    enable_auto_pong: bool = True,
) -> None:
    """
    Open a WebSocket for `listener`; when cancelled or failed, its connection is closed.

    Args:
        timeout_s: for connecting and the handshake together.
        receive_buffer_bytes: what the socket collects while it is not read; None leaves that to the system.
        enable_auto_pong: whether the library answers pings; else `listener` gets them.

    Raises:
        TimeoutError: they took longer.
        picows.WSError: the server's answer is no WebSocket handshake.
        OSError: it can't be reached, or its certificate can't be trusted.
    """
    # picows doesn't close the connection of a handshake that is cancelled, so the sockets are ours.
    sockets: list[socket.socket] = []

    async def open_socket(url: WSParsedURL) -> socket.socket:
        sockets.append(await _connect_tcp(str(url.host), url.port, receive_buffer_bytes))
        return sockets[0]

    try:
        async with asyncio.timeout(timeout_s):
            await ws_connect(
                lambda: listener,
                url,
                ssl_context=tls,
                extra_headers=headers,
                max_redirects=0,
                max_frame_size=message_limit_bytes,
                websocket_handshake_timeout=timeout_s + 1,
                enable_auto_pong=enable_auto_pong,
                logger_name=log,
                socket_factory=open_socket,
            )
    except BaseException:
        for sock in sockets:
            with contextlib.suppress(OSError):  # it is closed already
                sock.shutdown(socket.SHUT_RDWR)
        raise


async def _connect_tcp(host: str, port: int, receive_buffer_bytes: int | None) -> socket.socket:
    """A connection to the first of the host's addresses that accepts one."""
    loop = asyncio.get_running_loop()
    first_error: OSError | None = None
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            if receive_buffer_bytes is not None:  # before it connects: it scales the window
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            first_error = first_error or error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise first_error or OSError(f"no address is known for '{host}'")


class WebSocketReceiver(Protocol):
    """Receives what an upstream sends."""

    def on_messages(self, messages: Sequence[bytes]) -> None:
        """The messages of one read."""

    def on_close(self, code: int, reason: str) -> None:
        """
        The connection is closed. Called once, and not after `WebSocketClient.close`; `code` is 0 without a close frame.
        """


class WebSocketClient(WSListener):
    """
    One connection, from the handshake on.

    Args:
        ping_after_s: after so long without a byte a ping is sent; after as long again the connection is dropped.

    Attributes:
        has_opened: whether the handshake ever succeeded; stays true when the connection closes.
        is_silent: whether it was dropped because a ping was not answered.
        is_patient: whether an unanswered ping is no reason to drop it now, as the upstream is known to be busy.
    """

    def __init__(self, receiver: WebSocketReceiver, ping_after_s: float = PING_AFTER_S) -> None:
        super().__init__()
        self._ping_after_s = ping_after_s
        self._receiver: WebSocketReceiver | None = receiver
        self.has_opened = False
        self.is_silent = False
        self.is_patient = False
        self._is_closed = False
        self._transport: WSTransport | None = None
        self._loop = asyncio.get_running_loop()
        self._fragments: list[bytes] = []
        self._fragments_bytes = 0
        self._messages: deque[bytes] = deque()
        self._frames_at_once = 0
        self._is_turn_scheduled = False
        self._is_aborted = False
        self._is_disconnected = False
        self._close_status = (0, "")
        self._is_paused = False
        self._is_reading = True
        self._has_pinged = False
        self._deadline = Deadline(self._check_liveness)

    @property
    def backlog_bytes(self) -> int:
        """What is written and not yet sent."""
        return self._transport.underlying_transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, message: bytes) -> None:
        """Send a text message; does nothing once the connection is closed."""
        if self._transport is not None:
            self._transport.send(WSMsgType.TEXT, message)

    def pause(self) -> None:
        """Stop reading."""
        if not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._update_reading()

    def resume(self) -> None:
        """Read on."""
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._deadline.due_at = self._loop.time() + self._ping_after_s
            self._update_reading()

    def _update_reading(self) -> None:
        is_reading = not self._is_paused and len(self._messages) <= MESSAGES_AT_ONCE
        if is_reading is not self._is_reading and self._transport is not None:
            self._is_reading = is_reading
            transport = self._transport.underlying_transport
            (transport.resume_reading if is_reading else transport.pause_reading)()

    def close(self, code: WSCloseCode = WSCloseCode.OK) -> None:
        """Close the connection; the receiver is not called again."""
        self._receiver = None
        self._is_closed = True
        if self._transport is not None:
            self._transport.send_close(code)
            # An upstream that doesn't read the last bytes soon loses them.
            self._loop.call_later(CLOSE_TIMEOUT_S, self._transport.disconnect, False)
            self._transport.disconnect()

    # Callbacks of the library

    def on_ws_connected(self, transport: WSTransport) -> None:
        if self._is_closed:
            transport.disconnect(False)
            return
        self.has_opened = True
        self._transport = transport
        self._deadline.set(self._loop.time() + self._ping_after_s)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if self._is_aborted:  # the rest of what was read with the frame before
            return
        self._frames_at_once += 1
        if self._frames_at_once > MAX_FRAMES_AT_ONCE:
            self._abort(WSCloseCode.POLICY_VIOLATION)
            return
        self._schedule_turn()
        self._deadline.due_at = self._loop.time() + self._ping_after_s
        self._has_pinged = False
        match frame.msg_type:
            case WSMsgType.TEXT | WSMsgType.CONTINUATION:
                self._add_fragment(frame.get_payload_as_bytes(), is_last=frame.fin)
            case WSMsgType.PING:
                if self.backlog_bytes <= PONG_BACKLOG_BYTES:
                    transport.send_pong(frame.get_payload_as_bytes())
            case WSMsgType.CLOSE:
                # RFC 6455 5.5.1: two bytes of code, then the reason.
                payload = frame.get_payload_as_bytes()
                self._close_status = (int.from_bytes(payload[:2], "big"), payload[2:].decode(errors="replace"))
                transport.send_close(frame.get_close_code())
                transport.disconnect()
            case _:
                pass  # no dialect has binary messages

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._transport = None
        self._deadline.close()
        self._is_disconnected = True
        self._schedule_turn()

    def pause_writing(self) -> None:
        """The upstream reads slowly. Senders look at `backlog_bytes` instead."""

    def resume_writing(self) -> None:
        """The upstream reads again."""

    def _add_fragment(self, payload: bytes, *, is_last: bool) -> None:
        self._fragments.append(payload)
        self._fragments_bytes += len(payload)
        if self._fragments_bytes > MESSAGE_LIMIT_BYTES or len(self._fragments) > MAX_FRAGMENTS:
            self._fragments.clear()
            self._abort(WSCloseCode.MESSAGE_TOO_BIG)
            return
        if not is_last:
            return
        self._messages.append(self._fragments[0] if len(self._fragments) == 1 else b"".join(self._fragments))
        self._fragments.clear()
        self._fragments_bytes = 0
        self._update_reading()

    def _schedule_turn(self) -> None:
        if not self._is_turn_scheduled:
            self._is_turn_scheduled = True
            self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        """Hand on as many messages as one turn of the event loop allows; the last turn tells of the end."""
        self._is_turn_scheduled = False
        self._frames_at_once = 0
        batch: list[bytes] = []
        size_bytes = 0
        while self._messages and len(batch) < MESSAGES_AT_ONCE and size_bytes < BYTES_AT_ONCE:
            batch.append(self._messages.popleft())
            size_bytes += len(batch[-1])
        if batch and self._receiver is not None:
            self._receiver.on_messages(batch)
        self._update_reading()
        if self._messages:
            self._schedule_turn()
        elif self._is_disconnected:
            self._notify_closed()

    def _notify_closed(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.on_close(*self._close_status)

    def _abort(self, code: WSCloseCode) -> None:
        self._is_aborted = True
        self._close_status = (int(code.value), "")
        if self._transport is not None:
            self._transport.send_close(code)
            self._transport.disconnect(False)

    def _check_liveness(self) -> None:
        # A paused connection reads no pong either; it stays until its owner closes it.
        if self._has_pinged and not self._is_paused and not self.is_patient:
            self.is_silent = True
            self._abort(WSCloseCode.GOING_AWAY)
            return
        if self._transport is not None and not self._is_paused:
            self._has_pinged = True
            self._transport.send_ping()
        self._deadline.set(self._loop.time() + self._ping_after_s)


async def dial(
    client: WebSocketClient, url: str, headers: Mapping[str, str], tls: ssl.SSLContext | None, timeout_s: float
) -> UpstreamFailure | None:
    """
    Open the connection of `client`, or say why it can't be; a caller that no longer needs it closes it.

    Args:
        timeout_s: for connecting and the handshake together.
    """
    try:
        await connect_websocket(
            client,
            url,
            headers,
            tls,
            timeout_s=timeout_s,
            message_limit_bytes=MESSAGE_LIMIT_BYTES,
            log=_log,
            receive_buffer_bytes=RECEIVE_BUFFER_BYTES,
            enable_auto_pong=False,
        )
    except TimeoutError:
        timeout = UpstreamError(f"The model server could not be reached in {timeout_s:g} seconds.", status=504, code="upstream_timeout")
        return UpstreamFailure(timeout, "unreachable", counts_against_upstream=True)
    except WSInvalidStatusError as error:
        return _handshake_failure(error)
    except ssl.SSLError as error:
        return _unreachable_failure(f"The model server's TLS can't be trusted: {error.reason or error}.")
    except WSError:
        return _failure("did not answer as a WebSocket server does; its base_url may be wrong", "malformed")
    except OSError as error:
        return _unreachable_failure(f"The model server can't be reached: {error.strerror or 'no such address'}.")
    return None if client.has_opened else _failure("closed the connection unanswered", "broke_off")


def _failure(problem: str, reason: str) -> UpstreamFailure:
    return UpstreamFailure(UpstreamError(f"The model server {problem}.", code="upstream_unreachable"), reason, counts_against_upstream=True)


def _unreachable_failure(message: str) -> UpstreamFailure:
    return UpstreamFailure(UpstreamError(message, code="upstream_unreachable"), "unreachable", may_retry=True, counts_against_upstream=True)


def _handshake_failure(error: WSInvalidStatusError) -> UpstreamFailure:
    response = error.response
    status = int(response.status) if response is not None else 502
    if status < 400:
        return _failure(f"answered {status} to a WebSocket handshake; its base_url may be wrong", "malformed")
    headers = {name.lower(): value for name, value in response.headers.items()} if response is not None else {}
    after_s = retry_after_s(headers)
    return UpstreamFailure(
        error_from_response(status, headers, error.raw_body or b""),
        str(status),
        may_retry=status in RETRYABLE_STATUSES and (status != 429 or after_s is not None),
        counts_against_upstream=status in UPSTREAM_FAILURE_STATUSES,
        retry_after_s=after_s or 0.0,
    )
