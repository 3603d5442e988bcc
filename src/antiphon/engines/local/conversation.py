"""One conversation with the embedded model."""

import asyncio
from functools import partial
from typing import Protocol

import aiohttp

from antiphon.engine_api import commands, events as talk_events
from antiphon.engine_api.engine import Deliver
from antiphon.engines.local.generation import _broke, _failed
from antiphon.engines.local.prefill import Ahead
from antiphon.errors import Fault, OurFault


class Generator(Protocol):
    """The model, as its conversations see it."""

    @property
    def ahead(self) -> Ahead:
        """Who may read a prompt before it is asked for."""

    def admit(self) -> None:
        """
        Make sure that there is room for one more answer.

        Raises:
            EngineOverrun: there is not.
        """

    async def answer(self, ask: commands.Respond, tenant: str, may_read: asyncio.Event, say: Deliver) -> list[talk_events.FromEngine]:
        """Generate an answer: all words but the last go to `say`, the last are returned; raises what ends it."""

    async def foresee(self, ask: commands.Respond, tenant: str) -> None:
        """Read what will be asked, as far as it is known; only where nobody waits for a slot."""


class _Conversation:
    def __init__(self, engine: Generator, tenant: str, deliver: Deliver, tasks: asyncio.TaskGroup) -> None:
        self._engine = engine
        self._tenant = tenant
        self._deliver = deliver
        self._tasks = tasks
        self._answering: dict[str, asyncio.Task[None]] = {}
        self._foreseen: commands.Respond | None = None
        self._foreseeing: asyncio.Task[None] | None = None
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._hushed = False
        self._broken_off = False

    @property
    def answering(self) -> int:
        """How many answers are under way."""
        return len(self._answering)

    def tell(self, word: commands.ToEngine) -> None:
        match word:
            case commands.Respond(id=id):
                self._engine.admit()
                task = self._answering[id] = self._tasks.create_task(self._answer(word))
                task.add_done_callback(partial(self._over, id))
            case commands.Cancel(id) if id in self._answering:
                self._answering[id].cancel()
            case commands.Cancel():
                pass  # it ended before
            case commands.Foresee(ask):
                self._foresee(ask)
            case commands.Configure() | commands.Hear() | commands.Commit() | commands.Forget():
                pass  # its abilities say that it doesn't listen
            case commands.Converse() | commands.See() | commands.Listen():
                pass  # its abilities say that it does no full duplex

    def pause(self) -> None:
        self._may_read.clear()

    def resume(self) -> None:
        self._may_read.set()

    def hush(self) -> None:
        """Stop, and say nothing more."""
        self._hushed = True
        self.break_off()

    def break_off(self) -> list[asyncio.Task[None]]:
        """Stop what is being answered; returns what is still stopping."""
        self._broken_off = True
        tasks = list(self._answering.values())
        if self._foreseeing is not None:
            tasks.append(self._foreseeing)
        for task in tasks:
            task.cancel()
        return tasks

    def _foresee(self, ask: commands.Respond) -> None:
        if self._answering or self._broken_off or not self._engine.ahead.claims(self):
            return
        self._foreseen = ask
        if self._foreseeing is None or self._foreseeing.done():
            self._foreseeing = self._tasks.create_task(self._read_ahead())

    async def _read_ahead(self) -> None:
        ahead = self._engine.ahead
        while (ask := self._foreseen) is not None:
            await ahead.quiet()
            if ask is not self._foreseen:
                continue
            try:
                async with ahead.reading(self):
                    await self._engine.foresee(ask, self._tenant)
            except TimeoutError:
                continue  # somebody else is answered first
            if ask is self._foreseen:
                self._foreseen = None

    async def _answer(self, ask: commands.Respond) -> None:
        ahead, read = self._engine.ahead, self._foreseen
        is_known = read is not None and _goes_on(read, ask)
        with ahead.answering(self if is_known else None):
            if not ask.aside:
                self._foreseen = None
                ahead.gives_up(self)
            if is_known and self._foreseeing is not None and ahead.is_reading(self):
                await asyncio.wait([self._foreseeing])  # what it has read is most of what this one would have to
            await self._say_answer(ask)

    async def _say_answer(self, ask: commands.Respond) -> None:
        try:
            ending = await self._engine.answer(ask, self._tenant, self._may_read, self._deliver)
        except Fault as fault:
            ending = [_broke(ask.id, fault)]
        except (aiohttp.ClientError, ValueError, OSError) as error:
            ending = [_broke(ask.id, _failed(error))]
        # Nothing is awaited after this, so that a cancel can't come between the last word and the end.
        self._deliver(ending)

    def _over(self, id: str, task: asyncio.Task[None]) -> None:
        # Also where it was cancelled before its first step, which no `except` in it could see.
        self._answering.pop(id, None)
        if task.cancelled() and not self._hushed:
            stopped = _broke(id, OurFault("The server is stopping.", status=503))
            self._deliver([stopped if self._broken_off else talk_events.Ended(id, "cancelled")])


def _goes_on(read: commands.Respond, ask: commands.Respond) -> bool:
    """Whether what is asked begins as what was read."""
    past = read.history[:-1]
    return (read.instructions, read.tools, past) == (ask.instructions, ask.tools, ask.history[: len(past)])
