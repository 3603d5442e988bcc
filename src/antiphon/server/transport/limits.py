"""What every connection shares: who may come in, how long each is waited for, and what is counted."""

import resource
import time
from collections import Counter
from collections.abc import Callable

from antiphon.config.settings import ServerSettings
from antiphon.errors import ApiError, ClientError, ServerError
from antiphon.runtime.core.metrics import Metrics

BODY_LIMIT_BYTES = 32 << 20

DISCARD_LIMIT_BYTES = 2 * BODY_LIMIT_BYTES
"""How much of a body that nobody wants is read and dropped, so that its sender is through with sending and reads why it was refused."""

MIN_BODY_BYTES_PER_S = 1024

HEAD_LIMIT_BYTES = 64 << 10

HEAD_LIMIT_FIELDS = 100

BACKLOG_LIMIT_BYTES = 1 << 20
"""The most that waits for a client who is behind already; an engine that goes on all the same costs its client the connection."""

FRAMING_LIMIT_BYTES, FRAMING_LIMIT_FACTOR = 64 << 10, 8
"""
How much a body may take to be sent: so many bytes, and so many for each of its own, which is enough for chunks of one byte each.

Extensions of chunks mean nothing to anyone, and have no end of their own.
"""

UNSENT_LIMIT_BYTES = 128 << 10
"""The most that the system holds ready for one client beyond what is on its way; of its own it would take megabytes."""

MESSAGES_PER_S, MESSAGE_BYTES_PER_S, BURST_S = 2_000, 32 << 20, 2.0
"""How fast one WebSocket is read, and how much of it comes at once: forty times what a microphone sends."""

RESERVED_FILES = 128
"""Open files that are not connections from clients: the store, the log, engines and their upstreams."""


class ConnectionLimiter:
    """
    Counts connections in and out; one for a server.

    Attributes:
        settings: the limits that are set.
        metrics: where dropped connections are counted.
    """

    def __init__(self, settings: ServerSettings, metrics: Metrics, max_connections: int | None = None) -> None:
        self.settings = settings
        self.metrics = metrics
        self._max_connections = settings.connections if max_connections is None else max_connections
        self._open_by_address: Counter[str] = Counter()

    def acquire(self, address: str) -> ApiError | None:
        """Count a connection; or why there may not be one more."""
        limit = self.settings.connections_per_address
        if self.metrics.connections >= self._max_connections:
            self.metrics.dropped["connection_limit"] += 1
            return ServerError(
                "The server has too many connections. Please try again later.",
                status=503,
                type="service_unavailable_error",
                code="server_is_overloaded",
                retry_after_s=1,
            )
        if limit and self._open_by_address[address] >= limit:
            self.metrics.dropped["address_limit"] += 1
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
        """A connection that had entered has ended."""
        self.metrics.connections -= 1
        self._open_by_address[address] -= 1
        if not self._open_by_address[address]:
            del self._open_by_address[address]


class TokenBucket:
    """
    How fast a client may send: a bucket of seconds, which every message and every byte empties and time fills.

    Args:
        clock: for durations, in seconds.
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
        """Count what came; for how many seconds no more may come."""
        now = self._clock()
        self._backlog_s = (
            max(0.0, self._backlog_s - (now - self._updated_at)) + messages * self._s_per_message + size_bytes * self._s_per_byte
        )
        self._updated_at = now
        return max(0.0, self._backlog_s - BURST_S)


def raise_file_limit(connections: int) -> int:
    """
    Let this process open as many files as it may and needs.

    Returns:
        How many connections it has room for, at most `connections`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    file_count = connections + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < file_count:
        soft = file_count if hard == resource.RLIM_INFINITY else min(file_count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections if soft == resource.RLIM_INFINITY else min(connections, max(1, soft - RESERVED_FILES))


def body_too_large(limit_bytes: int = BODY_LIMIT_BYTES) -> ClientError:
    """A request's body is over the cap."""
    return ClientError(f"The request body is too large. The limit is {limit_bytes} bytes.", status=413, code="request_too_large")
