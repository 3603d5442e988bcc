"""Metrics of responses, and their content in the log where that is enabled."""

import time
from contextlib import AbstractContextManager
from typing import Protocol

from msgspec import Struct

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


class AnswerTokens(Struct, frozen=True):
    """The tokens of an answer; those that were read from a cache are among the input."""

    input: int
    output: int
    cached: int


_NO_TOKENS = AnswerTokens(0, 0, 0)


class TimedClient(Protocol):
    """A client that knows when the first output came, by `time.perf_counter`."""

    first_token_at: float | None


def count_answer(
    service: Service,
    caller: Caller,
    model: ServedModel,
    protocol: str,
    outcome: str,
    client: TimedClient,
    started_at: float,
    tokens: AnswerTokens | None,
) -> float | None:
    """
    Count an answer that has ended, in metrics and usage: the one rule for all protocols.

    Args:
        protocol: as usage is counted by.
        started_at: by `time.perf_counter`.
        tokens: None if they are unknown. Known ones count however the answer ended: the model has made them.

    Returns:
        Seconds until the first token; None if there was none, or no stream.
    """
    metrics, name = service.metrics, service.metrics.label(model.name, model.family)
    metrics.answers[name, outcome].observe(time.perf_counter() - started_at)
    first_token_s = None if client.first_token_at is None else client.first_token_at - started_at
    if first_token_s is not None:
        metrics.first_token[name].observe(first_token_s)
    has_failed = outcome == "failed"
    metrics.recent.observe(name, has_failed=has_failed, first_token_s=first_token_s)
    if tokens is not None:
        metrics.tokens[name, "input"] += tokens.input
        metrics.tokens[name, "output"] += tokens.output
    else:
        tokens = _NO_TOKENS
    service.usage.count_answer(
        caller.key_id,
        name,
        protocol,
        has_failed=has_failed,
        input_tokens=tokens.input,
        cached_tokens=tokens.cached,
        output_tokens=tokens.output,
    )
    return first_token_s


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
        service, client, answer = self._service, self._client, self._answer
        response = client.last_event.response if isinstance(client.last_event, TERMINAL_EVENTS) else None
        # Without an end or an error, its client has left.
        outcome = str(response.status) if response else "failed" if client.error else "cancelled"
        usage, tokens = response.usage if response else None, None
        if usage:
            answer.input_tokens, answer.output_tokens = usage.input_tokens, usage.output_tokens
            tokens = AnswerTokens(usage.input_tokens, usage.output_tokens, usage.input_tokens_details.cached_tokens)
        first_token_s = count_answer(service, self._caller, self._model, "responses", outcome, client, self._started_at, tokens)
        answer.first_token_s = None if first_token_s is None else round(first_token_s, 3)
        service.answers.end(answer, outcome)
        if response and service.config.logging.content:
            logs.get().info("answered", content=encode(response).decode())
