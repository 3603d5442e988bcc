"""
An engine in front of an upstream server, whatever its dialect: each `Respond` is one request, and its answer becomes
engine events.

A request is sent in the call that asks for it if a slot and a connection are free. Else, and where it fails, its response
has a task that waits for a slot, connects and retries, then sleeps until the response is over. The events are delivered
from the connection's own callbacks, so a token costs no task switch.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeGuard, runtime_checkable

import msgspec

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import Deliver, EngineConversation
from antiphon.engine_api.fast_path import TextRoute
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.upstream.client import UpstreamClient
from antiphon.engines.upstream.fast_path import FastPath, FastPathLearner, ReadAccount, TextTemplate, event_frame
from antiphon.engines.upstream.http_exchange import HttpExchange, UpstreamFailure, answer_failure_reason
from antiphon.engines.upstream.models import UpstreamModels
from antiphon.errors import ApiError, shutting_down
from antiphon.open_conversations import OpenConversations

_TEXT_EVENTS = frozenset({engine_events.TextDelta, engine_events.RelayData})
"""Events after which text may take the fast path."""


class UpstreamResponseReader(Protocol):
    """Turns the stream of one response into engine events."""

    def read(self, events: list[bytes], out: list[engine_events.EngineEvent]) -> bool:
        """
        Append to `out` what `events` say. Returns whether the response is over, its last event appended.

        Raises:
            ApiError: they can't be read, or say that the response failed; `out` has what came before.
        """

    def finish(self, out: list[engine_events.EngineEvent]) -> bool:
        """The stream ended: if the response is complete, append its last event and return true."""

    def cut(self, out: list[engine_events.EngineEvent]) -> None:
        """The response may get no longer: append what was held back of it, and its last event."""


@runtime_checkable
class BodyReader(UpstreamResponseReader, Protocol):
    """A reader of an answer that is not streamed: its events come when all of it is there."""

    async def conclude(self) -> list[engine_events.EngineEvent]:
        """
        All events of the response.

        Raises:
            ApiError: the answer can't be read, or says that the request failed.
        """


@runtime_checkable
class TextReader(UpstreamResponseReader, Protocol):
    """A reader that knows which events are nothing but text."""

    def text_template(self, event: bytes) -> TextTemplate | None:
        """
        What stands around the text in an event that it has just read. Whatever text is put there, `read` appends the
        one event of the template's series, and does nothing else. None if it is not such an event.
        """


# `isinstance` takes 5 us, as Python 3.11 collects the methods each time; the answer about a class is cached.


def _reads_text(reader: UpstreamResponseReader | None) -> TypeGuard[TextReader]:
    return issubclass(type(reader), TextReader)


def _concludes(reader: UpstreamResponseReader | None) -> TypeGuard[BodyReader]:
    return issubclass(type(reader), BodyReader)


class UpstreamDialect(Protocol):
    """The API of one kind of server."""

    path: str

    @property
    def context_window(self) -> int | None:
        """That of the model, once the server has told it; None where it never does, or has several models."""

    async def prepare_request(self, request: commands.Respond, model: str) -> tuple[bytes, UpstreamResponseReader]:
        """
        The body of the HTTP request, and the reader of its response.

        Raises:
            ApiError: the request has something that this server can't be sent.
        """

    async def prepare_relay(self, relay: commands.Relay, model: str) -> tuple[bytes, UpstreamResponseReader]:
        """
        The same for a request that is passed on to the path that it names.

        Raises:
            ApiError: likewise, or this server is passed none with that path.
        """

    def encode_at_once(self, command: commands.Respond | commands.Relay, model: str) -> tuple[bytes, UpstreamResponseReader] | None:
        """
        The same as the other two for a request that needs nothing to be waited for; None for others.

        Raises:
            ApiError: likewise.
        """

    async def count_tokens(self, request: commands.Respond) -> int:
        """
        The input tokens of `request`, counted by the server or estimated.

        Raises:
            ApiError: likewise.
        """


class UpstreamEngine:
    """An engine in front of an upstream server."""

    def __init__(self, upstream: UpstreamClient, dialect: UpstreamDialect, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self._upstream = upstream
        self._dialect = dialect
        self._conversations = OpenConversations[_UpstreamConversation]()
        self._models = UpstreamModels(upstream)

    async def start(self) -> None:
        """Do nothing: an upstream that is down must not keep this server down."""

    async def list_models(self) -> Sequence[str]:
        return await self._models.get()

    async def count(self, request: commands.Respond) -> int:
        tokens = await self._dialect.count_tokens(request)
        if self.capabilities.context_window is None and self._dialect.context_window is not None:
            self.capabilities = msgspec.structs.replace(self.capabilities, context_window=self._dialect.context_window)
        return tokens

    async def stop(self) -> None:
        self._conversations.abort()
        self._upstream.close()

    def open(self, settings: ConversationSettings, deliver: Deliver) -> AbstractAsyncContextManager[EngineConversation]:
        return self._conversations.open(lambda tasks: _UpstreamConversation(self._upstream, self._dialect, settings.model, deliver, tasks))


class _UpstreamConversation:
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
            case commands.Respond(id=id) | commands.Relay(id=id):
                self.upstream.concurrency_limit.reserve()
                request = self._requests[id] = _Request(self, command)
                if not request.start():
                    self.run_task(request)
            case commands.Cancel(id):
                if (canceled_request := self._requests.get(id)) is not None:
                    canceled_request.cancel()
            case commands.Configure() | commands.AppendAudio() | commands.CommitAudio() | commands.ClearAudio() | commands.Prepare():
                pass  # its capabilities have no audio input
            case commands.StartDuplex() | commands.AppendImage() | commands.ForceListen():
                pass  # its capabilities have no full duplex

    def pause(self) -> None:
        self.is_paused = True
        for request in self._requests.values():
            request.pause()

    def resume(self) -> None:
        self.is_paused = False
        for request in tuple(self._requests.values()):
            request.resume()

    def abort(self) -> None:
        """Fail every response: the engine stops."""
        for request in tuple(self._requests.values()):
            request.fail(shutting_down())
            request.cancel()

    def close(self) -> None:
        """Cancel every response, and deliver nothing more."""
        self.deliver = lambda _events: None
        for request in self._requests.values():
            request.cancel()

    def run_task(self, request: "_Request") -> None:
        """Let a task send the request, or go on with it."""
        request.task = self._tasks.create_task(request.run())
        # A callback, as a task that is cancelled before its first step runs none of its own clean-up.
        request.task.add_done_callback(lambda _task: self.release(request))

    def release(self, request: "_Request") -> None:
        """Forget a request that is over."""
        request.give_back_slot()
        self.upstream.concurrency_limit.release()
        if self._requests.get(request.command.id) is request:
            del self._requests[request.command.id]


class _Request:
    """One response, and the listener of its HTTP exchange. Delivers exactly one last event."""

    def __init__(self, conversation: _UpstreamConversation, command: commands.Respond | commands.Relay) -> None:
        self.command = command
        self.task: asyncio.Task[None] | None = None
        self._conversation = conversation
        self._reader: UpstreamResponseReader | None = None
        self._exchange: HttpExchange | None = None
        self._learner: FastPathLearner | None = None  # made with the first text of a stream
        self._route: TextRoute | None = None
        self._last_event = b""
        self._request_bytes = b""
        self._has_slot = False
        self._has_begun = False
        self._is_over = False
        self._is_cancelled = False

    @property
    def _path(self) -> str:
        return f"/{self.command.path}" if isinstance(self.command, commands.Relay) else self._conversation.dialect.path

    def start(self) -> bool:
        """Send the request in this call, if nothing has to be waited for. Returns whether it was sent."""
        conversation = self._conversation
        upstream = conversation.upstream
        self._has_slot = upstream.concurrency_limit.take()
        if not self._has_slot:
            return False
        try:
            body_and_reader = conversation.dialect.encode_at_once(self.command, conversation.model)
        except ApiError:  # the task gets it as well, and delivers it once the session knows of the request
            body_and_reader = None
        if body_and_reader is not None:
            body, self._reader = body_and_reader
            self._request_bytes = upstream.encode_request("POST", self._path, body)
            if upstream.start(self._request_bytes, self, self._on_exchange):
                assert self._exchange is not None
                self._exchange.outcome.add_done_callback(self._on_outcome)
                return True
        return False  # the task has the slot

    def give_back_slot(self) -> None:
        """Leave the slot to another request, if this one has it."""
        if self._has_slot:
            self._has_slot = False
            self._conversation.upstream.concurrency_limit.give_back()

    def _on_outcome(self, outcome: "asyncio.Future[UpstreamFailure | None]") -> None:
        """The exchange that `start` began has ended: so has the request, unless there is something to wait for."""
        if not self._is_cancelled and (outcome.result() is not None or _concludes(self._reader)):
            self._conversation.run_task(self)
            return
        self._end_exchange()
        self._conversation.release(self)
        if self._is_cancelled:
            self._emit([engine_events.ResponseEnded(self.command.id, "cancelled")], is_last=True)

    def _end_exchange(self) -> None:
        self._close_fast_path()
        exchange, self._exchange, self._route = self._exchange, None, None
        if exchange is not None:
            self._conversation.upstream.finish(exchange, is_abandoned=self._is_cancelled)

    async def run(self) -> None:
        self._has_begun = True
        try:
            if not self._is_cancelled:
                await self._send()
            else:
                self._end_exchange()
        except ApiError as error:
            self.fail(error)
            error.__traceback__ = None  # its frames refer to the error: a circle that would keep the request
        except asyncio.CancelledError:
            if not self._is_cancelled:
                raise
        finally:
            self.give_back_slot()
            self._exchange = self._route = None
            self._close_fast_path()
        if self._is_cancelled:
            self._emit([engine_events.ResponseEnded(self.command.id, "cancelled")], is_last=True)

    async def _send(self) -> None:
        conversation = self._conversation
        upstream, dialect = conversation.upstream, conversation.dialect
        if not self._has_slot:
            await upstream.concurrency_limit.wait()
            self._has_slot = True
        if not self._request_bytes:
            if isinstance(self.command, commands.Relay):
                body, self._reader = await dialect.prepare_relay(self.command, conversation.model)
            else:
                body, self._reader = await dialect.prepare_request(self.command, conversation.model)
            self._request_bytes = upstream.encode_request("POST", self._path, body)
        await upstream.stream(self._request_bytes, self, self._on_exchange, self._on_retry, self._exchange)
        self.give_back_slot()
        if _concludes(self._reader):
            try:
                batch = await self._reader.conclude()
            except ApiError as error:
                raise upstream.report_failure(error, answer_failure_reason(error)) from None
            self._emit(batch, is_last=True)

    def cancel(self) -> None:
        """Stop; the task, or the end of the exchange, delivers the last event."""
        self._is_cancelled = True
        # A task that has not begun is not cancelled, so that `run` can still deliver it.
        if self.task is None:
            self._end_exchange()
            return
        self._close_fast_path()
        if self._has_begun:
            self.task.cancel()

    def pause(self) -> None:
        if self._exchange is not None:
            self._exchange.pause()

    def resume(self) -> None:
        if self._exchange is not None:
            self._exchange.resume()

    def fail(self, error: ApiError) -> None:
        self._emit([engine_events.ResponseFailed.from_error(self.command.id, error)], is_last=True)

    # Callbacks of the exchange

    def on_events(self, events: list[bytes]) -> bool:
        assert self._reader is not None
        batch: list[engine_events.EngineEvent] = []
        self._route = None
        try:
            is_last = self._reader.read(events, batch)
        except ApiError:
            self._emit(batch)
            raise
        if batch and not self._is_over:
            self._is_over = is_last
            route = self._conversation.deliver(batch)
            self._route = route if type(batch[-1]) in _TEXT_EVENTS else None
            self._last_event = events[-1]
        return is_last

    def open_fast_path(self, read: bytes, pieces: list[bytes], account: ReadAccount) -> FastPath | None:
        route, reader = self._route, self._reader
        if route is None or self._is_cancelled:
            return None
        learner = self._learner = self._learner or FastPathLearner()
        if not learner.is_due() or not _reads_text(reader):
            return None
        frame = event_frame(read, pieces, self._last_event)
        template = None if frame is None else reader.text_template(self._last_event)
        if frame is None or template is None or (sink := route.open_text(template.series)) is None:
            return None
        return learner.open(frame, template, sink, account)

    def _close_fast_path(self) -> None:
        if self._learner is not None:
            self._learner.close()

    def on_stream_end(self) -> bool:
        assert self._reader is not None
        batch: list[engine_events.EngineEvent] = []
        is_complete = self._reader.finish(batch)
        if is_complete:
            self._emit(batch, is_last=True)
        return is_complete

    def on_limit(self) -> bool:
        assert self._reader is not None
        self._conversation.upstream.count_failure("too_long")
        batch: list[engine_events.EngineEvent] = []
        self._reader.cut(batch)
        self._emit(batch, is_last=True)
        return True

    def _on_exchange(self, exchange: HttpExchange) -> None:
        self._exchange = exchange
        if self._conversation.is_paused:
            exchange.pause()

    def _on_retry(self) -> None:
        self._emit([engine_events.RetryScheduled(self.command.id)])

    def _emit(self, events: list[engine_events.EngineEvent], *, is_last: bool = False) -> None:
        if events and not self._is_over:
            self._is_over = is_last
            self._conversation.deliver(events)
