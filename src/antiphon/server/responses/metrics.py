"""Metrics of responses, and their content in the log where that is enabled."""

import time
from contextlib import AbstractContextManager
from typing import Protocol

from antiphon.errors import ApiError
from antiphon.runtime.access.keys import Caller
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


class ResponseMeasurement(AbstractContextManager[None]):
    """
    Counts a response of the caller's when it ends, in whichever way, and shows it to operators until then. A class, as a
    generator would cost three times as much.
    """

    def __init__(
        self,
        service: Service,
        caller: Caller,
        response_id: str,
        model: ServedModel,
        client: ResponseOutcome,
        started_at: float,
        *,
        is_background: bool = False,
    ) -> None:
        self._service = service
        self._caller = caller
        self._response_id = response_id
        self._model = model
        self._client = client
        self._started_at = started_at
        self._is_background = is_background

    def __enter__(self) -> None:
        caller, model = self._caller, self._model.name
        self._answer = self._service.answers.begin(
            self._response_id, model, caller.tenant, caller.key_id, is_background=self._is_background
        )

    def __exit__(self, *_error: object) -> None:
        service, model, client, answer = self._service, self._model, self._client, self._answer
        metrics = service.metrics
        name = metrics.label(model.name, model.family)
        response = client.last_event.response if isinstance(client.last_event, TERMINAL_EVENTS) else None
        # Without an end or an error, its client has left.
        outcome = str(response.status) if response else "failed" if client.error else "cancelled"
        metrics.answers[name, outcome].observe(time.perf_counter() - self._started_at)
        first_token_s = None if client.first_token_at is None else client.first_token_at - self._started_at
        if first_token_s is not None:
            metrics.first_token[name].observe(first_token_s)
        metrics.recent.observe(name, has_failed=outcome == "failed", first_token_s=first_token_s)
        usage = response.usage if response else None
        if usage:
            metrics.tokens[name, "input"] += usage.input_tokens
            metrics.tokens[name, "output"] += usage.output_tokens
            answer.input_tokens, answer.output_tokens = usage.input_tokens, usage.output_tokens
        answer.first_token_s = None if first_token_s is None else round(first_token_s, 3)
        service.answers.end(answer, outcome)
        service.usage.count_answer(
            self._caller.key_id,
            name,
            "responses",
            has_failed=outcome == "failed",
            input_tokens=usage.input_tokens if usage else 0,
            cached_tokens=usage.input_tokens_details.cached_tokens if usage else 0,
            output_tokens=usage.output_tokens if usage else 0,
        )
        if response and service.config.logging.content:
            logs.get().info("answered", content=encode(response).decode())
