"""The lines of the log that say why requests to an upstream failed."""

import math
import time
from collections.abc import Callable

import structlog

from antiphon.errors import shorten

WINDOW_S = 10.0
MAX_MESSAGE_CHARS = 300


class FailureLog:
    """
    Says why requests to an upstream failed: one line in `WINDOW_S` for each reason, as a server that is down fails them
    all.

    Args:
        model: its configured name.
        upstream: the name of this one among its upstreams; empty if it has no others.
        clock: monotonic, in seconds.
    """

    def __init__(self, model: str, upstream: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._names = {"model": model} | ({"upstream": f"{model}/{upstream}"} if upstream else {})
        self._clock = clock
        self._last_at: dict[str, float] = {}
        self._silent_counts: dict[str, int] = {}

    def add(self, reason: str, message: str) -> None:
        """
        Log a failed request, unless there was a line with that reason just now; the next one counts it.

        Args:
            reason: as the metrics have it.
            message: what the upstream said, without secrets; empty if the client was told.
        """
        now = self._clock()
        if now - self._last_at.get(reason, -math.inf) < WINDOW_S:
            self._silent_counts[reason] = self._silent_counts.get(reason, 0) + 1
            return
        self._last_at[reason] = now
        fields: dict[str, object] = {"message": shorten(" ".join(message.split()), MAX_MESSAGE_CHARS)} if message else {}
        if silent_count := self._silent_counts.pop(reason, 0):
            fields["more"] = silent_count
        structlog.get_logger().warning("upstream_failed", **self._names, reason=reason, **fields)
