"""
An engine of which there are few: every conversation with it waits for a place, keeps it while it lasts, and gives it back.

A conversation is there at once. What it is told before it has a place is kept; then the worker's own conversation, which is open by then,
is told it. A stay is one try at a place, in a task of its own that belongs to the engine: it ends when the worker's conversation has
been left, whatever became of whoever opened the conversation meanwhile. So a place is given back exactly once, and never too early.

Sessions that carry their whole history take a new place when theirs is lost; the others end, as what was said is gone with the worker.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple, cast

from msgspec import structs

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import CountingEngine, Deliver, Engine, EngineConversation, EngineOverrun
from antiphon.engine_api.options import ConversationKind, ConversationSettings
from antiphon.errors import ApiError, ClientError, UpstreamError
from antiphon.runtime.scheduling.base import Coordinator, Requirements, WorkerLease
from antiphon.runtime.scheduling.pending import PendingCommands
from antiphon.runtime.scheduling.pool import no_worker_error, shutting_down_error

RETRY_S = 5.0
"""After a refusal, sound that goes on asks for a place again no sooner than this."""

REATTACHABLE_KINDS = frozenset[ConversationKind]({"responses", "realtime"})
"""Kinds of conversation that outlast their place."""


class WorkerTimeouts(NamedTuple):
    """
    How long a worker may take, in seconds.

    Attributes:
        open_s: to begin; one that has to load its model anew takes a minute.
        leave_s: to be left; then that is cut short, and counts as its failure.
    """

    open_s: float = 120.0
    close_s: float = 60.0


DEFAULT_TIMEOUTS = WorkerTimeouts()

_TERMINAL_EVENTS = frozenset({engine_events.ResponseEnded, engine_events.ResponseFailed})
_OUTPUT_EVENTS = frozenset({engine_events.TextDelta, engine_events.AudioTranscriptDelta, engine_events.AudioDelta})


class QueuedEngine:
    """
    The places of a model, as one engine.

    Args:
        model: as configured.
        dress: gives a worker's engine what it lacks for these conversations, such as ears and a voice.
        patience: with workers.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        model: str,
        wrap: Callable[[Engine], Engine] = lambda engine: engine,
        timeouts: WorkerTimeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self._coordinator = coordinator
        self._timeouts = timeouts
        self._model = model
        self._wrap = wrap
        self._conversations: set[_QueuedConversation] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def capabilities(self) -> Capabilities:
        """Those of the first worker, and none where there is none; of conversations there can be as many as come."""
        worker = self._coordinator.first_worker(self._model)
        return structs.replace(Capabilities() if worker is None else self._wrap(worker.engine).capabilities, sessions=None)

    @property
    def has_worker(self) -> bool:
        """Whether there is a worker at all; without one, nobody knows what the model can do."""
        return self._coordinator.first_worker(self._model) is not None

    async def start(self) -> None:
        """Nothing: workers are started by whoever offers them."""

    async def stop(self) -> None:
        """End every conversation, and see every place given back; idempotent."""
        for conversation in tuple(self._conversations):
            conversation.abort()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def count(self, request: commands.Respond) -> int:
        """
        The tokens that `ask` would be read as, as the first worker says; that takes no place.

        Raises:
            ApiError: there is no worker, or it can't tell.
        """
        worker = self._coordinator.first_worker(self._model)
        if worker is None:
            raise no_worker_error()
        return await cast(CountingEngine, worker.engine).count(request)

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        """A conversation that waits for its place; leaving it waits for nothing, and the place is given back when the worker was left."""
        wants = Requirements(model=self._model, kind=settings.kind, tenant=settings.tenant, key_id=settings.key_id)
        conversation = _QueuedConversation(self._coordinator, wants, settings, deliver, self._wrap, self._track_task, self._timeouts)
        self._conversations.add(conversation)
        conversation.start_attempt()
        try:
            yield conversation
        finally:
            self._conversations.discard(conversation)
            conversation.close()

    def _track_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Attempt:
    """
    One try at a place, from the queue until the worker has been left.

    Attributes:
        within: the worker's conversation; None until it is open.
        lease: None until there is a place.
        over: set when the worker is to be left.
        early: what the worker said before its conversation was open.
    """

    task: "asyncio.Task[None]"

    def __init__(self, close_s: float) -> None:
        self._close_s = close_s
        self.inner: EngineConversation | None = None
        self.lease: WorkerLease | None = None
        self.close_requested = asyncio.Event()
        self.early_events: list[engine_events.EngineEvent] = []

    def close(self) -> None:
        """Wait no longer, or leave the worker; what that takes too long for is cut short."""
        self.close_requested.set()
        if self.inner is None:
            self.task.cancel()
        if not self.task.done():
            alarm = asyncio.get_running_loop().call_later(self._close_s, self._abort)
            self.task.add_done_callback(lambda _task: alarm.cancel())

    def _abort(self) -> None:
        if self.lease is not None:
            self.lease.mark_failed()
        self.task.cancel()


class _QueuedConversation:
    """One client's conversation, with or without a place."""

    def __init__(
        self,
        coordinator: Coordinator,
        requirements: Requirements,
        settings: ConversationSettings,
        deliver: Deliver,
        wrap: Callable[[Engine], Engine],
        track_task: Callable[[asyncio.Task[None]], None],
        timeouts: WorkerTimeouts,
    ) -> None:
        self._coordinator = coordinator
        self._requirements = requirements
        self._settings = settings
        self._deliver = deliver
        self._wrap = wrap
        self._track_task = track_task
        self._timeouts = timeouts
        self._attempt: _Attempt | None = None
        self._pending = PendingCommands()
        self._last_configure: commands.Configure | None = None
        self._active_ids: set[str] = set()
        self._retry_at_s = 0.0
        self._is_paused = self._is_over = False

    # What the session says

    def send(self, command: commands.EngineCommand) -> None:
        if type(command) is commands.Configure:
            self._last_configure = command
        if self._attempt is not None and self._attempt.inner is not None:
            self._attempt.inner.send(command)
            if type(command) is commands.Respond:
                self._active_ids.add(command.id)
        elif self._is_over:
            self._reject(command)
        elif isinstance(command, commands.Cancel):
            self._cancel(command.id)
        else:
            self._pending.add(command)
            if self._attempt is None and self._needs_worker(command):
                self.start_attempt()

    def pause(self) -> None:
        self._is_paused = True
        if self._attempt is not None and self._attempt.inner is not None:
            self._attempt.inner.pause()

    def resume(self) -> None:
        self._is_paused = False
        if self._attempt is not None and self._attempt.inner is not None:
            self._attempt.inner.resume()

    def _needs_worker(self, command: commands.EngineCommand) -> bool:
        """Whether a conversation that has lost its place needs one again; turns are found only by who hears them."""
        if isinstance(command, commands.AppendAudio):
            return self._requirements.kind == "realtime" and asyncio.get_running_loop().time() >= self._retry_at_s
        return isinstance(command, commands.Respond)

    def _cancel(self, id: str) -> None:
        if self._pending.cancel(id):
            self._deliver_soon(engine_events.ResponseEnded(id, "cancelled"))

    def _reject(self, command: commands.EngineCommand) -> None:
        if isinstance(command, commands.Respond):
            self._deliver_soon(engine_events.ResponseFailed.from_error(command.id, _worker_lost_error()))

    def _deliver_soon(self, event: engine_events.EngineEvent) -> None:
        """Not at once: the session that is telling has not finished what it is doing."""
        asyncio.get_running_loop().call_soon(lambda: self._deliver((event,)))

    # Whose conversation it is

    def close(self) -> None:
        """Say nothing more, and give back what there is."""
        self._is_over = True
        self._deliver = _ignore_events
        stay, self._attempt = self._attempt, None
        if stay is not None:
            stay.close()

    def abort(self) -> None:
        """End: the server stops."""
        if not self._is_over:
            stay, self._attempt = self._attempt, None
            self._finish(shutting_down_error())
            if stay is not None:
                stay.close()

    def start_attempt(self) -> None:
        """Take a place, or wait for one."""
        stay = self._attempt = _Attempt(self._timeouts.close_s)
        # Its owner is the engine: it gives the place back also when whoever opened this conversation has gone.
        stay.task = asyncio.create_task(self._acquire(stay))  # noqa: TID251
        self._track_task(stay.task)

    async def _acquire(self, attempt: _Attempt) -> None:
        again = None
        for is_last in (False, True):
            try:
                async with self._coordinator.lease(self._requirements, self._on_queue_update, again) as lease:
                    again, attempt.lease = lease.ticket_id, lease
                    if await self._use(attempt, lease):
                        return
            except ApiError as fault:
                self._end_attempt(attempt, fault)
                return
            if is_last:
                self._end_attempt(attempt, _open_failed_error())

    async def _use(self, attempt: _Attempt, lease: WorkerLease) -> bool:
        """
        Have the place until it is left or lost; whether the worker began.

        Raises:
            ClientError: it did not, and won't with any other worker.
        """
        has_begun = False
        attempt.early_events.clear()  # it was of a worker that did not begin
        try:
            async with contextlib.AsyncExitStack() as stack:
                opened = self._wrap(lease.worker.engine).open(self._settings, lambda words: self._on_events(attempt, words))
                async with asyncio.timeout(self._timeouts.open_s):
                    within = await stack.enter_async_context(opened)
                has_begun = True
                self._begin(attempt, within, lease)
                await attempt.close_requested.wait()
        except Exception as error:  # whatever it was, it was the worker's, and ends with it
            if isinstance(error, ClientError) and not has_begun:
                raise
            lease.mark_failed()
            if has_begun:
                self._end_attempt(attempt, _worker_lost_error())
        return has_begun

    def _begin(self, attempt: _Attempt, inner: EngineConversation, lease: WorkerLease) -> None:
        words: list[engine_events.EngineEvent] = [engine_events.WorkerAssigned(lease.ticket_id, lease.worker.id)]
        attempt.inner = inner
        if self._is_paused:
            inner.pause()
        for word in self._pending.take():
            try:
                inner.send(word)
            except EngineOverrun as overrun:
                words += (
                    [engine_events.ResponseFailed.from_error(word.id, overrun.api_error())] if isinstance(word, commands.Respond) else []
                )
            else:
                self._active_ids.update([word.id] if isinstance(word, commands.Respond) else [])
        self._deliver(words)
        if attempt.early_events:
            early, attempt.early_events = attempt.early_events, []
            self._on_events(attempt, early)

    def _on_queue_update(self, update: engine_events.QueueUpdate) -> None:
        if not self._is_over:
            self._deliver((update,))

    # What the worker says

    def _on_events(self, attempt: _Attempt, events: Sequence[engine_events.EngineEvent]) -> None:
        if attempt is not self._attempt:
            return
        if attempt.inner is None:
            attempt.early_events.extend(events)
            return
        answering = self._active_ids
        for at, word in enumerate(events):
            said = type(word)
            if said in _TERMINAL_EVENTS:
                answering.discard(word.id)
            elif said in _OUTPUT_EVENTS:
                answering.add(word.id)
            elif isinstance(word, engine_events.EngineLost):
                self._deliver(events[:at])
                self._on_lost(attempt, word)
                return
        self._deliver(events)

    def _on_lost(self, attempt: _Attempt, event: engine_events.EngineLost) -> None:
        """The worker says that it is gone."""
        if attempt.lease is not None and event.code != "shutdown":
            attempt.lease.mark_failed()
        attempt.close()
        self._end_attempt(attempt, UpstreamError(event.message, code=event.code))

    def _end_attempt(self, attempt: _Attempt, fault: ApiError) -> None:
        """There is no place any more, or there won't be one."""
        if attempt is not self._attempt:
            return
        had_place = attempt.inner is not None
        self._attempt = None
        if self._requirements.kind in REATTACHABLE_KINDS:
            self._detach(fault, 0.0 if had_place else RETRY_S)
        else:
            self._finish(fault)

    def _detach(self, fault: ApiError, retry_in_s: float) -> None:
        """Go on without a place until one is needed."""
        self._retry_at_s = asyncio.get_running_loop().time() + retry_in_s
        words = self._fail_responses(fault)
        if self._last_configure is not None:
            self._pending.add(self._last_configure)
        if self._requirements.kind == "realtime":
            words.append(engine_events.EngineError(message=fault.message, code=fault.code, type=fault.type))
        self._deliver(words)

    def _finish(self, fault: ApiError) -> None:
        self._is_over = True
        self._deliver([*self._fail_responses(fault), engine_events.EngineLost(code=fault.code or "backend_error", message=fault.message)])

    def _fail_responses(self, fault: ApiError) -> list[engine_events.EngineEvent]:
        """The end of every answer that was asked for."""
        ids = [*self._active_ids, *self._pending.response_ids()]
        self._active_ids.clear()
        self._pending = PendingCommands()
        return [engine_events.ResponseFailed.from_error(id, fault) for id in ids]


def _ignore_events(_events: Sequence[engine_events.EngineEvent]) -> None:
    """Whoever would hear it has left."""


def _open_failed_error() -> ApiError:
    return UpstreamError("The worker could not begin the session. Please try again.", status=503, code="session_failed", retry_after_s=1)


def _worker_lost_error() -> ApiError:
    return UpstreamError("The worker has been lost.", code="backend_error")
