"""The WebSocket under a conversation: how it is opened, what is counted on it, and how it breaks."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

import aiohttp

from antiphon.cli.common.client import ApiClient, ServerUnreachable, unreachable_error
from antiphon.errors import UpstreamError

OPEN_TIMEOUT_S = 60
"""How long a server may take to open a session: it may have ears and a voice to load first."""

_CLOSE_TIMEOUT_S = 1.0
_PING_INTERVAL_S = 30.0
_MAX_MESSAGE_BYTES = 64 << 20


class ReceivedFrame(NamedTuple):
    """
    What the server said.

    Attributes:
        at_s: when it came, on the clock of the loop.
    """

    text: bytes
    at_s: float


class EventSocket:
    """
    What goes both ways on an open WebSocket.

    Attributes:
        sent: how many events were said, by type; `received` likewise.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.sent_counts: Counter[str] = Counter()
        self.received_counts: Counter[str] = Counter()

    async def send(self, text: str, event_type: str) -> None:
        """
        Send an event of that type.

        Raises:
            UpstreamError: nobody is there any more.
        """
        try:
            await self._socket.send_str(text)
        except (aiohttp.ClientError, ConnectionError):
            raise self._closed_error() from None
        self.sent_counts[event_type] += 1

    async def receive(self, timeout_s: float | None = None) -> ReceivedFrame | None:
        """
        The next event; None when none came in time.

        Raises:
            UpstreamError: the server has hung up.
        """
        try:
            async with asyncio.timeout(timeout_s):
                message = await self._socket.receive()
        except TimeoutError:
            return None
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise self._closed_error(message)
        return ReceivedFrame(message.data.encode(), asyncio.get_running_loop().time())

    def _closed_error(self, message: aiohttp.WSMessage | None = None) -> UpstreamError:
        reason = f": {message.extra}" if message is not None and message.type is aiohttp.WSMsgType.CLOSE and message.extra else ""
        return UpstreamError(f"The server has ended the conversation ({self._socket.close_code or 'the connection broke'}{reason}).")


@contextlib.asynccontextmanager
async def connect_websocket(client: ApiClient, path: str, headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """
    A WebSocket at that path of the server's.

    Raises:
        UpstreamError: the server is not there, or declines.
    """
    key = {} if client.key is None else {"Authorization": f"Bearer {client.key}"}
    patience = aiohttp.ClientWSTimeout(ws_close=_CLOSE_TIMEOUT_S)
    async with aiohttp.ClientSession() as http, contextlib.AsyncExitStack() as held:
        opening = http.ws_connect(
            client.base_url + path,
            headers={**headers, **key},
            timeout=patience,
            heartbeat=_PING_INTERVAL_S,
            max_msg_size=_MAX_MESSAGE_BYTES,
        )
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                socket = await held.enter_async_context(opening)
        except aiohttp.WSServerHandshakeError as refusal:
            raise await asyncio.to_thread(_refusal_error, client, path, refusal.status) from None
        except TimeoutError:
            raise ServerUnreachable(f"The server at {client.base_url} opened no session within {OPEN_TIMEOUT_S} s.") from None
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise unreachable_error(client.base_url, error) from None
        yield socket


def _refusal_error(client: ApiClient, path: str, status: int) -> UpstreamError:
    """Why there is no session: in the server's words, which a plain request is told where a handshake is not."""
    try:
        client.get(path)
    except UpstreamError as trouble:
        if trouble.status == status:
            return trouble
    return UpstreamError(f"The server at {client.base_url} opened no session, but answered {status}.", status=status)
