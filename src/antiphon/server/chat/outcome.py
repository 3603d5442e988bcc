"""Metrics of chat completions, and their content in the log where that is enabled."""

from contextlib import AbstractContextManager
from typing import Protocol

from antiphon.engine_api.events import RewriteStatus
from antiphon.errors import ApiError
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.service import Service
from antiphon.server.responses.metrics import AnswerTokens, count_answer
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
        service, session, client = self._service, self._session, self._client
        outcome = session.outcome or ("failed" if client.error else "cancelled")
        usage, tokens = session.usage, None
        if usage is not None:
            tokens = AnswerTokens(usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details.cached_tokens)
        count_answer(service, self._caller, self._model, self._protocol, outcome, client, self._started_at, tokens)
        if outcome in ("completed", "incomplete") and service.config.logging.content:
            logs.get().info("answered", content=session.content())
