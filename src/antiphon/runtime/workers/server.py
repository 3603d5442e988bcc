"""
The worker's end of a link: conversations that a server opens with the engine here.

A slot is free when the engine has left the conversation, not before: `ConversationClosed` says so, and is a
conversation's last frame.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self, cast

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.engine import CountingEngine, Engine, EngineConversation, EngineOverrun, ProbedEngine, overrun_event
from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import ApiError, ServerError, overloaded_error
from antiphon.framing import UnsendableFrame
from antiphon.link import LinkEndpoint
from antiphon.wire.internal.worker_link import (
    BuildEngine,
    CloseConversation,
    ConversationClosed,
    ConversationFailed,
    ConversationOpened,
    CountRequest,
    Drain,
    EngineCommands,
    EngineEvents,
    Failure,
    FromWorker,
    Heartbeat,
    JoinAccepted,
    JoinRefused,
    OpenConversation,
    PauseConversation,
    ProbeRequest,
    RequestAnswered,
    ResumeConversation,
    ToWorker,
    Undrain,
    WorkerDismissed,
    to_worker_decoder,
)

MAX_REQUESTS = 64
"""Requests (`CountRequest`, `ProbeRequest`) that may be answered at the same time."""

LinkFrame = Heartbeat | BuildEngine | JoinAccepted | JoinRefused | Drain | Undrain | WorkerDismissed
"""Frames about the link itself."""


class ConversationServer(AbstractAsyncContextManager["ConversationServer"]):
    """
    Serves conversations over one link while it is entered.

    Args:
        slots: conversations at the same time; None for no limit.
        on_link_frame: called with each frame about the link itself.
        on_lost: called once, with the reason, when the server is gone and the conversations are being closed.
        on_closed: called when a conversation has closed, with the number of those still open.

    Attributes:
        endpoint: this end of the link, for the transport that carries it.
    """

    def __init__(
        self,
        slots: int | None = None,
        on_link_frame: Callable[[LinkFrame], None] = lambda _frame: None,
        on_lost: Callable[[str], None] = lambda _reason: None,
        on_closed: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self.endpoint: LinkEndpoint[ToWorker, FromWorker] = LinkEndpoint(
            to_worker_decoder, self._on_frame, self._on_lost, self._on_backpressure, Heartbeat()
        )
        self._engine: Engine | None = None
        self._slots = slots
        self._on_link_frame = on_link_frame
        self._notify_lost = on_lost
        self._on_closed = on_closed
        self._conversations: dict[int, _ServedConversation] = {}
        self._request_tasks: set[asyncio.Task[None]] = set()
        self._tasks = asyncio.TaskGroup()
        self._is_draining = False
        self._hangs_up = False

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.endpoint.abort("the worker is stopping")
        self._close_all()
        await self._tasks.__aexit__(kind, error, trace)

    @property
    def count(self) -> int:
        """The number of open conversations."""
        return len(self._conversations)

    def start_heartbeat(self) -> None:
        """Show the server that this end is alive before it can serve."""
        self.endpoint.send(Heartbeat())
        self.endpoint.start_heartbeat()

    def serve(self, engine: Engine) -> None:
        """Answer with `engine`, which has been started."""
        self._engine = engine
        self.endpoint.start_heartbeat()

    def drain(self, *, hangs_up: bool = True) -> None:
        """Take no more conversations; with `hangs_up` the link ends after the last one, and the server hears of it."""
        self._is_draining = True
        if hangs_up and not self._hangs_up:
            self._hangs_up = True
            self.endpoint.send(Drain())
        self._hang_up_if_drained()

    def resume(self) -> None:
        """Take conversations again, unless the link ends after the last one."""
        self._is_draining = self._hangs_up

    def _hang_up_if_drained(self) -> None:
        # The link stays while conversations are open: their clients lose nothing.
        if self._hangs_up and not self._conversations:
            self.endpoint.abort("the worker was drained")

    # From the server

    def _on_frame(self, frame: ToWorker) -> None:
        match frame:
            case EngineCommands(number, batch):
                if (conversation := self._conversations.get(number)) is not None:
                    conversation.send(batch)
            case OpenConversation(number, settings):
                self._open(number, settings)
            case CloseConversation(number):
                if (conversation := self._conversations.get(number)) is not None:
                    conversation.close()
            case PauseConversation(number) | ResumeConversation(number):
                if (conversation := self._conversations.get(number)) is not None:
                    conversation.set_client_ready(not isinstance(frame, PauseConversation))
            case CountRequest() | ProbeRequest():
                self._start_answer(frame)
            case _:
                self._on_link_frame(frame)

    def _open(self, number: int, settings: ConversationSettings) -> None:
        if number in self._conversations:
            self.endpoint.abort(f"conversation {number} was opened twice")
            return
        if (error := self._full_error()) is not None:
            self.endpoint.send(ConversationFailed(number, Failure.from_error(error)))
            self.endpoint.send(ConversationClosed(number))
            return
        assert self._engine is not None
        conversation = self._conversations[number] = _ServedConversation(number, self.endpoint)
        conversation.task = self._tasks.create_task(conversation.run(self._engine, settings))
        conversation.task.add_done_callback(lambda _task: self._remove(number))

    def _full_error(self) -> ApiError | None:
        if self._engine is None or self._is_draining:
            return _busy_error("The worker takes no conversations.")
        if self._slots is not None and len(self._conversations) >= self._slots:
            return _busy_error("All slots of the worker are in use.")
        return None

    def _remove(self, number: int) -> None:
        # Not in the task itself: one that is cancelled before its first step runs none of its own code.
        del self._conversations[number]
        self.endpoint.send(ConversationClosed(number))
        self._on_closed(len(self._conversations))
        self._hang_up_if_drained()

    def _start_answer(self, frame: CountRequest | ProbeRequest) -> None:
        if len(self._request_tasks) >= MAX_REQUESTS or self._engine is None:
            self.endpoint.send(
                RequestAnswered(frame.number, failure=Failure.from_error(_busy_error("The worker has too many requests to answer.")))
            )
            return
        task = self._tasks.create_task(_answer(frame, self._engine, self.endpoint))
        self._request_tasks.add(task)
        task.add_done_callback(self._request_tasks.discard)

    # The link

    def _on_backpressure(self, is_paused: bool) -> None:
        """Pause every engine while the server reads slower than this end writes."""
        for conversation in self._conversations.values():
            conversation.set_link_behind(is_paused)

    def _on_lost(self, reason: str) -> None:
        self._close_all()
        self._notify_lost(reason)

    def _close_all(self) -> None:
        for conversation in self._conversations.values():
            conversation.close()
        for task in self._request_tasks:
            task.cancel()


class _ServedConversation:
    """
    One conversation with the engine.

    Attributes:
        task: runs it.
    """

    def __init__(self, number: int, endpoint: "LinkEndpoint[ToWorker, FromWorker]") -> None:
        self.task: asyncio.Task[None] | None = None
        self._number = number
        self._endpoint = endpoint
        self._conversation: EngineConversation | None = None
        self._close_requested = asyncio.Event()
        self._is_client_behind = False
        self._is_link_behind = False

    async def run(self, engine: Engine, settings: ConversationSettings) -> None:
        """Hold the conversation until `close`."""
        try:
            async with engine.open(settings, self._deliver) as conversation:
                self._conversation = conversation
                if self._is_client_behind or self._is_link_behind:
                    conversation.pause()
                self._endpoint.send(ConversationOpened(self._number))
                await self._close_requested.wait()
        except ApiError as error:
            self._fail(error)
        except Exception as error:  # the failure of one conversation must not end the others
            self._fail(ServerError(f"The model's worker failed: {type(error).__name__}."))
        finally:
            self._conversation = None

    def send(self, batch: Sequence[commands.EngineCommand]) -> None:
        """Send commands to the engine, if the conversation is open."""
        for command in batch:
            try:
                if self._conversation is not None:
                    self._conversation.send(command)
            except EngineOverrun as error:
                self._deliver((overrun_event(command, error),))

    def close(self) -> None:
        """Leave the conversation; one that is not open yet is cancelled."""
        # An open one is left in order, so that the engine frees its slot; the event does that.
        if self._conversation is None and self.task is not None:
            self.task.cancel()
        self._close_requested.set()

    def set_client_ready(self, is_ready: bool) -> None:
        """Report whether the client keeps up."""
        self._update_pause(not is_ready, self._is_link_behind)

    def set_link_behind(self, is_behind: bool) -> None:
        """Report whether the link is behind."""
        self._update_pause(self._is_client_behind, is_behind)

    def _update_pause(self, is_client_behind: bool, is_link_behind: bool) -> None:
        was_paused = self._is_client_behind or self._is_link_behind
        self._is_client_behind, self._is_link_behind = is_client_behind, is_link_behind
        if self._conversation is None or was_paused == (is_client_behind or is_link_behind):
            return
        if was_paused:
            self._conversation.resume()
        else:
            self._conversation.pause()

    def _deliver(self, events: Sequence[engine_events.EngineEvent]) -> None:
        try:
            self._endpoint.send(EngineEvents(self._number, tuple(events)))
        # The server must hear of it: without the event its client would wait for ever.
        except UnsendableFrame as error:
            self._fail(ServerError(f"The model's worker produced an event that can't be sent: {error}."))

    def _fail(self, error: ApiError) -> None:
        self._endpoint.send(ConversationFailed(self._number, Failure.from_error(error)))


async def _answer(request: CountRequest | ProbeRequest, engine: Engine, endpoint: "LinkEndpoint[ToWorker, FromWorker]") -> None:
    tokens, failure = 0, None
    try:
        match request:
            case CountRequest():
                tokens = await cast(CountingEngine, engine).count(request.request)
            case ProbeRequest():
                if isinstance(engine, ProbedEngine):
                    await engine.probe()
    except ApiError as error:
        failure = Failure.from_error(error)
    except Exception as error:  # the failure of one request must not end the others either
        failure = Failure.from_error(ServerError(f"The model's worker failed: {type(error).__name__}."))
    endpoint.send(RequestAnswered(request.number, tokens, failure))


def _busy_error(message: str) -> ApiError:
    return overloaded_error(message, code="worker_busy", retry_after_s=2)
