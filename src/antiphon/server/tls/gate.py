"""
A connection of a server with TLS, until its handshake is done.

The first byte tells a client that speaks TLS from one that does not. The latter gets an HTTP answer that says so, where
a failed handshake would only look like a broken server.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from typing_extensions import Buffer

SHUTDOWN_S = 2.0
"""How long a client may take to answer the end of TLS (`close_notify`), while what it still sends is dropped."""

WRITE_HIGH_WATER_BYTES = 64 << 10
"""As without TLS, where it is asyncio's default; with TLS that is half a megabyte."""

DROP_REASON = "tls_handshake"

_HANDSHAKE = b"\x16"
"""The type of a TLS record with a handshake message, which a client's first one is (RFC 8446 5.1)."""


class GateConnections(Protocol):
    """Where a server counts its connections, and finds those to close when it stops."""

    def acquire(self, address: str) -> object | None:
        """Count a new connection; anything but None says why there may be no more."""

    def release(self, address: str) -> None:
        """A counted connection has ended, or counts itself from now on."""

    def count_dropped(self, reason: str) -> None:
        """A connection is closed by the server, in the metrics."""


class _FilledProtocol(Protocol):
    """asyncio's `BufferedProtocol`, which uvloop's does not name as its base."""

    def get_buffer(self, sizehint: int) -> "Buffer": ...

    def buffer_updated(self, nbytes: int) -> None: ...


class TlsGate(asyncio.Protocol):
    """
    The protocol of a connection before its own.

    Args:
        context: gives the TLS of a new connection.
        secure: makes the protocol of a connection with TLS; likewise `plain`, of one without.
        limits: counts connections.
        live: the server's connections, which it shuts down when it stops.
        timeout_s: within which the handshake must be done.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        secure: Callable[[], asyncio.Protocol],
        plain: Callable[[], asyncio.Protocol],
        limits: GateConnections,
        live: set[object],
        timeout_s: float,
    ) -> None:
        self._context = context
        self._secure = secure
        self._plain = plain
        self._limits = limits
        self._live = live
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._address: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = (self._transport.get_extra_info("peername") or ("",))[0]
        if self._limits.acquire(address) is not None:
            self._transport.abort()  # without TLS there is no way to say why
            return
        self._address = address
        self._live.add(self)
        self._timer = self._loop.call_later(self._timeout_s, self._time_out)

    def data_received(self, data: bytes) -> None:
        if self._address is None or self._transport is None:
            return
        self._early.append(data)
        if self._task is not None:  # from within TLS, before its transport is known here
            return
        if not data.startswith(_HANDSHAKE):
            self._hand_over(self._transport, self._plain())
            return
        self._transport.pause_reading()
        # It ends with the connection, at the latest with the handshake's time.
        self._task = asyncio.create_task(self._begin_tls(self._transport), name="tls")  # noqa: TID251
        # `start_tls` has its new protocol connected by a callback. What has arrived must follow that, and go before
        # what is read next: so this runs after the task's first step, and what it schedules after what that has.
        self._loop.call_soon(self._loop.call_soon, self._pass_on, self._transport, data)
        self._early.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        self._transport = None

    def _time_out(self) -> None:
        self._limits.count_dropped(DROP_REASON)
        self.shutdown()

    def shutdown(self) -> None:
        """Close the connection: the server stops, or the client takes too long."""
        if self._transport is not None:
            self._transport.abort()
        if self._task is not None:
            self._task.cancel()

    async def _begin_tls(self, transport: asyncio.Transport) -> None:
        try:
            if transport.is_closing():
                return
            secure_transport = await self._loop.start_tls(
                transport,
                self,
                self._context(),
                server_side=True,
                ssl_handshake_timeout=self._timeout_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError:  # a client that does not trust the certificate, that speaks no TLS of this decade, or that has gone
            self._limits.count_dropped(DROP_REASON)
            transport.abort()
        else:
            if secure_transport is not None and self._address is not None:
                secure_transport.set_write_buffer_limits(WRITE_HIGH_WATER_BYTES)
                self._hand_over(secure_transport, self._secure())
        finally:
            self._release()

    def _pass_on(self, transport: asyncio.Transport, data: bytes) -> None:
        """Give the bytes that arrived before TLS to its protocol, as a transport does."""
        if transport.is_closing() or transport.get_protocol() is self:
            return
        protocol, rest = cast(_FilledProtocol, transport.get_protocol()), memoryview(data)
        while rest and not transport.is_closing():
            buffer = memoryview(protocol.get_buffer(len(rest)))
            size_bytes = min(len(buffer), len(rest))
            buffer[:size_bytes] = rest[:size_bytes]
            protocol.buffer_updated(size_bytes)
            rest = rest[size_bytes:]

    def _hand_over(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        """Let the connection's own protocol have it, with what has arrived."""
        early, self._early = b"".join(self._early), []
        self._release()  # it counts itself
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if early:
            protocol.data_received(early)

    def _release(self) -> None:
        if self._address is not None:
            self._limits.release(self._address)
            self._address = None
        self._live.discard(self)
        if self._timer is not None:
            self._timer.cancel()
