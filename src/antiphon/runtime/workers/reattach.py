"""
Conversations that outlast the process that answers: each ask carries all that was said, so that any process can take the next.

What was being answered breaks; what is asked from then on is asked of whichever process there is.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.engine import Deliver, EngineConversation, EngineOverrun
from antiphon.engine_api.options import ConversationKind, ConversationSettings
from antiphon.errors import ApiError
from antiphon.runtime.core.driver import overrun_event

REATTACHABLE_KINDS = frozenset[ConversationKind]({"responses", "realtime"})
"""Kinds of conversation whose asks carry all that was said."""

MAX_EARLY_COMMANDS = 64
"""What may be said while there is no process."""

ConversationFactory = Callable[[ConversationSettings, Deliver], AbstractAsyncContextManager[EngineConversation]]
"""A conversation with the process that there is, or soon will be; raises `ApiError` when it is entered and there is none."""


@contextlib.asynccontextmanager
async def reattaching_conversation(
    open_conversation: ConversationFactory, settings: ConversationSettings, deliver: Deliver
) -> AsyncIterator[EngineConversation]:
    """A conversation with one process after the other."""
    conversation = _ReattachingConversation(open_conversation, settings, deliver)
    async with open_conversation(settings, conversation.receive) as conversation.inner, asyncio.TaskGroup() as conversation.tasks:
        try:
            yield conversation
        finally:
            conversation.close()


class _ReattachingConversation:
    """
    A conversation, whoever is in it.

    Attributes:
        within: the conversation with the process that there is; None while there is none.
        tasks: those of whoever opened it.
    """

    tasks: asyncio.TaskGroup

    def __init__(self, open_conversation: ConversationFactory, settings: ConversationSettings, deliver: Deliver) -> None:
        self.inner: EngineConversation | None = None
        self._open_conversation = open_conversation
        self._settings = settings
        self._deliver = deliver
        self._task: asyncio.Task[None] | None = None
        self._early_commands: list[commands.EngineCommand] = []
        self._over_event = asyncio.Event()
        self._is_paused = False

    def send(self, command: commands.EngineCommand) -> None:
        if self.inner is not None:
            self.inner.send(command)
        elif isinstance(command, commands.Respond | commands.Cancel):  # no other word means something to an engine that does not listen
            if len(self._early_commands) >= MAX_EARLY_COMMANDS:
                raise EngineOverrun("its process is being replaced")
            self._early_commands.append(command)
            if self._task is None or self._task.done():
                self._over_event = asyncio.Event()
                self._task = self.tasks.create_task(self._reattach(self._over_event))

    def pause(self) -> None:
        self._is_paused = True
        if self.inner is not None:
            self.inner.pause()

    def resume(self) -> None:
        self._is_paused = False
        if self.inner is not None:
            self.inner.resume()

    def receive(self, events: Sequence[engine_events.EngineEvent]) -> None:
        """Deliver what the process says, but that it is gone."""
        if isinstance(events[-1], engine_events.EngineLost) and events[-1].code != "shutdown":
            events = events[:-1]
            self.inner = None
            self._over_event.set()
        if events:
            self._deliver(events)

    def close(self) -> None:
        """Say nothing more."""
        self._deliver = lambda _words: None
        self._early_commands.clear()
        self._over_event.set()
        if self._task is not None and self.inner is None:
            self._task.cancel()

    async def _reattach(self, over_event: asyncio.Event) -> None:
        """Be in a conversation with the next process, until it is over too."""
        try:
            async with self._open_conversation(self._settings, self.receive) as within:
                self._begin(within)
                await over_event.wait()
        except ApiError as fault:
            early, self._early_commands = self._early_commands, []
            broke = [engine_events.ResponseFailed.from_error(word.id, fault) for word in early if isinstance(word, commands.Respond)]
            if broke:
                self._deliver(broke)

    def _begin(self, inner: EngineConversation) -> None:
        self.inner = inner
        if self._is_paused:
            inner.pause()
        early, self._early_commands = self._early_commands, []
        for word in early:
            try:
                inner.send(word)
            except EngineOverrun as full:
                self._deliver((overrun_event(word, full),))
