"""Metrics of chat completions, and their content in the log where that is enabled."""

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol

from antiphon.engine_api.events import RewriteStatus
from antiphon.errors import ApiError
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


@contextlib.contextmanager
def measure_chat(service: Service, model: ServedModel, session: MeasuredChat, client: MeasuredClient, started_at: float) -> Iterator[None]:
    """Count a completion when it ends, in whichever way."""
    try:
        yield
    finally:
        metrics = service.metrics
        name = metrics.label(model.name, model.family)
        outcome = session.outcome or ("failed" if client.error else "cancelled")
        metrics.answers[name, outcome].observe(time.perf_counter() - started_at)
        if client.first_token_at is not None:
            metrics.first_token[name].observe(client.first_token_at - started_at)
        is_whole = outcome in ("completed", "incomplete")
        if is_whole and (usage := session.usage) is not None:
            metrics.tokens[name, "input"] += usage.prompt_tokens
            metrics.tokens[name, "output"] += usage.completion_tokens
        if is_whole and service.config.logging.content:
            logs.get().info("answered", content=session.content())
