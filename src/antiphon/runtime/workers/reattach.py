"""
Conversations that outlast the process that answers: each ask carries all that was said, so that any process can take the next.

What was being answered breaks; what is asked from then on is asked of whichever process there is.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from antiphon.engine_api import commands, events as talk_events
from antiphon.engine_api.engine import Conversation, Deliver, EngineOverrun
from antiphon.engine_api.options import Kind, Settings
from antiphon.errors import Fault
from antiphon.runtime.core.driver import overrun

LASTING = frozenset[Kind]({"responses", "realtime"})
"""Kinds of conversation whose asks carry all that was said."""

EARLY = 64
"""What may be said while there is no process."""

Opens = Callable[[Settings, Deliver], AbstractAsyncContextManager[Conversation]]
"""A conversation with the process that there is, or soon will be; raises `Fault` when it is entered and there is none."""


@contextlib.asynccontextmanager
async def lasting(opens: Opens, settings: Settings, deliver: Deliver) -> AsyncIterator[Conversation]:
    """A conversation with one process after the other."""
    conversation = _Lasting(opens, settings, deliver)
    async with opens(settings, conversation.hear) as conversation.within, asyncio.TaskGroup() as conversation.tasks:
        try:
            yield conversation
        finally:
            conversation.leave()


class _Lasting:
    """
    A conversation, whoever is in it.

    Attributes:
        within: the conversation with the process that there is; None while there is none.
        tasks: those of whoever opened it.
    """

    tasks: asyncio.TaskGroup

    def __init__(self, opens: Opens, settings: Settings, deliver: Deliver) -> None:
        self.within: Conversation | None = None
        self._opens = opens
        self._settings = settings
        self._deliver = deliver
        self._task: asyncio.Task[None] | None = None
        self._early: list[commands.ToEngine] = []
        self._is_over = asyncio.Event()
        self._is_paused = False

    def tell(self, word: commands.ToEngine) -> None:
        if self.within is not None:
            self.within.tell(word)
        elif isinstance(word, commands.Respond | commands.Cancel):  # no other word means something to an engine that does not listen
            if len(self._early) >= EARLY:
                raise EngineOverrun("its process is being replaced")
            self._early.append(word)
            if self._task is None or self._task.done():
                self._is_over = asyncio.Event()
                self._task = self.tasks.create_task(self._go_on(self._is_over))

    def pause(self) -> None:
        self._is_paused = True
        if self.within is not None:
            self.within.pause()

    def resume(self) -> None:
        self._is_paused = False
        if self.within is not None:
            self.within.resume()

    def hear(self, words: Sequence[talk_events.FromEngine]) -> None:
        """Deliver what the process says, but that it is gone."""
        if isinstance(words[-1], talk_events.Lost) and words[-1].code != "shutdown":
            words = words[:-1]
            self.within = None
            self._is_over.set()
        if words:
            self._deliver(words)

    def leave(self) -> None:
        """Say nothing more."""
        self._deliver = lambda _words: None
        self._early.clear()
        self._is_over.set()
        if self._task is not None and self.within is None:
            self._task.cancel()

    async def _go_on(self, is_over: asyncio.Event) -> None:
        """Be in a conversation with the next process, until it is over too."""
        try:
            async with self._opens(self._settings, self.hear) as within:
                self._begin(within)
                await is_over.wait()
        except Fault as fault:
            early, self._early = self._early, []
            broke = [talk_events.Broke.by(word.id, fault) for word in early if isinstance(word, commands.Respond)]
            if broke:
                self._deliver(broke)

    def _begin(self, within: Conversation) -> None:
        self.within = within
        if self._is_paused:
            within.pause()
        early, self._early = self._early, []
        for word in early:
            try:
                within.tell(word)
            except EngineOverrun as full:
                self._deliver((overrun(word, full),))
