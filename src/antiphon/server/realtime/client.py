"""
A Realtime session's client: what comes on its WebSocket as events for the session, and the session's events as frames.

The engine is opened, and the session begun, before the WebSocket is accepted: what fails until then is a plain HTTP error. What the
session says meanwhile waits here.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from antiphon.errors import ClientMistake, Fault
from antiphon.protocols.realtime.session import Garbled
from antiphon.runtime.core.taps import Tap
from antiphon.server.live.client import Hearer, reason_of
from antiphon.server.transport.websocket import Socket
from antiphon.wire.realtime.client_events import event_id_of
from antiphon.wire.realtime.dialects import Dialect

ENDS = {"session_expired": (1001, "expired"), "server_shutting_down": (1012, "stopped"), "invalid_api_key": (3000, "revoked")}
"""By the fault's code: the WebSocket's code, and what the end is counted as."""


class RealtimeClient:
    """
    One session's client.

    Attributes:
        end: why the session ended, in one of few words.
    """

    def __init__(self, dialect: Dialect, tap: Tap) -> None:
        self.end = "failed"
        self._decode = dialect.decode_client
        self._encode = dialect.encode_server
        self._tap = tap
        self._driver: Hearer | None = None
        self._socket: Socket | None = None
        self._early: list[bytes] = []
        self._goodbye: tuple[int, str] | None = None

    async def accept(self, driver: Hearer, upgrade: Callable[["RealtimeClient"], Awaitable[Socket]]) -> None:
        """Accept the WebSocket, and send what has waited for it."""
        self._driver = driver
        socket = await upgrade(self)
        self._socket = socket
        for frame in self._early:
            socket.send(frame)
        self._early.clear()
        socket.flush()
        if self._goodbye is None:
            socket.resume_reading()
        else:
            socket.close(*self._goodbye)

    async def wait_closed(self) -> None:
        """Return when the WebSocket has closed; at once where it was never accepted."""
        if self._socket is not None:
            await self._socket.wait_closed()

    # As the driver sees it

    def send(self, event: Any) -> None:
        """Take an event for the client; a dialect may have no such event."""
        frame = self._encode(event)
        if frame is None:
            return
        self._tap.told(event)
        if self._socket is None:
            self._early.append(frame)
        else:
            self._socket.send(frame)

    def flush(self) -> None:
        """What was sent may leave, in one write."""
        if self._socket is not None:
            self._socket.flush()

    def close(self, fault: Fault | None) -> None:
        """The session is over."""
        code, self.end = (1000, "left") if fault is None else ENDS.get(fault.code or "", (1011, "failed"))
        self._goodbye = code, reason_of(fault.message if fault else "")
        if self._socket is not None:
            self._socket.close(*self._goodbye)

    # As the socket sees it

    def on_text(self, text: bytes) -> None:
        """The client sent a frame."""
        assert self._driver is not None
        try:
            event: Any = self._decode(text)
        except ClientMistake as mistake:
            self._driver.hear(Garbled(mistake, event_id_of(text)))
            return
        self._tap.said(event)
        self._driver.hear(event)

    def on_gone(self) -> None:
        """The client has gone, or was closed."""
        if self._driver is not None:
            self._driver.hang_up()

    def pause(self) -> None:
        """The client is behind."""
        if self._driver is not None:
            self._driver.pause()

    def resume(self) -> None:
        """The client has caught up."""
        if self._driver is not None:
            self._driver.resume()
