"""
A store in a SQL database: SQLite by default, or PostgreSQL.
"""

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
from antiphon.stores.sql.schema import is_unfinished, items, responses


class PutRecord(Struct, frozen=True):
    """Keep a record."""

    record: ResponseRecord


class PutRecordIfUnfinished(Struct, frozen=True):
    """Keep a record in place of an unfinished one."""

    record: ResponseRecord


class DeleteRecord(Struct, frozen=True):
    """Forget a response."""

    tenant: str
    response_id: str


StoreWrite = PutRecord | PutRecordIfUnfinished | DeleteRecord


class StoredStatus(NamedTuple):
    """What a batch of writes needs to know of a response."""

    tenant: str
    status: str


class SqlStore:
    """
    The store behind an SQLAlchemy URL, such as `sqlite:////var/lib/antiphon/antiphon.sqlite3`.

    Args:
        numbers: where several processes are one server, a number for each, this one's first; drawn by whoever starts them.

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
        """
        Connect and bring the schema up to date; once, before anything else.

        Raises:
            ServerError: the database can't be used, with what to do about it.
        """
        await self._database.open()
        self._writer.start()

    async def close(self) -> None:
        """Finish what was asked and let go; idempotent."""
        await self._writer.stop()
        await self._database.close()

    async def put(self, record: ResponseRecord) -> None:
        """Keep `record` with its items, replacing all of an earlier record with the same id."""
        with self._database.translate_errors():
            await self._writer.write(PutRecord(record))

    async def put_if_unfinished(self, record: ResponseRecord) -> bool:
        """Put `record` in place of an unfinished one; whether there was one."""
        with self._database.translate_errors():
            return await self._writer.write(PutRecordIfUnfinished(record))

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Forget a response and its items; whether there was one."""
        if _is_impossible_id(response_id):
            return False
        with self._database.translate_errors():
            return await self._writer.write(DeleteRecord(tenant, response_id))

    async def get(self, tenant: str, response_id: str) -> ResponseRecord | None:
        """The record with all its items, or None."""
        found = await self._load_records(_ONE_QUERY, {"id": response_id, "tenant": tenant})
        return found[0] if found else None

    async def chain(self, tenant: str, response_id: str) -> Sequence[ResponseRecord]:
        """The response and all that it continues, oldest first."""
        found = await self._load_records(_CHAIN_QUERY, {"id": response_id, "tenant": tenant})
        if found and (missing := found[0].previous_response_id) is not None:
            raise chain_too_long_error(response_id) if len(found) == MAX_CHAIN_LENGTH else MissingAncestor(missing)
        return found

    async def orphans(self) -> Sequence[ResponseRecord]:
        """Every tenant's unfinished records that no living server works on, in the order they were put."""
        await self._database.register()  # so that this server is among the living
        return await self._load_records(self._orphans_query, {"living": self._database.backend.live_servers})

    async def item(self, tenant: str, item_id: str) -> ItemRecord | None:
        """One item by its id; the one put last where the id was used more than once."""
        if _is_impossible_id(item_id):
            return None
        async with self._database.read_connection() as connection:
            row = (await connection.execute(_SELECT_ITEM, {"tenant": tenant, "id": item_id})).first()
        return _item(row) if row else None

    async def list_items(
        self, tenant: str, response_id: str, *, direction: Direction, after: str | None, limit: int, order: SortOrder
    ) -> ItemPage | None:
        """A page of a response's items."""
        async with self._database.read_connection() as connection:
            mine = {"id": response_id, "tenant": tenant}
            number = None if _is_impossible_id(response_id) else await connection.scalar(_ONE_QUERY.numbers, mine)
            if number is None:
                return None
            page, cursor, start = _PAGE_QUERIES[order]
            of = {"number": number, "direction": direction}
            if after is not None:
                start = None if _is_impossible_id(after) else await connection.scalar(cursor, of | {"id": after})
            if start is None:
                raise UnknownCursor(after)
            rows = (await connection.execute(page, of | {"start": start, "limit": limit + 1})).all()
        return ItemPage(tuple(_item(row) for row in rows[:limit]), has_more=len(rows) > limit)

    async def _load_records(self, query: "_RecordQuery", values: Mapping[str, Any]) -> Sequence[ResponseRecord]:
        """The wanted records with their items, from one state of the database."""
        if _is_impossible_id(str(values.get("id"))):
            return ()
        async with self._database.read_connection() as connection:
            found = (await connection.execute(query.responses, values)).all()
            theirs = (await connection.execute(query.items, values)).all() if found else ()
        sorted_out: dict[int, list[ItemRecord]] = {row.number: [] for row in found}
        for row in theirs:
            sorted_out[row.response_number].append(_item(row))
        return [_record(row, sorted_out[row.number]) for row in found]

    async def _commit(self, writes: Sequence[StoreWrite]) -> Sequence[bool]:
        """Write a batch in one transaction, and say what came of each."""
        touched = {write.response_id if isinstance(write, DeleteRecord) else write.record.id for write in writes}
        async with self._database.write_transaction() as connection:
            rows = await connection.execute(_SELECT_STATUS, {"ids": [*touched]})
            gone, kept, answers = fold_writes(writes, {row.id: StoredStatus(row.tenant, row.status) for row in rows})
            if gone:
                await connection.execute(_DELETE, {"ids": [*gone]})
            if kept:
                await _insert_records(connection, kept, self._database.server_number)
        return answers


def fold_writes(writes: Iterable[StoreWrite], existing: Mapping[str, StoredStatus]) -> tuple[set[str], list[ResponseRecord], list[bool]]:
    """
    What a batch of writes comes to, so that each response is written once.

    Args:
        stored: of each response that the batch touches and the database has.

    Returns:
        The responses to remove from the database, the records to insert then in this order, and the answer to each write.
    """
    kept: dict[str, ResponseRecord] = {}
    gone: set[str] = set()

    def at_this_point(response_id: str) -> ResponseRecord | StoredStatus | None:
        return kept.get(response_id) or (None if response_id in gone else existing.get(response_id))

    def keep(record: ResponseRecord) -> None:
        kept.pop(record.id, None)  # the order is that of the last put
        kept[record.id] = record
        gone.add(record.id)

    answers = []
    for write in writes:
        match write:
            case PutRecord(record):
                keep(record)
                answers.append(True)
            case PutRecordIfUnfinished(record):
                there = at_this_point(record.id)
                answers.append(there is not None and there.status in UNFINISHED_STATUSES)
                if answers[-1]:
                    keep(record)
            case DeleteRecord(tenant, response_id):
                there = at_this_point(response_id)
                answers.append(there is not None and there.tenant == tenant)
                if answers[-1]:
                    kept.pop(response_id, None)
                    gone.add(response_id)
    return gone & existing.keys(), [*kept.values()], answers


# To and from the tables


def _is_impossible_id(id: str) -> bool:
    """Whether nothing can have that id: PostgreSQL keeps no text with a NUL, and fails when asked for one."""
    return "\0" in id


async def _insert_records(connection: AsyncConnection, records: Sequence[ResponseRecord], server_number: int) -> None:
    """Add records that are not in the database, with their items; the server numbered `me` works on those that are unfinished."""
    columns = [name for name in responses.c.keys() if name not in ("number", "owner")]
    rows = [
        {name: getattr(record, name) for name in columns} | {"owner": server_number if record.status in UNFINISHED_STATUSES else None}
        for record in records
    ]
    added = await connection.execute(_INSERT, rows)
    numbers = {row.id: row.number for row in added}
    theirs = [
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
    if theirs:
        await connection.execute(insert(items), theirs)


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


# What is asked of the database: built once, as building a statement costs more than running it


class _RecordQuery:
    """
    The questions for some responses and for their items.

    Args:
        numbers: a query for the numbers of the responses, and a `rank` to sort them by.
    """

    def __init__(self, numbers: Select[Any]) -> None:
        self.numbers = numbers
        wanted = numbers.subquery("wanted")
        self.responses = select(responses).join(wanted, wanted.c.number == responses.c.number).order_by(wanted.c.rank)
        self.items = select(items).join(wanted, wanted.c.number == items.c.response_number).order_by(wanted.c.rank, items.c.position)


def _select_one() -> Select[Any]:
    mine = (responses.c.id == bindparam("id"), responses.c.tenant == bindparam("tenant"))
    return select(responses.c.number, literal(0).label("rank")).where(*mine)


def _select_chain() -> Select[Any]:
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
_PAGE_QUERIES: dict[SortOrder, tuple[Select[Any], Select[Any], int | None]] = {
    # Where several items have the cursor's id, the last of them in the order asked, so that following the cursors always ends.
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

# Locked in one order, so that servers which share the database never wait for each other in a circle.
_SELECT_STATUS = (
    select(responses.c.id, responses.c.tenant, responses.c.status)
    .where(responses.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(responses.c.id)
    .with_for_update()
)
_DELETE = delete(responses).where(responses.c.id.in_(bindparam("ids", expanding=True)))  # their items go with them
_INSERT = insert(responses).returning(responses.c.number, responses.c.id)
