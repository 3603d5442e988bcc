"""
An engine at the other end of a link: in a child process of the server, or on another machine.

Commands and events cross the link unchanged; events are delivered from the connection's own callback. When a worker is
lost, this end delivers the last events: `ResponseFailed` for every response in progress, then `EngineLost`.

`docs/reference/engine-worker.md` says how a model gets its workers.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from msgspec import msgpack

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import BuildContext, Deliver, EngineConversation, EngineOverrun
from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import (
    SHUTTING_DOWN_CODE,
    ApiError,
    ClientError,
    ServerError,
    UpstreamError,
    overloaded_error,
    quote_list,
    shutting_down,
)
from antiphon.framing import UnsendableFrame
from antiphon.link import HEARTBEAT_S, LOAD_SILENCE_S, LinkEndpoint
from antiphon.subprocesses import resolve
from antiphon.wire.internal.worker_link import (
    ChildNotice,
    CloseConversation,
    ConversationClosed,
    ConversationFailed,
    ConversationOpened,
    CountRequest,
    Drain,
    EngineBuildFailed,
    EngineCommands,
    EngineEvents,
    FromWorker,
    Heartbeat,
    Hello,
    OpenConversation,
    PauseConversation,
    ProbeRequest,
    RequestAnswered,
    ResumeConversation,
    ToWorker,
    Undrain,
    WorkerDismissed,
    from_worker_decoder,
)

OPEN_TIMEOUT_S = 120.0
"""How long a worker may take to open a conversation; one that has to load its model again takes a minute."""

LEAVE_TIMEOUT_S = 15.0
"""How long a worker may take to close a conversation; then its state is unknown, and the link is aborted."""

REQUEST_TIMEOUT_S = 20.0
"""How long a worker may take to answer a count or a probe."""

BACKLOG_LIMIT_BYTES = 8 << 20
"""While more than this waits to be sent, commands are refused."""

PAUSED_OUTPUT_LIMIT_BYTES = 16 << 20
"""The most that a worker may send in a paused conversation: some was on its way already."""

_OUTPUT_EVENTS = (engine_events.TextDelta, engine_events.AudioTranscriptDelta, engine_events.AudioDelta)
"""Events with which an engine in full duplex begins a response."""


def build(model: str, options: Mapping[str, Any], _build_context: BuildContext) -> "NoWorkerYet":
    """
    The placeholder for a model whose workers join.

    Raises:
        ServerError: there are options; they belong in the workers' configuration.
    """
    if options:
        raise ServerError(f"Model '{model}' has {quote_list(sorted(options))}; the engine 'worker' has no options: its workers bring them.")
    return NoWorkerYet(model)


class NoWorkerYet:
    """A model without workers; the server's coordinator hands out those that join."""

    def __init__(self, model: str) -> None:
        self.capabilities = Capabilities()
        self._model = model

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    def open(self, settings: ConversationSettings, deliver: Deliver) -> AbstractAsyncContextManager[EngineConversation]:
        raise unavailable_error(f"No worker of the model '{self._model}' has joined. Please try again later.")


class RemoteEngine:
    """
    An engine at the other end of a link.

    Args:
        on_gone: called once with the reason when the worker is lost, after every conversation has failed.
        on_drain: called when the worker itself announces that it takes no more conversations.
        notice: takes lines for the operator.
        load_silence_s: how long the worker may be silent between its first message and its hello.
        leave_timeout_s: how long its engine may take to close a conversation.

    Attributes:
        capabilities: those of the engine there, from its hello on.
        is_draining: whether it takes no more conversations, by its own decision or an operator's.
        is_ending: whether it announced that it ends when it has none left.
        endpoint: this end of the link, for its transport.
    """

    def __init__(
        self,
        on_gone: Callable[[str], None] = lambda _reason: None,
        on_drain: Callable[[], None] = lambda: None,
        notice: Callable[[str], None] = lambda _line: None,
        load_silence_s: float = LOAD_SILENCE_S,
        leave_timeout_s: float = LEAVE_TIMEOUT_S,
    ) -> None:
        self.capabilities = Capabilities()
        self._leave_timeout_s = leave_timeout_s
        self._load_silent_beats = int(load_silence_s / HEARTBEAT_S)
        self.endpoint: LinkEndpoint[FromWorker, ToWorker] = LinkEndpoint(
            from_worker_decoder, self._on_frame, self._on_lost, heartbeat=Heartbeat()
        )
        self._on_gone = on_gone
        self._on_drain = on_drain
        self._notice = notice
        self._numbers = itertools.count(1)
        self._hello_future: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._conversations: dict[int, _RemoteConversation] = {}
        self._pending_requests: dict[int, asyncio.Future[int]] = {}
        self._is_stopping = False
        self.is_draining = False
        self.is_ending = False

    async def wait_for_hello(self, timeout_s: float | None = None) -> Hello:
        """
        The worker's hello.

        Raises:
            ApiError: the worker is lost, could not build its engine, or sent no hello in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._hello_future)
        except TimeoutError:
            raise unavailable_error("The worker did not introduce itself.") from None

    # For the operator

    @property
    def silent_s(self) -> float:
        """Seconds since the last frame from it."""
        return self.endpoint.silent_s

    def drain(self) -> None:
        """Tell it to take no more conversations, unless it drains already."""
        if not self.is_draining:
            self.is_draining = True
            self.endpoint.send(Drain())

    def resume(self) -> None:
        """Tell it to take conversations again; one that is ending takes none."""
        if self.is_draining and not self.is_ending:
            self.is_draining = False
            self.endpoint.send(Undrain())

    def dismiss(self) -> None:
        """Tell it to end when it has no conversations."""
        self.endpoint.send(WorkerDismissed())

    # As an engine

    async def start(self) -> None:
        await self.wait_for_hello()

    async def stop(self) -> None:
        self._is_stopping = True
        for conversation in tuple(self._conversations.values()):
            conversation.fail(shutting_down(), SHUTTING_DOWN_CODE)
        self.endpoint.abort("the server is stopping")

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        """A conversation at the other end; leaving it returns when the engine there has closed it."""
        if self.endpoint.is_over:
            raise _worker_gone_error()
        number = next(self._numbers)
        conversation = self._conversations[number] = _RemoteConversation(number, self.endpoint, deliver)
        try:
            self.endpoint.send(OpenConversation(number, settings))
            await conversation.wait_until_open(OPEN_TIMEOUT_S)
            yield conversation
        finally:
            await self._leave_conversation(conversation)

    async def count(self, request: commands.Respond) -> int:
        return await self._request(lambda number: CountRequest(number, request))

    async def probe(self) -> None:
        await self._request(ProbeRequest)

    async def _request(self, new_frame: Callable[[int], CountRequest | ProbeRequest]) -> int:
        if self.endpoint.is_over:
            raise _worker_gone_error()
        number = next(self._numbers)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pending_requests[number] = future
        try:
            self.endpoint.send(new_frame(number))
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return await future
        except TimeoutError:
            raise UpstreamError("The model's worker did not answer in time.", status=504, code="upstream_timeout") from None
        except UnsendableFrame as error:
            raise _unsendable_error(error) from None
        finally:
            del self._pending_requests[number]

    async def _leave_conversation(self, conversation: "_RemoteConversation") -> None:
        # First, as its client has gone: what still comes must not be delivered.
        conversation.detach()
        self.endpoint.send(CloseConversation(conversation.number))
        try:
            await _wait_through_cancellation(conversation.leave_future, self._leave_timeout_s)
        finally:
            if not conversation.leave_future.done():
                # The state of its slot is unknown, so no other conversation may get it.
                self.endpoint.abort("a conversation was not closed in time")
            self._conversations.pop(conversation.number, None)

    # Frames from the worker

    def _on_frame(self, frame: FromWorker) -> None:
        match frame:
            case EngineEvents(number, events):
                if (conversation := self._conversations.get(number)) is not None:
                    conversation.on_events(events)
            case ConversationOpened() | ConversationFailed() | ConversationClosed():
                self._on_conversation_frame(frame)
            case RequestAnswered(number, tokens, failure):
                if (future := self._pending_requests.get(number)) is not None:
                    resolve(future, tokens if failure is None else failure.to_error())
            case _:
                self._on_worker_frame(frame)

    def _on_worker_frame(self, frame: Heartbeat | Hello | EngineBuildFailed | ChildNotice | Drain) -> None:
        """A frame about the worker itself."""
        match frame:
            case Heartbeat():
                if not self._hello_future.done():  # a child that builds its engine: its hello comes later
                    self.endpoint.start_heartbeat(max_silent_beats=self._load_silent_beats)
            case Hello():
                self.capabilities, self.is_draining = frame.abilities, frame.is_draining
                self.endpoint.start_heartbeat()
                resolve(self._hello_future, frame)
            case EngineBuildFailed(failure):
                resolve(self._hello_future, failure.to_error())
            case ChildNotice(line):
                self._notice(line)
            case Drain():
                self.is_ending = True
                if not self.is_draining:
                    self.is_draining = True
                    self._on_drain()

    def _on_conversation_frame(self, frame: ConversationOpened | ConversationFailed | ConversationClosed) -> None:
        """A conversation was opened, failed or was closed."""
        conversation = self._conversations.get(frame.number)
        if conversation is None:
            return
        match frame:
            case ConversationOpened():
                resolve(conversation.open_future, None)
            case ConversationFailed(failure=failure):
                conversation.fail(failure.to_error(), "backend_error")
            case ConversationClosed():
                conversation.fail(_worker_gone_error(), "backend_error")  # no effect after `CloseConversation`
                resolve(conversation.leave_future, None)

    def _on_lost(self, reason: str) -> None:
        error = shutting_down() if self._is_stopping else _worker_silent_error() if self.endpoint.is_silent else _worker_gone_error()
        # Each of these may be done already; then nothing happens.
        resolve(self._hello_future, error)
        for conversation in tuple(self._conversations.values()):
            conversation.fail(error, SHUTTING_DOWN_CODE if self._is_stopping else "backend_error")
            resolve(conversation.leave_future, None)
        for future in self._pending_requests.values():
            resolve(future, error)
        self._on_gone(reason)


class _RemoteConversation:
    """
    The server's end of a conversation with a worker.

    Attributes:
        open_future: done when it is open at the other end; fails if it can't be opened.
        leave_future: done when the engine at the other end has closed it.
    """

    def __init__(self, number: int, endpoint: "LinkEndpoint[FromWorker, ToWorker]", deliver: Deliver) -> None:
        loop = asyncio.get_running_loop()
        self.number = number
        self.open_future: asyncio.Future[None] = loop.create_future()
        self.leave_future: asyncio.Future[None] = loop.create_future()
        self._endpoint = endpoint
        self._deliver = deliver
        self._active_response_ids: dict[str, None] = {}
        self._is_duplex = False
        self._is_lost = False
        self._is_detached = False
        self._is_paused = False
        self._paused_bytes = 0

    async def wait_until_open(self, timeout_s: float) -> None:
        """
        Wait until it is open at the other end.

        Raises:
            ApiError: it can't be opened, or was not in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self.open_future
        except TimeoutError:
            raise UpstreamError("The model's worker did not open the conversation in time.", status=504, code="upstream_timeout") from None

    def send(self, command: commands.EngineCommand) -> None:
        if self._is_lost:
            self._refuse(command, _worker_gone_error())
            return
        # A cancellation is small, and makes room.
        if not isinstance(command, commands.Cancel) and self._endpoint.buffer_bytes > BACKLOG_LIMIT_BYTES:
            raise EngineOverrun("its worker reads its input too slowly")
        try:
            self._endpoint.send(EngineCommands(self.number, (command,)))
        except UnsendableFrame as error:
            self._refuse(command, _unsendable_error(error))
            return
        if isinstance(command, commands.Respond | commands.Relay):
            self._active_response_ids[command.id] = None
        elif isinstance(command, commands.StartDuplex):
            self._is_duplex = True

    def pause(self) -> None:
        self._is_paused, self._paused_bytes = True, 0
        self._endpoint.send(PauseConversation(self.number))

    def resume(self) -> None:
        self._is_paused = False
        self._endpoint.send(ResumeConversation(self.number))

    def on_events(self, events: tuple[engine_events.EngineEvent, ...]) -> None:
        """Deliver events of the engine."""
        if self._is_lost or self._is_detached or not events:
            return
        if self._is_paused:
            self._paused_bytes += sum(map(_size_bytes, events))
            if self._paused_bytes > PAUSED_OUTPUT_LIMIT_BYTES:
                self.fail(UpstreamError("The model's worker sends too much while it is paused.", code="server_error"), "backend_error")
                return
        for event in events:
            if isinstance(event, engine_events.ResponseEnded | engine_events.ResponseFailed):
                self._active_response_ids.pop(event.id, None)
            elif self._is_duplex and isinstance(event, _OUTPUT_EVENTS):
                # In full duplex the engine begins responses by itself, and they fail with it.
                self._active_response_ids[event.id] = None
        self._deliver(events)

    def fail(self, error: ApiError, code: str) -> None:
        """The conversation is lost at the other end: deliver its last events, once."""
        if self._is_lost:
            return
        self._is_lost = True
        # Who opens the conversation gets the error; nothing was delivered yet.
        if not self.open_future.done():
            resolve(self.open_future, error)
            return
        if not self._is_detached:
            failures = [engine_events.ResponseFailed.from_error(id, error) for id in self._active_response_ids]
            self._deliver((*failures, engine_events.EngineLost(code=code, message=error.message)))

    def detach(self) -> None:
        """Deliver nothing more."""
        self._is_detached = True
        self.open_future.cancel()

    def _refuse(self, command: commands.EngineCommand, error: ApiError) -> None:
        """Fail a request that can't be sent to the worker."""
        if isinstance(command, commands.Respond | commands.Relay) and not self._is_detached:
            self._deliver((engine_events.ResponseFailed.from_error(command.id, error),))


def _size_bytes(event: engine_events.EngineEvent) -> int:
    return len(msgpack.encode(event))


async def _wait_through_cancellation(future: "asyncio.Future[None]", timeout_s: float) -> None:
    """Wait for a future; a cancellation is raised only after the wait."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    cancellation: asyncio.CancelledError | None = None
    while not future.done() and (remaining_s := deadline - loop.time()) > 0:
        try:
            await asyncio.wait((future,), timeout=remaining_s)
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation


def unavailable_error(message: str, retry_after_s: float = 2) -> ApiError:
    """No worker is available now; one may be soon."""
    return overloaded_error(message, retry_after_s=retry_after_s)


def _worker_gone_error() -> ApiError:
    return ServerError(
        "The model's worker is gone. Please try again.", status=503, type="server_error", code="server_error", retry_after_s=2
    )


def _worker_silent_error() -> ApiError:
    message = "The model's worker has stopped answering. Please try again."
    return ServerError(message, status=503, type="server_error", code="server_error", retry_after_s=2)


def _unsendable_error(error: UnsendableFrame) -> ApiError:
    return ClientError(f"The request can't be sent to the model's worker: {error}.", code="invalid_value", status=400)
