"""
The client of a Realtime session: turns WebSocket frames into the session's events, and back.

The engine and the session are opened before the WebSocket is accepted, so that what fails until then is a plain HTTP
error. Events that the session sends meanwhile wait here.
"""

from collections.abc import Awaitable, Callable

from antiphon.errors import ApiError, ClientError
from antiphon.protocols.realtime.session import RealtimeMessage, UnreadableRealtimeEvent
from antiphon.runtime.core.taps import Tap
from antiphon.server.live.client import ClientListener, close_code, close_reason
from antiphon.server.transport.websocket import ServerWebSocket
from antiphon.wire.codec.structure import check_event_structure
from antiphon.wire.realtime.client_events import ClientEvent, find_event_id
from antiphon.wire.realtime.dialects import Dialect
from antiphon.wire.realtime.server_events import ServerEvent


def deliver_event(text: bytes, decode: Callable[[bytes], ClientEvent], tap: Tap, driver: ClientListener[RealtimeMessage]) -> None:
    """Decode a client's event and pass it on; an invalid one becomes the session's event for that."""
    try:
        # Counted before it is decoded: a small message can stand for very many values (docs/decisions/0022).
        check_event_structure(text)
        event = decode(text)
    # Realtime, errors: most are recoverable and the session stays open; the `error` names the event, so its id is looked for.
    except ClientError as error:
        driver.receive_from_client(UnreadableRealtimeEvent(error, find_event_id(text)))
        return
    tap.on_client_event(event)
    driver.receive_from_client(event)


class RealtimeClient:
    """
    The client of one session.

    Attributes:
        end_reason: why the session ended, as a metrics label.
    """

    def __init__(self, dialect: Dialect, tap: Tap) -> None:
        self.end_reason = "failed"
        self._decode = dialect.decode_client
        self._encode = dialect.encode_server
        self._tap = tap
        self._driver: ClientListener[RealtimeMessage] | None = None
        self._websocket: ServerWebSocket | None = None
        self._early_frames: list[bytes] = []
        self._pending_close: tuple[int, str] | None = None

    async def accept(
        self, driver: ClientListener[RealtimeMessage], upgrade: Callable[["RealtimeClient"], Awaitable[ServerWebSocket]]
    ) -> None:
        """Accept the WebSocket, and send the events that waited for it."""
        self._driver = driver
        websocket = await upgrade(self)
        self._websocket = websocket
        for frame in self._early_frames:
            websocket.send(frame)
        self._early_frames.clear()
        websocket.flush()
        # Only now: an answer to what the client sends must not come before what waited here.
        if self._pending_close is None:
            websocket.resume_reading()
        else:
            websocket.close(*self._pending_close)

    async def wait_closed(self) -> None:
        """Wait until the WebSocket has closed; returns at once where it was never accepted."""
        if self._websocket is not None:
            await self._websocket.wait_closed()

    # Called by the driver

    def send(self, event: ServerEvent) -> None:
        frame = self._encode(event)
        if frame is None:  # the dialect has no such event
            return
        self._tap.on_server_event(event)
        if self._websocket is None:
            self._early_frames.append(frame)
        else:
            self._websocket.send(frame)

    def flush(self) -> None:
        if self._websocket is not None:
            self._websocket.flush()

    def close(self, error: ApiError | None) -> None:
        code, self.end_reason = close_code(error)
        self._pending_close = code, close_reason(error.message if error else "")
        if self._websocket is not None:
            self._websocket.close(*self._pending_close)

    # WebSocketListener

    def on_text(self, text: bytes) -> None:
        assert self._driver is not None
        deliver_event(text, self._decode, self._tap, self._driver)

    def on_disconnect(self) -> None:
        if self._driver is not None:
            self._driver.hang_up()

    def pause(self) -> None:
        if self._driver is not None:
            self._driver.pause()

    def resume(self) -> None:
        if self._driver is not None:
            self._driver.resume()
