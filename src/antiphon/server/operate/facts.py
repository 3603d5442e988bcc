"""
What one process knows that operators want to see, collected for the process that they ask.

One process answers alone. Of several, each is asked over the link to the supervisor, and their answers become one.
"""

import os
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from antiphon.runtime.multiprocess.link import Subject
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.scheduling.engine import QueuedEngine
from antiphon.runtime.service import Service
from antiphon.runtime.statistics.recent import MinuteCounts
from antiphon.server.admin.queue import ticket_entry, worker_entry
from antiphon.server.transport.log_lines import LINES, LogLine
from antiphon.wire.codec.types import Wire, encode
from antiphon.wire.http.operate import AnswerEntry, LiveSessionEntry

Topic = Literal["status", "queue", "workers", "sessions", "models", "log", "responses"]

TOPICS: tuple[Topic, ...] = ("status", "queue", "workers", "sessions", "models", "log", "responses")

ModelState = Literal["ready", "waiting", "degraded", "failing"]

_QUEUE_STEP_S = 5
"""Estimated waits are rounded up to this: otherwise each client that waits would be an event every second."""

_SILENT_S = 3
"""A shorter silence of a worker is shown as 0: it is heard from every two seconds, and each would be an event."""


class FactsQuery(Struct, array_like=True):
    """
    What a process is asked.

    Attributes:
        log_after: by process id, the number of the last line of its log that is known. A process that is not in it sends
            its last lines, as the other fields say.
        log_limit: the most of these lines.
        log_level: index in `LEVELS`; lower ones are left out.
        log_event: lines of this event alone; None for all. `log_request_id` is the same for a request.
    """

    topics: tuple[Topic, ...]
    log_after: Mapping[int, int] = {}
    log_limit: int = 200
    log_level: int = 0
    log_event: str | None = None
    log_request_id: str | None = None


class ModelFacts(Struct, array_like=True):
    """A model as a process sees it. `engine` is empty for a model that no table configures."""

    engine: str
    state: ModelState


class ProcessFacts(Struct, array_like=True):
    """
    What a process answers. What was not asked for has its default.

    Attributes:
        rows: for the topics whose rows belong to one process, JSON objects by their ids.
        recent: of its answers, as `RecentCounts`.
    """

    pid: int
    rows: dict[str, dict[str, bytes]] = {}
    models: dict[str, ModelFacts] = {}
    recent: dict[str, dict[int, MinuteCounts]] = {}
    log: list[LogLine] = []
    is_ready: bool = True
    is_draining: bool = False
    requests: int = 0
    connections: int = 0
    sessions: int = 0
    background: int = 0
    waiting: int = 0
    serving: int = 0
    workers: dict[str, int] = {}
    recordings: int = 0


_query_decoder = msgspec.msgpack.Decoder(FactsQuery)
_facts_decoder = msgspec.msgpack.Decoder(ProcessFacts)


async def gather(service: Service, query: FactsQuery) -> Sequence[ProcessFacts]:
    """
    What all processes of this server know, the one that answers first.

    Raises:
        ServerError: the supervisor doesn't answer.
    """
    # Its own answer comes first: what all processes have alike is read from it.
    own = collect(service, query)
    if service.peers is None:
        return [own]
    others = await service.peers.ask_others("facts", msgspec.msgpack.encode(query))
    return [own, *map(_facts_decoder.decode, others)]


def answer(service: Service, subject: Subject, question: bytes) -> bytes:
    """What this process answers to another one, as bytes for the link between them; empty bytes are a no."""
    if subject == "close_session":
        return b"1" if service.live_sessions.close(question.decode()) else b""
    return msgspec.msgpack.encode(collect(service, _query_decoder.decode(question)))


async def close_session(service: Service, session_id: str) -> bool:
    """Close a session of this process or of another one; returns whether there was one."""
    if service.live_sessions.close(session_id):
        return True
    return service.peers is not None and any(await service.peers.ask_others("close_session", session_id.encode(errors="replace")))


def collect(service: Service, query: FactsQuery) -> ProcessFacts:
    """What this process knows of the topics of a query."""
    facts = ProcessFacts(os.getpid())
    for topic in query.topics:
        match topic:
            case "status":
                _collect_status(service, facts)
            # How they answered is in `recent`: counts of several processes can be added, their quantiles can't.
            case "models":
                facts.models = {model.name: _model_facts(service, model) for model in service.registry.all()}
            case "log":
                after = query.log_after.get(facts.pid)
                facts.log = [
                    *(
                        LINES.last(query.log_limit, query.log_level, query.log_event, query.log_request_id)
                        if after is None
                        else LINES.after(after)
                    )
                ]
            case _:
                facts.rows[topic] = _rows(service, topic)
    if "status" in query.topics or "models" in query.topics:
        facts.recent = {model: dict(minutes) for model, minutes in service.metrics.recent.counts().items()}
    return facts


def _collect_status(service: Service, facts: ProcessFacts) -> None:
    metrics = service.metrics
    facts.is_ready = service.is_ready and not service.is_store_away
    facts.is_draining = service.live_sessions.is_draining
    facts.requests, facts.connections = metrics.active, metrics.connections
    facts.sessions = metrics.sessions + sum(metrics.minicpmo_sessions.values())
    facts.background = service.background.count
    facts.waiting, facts.serving = sum(metrics.queue_waiting.values()), sum(metrics.queue_serving.values())
    facts.recordings = sum(metrics.recordings.values())
    for (_model, state), count in metrics.workers.items():
        if count:
            facts.workers[state] = facts.workers.get(state, 0) + count


def _model_facts(service: Service, model: ServedModel) -> ModelFacts:
    entry = next((entry for entry in service.config.models if entry.name == model.name), None)
    return ModelFacts("" if entry is None else entry.engine, _model_state(service, model))


def _model_state(service: Service, model: ServedModel) -> ModelState:
    # Not failing: a model whose workers join by themselves has none before the first does.
    if isinstance(model.engine, QueuedEngine) and not model.engine.has_worker:
        return "waiting"
    # A model with several upstreams has a circuit breaker for each, under `model/upstream`; other models have such names, too.
    names = {model.name, *(f"{view.model}/{view.name}" for view in service.registry.upstreams() if view.model == model.name)}
    breakers = [state for name, state in service.metrics.upstreams.items() if name in names]
    bad_workers = [
        state in ("quarantined", "offline")
        for (name, state), count in service.metrics.workers.items()
        if name == model.name
        for _ in range(count)
    ]
    bad_upstreams = [state != "closed" for state in breakers]
    # An answer takes one worker that is in order, and, where there are upstreams, one of these: both lists must have one.
    if any(bad and all(bad) for bad in (bad_workers, bad_upstreams)):
        return "failing"
    return "degraded" if any(bad_workers + bad_upstreams) else "ready"


def _rows(service: Service, topic: str) -> dict[str, bytes]:
    match topic:
        case "queue":
            tickets = map(ticket_entry, service.coordinator.tickets())
            rows = {
                ticket.ticket_id: msgspec.structs.replace(ticket, estimated_wait_s=_rounded_wait_s(ticket.estimated_wait_s))
                for ticket in tickets
            }
        case "workers":
            # Without their sessions, which are rows of `queue`.
            return {
                view.worker.id: _with_id(
                    view.worker.id, msgspec.structs.replace(worker_entry(view, []), silent_s=_shown_silence_s(view.silent_s))
                )
                for view in service.coordinator.workers()
            }
        case "sessions":
            return {session.id: encode(session) for session in live_sessions(service)}
        case _:
            return {answer.id: encode(answer) for answer in _answers(service)}
    return {id: _with_id(id, row) for id, row in rows.items()}


def _with_id(id: str, row: Wire) -> bytes:
    return with_id(id, encode(row))


def with_id(id: str, row: bytes) -> bytes:
    """A row whose id has a name of its own, such as `ticket_id`, with `id` before it: listeners find every row by that."""
    return b'{"id":' + msgspec.json.encode(id) + b"," + row[1:]


def _rounded_wait_s(wait_s: float | None) -> float | None:
    return None if wait_s is None else float(-(-int(wait_s) // _QUEUE_STEP_S) * _QUEUE_STEP_S)


def _shown_silence_s(silent_s: float | None) -> float | None:
    return None if silent_s is None else float(int(silent_s)) if silent_s >= _SILENT_S else 0.0


def live_sessions(service: Service) -> Collection[LiveSessionEntry]:
    """The sessions of this process, from the moment on at which their clients know their ids."""
    return [
        LiveSessionEntry(
            id=session.session_id,
            protocol=session.protocol,
            mode=session.mode,
            model=session.model,
            tenant=session.tenant,
            key_id=session.key_id,
            started_at=round(session.started_at, 3),
            ends_at=None if session.ends_at is None else round(session.ends_at, 3),
            recorded=session.is_recorded,
        )
        for session in service.live_sessions.details.values()
        if session.session_id is not None
    ]


def _answers(service: Service) -> Collection[AnswerEntry]:
    return [msgspec.convert(answer, AnswerEntry, from_attributes=True) for answer in service.answers.all()]


def now() -> float:
    """The server's clock: Unix seconds, to the millisecond."""
    return round(time.time(), 3)
