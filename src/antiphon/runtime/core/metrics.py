"""
The server's metrics: plain numbers, changed by any code on the event loop and shown at `/metrics`.

A token changes one integer at most; everything else is counted once per request.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, structs

from antiphon.runtime.statistics.recent import RecentAnswers

DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Bounds of durations from end to end."""

QUEUE_WAIT_BUCKETS_S = (0.0, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""Bounds of waiting times in the queue."""

FIRST_TOKEN_BUCKETS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Bounds of the time to the first token, from OpenTelemetry's GenAI conventions."""

MAX_MODEL_LABELS = 100
"""Labels for one configured name with a `*`: clients choose the names behind it, and each is a new time series."""

WorkerState = Literal["idle", "busy", "draining", "quarantined", "offline"]

UpstreamState = Literal["closed", "half_open", "open"]
"""State of a circuit breaker: requests pass, one is tried, or all are refused."""


class Histogram(Struct):
    """Counts of values between bounds, and the sum of the values."""

    bounds: Sequence[float]
    counts: list[int] = []
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Add a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def __add__(self, other: "Histogram") -> "Histogram":
        counts = [ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)]
        return Histogram(self.bounds, counts, self.total + other.total)


class Snapshot(Struct, frozen=True, kw_only=True):
    """
    The metrics of one process, or of several together, at one moment; the attributes are those of `Metrics`.

    Attributes:
        upstreams: processes by upstream and state of its breaker.
    """

    requests: Mapping[tuple[str, str, int], Histogram] = {}
    active: int = 0
    connections: int = 0
    stream_events: int = 0
    tokens: Mapping[tuple[str, str], int] = {}
    first_token: Mapping[str, Histogram] = {}
    answers: Mapping[tuple[str, str], Histogram] = {}
    dropped: Mapping[str, int] = {}
    sessions: int = 0
    sessions_ended: Mapping[tuple[str, str], int] = {}
    minicpmo_sessions: Mapping[str, int] = {}
    minicpmo_sessions_ended: Mapping[tuple[str, str, str], int] = {}
    minicpmo_resumes: Mapping[str, int] = {}
    session_events: Mapping[str, int] = {}
    session_responses: Mapping[tuple[str, str], int] = {}
    session_audio_s: Mapping[str, float] = {}
    time_to_first_audio: Mapping[str, Histogram] = {}
    speculations: Mapping[str, int] = {}
    rewrites: Mapping[tuple[str, str], int] = {}
    audio_tokens: Mapping[tuple[str, str], int] = {}
    routes: Mapping[tuple[str, str, str, str], int] = {}
    store_writes: Mapping[str, int] = {}
    recordings: Mapping[str, int] = {}
    recordings_waiting_bytes: int = 0
    upstreams: Mapping[tuple[str, UpstreamState], int] = {}
    upstream_failures: Mapping[tuple[str, str], int] = {}
    upstream_mends: Mapping[tuple[str, str], int] = {}
    upstream_attempts: Mapping[tuple[str, str], int] = {}
    upstream_choices: Mapping[tuple[str, str], int] = {}
    upstream_outstanding: Mapping[str, int] = {}
    fallbacks: Mapping[tuple[str, str, str], int] = {}
    queue_waiting: Mapping[str, int] = {}
    queue_serving: Mapping[str, int] = {}
    queue_waits: Mapping[str, Histogram] = {}
    queue_tickets: Mapping[tuple[str, str, str], int] = {}
    workers: Mapping[tuple[str, WorkerState], int] = {}
    webhook_attempts: Mapping[tuple[str, str], int] = {}
    webhooks_pending: Mapping[str, int] = {}

    def __add__(self, other: "Snapshot") -> "Snapshot":
        totals = {name: _add(getattr(self, name), getattr(other, name)) for name in self.__struct_fields__}
        # Every process counts what is pending in the store that all of them share.
        ours, theirs = self.webhooks_pending, other.webhooks_pending
        totals["webhooks_pending"] = {name: max(ours.get(name, 0), theirs.get(name, 0)) for name in {**ours, **theirs}}
        return Snapshot(**totals)

    def without_gauges(self) -> "Snapshot":
        """Only what stays when the process has ended: counters, no gauges."""
        gauges = ("minicpmo_sessions", "upstreams", "upstream_outstanding", "queue_waiting", "queue_serving", "workers", "webhooks_pending")
        none: dict[str, object] = {name: {} for name in gauges}
        return structs.replace(self, active=0, connections=0, sessions=0, recordings_waiting_bytes=0, **none)


def _add(ours: Any, theirs: Any) -> Any:
    """Two values of a field: numbers are added, mappings entry by entry."""
    if isinstance(ours, Mapping):
        return {**ours, **{key: ours[key] + value if key in ours else value for key, value in theirs.items()}}
    return ours + theirs


class Metrics:
    """
    The metrics of one process.

    Attributes:
        requests: seconds of every request by route, method and status.
        active: requests under way.
        connections: connections open.
        stream_events: events sent to clients that stream.
        tokens: by model and `input` or `output`.
        first_token: seconds to the first token by model.
        answers: seconds of every response by model and how it ended.
        dropped: connections that the server closed on its own, by reason.
        sessions: Realtime sessions that are open.
        sessions_ended: by model and why.
        minicpmo_sessions: MiniCPM-o sessions that are open, by mode.
        minicpmo_sessions_ended: by model, mode and why.
        minicpmo_resumes: clients that came back to their session, by `resumed` and `refused`.
        session_events: by `in` and `out`.
        session_responses: by model and status.
        session_audio_s: seconds of audio, by `in` and `out`.
        time_to_first_audio: seconds from the end of speech to the first audio of the response, by model.
        speculations: responses started before the end of the user's turn, by `begun`, `used` and `dropped`.
        rewrites: of answers, by name and outcome: `completed`, `unchanged` or `failed`.
        audio_tokens: those of `tokens` that were audio.
        routes: requests that were routed, by route, model, category and what decided.
        store_writes: records written, by `stored` or `failed`.
        recordings: of sessions, by outcome.
        recordings_waiting_bytes: of recordings that have ended and are not stored yet.
        upstreams: the state of each upstream's breaker.
        upstream_failures: by upstream and reason.
        upstream_mends: answers by upstream and what they lacked.
        upstream_attempts: tries of requests at one of several upstreams, by upstream and outcome.
        upstream_choices: by upstream and why it was chosen: `affinity` or `load`.
        upstream_outstanding: the requests that each of several upstreams has.
        fallbacks: responses that another model made, by model, the other one, and why.
        queue_waiting: waiting tickets by model.
        queue_serving: tickets that have a worker, by model.
        queue_waits: seconds from ticket to worker, by model.
        queue_tickets: by model, kind and outcome.
        workers: by model and state.
        webhook_attempts: by endpoint and outcome: `delivered`, `retried`, `failed` for good, or `dropped` without any.
        webhooks_pending: deliveries in the store that wait for an attempt, by endpoint, as of the latest count.
        recent: how each model did in the last hour, for operators; no part of a snapshot.
    """

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, str, int], Histogram] = defaultdict(lambda: Histogram(DURATION_BUCKETS_S))
        self.active = 0
        self.connections = 0
        self.stream_events = 0
        self.tokens: Counter[tuple[str, str]] = Counter()
        self.first_token: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(FIRST_TOKEN_BUCKETS_S))
        self.answers: defaultdict[tuple[str, str], Histogram] = defaultdict(lambda: Histogram(DURATION_BUCKETS_S))
        self.dropped: Counter[str] = Counter()
        self.sessions = 0
        self.sessions_ended: Counter[tuple[str, str]] = Counter()
        self.minicpmo_sessions: Counter[str] = Counter()
        self.minicpmo_sessions_ended: Counter[tuple[str, str, str]] = Counter()
        self.minicpmo_resumes: Counter[str] = Counter()
        self.session_events: Counter[str] = Counter()
        self.session_responses: Counter[tuple[str, str]] = Counter()
        self.session_audio_s: defaultdict[str, float] = defaultdict(float)
        self.time_to_first_audio: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(FIRST_TOKEN_BUCKETS_S))
        self.speculations: Counter[str] = Counter()
        self.rewrites: Counter[tuple[str, str]] = Counter()
        self.audio_tokens: Counter[tuple[str, str]] = Counter()
        self.routes: Counter[tuple[str, str, str, str]] = Counter()
        self.store_writes: Counter[str] = Counter()
        self.recordings: Counter[str] = Counter()
        self.recordings_waiting_bytes = 0
        self.upstreams: dict[str, UpstreamState] = {}
        self.upstream_failures: Counter[tuple[str, str]] = Counter()
        self.upstream_mends: Counter[tuple[str, str]] = Counter()
        self.upstream_attempts: Counter[tuple[str, str]] = Counter()
        self.upstream_choices: Counter[tuple[str, str]] = Counter()
        self.upstream_outstanding: dict[str, int] = {}
        self.fallbacks: Counter[tuple[str, str, str]] = Counter()
        self.queue_waiting: Mapping[str, int] = {}
        self.queue_serving: Mapping[str, int] = {}
        self.queue_waits: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(QUEUE_WAIT_BUCKETS_S))
        self.queue_tickets: Counter[tuple[str, str, str]] = Counter()
        self.workers: Mapping[tuple[str, WorkerState], int] = {}
        self.webhook_attempts: Counter[tuple[str, str]] = Counter()
        self.webhooks_pending: Mapping[str, int] = {}
        self.recent = RecentAnswers()
        self._family_labels: defaultdict[str, set[str]] = defaultdict(set)

    def label(self, model: str, family: str | None) -> str:
        """The label of a model: its own name, or its family's once `MAX_MODEL_LABELS` of that are in use."""
        if family is None or model in (labels := self._family_labels[family]):
            return model
        if len(labels) >= MAX_MODEL_LABELS:
            return family
        labels.add(model)
        return model

    def count_speculation(self, outcome: Literal["begun", "used", "dropped"]) -> None:
        """Count a speculative response, or its outcome."""
        self.speculations[outcome] += 1

    def count_rewrite(self, name: str, outcome: str) -> None:
        """Count a rewrite of an answer by its outcome."""
        self.rewrites[name, outcome] += 1

    def on_upstream_state(self, name: str, state: UpstreamState) -> None:
        self.upstreams[name] = state

    def on_upstream_error(self, name: str, reason: str) -> None:
        self.upstream_failures[name, reason] += 1

    def on_upstream_mend(self, name: str, kind: str) -> None:
        self.upstream_mends[name, kind] += 1

    def on_upstream_attempt(self, name: str, outcome: str) -> None:
        self.upstream_attempts[name, outcome] += 1

    def on_upstream_choice(self, name: str, kind: Literal["affinity", "load"]) -> None:
        self.upstream_choices[name, kind] += 1

    def on_upstream_outstanding(self, name: str, count: int) -> None:
        self.upstream_outstanding[name] = count

    def keep_upstreams(self, names: Collection[str]) -> None:
        """Show the state of these upstreams only, as the others were removed."""
        self.upstreams = {name: state for name, state in self.upstreams.items() if name in names}
        self.upstream_outstanding = {name: count for name, count in self.upstream_outstanding.items() if name in names}

    def on_fallback(self, model: str, fallback: str, reason: str) -> None:
        self.fallbacks[model, fallback, reason] += 1

    def attach_pool(self, waiting: Mapping[str, int], serving: Mapping[str, int], workers: Mapping[tuple[str, WorkerState], int]) -> None:
        """Read the pool's own counts: tickets waiting and served, by model, and workers by model and state."""
        self.queue_waiting, self.queue_serving, self.workers = waiting, serving, workers

    def snapshot(self) -> Snapshot:
        """The metrics now; shares its mappings with this object, so encode or add it before anything changes."""
        fields = {name: getattr(self, name) for name in Snapshot.__struct_fields__}
        return Snapshot(**fields | {"upstreams": {(name, state): 1 for name, state in self.upstreams.items()}})
