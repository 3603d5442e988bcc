"""
The driver: performs what a session decides, and is the only place where sessions, engines, stores and clients meet.

Whoever receives an event calls the session, performs the effects and is done: no queue, no task switch, no `await` on the way of a
token. Only a `Persist` takes time; what must follow it waits in order while the engine already works.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.engine import Engine, EngineConversation, EngineOverrun
from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import ApiError, ServerError
from antiphon.protocols.session import (
    Close,
    CountTokens,
    Effect,
    Event,
    FromClient,
    FromEngine,
    Hangup,
    Persist,
    PersistFailed,
    Send,
    SendToEngine,
    Session,
    Shutdown,
    Tick,
    WakeAt,
)
from antiphon.records import ResponseRecord
from antiphon.runtime.core.metrics import Metrics
from antiphon.stores.base import Store

BATCH_SIZE = 256
"""The most words that are handled, and leave, at once: a client can be told to be behind only between two writes."""

MAX_PENDING_EVENTS = 16 * BATCH_SIZE
"""With more words waiting to be handled the engine is told to wait, as by a client that is behind: it may be quicker than this process."""


class SessionClient(Protocol):
    """Whoever the session talks to, as the driver sees it."""

    def send(self, event: Any) -> None:
        """Take a wire event; it need not leave before `flush`."""

    def flush(self) -> None:
        """What was sent may leave, in one write."""

    def close(self, fault: ApiError | None) -> None:
        """Nothing more comes; `fault` says why where it was not the plain end."""


class Driver:
    """
    Drives one session between its client, its engine and the store, from `run` until the session closes.

    Args:
        spend: takes the tokens of each answer, from sessions that say so as it ends.
    """

    def __init__(
        self,
        session: Session,
        client: SessionClient,
        store: Store,
        clock: Callable[[], float] = time.time,
        metrics: Metrics | None = None,
        count_tokens: Callable[[int], None] = lambda _tokens: None,
    ) -> None:
        self._session = session
        self._client = client
        self._store = store
        self._clock = clock
        self._metrics = metrics or Metrics()
        self._count_tokens = count_tokens
        self._conversation: EngineConversation | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._pending_persist: Persist | None = None
        self._is_stored = False
        self._pending_effects: deque[Effect] = deque()
        self._pending_events: deque[engine_events.EngineEvent] = deque()
        self._deferred_events: deque[Event] = deque()
        self._is_performing = False
        self._is_behind = False
        self._is_engine_paused = False
        self._has_hung_up = False
        self._shutdown_error: ApiError | None = None
        self._close_event = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    async def run(
        self, engine: Engine, settings: ConversationSettings, opening: Any, meanwhile: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """
        The whole session, begun with the client's `opening` message; returns when it has closed and all is kept.

        Args:
            meanwhile: awaited once it has begun, in the same task: a task more would cost as much as several tokens.

        Raises:
            ApiError: the engine could not be reached to begin with.
        """
        async with asyncio.TaskGroup() as self._tasks, engine.open(settings, self.deliver) as self._conversation:
            self.receive(FromClient(opening, self._clock()))
            if self._shutdown_error is not None:
                self.receive(Shutdown(self._shutdown_error, self._clock()))
            if self._has_hung_up:
                self.receive(Hangup(self._clock()))
            try:
                if meanwhile is not None:
                    await meanwhile()
                await self._close_event.wait()
            finally:
                self._wake_at(None)

    def receive_from_client(self, message: Any) -> None:
        """The client sent another message."""
        self.receive(FromClient(message, self._clock()))

    def deliver(self, events: Sequence[engine_events.EngineEvent]) -> None:
        """Take events from the engine, at any time; what arrived together leaves together."""
        if len(events) > BATCH_SIZE or self._pending_events:
            self._postpone(events)
        elif self._is_performing:
            self._deferred_events.append(FromEngine(events, self._clock()))
        else:  # not by way of `receive`: a call more for every token
            self._perform(self._session.handle(FromEngine(events, self._clock())))

    def _postpone(self, events: Sequence[engine_events.EngineEvent]) -> None:
        is_first = not self._pending_events
        self._pending_events.extend(events)
        self._update_backpressure()
        if is_first:
            self._handle_batch()

    def _handle_batch(self) -> None:
        """Handle some of what the engine said too much of at once, and the rest when others have had their turn."""
        if not self._pending_events or self._is_behind:
            return
        words = [self._pending_events.popleft() for _ in range(min(BATCH_SIZE, len(self._pending_events)))]
        self.receive(FromEngine(words, self._clock()))
        self._update_backpressure()
        if self._pending_events:
            asyncio.get_running_loop().call_soon(self._handle_batch)

    def hang_up(self) -> None:
        """The client is gone; where that was before `run`, the session learns so once it has begun."""
        if self._tasks is None:
            self._has_hung_up = True
        else:
            self.receive(Hangup(self._clock()))

    def shut_down(self, fault: ApiError) -> None:
        """It is to end, and its client told why; a session whose engine is not there yet learns so when it is."""
        self._shutdown_error = fault
        if self._conversation is not None:
            self.receive(Shutdown(fault, self._clock()))

    def pause(self) -> None:
        """The client is behind."""
        self._is_behind = True
        self._update_backpressure()

    def resume(self) -> None:
        """The client has caught up."""
        self._is_behind = False
        self._update_backpressure()
        self._handle_batch()

    def _update_backpressure(self) -> None:
        """Have the engine wait where it is ahead of its client, or of this process, by too much."""
        most = MAX_PENDING_EVENTS // 2 if self._is_engine_paused else MAX_PENDING_EVENTS  # so that it does not go to and fro
        held_back = self._is_behind or len(self._pending_events) > most
        if held_back is self._is_engine_paused or self._conversation is None:
            return
        self._is_engine_paused = held_back
        if held_back:
            self._conversation.pause()
        else:
            self._conversation.resume()

    def receive(self, event: Event) -> None:
        """
        Give the session an event and perform what it decides.

        What arrives meanwhile, such as an engine's answer to the command that is just being sent, is handled next: a session is never
        entered twice.
        """
        if self._is_performing:
            self._deferred_events.append(event)
        else:
            self._perform(self._session.handle(event))

    def _perform(self, effects: Sequence[Effect]) -> None:
        self._is_performing = True
        try:
            while True:
                for effect in effects:
                    if type(effect) is Send and self._pending_persist is None:
                        self._client.send(effect.event)
                    elif self._pending_persist is not None and type(effect) is not SendToEngine:
                        self._pending_effects.append(effect)
                    else:
                        self._perform_one(effect)
                if not self._deferred_events:
                    break
                effects = self._session.handle(self._deferred_events.popleft())
        finally:
            self._is_performing = False
        self._client.flush()

    def _perform_one(self, effect: Effect) -> None:
        match effect:
            case Send(event):
                self._client.send(event)
            case SendToEngine(word):
                self._send_to_engine(word)
            case Persist(record):
                assert self._tasks is not None
                self._pending_persist = effect
                self._tasks.create_task(self._persist(record))
            case CountTokens(tokens):
                self._count_tokens(tokens)
            case WakeAt(at):
                self._wake_at(at)
            case Close(fault):
                self._client.close(fault)
                self._close_event.set()

    def _send_to_engine(self, command: commands.EngineCommand) -> None:
        if self._conversation is None:  # the session was over before the engine was there
            return
        try:
            self._conversation.send(command)
        except EngineOverrun as full:
            self.deliver((overrun_event(command, full),))

    def _wake_at(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - self._clock()), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.receive(Tick(self._clock()))

    async def _persist(self, record: ResponseRecord) -> None:
        try:
            await self._put(record)
        except ApiError as fault:
            self._persist_failed(record, fault)
        except Exception as error:  # the session ends here, with all its client is owed
            self._persist_failed(record, ServerError(f"The response could not be stored: {error}"))
        else:
            self._metrics.store_writes["kept"] += 1
            self._pending_persist = None
            effects, self._pending_effects = self._pending_effects, deque()
            self._perform(effects)

    async def _put(self, record: ResponseRecord) -> None:
        """Keep a record; what was deleted since it was announced stays deleted."""
        if not self._is_stored:
            await self._store.put(record)
            self._is_stored = True
        elif not await self._store.put_if_unfinished(record) and await self._store.get(record.tenant, record.id):
            await self._store.put(record)  # another server had taken this one for dead, and called the response failed

    def _persist_failed(self, record: ResponseRecord, fault: ApiError) -> None:
        self._metrics.store_writes["failed"] += 1
        self._pending_persist = None
        self._pending_effects.clear()
        self.receive(PersistFailed(record, fault, self._clock()))


def overrun_event(command: commands.EngineCommand, error: EngineOverrun) -> engine_events.EngineEvent:
    """What the session hears of a word that the engine had no room for."""
    fault = error.api_error()
    if isinstance(command, commands.Respond | commands.Cancel):
        return engine_events.ResponseFailed.from_error(command.id, fault)
    return engine_events.EngineError(message=fault.message, code=fault.code)
