"""What every answer adds to the numbers, and to the log where content is wanted there."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Protocol

from antiphon.errors import ApiError
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.service import Service
from antiphon.server.transport import logs
from antiphon.wire.codec.types import encode
from antiphon.wire.responses.events import (
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseQueued,
)

OPENING_EVENTS = (ResponseCreated, ResponseQueued, ResponseInProgress)
"""Events that say nothing yet of how it went."""

TERMINAL_EVENTS = (ResponseCompleted, ResponseIncomplete, ResponseFailed)


class ResponseOutcome(Protocol):
    """
    A client that remembers what it was told.

    Attributes:
        first_at: when the first event came that says something, by the clock for durations; None before.
        last: the latest event; None before the first.
        fault: what it was closed with.
    """

    first_token_at: float | None
    last_event: Any
    error: ApiError | None


@contextlib.contextmanager
def measure_response(service: Service, model: ServedModel, client: ResponseOutcome, started_at: float) -> Iterator[None]:
    """Count an answer at its end, however it ends."""
    try:
        yield
    finally:
        metrics = service.metrics
        name = metrics.label(model.name, model.family)
        response = client.last_event.response if isinstance(client.last_event, TERMINAL_EVENTS) else None
        outcome = str(response.status) if response else "failed" if client.error else "cancelled"
        metrics.answers[name, outcome].observe(time.perf_counter() - started_at)
        if client.first_token_at is not None:
            metrics.first_token[name].observe(client.first_token_at - started_at)
        if response and response.usage:
            metrics.tokens[name, "input"] += response.usage.input_tokens
            metrics.tokens[name, "output"] += response.usage.output_tokens
        if response and service.config.logging.content:
            logs.get().info("answered", content=encode(response).decode())
