"""
The worker's end of a link: conversations that a server opens, held with the engine that is here.

A place is free when the engine has left the conversation, and not before: `ConversationClosed` says so, and is the last that is said of it.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self, cast

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.engine import CountingEngine, Engine, EngineConversation, EngineOverrun, ProbedEngine
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.remote.link import LinkEndpoint
from antiphon.errors import ApiError, ServerError
from antiphon.runtime.core.driver import overrun_event
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
    UnsendableFrame,
    WorkerDismissed,
    to_worker_decoder,
)

MAX_QUESTIONS = 64
"""The most questions that are being answered at the same time."""

LinkFrame = Heartbeat | BuildEngine | JoinAccepted | JoinRefused | Drain | Undrain | WorkerDismissed
"""What a server says of the link itself."""


class ConversationServer(AbstractAsyncContextManager["ConversationServer"]):
    """
    Conversations over one link, for as long as it is entered.

    Args:
        slots: the most at the same time; None for as many as are asked for.
        told: takes what the server says of the link itself.
        lost: called once, with the reason, when the server is gone; the conversations are being left then.
        freed: called when a conversation has been left, with how many there are still.

    Attributes:
        end: this end of the link, for whatever carries it.
    """

    def __init__(
        self,
        slots: int | None = None,
        on_link_frame: Callable[[LinkFrame], None] = lambda _frame: None,
        on_lost: Callable[[str], None] = lambda _reason: None,
        on_closed: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self.endpoint: LinkEndpoint[ToWorker] = LinkEndpoint(to_worker_decoder, self._on_frame, self._on_lost, self._on_backpressure)
        self._engine: Engine | None = None
        self._slots = slots
        self._on_link_frame = on_link_frame
        self._notify_lost = on_lost
        self._on_closed = on_closed
        self._conversations: dict[int, _ServedConversation] = {}
        self._question_tasks: set[asyncio.Task[None]] = set()
        self._tasks = asyncio.TaskGroup()
        self._is_draining = False
        self._hangs_up = False

    async def __aenter__(self) -> Self:
        """Conversations may come."""
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leave every conversation, and hang up."""
        self.endpoint.abort("the worker is stopping")
        self._close_all()
        await self._tasks.__aexit__(kind, error, trace)

    @property
    def count(self) -> int:
        """How many conversations there are."""
        return len(self._conversations)

    def serve(self, engine: Engine) -> None:
        """Begin to answer with an engine, which has been started."""
        self._engine = engine
        self.endpoint.start_heartbeat()

    def drain(self, *, hangs_up: bool = True) -> None:
        """Take no more conversations; where `hangs_up`, the link ends after the last, and the server is told so."""
        self._is_draining = True
        if hangs_up and not self._hangs_up:
            self._hangs_up = True
            self.endpoint.send(Drain())
        self._hang_up_if_drained()

    def resume(self) -> None:
        """Take conversations again, unless the link is to end after the last."""
        self._is_draining = self._hangs_up

    def _hang_up_if_drained(self) -> None:
        if self._hangs_up and not self._conversations:
            self.endpoint.abort("the worker was drained")

    # What the server says

    def _on_frame(self, frame: ToWorker) -> None:
        match frame:
            case EngineCommands(number, words):
                if (place := self._conversations.get(number)) is not None:
                    place.send(words)
            case OpenConversation(number, settings):
                self._open(number, settings)
            case CloseConversation(number):
                if (place := self._conversations.get(number)) is not None:
                    place.close()
            case PauseConversation(number) | ResumeConversation(number):
                if (place := self._conversations.get(number)) is not None:
                    place.set_client_ready(not isinstance(frame, PauseConversation))
            case CountRequest() | ProbeRequest():
                self._start_answer(frame)
            case _:
                self._on_link_frame(frame)

    def _open(self, number: int, settings: ConversationSettings) -> None:
        if number in self._conversations:
            self.endpoint.abort(f"conversation {number} was opened twice")
            return
        if (fault := self._full_error()) is not None:
            self.endpoint.send(ConversationFailed(number, Failure.from_error(fault)))
            self.endpoint.send(ConversationClosed(number))
            return
        assert self._engine is not None
        place = self._conversations[number] = _ServedConversation(number, self.endpoint)
        place.task = self._tasks.create_task(place.run(self._engine, settings))
        place.task.add_done_callback(lambda _task: self._remove(number))

    def _full_error(self) -> ApiError | None:
        """Why there may be no more conversations."""
        if self._engine is None or self._is_draining:
            return _busy_error("The worker takes no conversations.")
        if self._slots is not None and len(self._conversations) >= self._slots:
            return _busy_error("The worker has no place.")
        return None

    def _remove(self, number: int) -> None:
        # Not in the task itself: one that is cancelled before its first step runs none of its own code.
        del self._conversations[number]
        self.endpoint.send(ConversationClosed(number))
        self._on_closed(len(self._conversations))
        self._hang_up_if_drained()

    def _start_answer(self, frame: CountRequest | ProbeRequest) -> None:
        if len(self._question_tasks) >= MAX_QUESTIONS or self._engine is None:
            self.endpoint.send(RequestAnswered(frame.number, failure=Failure.from_error(_busy_error("The worker is asked too much."))))
            return
        task = self._tasks.create_task(_answer(frame, self._engine, self.endpoint))
        self._question_tasks.add(task)
        task.add_done_callback(self._question_tasks.discard)

    # The link

    def _on_backpressure(self, is_paused: bool) -> None:
        """Where the server reads slower than is written, every engine is to wait."""
        for place in self._conversations.values():
            place.set_link_behind(is_paused)

    def _on_lost(self, reason: str) -> None:
        self._close_all()
        self._notify_lost(reason)

    def _close_all(self) -> None:
        for place in self._conversations.values():
            place.close()
        for task in self._question_tasks:
            task.cancel()


class _ServedConversation:
    """
    One conversation.

    Attributes:
        task: holds it.
    """

    def __init__(self, number: int, endpoint: "LinkEndpoint[ToWorker]") -> None:
        self.task: asyncio.Task[None] | None = None
        self._number = number
        self._endpoint = endpoint
        self._conversation: EngineConversation | None = None
        self._close_requested = asyncio.Event()
        self._is_client_behind = False
        self._is_link_behind = False

    async def run(self, engine: Engine, settings: ConversationSettings) -> None:
        """Be in the conversation until it is to be left."""
        try:
            async with engine.open(settings, self._deliver) as conversation:
                self._conversation = conversation
                if self._is_client_behind or self._is_link_behind:
                    conversation.pause()
                self._endpoint.send(ConversationOpened(self._number))
                await self._close_requested.wait()
        except ApiError as fault:
            self._fail(fault)
        except Exception as error:  # a conversation ends here; what is wrong in one must not cost the others
            self._fail(ServerError(f"The model's worker failed: {type(error).__name__}."))
        finally:
            self._conversation = None

    def send(self, commands: Sequence[commands.EngineCommand]) -> None:
        """Tell the engine."""
        for word in commands:
            try:
                if self._conversation is not None:
                    self._conversation.send(word)
            except EngineOverrun as full:
                self._deliver((overrun_event(word, full),))

    def close(self) -> None:
        """Leave the conversation; one that has not begun yet never will."""
        if self._conversation is None and self.task is not None:
            self.task.cancel()
        self._close_requested.set()

    def set_client_ready(self, is_ready: bool) -> None:
        """Whether the client keeps up."""
        self._update_pause(not is_ready, self._is_link_behind)

    def set_link_behind(self, is_behind: bool) -> None:
        """Whether the link does not keep up."""
        self._update_pause(self._is_client_behind, is_behind)

    def _update_pause(self, is_client_behind: bool, is_link_behind: bool) -> None:
        was = self._is_client_behind or self._is_link_behind
        self._is_client_behind, self._is_link_behind = is_client_behind, is_link_behind
        if self._conversation is None or was == (is_client_behind or is_link_behind):
            return
        if was:
            self._conversation.resume()
        else:
            self._conversation.pause()

    def _deliver(self, events: Sequence[engine_events.EngineEvent]) -> None:
        try:
            self._endpoint.send(EngineEvents(self._number, tuple(events)))
        except UnsendableFrame as error:
            self._fail(ServerError(f"The model's worker said what can't be told: {error}."))

    def _fail(self, fault: ApiError) -> None:
        self._endpoint.send(ConversationFailed(self._number, Failure.from_error(fault)))


async def _answer(question: CountRequest | ProbeRequest, engine: Engine, endpoint: "LinkEndpoint[ToWorker]") -> None:
    tokens, failure = 0, None
    try:
        match question:
            case CountRequest(ask=ask):
                tokens = await cast(CountingEngine, engine).count(ask)
            case ProbeRequest():
                if isinstance(engine, ProbedEngine):
                    await engine.probe()
    except ApiError as fault:
        failure = Failure.from_error(fault)
    except Exception as error:  # as where a conversation ends
        failure = Failure.from_error(ServerError(f"The model's worker failed: {type(error).__name__}."))
    endpoint.send(RequestAnswered(question.number, tokens, failure))


def _busy_error(message: str) -> ApiError:
    return ServerError(message, status=503, type="service_unavailable_error", code="worker_busy", retry_after_s=2)
