"""Metrics of responses, and their content in the log where that is enabled."""

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol

from antiphon.errors import ApiError
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.service import Service
from antiphon.server.transport import logs
from antiphon.wire.codec.types import encode
from antiphon.wire.responses.events import TERMINAL_EVENTS, StreamEvent


class ResponseOutcome(Protocol):
    """
    A client that remembers how its response went.

    Attributes:
        first_token_at: when the first event with output came, by `time.perf_counter`.
        last_event: the latest event.
        error: what it was closed with.
    """

    first_token_at: float | None
    last_event: StreamEvent | None
    error: ApiError | None


@contextlib.contextmanager
def measure_response(service: Service, model: ServedModel, client: ResponseOutcome, started_at: float) -> Iterator[None]:
    """Count a response when it ends, in whichever way."""
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
