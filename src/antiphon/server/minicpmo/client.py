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

from antiphon.errors import ClientMistake, Fault
from antiphon.protocols.minicpmo.session import CLOSE_CODES, Garbled, Held, Resumed
from antiphon.runtime.core.taps import Tap
from antiphon.server.live.client import Hearer, reason_of
from antiphon.server.minicpmo.pacing import SoundPace
from antiphon.server.minicpmo.resume import MISSED_LIMIT_BYTES, SENT_LIMIT_BYTES, Resumable, Sent
from antiphon.server.transport.websocket import Socket
from antiphon.server.transport.websocket_frames import DEFECT, NORMAL, RESTART, TOO_BIG, UNSUPPORTED
from antiphon.wire.minicpmo.client_events import DuplexAppend, Mode, SessionClose, decode_client
from antiphon.wire.minicpmo.media import RATE_IN_HZ
from antiphon.wire.minicpmo.server_events import Error, ErrorEvent, ServerEvent, SessionClosed, SessionCreated, encode_server

POLICY = 1008
"""The code of a WebSocket that is closed because of what its client asks or does."""

CODES = CLOSE_CODES | {"server_is_overloaded": 1013}
"""Codes of closing by the fault's."""

RESTARTED = (1012, 1013, 1014)
"""Codes with which a proxy closes that goes away: its client has not."""

APPEND_LIMIT_BYTES = 1 << 20
"""The largest event in audio once the session has begun: what is long are recordings of voices, with which it begins."""

BYTES_PER_S = 2 * RATE_IN_HZ

SAID_ENDS = ("user_stop", "timeout", "init_timeout", "idle_timeout", "backend_error", "shutdown", "unauthorized")
"""Reasons that are counted under their own name; a client's may be anything."""


def code_of(fault: Fault | None) -> int:
    """The code with which a WebSocket closes."""
    if fault is None:
        return NORMAL
    return CODES.get(fault.code or "", POLICY if isinstance(fault, ClientMistake) else DEFECT)


def error_event(fault: Fault) -> ErrorEvent:
    """The event that says what is wrong."""
    param = fault.param if fault.param is not None else UNSET
    return ErrorEvent(error=Error(code=fault.code or "session_failed", message=fault.message, type=fault.type, param=param))


class Line:
    """
    One WebSocket of a client, of which it may have several, one after another.

    Attributes:
        socket: the WebSocket, once it is accepted.
    """

    def __init__(self) -> None:
        self.socket: Socket
        self._owner: MinicpmoClient | None = None
        self._has_gone = False

    async def accept(self, upgrade: Callable[["Line"], Awaitable[Socket]]) -> None:
        """Accept the WebSocket. Nothing is read of it yet."""
        self.socket = await upgrade(self)

    def lead_to(self, owner: "MinicpmoClient") -> None:
        """Whatever comes, comes for `owner`, until it is let go."""
        self._owner = owner
        if self._has_gone:
            owner.on_gone(self)

    def let_go(self) -> None:
        """What comes is for nobody any more."""
        self._owner = None

    def refuse(self, fault: Fault) -> None:
        """Say what is wrong, and close."""
        self.socket.send(encode_server(error_event(fault)))
        self.socket.flush()
        self.socket.close(code_of(fault), reason_of(fault.message))

    # As the socket sees it

    def on_text(self, text: bytes) -> None:
        """The client sent a frame."""
        if self._owner is not None:
            self._owner.on_text(text)

    def on_binary(self, _content: bytes) -> None:
        """The client sent bytes, of which the protocol has none."""
        if self._owner is not None:
            mistake = ClientMistake("Events must be JSON in text frames; a binary frame came.", code="invalid_payload")
            self._owner.dismiss(mistake, UNSUPPORTED)

    def on_gone(self) -> None:
        """The client has gone, or was closed."""
        self._has_gone = True
        if self._owner is not None:
            self._owner.on_gone(self)

    def pause(self) -> None:
        """The client is behind."""
        if self._owner is not None:
            self._owner.pause()

    def resume(self) -> None:
        """The client has caught up."""
        if self._owner is not None:
            self._owner.resume()


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
        self, mode: Mode, tenant: str, tap: Tap, resumable: "Resumable[MinicpmoClient]", resume_s: float, pace: SoundPace | None = None
    ) -> None:
        self.end = "left"
        self.tenant = tenant
        self.mode: Mode = mode
        self._tap = tap
        self._resumable = resumable
        self._resume_s = resume_s
        self._pace = pace or SoundPace()
        self._driver: Hearer | None = None
        self._line: Line | None = None
        self._token: str | None = None
        self._sent: Sent | None = None
        self._goodbye: tuple[int, str] | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._held: asyncio.TimerHandle | None = None
        self._has_begun = False

    def meet(self, line: Line, driver: Hearer) -> None:
        """Talk on that WebSocket, to that driver."""
        self._driver = driver
        self._line = line
        line.lead_to(self)

    def come_back(self, line: Line, after: int | None) -> bool:
        """
        Go on, on another WebSocket.

        Args:
            after: the number of the last frame that it has seen; None for all that were sent while it had a WebSocket.

        Returns:
            Whether it can: nothing is missing of what it has not seen.
        """
        assert self._sent is not None and self._driver is not None
        if self._line is not None:  # its end has not been noticed here
            self._sent.lose()
        missed = self._sent.after(after)
        if missed is None:
            return False
        if self._line is not None:
            self._part(self._line).close(RESTART, "The session goes on on another connection.")
            self.resume()
        self._stop_waiting()
        self._line = line
        for frame in missed:
            line.socket.send(frame)
        line.lead_to(self)
        if self._goodbye is None:
            self._driver.hear(Resumed())
        else:
            self._token_is_void()
            line.socket.close(*self._goodbye)
        return True

    # As the driver sees it

    def send(self, event: Any) -> None:
        """Take an event for the client."""
        if type(event) is SessionCreated:
            self._created(event)
        elif type(event) is SessionClosed:
            self.end = event.reason if event.reason in SAID_ENDS else "left"
        frame = self._framed(event)
        if self._line is not None:
            self._line.socket.send(frame)

    def _framed(self, event: ServerEvent) -> bytes:
        """The event as it is sent; who listens in has heard it."""
        self._tap.told(event)
        frame = encode_server(event)
        return frame if self._sent is None else self._sent.number(frame)

    def _complain(self, socket: Socket, fault: Fault) -> None:
        """Say what went wrong, past the session: as the last event, and like the others with the time once the session has begun."""
        event = error_event(fault)
        event.server_send_ts = time.time() if self._has_begun else UNSET
        socket.send(self._framed(event))

    def _created(self, event: SessionCreated) -> None:
        self._has_begun = True
        if isinstance(event.resume_token, str) and self._resume_s:
            self._sent = Sent()
            self._token = event.resume_token
            self._resumable.add(self._token, self)

    def flush(self) -> None:
        """What was sent may leave, in one write."""
        if self._line is not None:
            self._line.socket.flush()
            if self._sent is not None:
                self._sent.trim(SENT_LIMIT_BYTES)
        elif self._sent is not None and self._sent.trim(MISSED_LIMIT_BYTES) and self._token is not None:
            # Not at once: the session is in the middle of deciding.
            asyncio.get_running_loop().call_soon(self._give_up)

    def close(self, fault: Fault | None) -> None:
        """The session is over."""
        if fault is not None and self.end == "left":
            self.end = "failed"
        self._goodbye = code_of(fault), reason_of(fault.message if fault else "")
        if self._line is not None:
            self._token_is_void()
            self._line.socket.close(*self._goodbye)

    def fail(self, fault: Fault) -> None:
        """There is no session, or it can't go on."""
        self.end = "failed"
        self._token_is_void()
        if self._line is not None:
            socket = self._part(self._line)
            self._complain(socket, fault)
            socket.flush()
            socket.close(code_of(fault), reason_of(fault.message))

    # As its WebSocket sees it

    def on_text(self, text: bytes) -> None:
        """The client sent a frame."""
        assert self._driver is not None
        if self.mode == "audio" and self._has_begun and len(text) > APPEND_LIMIT_BYTES:
            self.dismiss(
                ClientMistake(f"The event is larger than {APPEND_LIMIT_BYTES} bytes.", code="invalid_payload", param="input.audio"), TOO_BIG
            )
            return
        try:
            event: Any = decode_client(text, self.mode)
        except ClientMistake as mistake:
            self._driver.hear(Garbled(mistake))
            return
        self._tap.said(event)
        if type(event) is SessionClose:
            self._token_is_void()
        self._driver.hear(event)
        if type(event) is DuplexAppend:
            self._pay(self._pace.spend(len(event.pcm) / BYTES_PER_S, len(event.frames)))

    def _token_is_void(self) -> None:
        if self._token is not None:
            self._resumable.drop(self._token)
            self._token = None

    def _pay(self, owed_s: float) -> None:
        """Read no faster than is fair; whoever never stops is dropped."""
        if not owed_s or self._line is None:
            return
        assert self._driver is not None
        if self._pace.is_hopeless:
            self._dismiss_flood()
            return
        if self._held is not None:
            self._held.cancel()
        self._line.socket.pause_reading()
        # What came at once may be more than could be taken in before patience ends.
        patience_s = self._pace.patience_s
        held_s, then = (owed_s, self._read_on) if owed_s <= patience_s else (patience_s, self._dismiss_flood)
        self._driver.hear(Held(held_s))
        self._held = asyncio.get_running_loop().call_later(held_s, then)

    def _dismiss_flood(self) -> None:
        why = "Sound or pictures come faster than they could be taken in, and for too long."
        self.dismiss(ClientMistake(why, code="rate_limit_exceeded", type="rate_limit_error"), POLICY)

    def _read_on(self) -> None:
        self._held = None
        if self._line is not None:
            self._line.socket.resume_reading()

    def dismiss(self, mistake: ClientMistake, code: int) -> None:
        """End the session because of what its client does."""
        assert self._driver is not None and self._line is not None, "what it does comes on a WebSocket"
        self.end = "refused"
        socket = self._part(self._line)
        self._complain(socket, mistake)
        socket.close(code, reason_of(mistake.message))
        self._token_is_void()
        self._driver.hang_up()

    def on_gone(self, line: Line) -> None:
        """That WebSocket is no more."""
        if line is not self._line:
            return
        socket = self._part(line)
        is_lost = socket.close_code is None or socket.close_code in RESTARTED
        if is_lost and self._token is not None and self._goodbye is None and self._sent is not None:
            self._sent.lose()
            self._grace = asyncio.get_running_loop().call_later(self._resume_s, self._give_up)
            self.resume()
        else:
            self._give_up()

    def _part(self, line: Line) -> Socket:
        """Have nothing more to do with that WebSocket."""
        line.let_go()
        self._line = None
        if self._held is not None:
            self._held.cancel()
            self._held = None
        return line.socket

    def _stop_waiting(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    def _give_up(self) -> None:
        """The client is not coming back."""
        assert self._driver is not None
        if self._line is not None:
            return
        self._stop_waiting()
        self._token_is_void()
        self._sent = None
        self._driver.hang_up()

    def pause(self) -> None:
        """The client is behind."""
        if self._driver is not None:
            self._driver.pause()

    def resume(self) -> None:
        """The client has caught up, or is not there to wait for."""
        if self._driver is not None:
            self._driver.resume()
