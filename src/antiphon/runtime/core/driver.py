"""
The driver: performs what a session decides, and is the only place where sessions, engines, stores and clients meet.

Whoever receives an event calls the session, performs the effects and is done: no queue, no task switch, no `await` on the way of a
token. Only a `Keep` takes time; what must follow it waits in order while the engine already works.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from antiphon.engine_api import commands, events as talk_events
from antiphon.engine_api.engine import Conversation, Engine, EngineOverrun
from antiphon.engine_api.options import Settings
from antiphon.errors import Fault, OurFault
from antiphon.protocols.session import (
    Close,
    Effect,
    Event,
    FromClient,
    FromEngine,
    Halted,
    Hangup,
    Keep,
    NotKept,
    Send,
    Session,
    Spend,
    Tell,
    Tick,
    WakeAt,
)
from antiphon.records import ResponseRecord
from antiphon.runtime.core.metrics import Metrics
from antiphon.stores.base import Store

TOGETHER = 256
"""The most words that are handled, and leave, at once: a client can be told to be behind only between two writes."""

MOST_UNHEARD = 16 * TOGETHER
"""With more words waiting to be handled the engine is told to wait, as by a client that is behind: it may be quicker than this process."""


class Client(Protocol):
    """Whoever the session talks to, as the driver sees it."""

    def send(self, event: Any) -> None:
        """Take a wire event; it need not leave before `flush`."""

    def flush(self) -> None:
        """What was sent may leave, in one write."""

    def close(self, fault: Fault | None) -> None:
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
        client: Client,
        store: Store,
        clock: Callable[[], float] = time.time,
        metrics: Metrics | None = None,
        spend: Callable[[int], None] = lambda _tokens: None,
    ) -> None:
        self._session = session
        self._client = client
        self._store = store
        self._clock = clock
        self._metrics = metrics or Metrics()
        self._spend = spend
        self._conversation: Conversation | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._keeping: Keep | None = None
        self._is_kept = False
        self._held: deque[Effect] = deque()
        self._unheard: deque[talk_events.FromEngine] = deque()
        self._is_behind = False
        self._is_held_back = False
        self._has_left = False
        self._halting: Fault | None = None
        self._closed = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None

    async def run(self, engine: Engine, settings: Settings, opening: Any, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
        """
        The whole session, begun with the client's `opening` message; returns when it has closed and all is kept.

        Args:
            meanwhile: awaited once it has begun, in the same task: a task more would cost as much as several tokens.

        Raises:
            Fault: the engine could not be reached to begin with.
        """
        async with asyncio.TaskGroup() as self._tasks, engine.open(settings, self.deliver) as self._conversation:
            self.receive(FromClient(opening, self._clock()))
            if self._halting is not None:
                self.receive(Halted(self._halting, self._clock()))
            if self._has_left:
                self.receive(Hangup(self._clock()))
            try:
                if meanwhile is not None:
                    await meanwhile()
                await self._closed.wait()
            finally:
                self._wake_at(None)

    def hear(self, message: Any) -> None:
        """The client said something more."""
        self._perform(self._session.handle(FromClient(message, self._clock())))

    def deliver(self, words: Sequence[talk_events.FromEngine]) -> None:
        """Words from the engine; what arrived together leaves together."""
        if len(words) > TOGETHER or self._unheard:
            self._postpone(words)
        else:
            self._perform(self._session.handle(FromEngine(words, self._clock())))

    def _postpone(self, words: Sequence[talk_events.FromEngine]) -> None:
        is_first = not self._unheard
        self._unheard.extend(words)
        self._hold_back()
        if is_first:
            self._hear()

    def _hear(self) -> None:
        """Handle some of what the engine said too much of at once, and the rest when others have had their turn."""
        if not self._unheard or self._is_behind:
            return
        words = [self._unheard.popleft() for _ in range(min(TOGETHER, len(self._unheard)))]
        self.receive(FromEngine(words, self._clock()))
        self._hold_back()
        if self._unheard:
            asyncio.get_running_loop().call_soon(self._hear)

    def hang_up(self) -> None:
        """The client is gone; where that was before `run`, the session learns so once it has begun."""
        if self._tasks is None:
            self._has_left = True
        else:
            self.receive(Hangup(self._clock()))

    def halt(self, fault: Fault) -> None:
        """It is to end, and its client told why; a session whose engine is not there yet learns so when it is."""
        self._halting = fault
        if self._conversation is not None:
            self.receive(Halted(fault, self._clock()))

    def pause(self) -> None:
        """The client is behind."""
        self._is_behind = True
        self._hold_back()

    def resume(self) -> None:
        """The client has caught up."""
        self._is_behind = False
        self._hold_back()
        self._hear()

    def _hold_back(self) -> None:
        """Have the engine wait where it is ahead of its client, or of this process, by too much."""
        most = MOST_UNHEARD // 2 if self._is_held_back else MOST_UNHEARD  # so that it does not go to and fro
        held_back = self._is_behind or len(self._unheard) > most
        if held_back is self._is_held_back or self._conversation is None:
            return
        self._is_held_back = held_back
        if held_back:
            self._conversation.pause()
        else:
            self._conversation.resume()

    def receive(self, event: Event) -> None:
        """Give the session an event and perform what it decides."""
        self._perform(self._session.handle(event))

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if type(effect) is Send and self._keeping is None:
                self._client.send(effect.event)
            elif self._keeping is not None and type(effect) is not Tell:
                self._held.append(effect)
            else:
                self._do(effect)
        self._client.flush()

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send(event):
                self._client.send(event)
            case Tell(word):
                self._tell(word)
            case Keep(record):
                assert self._tasks is not None
                self._keeping = effect
                self._tasks.create_task(self._keep(record))
            case Spend(tokens):
                self._spend(tokens)
            case WakeAt(at):
                self._wake_at(at)
            case Close(fault):
                self._client.close(fault)
                self._closed.set()

    def _tell(self, word: commands.ToEngine) -> None:
        if self._conversation is None:  # the session was over before the engine was there
            return
        try:
            self._conversation.tell(word)
        except EngineOverrun as full:
            # Not at once: the session is in the middle of deciding.
            asyncio.get_running_loop().call_soon(self.deliver, (overrun(word, full),))

    def _wake_at(self, at: float | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if at is not None:
            self._alarm = asyncio.get_running_loop().call_later(max(0.0, at - self._clock()), self._wake)

    def _wake(self) -> None:
        self._alarm = None
        self.receive(Tick(self._clock()))

    async def _keep(self, record: ResponseRecord) -> None:
        try:
            await self._put(record)
        except Fault as fault:
            self._not_kept(record, fault)
        except Exception as error:  # the session ends here, with all its client is owed
            self._not_kept(record, OurFault(f"The response could not be stored: {error}"))
        else:
            self._metrics.store_writes["kept"] += 1
            self._keeping = None
            held, self._held = self._held, deque()
            self._perform(held)

    async def _put(self, record: ResponseRecord) -> None:
        """Keep a record; what was deleted since it was announced stays deleted."""
        if not self._is_kept:
            await self._store.put(record)
            self._is_kept = True
        elif not await self._store.settle(record) and await self._store.get(record.tenant, record.id):
            await self._store.put(record)  # another server had taken this one for dead, and called the response failed

    def _not_kept(self, record: ResponseRecord, fault: Fault) -> None:
        self._metrics.store_writes["failed"] += 1
        self._keeping = None
        self._held.clear()
        self.receive(NotKept(record, fault, self._clock()))


def overrun(word: commands.ToEngine, full: EngineOverrun) -> talk_events.FromEngine:
    """What the session hears of a word that the engine had no room for."""
    fault = full.fault()
    if isinstance(word, commands.Respond | commands.Cancel):
        return talk_events.Broke.by(word.id, fault)
    return talk_events.Trouble(message=fault.message, code=fault.code)
