"""
What the server counts of itself: plain numbers that anyone on the event loop may raise, and `/metrics` tells.

A token raises one integer at most; everything else is counted once a request.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Literal

WHOLE_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Bounds for how long something took from end to end."""

FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Bounds for the time to the first token; those of OpenTelemetry's GenAI conventions."""

UpstreamState = Literal["closed", "half_open", "open"]
"""A circuit breaker's: traffic flows, is tried, or is held back."""


class Histogram:
    """How many values lie between bounds, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """One more value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Metrics:
    """
    The numbers of one server.

    Attributes:
        requests: seconds of every request by route, method and status.
        active: requests under way.
        connections: connections open.
        stream_events: events sent to clients that stream.
        tokens: by model and `input` or `output`.
        first_token: seconds to the first token by model.
        answers: seconds of every answer by model and how it ended.
        dropped: connections that the server closed on its own, by reason.
        store_writes: records written, by `kept` or `failed`.
        upstreams: the state of each upstream's breaker.
        upstream_failures: by upstream and what it did.
    """

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, str, int], Histogram] = defaultdict(lambda: Histogram(WHOLE_S))
        self.active = 0
        self.connections = 0
        self.stream_events = 0
        self.tokens: Counter[tuple[str, str]] = Counter()
        self.first_token: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(FIRST_TOKEN_S))
        self.answers: defaultdict[tuple[str, str], Histogram] = defaultdict(lambda: Histogram(WHOLE_S))
        self.dropped: Counter[str] = Counter()
        self.store_writes: Counter[str] = Counter()
        self.upstreams: dict[str, UpstreamState] = {}
        self.upstream_failures: Counter[tuple[str, str]] = Counter()

    def upstream_is(self, name: str, state: UpstreamState) -> None:
        """The breaker of an upstream has changed its mind."""
        self.upstreams[name] = state

    def upstream_failed(self, name: str, reason: str) -> None:
        """An upstream did not answer as it should; `reason` is one of few words, such as `timeout`."""
        self.upstream_failures[name, reason] += 1
