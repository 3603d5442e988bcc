"""HTTP connections to one upstream, reused by later requests."""

import asyncio
import ssl

from msgspec import Struct

from antiphon.engines.upstream.http_connection import HttpConnection
from antiphon.errors import UpstreamError

IDLE_TIMEOUT_S = 30.0
"""How long an unused connection stays open."""

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
    """

    def __init__(self, address: UpstreamAddress, connect_timeout_s: float) -> None:
        self._address = address
        self._connect_timeout_s = connect_timeout_s
        self._idle: dict[HttpConnection, asyncio.TimerHandle] = {}
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
            connection, idle_timer = self._idle.popitem()
            idle_timer.cancel()
            if connection.is_open:
                return connection
        return None

    def close(self) -> None:
        """Close every connection; idempotent."""
        for connection in tuple(self._all):
            connection.abort()

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
        self._idle[connection] = connection.loop.call_later(IDLE_TIMEOUT_S, connection.abort)

    def _remove(self, connection: HttpConnection) -> None:
        self._all.discard(connection)
        if (idle_timer := self._idle.pop(connection, None)) is not None:
            idle_timer.cancel()
