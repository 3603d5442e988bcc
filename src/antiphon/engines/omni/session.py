"""
A connection to a MiniCPM-o worker, and the one session on it.

What the worker says is told in the socket's own callback. However a connection ends, that is told once: by the worker in good order, by
a frame that says what went wrong, by silence, or by a socket that is gone.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from antiphon.engines.upstream.websocket import WebSocketClient
from antiphon.errors import ApiError, ClientError, UpstreamError, shorten
from antiphon.wire.upstream.minicpmo_backend import BackendEvent, Mode, SessionInit, SessionPayload, decode_event, encode

MAX_MALFORMED_MESSAGES = 16
"""So many messages that are none, and the worker is not one to listen to."""

_CLIENT_ERROR_MESSAGES = {
    "voice_audio_decode_failed": "The reference audio could not be read.",
    "tts_voice_audio_decode_failed": "The reference audio of the voice could not be read.",
    "video_decode_failed": "The video could not be read.",
    "empty_messages": "There is nothing to answer.",
}
"""Reasons for which a worker ends a session that was asked for what can't be."""


class SessionEnd(Struct, frozen=True):
    """
    Why there is no session any more.

    Attributes:
        was_said: whether the worker said so itself; it is then still there.
        may_retry: whether it may only be that it has not cleared up yet what was before.
    """

    error: ApiError
    is_from_worker: bool
    may_retry: bool = False


class BackendSessionListener(Protocol):
    """Who talks on a line."""

    def on_events(self, events: Sequence[BackendEvent]) -> None:
        """The worker said this, all of it together."""

    def on_session_end(self, session: "BackendSession", end: SessionEnd) -> None:
        """Nothing more comes; told once, of a session that had begun."""


class BackendSession:
    """
    A connection.

    Args:
        mode: of the session that is meant.
        idle_s: how long the worker may say nothing when it has something to do.
        note: takes lines for the operator.

    Attributes:
        link: the socket.
        has_begun: whether a session was asked for; there is then one to be closed.
        session_id: by which the worker knows the session; None before it has begun.
        closed: done when the worker says that the session is closed, or the connection is gone.
        is_answering: whether more is to come without more being told.
    """

    def __init__(self, mode: Mode, idle_timeout_s: float, note: Callable[[str], None]) -> None:
        self.mode = mode
        self.websocket = WebSocketClient(self)
        self.has_begun = False
        self.session_id: str | None = None
        self.is_answering = False
        self._loop = asyncio.get_running_loop()
        self.end_future: asyncio.Future[SessionEnd] = self._loop.create_future()
        self._creation_future: asyncio.Future[BackendEvent | SessionEnd] = self._loop.create_future()
        self._idle_timeout_s = idle_timeout_s
        self._note = note
        self._listener: BackendSessionListener | None = None
        self._malformed_count = 0
        self._waiting_since: float | None = None
        self._is_paused = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether anything told may still be heard."""
        return not self.end_future.done()

    async def begin(self, payload: SessionPayload, timeout_s: float, listener: BackendSessionListener) -> BackendEvent | SessionEnd:
        """
        Begin the session: what the worker says of it, or why there is none.

        Args:
            listener: is told all that comes after that.
        """
        self.has_begun = True
        self._write(SessionInit(payload=payload))
        try:
            async with asyncio.timeout(timeout_s):
                said = await asyncio.shield(self._creation_future)
        except TimeoutError:
            fault = UpstreamError(f"The worker did not begin its session in {timeout_s:g} seconds.", status=504, code="upstream_timeout")
            said = SessionEnd(fault, is_from_worker=False)
        if isinstance(said, BackendEvent):
            if self.end_future.done():  # since then, before anybody listened
                return self.end_future.result()
            self._listener = listener
        return said

    def send(self, message: object) -> None:
        """Tell the worker something that it will answer."""
        self._write(message)
        if self._waiting_since is None:
            self._start_idle_timer()

    def _write(self, message: object) -> None:
        self.websocket.send(encode(message))

    def send_close(self, message: object) -> None:
        """Tell the worker something that it need not answer."""
        self._write(message)

    def detach(self) -> None:
        """Tell the listener nothing more."""
        self._listener = None
        self._waiting_since = None
        self._cancel_timer()

    def close(self) -> None:
        """Close the connection; nothing more is told of it."""
        self.detach()
        self.websocket.close()
        self._resolve(SessionEnd(UpstreamError("The session is over."), is_from_worker=False))

    def pause(self) -> None:
        """Read nothing, and let no time pass."""
        self._is_paused = True
        self.websocket.pause()

    def resume(self) -> None:
        """Read on."""
        self._is_paused = False
        if self._waiting_since is not None:
            self._waiting_since = self._loop.time()
        self.websocket.resume()

    # What the link says

    def on_messages(self, messages: Sequence[bytes]) -> None:
        """Messages came together."""
        heard: list[BackendEvent] = []
        for message in messages:
            try:
                said = decode_event(message)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._malformed_count += 1
                continue
            if said.type in ("session.closed", "error"):
                self._notify_listener(heard)
                self._finish(SessionEnd(self._to_error(said), is_from_worker=True))
                return
            if said.type == "session.created":
                self._on_created(said)
            elif said.type in ("response.output.delta", "response.done"):
                heard.append(said)
        self._waiting_since = None
        self._notify_listener(heard)
        if self.is_answering and self.is_open:
            self._start_idle_timer()
        if self._malformed_count > MAX_MALFORMED_MESSAGES:
            self._finish(
                SessionEnd(UpstreamError("The worker sends what is no message of its protocol.", code="upstream_malformed"), False)
            )

    def _on_created(self, event: BackendEvent) -> None:
        self.session_id = event.session_id
        if not self._creation_future.done():
            self._creation_future.set_result(event)

    def _notify_listener(self, events: list[BackendEvent]) -> None:
        if events and self._listener is not None:
            self._listener.on_events(events)

    def on_close(self, code: int, _reason: str) -> None:
        """The connection is gone."""
        said = f" ({code})" if code else ""
        fault = UpstreamError(f"The worker closed the connection{said}.", code="upstream_broke_off")
        # Nobody says whether the C++ server sends a close frame before it hangs up; one that has died is seen to be gone when dialled.
        self._finish(SessionEnd(fault, is_from_worker=False, may_retry=True))

    def _to_error(self, event: BackendEvent) -> ApiError:
        reason = event.reason if event.reason and event.reason.replace("_", "").isalnum() else "error"
        if event.diagnostic or event.error:
            self._note(f"a session ended ({reason}): {shorten(event.diagnostic or event.error, 500)}")
        if reason in _CLIENT_ERROR_MESSAGES:
            return ClientError(_CLIENT_ERROR_MESSAGES[reason], code="invalid_value", param="input")
        return UpstreamError(f"The worker ended the session ({shorten(reason, 64)}).", code="backend_error")

    def _finish(self, end: SessionEnd) -> None:
        self._cancel_timer()
        self._resolve(end)
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.on_session_end(self, end)

    def _resolve(self, end: SessionEnd) -> None:
        if not self._creation_future.done():
            self._creation_future.set_result(end)
        if not self.end_future.done():
            self.end_future.set_result(end)

    # Time

    def _start_idle_timer(self) -> None:
        self._waiting_since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._idle_timeout_s, self._check_idle)

    def _check_idle(self) -> None:
        # Frames only note the time: a timer for each would cost more than the frame.
        self._timer = None
        if self._waiting_since is None:
            return
        left_s = self._idle_timeout_s if self._is_paused else self._waiting_since + self._idle_timeout_s - self._loop.time()
        if left_s > 0.001:
            self._timer = self._loop.call_later(left_s, self._check_idle)
            return
        fault = UpstreamError(f"The worker said nothing for {self._idle_timeout_s:g} seconds.", status=504, code="upstream_timeout")
        self._finish(SessionEnd(fault, is_from_worker=False))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
