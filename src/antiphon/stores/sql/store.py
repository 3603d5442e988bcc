"""A store in a SQL database: SQLite by default, or PostgreSQL."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import CTE, FromClause, Label, Row, Select, bindparam, case, exists, func, literal, null, select

from antiphon.errors import ServerError
from antiphon.records import ConversationTurn, Direction, ItemRecord, ResponseRecord
from antiphon.stores.availability import Availability
from antiphon.stores.base import (
    COMPACTION_ID_PREFIX,
    MAX_CHAIN_BYTES,
    MAX_CHAIN_LENGTH,
    ItemPage,
    MissingAncestor,
    SortOrder,
    UnknownCursor,
    chain_too_large,
    chain_too_long,
)
from antiphon.stores.database.database import TIMEOUT_S, Database
from antiphon.stores.database.group_commit import GroupCommit
from antiphon.stores.database.schema import has_nul, is_unfinished, items, responses
from antiphon.stores.sql.background import SqlBackgroundStore
from antiphon.stores.sql.client_secrets import SqlClientSecretStore
from antiphon.stores.sql.conversation_writes import WriteResult
from antiphon.stores.sql.conversations import READ_ROWS, ItemsById, SqlConversationStore, raise_refusal
from antiphon.stores.sql.files import SqlFileStore
from antiphon.stores.sql.keys import SqlKeyStore
from antiphon.stores.sql.prompts import SqlPromptStore
from antiphon.stores.sql.recordings import SqlSessionStore
from antiphon.stores.sql.response_list import SqlResponseList
from antiphon.stores.sql.usage import SqlUsageStore
from antiphon.stores.sql.webhooks import SqlWebhookStore
from antiphon.stores.sql.writes import WRITE_OFF, AppendEvents, DeleteRecord, FinishRecord, PutRecord, StoreWrite, end_values, write_batch
from antiphon.stores.vectors.indexes import SqlIndexRecords
from antiphon.stores.vectors.stores import SqlVectorStoreRecords

MAX_ABANDONED = 10_000
"""The most responses that this server remembers because it could not store their end, in an outage."""


class SqlStore:
    """
    The store behind an SQLAlchemy URL, such as `sqlite:////var/lib/antiphon/antiphon.sqlite3`.

    Args:
        server_numbers: where several processes are one server, the number of each, this one's first; their supervisor
            draws them.
        availability: is told about every success and failure.
        timeout_s: how long a statement, or a new connection, may take.

    Raises:
        ServerError: the URL can't be used.
    """

    def __init__(
        self, url: str, server_numbers: Sequence[int] = (), availability: Availability | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.availability = availability or Availability()
        self._database = Database(url, server_numbers, self.availability, timeout_s)
        self.keys = SqlKeyStore(self._database)
        self.prompts = SqlPromptStore(self._database)
        self.client_secrets = SqlClientSecretStore(self._database)
        self.sessions = SqlSessionStore(self._database)
        self.files = SqlFileStore(self._database)
        self.usage = SqlUsageStore(self._database)
        self.vector_stores = SqlVectorStoreRecords(self._database)
        self.indexes = SqlIndexRecords(self._database)
        self.lists = SqlResponseList(self._database, url.partition(":")[0].partition("+")[0])
        # A response whose end this server could not store has an owner that lives, but is not worked on any more.
        is_abandoned = (responses.c.owner == bindparam("this_server")) & responses.c.id.in_(bindparam("abandoned", expanding=True))
        is_orphaned = self._database.backend.is_dead(responses.c.owner) | is_abandoned
        self._orphans_query = select(responses).where(is_unfinished, is_orphaned).order_by(responses.c.number)
        self._write_off = WRITE_OFF.where(is_orphaned)
        self._abandoned_ids: dict[str, None] = {}  # the oldest first
        self._writer: GroupCommit[StoreWrite, WriteResult] = GroupCommit(self._commit, self._database.backend.is_systemic)
        self.conversations = SqlConversationStore(self._database, self._writer.write)
        self.webhooks = SqlWebhookStore(self._database)
        self.background = SqlBackgroundStore(
            self._database,
            self._write_record,
            is_orphaned,
            lambda: self._orphan_values,
            self.webhooks.new_outbox,
            self._note_abandoned,
            self._forget_abandoned,
        )

    async def open(self) -> None:
        await self._database.open()
        self._writer.start()

    async def close(self) -> None:
        await self._writer.stop()
        await self._database.close()

    async def check(self) -> None:
        await self._database.check()
        await self.conversations.unlock_leftovers()

    async def put(self, record: ResponseRecord, turn: ConversationTurn | None = None) -> None:
        await self._write_record(PutRecord(record, turn))

    async def finish(self, record: ResponseRecord, turn: ConversationTurn | None = None) -> bool:
        return await self._write_record(FinishRecord(record, turn))

    async def _write_record(self, write: PutRecord | FinishRecord | AppendEvents) -> bool:
        try:
            with self._database.track_use(is_write=True):
                result = raise_refusal(await self._writer.write(write))
        except ServerError:  # what is stored has no end now, or none is known: a connection may fail after the commit
            if isinstance(write, AppendEvents):  # these are written again
                raise
            self._note_abandoned(write.record.id)
            raise
        if not isinstance(write, AppendEvents) and write.turn is not None:
            self.conversations.forget_lock(write.turn)
        return result

    async def delete(self, tenant: str, response_id: str) -> bool:
        if has_nul(response_id):
            return False
        with self._database.track_use(is_write=True):
            return raise_refusal(await self._writer.write(DeleteRecord(tenant, response_id)))

    async def get(self, tenant: str, response_id: str) -> ResponseRecord | None:
        records = await self._load_records(_ONE_QUERY, {"id": response_id, "tenant": tenant})
        return records[0] if records else None

    async def chain(self, tenant: str, response_id: str) -> Sequence[ResponseRecord]:
        return await self._load_records(_CHAIN_QUERY, {"id": response_id, "tenant": tenant}, _check_chain)

    async def orphans(self) -> Sequence[ResponseRecord]:
        await self._database.check()  # so that this server counts as living
        async with self._database.read_connection() as connection:
            rows = await connection.execute(self._orphans_query, self._orphan_values)
            return [_record(row, ()) for row in rows]

    async def write_off(self, record: ResponseRecord) -> bool:
        async with self._database.write() as connection:
            is_written = (await connection.execute(self._write_off, end_values(record) | self._orphan_values)).rowcount > 0
        self._forget_abandoned(record.id)
        return is_written

    def _note_abandoned(self, response_id: str) -> None:
        self._abandoned_ids[response_id] = None
        while len(self._abandoned_ids) > MAX_ABANDONED:
            del self._abandoned_ids[next(iter(self._abandoned_ids))]

    def _forget_abandoned(self, response_id: str) -> None:
        self._abandoned_ids.pop(response_id, None)

    @property
    def _orphan_values(self) -> dict[str, object]:
        ours = {"this_server": self._database.server_number, "abandoned": [*self._abandoned_ids]}
        return {"living": self._database.backend.live_servers} | ours

    async def items(self, tenant: str, item_ids: Collection[str]) -> Mapping[str, ItemRecord]:
        return await _ITEMS_BY_ID.read(self._database, tenant, item_ids)

    async def list_items(
        self, tenant: str, response_id: str, *, direction: Direction, after: str | None, limit: int, order: SortOrder
    ) -> ItemPage | None:
        async with self._database.read_connection() as connection:
            key = {"id": response_id, "tenant": tenant}
            number = None if has_nul(response_id) else await connection.scalar(_ONE_QUERY.numbers, key)
            if number is None:
                return None
            page, cursor, start = _PAGE_QUERIES[order]
            filters = {"number": number, "direction": direction}
            if after is not None:
                start = None if has_nul(after) else await connection.scalar(cursor, filters | {"id": after})
            if start is None:
                raise UnknownCursor(after)
            rows = (await connection.execute(page, filters | {"start": start, "limit": limit + 1})).all()
        return ItemPage(tuple(_item(row) for row in rows[:limit]), has_more=len(rows) > limit)

    async def _load_records(
        self, query: "_RecordQuery", values: Mapping[str, object], check: Callable[["_Extent"], None] = lambda _extent: None
    ) -> Sequence[ResponseRecord]:
        """The records of a query with their items, from one state of the database, unless `check` refuses them."""
        if has_nul(str(values.get("id"))):
            return ()
        async with self._database.read_connection() as connection:
            # Counted first: reading what is too much would take the memory that the limit is for.
            if query.extent is not None:
                check(_Extent._make((await connection.execute(query.extent, values)).one()))
            rows = (await connection.execute(query.responses, values)).all()
            item_rows = await connection.execute(query.items, values) if rows else None
            items_by_response: dict[int, list[ItemRecord]] = {row.number: [] for row in rows}
            while item_rows is not None and (chunk := item_rows.fetchmany(READ_ROWS)):
                for row in chunk:
                    items_by_response[row.response_number].append(_item(row))
                await asyncio.sleep(0)
        return [_record(row, items_by_response[row.number]) for row in rows]

    async def _commit(self, writes: Sequence[StoreWrite]) -> Sequence[WriteResult]:
        """Write a batch in one transaction; returns the result of each write."""
        outbox = self.webhooks.new_outbox()
        async with self._database.write_transaction() as connection:
            results = await write_batch(connection, writes, self._database.server_number, self.conversations.lock_rules, outbox)
        outbox.announce()
        return results


class _Extent(NamedTuple):
    """How many responses a chain has, how large they are, and the missing one before the oldest."""

    length: int
    size_bytes: int
    missing_id: str | None


def _check_chain(extent: _Extent) -> None:
    if extent.missing_id is not None:
        raise chain_too_long() if extent.length == MAX_CHAIN_LENGTH else MissingAncestor(extent.missing_id)
    if extent.size_bytes > MAX_CHAIN_BYTES:
        raise chain_too_large()


# To and from the tables


def _record(row: Row[Any], item_records: Iterable[ItemRecord]) -> ResponseRecord:
    return ResponseRecord(
        id=row.id,
        tenant=row.tenant,
        created_at=row.created_at,
        status=row.status,
        model=row.model,
        previous_response_id=row.previous_response_id,
        body=row.body,
        notes=row.notes,
        key_id=row.key_id,
        items=tuple(item_records),
    )


def _item(row: Row[Any]) -> ItemRecord:
    return ItemRecord(id=row.id, direction=row.direction, body=row.body)


# Statements, built once: building one costs more than running it


class _RecordQuery:
    """
    The queries for some responses and for their items.

    Args:
        numbers: a query for the numbers of the responses, and a `rank` to sort them by.
        extent: a query for the values of an `_Extent`, where what is read may be too much.
    """

    def __init__(self, numbers: Select[int, int], extent: Select[Any] | None = None) -> None:
        self.numbers = numbers
        self.extent = extent
        ranks = numbers.subquery("ranks")
        self.responses = select(responses).join(ranks, ranks.c.number == responses.c.number).order_by(ranks.c.rank)
        self.items = select(items).join(ranks, ranks.c.number == items.c.response_number).order_by(ranks.c.rank, items.c.position)


def _select_one() -> Select[int, int]:
    conditions = (responses.c.id == bindparam("id"), responses.c.tenant == bindparam("tenant"))
    return select(responses.c.number, literal(0).label("rank")).where(*conditions)


def _chain() -> CTE:
    """
    A response and its ancestors from the newest compaction on, with a rank that falls by one from each to the one before
    it.
    """
    newer = _select_one().add_columns(_previous_id(responses)).cte("chain", recursive=True)
    older = responses.alias("older")
    ancestors = (
        select(older.c.number, newer.c.rank - 1, _previous_id(older))
        .join(newer, older.c.id == newer.c.previous_response_id)
        .where(older.c.tenant == bindparam("tenant"), newer.c.rank > 1 - MAX_CHAIN_LENGTH)
    )
    return newer.union_all(ancestors)


def _previous_id(response: FromClause) -> Label[str | None]:
    """What is to be read before a response; null if it produced a compaction, which stands for it."""
    is_compaction = (items.c.direction == "output") & items.c.id.startswith(COMPACTION_ID_PREFIX, autoescape=True)
    is_compacted = exists().where(items.c.response_number == response.c.number, is_compaction)
    return case((is_compacted, null()), else_=response.c.previous_response_id).label("previous_response_id")


def _select_chain_extent() -> Select[Any]:
    """How long and how large a chain is, without reading a body: databases keep the length of each beside it."""
    chain = _chain()
    body_bytes = select(func.coalesce(func.sum(func.length(responses.c.body)), 0)).where(responses.c.number.in_(select(chain.c.number)))
    item_bytes = select(func.coalesce(func.sum(func.length(items.c.body)), 0)).where(items.c.response_number.in_(select(chain.c.number)))
    oldest = select(chain.c.previous_response_id).order_by(chain.c.rank).limit(1)
    return select(
        select(func.count()).select_from(chain).scalar_subquery(),
        body_bytes.scalar_subquery() + item_bytes.scalar_subquery(),
        oldest.scalar_subquery(),
    )


def _select_chain() -> Select[int, int]:
    chain = _chain()
    return select(chain.c.number, chain.c.rank)


_ONE_QUERY = _RecordQuery(_select_one())
_CHAIN_QUERY = _RecordQuery(_select_chain(), _select_chain_extent())

_ITEMS_BY_ID = ItemsById(items, items.c.response_number)

_SELECT_RESPONSE_ITEMS = select(items).where(items.c.response_number == bindparam("number"), items.c.direction == bindparam("direction"))
_SELECT_CURSOR = _SELECT_RESPONSE_ITEMS.where(items.c.id == bindparam("id"))
_PAGE_QUERIES: dict[SortOrder, tuple[Select[Any], Select[int], int | None]] = {
    # Of several items with the cursor's id the last in the order asked for, so that following the cursors always ends.
    "asc": (
        _SELECT_RESPONSE_ITEMS.where(items.c.position > bindparam("start")).order_by(items.c.position).limit(bindparam("limit")),
        _SELECT_CURSOR.with_only_columns(func.max(items.c.position)),
        -1,
    ),
    "desc": (
        _SELECT_RESPONSE_ITEMS.where(items.c.position < bindparam("start")).order_by(items.c.position.desc()).limit(bindparam("limit")),
        _SELECT_CURSOR.with_only_columns(func.min(items.c.position)),
        2**31 - 1,
    ),
}
