"""
A WebSocket to a Realtime server: frames out, messages in.

The library's parser calls back from the socket's own event; what one read brought is handed on in one call, outside of whatever the
receiver may be doing. Fragments, limits and the pings that notice a dead peer are ours.
"""

import asyncio
import logging
import ssl
from collections.abc import Mapping, Sequence
from typing import Protocol

from picows import (
    WSCloseCode,
    WSError,
    WSFrame,
    WSInvalidStatusError,
    WSListener,
    WSMsgType,
    WSTransport,
)

from antiphon.engines.upstream.dialling import connect_websocket
from antiphon.engines.upstream.faults import error_from_response, retry_after_s
from antiphon.engines.upstream.http_exchange import RETRYABLE_STATUSES, UPSTREAM_FAILURE_STATUSES, UpstreamFailure
from antiphon.errors import UpstreamError

MESSAGE_LIMIT_BYTES = 16 << 20
PING_AFTER_S = 20.0

# The library's own log is of the upstream's doings, which whoever asked is told.
_log = logging.getLogger("antiphon.engines.realtime.engine")
_log.setLevel(logging.CRITICAL)


class WebSocketReceiver(Protocol):
    """Takes what an upstream says."""

    def on_messages(self, messages: Sequence[bytes]) -> None:
        """These messages came together."""

    def on_close(self, code: int, reason: str) -> None:
        """Nothing more comes: told once, unless the link was closed from here. A `code` of 0: without a word."""


class WebSocketClient(WSListener):
    """
    One connection, from the handshake on.

    Args:
        receiver: takes what comes.
        ping_after_s: so long without a byte, and the upstream is asked whether it is there; as long again, and it is taken to be gone.

    Attributes:
        has_opened: whether the handshake is over, whatever became of the connection since.
    """

    def __init__(self, receiver: WebSocketReceiver, ping_after_s: float = PING_AFTER_S) -> None:
        super().__init__()
        self._ping_after_s = ping_after_s
        self._receiver: WebSocketReceiver | None = receiver
        self.has_opened = False
        self._is_closed = False
        self._transport: WSTransport | None = None
        self._loop = asyncio.get_running_loop()
        self._fragments: list[bytes] = []
        self._messages: list[bytes] = []
        self._close_status = (0, "")
        self._is_paused = False
        self._last_read_at = self._loop.time()
        self._has_pinged = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def backlog_bytes(self) -> int:
        """What the upstream has not taken yet."""
        return self._transport.underlying_transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, message: bytes) -> None:
        """Send a text message, if there is still anybody to send it to."""
        if self._transport is not None:
            self._transport.send(WSMsgType.TEXT, message)

    def pause(self) -> None:
        """Stop reading."""
        if not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.underlying_transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._last_read_at = self._loop.time()
            self._transport.underlying_transport.resume_reading()

    def close(self, code: WSCloseCode = WSCloseCode.OK) -> None:
        """Take leave; nothing more is heard."""
        self._receiver = None
        self._is_closed = True
        if self._transport is not None:
            self._transport.send_close(code)
            # Whoever does not take the last bytes soon is not waited for.
            self._loop.call_later(1.0, self._transport.disconnect, False)
            self._transport.disconnect()

    # What the library says

    def on_ws_connected(self, transport: WSTransport) -> None:
        """The handshake is over, for whoever still waits for it."""
        if self._is_closed:
            transport.disconnect(False)
            return
        self.has_opened = True
        self._transport = transport
        self._timer = self._loop.call_later(self._ping_after_s, self._check_liveness)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """A frame came."""
        self._last_read_at = self._loop.time()
        self._has_pinged = False
        match frame.msg_type:
            case WSMsgType.TEXT | WSMsgType.CONTINUATION:
                self._add_fragment(frame.get_payload_as_bytes(), is_last=frame.fin)
            case WSMsgType.CLOSE:
                said = frame.get_payload_as_bytes()
                self._close_status = (int.from_bytes(said[:2], "big"), said[2:].decode(errors="replace"))
                transport.send_close(frame.get_close_code())
                transport.disconnect()
            case _:
                pass  # no dialect has binary messages

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """The connection is gone; what came before is still said first."""
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._loop.call_soon(self._notify_closed)

    def pause_writing(self) -> None:
        """The upstream reads slowly; whoever sends looks at `backlog_bytes`."""

    def resume_writing(self) -> None:
        """The upstream reads again."""

    def _add_fragment(self, payload: bytes, *, is_last: bool) -> None:
        self._fragments.append(payload)
        if sum(map(len, self._fragments)) > MESSAGE_LIMIT_BYTES:
            self._fragments.clear()
            self._abort(WSCloseCode.MESSAGE_TOO_BIG)
            return
        if not is_last:
            return
        if not self._messages:
            self._loop.call_soon(self._deliver_messages)
        self._messages.append(self._fragments[0] if len(self._fragments) == 1 else b"".join(self._fragments))
        self._fragments.clear()

    def _deliver_messages(self) -> None:
        messages, self._messages = self._messages, []
        if self._receiver is not None:
            self._receiver.on_messages(messages)

    def _notify_closed(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.on_close(*self._close_status)

    def _abort(self, code: WSCloseCode) -> None:
        self._close_status = (int(code.value), "")
        if self._transport is not None:
            self._transport.send_close(code)
            self._transport.disconnect(False)

    def _check_liveness(self) -> None:
        # A paused link reads no pong either, and is for whoever paused it to give up.
        left_s = self._ping_after_s if self._is_paused else self._last_read_at + self._ping_after_s - self._loop.time()
        if left_s <= 0 and self._has_pinged:
            self._abort(WSCloseCode.GOING_AWAY)
            return
        if left_s <= 0 and self._transport is not None:
            self._has_pinged = True
            self._last_read_at = self._loop.time()
            self._transport.send_ping()
            left_s = self._ping_after_s
        self._timer = self._loop.call_later(max(left_s, 0.001), self._check_liveness)


async def dial(
    client: WebSocketClient, url: str, headers: Mapping[str, str], tls: ssl.SSLContext | None, timeout_s: float
) -> UpstreamFailure | None:
    """
    Open `link`, or say why it can't be; whoever then has no use for it closes it.

    Args:
        patience_s: how long connecting and the handshake may take together.
    """
    try:
        await connect_websocket(client, url, headers, tls, timeout_s=timeout_s, message_limit_bytes=MESSAGE_LIMIT_BYTES, log=_log)
    except TimeoutError:
        fault = UpstreamError(f"The model server could not be reached in {timeout_s:g} seconds.", status=504, code="upstream_timeout")
        return UpstreamFailure(fault, "unreachable", counts_against_upstream=True)
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
        return _failure(f"answered {status} where a WebSocket was asked for; its base_url may be wrong", "malformed")
    headers = {name.lower(): value for name, value in response.headers.items()} if response is not None else {}
    after_s = retry_after_s(headers)
    return UpstreamFailure(
        error_from_response(status, headers, error.raw_body or b""),
        str(status),
        may_retry=status in RETRYABLE_STATUSES and (status != 429 or after_s is not None),
        counts_against_upstream=status in UPSTREAM_FAILURE_STATUSES,
        retry_after_s=after_s or 0.0,
    )
