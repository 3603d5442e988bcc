"""HTTP connections to one upstream, reused by later requests."""

import asyncio
import ssl

from msgspec import Struct

from antiphon.engines.upstream.http_connection import HttpConnection
from antiphon.errors import UpstreamError

IDLE_TIMEOUT_S = 30.0

MAX_IDLE_CONNECTIONS = 64


class UpstreamAddress(Struct, frozen=True):
    """Where an upstream listens; `tls` is None for plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


class HttpConnectionPool:
    """
    Connections to `address`. The one used last is used next, so that those not needed reach their idle timeout.

    Args:
        connect_timeout_s: for TCP and TLS together.
        idle_timeout_s: how long an unused connection stays open.
    """

    def __init__(self, address: UpstreamAddress, connect_timeout_s: float, idle_timeout_s: float = IDLE_TIMEOUT_S) -> None:
        self._address = address
        self._connect_timeout_s = connect_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._idle: dict[HttpConnection, float] = {}  # since when, by the loop's clock; the first has been for longest
        self._idle_timer: asyncio.TimerHandle | None = None
        self._all: set[HttpConnection] = set()

    async def lease(self, *, is_new: bool = False) -> HttpConnection:
        """
        A connection ready for a request: an idle one if there is any, or with `is_new` always a new one.

        Raises:
            UpstreamError: none can be opened.
        """
        return (None if is_new else self.lease_idle()) or await self._connect()

    def lease_idle(self) -> HttpConnection | None:
        """An idle connection; None if there is none."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.is_open:
                return connection
        return None

    def close(self) -> None:
        """Close every connection; idempotent."""
        for connection in tuple(self._all):
            connection.abort()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    async def _connect(self) -> HttpConnection:
        address = self._address
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: HttpConnection(self._add_idle, self._remove), address.host, address.port, ssl=address.tls
                )
        except TimeoutError:
            raise UpstreamError(
                f"The model server could not be reached in {self._connect_timeout_s:g} seconds.", status=504, code="upstream_timeout"
            ) from None
        except ssl.SSLError as error:
            raise UpstreamError(f"The model server's TLS can't be trusted: {error.reason or error}.", code="upstream_unreachable") from None
        except OSError as error:
            raise UpstreamError(
                f"The model server can't be reached: {error.strerror or 'no such address'}.", code="upstream_unreachable"
            ) from None
        if connection.is_open:
            self._all.add(connection)
        return connection

    def _add_idle(self, connection: HttpConnection) -> None:
        if len(self._idle) >= MAX_IDLE_CONNECTIONS:
            connection.abort()
            return
        self._idle[connection] = connection.loop.time()
        if self._idle_timer is None:  # one for all: it is set once in a while, instead of for each request
            self._idle_timer = connection.loop.call_later(self._idle_timeout_s, self._close_idle, connection.loop)

    def _close_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the connections that have been idle for too long, and look again when the next one has."""
        self._idle_timer = None
        for connection, idle_since in tuple(self._idle.items()):
            rest_s = idle_since + self._idle_timeout_s - loop.time()
            if rest_s > 0.001:  # uvloop counts whole milliseconds, so a timer may fire so much too early
                self._idle_timer = loop.call_later(rest_s, self._close_idle, loop)
                return
            connection.abort()

    def _remove(self, connection: HttpConnection) -> None:
        self._all.discard(connection)
        self._idle.pop(connection, None)
