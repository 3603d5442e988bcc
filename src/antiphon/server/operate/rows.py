"""The rows of each topic, made from what the processes know: JSON objects by their ids."""

from collections.abc import Mapping, Sequence

from antiphon import __version__
from antiphon.runtime.registry import longest_pattern
from antiphon.runtime.service import Service
from antiphon.runtime.statistics.recent import ModelHealth, model_health, server_health
from antiphon.server.operate.facts import ModelState, ProcessFacts, Topic, now, with_id
from antiphon.wire.codec.types import encode
from antiphon.wire.http.operate import ModelHealthEntry, ServerState

Rows = Mapping[str, bytes]

STATUS_ID = "server"
"""The id of the only row of the topic `status`."""


def build_rows(service: Service, topic: Topic, parts: Sequence[ProcessFacts]) -> Rows:
    """The rows of a topic other than `log`, whose lines have an order and no ids."""
    match topic:
        case "status":
            return {STATUS_ID: with_id(STATUS_ID, encode(server_state(service, parts)))}
        case "models":
            return {entry.name: with_id(entry.name, encode(entry)) for entry in model_entries(parts)}
        case _:
            return {id: row for part in parts for id, row in part.rows.get(topic, {}).items()}


def server_state(service: Service, parts: Sequence[ProcessFacts]) -> ServerState:
    """The server in numbers, added up over its processes; its status is that of the process that answers."""
    health = server_health([part.recent for part in parts], now())
    workers: dict[str, int] = {}
    for part in parts:
        for state, count in part.workers.items():
            workers[state] = workers.get(state, 0) + count
    return ServerState(
        status="draining" if parts[0].is_draining else "ready" if parts[0].is_ready else "unavailable",
        version=__version__,
        started_at=service.started_at,
        processes=len(parts),
        warm_up=service.speech.warm_up_state,
        requests=sum(part.requests for part in parts),
        connections=sum(part.connections for part in parts),
        sessions=sum(part.sessions for part in parts),
        background=sum(part.background for part in parts),
        recordings=sum(part.recordings for part in parts),
        queue_length=sum(part.waiting for part in parts),
        max_queue_size=service.config.queue.size,
        serving=sum(part.serving for part in parts),
        workers=workers,
        answers=health.answers,
        errors=health.errors,
        refusals=health.refusals,
        first_token_p50_s=health.first_token_p50_s,
        first_token_p99_s=health.first_token_p99_s,
    )


_STATES: tuple[ModelState, ...] = ("ready", "waiting", "degraded", "failing")
"""From the best to the worst."""


def model_entries(parts: Sequence[ProcessFacts]) -> Sequence[ModelHealthEntry]:
    """The health of each model, in all processes: the worst that one of them says, and the sum of their answers."""
    models = parts[0].models
    # The metrics count the names behind a `*` one by one, up to a number of them; here they are one model.
    health: dict[str | None, list[ModelHealth]] = {}
    for label, counts in model_health([part.recent for part in parts], now()).items():
        health.setdefault(label if label in models else longest_pattern(label, models), []).append(counts)
    entries = []
    for name, model in models.items():
        states = [part.models[name].state for part in parts if name in part.models]
        own = health.get(name, [])
        # Quantiles of several names can't be added up; the name with the most answers stands for all.
        best = max(own, key=lambda each: each.answers, default=None)
        entries.append(
            ModelHealthEntry(
                name=name,
                engine=model.engine,
                state=max(states, key=_STATES.index),
                answers=sum(each.answers for each in own),
                errors=sum(each.errors for each in own),
                first_token_p50_s=None if best is None else best.first_token_p50_s,
                first_token_p99_s=None if best is None else best.first_token_p99_s,
            )
        )
    return entries
