"""A store in a SQL database: SQLite by default, or PostgreSQL."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from sqlalchemy import Row, Select, bindparam, delete, func, insert, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from antiphon.records import Direction, ItemRecord, ResponseRecord
from antiphon.stores.base import (
    MAX_CHAIN_LENGTH,
    UNFINISHED_STATUSES,
    ItemPage,
    MissingAncestor,
    SortOrder,
    UnknownCursor,
    chain_too_long_error,
)
from antiphon.stores.sql.client_secrets import SqlClientSecretStore
from antiphon.stores.sql.database import Database
from antiphon.stores.sql.group_commit import GroupCommit
from antiphon.stores.sql.keys import SqlKeyStore
from antiphon.stores.sql.recordings import SqlSessionStore
from antiphon.stores.sql.schema import is_impossible_id, is_unfinished, items, responses


class PutRecord(Struct, frozen=True):
    """Store a record."""

    record: ResponseRecord


class PutRecordIfUnfinished(Struct, frozen=True):
    """Replace an unfinished record."""

    record: ResponseRecord


class DeleteRecord(Struct, frozen=True):
    """Delete a response."""

    tenant: str
    response_id: str


StoreWrite = PutRecord | PutRecordIfUnfinished | DeleteRecord


class StoredStatus(NamedTuple):
    """The owner and the status of a stored response."""

    tenant: str
    status: str


class SqlStore:
    """
    The store behind an SQLAlchemy URL, such as `sqlite:////var/lib/antiphon/antiphon.sqlite3`.

    Args:
        server_numbers: where several processes are one server, the number of each, this one's first; their supervisor
            draws them.

    Raises:
        ServerError: the URL can't be used.
    """

    def __init__(self, url: str, server_numbers: Sequence[int] = ()) -> None:
        self._database = Database(url, server_numbers)
        self.keys = SqlKeyStore(self._database)
        self.client_secrets = SqlClientSecretStore(self._database)
        self.sessions = SqlSessionStore(self._database)
        self._orphans_query = _RecordQuery(
            select(responses.c.number, responses.c.number.label("rank")).where(is_unfinished, self._database.backend.is_orphaned)
        )
        self._writer: GroupCommit[StoreWrite] = GroupCommit(self._commit, self._database.backend.is_systemic)

    async def open(self) -> None:
        await self._database.open()
        self._writer.start()

    async def close(self) -> None:
        await self._writer.stop()
        await self._database.close()

    async def put(self, record: ResponseRecord) -> None:
        with self._database.translate_errors():
            await self._writer.write(PutRecord(record))

    async def put_if_unfinished(self, record: ResponseRecord) -> bool:
        with self._database.translate_errors():
            return await self._writer.write(PutRecordIfUnfinished(record))

    async def delete(self, tenant: str, response_id: str) -> bool:
        if is_impossible_id(response_id):
            return False
        with self._database.translate_errors():
            return await self._writer.write(DeleteRecord(tenant, response_id))

    async def get(self, tenant: str, response_id: str) -> ResponseRecord | None:
        records = await self._load_records(_ONE_QUERY, {"id": response_id, "tenant": tenant})
        return records[0] if records else None

    async def chain(self, tenant: str, response_id: str) -> Sequence[ResponseRecord]:
        records = await self._load_records(_CHAIN_QUERY, {"id": response_id, "tenant": tenant})
        if records and (missing := records[0].previous_response_id) is not None:
            raise chain_too_long_error(response_id) if len(records) == MAX_CHAIN_LENGTH else MissingAncestor(missing)
        return records

    async def orphans(self) -> Sequence[ResponseRecord]:
        await self._database.register()  # so that this server counts as living
        return await self._load_records(self._orphans_query, {"living": self._database.backend.live_servers})

    async def item(self, tenant: str, item_id: str) -> ItemRecord | None:
        if is_impossible_id(item_id):
            return None
        async with self._database.read_connection() as connection:
            row = (await connection.execute(_SELECT_ITEM, {"tenant": tenant, "id": item_id})).first()
        return _item(row) if row else None

    async def list_items(
        self, tenant: str, response_id: str, *, direction: Direction, after: str | None, limit: int, order: SortOrder
    ) -> ItemPage | None:
        async with self._database.read_connection() as connection:
            key = {"id": response_id, "tenant": tenant}
            number = None if is_impossible_id(response_id) else await connection.scalar(_ONE_QUERY.numbers, key)
            if number is None:
                return None
            page, cursor, start = _PAGE_QUERIES[order]
            filters = {"number": number, "direction": direction}
            if after is not None:
                start = None if is_impossible_id(after) else await connection.scalar(cursor, filters | {"id": after})
            if start is None:
                raise UnknownCursor(after)
            rows = (await connection.execute(page, filters | {"start": start, "limit": limit + 1})).all()
        return ItemPage(tuple(_item(row) for row in rows[:limit]), has_more=len(rows) > limit)

    async def _load_records(self, query: "_RecordQuery", values: Mapping[str, object]) -> Sequence[ResponseRecord]:
        """The records of a query with their items, from one state of the database."""
        if is_impossible_id(str(values.get("id"))):
            return ()
        async with self._database.read_connection() as connection:
            rows = (await connection.execute(query.responses, values)).all()
            item_rows = (await connection.execute(query.items, values)).all() if rows else ()
        items_by_response: dict[int, list[ItemRecord]] = {row.number: [] for row in rows}
        for row in item_rows:
            items_by_response[row.response_number].append(_item(row))
        return [_record(row, items_by_response[row.number]) for row in rows]

    async def _commit(self, writes: Sequence[StoreWrite]) -> Sequence[bool]:
        """Write a batch in one transaction; returns the result of each write."""
        ids = {write.response_id if isinstance(write, DeleteRecord) else write.record.id for write in writes}
        async with self._database.write_transaction() as connection:
            rows = await connection.execute(_SELECT_STATUS, {"ids": [*ids]})
            deleted_ids, new_records, results = fold_writes(writes, {row.id: StoredStatus(row.tenant, row.status) for row in rows})
            if deleted_ids:
                await connection.execute(_DELETE, {"ids": [*deleted_ids]})
            if new_records:
                await _insert_records(connection, new_records, self._database.server_number)
        return results


def fold_writes(writes: Iterable[StoreWrite], existing: Mapping[str, StoredStatus]) -> tuple[set[str], list[ResponseRecord], list[bool]]:
    """
    What a batch of writes changes, so that each response is written once.

    Args:
        existing: the stored status of each response of the batch that the database has.

    Returns:
        The ids to delete from the database, the records to insert after that in this order, and the result of each
        write.
    """
    new_records: dict[str, ResponseRecord] = {}
    deleted_ids: set[str] = set()

    def current(response_id: str) -> ResponseRecord | StoredStatus | None:
        return new_records.get(response_id) or (None if response_id in deleted_ids else existing.get(response_id))

    def put(record: ResponseRecord) -> None:
        new_records.pop(record.id, None)  # the order is that of the last put
        new_records[record.id] = record
        deleted_ids.add(record.id)

    results = []
    for write in writes:
        match write:
            case PutRecord(record):
                put(record)
                results.append(True)
            case PutRecordIfUnfinished(record):
                old = current(record.id)
                results.append(old is not None and old.status in UNFINISHED_STATUSES)
                if results[-1]:
                    put(record)
            case DeleteRecord(tenant, response_id):
                old = current(response_id)
                results.append(old is not None and old.tenant == tenant)
                if results[-1]:
                    new_records.pop(response_id, None)
                    deleted_ids.add(response_id)
    return deleted_ids & existing.keys(), [*new_records.values()], results


# To and from the tables


async def _insert_records(connection: AsyncConnection, records: Sequence[ResponseRecord], server_number: int) -> None:
    """Add new records with their items; the server of that number owns the unfinished ones."""
    columns = [name for name in responses.c.keys() if name not in ("number", "owner")]
    rows = [
        {name: getattr(record, name) for name in columns} | {"owner": server_number if record.status in UNFINISHED_STATUSES else None}
        for record in records
    ]
    numbers = {row.id: row.number for row in await connection.execute(_INSERT, rows)}
    item_rows = [
        {
            "response_number": numbers[record.id],
            "position": position,
            "tenant": record.tenant,
            "id": item.id,
            "direction": item.direction,
            "body": item.body,
        }
        for record in records
        for position, item in enumerate(record.items)
    ]
    if item_rows:
        await connection.execute(insert(items), item_rows)


def _record(row: Row[Any], item_records: Iterable[ItemRecord]) -> ResponseRecord:
    return ResponseRecord(
        id=row.id,
        tenant=row.tenant,
        created_at=row.created_at,
        status=row.status,
        model=row.model,
        previous_response_id=row.previous_response_id,
        body=row.body,
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
    """

    def __init__(self, numbers: Select[int, int]) -> None:
        self.numbers = numbers
        ranks = numbers.subquery("ranks")
        self.responses = select(responses).join(ranks, ranks.c.number == responses.c.number).order_by(ranks.c.rank)
        self.items = select(items).join(ranks, ranks.c.number == items.c.response_number).order_by(ranks.c.rank, items.c.position)


def _select_one() -> Select[int, int]:
    conditions = (responses.c.id == bindparam("id"), responses.c.tenant == bindparam("tenant"))
    return select(responses.c.number, literal(0).label("rank")).where(*conditions)


def _select_chain() -> Select[int, int]:
    """A response and its ancestors, with a rank that falls by one from each to the one before it."""
    newer = _select_one().add_columns(responses.c.previous_response_id).cte("chain", recursive=True)
    older = responses.alias("older")
    ancestors = (
        select(older.c.number, newer.c.rank - 1, older.c.previous_response_id)
        .join(newer, older.c.id == newer.c.previous_response_id)
        .where(older.c.tenant == bindparam("tenant"), newer.c.rank > 1 - MAX_CHAIN_LENGTH)
    )
    chain = newer.union_all(ancestors)
    return select(chain.c.number, chain.c.rank)


_ONE_QUERY = _RecordQuery(_select_one())
_CHAIN_QUERY = _RecordQuery(_select_chain())

_SELECT_ITEM = (
    select(items)
    .where(items.c.tenant == bindparam("tenant"), items.c.id == bindparam("id"))
    .order_by(items.c.response_number.desc(), items.c.position.desc())
    .limit(1)
)

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

# Rows are locked in one order, so that servers that share the database never deadlock.
_SELECT_STATUS = (
    select(responses.c.id, responses.c.tenant, responses.c.status)
    .where(responses.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(responses.c.id)
    .with_for_update()
)
_DELETE = delete(responses).where(responses.c.id.in_(bindparam("ids", expanding=True)))  # their items go with them
_INSERT = insert(responses).returning(responses.c.number, responses.c.id)
