"""
A Realtime session's client: what comes on its WebSocket as events for the session, and the session's events as frames.

The engine is opened, and the session begun, before the WebSocket is accepted: what fails until then is a plain HTTP error. What the
session says meanwhile waits here.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from antiphon.errors import ApiError, ClientError
from antiphon.protocols.realtime.session import UnreadableRealtimeEvent
from antiphon.runtime.core.taps import Tap
from antiphon.server.live.client import ClientListener, close_reason
from antiphon.server.transport.websocket import ServerWebSocket
from antiphon.wire.realtime.client_events import find_event_id
from antiphon.wire.realtime.dialects import Dialect

CLOSE_BY_ERROR_CODE = {
    "session_expired": (1001, "expired"),
    "server_shutting_down": (1012, "stopped"),
    "invalid_api_key": (3000, "revoked"),
}
"""By the fault's code: the WebSocket's code, and what the end is counted as."""


class RealtimeClient:
    """
    One session's client.

    Attributes:
        end: why the session ended, in one of few words.
    """

    def __init__(self, dialect: Dialect, tap: Tap) -> None:
        self.end_reason = "failed"
        self._decode = dialect.decode_client
        self._encode = dialect.encode_server
        self._tap = tap
        self._driver: ClientListener | None = None
        self._websocket: ServerWebSocket | None = None
        self._early_frames: list[bytes] = []
        self._pending_close: tuple[int, str] | None = None

    async def accept(self, driver: ClientListener, upgrade: Callable[["RealtimeClient"], Awaitable[ServerWebSocket]]) -> None:
        """Accept the WebSocket, and send what has waited for it."""
        self._driver = driver
        socket = await upgrade(self)
        self._websocket = socket
        for frame in self._early_frames:
            socket.send(frame)
        self._early_frames.clear()
        socket.flush()
        if self._pending_close is None:
            socket.resume_reading()
        else:
            socket.close(*self._pending_close)

    async def wait_closed(self) -> None:
        """Return when the WebSocket has closed; at once where it was never accepted."""
        if self._websocket is not None:
            await self._websocket.wait_closed()

    # As the driver sees it

    def send(self, event: Any) -> None:
        """Take an event for the client; a dialect may have no such event."""
        frame = self._encode(event)
        if frame is None:
            return
        self._tap.on_server_event(event)
        if self._websocket is None:
            self._early_frames.append(frame)
        else:
            self._websocket.send(frame)

    def flush(self) -> None:
        """What was sent may leave, in one write."""
        if self._websocket is not None:
            self._websocket.flush()

    def close(self, fault: ApiError | None) -> None:
        """The session is over."""
        code, self.end_reason = (1000, "left") if fault is None else CLOSE_BY_ERROR_CODE.get(fault.code or "", (1011, "failed"))
        self._pending_close = code, close_reason(fault.message if fault else "")
        if self._websocket is not None:
            self._websocket.close(*self._pending_close)

    # As the socket sees it

    def on_text(self, text: bytes) -> None:
        """The client sent a frame."""
        assert self._driver is not None
        try:
            event: Any = self._decode(text)
        except ClientError as mistake:
            self._driver.receive_from_client(UnreadableRealtimeEvent(mistake, find_event_id(text)))
            return
        self._tap.on_client_event(event)
        self._driver.receive_from_client(event)

    def on_disconnect(self) -> None:
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
