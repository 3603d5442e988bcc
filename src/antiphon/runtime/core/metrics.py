"""
What the server counts of itself: plain numbers that anyone on the event loop may raise, and `/metrics` tells.

A token raises one integer at most; everything else is counted once a request.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from msgspec import Struct, structs

DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Bounds for how long something took from end to end."""

QUEUE_WAIT_BUCKETS_S = (0.0, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""Bounds for how long people wait for a place."""

FIRST_TOKEN_BUCKETS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Bounds for the time to the first token; those of OpenTelemetry's GenAI conventions."""

MAX_MODEL_LABELS = 100
"""The most names that are counted apart of those that a configured name with a `*` stands for: it is clients who choose them."""

WorkerState = Literal["idle", "busy", "draining", "quarantined", "offline"]

UpstreamState = Literal["closed", "half_open", "open"]
"""A circuit breaker's: traffic flows, is tried, or is held back."""


Key = TypeVar("Key")
Number = TypeVar("Number", int, float)


class Histogram(Struct):
    """How many values lie between bounds, and their sum."""

    bounds: Sequence[float]
    counts: list[int] = []
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """One more value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def __add__(self, other: "Histogram") -> "Histogram":
        counts = [ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)]
        return Histogram(self.bounds, counts, self.total + other.total)


class Snapshot(Struct, frozen=True, kw_only=True):
    """
    The numbers of one server, or of several processes together, at one moment; the attributes are those of `Metrics`.

    Attributes:
        upstreams: how many processes have the breaker of an upstream in which state.
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
    session_sound_s: Mapping[str, float] = {}
    first_sound: Mapping[str, Histogram] = {}
    speculations: Mapping[str, int] = {}
    audio_tokens: Mapping[tuple[str, str], int] = {}
    store_writes: Mapping[str, int] = {}
    recordings: Mapping[str, int] = {}
    recordings_waiting_bytes: int = 0
    upstreams: Mapping[tuple[str, UpstreamState], int] = {}
    upstream_failures: Mapping[tuple[str, str], int] = {}
    queue_waiting: Mapping[str, int] = {}
    queue_serving: Mapping[str, int] = {}
    queue_waits: Mapping[str, Histogram] = {}
    queue_tickets: Mapping[tuple[str, str, str], int] = {}
    workers: Mapping[tuple[str, WorkerState], int] = {}

    def __add__(self, other: "Snapshot") -> "Snapshot":
        return Snapshot(
            requests=_add_histograms(self.requests, other.requests),
            active=self.active + other.active,
            connections=self.connections + other.connections,
            stream_events=self.stream_events + other.stream_events,
            tokens=_add_counts(self.tokens, other.tokens),
            first_token=_add_histograms(self.first_token, other.first_token),
            answers=_add_histograms(self.answers, other.answers),
            dropped=_add_counts(self.dropped, other.dropped),
            sessions=self.sessions + other.sessions,
            sessions_ended=_add_counts(self.sessions_ended, other.sessions_ended),
            minicpmo_sessions=_add_counts(self.minicpmo_sessions, other.minicpmo_sessions),
            minicpmo_sessions_ended=_add_counts(self.minicpmo_sessions_ended, other.minicpmo_sessions_ended),
            minicpmo_resumes=_add_counts(self.minicpmo_resumes, other.minicpmo_resumes),
            session_events=_add_counts(self.session_events, other.session_events),
            session_responses=_add_counts(self.session_responses, other.session_responses),
            session_sound_s=_add_counts(self.session_sound_s, other.session_sound_s),
            first_sound=_add_histograms(self.first_sound, other.first_sound),
            speculations=_add_counts(self.speculations, other.speculations),
            audio_tokens=_add_counts(self.audio_tokens, other.audio_tokens),
            store_writes=_add_counts(self.store_writes, other.store_writes),
            recordings=_add_counts(self.recordings, other.recordings),
            recordings_waiting_bytes=self.recordings_waiting_bytes + other.recordings_waiting_bytes,
            upstreams=_add_counts(self.upstreams, other.upstreams),
            upstream_failures=_add_counts(self.upstream_failures, other.upstream_failures),
            queue_waiting=_add_counts(self.queue_waiting, other.queue_waiting),
            queue_serving=_add_counts(self.queue_serving, other.queue_serving),
            queue_waits=_add_histograms(self.queue_waits, other.queue_waits),
            queue_tickets=_add_counts(self.queue_tickets, other.queue_tickets),
            workers=_add_counts(self.workers, other.workers),
        )

    def without_gauges(self) -> "Snapshot":
        """What is left of it when its process has ended."""
        gauges = ("minicpmo_sessions", "upstreams", "queue_waiting", "queue_serving", "workers")
        none: dict[str, Mapping[Any, int]] = {name: {} for name in gauges}
        return structs.replace(self, active=0, connections=0, sessions=0, recordings_waiting_bytes=0, **none)


def _add_counts(ours: Mapping[Key, Number], theirs: Mapping[Key, Number]) -> Mapping[Key, Number]:
    return {key: ours.get(key, 0) + theirs.get(key, 0) for key in ours.keys() | theirs.keys()}


def _add_histograms(ours: Mapping[Key, Histogram], theirs: Mapping[Key, Histogram]) -> Mapping[Key, Histogram]:
    return {**ours, **{key: ours[key] + value if key in ours else value for key, value in theirs.items()}}


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
        sessions: Realtime sessions that are open.
        sessions_ended: by model and why.
        minicpmo_sessions: MiniCPM-o sessions that are open, by mode.
        minicpmo_sessions_ended: by model, mode and why.
        minicpmo_resumes: clients that came back to their session, by `resumed` and `refused`.
        session_events: by `in` and `out`.
        session_responses: by model and status.
        session_sound_s: seconds of sound, by `in` and `out`.
        first_sound: seconds from the end of speech to the first of the answer's sound, by model.
        speculations: answers begun before the person's turn was over, by `begun`, `used` and `dropped`.
        audio_tokens: those of `tokens` that were sound.
        store_writes: records written, by `kept` or `failed`.
        recordings: recordings of sessions, by what became of them.
        recordings_waiting_bytes: those that have ended and could not be kept yet.
        upstreams: the state of each upstream's breaker.
        upstream_failures: by upstream and what it did.
        queue_waiting: how many wait, by model; likewise `queue_serving`.
        queue_waits: seconds until whoever waited had a place, by model.
        queue_tickets: by model, kind, and what became of them.
        workers: how many of a model are in which state.
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
        self.session_sound_s: defaultdict[str, float] = defaultdict(float)
        self.first_sound: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(FIRST_TOKEN_BUCKETS_S))
        self.speculations: Counter[str] = Counter()
        self.audio_tokens: Counter[tuple[str, str]] = Counter()
        self.store_writes: Counter[str] = Counter()
        self.recordings: Counter[str] = Counter()
        self.recordings_waiting_bytes = 0
        self.upstreams: dict[str, UpstreamState] = {}
        self.upstream_failures: Counter[tuple[str, str]] = Counter()
        self.queue_waiting: Mapping[str, int] = {}
        self.queue_serving: Mapping[str, int] = {}
        self.queue_waits: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(QUEUE_WAIT_BUCKETS_S))
        self.queue_tickets: Counter[tuple[str, str, str]] = Counter()
        self.workers: Mapping[tuple[str, WorkerState], int] = {}
        self._family_labels: defaultdict[str, set[str]] = defaultdict(set)

    def label(self, model: str, family: str | None) -> str:
        """The name under which a model is counted: its own, or its family's where so many of that were asked for already."""
        if family is None or model in (asked_for := self._family_labels[family]):
            return model
        if len(asked_for) >= MAX_MODEL_LABELS:
            return family
        asked_for.add(model)
        return model

    def count_speculation(self, outcome: Literal["begun", "used", "dropped"]) -> None:
        """An answer was begun before it was asked for, or this has become of it."""
        self.speculations[outcome] += 1

    def on_upstream_state(self, name: str, state: UpstreamState) -> None:
        """The breaker of an upstream has changed its mind."""
        self.upstreams[name] = state

    def on_upstream_error(self, name: str, reason: str) -> None:
        """An upstream did not answer as it should; `reason` is one of few words, such as `timeout`."""
        self.upstream_failures[name, reason] += 1

    def attach_pool(self, waiting: Mapping[str, int], serving: Mapping[str, int], workers: Mapping[tuple[str, WorkerState], int]) -> None:
        """Read what is kept elsewhere: who waits and who is served, by model, and the workers by model and state."""
        self.queue_waiting, self.queue_serving, self.workers = waiting, serving, workers

    def snapshot(self) -> Snapshot:
        """What the numbers are now; good until the next of them changes."""
        return Snapshot(
            requests=self.requests,
            active=self.active,
            connections=self.connections,
            stream_events=self.stream_events,
            tokens=self.tokens,
            first_token=self.first_token,
            answers=self.answers,
            dropped=self.dropped,
            sessions=self.sessions,
            sessions_ended=self.sessions_ended,
            minicpmo_sessions=self.minicpmo_sessions,
            minicpmo_sessions_ended=self.minicpmo_sessions_ended,
            minicpmo_resumes=self.minicpmo_resumes,
            session_events=self.session_events,
            session_responses=self.session_responses,
            session_sound_s=self.session_sound_s,
            first_sound=self.first_sound,
            speculations=self.speculations,
            audio_tokens=self.audio_tokens,
            store_writes=self.store_writes,
            recordings=self.recordings,
            recordings_waiting_bytes=self.recordings_waiting_bytes,
            upstreams={(name, state): 1 for name, state in self.upstreams.items()},
            upstream_failures=self.upstream_failures,
            queue_waiting=self.queue_waiting,
            queue_serving=self.queue_serving,
            queue_waits=self.queue_waits,
            queue_tickets=self.queue_tickets,
            workers=self.workers,
        )
