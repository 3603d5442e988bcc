"""
An engine in front of a limited number of workers: each conversation waits for a worker, keeps it while it lasts, and
gives it back.

A conversation opens at once. Commands that arrive before it has a worker are stored, and sent when the worker's own
conversation is open. An attempt is one try to get a worker, in a task that the engine owns: it ends when the worker's
conversation has been left, even if the client left long before. So a lease is released exactly once, and never too
early.

Sessions whose requests carry their whole history get a new worker when theirs is lost; the others end, as their history
is gone with it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple, cast

from msgspec import structs

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import CountingEngine, Deliver, Engine, EngineConversation, EngineOverrun, overrun_event
from antiphon.engine_api.forwarding import REATTACHABLE_KINDS, ForwardingConversation
from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import SHUTTING_DOWN_CODE, ApiError, ClientError, UpstreamError, shutting_down
from antiphon.runtime.scheduling.base import Coordinator, Requirements, WorkerLease
from antiphon.runtime.scheduling.pending import PendingCommands
from antiphon.runtime.scheduling.pool import no_worker_error

RETRY_S = 5.0
"""After a refusal, audio that keeps coming asks for a worker again no sooner than this."""


class WorkerTimeouts(NamedTuple):
    """
    How long a worker may take, in seconds.

    Attributes:
        open_s: to open a conversation; a worker that has to load its model first takes a minute.
        close_s: to leave one; after that the task is cancelled, which counts as the worker's failure.
    """

    open_s: float = 120.0
    close_s: float = 60.0


DEFAULT_TIMEOUTS = WorkerTimeouts()

_TERMINAL_EVENTS = frozenset({engine_events.ResponseEnded, engine_events.ResponseFailed})
_OUTPUT_EVENTS = frozenset({engine_events.TextDelta, engine_events.AudioTranscriptDelta, engine_events.AudioDelta})


class QueuedEngine:
    """
    All workers of a model, as one engine.

    Args:
        model: as configured.
        wrap: adds to a worker's engine what it lacks for these conversations, such as speech recognition and a voice.
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
        """
        Those of the first worker, or none without a worker; `sessions` is None, as any number of conversations may
        wait.
        """
        worker = self._coordinator.first_worker(self._model)
        return structs.replace(Capabilities() if worker is None else self._wrap(worker.engine).capabilities, sessions=None)

    @property
    def has_worker(self) -> bool:
        """Whether there is a worker; without one the capabilities of the model are unknown."""
        return self._coordinator.first_worker(self._model) is not None

    async def start(self) -> None:
        pass  # a worker is started before it is added to the coordinator

    async def stop(self) -> None:
        """End every conversation, and wait until every worker has been released; idempotent."""
        for conversation in tuple(self._conversations):
            conversation.abort()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def count(self, request: commands.Respond) -> int:
        """
        Ask the first worker how many input tokens `request` has; needs no lease.

        Raises:
            ApiError: there is no worker, or it can't count.
        """
        worker = self._coordinator.first_worker(self._model)
        if worker is None:
            raise no_worker_error()
        return await cast(CountingEngine, worker.engine).count(request)

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        """
        A conversation that waits for a worker. Leaving it returns at once; the worker is released when its conversation
        has closed.
        """
        requirements = Requirements(model=self._model, kind=settings.kind, tenant=settings.tenant, key_id=settings.key_id)
        conversation = _QueuedConversation(self._coordinator, requirements, settings, deliver, self._wrap, self._track_task, self._timeouts)
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
    One try to get a worker, from the queue until the worker has been left.

    Attributes:
        is_open: whether the worker's conversation is open, and has been sent what was pending.
        lease: None until there is one.
        early_events: what the worker delivered before `is_open`.
    """

    task: "asyncio.Task[None]"

    def __init__(self, close_s: float) -> None:
        self._close_s = close_s
        self.is_open = False
        self.lease: WorkerLease | None = None
        self.close_requested = asyncio.Event()
        self.early_events: list[engine_events.EngineEvent] = []

    def close(self) -> None:
        """Stop waiting, or leave the worker; the task is cancelled if that takes longer than `close_s`."""
        self.close_requested.set()
        if not self.is_open:
            self.task.cancel()
        if not self.task.done():
            timer = asyncio.get_running_loop().call_later(self._close_s, self._abort)
            self.task.add_done_callback(lambda _task: timer.cancel())

    def _abort(self) -> None:
        if self.lease is not None:
            self.lease.mark_failed()
        self.task.cancel()


class _QueuedConversation(ForwardingConversation):
    """One client's conversation, with or without a worker."""

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
        super().__init__()
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
        self._is_over = False

    # From the session

    def send(self, command: commands.EngineCommand) -> None:
        if type(command) is commands.Configure:
            self._last_configure = command
        if self.inner is not None:
            self._send_to_worker(self.inner, command)
        elif self._is_over:
            self._reject(command)
        elif isinstance(command, commands.Cancel):
            self._cancel(command.id)
        else:
            self._pending.add(command)
            if self._attempt is None and self._needs_worker(command):
                self.start_attempt()

    def _send_to_worker(self, inner: EngineConversation, command: commands.EngineCommand) -> None:
        if not isinstance(command, commands.Respond | commands.Relay):
            inner.send(command)
            return
        self._active_ids.add(command.id)  # before it is sent: the worker may deliver its end, or be lost, within `send`
        try:
            inner.send(command)
        except EngineOverrun:
            self._active_ids.discard(command.id)
            raise

    def _needs_worker(self, command: commands.EngineCommand) -> bool:
        """
        Whether a conversation that lost its worker needs one again: only a worker that hears audio finds the turns in
        it.
        """
        if isinstance(command, commands.AppendAudio):
            return self._requirements.kind == "realtime" and asyncio.get_running_loop().time() >= self._retry_at_s
        return isinstance(command, commands.Respond | commands.Relay)

    def _cancel(self, id: str) -> None:
        if self._pending.cancel(id):
            self._deliver((engine_events.ResponseEnded(id, "cancelled"),))

    def _reject(self, command: commands.EngineCommand) -> None:
        if isinstance(command, commands.Respond | commands.Relay):
            self._deliver((engine_events.ResponseFailed.from_error(command.id, _worker_lost_error()),))

    # From the engine

    def close(self) -> None:
        """Deliver nothing more, and release the worker."""
        self._is_over = True
        self._deliver = lambda _events: None
        attempt = self._forget_attempt()
        if attempt is not None:
            attempt.close()

    def abort(self) -> None:
        """End the conversation because the server stops."""
        # The attempt is forgotten first: what its worker still delivers would come after the end.
        if not self._is_over:
            attempt = self._forget_attempt()
            self._finish(shutting_down())
            if attempt is not None:
                attempt.close()

    def _forget_attempt(self) -> _Attempt | None:
        attempt, self._attempt, self.inner = self._attempt, None, None
        return attempt

    def start_attempt(self) -> None:
        """Get a worker, or wait for one."""
        attempt = self._attempt = _Attempt(self._timeouts.close_s)
        # The engine owns the task: it has to release the worker also after this conversation was left.
        attempt.task = asyncio.create_task(self._acquire(attempt))  # noqa: TID251
        self._track_task(attempt.task)

    async def _acquire(self, attempt: _Attempt) -> None:
        retry_of = None
        for is_last in (False, True):
            try:
                # Left only when the worker has closed its conversation: a moment earlier, half of the next ones fail (docs/decisions/0018).
                async with self._coordinator.lease(self._requirements, self._on_queue_update, retry_of) as lease:
                    retry_of, attempt.lease = lease.ticket_id, lease
                    if await self._use(attempt, lease):
                        return
            except ApiError as error:
                self._end_attempt(attempt, error)
                return
            if is_last:
                self._end_attempt(attempt, _open_failed_error())

    async def _use(self, attempt: _Attempt, lease: WorkerLease) -> bool:
        """
        Hold a conversation with the leased worker until it is left or lost.

        Returns:
            Whether the worker opened it; if not, another worker may.

        Raises:
            ClientError: no worker would open it.
        """
        has_begun = False
        attempt.early_events.clear()  # those of a worker that did not open the conversation
        try:
            async with contextlib.AsyncExitStack() as stack:
                opening = self._wrap(lease.worker.engine).open(self._settings, lambda batch: self._on_events(attempt, batch))
                # Only the opening has a limit: a conversation lasts as long as its client wants.
                async with asyncio.timeout(self._timeouts.open_s):
                    inner = await stack.enter_async_context(opening)
                has_begun = True
                self._begin(attempt, inner, lease)
                await attempt.close_requested.wait()
        except Exception as error:  # whatever fails in a worker's conversation is that worker's failure
            if isinstance(error, ClientError) and not has_begun:
                raise
            lease.mark_failed()
            if has_begun:
                self._end_attempt(attempt, _worker_lost_error())
        return has_begun

    def _begin(self, attempt: _Attempt, inner: EngineConversation, lease: WorkerLease) -> None:
        batch: list[engine_events.EngineEvent] = [engine_events.WorkerAssigned(lease.ticket_id, lease.worker.id)]
        self.attach(inner)
        for command in self._pending.take():
            try:
                self._send_to_worker(inner, command)
            except EngineOverrun as error:
                if isinstance(command, commands.Respond | commands.Relay):
                    batch.append(overrun_event(command, error))
        # What the worker delivered until here waits: clients hear of the worker before they hear anything from it.
        attempt.is_open = True
        self._deliver(batch)
        if attempt.early_events:
            # `_on_events` looks for the end of responses and of the worker in these, too.
            early, attempt.early_events = attempt.early_events, []
            self._on_events(attempt, early)

    def _on_queue_update(self, update: engine_events.QueueUpdate) -> None:
        if not self._is_over:
            self._deliver((update,))

    # From the worker

    def _on_events(self, attempt: _Attempt, events: Sequence[engine_events.EngineEvent]) -> None:
        if attempt is not self._attempt:
            return
        if not attempt.is_open:
            attempt.early_events.extend(events)
            return
        active_ids = self._active_ids
        for index, event in enumerate(events):
            kind = type(event)
            if kind in _TERMINAL_EVENTS:
                active_ids.discard(event.id)
            elif kind in _OUTPUT_EVENTS:
                active_ids.add(event.id)  # also of responses that nobody requested: a duplex engine begins its own
            elif isinstance(event, engine_events.EngineLost):
                if index:
                    self._deliver(events[:index])
                self._on_lost(attempt, event)
                return
        self._deliver(events)

    def _on_lost(self, attempt: _Attempt, event: engine_events.EngineLost) -> None:
        # A worker that stops in good order has not failed, and another may take its place.
        if attempt.lease is not None and event.code != SHUTTING_DOWN_CODE:
            attempt.lease.mark_failed()
        attempt.close()
        self._end_attempt(attempt, UpstreamError(event.message, code=event.code))

    def _end_attempt(self, attempt: _Attempt, error: ApiError) -> None:
        """The worker is lost, or there will be none."""
        if attempt is not self._attempt:
            return
        had_worker = self.inner is not None
        self._forget_attempt()
        if self._requirements.kind in REATTACHABLE_KINDS:
            self._detach(error, 0.0 if had_worker else RETRY_S)
        else:
            self._finish(error)

    def _detach(self, error: ApiError, retry_in_s: float) -> None:
        """Go on without a worker until one is needed."""
        self._retry_at_s = asyncio.get_running_loop().time() + retry_in_s
        batch = self._fail_responses(error)
        # The next worker knows nothing of the session's settings.
        if self._last_configure is not None:
            self._pending.add(self._last_configure)
        if self._requirements.kind == "realtime":
            batch.append(engine_events.EngineError(message=error.message, code=error.code, type=error.type))
        self._deliver(batch)

    def _finish(self, error: ApiError) -> None:
        self._is_over = True
        self._deliver([*self._fail_responses(error), engine_events.EngineLost(code=error.code or "backend_error", message=error.message)])

    def _fail_responses(self, error: ApiError) -> list[engine_events.EngineEvent]:
        """A failure for every response that was requested and has not ended."""
        # What waited for the worker fails, too: the client may ask again, and must not be answered twice.
        ids = [*self._active_ids, *self._pending.response_ids()]
        self._active_ids.clear()
        self._pending = PendingCommands()
        return [engine_events.ResponseFailed.from_error(id, error) for id in ids]


def _open_failed_error() -> ApiError:
    return UpstreamError("The worker could not start the session. Please try again.", status=503, code="session_failed", retry_after_s=1)


def _worker_lost_error() -> ApiError:
    return UpstreamError("The connection to the worker was lost.", code="backend_error")
