"""
An engine at the other end of a link: in a child of the server, or on another machine.

What is told crosses the link as it is; what the other end says is delivered from the connection's own callback. A worker that is gone says
no last words, so they are said here: `ResponseFailed` for every answer under way, then `EngineLost`.

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
from antiphon.engines.remote.link import LinkEndpoint
from antiphon.errors import ApiError, ClientError, ServerError, UpstreamError, quote_list
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
    Undrain,
    UnsendableFrame,
    WorkerDismissed,
    from_worker_decoder,
)

OPEN_TIMEOUT_S = 120.0
"""How long a worker may take to begin a conversation; one that has to load its model anew takes a minute."""

LEAVE_TIMEOUT_S = 15.0
"""How long it may take to leave one; then nobody knows what it is doing, and it gets nothing more to do."""

REQUEST_TIMEOUT_S = 20.0
"""How long it may take to answer a question."""

BACKLOG_LIMIT_BYTES = 8 << 20
"""With so much waiting for the worker it is told nothing more."""

PAUSED_OUTPUT_LIMIT_BYTES = 16 << 20
"""The most that a worker says in a conversation that it was told to pause: some was on its way, and the rest has to wait somewhere."""

_OUTPUT_EVENTS = (engine_events.TextDelta, engine_events.AudioTranscriptDelta, engine_events.AudioDelta)
"""Words with which an engine in full duplex begins to say something."""


def build(model: str, options: Mapping[str, Any], _build_context: BuildContext) -> "NoWorkerYet":
    """
    What stands for a model whose workers join.

    Raises:
        ServerError: it has options, which are the workers' to have.
    """
    if options:
        raise ServerError(f"Model '{model}' has {quote_list(sorted(options))}; the engine 'worker' has no options: its workers bring them.")
    return NoWorkerYet(model)


class NoWorkerYet:
    """A model none of whose workers has joined; those that do are given out by the server's coordinator."""

    def __init__(self, model: str) -> None:
        self.capabilities = Capabilities()
        self._model = model

    async def start(self) -> None:
        """Workers come when they come."""

    async def stop(self) -> None:
        """There is nothing to let go of."""

    def open(self, settings: ConversationSettings, deliver: Deliver) -> AbstractAsyncContextManager[EngineConversation]:
        """
        No conversation.

        Raises:
            ServerError: nobody is there.
        """
        raise unavailable_error(f"No worker of the model '{self._model}' has joined. Please try again later.")


class RemoteEngine:
    """
    An engine at the other end of a link.

    Args:
        gone: called once with the reason, when the worker is gone, after every conversation has been told.
        drained: called when the worker says of its own accord that it takes no more conversations.
        notice: takes lines for the operator.

    Attributes:
        abilities: of the engine there, once it has said hello.
        is_draining: whether it takes no more conversations, by its own will or by an operator's.
        is_ending: whether it said that it goes when it has none.
        end: this end of the link, for whatever carries it.
    """

    def __init__(
        self,
        on_gone: Callable[[str], None] = lambda _reason: None,
        on_drain: Callable[[], None] = lambda: None,
        notice: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.capabilities = Capabilities()
        self.endpoint: LinkEndpoint[FromWorker] = LinkEndpoint(from_worker_decoder, self._on_frame, self._on_lost)
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
        What the worker says it is, once it does.

        Raises:
            ApiError: it can't be had; why it says itself.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._hello_future)
        except TimeoutError:
            raise unavailable_error("The worker did not say what it is.") from None

    # As an operator's

    @property
    def silent_s(self) -> float:
        """For how long nothing has been heard of it."""
        return self.endpoint.silent_s

    def drain(self) -> None:
        """Tell it to take no more conversations, unless it has said so itself."""
        if not self.is_draining:
            self.is_draining = True
            self.endpoint.send(Drain())

    def resume(self) -> None:
        """Tell it to take conversations again; one that is ending takes none."""
        if self.is_draining and not self.is_ending:
            self.is_draining = False
            self.endpoint.send(Undrain())

    def dismiss(self) -> None:
        """Tell it to go when it has no conversations."""
        self.endpoint.send(WorkerDismissed())

    # As an engine

    async def start(self) -> None:
        """Wait for it to be there."""
        await self.wait_for_hello()

    async def stop(self) -> None:
        """Break what is being answered and hang up."""
        self._is_stopping = True
        for conversation in tuple(self._conversations.values()):
            conversation.fail(_shutdown_error(), "shutdown")
        self.endpoint.abort("the server is stopping")

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        """A conversation at the other end; this returns when the engine there has left it."""
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
        """
        The tokens that the engine there would read `ask` as.

        Raises:
            ApiError: they can't be counted.
        """
        return await self._request(lambda number: CountRequest(number, request))

    async def probe(self) -> None:
        """
        See whether the engine there is well.

        Raises:
            ApiError: it is not, or says nothing.
        """
        await self._request(ProbeRequest)

    async def _request(self, new_frame: Callable[[int], CountRequest | ProbeRequest]) -> int:
        if self.endpoint.is_over:
            raise _worker_gone_error()
        number = next(self._numbers)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pending_requests[number] = answer
        try:
            self.endpoint.send(new_frame(number))
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return await answer
        except TimeoutError:
            raise UpstreamError("The model's worker did not answer in time.", status=504, code="upstream_timeout") from None
        except UnsendableFrame as error:
            raise _unsendable_error(error) from None
        finally:
            del self._pending_requests[number]

    async def _leave_conversation(self, conversation: "_RemoteConversation") -> None:
        conversation.detach()
        self.endpoint.send(CloseConversation(conversation.number))
        if not await _wait_through_cancellation(conversation.leave_future, LEAVE_TIMEOUT_S):
            # What it does with the place nobody knows, so nobody is to have it next.
            self.endpoint.abort("a conversation was not left in time")
        self._conversations.pop(conversation.number, None)

    # What the worker says

    def _on_frame(self, frame: FromWorker) -> None:
        match frame:
            case EngineEvents(number, words):
                if (conversation := self._conversations.get(number)) is not None:
                    conversation.on_events(words)
            case ConversationOpened() | ConversationFailed() | ConversationClosed():
                self._on_conversation_frame(frame)
            case RequestAnswered(number, tokens, failure):
                if (answer := self._pending_requests.get(number)) is not None:
                    resolve(answer, tokens if failure is None else failure.to_error())
            case _:
                self._on_worker_frame(frame)

    def _on_worker_frame(self, frame: Heartbeat | Hello | EngineBuildFailed | ChildNotice | Drain) -> None:
        """The worker says something of itself."""
        match frame:
            case Heartbeat():
                pass
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
        """A conversation begins, breaks off or is left."""
        conversation = self._conversations.get(frame.number)
        if conversation is None:
            return
        match frame:
            case ConversationOpened():
                resolve(conversation.open_future, None)
            case ConversationFailed(failure=failure):
                conversation.fail(failure.to_error(), "backend_error")
            case ConversationClosed():
                conversation.fail(_worker_gone_error(), "backend_error")  # where it had not been asked to leave
                resolve(conversation.leave_future, None)

    def _on_lost(self, reason: str) -> None:
        fault = _shutdown_error() if self._is_stopping else _worker_gone_error()
        resolve(self._hello_future, fault)
        for conversation in tuple(self._conversations.values()):
            conversation.fail(fault, "shutdown" if self._is_stopping else "backend_error")
            resolve(conversation.leave_future, None)
        for answer in self._pending_requests.values():
            resolve(answer, fault)
        self._on_gone(reason)


class _RemoteConversation:
    """
    A conversation, as far as it is on this end.

    Attributes:
        opened: done when it has begun at the other end, or never will.
        left: done when the engine at the other end has left it.
    """

    def __init__(self, number: int, endpoint: "LinkEndpoint[FromWorker]", deliver: Deliver) -> None:
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
        Wait until it has begun.

        Raises:
            ApiError: it can't, or did not in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self.open_future
        except TimeoutError:
            raise UpstreamError("The model's worker did not begin in time.", status=504, code="upstream_timeout") from None

    def send(self, command: commands.EngineCommand) -> None:
        if self._is_lost:
            self._refuse(command, _worker_gone_error())
            return
        is_asking = not isinstance(command, commands.Cancel)
        if is_asking and self._endpoint.buffer_bytes > BACKLOG_LIMIT_BYTES:
            raise EngineOverrun("its worker is behind with reading")
        try:
            self._endpoint.send(EngineCommands(self.number, (command,)))
        except UnsendableFrame as error:
            self._refuse(command, _unsendable_error(error))
            return
        if isinstance(command, commands.Respond):
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
        """Deliver what the engine says."""
        if self._is_lost or self._is_detached or not events:
            return
        if self._is_paused:
            self._paused_bytes += sum(map(_size_bytes, events))
            if self._paused_bytes > PAUSED_OUTPUT_LIMIT_BYTES:
                self.fail(UpstreamError("The model's worker goes on though it was told to wait."), "backend_error")
                return
        for word in events:
            if isinstance(word, engine_events.ResponseEnded | engine_events.ResponseFailed):
                self._active_response_ids.pop(word.id, None)
            elif self._is_duplex and isinstance(word, _OUTPUT_EVENTS):
                self._active_response_ids[word.id] = None
        self._deliver(events)

    def fail(self, error: ApiError, code: str) -> None:
        """There is nothing at the other end any more; said at once."""
        if self._is_lost:
            return
        self._is_lost = True
        if not self.open_future.done():
            resolve(self.open_future, error)
            return
        if not self._is_detached:
            broke = [engine_events.ResponseFailed.from_error(id, error) for id in self._active_response_ids]
            self._deliver((*broke, engine_events.EngineLost(code=code, message=error.message)))

    def detach(self) -> None:
        """Deliver nothing more."""
        self._is_detached = True
        self.open_future.cancel()

    def _refuse(self, command: commands.EngineCommand, error: ApiError) -> None:
        """Answer what nobody else can; not from within `tell`."""
        if isinstance(command, commands.Respond):
            asyncio.get_running_loop().call_soon(self._emit, engine_events.ResponseFailed.from_error(command.id, error))

    def _emit(self, event: engine_events.EngineEvent) -> None:
        if not self._is_detached:
            self._deliver((event,))


def _size_bytes(event: engine_events.EngineEvent) -> int:
    return len(msgpack.encode(event))


async def _wait_through_cancellation(future: "asyncio.Future[None]", timeout_s: float) -> bool:
    """Wait for a future, also through being cancelled, which goes on afterwards; whether it came."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_s
    cancelled: asyncio.CancelledError | None = None
    while not future.done() and (left_s := until - loop.time()) > 0:
        try:
            await asyncio.wait((future,), timeout=left_s)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return future.done()


def unavailable_error(message: str, retry_after_s: float = 2) -> ApiError:
    """Nobody is there to answer now, but soon may be."""
    return ServerError(message, status=503, type="service_unavailable_error", code="server_is_overloaded", retry_after_s=retry_after_s)


def _worker_gone_error() -> ApiError:
    return ServerError(
        "The model's worker is gone. Please try again.", status=503, type="server_error", code="server_error", retry_after_s=2
    )


def _shutdown_error() -> ApiError:
    return ServerError("The server is stopping.", status=503, type="server_error", code="server_is_overloaded")


def _unsendable_error(error: UnsendableFrame) -> ApiError:
    return ClientError(f"The model's worker can't be asked that: {error}.", code="invalid_value", status=400)
