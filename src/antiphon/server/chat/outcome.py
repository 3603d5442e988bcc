"""Metrics of chat completions, and their content in the log where that is enabled."""

import time
from contextlib import AbstractContextManager
from typing import Protocol

from antiphon.engine_api.events import RewriteStatus
from antiphon.errors import ApiError
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.service import Service
from antiphon.server.transport import logs
from antiphon.wire.chat.response import ChatUsage


class MeasuredChat(Protocol):
    """
    A session that knows how its completion went.

    Attributes:
        outcome: how it ended; None before.
        usage: its tokens; None if unknown.
        tokens: input and output together, estimated where they are unknown.
        rewrite_status: what became of rewriting it; None where that was not tried.
    """

    @property
    def outcome(self) -> str | None: ...

    @property
    def usage(self) -> ChatUsage | None: ...

    @property
    def tokens(self) -> int: ...

    @property
    def rewrite_status(self) -> RewriteStatus | None: ...

    def content(self) -> str:
        """The whole completion, for the log."""


class MeasuredClient(Protocol):
    """A client that knows when the first output came, by `time.perf_counter`, and why its answer ended early."""

    first_token_at: float | None
    error: ApiError | None


class ChatMeasurement(AbstractContextManager[None]):
    """
    Counts a completion of the caller's, however it ends. A class, as a generator would cost three times as much.

    Args:
        protocol: as it is counted: `chat`, `completions` or `embeddings`.
    """

    def __init__(
        self,
        service: Service,
        caller: Caller,
        protocol: str,
        model: ServedModel,
        session: MeasuredChat,
        client: MeasuredClient,
        started_at: float,
    ) -> None:
        self._service = service
        self._caller = caller
        self._protocol = protocol
        self._model = model
        self._session = session
        self._client = client
        self._started_at = started_at

    def __exit__(self, *_error: object) -> None:
        service, model, session, client = self._service, self._model, self._session, self._client
        metrics = service.metrics
        name = metrics.label(model.name, model.family)
        outcome = session.outcome or ("failed" if client.error else "cancelled")
        metrics.answers[name, outcome].observe(time.perf_counter() - self._started_at)
        first_token_s = None if client.first_token_at is None else client.first_token_at - self._started_at
        if first_token_s is not None:
            metrics.first_token[name].observe(first_token_s)
        metrics.recent.observe(name, has_failed=outcome == "failed", first_token_s=first_token_s)
        # The metrics have the tokens of what ended well; against the limits of the key all of them count.
        is_whole = outcome in ("completed", "incomplete")
        usage = session.usage if is_whole else None
        if usage is not None:
            metrics.tokens[name, "input"] += usage.prompt_tokens
            metrics.tokens[name, "output"] += usage.completion_tokens
        service.usage.count_answer(
            self._caller.key_id,
            name,
            self._protocol,
            has_failed=outcome == "failed",
            input_tokens=usage.prompt_tokens if usage else 0,
            cached_tokens=usage.prompt_tokens_details.cached_tokens if usage else 0,
            output_tokens=usage.completion_tokens if usage else 0,
        )
        if is_whole and service.config.logging.content:
            logs.get().info("answered", content=session.content())
