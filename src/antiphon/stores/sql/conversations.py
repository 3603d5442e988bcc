"""Conversations in a SQL database."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Column, Row, Select, Table, bindparam, func, select

from antiphon.errors import ServerError
from antiphon.records import ConversationRecord, ConversationTurn, ItemRecord
from antiphon.stores.base import (
    COMPACTION_ID_PREFIX,
    MAX_CHAIN_BYTES,
    ConversationPage,
    ConversationWindow,
    ItemPage,
    ItemsTooLarge,
    SortOrder,
    UnknownConversation,
    UnknownCursor,
    check_conversation_size,
)
from antiphon.stores.database.connection import TimedConnection
from antiphon.stores.database.database import Database
from antiphon.stores.database.schema import conversation_items, conversations, has_nul
from antiphon.stores.sql.conversation_writes import (
    AddItems,
    ConversationWrite,
    CreateConversation,
    DeleteConversation,
    DeleteItem,
    EndTurn,
    LockConversation,
    LockRules,
    UnlockConversation,
    UpdateConversation,
    WriteResult,
)

MAX_LEFTOVERS = 10_000
"""The most locks that are to be given back later, after an outage. Beyond it, this server's next start frees them."""

READ_ROWS = 1000
"""Rows that become records between two turns of the event loop."""


class ItemsById:
    """
    Reads items of a table by their ids, of each id the newest output, or else the newest input.

    Args:
        table: of items.
        number: its column with the number of what an item belongs to, which rises.
    """

    def __init__(self, table: Table, number: Column[int]) -> None:
        place = (table.c.direction.desc(), number.desc(), table.c.position.desc())  # "output" before "input"
        # By a window, as it costs the same for an id that thousands of responses have.
        ranks = (
            select(number, table.c.position, func.row_number().over(partition_by=table.c.id, order_by=place).label("rank"))
            .where(table.c.tenant == bindparam("tenant"), table.c.id.in_(bindparam("ids", expanding=True)))
            .subquery()
        )
        is_first = (number == ranks.c[number.name]) & (table.c.position == ranks.c.position) & (ranks.c.rank == 1)
        self._sizes = select(func.coalesce(func.sum(func.length(table.c.body)), 0)).select_from(table).join(ranks, is_first)
        self._items = select(table).join(ranks, is_first)

    async def read(self, database: Database, tenant: str, item_ids: Collection[str]) -> Mapping[str, ItemRecord]:
        """As `Store.items`."""
        ids = [item_id for item_id in dict.fromkeys(item_ids) if not has_nul(item_id)]
        keys = [{"tenant": tenant, "ids": ids[start : start + READ_ROWS]} for start in range(0, len(ids), READ_ROWS)]
        size_bytes = 0
        records: dict[str, ItemRecord] = {}
        async with database.read_connection() as connection:
            for key in keys:
                size_bytes += await connection.scalar(self._sizes, key) or 0
                if size_bytes > MAX_CHAIN_BYTES:
                    break
                records |= {row.id: _item(row) for row in await connection.execute(self._items, key)}
        if size_bytes > MAX_CHAIN_BYTES:
            raise ItemsTooLarge
        return records


class SqlConversationStore:
    """
    The conversations of a database.

    Args:
        write: performs a write together with those of others (`GroupCommit`).
    """

    def __init__(self, database: Database, write: Callable[[ConversationWrite], Awaitable[WriteResult]]) -> None:
        self._database = database
        self._write_one = write
        self._conversation_ids: dict[str, str] = {}  # the locks of this server, by response
        self._leftovers: dict[str, str] = {}  # those that could not be given back, by response too
        self._is_dead = select(database.backend.is_dead(bindparam("owner", type_=BigInteger)))
        self.lock_rules = LockRules(self._conversation_ids.keys(), self._judge_death)

    async def create(self, conversation: ConversationRecord, items: Sequence[ItemRecord]) -> None:
        await self._write(CreateConversation(conversation, items))

    async def get(self, tenant: str, conversation_id: str) -> ConversationRecord | None:
        if has_nul(conversation_id):
            return None
        async with self._database.read_connection() as connection:
            row = (await connection.execute(_ONE, {"tenant": tenant, "conversation_id": conversation_id})).first()
        return _conversation(row) if row else None

    async def all(self, tenant: str, *, after: str | None, limit: int, order: SortOrder) -> ConversationPage:
        number = conversations.c.number
        query = select(conversations).where(conversations.c.tenant == tenant)
        query = query.order_by(number if order == "asc" else number.desc()).limit(limit + 1)
        async with self._database.read_connection() as connection:
            if after is not None:
                start = None if has_nul(after) else await self._number(connection, tenant, after)
                if start is None:
                    raise UnknownCursor(after)
                query = query.where(number > start if order == "asc" else number < start)
            rows = (await connection.execute(query)).all()
        return ConversationPage(tuple(_conversation(row) for row in rows[:limit]), has_more=len(rows) > limit)

    async def update(self, tenant: str, conversation_id: str, metadata: bytes) -> ConversationRecord | None:
        if has_nul(conversation_id) or not await self._write(UpdateConversation(tenant, conversation_id, metadata)):
            return None
        return await self.get(tenant, conversation_id)

    async def delete(self, tenant: str, conversation_id: str) -> bool:
        return not has_nul(conversation_id) and await self._write(DeleteConversation(tenant, conversation_id))

    async def add_items(self, tenant: str, conversation_id: str, items: Sequence[ItemRecord]) -> None:
        if has_nul(conversation_id):
            raise UnknownConversation(conversation_id)
        await self._write(AddItems(tenant, conversation_id, items))

    async def delete_item(self, tenant: str, conversation_id: str, item_id: str) -> ConversationRecord | None:
        if has_nul(conversation_id + item_id) or not await self._write(DeleteItem(tenant, conversation_id, item_id)):
            return None
        return await self.get(tenant, conversation_id)

    async def page(self, tenant: str, conversation_id: str, *, after: str | None, limit: int, order: SortOrder) -> ItemPage | None:
        async with self._database.read_connection() as connection:
            number = await self._number(connection, tenant, conversation_id)
            if number is None:
                return None
            page, start = _PAGE_QUERIES[order]
            if after is not None:
                cursor = {"number": number, "id": after}
                start = None if has_nul(after) else await connection.scalar(_CURSOR, cursor)
            if start is None:
                raise UnknownCursor(after)
            rows = (await connection.execute(page, {"number": number, "start": start, "limit": limit + 1})).all()
        return ItemPage(tuple(_item(row) for row in rows[:limit]), has_more=len(rows) > limit)

    async def item(self, tenant: str, item_id: str, conversation_id: str) -> ItemRecord | None:
        if has_nul(item_id):
            return None
        async with self._database.read_connection() as connection:
            number = await self._number(connection, tenant, conversation_id)
            row = (await connection.execute(_ONE_ITEM, {"number": number, "id": item_id})).first()
        return _item(row) if row else None

    async def items(self, tenant: str, item_ids: Collection[str]) -> Mapping[str, ItemRecord]:
        return await _ITEMS_BY_ID.read(self._database, tenant, item_ids)

    async def window(self, tenant: str, conversation_id: str) -> ConversationWindow | None:
        async with self._database.read_connection() as connection:
            number = await self._number(connection, tenant, conversation_id)
            if number is None:
                return None
            start = await connection.scalar(_NEWEST_COMPACTION, {"number": number})
            key = {"number": number, "start": -1 if start is None else start}
            extent = (await connection.execute(_EXTENT, key)).one()
            check_conversation_size(extent.item_count, extent.size_bytes)
            rows = await connection.execute(_ITEMS_FROM, key)
            items: list[ItemRecord] = []
            while chunk := rows.fetchmany(READ_ROWS):
                items.extend(_item(row) for row in chunk)
                await asyncio.sleep(0)
            ids = frozenset(item.id for item in items)
            # Items before the compaction are not read, but new ones must not have their ids either.
            if start is not None:
                ids = frozenset(row.id for row in await connection.execute(_ALL_IDS, {"number": number}))
        return ConversationWindow(items, ids)

    async def lock(self, tenant: str, conversation_id: str, response_id: str) -> bool:
        if has_nul(conversation_id):
            return False
        # Before the write: from the moment of its commit on, the lock must count for the writes behind it in the batch.
        self._conversation_ids[response_id] = conversation_id
        try:
            is_locked = await self._write(LockConversation(tenant, conversation_id, response_id))
        except BaseException:  # it may be locked all the same: its write goes on, and an answer may be lost
            self._leave(response_id)
            raise
        if not is_locked:
            del self._conversation_ids[response_id]
        return is_locked

    async def unlock(self, response_id: str) -> None:
        conversation_id = self._leave(response_id)
        if conversation_id is not None:
            await self._write(UnlockConversation(conversation_id, response_id))
            self._leftovers.pop(response_id, None)

    async def unlock_leftovers(self) -> None:
        """
        Give back all that could not be given back before.

        Raises:
            StoreError: not now either.
        """
        for response_id, conversation_id in [*self._leftovers.items()]:
            await self._write(UnlockConversation(conversation_id, response_id))
            self._leftovers.pop(response_id, None)

    async def end_turn(self, turn: ConversationTurn) -> None:
        await self._write(EndTurn(turn))
        self.forget_lock(turn)

    def forget_lock(self, turn: ConversationTurn) -> None:
        """The turn is stored, so its response has the conversation no more."""
        self._conversation_ids.pop(turn.response_id, None)

    def _leave(self, response_id: str) -> str | None:
        """From now on this server's lock counts for nothing, though it may stand in the database; its conversation."""
        conversation_id = self._conversation_ids.pop(response_id, None)
        if conversation_id is not None:
            self._leftovers[response_id] = conversation_id
            while len(self._leftovers) > MAX_LEFTOVERS:
                del self._leftovers[next(iter(self._leftovers))]
        return conversation_id

    async def _write(self, write: ConversationWrite) -> bool:
        with self._database.track_use(is_write=True):
            result = await self._write_one(write)
        if isinstance(result, Exception):
            raise result
        return result

    async def _number(self, connection: TimedConnection, tenant: str, conversation_id: str) -> int | None:
        if has_nul(conversation_id):
            return None
        row = (await connection.execute(_ONE, {"tenant": tenant, "conversation_id": conversation_id})).first()
        return row.number if row else None

    async def _judge_death(self, connection: TimedConnection, owner: int) -> bool:
        return bool(await connection.scalar(self._is_dead, {"owner": owner, "living": self._database.backend.live_servers}))


def raise_refusal(result: WriteResult) -> bool:
    """
    The result of a write: whether it found what it changes.

    Raises:
        ServerError: it was refused with this.
    """
    if isinstance(result, ServerError):
        raise result
    return result is True


def _conversation(row: Row[Any]) -> ConversationRecord:
    return ConversationRecord(id=row.id, tenant=row.tenant, created_at=row.created_at, metadata=row.metadata)


def _item(row: Row[Any]) -> ItemRecord:
    return ItemRecord(id=row.id, direction=row.direction, body=row.body)


_ONE = select(conversations).where(conversations.c.id == bindparam("conversation_id"), conversations.c.tenant == bindparam("tenant"))
_position = conversation_items.c.position
_OF_CONVERSATION = conversation_items.c.conversation_number == bindparam("number")
_NEWEST_COMPACTION = select(func.max(_position)).where(
    _OF_CONVERSATION,
    conversation_items.c.direction == "output",
    conversation_items.c.id.startswith(COMPACTION_ID_PREFIX, autoescape=True),
)
_FROM = _position >= bindparam("start")
_ITEMS_FROM = select(conversation_items).where(_OF_CONVERSATION, _FROM).order_by(_position)
_ALL_IDS = select(conversation_items.c.id).where(_OF_CONVERSATION)
# Databases keep the length of each body beside it, so none is read.
_EXTENT = select(
    func.count().label("item_count"), func.coalesce(func.sum(func.length(conversation_items.c.body)), 0).label("size_bytes")
).where(_OF_CONVERSATION, _FROM)
_ONE_ITEM = select(conversation_items).where(_OF_CONVERSATION, conversation_items.c.id == bindparam("id"))
_CURSOR = _ONE_ITEM.with_only_columns(_position)
_ITEMS_BY_ID = ItemsById(conversation_items, conversation_items.c.conversation_number)
_PAGE_QUERIES: dict[SortOrder, tuple[Select[Any], int | None]] = {
    "asc": (
        select(conversation_items).where(_OF_CONVERSATION, _position > bindparam("start")).order_by(_position).limit(bindparam("limit")),
        -1,
    ),
    "desc": (
        select(conversation_items)
        .where(_OF_CONVERSATION, _position < bindparam("start"))
        .order_by(_position.desc())
        .limit(bindparam("limit")),
        2**31 - 1,
    ),
}
