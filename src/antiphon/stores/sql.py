"""
A store in a SQL database: SQLite by default; every other one that SQLAlchemy's asyncio drivers speak to is only another URL.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from sqlalchemy import Row, Select, bindparam, delete, func, insert, literal, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError, SQLAlchemyError, StatementError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from antiphon.errors import OurFault
from antiphon.records import Direction, ItemRecord, ResponseRecord
from antiphon.stores import sqlite
from antiphon.stores.base import LONGEST_CHAIN, MissingAncestor, Order, Page, UnknownCursor, chain_too_long
from antiphon.stores.schema import NewerSchema, bring_up_to_date, is_unfinished, items, responses
from antiphon.stores.writer import GroupCommit

_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
_CONNECTIONS = 8  # reads that can be under way at the same time, and the writer


class Put(Struct, frozen=True):
    """Keep a record."""

    record: ResponseRecord


class Delete(Struct, frozen=True):
    """Forget a response."""

    tenant: str
    response_id: str


Write = Put | Delete


class Sql:
    """
    The store behind an SQLAlchemy URL, such as `sqlite:////var/lib/antiphon/antiphon.sqlite3`.

    Raises:
        OurFault: the URL can't be used.
    """

    def __init__(self, url: str) -> None:
        self._url = _usable(url)
        self._place = self._url.database if self._is_sqlite else self._url.render_as_string(hide_password=True)
        self._engine = _engine(self._url)
        self._writer: GroupCommit[Write] = GroupCommit(self._commit, lambda error: isinstance(error, OperationalError))
        if self._is_sqlite:
            sqlite.prepare(self._engine.sync_engine)

    @property
    def _is_sqlite(self) -> bool:
        return self._url.get_backend_name() == "sqlite"

    async def open(self) -> None:
        """
        Connect and bring the schema up to date; once, before anything else.

        Raises:
            OurFault: the database can't be used, with what to do about it.
        """
        try:
            with self._telling():
                if self._is_sqlite:
                    sqlite.make_private_file(Path(self._url.database or ""))
                async with self._engine.execution_options(writes=True).begin() as connection:
                    await connection.run_sync(bring_up_to_date)
        except BaseException:
            await self._engine.dispose()
            raise
        self._writer.start()

    async def close(self) -> None:
        """Finish what was asked and let go; idempotent."""
        await self._writer.stop()
        await self._engine.dispose()

    async def put(self, record: ResponseRecord) -> None:
        """Keep `record` with its items, replacing all of an earlier record with the same id."""
        with self._telling():
            await self._writer.write(Put(record))

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Forget a response and its items; whether there was one."""
        with self._telling():
            return await self._writer.write(Delete(tenant, response_id))

    async def get(self, tenant: str, response_id: str) -> ResponseRecord | None:
        """The record with all its items, or None."""
        found = await self._records(_ONE, {"id": response_id, "tenant": tenant})
        return found[0] if found else None

    async def chain(self, tenant: str, response_id: str) -> Sequence[ResponseRecord]:
        """The response and all that it continues, oldest first."""
        found = await self._records(_CHAIN, {"id": response_id, "tenant": tenant})
        if found and (missing := found[0].previous_response_id) is not None:
            raise chain_too_long(response_id) if len(found) == LONGEST_CHAIN else MissingAncestor(missing)
        return found

    async def unfinished(self) -> Sequence[ResponseRecord]:
        """Every tenant's records that nobody has finished, in the order they were put."""
        return await self._records(_UNFINISHED, {})

    async def item(self, tenant: str, item_id: str) -> ItemRecord | None:
        """One item by its id; the one put last where the id was used more than once."""
        with self._telling():
            async with self._engine.connect() as connection:
                row = (await connection.execute(_ITEM, {"tenant": tenant, "id": item_id})).first()
        return _item(row) if row else None

    async def list_items(
        self, tenant: str, response_id: str, *, direction: Direction, after: str | None, limit: int, order: Order
    ) -> Page | None:
        """A page of a response's items."""
        with self._telling():
            async with self._engine.connect() as connection:
                number = await connection.scalar(_ONE.numbers, {"id": response_id, "tenant": tenant})
                if number is None:
                    return None
                page, cursor, start = _PAGES[order]
                of = {"number": number, "direction": direction}
                if after is not None:
                    start = await connection.scalar(cursor, of | {"id": after})
                if start is None:
                    raise UnknownCursor(after)
                rows = (await connection.execute(page, of | {"start": start, "limit": limit + 1})).all()
        return Page(tuple(_item(row) for row in rows[:limit]), has_more=len(rows) > limit)

    async def _records(self, wanted: "_Wanted", values: Mapping[str, Any]) -> Sequence[ResponseRecord]:
        """The wanted records with their items, from one state of the database."""
        with self._telling():
            async with self._engine.connect() as connection:
                found = (await connection.execute(wanted.responses, values)).all()
                theirs = (await connection.execute(wanted.items, values)).all() if found else ()
        sorted_out: dict[int, list[ItemRecord]] = {row.number: [] for row in found}
        for row in theirs:
            sorted_out[row.response_number].append(_item(row))
        return [_record(row, sorted_out[row.number]) for row in found]

    async def _commit(self, writes: Sequence[Write]) -> Sequence[bool]:
        """Write a batch in one transaction; for every deletion whether there was something to delete."""
        touched = {write.record.id if isinstance(write, Put) else write.response_id for write in writes}
        async with self._engine.execution_options(writes=True).begin() as connection:
            rows = await connection.execute(_OWNERS, {"ids": [*touched]})
            stored = {row.id: row.tenant for row in rows}
            gone, kept, answers = fold(writes, stored)
            if gone:
                await connection.execute(_DELETE, {"ids": [*gone]})
            if kept:
                await _insert(connection, kept)
        return answers

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Turn the database's errors into faults that say what, where, and what to do."""
        try:
            yield
        except NewerSchema as error:
            raise OurFault(
                f"The store at {self._place} was last used by a newer version of antiphon (schema {error.args[0]}). "
                "Install that version, or point `store.url` to another store."
            ) from error
        except OSError as error:
            raise OurFault(f"The store at {self._place} can't be opened: {error.strerror or error}.") from error
        except (SQLAlchemyError, OverflowError, ValueError) as error:
            cause = (error.orig if isinstance(error, StatementError) else None) or error  # without the statement, which explains nothing
            raise OurFault(f"The store at {self._place} {sqlite.trouble(cause) or f'failed: {cause}'}.") from error


def fold(writes: Iterable[Write], stored: Mapping[str, str]) -> tuple[set[str], list[ResponseRecord], list[bool]]:
    """
    What a batch of writes comes to, so that each response is written once.

    Args:
        stored: the tenant of each response that the batch touches and the database has.

    Returns:
        The responses to remove from the database, the records to insert then in this order, and the answer to each write.
    """
    kept: dict[str, ResponseRecord] = {}
    gone: set[str] = set()
    answers = []
    for write in writes:
        match write:
            case Put(record):
                kept.pop(record.id, None)  # the order is that of the last put
                kept[record.id] = record
                gone.add(record.id)
                answers.append(True)
            case Delete(tenant, response_id):
                in_batch = kept.get(response_id)
                owner = in_batch.tenant if in_batch else None if response_id in gone else stored.get(response_id)
                answers.append(owner == tenant)
                if owner == tenant:
                    kept.pop(response_id, None)
                    gone.add(response_id)
    return gone & stored.keys(), [*kept.values()], answers


# To and from the tables


async def _insert(connection: AsyncConnection, records: Sequence[ResponseRecord]) -> None:
    """Add records that are not in the database, with their items."""
    columns = [name for name in responses.c.keys() if name != "number"]
    added = await connection.execute(_INSERT, [{name: getattr(record, name) for name in columns} for record in records])
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


def _record(row: Row[Any], theirs: Iterable[ItemRecord]) -> ResponseRecord:
    return ResponseRecord(
        id=row.id,
        tenant=row.tenant,
        created_at=row.created_at,
        status=row.status,
        model=row.model,
        previous_response_id=row.previous_response_id,
        body=row.body,
        items=tuple(theirs),
    )


def _item(row: Row[Any]) -> ItemRecord:
    return ItemRecord(id=row.id, direction=row.direction, body=row.body)


# What is asked of the database: built once, as building a statement costs more than running it


class _Wanted:
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


def _one() -> Select[Any]:
    mine = (responses.c.id == bindparam("id"), responses.c.tenant == bindparam("tenant"))
    return select(responses.c.number, literal(0).label("rank")).where(*mine)


def _chain() -> Select[Any]:
    """A response and its ancestors, with a rank that falls by one from each to the one before it."""
    newer = _one().add_columns(responses.c.previous_response_id).cte("chain", recursive=True)
    older = responses.alias("older")
    ancestors = (
        select(older.c.number, newer.c.rank - 1, older.c.previous_response_id)
        .join(newer, older.c.id == newer.c.previous_response_id)
        .where(older.c.tenant == bindparam("tenant"), newer.c.rank > 1 - LONGEST_CHAIN)
    )
    chain = newer.union_all(ancestors)
    return select(chain.c.number, chain.c.rank)


_ONE = _Wanted(_one())
_CHAIN = _Wanted(_chain())
_UNFINISHED = _Wanted(select(responses.c.number, responses.c.number.label("rank")).where(is_unfinished))

_ITEM = (
    select(items)
    .where(items.c.tenant == bindparam("tenant"), items.c.id == bindparam("id"))
    .order_by(items.c.response_number.desc(), items.c.position.desc())
    .limit(1)
)

_OF_RESPONSE = select(items).where(items.c.response_number == bindparam("number"), items.c.direction == bindparam("direction"))
_CURSOR = _OF_RESPONSE.where(items.c.id == bindparam("id"))
_PAGES: dict[Order, tuple[Select[Any], Select[Any], int | None]] = {
    # Where several items have the cursor's id, the last of them in the order asked, so that following the cursors always ends.
    "asc": (
        _OF_RESPONSE.where(items.c.position > bindparam("start")).order_by(items.c.position).limit(bindparam("limit")),
        _CURSOR.with_only_columns(func.max(items.c.position)),
        -1,
    ),
    "desc": (
        _OF_RESPONSE.where(items.c.position < bindparam("start")).order_by(items.c.position.desc()).limit(bindparam("limit")),
        _CURSOR.with_only_columns(func.min(items.c.position)),
        2**31 - 1,
    ),
}

_OWNERS = select(responses.c.id, responses.c.tenant).where(responses.c.id.in_(bindparam("ids", expanding=True)))
_DELETE = delete(responses).where(responses.c.id.in_(bindparam("ids", expanding=True)))  # their items go with them
_INSERT = insert(responses).returning(responses.c.number, responses.c.id)


# The database itself


def _usable(url: str) -> URL:
    """The URL with an asyncio driver."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise OurFault("`store.url` is neither `sqlite`, `memory` nor an SQLAlchemy URL, such as sqlite:////folder/file.sqlite3.") from None
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise OurFault(f"`store.url` names no file: {url}. For a store in memory, set it to `memory`.")
    return parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))


def _engine(url: URL) -> AsyncEngine:
    try:
        # Parameters are hidden because they are people's words, and errors end up in logs.
        return create_async_engine(url, pool_size=_CONNECTIONS, max_overflow=0, hide_parameters=True)
    except NoSuchModuleError:
        raise OurFault(f"`store.url` asks for a database that SQLAlchemy doesn't know: {url.drivername}.") from None
    except ModuleNotFoundError as error:
        raise OurFault(f"`store.url` asks for {url.drivername}, whose driver is not installed: pip install {error.name}.") from None
