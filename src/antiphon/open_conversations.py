"""The conversations with an engine that are open: all of them end with the engine."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar


class AbortableConversation(Protocol):
    """A conversation that its engine can end."""

    def abort(self) -> None:
        """Fail every response: the engine stops."""

    def close(self) -> None:
        """Cancel every response, and deliver nothing more."""


ConversationT = TypeVar("ConversationT", bound=AbortableConversation)


class OpenConversations(Generic[ConversationT]):
    """Conversations, each with a group for its tasks."""

    def __init__(self) -> None:
        self._conversations: set[ConversationT] = set()

    @asynccontextmanager
    async def open(self, build: Callable[[asyncio.TaskGroup], ConversationT]) -> AsyncIterator[ConversationT]:
        """One more, as `Engine.open` gives it."""
        async with asyncio.TaskGroup() as tasks:
            conversation = build(tasks)
            self._conversations.add(conversation)
            try:
                yield conversation
            finally:
                self._conversations.discard(conversation)
                conversation.close()

    def abort(self) -> None:
        """Fail every response of all of them."""
        for conversation in tuple(self._conversations):
            conversation.abort()
