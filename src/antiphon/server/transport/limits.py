"""Limits that all connections share, and their counters."""

import asyncio
import resource
import time
from collections import Counter
from collections.abc import Callable

from antiphon.config.settings import ServerSettings
from antiphon.errors import ApiError, ClientError, overloaded_error
from antiphon.runtime.core.metrics import Metrics

BODY_LIMIT_BYTES = 32 << 20

DISCARD_LIMIT_BYTES = 2 * BODY_LIMIT_BYTES
"""How much of a refused body is read and dropped: many clients read the error only after they have sent everything."""

MIN_BODY_BYTES_PER_S = 1024

HEAD_LIMIT_BYTES = 64 << 10

HEAD_LIMIT_FIELDS = 100

BACKLOG_LIMIT_BYTES = 1 << 20
"""Limit of the write buffer of a slow client; if the engine still goes on, the connection is dropped."""

FRAMING_LIMIT_BYTES, FRAMING_LIMIT_FACTOR = 64 << 10, 8
"""
Limit of a chunked body's framing: a constant, and a factor on the body's bytes, which is enough for chunks of one byte
each.

Chunk extensions have no meaning here, and no limit of their own (RFC 9112 7.1.1).
"""

LINGER_S = 2.0
"""
How long a refused client may go on sending before it is cut off: with an immediate close, it would not read the error
(RFC 9112 9.6).
"""

UNSENT_LIMIT_BYTES = 128 << 10
"""Unsent bytes that the kernel buffers for one client (`TCP_NOTSENT_LOWAT`); by default it takes megabytes."""

MESSAGES_PER_S, MESSAGE_BYTES_PER_S, BURST_S = 2_000, 32 << 20, 2.0
"""How fast one WebSocket is read, and how large a burst may be: forty times what a microphone sends."""

RESERVED_FILES = 128
"""Open files besides client connections: the store, the log, engines and their upstreams."""


class ConnectionLimiter:
    """
    Counts connections; one for each server process.

    Attributes:
        settings: the configured limits.
        metrics: where dropped connections are counted.
    """

    def __init__(self, settings: ServerSettings, metrics: Metrics, max_connections: int | None = None) -> None:
        self.settings = settings
        self.metrics = metrics
        self._max_connections = settings.connections if max_connections is None else max_connections
        self._open_by_address: Counter[str] = Counter()

    def acquire(self, address: str) -> ApiError | None:
        """Count a new connection; returns an error where there are too many."""
        limit = self.settings.connections_per_address
        if self.metrics.connections >= self._max_connections:
            self.count_dropped("connection_limit")
            return overloaded_error("The server has too many connections. Please try again later.")
        if limit and self._open_by_address[address] >= limit:
            self.count_dropped("address_limit")
            return ClientError(
                f"There are too many connections from your address: the limit is {limit}.",
                status=429,
                type="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after_s=1,
            )
        self.metrics.connections += 1
        self._open_by_address[address] += 1
        return None

    def release(self, address: str) -> None:
        """A counted connection has ended."""
        self.metrics.connections -= 1
        self._open_by_address[address] -= 1
        if not self._open_by_address[address]:
            del self._open_by_address[address]

    def count_dropped(self, reason: str) -> None:
        """A connection is closed by the server, in the metrics."""
        self.metrics.dropped[reason] += 1


class TokenBucket:
    """
    Limits how fast a client may send: messages and bytes fill a backlog of seconds, which time drains.

    Args:
        clock: in seconds, for durations.
        bytes_per_s: of all messages together.
    """

    __slots__ = ("_backlog_s", "_clock", "_s_per_byte", "_s_per_message", "_updated_at")

    def __init__(
        self,
        messages_per_s: float = MESSAGES_PER_S,
        clock: Callable[[], float] = time.monotonic,
        bytes_per_s: float = MESSAGE_BYTES_PER_S,
    ) -> None:
        self._clock = clock
        self._s_per_byte = 1 / bytes_per_s
        self._s_per_message = 1 / messages_per_s
        self._backlog_s = 0.0
        self._updated_at = clock()

    def consume(self, messages: int, size_bytes: int) -> float:
        """Count what arrived; returns for how many seconds to stop reading."""
        now = self._clock()
        self._backlog_s = (
            max(0.0, self._backlog_s - (now - self._updated_at)) + messages * self._s_per_message + size_bytes * self._s_per_byte
        )
        self._updated_at = now
        return max(0.0, self._backlog_s - BURST_S)


def raise_file_limit(connections: int) -> int:
    """
    Raise this process's limit of open files as far as needed and allowed.

    Returns:
        How many connections it has room for, at most `connections`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    file_count = connections + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < file_count:
        soft = file_count if hard == resource.RLIM_INFINITY else min(file_count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections if soft == resource.RLIM_INFINITY else min(connections, max(1, soft - RESERVED_FILES))


def end_writing(transport: asyncio.Transport) -> None:
    """
    Send nothing more, and read on for a while, so that the client gets to read what was sent.

    TLS has no half-closed connections; uvloop's closes once the client has answered its `close_notify`, and until then
    reads and drops as well.
    """
    if transport.can_write_eof():
        transport.write_eof()
    else:
        transport.close()


def body_too_large(limit_bytes: int = BODY_LIMIT_BYTES) -> ClientError:
    """The request's body is over the limit."""
    return ClientError(f"The request body is too large. The limit is {limit_bytes} bytes.", status=413, code="request_too_large")
