"""
A conversation with an upstream server, whatever its dialect: each `Respond` is a request, its words are what the answer says.

A task for each answer sees to its turn, its connection and its retries, then sleeps until it is over; the words come from the
connection's own callbacks.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import Deliver, EngineConversation
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.upstream.client import UpstreamClient
from antiphon.engines.upstream.http_exchange import HttpExchange
from antiphon.engines.upstream.models import UpstreamModels
from antiphon.errors import ApiError, UpstreamError


class UpstreamResponseReader(Protocol):
    """Turns the events of one answer into words."""

    def read(self, events: list[bytes], out: list[engine_events.EngineEvent]) -> bool:
        """
        Add to `words` what `events` say; whether the answer is over, its last word added.

        Raises:
            ApiError: they make no sense, or say that the answer failed; `words` has what came before.
        """

    def finish(self, out: list[engine_events.EngineEvent]) -> bool:
        """Nothing more comes: add the last word if the answer was whole, and say so."""


class UpstreamDialect(Protocol):
    """How one kind of server is asked and understood."""

    path: str

    async def prepare_request(self, request: commands.Respond, model: str) -> tuple[bytes, UpstreamResponseReader]:
        """
        The body that asks for an answer, and the reading of that answer.

        Raises:
            ApiError: it can't be asked so.
        """


class UpstreamEngine:
    """An engine behind which another server answers."""

    def __init__(self, upstream: UpstreamClient, dialect: UpstreamDialect, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self._upstream = upstream
        self._dialect = dialect
        self._conversations: set[_UpstreamConversation] = set()
        self._models = UpstreamModels(upstream)

    async def start(self) -> None:
        """Nothing yet: an upstream that is down must not keep this server down."""

    async def list_models(self) -> Sequence[str]:
        """The models upstream, asked for anew when a while has passed."""
        return await self._models.get()

    async def stop(self) -> None:
        """Let go of everything; answers under way break."""
        for conversation in tuple(self._conversations):
            conversation.abort()
        self._upstream.close()

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        """A conversation in which every `Respond` is answered by the upstream."""
        async with asyncio.TaskGroup() as tasks:
            conversation = _UpstreamConversation(self._upstream, self._dialect, settings.model, deliver, tasks)
            self._conversations.add(conversation)
            try:
                yield conversation
            finally:
                self._conversations.discard(conversation)
                conversation.close()


class _UpstreamConversation:
    """
    One client's answers, each under way until its one last word.

    Attributes:
        deliver: takes the words.
    """

    def __init__(self, upstream: UpstreamClient, dialect: UpstreamDialect, model: str, deliver: Deliver, tasks: asyncio.TaskGroup) -> None:
        self.is_paused = False
        self.upstream = upstream
        self.dialect = dialect
        self.model = model
        self.deliver: Deliver = deliver
        self._tasks = tasks
        self._requests: dict[str, _Request] = {}

    def send(self, command: commands.EngineCommand) -> None:
        match command:
            case commands.Respond(id=id):
                self.upstream.concurrency_limit.reserve()
                began = self._requests[id] = _Request(self, command)
                began.task = self._tasks.create_task(began.run())
                # Not the task's own last act: one that is cancelled before its first step does nothing at all.
                began.task.add_done_callback(lambda _task: self._release(id))
            case commands.Cancel(id):
                if (answer := self._requests.get(id)) is not None:
                    answer.cancel()
            case commands.Configure() | commands.AppendAudio() | commands.CommitAudio() | commands.ClearAudio() | commands.Prepare():
                pass  # its abilities say that it doesn't listen
            case commands.StartDuplex() | commands.AppendImage() | commands.ForceListen():
                pass  # its abilities say that it does no full duplex

    def pause(self) -> None:
        self.is_paused = True
        for answer in self._requests.values():
            answer.pause()

    def resume(self) -> None:
        self.is_paused = False
        for answer in tuple(self._requests.values()):
            answer.resume()

    def abort(self) -> None:
        """Break every answer: the server stops."""
        for answer in tuple(self._requests.values()):
            answer.fail(UpstreamError("The server is shutting down.", status=503, code="server_is_overloaded"))
            answer.cancel()

    def close(self) -> None:
        """Say nothing more."""
        self.deliver = lambda _words: None
        for answer in self._requests.values():
            answer.cancel()

    def _release(self, id: str) -> None:
        self.upstream.concurrency_limit.release()
        del self._requests[id]


class _Request:
    """
    One answer: the listener of its exchange.

    Attributes:
        task: sees it through.
    """

    def __init__(self, conversation: _UpstreamConversation, command: commands.Respond) -> None:
        self.command = command
        self.task: asyncio.Task[None] | None = None
        self._conversation = conversation
        self._reader: UpstreamResponseReader | None = None
        self._exchange: HttpExchange | None = None
        self._has_begun = False
        self._is_over = False
        self._is_cancelled = False

    async def run(self) -> None:
        """Ask, and deliver all that is answered, with exactly one last word."""
        self._has_begun = True
        try:
            if not self._is_cancelled:
                await self._send()
        except ApiError as fault:
            self.fail(fault)
        except asyncio.CancelledError:
            if not self._is_cancelled:
                raise
        if self._is_cancelled:
            self._emit([engine_events.ResponseEnded(self.command.id, "cancelled")], is_last=True)

    async def _send(self) -> None:
        conversation = self._conversation
        upstream, dialect = conversation.upstream, conversation.dialect
        async with upstream.concurrency_limit.slot():
            body, self._reader = await dialect.prepare_request(self.command, conversation.model)
            await upstream.stream(upstream.encode_request("POST", dialect.path, body), self, self._on_exchange)

    def cancel(self) -> None:
        """Stop; the last word is said by the task."""
        self._is_cancelled = True
        if self.task is not None and self._has_begun:
            self.task.cancel()

    def pause(self) -> None:
        if self._exchange is not None:
            self._exchange.pause()

    def resume(self) -> None:
        if self._exchange is not None:
            self._exchange.resume()

    def fail(self, error: ApiError) -> None:
        """Say that it broke, if it was not over."""
        self._emit([engine_events.ResponseFailed.from_error(self.command.id, error)], is_last=True)

    # What the exchange says

    def on_events(self, events: list[bytes]) -> bool:
        """Words of one read, in one delivery."""
        assert self._reader is not None
        words: list[engine_events.EngineEvent] = []
        try:
            is_last = self._reader.read(events, words)
        except ApiError:
            self._emit(words)
            raise
        if words and not self._is_over:
            self._is_over = is_last
            self._conversation.deliver(words)
        return is_last

    def on_stream_end(self) -> bool:
        """The end, if the answer had one."""
        assert self._reader is not None
        words: list[engine_events.EngineEvent] = []
        is_whole = self._reader.finish(words)
        if is_whole:
            self._emit(words, is_last=True)
        return is_whole

    def _on_exchange(self, exchange: HttpExchange) -> None:
        self._exchange = exchange
        if self._conversation.is_paused:
            exchange.pause()

    def _emit(self, events: list[engine_events.EngineEvent], *, is_last: bool = False) -> None:
        if events and not self._is_over:
            self._is_over = is_last
            self._conversation.deliver(events)
