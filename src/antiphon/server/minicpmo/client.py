"""
The client of a MiniCPM-o session: turns WebSocket frames into the session's events, and back.

A client that loses its connection can resume on another one. Meanwhile the session goes on, and its frames are
buffered. A client that closes on purpose, or before the session began, ends the session at once.
"""

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable

from msgspec import UNSET

from antiphon.errors import ApiError, ClientError
from antiphon.protocols.minicpmo.session import CLOSE_CODES, ClientThrottled, ConnectionResumed, MinicpmoMessage, UnreadableMinicpmoEvent
from antiphon.runtime.core.taps import Tap
from antiphon.server.live.client import ClientListener, close_reason, failure_reason
from antiphon.server.minicpmo.pacing import AudioPacer
from antiphon.server.minicpmo.resume import MISSED_LIMIT_BYTES, SENT_LIMIT_BYTES, ResendBuffer, ResumableSessions
from antiphon.server.transport import logs
from antiphon.server.transport.websocket import ServerWebSocket
from antiphon.server.transport.websocket_frames import INTERNAL_ERROR, NORMAL, POLICY_VIOLATION, SERVICE_RESTART, TOO_BIG, UNSUPPORTED
from antiphon.wire.minicpmo.client_events import ClientEvent, DuplexAppend, IgnoredEvent, Mode, SessionClose, ignored_fields
from antiphon.wire.minicpmo.client_reader import ClientEventReader
from antiphon.wire.minicpmo.media import RATE_IN_HZ
from antiphon.wire.minicpmo.server_events import Error, ErrorEvent, ServerEvent, SessionClosed, SessionCreated, encode_server

WEBSOCKET_CLOSE_CODES = CLOSE_CODES | {"server_is_overloaded": 1013}
"""WebSocket close codes by error code."""

PROXY_CLOSE_CODES = (1012, 1013, 1014)
"""Close codes of a proxy that restarts, is overloaded or has lost its upstream: the client itself is still there and may resume."""

APPEND_LIMIT_BYTES = 1 << 20
"""The largest event of an audio session after `session.init`; only that one carries long recordings of voices."""

AUDIO_BYTES_PER_S = 2 * RATE_IN_HZ

COUNTED_END_REASONS = ("user_stop", "timeout", "init_timeout", "idle_timeout", "backend_error", "shutdown", "unauthorized", "closed")
"""Reasons with a metrics label of their own. Clients can send any reason, and each would be a new label: others count as `left`."""


def close_code_for(error: ApiError | None) -> int:
    """The WebSocket close code for an error; None stands for a regular end."""
    if error is None:
        return NORMAL
    return WEBSOCKET_CLOSE_CODES.get(error.code or "", POLICY_VIOLATION if isinstance(error, ClientError) else INTERNAL_ERROR)


def error_event(error: ApiError) -> ErrorEvent:
    """The `error` event for an error."""
    param = error.param if error.param is not None else UNSET
    return ErrorEvent(error=Error(code=error.code or "session_failed", message=error.message, type=error.type, param=param))


class Attachment:
    """
    One WebSocket of a client. When a client resumes, it gets a new one.

    Attributes:
        websocket: set once it is accepted.
    """

    def __init__(self) -> None:
        self.websocket: ServerWebSocket
        self._client: MinicpmoClient | None = None
        self._is_disconnected = False

    async def accept(self, upgrade: Callable[["Attachment"], Awaitable[ServerWebSocket]]) -> None:
        """Accept the WebSocket. Reading starts later, with `resume_reading`."""
        self.websocket = await upgrade(self)
        self.websocket.show(self.on_text_view)

    def attach(self, client: "MinicpmoClient") -> None:
        """Pass everything that arrives on to `client`, until `detach`."""
        self._client = client
        # It may have gone while its session was prepared, when nobody listened.
        if self._is_disconnected:
            client.on_disconnect(self)

    def detach(self) -> None:
        self._client = None

    def refuse(self, error: ApiError) -> None:
        """Send the error and close, on a WebSocket that has no session."""
        self.websocket.send(encode_server(error_event(error)))
        self.websocket.flush()
        self.websocket.close(close_code_for(error), close_reason(error.message))

    # WebSocketListener

    def on_text_view(self, text: memoryview) -> bool:
        return self._client is not None and self._client.on_text_view(text)

    def on_text(self, text: bytes) -> None:
        if self._client is not None:
            self._client.on_text(text)

    def on_binary(self, _content: bytes) -> None:
        """Refuse it: the protocol has only text frames."""
        if self._client is not None:
            error = ClientError("Events must be JSON in text frames; a binary frame came.", code="invalid_payload")
            self._client.terminate(error, UNSUPPORTED)

    def on_disconnect(self) -> None:
        self._is_disconnected = True
        if self._client is not None:
            self._client.on_disconnect(self)

    def pause(self) -> None:
        if self._client is not None:
            self._client.pause()

    def resume(self) -> None:
        if self._client is not None:
            self._client.resume()


class MinicpmoClient:
    """
    The client of one session.

    Args:
        sessions: where the session is registered while it can be resumed.
        resume_s: how long the session waits for a lost client; 0: not at all.
        pacer: limits how fast audio may come; None for the usual limits.

    Attributes:
        end_reason: why the session ended, as a metrics label.
        tenant: owner of the session.
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
        self._reader = ClientEventReader(mode)
        self._tap = tap
        self._resumable_sessions = sessions
        self._resume_s = resume_s
        self._pacer = pacer or AudioPacer()
        self._driver: ClientListener[MinicpmoMessage] | None = None
        self._attachment: Attachment | None = None
        self._resume_token: str | None = None
        self._resend_buffer: ResendBuffer | None = None
        self._pending_close: tuple[int, str] | None = None
        self._resume_timer: asyncio.TimerHandle | None = None
        self._throttle_timer: asyncio.TimerHandle | None = None
        self._has_begun = False
        self._known_types: set[type[ClientEvent]] = set()
        self._ignored_names: set[str] = set()
        self._context = contextvars.Context()

    def start(self, attachment: Attachment, driver: ClientListener[MinicpmoMessage]) -> None:
        """Connect the session's first WebSocket and its driver, before the driver runs."""
        self._context = contextvars.copy_context()  # it has the id of the request, and the WebSocket's callbacks don't
        self._driver = driver
        self._attachment = attachment
        attachment.attach(self)

    def reattach(self, attachment: Attachment, after_seq: int | None) -> bool:
        """
        Go on with another WebSocket.

        Args:
            after_seq: `seq` of the last frame that the client received; None for all that were sent before the
                connection was lost.

        Returns:
            False where frames that the client lacks are no longer buffered.
        """
        assert self._resend_buffer is not None and self._driver is not None
        if self._attachment is not None:  # that it was lost was not noticed yet
            self._resend_buffer.mark_disconnected()
        frames = self._resend_buffer.frames_after(after_seq)
        # Before the old connection is given up: a wrong number must not disturb a session that goes on.
        if frames is None:
            return False
        if self._attachment is not None:
            self._detach(self._attachment).close(SERVICE_RESTART, "The session goes on on another connection.")
            self.resume()  # the old connection may have stopped the engine, as nobody read from it
        self._cancel_resume_timer()
        self._attachment = attachment
        for frame in frames:
            attachment.websocket.send(frame)
        attachment.attach(self)
        if self._pending_close is None:
            self._driver.receive_from_client(ConnectionResumed())
        else:
            # The session ended meanwhile, and the last of these frames says how.
            self._revoke_token()
            attachment.websocket.close(*self._pending_close)
        return True

    # Called by the driver

    def send(self, event: ServerEvent) -> None:
        if type(event) is SessionCreated:
            self._on_session_created(event)
        elif type(event) is SessionClosed:
            self.end_reason = event.reason if event.reason in COUNTED_END_REASONS else "left"
        frame = self._encode_event(event)
        if self._attachment is not None:
            self._attachment.websocket.send(frame)

    def _encode_event(self, event: ServerEvent) -> bytes:
        self._tap.on_server_event(event)
        frame = encode_server(event)
        return frame if self._resend_buffer is None else self._resend_buffer.append(frame)

    def _send_error(self, websocket: ServerWebSocket, error: ApiError) -> None:
        """Send an error that does not come from the session, as its last event."""
        event = error_event(error)
        event.server_send_ts = time.time() if self._has_begun else UNSET
        websocket.send(self._encode_event(event))

    def _on_session_created(self, event: SessionCreated) -> None:
        self._has_begun = True
        # Before this event is encoded, so that it is the first with a `seq`.
        if isinstance(event.resume_token, str) and self._resume_s:
            self._resend_buffer = ResendBuffer()
            self._resume_token = event.resume_token
            self._resumable_sessions.add(self._resume_token, self)

    def flush(self) -> None:
        if self._attachment is not None:
            self._attachment.websocket.flush()
            if self._resend_buffer is not None:
                self._resend_buffer.trim(SENT_LIMIT_BYTES)
        elif self._resend_buffer is not None and self._resend_buffer.trim(MISSED_LIMIT_BYTES) and self._resume_token is not None:
            # Not now: `flush` is called while the session is being advanced.
            asyncio.get_running_loop().call_soon(self._expire)

    def close(self, error: ApiError | None) -> None:
        # `session.closed`, if it was sent, has given a better reason.
        if error is not None and self.end_reason == "left":
            self.end_reason = failure_reason(error)
        self._pending_close = close_code_for(error), close_reason(error.message if error else "")
        # A client that is away keeps its token, and learns how the session ended if it comes back in time.
        if self._attachment is not None:
            self._revoke_token()
            self._attachment.websocket.close(*self._pending_close)

    def fail(self, error: ApiError) -> None:
        """Report that the session could not start or go on, and close."""
        self.end_reason = failure_reason(error)
        self._revoke_token()
        if self._attachment is not None:
            websocket = self._detach(self._attachment)
            self._send_error(websocket, error)
            websocket.flush()
            websocket.close(close_code_for(error), close_reason(error.message))

    # Called by the attachment

    def on_text_view(self, text: memoryview) -> bool:
        """Handle a piece of audio where it lies; returns False for any other text, which then comes by `on_text`."""
        if len(text) > APPEND_LIMIT_BYTES or (event := self._reader.read_known(text)) is None:
            return False
        self._handle_event(event)
        return True

    def on_text(self, text: bytes) -> None:
        assert self._driver is not None
        if self.mode == "audio" and self._has_begun and len(text) > APPEND_LIMIT_BYTES:
            self.terminate(
                ClientError(f"The event is larger than {APPEND_LIMIT_BYTES} bytes.", code="invalid_payload", param="input.audio"), TOO_BIG
            )
            return
        try:
            event = self._reader.read(text)
        except ClientError as error:
            # The session answers it, and ends after too many in a row.
            self._driver.receive_from_client(UnreadableMinicpmoEvent(error))
            return
        if isinstance(event, IgnoredEvent):
            self._log_once(event.type)
            return
        # Once for each type: finding them decodes the frame a second time.
        if type(event) not in self._known_types:
            self._known_types.add(type(event))
            for path in ignored_fields(text, event):
                self._log_once(path)
        self._handle_event(event)

    def _handle_event(self, event: ClientEvent) -> None:
        assert self._driver is not None
        self._tap.on_client_event(event)
        # It leaves on purpose: a connection that is lost while the session closes must not keep its worker waiting.
        if type(event) is SessionClose:
            self._revoke_token()
        self._driver.receive_from_client(event)
        if type(event) is DuplexAppend:
            self._throttle(self._pacer.consume(len(event.pcm) / AUDIO_BYTES_PER_S, len(event.frames)))

    def _log_once(self, name: str) -> None:
        """Log the name of an ignored event or field, once a session: the same few come with every frame."""
        if name not in self._ignored_names:
            self._ignored_names.add(name)
            self._context.run(logs.get().info, "ignored", mode=self.mode, name=name)

    def _revoke_token(self) -> None:
        if self._resume_token is not None:
            self._resumable_sessions.remove(self._resume_token)
            self._resume_token = None

    def _throttle(self, wait_s: float) -> None:
        """Pause reading for `wait_s`; end the session of a client that has been too fast for too long."""
        if not wait_s or self._attachment is None:
            return
        assert self._driver is not None
        if self._pacer.is_over_limit:
            self._terminate_flood()
            return
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
        self._attachment.websocket.pause_reading()
        # One burst alone can be more than may be processed within the patience.
        patience_s = self._pacer.patience_s
        delay_s, on_delay_end = (wait_s, self._resume_reading) if wait_s <= patience_s else (patience_s, self._terminate_flood)
        # The session must not take for silence what is not read.
        self._driver.receive_from_client(ClientThrottled(delay_s))
        self._throttle_timer = asyncio.get_running_loop().call_later(delay_s, on_delay_end)

    def _terminate_flood(self) -> None:
        message = "Audio or images arrive faster than they can be processed, for too long."
        self.terminate(ClientError(message, code="rate_limit_exceeded", type="rate_limit_error"), POLICY_VIOLATION)

    def _resume_reading(self) -> None:
        self._throttle_timer = None
        if self._attachment is not None:
            self._attachment.websocket.resume_reading()

    def terminate(self, error: ClientError, code: int) -> None:
        """End the session because of the client's fault: it reads the error and `code`, and can't resume."""
        assert self._driver is not None and self._attachment is not None, "what it does comes on a WebSocket"
        self.end_reason = "refused"
        # Detached first, so that the end of the WebSocket is not taken for a lost connection.
        websocket = self._detach(self._attachment)
        self._send_error(websocket, error)
        websocket.close(code, close_reason(error.message))
        self._revoke_token()
        self._driver.hang_up()

    def on_disconnect(self, attachment: Attachment) -> None:
        """A WebSocket has closed. If its client may resume, wait for it."""
        # One that was replaced or detached closes later, which is nothing to its session.
        if attachment is not self._attachment:
            return
        websocket = self._detach(attachment)
        is_lost = websocket.close_code is None or websocket.close_code in PROXY_CLOSE_CODES
        if is_lost and self._resume_token is not None and self._pending_close is None and self._resend_buffer is not None:
            self._resend_buffer.mark_disconnected()
            self._resume_timer = asyncio.get_running_loop().call_later(self._resume_s, self._expire)
            self.resume()  # the slow reader is gone, and the buffer takes what comes
        else:
            self._expire()

    def _detach(self, attachment: Attachment) -> ServerWebSocket:
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
        """The client did not come back in time, or missed too much: end the session."""
        assert self._driver is not None
        # `flush` calls this later, and the client may have come back meanwhile.
        if self._attachment is not None:
            return
        self._cancel_resume_timer()
        self._revoke_token()
        self._resend_buffer = None
        self._driver.hang_up()

    def pause(self) -> None:
        if self._driver is not None:
            self._driver.pause()

    def resume(self) -> None:
        if self._driver is not None:
            self._driver.resume()
