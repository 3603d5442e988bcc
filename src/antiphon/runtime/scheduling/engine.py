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

from antiphon.engine_api import commands, events as talk_events
from antiphon.engine_api.capabilities import Abilities
from antiphon.engine_api.engine import Conversation, CountingEngine, Deliver, Engine, EngineOverrun
from antiphon.engine_api.options import Kind, Settings
from antiphon.errors import ClientMistake, Fault, UpstreamTrouble
from antiphon.runtime.scheduling.base import Coordinator, Lease, Wants
from antiphon.runtime.scheduling.pending import Kept
from antiphon.runtime.scheduling.pool import nobody_could, shutting_down

RETRY_S = 5.0
"""After a refusal, sound that goes on asks for a place again no sooner than this."""

LASTING = frozenset[Kind]({"responses", "realtime"})
"""Kinds of conversation that outlast their place."""


class Patience(NamedTuple):
    """
    How long a worker may take, in seconds.

    Attributes:
        open_s: to begin; one that has to load its model anew takes a minute.
        leave_s: to be left; then that is cut short, and counts as its failure.
    """

    open_s: float = 120.0
    leave_s: float = 60.0


USUAL = Patience()

_LAST = frozenset({talk_events.Ended, talk_events.Broke})
_SAYS = frozenset({talk_events.Text, talk_events.Spoken, talk_events.Sound})


class Queued:
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
        dress: Callable[[Engine], Engine] = lambda engine: engine,
        patience: Patience = USUAL,
    ) -> None:
        self._coordinator = coordinator
        self._patience = patience
        self._model = model
        self._dress = dress
        self._open: set[_Conversation] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def abilities(self) -> Abilities:
        """Those of the first worker, and none where there is none; of conversations there can be as many as come."""
        worker = self._coordinator.first(self._model)
        return structs.replace(Abilities() if worker is None else self._dress(worker.engine).abilities, sessions=None)

    @property
    def has_worker(self) -> bool:
        """Whether there is a worker at all; without one, nobody knows what the model can do."""
        return self._coordinator.first(self._model) is not None

    async def start(self) -> None:
        """Nothing: workers are started by whoever offers them."""

    async def stop(self) -> None:
        """End every conversation, and see every place given back; idempotent."""
        for conversation in tuple(self._open):
            conversation.shut()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def count(self, ask: commands.Respond) -> int:
        """
        The tokens that `ask` would be read as, as the first worker says; that takes no place.

        Raises:
            Fault: there is no worker, or it can't tell.
        """
        worker = self._coordinator.first(self._model)
        if worker is None:
            raise nobody_could()
        return await cast(CountingEngine, worker.engine).count(ask)

    @contextlib.asynccontextmanager
    async def open(self, settings: Settings, deliver: Deliver) -> AsyncIterator[Conversation]:
        """A conversation that waits for its place; leaving it waits for nothing, and the place is given back when the worker was left."""
        wants = Wants(model=self._model, kind=settings.kind, tenant=settings.tenant, key_id=settings.key_id)
        conversation = _Conversation(self._coordinator, wants, settings, deliver, self._dress, self._own, self._patience)
        self._open.add(conversation)
        conversation.seek()
        try:
            yield conversation
        finally:
            self._open.discard(conversation)
            conversation.leave()

    def _own(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Stay:
    """
    One try at a place, from the queue until the worker has been left.

    Attributes:
        within: the worker's conversation; None until it is open.
        lease: None until there is a place.
        over: set when the worker is to be left.
        early: what the worker said before its conversation was open.
    """

    task: "asyncio.Task[None]"

    def __init__(self, leave_s: float) -> None:
        self._leave_s = leave_s
        self.within: Conversation | None = None
        self.lease: Lease | None = None
        self.over = asyncio.Event()
        self.early: list[talk_events.FromEngine] = []

    def leave(self) -> None:
        """Wait no longer, or leave the worker; what that takes too long for is cut short."""
        self.over.set()
        if self.within is None:
            self.task.cancel()
        if not self.task.done():
            alarm = asyncio.get_running_loop().call_later(self._leave_s, self._cut_short)
            self.task.add_done_callback(lambda _task: alarm.cancel())

    def _cut_short(self) -> None:
        if self.lease is not None:
            self.lease.failed()
        self.task.cancel()


class _Conversation:
    """One client's conversation, with or without a place."""

    def __init__(
        self,
        coordinator: Coordinator,
        wants: Wants,
        settings: Settings,
        deliver: Deliver,
        dress: Callable[[Engine], Engine],
        own: Callable[[asyncio.Task[None]], None],
        patience: Patience,
    ) -> None:
        self._coordinator = coordinator
        self._wants = wants
        self._settings = settings
        self._deliver = deliver
        self._dress = dress
        self._own = own
        self._patience = patience
        self._stay: _Stay | None = None
        self._kept = Kept()
        self._configured: commands.Configure | None = None
        self._answering: set[str] = set()
        self._rests_until = 0.0
        self._is_paused = self._is_over = False

    # What the session says

    def tell(self, word: commands.ToEngine) -> None:
        if type(word) is commands.Configure:
            self._configured = word
        if self._stay is not None and self._stay.within is not None:
            self._stay.within.tell(word)
            if type(word) is commands.Respond:
                self._answering.add(word.id)
        elif self._is_over:
            self._tell_nobody(word)
        elif isinstance(word, commands.Cancel):
            self._cancel(word.id)
        else:
            self._kept.keep(word)
            if self._stay is None and self._is_worth_a_place(word):
                self.seek()

    def pause(self) -> None:
        self._is_paused = True
        if self._stay is not None and self._stay.within is not None:
            self._stay.within.pause()

    def resume(self) -> None:
        self._is_paused = False
        if self._stay is not None and self._stay.within is not None:
            self._stay.within.resume()

    def _is_worth_a_place(self, word: commands.ToEngine) -> bool:
        """Whether a conversation that has lost its place needs one again; turns are found only by who hears them."""
        if isinstance(word, commands.Hear):
            return self._wants.kind == "realtime" and asyncio.get_running_loop().time() >= self._rests_until
        return isinstance(word, commands.Respond)

    def _cancel(self, id: str) -> None:
        if self._kept.withdraw(id):
            self._say_soon(talk_events.Ended(id, "cancelled"))

    def _tell_nobody(self, word: commands.ToEngine) -> None:
        if isinstance(word, commands.Respond):
            self._say_soon(talk_events.Broke.by(word.id, _gone()))

    def _say_soon(self, word: talk_events.FromEngine) -> None:
        """Not at once: the session that is telling has not finished what it is doing."""
        asyncio.get_running_loop().call_soon(lambda: self._deliver((word,)))

    # Whose conversation it is

    def leave(self) -> None:
        """Say nothing more, and give back what there is."""
        self._is_over = True
        self._deliver = _nothing
        stay, self._stay = self._stay, None
        if stay is not None:
            stay.leave()

    def shut(self) -> None:
        """End: the server stops."""
        if not self._is_over:
            stay, self._stay = self._stay, None
            self._finish(shutting_down())
            if stay is not None:
                stay.leave()

    def seek(self) -> None:
        """Take a place, or wait for one."""
        stay = self._stay = _Stay(self._patience.leave_s)
        # Its owner is the engine: it gives the place back also when whoever opened this conversation has gone.
        stay.task = asyncio.create_task(self._stay_there(stay))  # noqa: TID251
        self._own(stay.task)

    async def _stay_there(self, stay: _Stay) -> None:
        again = None
        for is_last in (False, True):
            try:
                async with self._coordinator.lease(self._wants, self._wait, again) as lease:
                    again, stay.lease = lease.ticket_id, lease
                    if await self._have(stay, lease):
                        return
            except Fault as fault:
                self._end(stay, fault)
                return
            if is_last:
                self._end(stay, _not_begun())

    async def _have(self, stay: _Stay, lease: Lease) -> bool:
        """
        Have the place until it is left or lost; whether the worker began.

        Raises:
            ClientMistake: it did not, and won't with any other worker.
        """
        has_begun = False
        stay.early.clear()  # it was of a worker that did not begin
        try:
            async with contextlib.AsyncExitStack() as stack:
                opened = self._dress(lease.worker.engine).open(self._settings, lambda words: self._hear(stay, words))
                async with asyncio.timeout(self._patience.open_s):
                    within = await stack.enter_async_context(opened)
                has_begun = True
                self._begin(stay, within, lease)
                await stay.over.wait()
        except Exception as error:  # whatever it was, it was the worker's, and ends with it
            if isinstance(error, ClientMistake) and not has_begun:
                raise
            lease.failed()
            if has_begun:
                self._end(stay, _gone())
        return has_begun

    def _begin(self, stay: _Stay, within: Conversation, lease: Lease) -> None:
        words: list[talk_events.FromEngine] = [talk_events.Assigned(lease.ticket_id, lease.worker.id)]
        stay.within = within
        if self._is_paused:
            within.pause()
        for word in self._kept.take():
            try:
                within.tell(word)
            except EngineOverrun as overrun:
                words += [talk_events.Broke.by(word.id, overrun.fault())] if isinstance(word, commands.Respond) else []
            else:
                self._answering.update([word.id] if isinstance(word, commands.Respond) else [])
        self._deliver(words)
        if stay.early:
            early, stay.early = stay.early, []
            self._hear(stay, early)

    def _wait(self, waiting: talk_events.Waiting) -> None:
        if not self._is_over:
            self._deliver((waiting,))

    # What the worker says

    def _hear(self, stay: _Stay, words: Sequence[talk_events.FromEngine]) -> None:
        if stay is not self._stay:
            return
        if stay.within is None:
            stay.early.extend(words)
            return
        answering = self._answering
        for at, word in enumerate(words):
            said = type(word)
            if said in _LAST:
                answering.discard(word.id)
            elif said in _SAYS:
                answering.add(word.id)
            elif isinstance(word, talk_events.Lost):
                self._deliver(words[:at])
                self._lose(stay, word)
                return
        self._deliver(words)

    def _lose(self, stay: _Stay, lost: talk_events.Lost) -> None:
        """The worker says that it is gone."""
        if stay.lease is not None and lost.code != "shutdown":
            stay.lease.failed()
        stay.leave()
        self._end(stay, UpstreamTrouble(lost.message, code=lost.code))

    def _end(self, stay: _Stay, fault: Fault) -> None:
        """There is no place any more, or there won't be one."""
        if stay is not self._stay:
            return
        had_place = stay.within is not None
        self._stay = None
        if self._wants.kind in LASTING:
            self._rest(fault, 0.0 if had_place else RETRY_S)
        else:
            self._finish(fault)

    def _rest(self, fault: Fault, for_s: float) -> None:
        """Go on without a place until one is needed."""
        self._rests_until = asyncio.get_running_loop().time() + for_s
        words = self._broken(fault)
        if self._configured is not None:
            self._kept.keep(self._configured)
        if self._wants.kind == "realtime":
            words.append(talk_events.Trouble(message=fault.message, code=fault.code, type=fault.type))
        self._deliver(words)

    def _finish(self, fault: Fault) -> None:
        self._is_over = True
        self._deliver([*self._broken(fault), talk_events.Lost(code=fault.code or "backend_error", message=fault.message)])

    def _broken(self, fault: Fault) -> list[talk_events.FromEngine]:
        """The end of every answer that was asked for."""
        ids = [*self._answering, *self._kept.asked()]
        self._answering.clear()
        self._kept = Kept()
        return [talk_events.Broke.by(id, fault) for id in ids]


def _nothing(_words: Sequence[talk_events.FromEngine]) -> None:
    """Whoever would hear it has left."""


def _not_begun() -> Fault:
    return UpstreamTrouble("The worker could not begin the session. Please try again.", status=503, code="session_failed", retry_after_s=1)


def _gone() -> Fault:
    return UpstreamTrouble("The worker has been lost.", code="backend_error")
