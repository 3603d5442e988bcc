"""Writes of conversations: what each changes, and whether a lock stands in its way."""

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import bindparam, delete, func, insert, select, update

from antiphon.errors import ServerError, conversation_lock_lost
from antiphon.records import ConversationRecord, ConversationTurn, ItemRecord
from antiphon.stores.base import ConversationLocked, DuplicateItem, UnknownConversation
from antiphon.stores.database.connection import TimedConnection
from antiphon.stores.database.schema import conversation_items, conversations

MAX_ROWS = 300
"""Rows in one statement: SQLAlchemy prepares them on the event loop, where 33,000 took half a second."""


class CreateConversation(Struct, frozen=True):
    """Store a new conversation with its first items."""

    conversation: ConversationRecord
    items: Sequence[ItemRecord]


class UpdateConversation(Struct, frozen=True):
    """Replace the metadata."""

    tenant: str
    conversation_id: str
    metadata: bytes


class DeleteConversation(Struct, frozen=True):
    """Delete a conversation with its items."""

    tenant: str
    conversation_id: str


class AddItems(Struct, frozen=True):
    """Add items at the end."""

    tenant: str
    conversation_id: str
    items: Sequence[ItemRecord]


class DeleteItem(Struct, frozen=True):
    """Delete an item."""

    tenant: str
    conversation_id: str
    item_id: str


class LockConversation(Struct, frozen=True):
    """Give a conversation to a response."""

    tenant: str
    conversation_id: str
    response_id: str


class UnlockConversation(Struct, frozen=True):
    """Take a conversation back from a response, if that has it."""

    conversation_id: str
    response_id: str


class EndTurn(Struct, frozen=True):
    """Add the items of a response that is not stored itself, and take its conversation back."""

    turn: ConversationTurn


ConversationWrite = (
    CreateConversation | UpdateConversation | DeleteConversation | AddItems | DeleteItem | LockConversation | UnlockConversation | EndTurn
)

WriteResult: TypeAlias = bool | UnknownConversation | ConversationLocked | DuplicateItem | ServerError
"""Whether a write found what it changes; or why it was refused, for its caller to raise."""


def conversation_id_of(write: ConversationWrite) -> str:
    """The conversation that a write changes."""
    match write:
        case CreateConversation(conversation):
            return conversation.id
        case EndTurn(turn):
            return turn.conversation_id
        case _:
            return write.conversation_id


class LockRules(Struct, frozen=True):
    """
    Knows whose locks count.

    Attributes:
        held_by: the responses to which this server's store has given a conversation: its row may name one that this
            server doesn't know any more, as when a write failed whose commit went through.
        is_dead: whether a number is that of no living server.
    """

    held_by: Container[str]
    is_dead: Callable[[TimedConnection, int], Awaitable[bool]]


class _Conversation(Struct):
    """A row that the transaction has locked, as it will be when the transaction ends."""

    number: int
    tenant: str
    response_id: str | None
    owner: int | None


class ConversationChanges:
    """
    Performs writes of conversations in one transaction, in order.

    Args:
        server_number: the owner of new locks.
    """

    def __init__(self, connection: TimedConnection, lock_rules: LockRules, server_number: int) -> None:
        self._connection = connection
        self._lock_rules = lock_rules
        self._server_number = server_number
        self._rows: dict[str, _Conversation] = {}

    async def lock_rows(self, conversation_ids: Iterable[str]) -> None:
        """Lock the rows of all conversations that the batch changes; once, before anything else."""
        if ids := {*conversation_ids}:
            for row in await self._connection.execute(_SELECT_ROWS, {"ids": [*ids]}):
                self._rows[row.id] = _Conversation(row.number, row.tenant, row.response_id, row.owner)

    def is_lost(self, turn: ConversationTurn) -> bool:
        """Whether the turn's response does not have its conversation any more, though the conversation is there."""
        row = self._rows.get(turn.conversation_id)
        return row is not None and row.response_id != turn.response_id

    async def perform(self, write: ConversationWrite) -> WriteResult:
        """Perform one write."""
        match write:
            case CreateConversation(conversation, items):
                return await self._create(conversation, items)
            case EndTurn(turn):
                return conversation_lock_lost() if self.is_lost(turn) else await self.end_turn(turn)
            # Where the response lost its lock, another one may have it by now.
            case UnlockConversation(conversation_id, response_id):
                row = self._rows.get(conversation_id)
                return row is not None and row.response_id == response_id and await self._set_lock(row, None)
            case _:
                row = self._rows.get(write.conversation_id)
                if row is None or row.tenant != write.tenant:
                    return UnknownConversation(write.conversation_id) if isinstance(write, AddItems) else False
                return await self._change(row, write)

    async def _change(
        self, row: _Conversation, write: UpdateConversation | DeleteConversation | AddItems | DeleteItem | LockConversation
    ) -> WriteResult:
        match write:
            case UpdateConversation(metadata=metadata):
                await self._connection.execute(_UPDATE_METADATA, {"of_number": row.number, "new_metadata": metadata})
                return True
            case DeleteConversation(conversation_id=conversation_id):
                await self._connection.execute(_DELETE, {"of_number": row.number})
                del self._rows[conversation_id]
                return True
            case LockConversation(response_id=response_id):
                return not await self._is_locked(row) and await self._set_lock(row, response_id)
            case AddItems(items=items):
                return ConversationLocked() if await self._is_locked(row) else await self._add_items(row, items)
            case DeleteItem(item_id=item_id):
                if await self._is_locked(row):
                    return ConversationLocked()
                result = await self._connection.execute(_DELETE_ITEM, {"of_number": row.number, "item_id": item_id})
                return result.rowcount > 0

    async def end_turn(self, turn: ConversationTurn) -> WriteResult:
        """Add a turn's items, and give its conversation back; does nothing where that was deleted."""
        row = self._rows.get(turn.conversation_id)
        if row is None or row.tenant != turn.tenant:
            return False
        await self._insert_items(row, turn.items)
        return await self._set_lock(row, None)

    async def _create(self, conversation: ConversationRecord, items: Sequence[ItemRecord]) -> WriteResult:
        if (repeated_id := first_repeated_id(items)) is not None:
            return DuplicateItem(repeated_id)
        result = await self._connection.execute(_INSERT, asdict(conversation))
        row = self._rows[conversation.id] = _Conversation(result.scalar_one(), conversation.tenant, None, None)
        await self._insert_items(row, items)
        return True

    async def _add_items(self, row: _Conversation, items: Sequence[ItemRecord]) -> WriteResult:
        if (repeated_id := first_repeated_id(items)) is not None:
            return DuplicateItem(repeated_id)
        values = {"of_number": row.number, "ids": [item.id for item in items]}
        known_id = await self._connection.scalar(_SELECT_KNOWN_ID, values)
        if known_id is not None:
            return DuplicateItem(known_id)
        await self._insert_items(row, items)
        return True

    async def _insert_items(self, row: _Conversation, items: Sequence[ItemRecord]) -> None:
        if not items:
            return
        # After the highest position, and not by counting: items may have been deleted.
        start = await self._connection.scalar(_NEXT_POSITION, {"of_number": row.number})
        for offset in range(0, len(items), MAX_ROWS):
            rows: list[Mapping[str, object]] = [
                {"conversation_number": row.number, "position": start + offset + index, "tenant": row.tenant} | asdict(item)
                for index, item in enumerate(items[offset : offset + MAX_ROWS])
            ]
            await self._connection.execute(_INSERT_ITEMS, rows)
            await asyncio.sleep(0)  # let the loop serve others: asyncpg may send without waiting at all

    async def _is_locked(self, row: _Conversation) -> bool:
        if row.response_id is None or row.owner is None:
            return False
        # This server's own lock counts only if it knows it: others are left from writes whose answers were lost.
        if row.owner == self._server_number:
            return row.response_id in self._lock_rules.held_by
        return not await self._lock_rules.is_dead(self._connection, row.owner)

    async def _set_lock(self, row: _Conversation, response_id: str | None) -> bool:
        row.response_id, row.owner = response_id, None if response_id is None else self._server_number
        await self._connection.execute(_SET_LOCK, {"of_number": row.number, "new_response_id": response_id, "new_owner": row.owner})
        return True


def first_repeated_id(items: Iterable[ItemRecord]) -> str | None:
    """The id that two of the items have; None where there is none."""
    ids: set[str] = set()
    for item in items:
        if item.id in ids:
            return item.id
        ids.add(item.id)
    return None


# Rows are locked in one order, after those of responses, so that servers that share the database never deadlock.
_SELECT_ROWS = (
    select(conversations.c.number, conversations.c.id, conversations.c.tenant, conversations.c.response_id, conversations.c.owner)
    .where(conversations.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(conversations.c.id)
    .with_for_update()
)
_OF_NUMBER = conversations.c.number == bindparam("of_number")
_ITEM_OF_NUMBER = conversation_items.c.conversation_number == bindparam("of_number")
_INSERT = insert(conversations).returning(conversations.c.number)
_UPDATE_METADATA = update(conversations).where(_OF_NUMBER).values(metadata=bindparam("new_metadata"))
_SET_LOCK = update(conversations).where(_OF_NUMBER).values(response_id=bindparam("new_response_id"), owner=bindparam("new_owner"))
_DELETE = delete(conversations).where(_OF_NUMBER)  # the items go with it
_DELETE_ITEM = delete(conversation_items).where(_ITEM_OF_NUMBER, conversation_items.c.id == bindparam("item_id"))
_INSERT_ITEMS = insert(conversation_items)
_NEXT_POSITION = select(func.coalesce(func.max(conversation_items.c.position) + 1, 0)).where(_ITEM_OF_NUMBER)
_SELECT_KNOWN_ID = (
    select(conversation_items.c.id).where(_ITEM_OF_NUMBER, conversation_items.c.id.in_(bindparam("ids", expanding=True))).limit(1)
)
