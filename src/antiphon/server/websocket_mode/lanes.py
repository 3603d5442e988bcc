"""
Which requests of a connection run now: in each lane one after the other, in up to `RUNNING_LIMIT` lanes at once.

Source: OpenAI's guide to WebSocket mode, on `stream_id`.
"""

import re
from collections import deque
from typing import Generic, TypeVar

from antiphon.errors import ClientError
from antiphon.server.websocket_mode.memory import Lane

T = TypeVar("T")

# The guide's limits: 16 responses in progress and 32 named streams a connection.
RUNNING_LIMIT = 16
NAME_LIMIT = 32
WAITING_LIMIT = 64
"""How many requests may wait for one that runs; OpenAI names no limit."""

STREAM_ID_PATTERN = r"^[A-Za-z0-9_.-]{1,256}$"


def read_stream_id(value: object) -> Lane:
    """
    The lane that an event's `stream_id` names.

    Raises:
        ClientError: `invalid_stream_id`.
    """
    if value is None:
        return None
    if isinstance(value, str) and re.fullmatch(STREAM_ID_PATTERN, value, re.ASCII) and not value.endswith("\n"):
        return value
    raise ClientError(
        f"Invalid 'stream_id'. Expected a string that matches the pattern '{STREAM_ID_PATTERN}'.",
        code="invalid_stream_id",
        param="stream_id",
    )


class Lanes(Generic[T]):
    """The requests of one connection that have not ended."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._running: set[Lane] = set()
        self._waiting: deque[tuple[Lane, T]] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self._running and not self._waiting

    def add(self, lane: Lane, request: T) -> None:
        """
        Add a request at the end of its lane.

        Raises:
            ClientError: there are too many lanes, or too many requests wait; nothing was added.
        """
        if len(self._waiting) >= WAITING_LIMIT:
            raise ClientError(
                f"Too many requests wait on this WebSocket connection: the limit is {WAITING_LIMIT}, besides {RUNNING_LIMIT} that run. "
                "Please try again when one of them has ended.",
                status=429,
                type="rate_limit_error",
                code="rate_limit_exceeded",
            )
        if lane is not None and lane not in self._names:
            if len(self._names) >= NAME_LIMIT:
                raise ClientError(
                    f"This WebSocket connection has too many streams: the limit is {NAME_LIMIT}. "
                    "Use one of those it has, or another connection.",
                    code="websocket_stream_limit_reached",
                    param="stream_id",
                )
            self._names.add(lane)
        self._waiting.append((lane, request))

    def add_first(self, lane: Lane, request: T) -> None:
        """Add a request before all others, in a lane that there is."""
        self._waiting.appendleft((lane, request))

    def start_next(self) -> tuple[Lane, T] | None:
        """The oldest request that may run now, which then does; None where there is none."""
        if len(self._running) >= RUNNING_LIMIT:
            return None
        # A busy lane keeps its own requests waiting, and not those of other lanes behind them.
        for index, (lane, request) in enumerate(self._waiting):
            if lane not in self._running:
                del self._waiting[index]
                self._running.add(lane)
                return lane, request
        return None

    def finish(self, lane: Lane) -> None:
        """The request that runs in a lane has ended, so that the lane may run its next one."""
        self._running.discard(lane)

    def drop_waiting(self) -> list[tuple[Lane, T]]:
        """Take out and return all that wait, in their order; what runs goes on."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting
