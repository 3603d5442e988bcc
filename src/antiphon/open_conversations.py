"""The conversations with an engine that are open: all of them end with the engine."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
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

    def open(self, build: Callable[[asyncio.TaskGroup], ConversationT]) -> AbstractAsyncContextManager[ConversationT]:
        """Open another conversation, as `Engine.open` does."""
        return _OpenConversation(self._conversations, build)

    def abort(self) -> None:
        """Fail every response of all of them."""
        for conversation in tuple(self._conversations):
            conversation.abort()


class _OpenConversation(AbstractAsyncContextManager[ConversationT]):
    # Every request opens one: a class takes a third of the calls of a generator, which the loop keeps a list of, too.

    def __init__(self, conversations: set[ConversationT], build: Callable[[asyncio.TaskGroup], ConversationT]) -> None:
        self._conversations = conversations
        self._tasks = asyncio.TaskGroup()
        self._conversation = build(self._tasks)

    async def __aenter__(self) -> ConversationT:
        await self._tasks.__aenter__()
        self._conversations.add(self._conversation)
        return self._conversation

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._conversations.discard(self._conversation)
        # It cancels the tasks that the group then waits for.
        self._conversation.close()
        await self._tasks.__aexit__(kind, error, traceback)
