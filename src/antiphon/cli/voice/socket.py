"""The WebSocket under a conversation: how it is opened, what is counted on it, and how it breaks."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

import aiohttp

from antiphon.cli.common.client import Client, Unreachable, unreachable
from antiphon.errors import UpstreamTrouble

OPENING_S = 60
"""How long a server may take to open a session: it may have ears and a voice to load first."""

_FAREWELL_S = 1.0
_PING_S = 30.0
_MESSAGE_BYTES = 64 << 20


class Frame(NamedTuple):
    """
    What the server said.

    Attributes:
        at_s: when it came, on the clock of the loop.
    """

    text: bytes
    at_s: float


class Frames:
    """
    What goes both ways on an open WebSocket.

    Attributes:
        sent: how many events were said, by type; `received` likewise.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()

    async def write(self, text: str, kind: str) -> None:
        """
        Send an event of that type.

        Raises:
            UpstreamTrouble: nobody is there any more.
        """
        try:
            await self._socket.send_str(text)
        except (aiohttp.ClientError, ConnectionError):
            raise self._broken() from None
        self.sent[kind] += 1

    async def read(self, within_s: float | None = None) -> Frame | None:
        """
        The next event; None when none came in time.

        Raises:
            UpstreamTrouble: the server has hung up.
        """
        try:
            async with asyncio.timeout(within_s):
                message = await self._socket.receive()
        except TimeoutError:
            return None
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise self._broken(message)
        return Frame(message.data.encode(), asyncio.get_running_loop().time())

    def _broken(self, message: aiohttp.WSMessage | None = None) -> UpstreamTrouble:
        reason = f": {message.extra}" if message is not None and message.type is aiohttp.WSMsgType.CLOSE and message.extra else ""
        return UpstreamTrouble(f"The server has ended the conversation ({self._socket.close_code or 'the connection broke'}{reason}).")


@contextlib.asynccontextmanager
async def opened(client: Client, path: str, headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """
    A WebSocket at that path of the server's.

    Raises:
        UpstreamTrouble: the server is not there, or declines.
    """
    key = {} if client.key is None else {"Authorization": f"Bearer {client.key}"}
    patience = aiohttp.ClientWSTimeout(ws_close=_FAREWELL_S)
    async with aiohttp.ClientSession() as http, contextlib.AsyncExitStack() as held:
        opening = http.ws_connect(
            client.base_url + path, headers={**headers, **key}, timeout=patience, heartbeat=_PING_S, max_msg_size=_MESSAGE_BYTES
        )
        try:
            async with asyncio.timeout(OPENING_S):
                socket = await held.enter_async_context(opening)
        except aiohttp.WSServerHandshakeError as refusal:
            raise await asyncio.to_thread(_declined, client, path, refusal.status) from None
        except TimeoutError:
            raise Unreachable(f"The server at {client.base_url} opened no session within {OPENING_S} s.") from None
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise unreachable(client.base_url, error) from None
        yield socket


def _declined(client: Client, path: str, status: int) -> UpstreamTrouble:
    """Why there is no session: in the server's words, which a plain request is told where a handshake is not."""
    try:
        client.get(path)
    except UpstreamTrouble as trouble:
        if trouble.status == status:
            return trouble
    return UpstreamTrouble(f"The server at {client.base_url} opened no session, but answered {status}.", status=status)
