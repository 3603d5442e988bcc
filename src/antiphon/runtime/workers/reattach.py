"""
Conversations that outlast their engine's process: each request carries the whole history, so that any process can
answer the next.

Responses under way fail with their process; later requests go to the process that replaced it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.engine import Deliver, EngineConversation, EngineOverrun, overrun_event
from antiphon.engine_api.forwarding import ForwardingConversation
from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import SHUTTING_DOWN_CODE, ApiError

MAX_EARLY_COMMANDS = 64
"""Requests and cancellations that may wait for the next process."""

ConversationFactory = Callable[[ConversationSettings, Deliver], AbstractAsyncContextManager[EngineConversation]]
"""Opens a conversation with the present or the next process; entering raises `ApiError` if none comes up in time."""


@contextlib.asynccontextmanager
async def reattaching_conversation(
    open_conversation: ConversationFactory, settings: ConversationSettings, deliver: Deliver
) -> AsyncIterator[EngineConversation]:
    """A conversation that goes on with the next process when its own is lost."""
    conversation = _ReattachingConversation(open_conversation, settings, deliver)
    async with open_conversation(settings, conversation.receive) as conversation.inner, asyncio.TaskGroup() as conversation.tasks:
        try:
            yield conversation
        finally:
            conversation.close()


class _ReattachingConversation(ForwardingConversation):
    """
    The conversation across processes.

    Attributes:
        tasks: the task group of its opener.
    """

    tasks: asyncio.TaskGroup

    def __init__(self, open_conversation: ConversationFactory, settings: ConversationSettings, deliver: Deliver) -> None:
        super().__init__()
        self._open_conversation = open_conversation
        self._settings = settings
        self._deliver = deliver
        self._task: asyncio.Task[None] | None = None
        self._early_commands: list[commands.EngineCommand] = []
        self._over_event = asyncio.Event()

    def send(self, command: commands.EngineCommand) -> None:
        # What waits goes first, so that commands keep their order.
        if self.inner is not None and not self._early_commands:
            self.inner.send(command)
        # Others concern audio input, and these engines do not listen.
        elif isinstance(command, commands.Respond | commands.Relay | commands.Cancel):
            if len(self._early_commands) >= MAX_EARLY_COMMANDS:
                raise EngineOverrun("its process is being replaced")
            self._early_commands.append(command)
            if self._task is None or self._task.done():
                self._over_event = asyncio.Event()
                self._task = self.tasks.create_task(self._reattach(self._over_event))

    def receive(self, events: Sequence[engine_events.EngineEvent]) -> None:
        """Deliver the events of a process, except that it was lost."""
        if isinstance(events[-1], engine_events.EngineLost) and events[-1].code != SHUTTING_DOWN_CODE:
            events = events[:-1]
            self.inner = None
            self._over_event.set()
        if events:
            self._deliver(events)

    def close(self) -> None:
        """Deliver nothing more, and wait for no process."""
        self._deliver = lambda _events: None
        self._early_commands.clear()
        self._over_event.set()
        if self._task is not None and self.inner is None:
            self._task.cancel()

    async def _reattach(self, over_event: asyncio.Event) -> None:
        """Hold a conversation with the next process until that is lost too."""
        try:
            async with self._open_conversation(self._settings, self.receive) as inner:
                self._begin(inner)
                await over_event.wait()
        except ApiError as error:
            early, self._early_commands = self._early_commands, []
            requests = [each for each in early if isinstance(each, commands.Respond | commands.Relay)]
            failures = [engine_events.ResponseFailed.from_error(each.id, error) for each in requests]
            if failures:
                self._deliver(failures)

    def _begin(self, inner: EngineConversation) -> None:
        self.attach(inner)
        # What an event delivered meanwhile leads to is appended to these, so that commands keep their order.
        while self._early_commands:
            command = self._early_commands[0]
            try:
                inner.send(command)
            except EngineOverrun as error:
                self._deliver((overrun_event(command, error),))
            if self._early_commands:  # unless the conversation was closed
                del self._early_commands[0]
