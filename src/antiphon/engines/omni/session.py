"""
A connection to a MiniCPM-o worker, and the one session on it.

Events are delivered in the socket's own callback. However a session ends (closed by the worker, by an error frame, by
silence, or by a lost connection), its listener hears of it exactly once.
"""

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

import msgspec
from msgspec import Struct

from antiphon.deadline import Deadline
from antiphon.engines.upstream.websocket import WebSocketClient
from antiphon.errors import ApiError, ClientError, UpstreamError, shorten
from antiphon.wire.codec.structure import check_event_structure
from antiphon.wire.upstream.minicpmo_backend import BackendEvent, Mode, SessionInit, SessionPayload, decode_event, encode

MAX_MALFORMED_MESSAGES = 16
"""More malformed messages than this end the session."""

_CLIENT_ERROR_MESSAGES = {
    "voice_audio_decode_failed": "The reference audio could not be read.",
    "tts_voice_audio_decode_failed": "The reference audio of the voice could not be read.",
    "video_decode_failed": "The video could not be read.",
    "empty_messages": "There is nothing to answer.",
}
"""Reasons of the worker for ending a session that are the client's fault."""


class SessionEnd(Struct, frozen=True):
    """
    Why a session ended.

    Attributes:
        is_from_worker: whether the worker ended it with a message; then the worker is still alive.
        may_retry: whether the worker may only be cleaning up after the session before.
    """

    error: ApiError
    is_from_worker: bool
    may_retry: bool = False


class BackendSessionListener(Protocol):
    """Handles what comes in a session."""

    def on_events(self, events: Sequence[BackendEvent]) -> None:
        """These events arrived together."""

    def on_session_end(self, session: "BackendSession", end: SessionEnd) -> None:
        """A session that had begun is over; called once."""


class BackendSession:
    """
    A connection with one session.

    Args:
        mode: of the session.
        idle_timeout_s: how long the worker may be silent while an answer is due.
        hang_timeout_s: how long it may leave a ping unanswered, with the silence before; None for any time.
        note: takes lines for the operator.

    Attributes:
        websocket: the connection.
        has_begun: whether `session.init` was sent, so that there is a session to close.
        session_id: the worker's id of the session; None before `session.created`.
        end_future: done when the worker has closed the session or the connection is lost.
        received_bytes: of all messages.
        received_count: of all messages.
        is_answering: whether the worker sends events without further input, as it does while it answers a question.
    """

    def __init__(self, mode: Mode, idle_timeout_s: float, hang_timeout_s: float | None, note: Callable[[str], None]) -> None:
        self.mode = mode
        self.websocket = WebSocketClient(self) if hang_timeout_s is None else WebSocketClient(self, hang_timeout_s / 2)
        self._hang_timeout_s = hang_timeout_s
        self.has_begun = False
        self.session_id: str | None = None
        self.is_answering = False
        self.received_bytes = 0
        self.received_count = 0
        self._loop = asyncio.get_running_loop()
        self.end_future: asyncio.Future[SessionEnd] = self._loop.create_future()
        self._creation_future: asyncio.Future[BackendEvent | SessionEnd] = self._loop.create_future()
        self._idle_timeout_s = idle_timeout_s
        self._note = note
        self._listener: BackendSessionListener | None = None
        self._malformed_count = 0
        self._is_paused = False
        self._deadline = Deadline(self._on_timeout)

    @property
    def is_open(self) -> bool:
        """Whether the session has not ended."""
        return not self.end_future.done()

    async def begin(self, payload: SessionPayload, timeout_s: float, listener: BackendSessionListener) -> BackendEvent | SessionEnd:
        """
        Begin the session; returns its `session.created`, or why it did not begin.

        Args:
            listener: gets all later events.
        """
        self.has_begun = True
        self.websocket.is_patient = True  # the C++ server rebuilds the model's context, and answers nothing meanwhile
        self.send(SessionInit(payload=payload), expects_reply=False)  # `timeout_s` limits this reply
        try:
            async with asyncio.timeout(timeout_s):
                outcome = await asyncio.shield(self._creation_future)
        except TimeoutError:
            error = UpstreamError(f"The worker did not begin its session in {timeout_s:g} seconds.", status=504, code="upstream_timeout")
            outcome = SessionEnd(error, is_from_worker=False)
        if isinstance(outcome, BackendEvent):
            if self.end_future.done():  # in the same batch of messages
                return self.end_future.result()
            self._listener = listener
        return outcome

    def send(self, message: object, *, expects_reply: bool = True) -> None:
        """Send a message; one that expects a reply starts the idle timeout."""
        self.websocket.send(encode(message))
        if expects_reply and self._deadline.due_at == inf:
            self._start_timeout()

    def detach(self) -> None:
        """Deliver nothing more to the listener."""
        self._listener = None
        self._deadline.cancel()

    def close(self) -> None:
        """Close the connection, without a call of the listener."""
        self.detach()
        self._deadline.close()
        self.websocket.close()
        self._resolve(SessionEnd(UpstreamError("The session is over."), is_from_worker=False))

    def pause(self) -> None:
        """Stop reading; the idle timeout stands still."""
        self._is_paused = True
        self.websocket.pause()

    def resume(self) -> None:
        """Read on."""
        self._is_paused = False
        if self._deadline.due_at < inf:
            self._start_timeout()
        self.websocket.resume()

    # From the WebSocket

    def on_messages(self, messages: Sequence[bytes]) -> None:
        batch: list[BackendEvent] = []
        for message in messages:
            self.received_bytes += len(message)
            self.received_count += 1
            try:
                check_event_structure(message)
                event = decode_event(message)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ClientError):
                self._malformed_count += 1
                continue
            if event.type in ("session.closed", "error"):
                self._notify_listener(batch)
                self._finish(SessionEnd(self._to_error(event), is_from_worker=True))
                return
            if event.type == "session.created":
                self._on_created(event)
            elif event.type in ("response.output.delta", "response.done"):
                batch.append(event)
        self._deadline.due_at = inf
        self._notify_listener(batch)
        if self.is_answering and self.is_open:
            self._start_timeout()
        if self._malformed_count > MAX_MALFORMED_MESSAGES:
            self._finish(
                SessionEnd(UpstreamError("The worker sends messages that are not of its protocol.", code="upstream_malformed"), False)
            )

    def _on_created(self, event: BackendEvent) -> None:
        self.session_id = event.session_id
        self.websocket.is_patient = self._hang_timeout_s is None
        if not self._creation_future.done():
            self._creation_future.set_result(event)

    def _notify_listener(self, events: list[BackendEvent]) -> None:
        if events and self._listener is not None:
            self._listener.on_events(events)

    def on_close(self, code: int, _reason: str) -> None:
        if self.websocket.is_silent:
            message = f"The worker has stopped answering: nothing came from it for {self._hang_timeout_s:g} seconds."
            self._finish(SessionEnd(UpstreamError(message, status=504, code="upstream_timeout"), is_from_worker=False))
            return
        suffix = f" ({code})" if code else ""
        error = UpstreamError(f"The worker closed the connection{suffix}.", code="upstream_broke_off")
        # It isn't documented whether the C++ server sends a close frame while it cleans up, so any close may be
        # retried. A retry finds out whether the worker has died.
        self._finish(SessionEnd(error, is_from_worker=False, may_retry=True))

    def _to_error(self, event: BackendEvent) -> ApiError:
        reason = event.reason if event.reason and event.reason.replace("_", "").isalnum() else "error"
        if event.diagnostic or event.error:
            self._note(f"a session ended ({reason}): {shorten(event.diagnostic or event.error, 500)}")
        if reason in _CLIENT_ERROR_MESSAGES:
            return ClientError(_CLIENT_ERROR_MESSAGES[reason], code="invalid_value", param="input")
        return UpstreamError(f"The worker ended the session ({shorten(reason, 64)}).", code="backend_error")

    def _finish(self, end: SessionEnd) -> None:
        self._deadline.close()
        self._resolve(end)
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.on_session_end(self, end)

    def _resolve(self, end: SessionEnd) -> None:
        if not self._creation_future.done():
            self._creation_future.set_result(end)
        if not self.end_future.done():
            self.end_future.set_result(end)

    # The idle timeout

    def _start_timeout(self) -> None:
        self._deadline.set(self._loop.time() + self._idle_timeout_s)

    def _on_timeout(self) -> None:
        if self._is_paused:
            self._start_timeout()
            return
        error = UpstreamError(f"The worker sent nothing for {self._idle_timeout_s:g} seconds.", status=504, code="upstream_timeout")
        self._finish(SessionEnd(error, is_from_worker=False))
