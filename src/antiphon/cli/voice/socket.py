"""A voice session over a WebSocket: opening it, sending and receiving events, and what its failures mean."""

import abc
import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

import aiohttp

from antiphon.cli.common.client import ApiClient, ServerUnreachable, unreachable_error
from antiphon.errors import ClientError, UpstreamError

OPEN_TIMEOUT_S = 60
"""A server may have to load its speech models before it opens a session."""

_CLOSE_TIMEOUT_S = 1.0
_TLS_CLOSE_S = 0.25
"""How long the end of TLS may take, for which aiohttp does not wait: its documentation says to sleep."""

_PING_INTERVAL_S = 30.0
_MAX_MESSAGE_BYTES = 64 << 20


class WireEvent(Protocol):
    """An event of any dialect."""

    @property
    def type(self) -> str:
        """Its `type` on the wire."""


EventT = TypeVar("EventT", bound=WireEvent)


class TimedEvent(NamedTuple, Generic[EventT]):
    """
    An event from the server.

    Attributes:
        at_s: when it arrived, on the event loop's clock.
    """

    event: EventT
    at_s: float


class EventCounts(NamedTuple):
    """Numbers of events, by type."""

    sent: Counter[str]
    received: Counter[str]


class ClientSession(abc.ABC, Generic[EventT]):
    """
    The client's side of a session; each dialect adds how its events are written and read.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.event_counts = EventCounts(Counter(), Counter())

    @abc.abstractmethod
    def decode(self, text: bytes) -> EventT:
        """
        The event in a frame.

        Raises:
            ClientError: the frame holds no event.
        """

    async def send_text(self, text: str, event_type: str) -> None:
        """
        Send an event that is encoded already.

        Raises:
            UpstreamError: the connection is closed.
        """
        try:
            await self._socket.send_str(text)
        except (aiohttp.ClientError, ConnectionError):
            raise self._closed_error() from None
        self.event_counts.sent[event_type] += 1

    async def receive(self, timeout_s: float | None = None) -> TimedEvent[EventT] | None:
        """
        The next event; None when none arrived in time.

        Raises:
            UpstreamError: the server closed the connection, or sent something that is no event.
        """
        try:
            async with asyncio.timeout(timeout_s):
                message = await self._socket.receive()
        except TimeoutError:
            return None
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise self._closed_error(message)
        try:
            event = self.decode(message.data.encode())
        except ClientError as error:  # the decoders take every sender for a client
            raise UpstreamError(f"The server sent something that is no event: {error.message}") from None
        self.event_counts.received[event.type] += 1
        return TimedEvent(event, asyncio.get_running_loop().time())

    def _closed_error(self, message: aiohttp.WSMessage | None = None) -> UpstreamError:
        reason = f": {message.extra}" if message is not None and message.type is aiohttp.WSMsgType.CLOSE and message.extra else ""
        return UpstreamError(f"The server has ended the conversation ({self._socket.close_code or 'the connection broke'}{reason}).")


@contextlib.asynccontextmanager
async def connect_websocket(client: ApiClient, path: str, headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """
    Open a WebSocket at a path of the server.

    Raises:
        UpstreamError: the server can't be reached, or refuses.
    """
    key = {} if client.key is None else {"Authorization": f"Bearer {client.key}"}
    is_tls = client.base_url.startswith("https:")
    async with aiohttp.ClientSession() as http, contextlib.AsyncExitStack() as stack:
        handshake = http.ws_connect(
            client.base_url + path,
            headers={**headers, **key},
            timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_TIMEOUT_S),
            heartbeat=_PING_INTERVAL_S,
            ssl=client.tls if is_tls else True,
            max_msg_size=_MAX_MESSAGE_BYTES,
        )
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                socket = await stack.enter_async_context(handshake)
        except aiohttp.WSServerHandshakeError as refusal:
            raise await asyncio.to_thread(_refusal_error, client, path, refusal.status) from None
        except TimeoutError:
            raise ServerUnreachable(f"The server at {client.base_url} opened no session within {OPEN_TIMEOUT_S} s.") from None
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise unreachable_error(client.base_url, error) from None
        yield socket
        await socket.close()
        if is_tls:
            await asyncio.sleep(_TLS_CLOSE_S)


def _refusal_error(client: ApiClient, path: str, status: int) -> UpstreamError:
    # aiohttp drops the body of a refused handshake: a plain GET of the same path brings the server's message.
    try:
        client.get(path)
    except UpstreamError as error:
        if error.status == status:
            return error
    return UpstreamError(f"The server at {client.base_url} opened no session; it answered {status}.", status=status)
