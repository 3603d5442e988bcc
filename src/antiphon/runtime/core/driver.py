"""
The driver: performs a session's effects; the only place where sessions, engines, stores and clients meet.

The callback that receives an event calls the session and performs its effects at once: a token passes no queue, no task
switch and no `await`. Only a `Persist` takes time; effects that must follow it wait in order, while the engine already
works.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, Protocol, TypeGuard, TypeVar, runtime_checkable

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.engine import Engine, EngineConversation, EngineOverrun, overrun_event
from antiphon.engine_api.fast_path import TextRoute, TextSeries, TextSink
from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import ApiError, ServerError
from antiphon.protocols.responses.ending import INTERRUPTED_MESSAGE
from antiphon.protocols.session import (
    CallTool,
    CancelTools,
    ClientEventT,
    Close,
    CountTokens,
    Effect,
    Event,
    FromClient,
    FromEngine,
    FromTool,
    Hangup,
    InputTranscript,
    Observe,
    Persist,
    PersistFailed,
    PrepareTools,
    ReportAttempts,
    ReportRetry,
    Send,
    SendToEngine,
    ServerEventT,
    Session,
    Shutdown,
    TextRun,
    TextSession,
    Tick,
    ToolFailed,
    ToolsReady,
    WakeAt,
)
from antiphon.records import ConversationTurn, ResponseRecord
from antiphon.runtime.core.metrics import Metrics
from antiphon.stores.availability import Availability
from antiphon.stores.base import ConversationStore
from antiphon.tool_api import ApprovalRequired, ServerToolCall, ToolEvent, ToolOutput
from antiphon.wire.responses.tools import Tool

BATCH_SIZE = 256
"""Events handled, and written, at once: that a client is behind is only noticed between two writes."""

MAX_PENDING_EVENTS = 16 * BATCH_SIZE
"""
The engine is paused above this number of unhandled events, as by a slow client: it may be faster than this process.
"""


_UNORDERED_EFFECTS = frozenset({SendToEngine, PrepareTools, CallTool, CancelTools, ReportRetry, ReportAttempts})
"""Effects that wait for no `Persist`."""

ServerEventT_contra = TypeVar("ServerEventT_contra", contravariant=True)


class RecordStore(Protocol):
    """What a driver needs of a `Store`."""

    @property
    def availability(self) -> Availability: ...

    @property
    def conversations(self) -> ConversationStore: ...

    async def put(self, record: ResponseRecord, turn: ConversationTurn | None = None) -> None: ...

    async def finish(self, record: ResponseRecord, turn: ConversationTurn | None = None) -> bool: ...

    async def get(self, tenant: str, response_id: str) -> ResponseRecord | None: ...


class ToolRunner(Protocol):
    """Runs the tools of one session's response."""

    async def prepare(self, report: Callable[[ToolEvent], None], tools: Sequence[tuple[str, Tool]] = ()) -> None:
        """
        Do what is to be done before the model is asked.

        Args:
            tools: to be opened beside those that are open, each with its path in the request.

        Raises:
            ApiError: the response must fail.
        """

    async def run(self, call: ServerToolCall, report: Callable[[ToolEvent], None]) -> ToolOutput | ApprovalRequired:
        """
        Run a call.

        Raises:
            ApiError: the response must fail.
        """


class SessionClient(Protocol[ServerEventT_contra]):
    """The driver's side of a client."""

    def send(self, event: ServerEventT_contra) -> None:
        """Send a wire event; it may be buffered until `flush`."""

    def flush(self) -> None:
        """Write what was sent, at once."""

    def close(self, error: ApiError | None) -> None:
        """End the connection; `error` is why, None for a normal end."""


class ClientTextSink(TextSink, Protocol):
    """Where a client's text is written."""

    def close(self) -> int:
        """Take no more. Returns how many texts it has taken."""


@runtime_checkable
class TextClient(Protocol[ServerEventT]):
    """A client whose text may take the fast path (`engine_api.fast_path`)."""

    def open_text(self, run: TextRun[ServerEventT]) -> ClientTextSink | None:
        """Where to write it, until anything else is sent; None where there is no such place now."""


# `isinstance` takes 5 us, as Python 3.11 collects a protocol's methods each time; the answer about a class is cached.


def _is_text_session(session: Session[Any, ServerEventT]) -> TypeGuard[TextSession[ServerEventT]]:
    return issubclass(type(session), TextSession)


def _is_text_client(client: SessionClient[ServerEventT]) -> TypeGuard[TextClient[ServerEventT]]:
    return issubclass(type(client), TextClient)


def _do_nothing(*_arguments: object) -> None:
    pass


class _ClosedSession:
    """Session and client of a driver that has run."""

    send = flush = close = staticmethod(_do_nothing)

    def handle(self, _event: Event[Any]) -> list[Effect[Any]]:
        return []


_CLOSED_SESSION = _ClosedSession()


class Driver(Generic[ClientEventT, ServerEventT]):
    """
    Drives one session between its client, its engine and the store, from `run` until the session closes.

    Args:
        count_tokens: takes the tokens of each response, from sessions that report them with `CountTokens`.
        on_retry: called at each `ReportRetry`.
        on_attempts: takes each `ReportAttempts`.
        observe: takes what a session shows with `Observe`.
        tools: runs what a session has called with `CallTool`; None for sessions that call nothing.
    """

    def __init__(
        self,
        session: Session[ClientEventT, ServerEventT],
        client: SessionClient[ServerEventT],
        store: RecordStore,
        clock: Callable[[], float] = time.time,
        metrics: Metrics | None = None,
        count_tokens: Callable[[int], None] = _do_nothing,
        on_retry: Callable[[], None] = _do_nothing,
        on_attempts: Callable[[engine_events.AttemptsReported], None] = _do_nothing,
        observe: Callable[[InputTranscript], None] = _do_nothing,
        tools: ToolRunner | None = None,
    ) -> None:
        self._session: Session[ClientEventT, ServerEventT] = session
        self._client: SessionClient[ServerEventT] = client
        self._store = store
        self._clock = clock
        self._metrics = metrics or Metrics()
        self._count_tokens = count_tokens
        self._on_retry = on_retry
        self._on_attempts = on_attempts
        self._observe = observe
        self._tools = tools
        self._tool_tasks: dict[asyncio.Task[None], str] = {}  # with the id of what each is for
        self._conversation: EngineConversation | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._pending_persist: Persist | None = None
        self._is_stored = False
        self._pending_effects: deque[Effect[ServerEventT]] = deque()
        self._pending_events: deque[engine_events.EngineEvent] = deque()
        self._deferred_events: deque[Event[ClientEventT]] = deque()
        self._is_performing = False
        self._is_beginning = False
        self._is_behind = False
        self._is_engine_paused = False
        self._has_hung_up = False
        self._shutdown_error: ApiError | None = None
        self._text: tuple[TextSession[ServerEventT], ClientTextSink] | None = None
        self._close_event = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_stored(self) -> bool:
        """Whether the response is in the store."""
        return self._is_stored

    async def run(
        self,
        engine: Engine,
        settings: ConversationSettings,
        opening: ClientEventT,
        meanwhile: Callable[[], Awaitable[None]] | None = None,
        ask: Callable[[], commands.EngineCommand | None] | None = None,
    ) -> None:
        """
        Run the whole session, which begins with the client's `opening` message; returns when it has closed and all is
        stored.

        Args:
            meanwhile: awaited once the session has begun, in the same task: another task would cost as much as several
                tokens.
            ask: gives the command that the session begins with; None if it begins with another effect. The engine gets it
                first, and the session of a stream begins in the loop's next turn: of requests that come together, all are
                asked before one is prepared for its client.

        Raises:
            ApiError: the engine could not be opened.
        """
        try:
            async with asyncio.TaskGroup() as self._tasks, engine.open(settings, self.deliver) as self._conversation:
                shutdown_error, has_hung_up = self._shutdown_error, self._has_hung_up  # before the engine was open
                if ask is not None and shutdown_error is None and not has_hung_up:
                    if (command := ask()) is not None:
                        await self._send_first(command)
                self.receive(FromClient(opening, self._clock()))
                if shutdown_error is not None:
                    self.receive(Shutdown(shutdown_error, self._clock()))
                if has_hung_up:
                    self.receive(Hangup(self._clock()))
                self._handle_batch()  # of what came while the engine was asked
                try:
                    if meanwhile is not None:
                        await meanwhile()
                    await self._close_event.wait()
                finally:
                    self._wake_at(None)
                    self._end_text()
                    for task in self._tool_tasks:
                        task.cancel()
        finally:
            self._release()

    async def _send_first(self, command: commands.EngineCommand) -> None:
        self._is_performing = self._is_beginning = True  # whatever happens now is handled once the session has begun
        try:
            self._send_to_engine(command)
            if not (isinstance(command, commands.Respond) and command.whole):  # for that, hardly anything is to be prepared
                await asyncio.sleep(0)
        finally:
            self._is_performing = self._is_beginning = False

    def _release(self) -> None:
        """
        Forget the session and its client, with all that they were sent, and what leads back here.

        An engine's conversation refers to this driver, often in a circle of its own, which only a full collection
        frees: by then a server may have served gigabytes.
        """
        self._conversation = self._tasks = self._pending_persist = self._tools = None
        self._session = self._client = _CLOSED_SESSION
        self._count_tokens = self._on_retry = self._on_attempts = self._observe = _do_nothing
        for pending in (self._pending_effects, self._pending_events, self._deferred_events):
            pending.clear()

    def receive_from_client(self, message: ClientEventT) -> None:
        """Handle another message from the client."""
        if self._text is not None:
            self._end_text()
        event = FromClient(message, self._clock())
        if self._is_performing:
            self._deferred_events.append(event)
        else:  # not by way of `receive`: a call more for every piece of audio
            self._perform(self._session.handle(event))

    def deliver(self, events: Sequence[engine_events.EngineEvent]) -> TextRoute | None:
        """Handle events from the engine, at any time; events that came together are written together."""
        if self._text is not None:
            self._end_text()
        # What comes while others wait must not overtake them.
        if len(events) > BATCH_SIZE or self._pending_events:
            self._postpone(events)
        elif self._is_performing:
            self._deferred_events.append(FromEngine(events, self._clock()))
        else:  # not by way of `receive`: a call more for every token
            self._perform(self._session.handle(FromEngine(events, self._clock())))
            return self if self._pending_persist is None else None
        return None

    def open_text(self, series: TextSeries) -> TextSink | None:
        """See `TextRoute`. Whatever happens next, the client's slowness included, ends it."""
        self._end_text()
        is_busy = self._is_performing or self._is_behind or self._pending_persist is not None or bool(self._pending_events)
        session, client = self._session, self._client
        if is_busy or not _is_text_session(session) or not _is_text_client(client):
            return None
        run = session.begin_text(series)
        sink: ClientTextSink | None = None if run is None else client.open_text(run)
        self._text = None if sink is None else (session, sink)
        return sink

    def _end_text(self) -> None:
        if (text := self._text) is not None:
            self._text = None
            session, sink = text
            session.end_text(sink.close())

    def _postpone(self, events: Sequence[engine_events.EngineEvent]) -> None:
        is_first = not self._pending_events
        self._pending_events.extend(events)
        self._update_backpressure()
        if is_first:
            self._handle_batch()

    def _handle_batch(self) -> None:
        """Handle one batch of the waiting events; the next batch follows after other callbacks of the loop."""
        if not self._pending_events or self._is_behind or self._is_beginning:
            return
        batch = [self._pending_events.popleft() for _ in range(min(BATCH_SIZE, len(self._pending_events)))]
        self.receive(FromEngine(batch, self._clock()))
        self._update_backpressure()
        if self._pending_events:
            asyncio.get_running_loop().call_soon(self._handle_batch)

    def hang_up(self) -> None:
        """Report that the client is gone; before the engine is open, the session learns it once it has begun."""
        self._has_hung_up = True
        if self._conversation is not None:
            self.receive(Hangup(self._clock()))

    def shut_down(self, error: ApiError) -> None:
        """End the session and tell the client why; before the engine is open, the session learns it once it is."""
        self._shutdown_error = error
        if self._conversation is not None:
            self.receive(Shutdown(error, self._clock()))

    def pause(self) -> None:
        """Stop writing: the client is behind."""
        self._end_text()
        self._is_behind = True
        self._update_backpressure()

    def resume(self) -> None:
        """Go on writing."""
        self._is_behind = False
        self._update_backpressure()
        self._handle_batch()

    def _update_backpressure(self) -> None:
        """Pause the engine while it is too far ahead of its client, or of this process."""
        limit = MAX_PENDING_EVENTS // 2 if self._is_engine_paused else MAX_PENDING_EVENTS  # apart, so that it does not toggle
        is_paused = self._is_behind or len(self._pending_events) > limit
        if is_paused is self._is_engine_paused or self._conversation is None:
            return
        self._is_engine_paused = is_paused
        if is_paused:
            self._conversation.pause()
        else:
            self._conversation.resume()

    def receive(self, event: Event[ClientEventT]) -> None:
        """
        Give the session an event and perform its effects.

        Events that arrive meanwhile, such as an engine's answer to the command being sent, are handled next: a session
        is never entered twice.
        """
        if self._text is not None:
            self._end_text()
        if self._is_performing:
            self._deferred_events.append(event)
        else:
            self._perform(self._session.handle(event))

    def _perform(self, effects: Sequence[Effect[ServerEventT]]) -> None:
        self._is_performing, has_output = True, False
        try:
            while True:
                # Every token and every piece of audio comes this way, so a `Send` and a command take no call more than
                # they need (docs/decisions/0013). Commands wait for no record: the engine works while it is written
                # (docs/decisions/0005). Nor does a retry: it is worth telling only before the client gets its first byte.
                for effect in effects:
                    if type(effect) is SendToEngine:
                        self._send_to_engine(effect.command)
                        continue
                    has_output = True
                    if type(effect) is Send and self._pending_persist is None:
                        self._client.send(effect.event)
                    elif self._pending_persist is not None and type(effect) not in _UNORDERED_EFFECTS:
                        self._pending_effects.append(effect)
                    else:
                        self._perform_one(effect)
                if not self._deferred_events:
                    break
                effects = self._session.handle(self._deferred_events.popleft())
        finally:
            self._is_performing = False
        # One write for all that came together: waking the reader costs more than what is written
        # (docs/decisions/0013). Audio has nothing to write.
        if has_output:
            self._client.flush()

    def _perform_one(self, effect: Effect[ServerEventT]) -> None:
        match effect:
            case Send(event):
                self._client.send(event)
            case CallTool() | PrepareTools() | CancelTools():
                self._perform_tool(effect)
            case Persist():
                assert self._tasks is not None
                self._pending_persist = effect
                self._tasks.create_task(self._persist(effect))
            case CountTokens(tokens):
                self._count_tokens(tokens)
            case Observe(transcript):
                self._observe(transcript)
            case WakeAt(at):
                self._wake_at(at)
            case ReportRetry() | ReportAttempts():
                self._report(effect)
            case Close(error):
                self._client.close(error)
                self._close_event.set()
            case SendToEngine():
                pass  # `_perform` has sent it

    def _send_to_engine(self, command: commands.EngineCommand) -> None:
        if self._conversation is None:  # the session ended before the engine was open
            return
        try:
            self._conversation.send(command)
        except EngineOverrun as error:
            self.deliver((overrun_event(command, error),))

    def _report(self, effect: ReportRetry | ReportAttempts) -> None:
        if isinstance(effect, ReportRetry):
            self._on_retry()
        else:
            self._on_attempts(effect.report)

    def _perform_tool(self, effect: CallTool | PrepareTools | CancelTools) -> None:
        if isinstance(effect, CancelTools):
            for task in [task for task, id in self._tool_tasks.items() if id == effect.id]:
                self._tool_tasks.pop(task)
                task.cancel()
            return
        assert self._tasks is not None and self._tools is not None
        task = self._tasks.create_task(self._run_tool(self._tools, effect), name="tool")
        self._tool_tasks[task] = effect.call.response_id if isinstance(effect, CallTool) else effect.id
        task.add_done_callback(lambda task: self._tool_tasks.pop(task, None))

    async def _run_tool(self, tools: ToolRunner, effect: CallTool | PrepareTools) -> None:
        """Do the tools' part for a session, which gets all that they say; it is cancelled when the session closes."""
        task = asyncio.current_task()
        id, call_id = (effect.call.response_id, effect.call.call_id) if isinstance(effect, CallTool) else (effect.id, "")

        def report(event: ToolEvent | ToolFailed | ToolsReady) -> None:
            if task in self._tool_tasks:  # else it reports on after its end
                self.receive(FromTool(id, call_id, event, self._clock()))

        try:
            outcome = await (tools.run(effect.call, report) if isinstance(effect, CallTool) else tools.prepare(report, effect.tools))
        except ApiError as error:
            report(ToolFailed(error))
        else:
            report(ToolsReady() if outcome is None else outcome)

    def _wake_at(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - self._clock()), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.receive(Tick(self._clock()))

    async def _persist(self, persist: Persist) -> None:
        record = persist.record
        try:
            if record is not None:
                await self._put(record, persist.turn)
            elif persist.turn is not None:
                await self._store.conversations.end_turn(persist.turn)
        except ApiError as error:
            self._persist_failed(record, error)
        except Exception as error:  # a defect of the store must not leave the client without an end
            self._store.availability.mark_failed(f"A response could not be stored: {error!r}")
            self._persist_failed(record, ServerError("The response could not be stored."))
        else:
            self._metrics.store_writes["stored"] += 1
            self._pending_persist = None
            effects, self._pending_effects = self._pending_effects, deque()
            self._perform(effects)

    async def _put(self, record: ResponseRecord, turn: ConversationTurn | None) -> None:
        """
        Store a record and the turn that ends with it; one that was deleted since the response was announced stays deleted.

        Raises:
            ServerError: another server took this one for dead, and ended the response as failed. That is final: a
                client that has read it must not find another end later.
        """
        if not self._is_stored:
            await self._store.put(record, turn)
            self._is_stored = True
        elif not await self._store.finish(record, turn) and await self._store.get(record.tenant, record.id):
            raise ServerError(INTERRUPTED_MESSAGE)

    def _persist_failed(self, record: ResponseRecord | None, error: ApiError) -> None:
        self._metrics.store_writes["failed"] += 1
        self._pending_persist = None
        self._pending_effects.clear()
        self.receive(PersistFailed(record, error, self._clock()))
