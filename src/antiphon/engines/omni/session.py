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

from antiphon.engines.upstream.websocket import Link
from antiphon.errors import ClientMistake, Fault, UpstreamTrouble, shown
from antiphon.wire.upstream.minicpmo_backend import Mode, Opening, Said, SessionInit, decode_said, encode

GARBLED_LIMIT = 16
"""So many messages that are none, and the worker is not one to listen to."""

_MISTAKES = {
    "voice_audio_decode_failed": "The reference audio could not be read.",
    "tts_voice_audio_decode_failed": "The reference audio of the voice could not be read.",
    "video_decode_failed": "The video could not be read.",
    "empty_messages": "There is nothing to answer.",
}
"""Reasons for which a worker ends a session that was asked for what can't be."""


class Parting(Struct, frozen=True):
    """
    Why there is no session any more.

    Attributes:
        was_said: whether the worker said so itself; it is then still there.
        may_retry: whether it may only be that it has not cleared up yet what was before.
    """

    fault: Fault
    was_said: bool
    may_retry: bool = False


class Listener(Protocol):
    """Who talks on a line."""

    def heard(self, said: Sequence[Said]) -> None:
        """The worker said this, all of it together."""

    def parted(self, line: "Line", parting: Parting) -> None:
        """Nothing more comes; told once, of a session that had begun."""


class Line:
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

    def __init__(self, mode: Mode, idle_s: float, note: Callable[[str], None]) -> None:
        self.mode = mode
        self.link = Link(self)
        self.has_begun = False
        self.session_id: str | None = None
        self.is_answering = False
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[Parting] = self._loop.create_future()
        self._created: asyncio.Future[Said | Parting] = self._loop.create_future()
        self._idle_s = idle_s
        self._note = note
        self._listener: Listener | None = None
        self._garbled = 0
        self._waits_from: float | None = None
        self._is_paused = False
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether anything told may still be heard."""
        return not self.closed.done()

    async def begin(self, opening: Opening, patience_s: float, listener: Listener) -> Said | Parting:
        """
        Begin the session: what the worker says of it, or why there is none.

        Args:
            listener: is told all that comes after that.
        """
        self.has_begun = True
        self._send(SessionInit(payload=opening))
        try:
            async with asyncio.timeout(patience_s):
                said = await asyncio.shield(self._created)
        except TimeoutError:
            fault = UpstreamTrouble(f"The worker did not begin its session in {patience_s:g} seconds.", status=504, code="upstream_timeout")
            said = Parting(fault, was_said=False)
        if isinstance(said, Said):
            if self.closed.done():  # since then, before anybody listened
                return self.closed.result()
            self._listener = listener
        return said

    def say(self, message: object) -> None:
        """Tell the worker something that it will answer."""
        self._send(message)
        if self._waits_from is None:
            self._wait()

    def _send(self, message: object) -> None:
        self.link.send(encode(message))

    def take_leave(self, message: object) -> None:
        """Tell the worker something that it need not answer."""
        self._send(message)

    def hush(self) -> None:
        """Tell the listener nothing more."""
        self._listener = None
        self._waits_from = None
        self._be_quiet()

    def hang_up(self) -> None:
        """Close the connection; nothing more is told of it."""
        self.hush()
        self.link.close()
        self._settle(Parting(UpstreamTrouble("The session is over."), was_said=False))

    def pause(self) -> None:
        """Read nothing, and let no time pass."""
        self._is_paused = True
        self.link.pause()

    def resume(self) -> None:
        """Read on."""
        self._is_paused = False
        if self._waits_from is not None:
            self._waits_from = self._loop.time()
        self.link.resume()

    # What the link says

    def came(self, messages: Sequence[bytes]) -> None:
        """Messages came together."""
        heard: list[Said] = []
        for message in messages:
            try:
                said = decode_said(message)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._garbled += 1
                continue
            if said.type in ("session.closed", "error"):
                self._hand_on(heard)
                self._part(Parting(self._fault_of(said), was_said=True))
                return
            if said.type == "session.created":
                self._create(said)
            elif said.type in ("response.output.delta", "response.done"):
                heard.append(said)
        self._waits_from = None
        self._hand_on(heard)
        if self.is_answering and self.is_open:
            self._wait()
        if self._garbled > GARBLED_LIMIT:
            self._part(Parting(UpstreamTrouble("The worker sends what is no message of its protocol.", code="upstream_malformed"), False))

    def _create(self, said: Said) -> None:
        self.session_id = said.session_id
        if not self._created.done():
            self._created.set_result(said)

    def _hand_on(self, heard: list[Said]) -> None:
        if heard and self._listener is not None:
            self._listener.heard(heard)

    def parted(self, code: int, _reason: str) -> None:
        """The connection is gone."""
        said = f" ({code})" if code else ""
        fault = UpstreamTrouble(f"The worker closed the connection{said}.", code="upstream_broke_off")
        # Nobody says whether the C++ server sends a close frame before it hangs up; one that has died is seen to be gone when dialled.
        self._part(Parting(fault, was_said=False, may_retry=True))

    def _fault_of(self, said: Said) -> Fault:
        reason = said.reason if said.reason and said.reason.replace("_", "").isalnum() else "error"
        if said.diagnostic or said.error:
            self._note(f"a session ended ({reason}): {shown(said.diagnostic or said.error, 500)}")
        if reason in _MISTAKES:
            return ClientMistake(_MISTAKES[reason], code="invalid_value", param="input")
        return UpstreamTrouble(f"The worker ended the session ({shown(reason, 64)}).", code="backend_error")

    def _part(self, parting: Parting) -> None:
        self._be_quiet()
        self._settle(parting)
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.parted(self, parting)

    def _settle(self, parting: Parting) -> None:
        if not self._created.done():
            self._created.set_result(parting)
        if not self.closed.done():
            self.closed.set_result(parting)

    # Time

    def _wait(self) -> None:
        self._waits_from = self._loop.time()
        if self._alarm is None:
            self._alarm = self._loop.call_later(self._idle_s, self._look_at_clock)

    def _look_at_clock(self) -> None:
        # Frames only note the time: a timer for each would cost more than the frame.
        self._alarm = None
        if self._waits_from is None:
            return
        left_s = self._idle_s if self._is_paused else self._waits_from + self._idle_s - self._loop.time()
        if left_s > 0.001:
            self._alarm = self._loop.call_later(left_s, self._look_at_clock)
            return
        fault = UpstreamTrouble(f"The worker said nothing for {self._idle_s:g} seconds.", status=504, code="upstream_timeout")
        self._part(Parting(fault, was_said=False))

    def _be_quiet(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
