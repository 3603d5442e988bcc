"""
A MiniCPM-o session's client: what comes on its WebSocket as events for the session, and the session's events as frames.

A client may lose its WebSocket and come back on another: the session goes on meanwhile, hears nothing, and what it says is kept. A client
that leaves on purpose, or never began, is gone at once.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import UNSET

from antiphon.errors import ApiError, ClientError
from antiphon.protocols.minicpmo.session import CLOSE_CODES, ClientThrottled, ConnectionResumed, UnreadableMinicpmoEvent
from antiphon.runtime.core.taps import Tap
from antiphon.server.live.client import ClientListener, close_reason
from antiphon.server.minicpmo.pacing import AudioPacer
from antiphon.server.minicpmo.resume import MISSED_LIMIT_BYTES, SENT_LIMIT_BYTES, ResendBuffer, ResumableSessions
from antiphon.server.transport.websocket import ServerWebSocket
from antiphon.server.transport.websocket_frames import INTERNAL_ERROR, NORMAL, SERVICE_RESTART, TOO_BIG, UNSUPPORTED
from antiphon.wire.minicpmo.client_events import DuplexAppend, Mode, SessionClose, decode_client
from antiphon.wire.minicpmo.media import RATE_IN_HZ
from antiphon.wire.minicpmo.server_events import Error, ErrorEvent, ServerEvent, SessionClosed, SessionCreated, encode_server

POLICY_VIOLATION = 1008
"""The code of a WebSocket that is closed because of what its client asks or does."""

WEBSOCKET_CLOSE_CODES = CLOSE_CODES | {"server_is_overloaded": 1013}
"""Codes of closing by the fault's."""

PROXY_CLOSE_CODES = (1012, 1013, 1014)
"""Codes with which a proxy closes that goes away: its client has not."""

APPEND_LIMIT_BYTES = 1 << 20
"""The largest event in audio once the session has begun: what is long are recordings of voices, with which it begins."""

AUDIO_BYTES_PER_S = 2 * RATE_IN_HZ

COUNTED_END_REASONS = ("user_stop", "timeout", "init_timeout", "idle_timeout", "backend_error", "shutdown", "unauthorized")
"""Reasons that are counted under their own name; a client's may be anything."""


def close_code_for(fault: ApiError | None) -> int:
    """The code with which a WebSocket closes."""
    if fault is None:
        return NORMAL
    return WEBSOCKET_CLOSE_CODES.get(fault.code or "", POLICY_VIOLATION if isinstance(fault, ClientError) else INTERNAL_ERROR)


def error_event(fault: ApiError) -> ErrorEvent:
    """The event that says what is wrong."""
    param = fault.param if fault.param is not None else UNSET
    return ErrorEvent(error=Error(code=fault.code or "session_failed", message=fault.message, type=fault.type, param=param))


class Attachment:
    """
    One WebSocket of a client, of which it may have several, one after another.

    Attributes:
        socket: the WebSocket, once it is accepted.
    """

    def __init__(self) -> None:
        self.websocket: ServerWebSocket
        self._client: MinicpmoClient | None = None
        self._is_disconnected = False

    async def accept(self, upgrade: Callable[["Attachment"], Awaitable[ServerWebSocket]]) -> None:
        """Accept the WebSocket. Nothing is read of it yet."""
        self.websocket = await upgrade(self)

    def attach(self, client: "MinicpmoClient") -> None:
        """Whatever comes, comes for `owner`, until it is let go."""
        self._client = client
        if self._is_disconnected:
            client.on_disconnect(self)

    def detach(self) -> None:
        """What comes is for nobody any more."""
        self._client = None

    def refuse(self, fault: ApiError) -> None:
        """Say what is wrong, and close."""
        self.websocket.send(encode_server(error_event(fault)))
        self.websocket.flush()
        self.websocket.close(close_code_for(fault), close_reason(fault.message))

    # As the socket sees it

    def on_text(self, text: bytes) -> None:
        """The client sent a frame."""
        if self._client is not None:
            self._client.on_text(text)

    def on_binary(self, _content: bytes) -> None:
        """The client sent bytes, of which the protocol has none."""
        if self._client is not None:
            mistake = ClientError("Events must be JSON in text frames; a binary frame came.", code="invalid_payload")
            self._client.terminate(mistake, UNSUPPORTED)

    def on_disconnect(self) -> None:
        """The client has gone, or was closed."""
        self._is_disconnected = True
        if self._client is not None:
            self._client.on_disconnect(self)

    def pause(self) -> None:
        """The client is behind."""
        if self._client is not None:
            self._client.pause()

    def resume(self) -> None:
        """The client has caught up."""
        if self._client is not None:
            self._client.resume()


class MinicpmoClient:
    """
    One session's client.

    Args:
        resumable: where it can be found when it is away.
        resume_s: how long the session waits for it; 0: it doesn't.
        pace: how fast it may send sound, where that is not the usual.

    Attributes:
        end: why the session ended, in one of few words.
        mode: of the session.
        tenant: whose session it is.
    """

    def __init__(
        self,
        mode: Mode,
        tenant: str,
        tap: Tap,
        sessions: "ResumableSessions[MinicpmoClient]",
        resume_s: float,
        pacer: AudioPacer | None = None,
    ) -> None:
        self.end_reason = "left"
        self.tenant = tenant
        self.mode: Mode = mode
        self._tap = tap
        self._resumable_sessions = sessions
        self._resume_s = resume_s
        self._pacer = pacer or AudioPacer()
        self._driver: ClientListener | None = None
        self._attachment: Attachment | None = None
        self._resume_token: str | None = None
        self._resend_buffer: ResendBuffer | None = None
        self._pending_close: tuple[int, str] | None = None
        self._resume_timer: asyncio.TimerHandle | None = None
        self._throttle_timer: asyncio.TimerHandle | None = None
        self._has_begun = False

    def start(self, attachment: Attachment, driver: ClientListener) -> None:
        """Talk on that WebSocket, to that driver."""
        self._driver = driver
        self._attachment = attachment
        attachment.attach(self)

    def reattach(self, attachment: Attachment, after_seq: int | None) -> bool:
        """
        Go on, on another WebSocket.

        Args:
            after: the number of the last frame that it has seen; None for all that were sent while it had a WebSocket.

        Returns:
            Whether it can: nothing is missing of what it has not seen.
        """
        assert self._resend_buffer is not None and self._driver is not None
        if self._attachment is not None:  # its end has not been noticed here
            self._resend_buffer.mark_disconnected()
        missed = self._resend_buffer.frames_after(after_seq)
        if missed is None:
            return False
        if self._attachment is not None:
            self._detach(self._attachment).close(SERVICE_RESTART, "The session goes on on another connection.")
            self.resume()
        self._cancel_resume_timer()
        self._attachment = attachment
        for frame in missed:
            attachment.websocket.send(frame)
        attachment.attach(self)
        if self._pending_close is None:
            self._driver.receive_from_client(ConnectionResumed())
        else:
            self._revoke_token()
            attachment.websocket.close(*self._pending_close)
        return True

    # As the driver sees it

    def send(self, event: Any) -> None:
        """Take an event for the client."""
        if type(event) is SessionCreated:
            self._on_session_created(event)
        elif type(event) is SessionClosed:
            self.end_reason = event.reason if event.reason in COUNTED_END_REASONS else "left"
        frame = self._encode_event(event)
        if self._attachment is not None:
            self._attachment.websocket.send(frame)

    def _encode_event(self, event: ServerEvent) -> bytes:
        """The event as it is sent; who listens in has heard it."""
        self._tap.on_server_event(event)
        frame = encode_server(event)
        return frame if self._resend_buffer is None else self._resend_buffer.append(frame)

    def _send_error(self, websocket: ServerWebSocket, fault: ApiError) -> None:
        """Say what went wrong, past the session: as the last event, and like the others with the time once the session has begun."""
        event = error_event(fault)
        event.server_send_ts = time.time() if self._has_begun else UNSET
        websocket.send(self._encode_event(event))

    def _on_session_created(self, event: SessionCreated) -> None:
        self._has_begun = True
        if isinstance(event.resume_token, str) and self._resume_s:
            self._resend_buffer = ResendBuffer()
            self._resume_token = event.resume_token
            self._resumable_sessions.add(self._resume_token, self)

    def flush(self) -> None:
        """What was sent may leave, in one write."""
        if self._attachment is not None:
            self._attachment.websocket.flush()
            if self._resend_buffer is not None:
                self._resend_buffer.trim(SENT_LIMIT_BYTES)
        elif self._resend_buffer is not None and self._resend_buffer.trim(MISSED_LIMIT_BYTES) and self._resume_token is not None:
            # Not at once: the session is in the middle of deciding.
            asyncio.get_running_loop().call_soon(self._expire)

    def close(self, fault: ApiError | None) -> None:
        """The session is over."""
        if fault is not None and self.end_reason == "left":
            self.end_reason = "failed"
        self._pending_close = close_code_for(fault), close_reason(fault.message if fault else "")
        if self._attachment is not None:
            self._revoke_token()
            self._attachment.websocket.close(*self._pending_close)

    def fail(self, fault: ApiError) -> None:
        """There is no session, or it can't go on."""
        self.end_reason = "failed"
        self._revoke_token()
        if self._attachment is not None:
            socket = self._detach(self._attachment)
            self._send_error(socket, fault)
            socket.flush()
            socket.close(close_code_for(fault), close_reason(fault.message))

    # As its WebSocket sees it

    def on_text(self, text: bytes) -> None:
        """The client sent a frame."""
        assert self._driver is not None
        if self.mode == "audio" and self._has_begun and len(text) > APPEND_LIMIT_BYTES:
            self.terminate(
                ClientError(f"The event is larger than {APPEND_LIMIT_BYTES} bytes.", code="invalid_payload", param="input.audio"), TOO_BIG
            )
            return
        try:
            event: Any = decode_client(text, self.mode)
        except ClientError as mistake:
            self._driver.receive_from_client(UnreadableMinicpmoEvent(mistake))
            return
        self._tap.on_client_event(event)
        if type(event) is SessionClose:
            self._revoke_token()
        self._driver.receive_from_client(event)
        if type(event) is DuplexAppend:
            self._throttle(self._pacer.consume(len(event.pcm) / AUDIO_BYTES_PER_S, len(event.frames)))

    def _revoke_token(self) -> None:
        if self._resume_token is not None:
            self._resumable_sessions.remove(self._resume_token)
            self._resume_token = None

    def _throttle(self, wait_s: float) -> None:
        """Read no faster than is fair; whoever never stops is dropped."""
        if not wait_s or self._attachment is None:
            return
        assert self._driver is not None
        if self._pacer.is_over_limit:
            self._terminate_flood()
            return
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
        self._attachment.websocket.pause_reading()
        # What came at once may be more than could be taken in before patience ends.
        patience_s = self._pacer.patience_s
        held_s, then = (wait_s, self._resume_reading) if wait_s <= patience_s else (patience_s, self._terminate_flood)
        self._driver.receive_from_client(ClientThrottled(held_s))
        self._throttle_timer = asyncio.get_running_loop().call_later(held_s, then)

    def _terminate_flood(self) -> None:
        why = "Sound or pictures come faster than they could be taken in, and for too long."
        self.terminate(ClientError(why, code="rate_limit_exceeded", type="rate_limit_error"), POLICY_VIOLATION)

    def _resume_reading(self) -> None:
        self._throttle_timer = None
        if self._attachment is not None:
            self._attachment.websocket.resume_reading()

    def terminate(self, mistake: ClientError, code: int) -> None:
        """End the session because of what its client does."""
        assert self._driver is not None and self._attachment is not None, "what it does comes on a WebSocket"
        self.end_reason = "refused"
        socket = self._detach(self._attachment)
        self._send_error(socket, mistake)
        socket.close(code, close_reason(mistake.message))
        self._revoke_token()
        self._driver.hang_up()

    def on_disconnect(self, attachment: Attachment) -> None:
        """That WebSocket is no more."""
        if attachment is not self._attachment:
            return
        socket = self._detach(attachment)
        is_lost = socket.close_code is None or socket.close_code in PROXY_CLOSE_CODES
        if is_lost and self._resume_token is not None and self._pending_close is None and self._resend_buffer is not None:
            self._resend_buffer.mark_disconnected()
            self._resume_timer = asyncio.get_running_loop().call_later(self._resume_s, self._expire)
            self.resume()
        else:
            self._expire()

    def _detach(self, attachment: Attachment) -> ServerWebSocket:
        """Have nothing more to do with that WebSocket."""
        attachment.detach()
        self._attachment = None
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
            self._throttle_timer = None
        return attachment.websocket

    def _cancel_resume_timer(self) -> None:
        if self._resume_timer is not None:
            self._resume_timer.cancel()
            self._resume_timer = None

    def _expire(self) -> None:
        """The client is not coming back."""
        assert self._driver is not None
        if self._attachment is not None:
            return
        self._cancel_resume_timer()
        self._revoke_token()
        self._resend_buffer = None
        self._driver.hang_up()

    def pause(self) -> None:
        """The client is behind."""
        if self._driver is not None:
            self._driver.pause()

    def resume(self) -> None:
        """The client has caught up, or is not there to wait for."""
        if self._driver is not None:
            self._driver.resume()
