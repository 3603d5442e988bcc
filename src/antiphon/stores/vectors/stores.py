"""
Vector stores in a SQL database.

A transaction that changes a store and its files writes the store's row first, and locks files in the order of their
numbers, so that servers that share the database never deadlock.
"""

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import asdict
from sqlalchemy import ColumnElement, RowMapping, Update, and_, case, delete, exists, func, insert, null, or_, select, update
from sqlalchemy.sql.dml import ReturningUpdate

from antiphon.records import FileBatchRecord, IndexedFileRecord, IndexingStatus, VectorStoreRecord, VectorStoreUsage
from antiphon.stores.database.connection import TimedConnection
from antiphon.stores.database.database import Database
from antiphon.stores.database.schema import (
    has_nul,
    lock_rows,
    vector_store_batches,
    vector_store_files,
    vector_store_parts,
    vector_stores,
)
from antiphon.stores.vector_stores import ERASE_FILES, IndexedFilePage, PageCursor, VectorStoreChanges, VectorStorePage
from antiphon.stores.vectors.rows import (
    SELECT_FILES,
    SELECT_STORES,
    file_row,
    owned_store,
    read_counts,
    read_page,
    read_stores,
    store_row,
    to_batch,
    to_file,
)

_stores, _files, _batches = vector_stores.c, vector_store_files.c, vector_store_batches.c

_ROWS = 500
"""The most rows in one statement."""


def lock_files(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    """The condition that a file is among those that meet others, which are locked in order first."""
    query = select(_files.number).where(*conditions).order_by(_files.number)
    return _files.number.in_(lock_rows(query, skips_locked=False))


def _stop_indexing(condition: ColumnElement[bool]) -> ReturningUpdate[tuple[int]]:
    is_meant = lock_files(_files.status == "in_progress", condition)
    values = {"status": "cancelled", "owner": null(), "chunk_count": 0, "usage_bytes": 0}
    return update(vector_store_files).where(is_meant).values(values).returning(_files.number)


def bump_version(*conditions: ColumnElement[bool]) -> Update:
    """A statement that raises the version of stores, by which servers notice that their indexes are old."""
    return update(vector_stores).where(*conditions).values(version=_stores.version + 1)


class SqlVectorStoreRecords:
    """`VectorStoreRecords` in a SQL database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, store: VectorStoreRecord, files: Sequence[IndexedFileRecord]) -> None:
        async with self._database.write() as connection:
            statement = insert(vector_stores).values(store_row(store)).returning(_stores.number)
            await _insert_files(connection, await connection.scalar(statement), store.tenant, files)

    async def get(self, tenant: str, store_id: str) -> VectorStoreRecord | None:
        if has_nul(store_id):
            return None
        async with self._database.read_connection() as connection:
            rows = (await connection.execute(select(vector_stores).where(*owned_store(tenant, store_id)))).all()
            records = await read_stores(connection, rows)
        return records[0] if records else None

    async def page(self, tenant: str, cursor: PageCursor) -> VectorStorePage:
        async with self._database.read_connection() as connection:
            query = SELECT_STORES.where(_stores.tenant == tenant)
            rows, has_more = await read_page(connection, query, _stores.number, _stores.id, cursor)
            return VectorStorePage(tuple(await read_stores(connection, rows)), has_more)

    async def update(self, tenant: str, store_id: str, changes: VectorStoreChanges, now: int) -> bool:
        if has_nul(store_id):
            return False
        conditions = owned_store(tenant, store_id)
        values: dict[str, object] = {name: value for name, value in asdict(changes).items() if value is not UNSET}
        if (days := changes.expires_after_days) is not UNSET:
            conditions = (*conditions, _is_active(now))
            values["expires_at"] = null() if days is None else _stores.last_active_at + 86_400 * days
        # An update of no column is no statement; the id's own value changes nothing.
        statement = update(vector_stores).where(*conditions).values(values or {"id": _stores.id})
        async with self._database.write() as connection:
            return (await connection.execute(statement)).rowcount > 0

    async def touch(self, store_id: str, now: int) -> None:
        async with self._database.write() as connection:
            await connection.execute(update(vector_stores).where(_stores.id == store_id, _is_active(now)).values(_used_at(now)))

    async def delete(self, tenant: str, store_id: str) -> bool:
        if has_nul(store_id):
            return False
        statement = bump_version(*owned_store(tenant, store_id)).values(state="deleted").returning(_stores.number)
        async with self._database.write() as connection:
            number = await connection.scalar(statement)
            if number is not None:
                await connection.execute(_stop_indexing(_files.store_number == number))
        return number is not None

    async def usage(self, tenant: str) -> VectorStoreUsage:
        async with self._database.read_connection() as connection:
            count = await connection.scalar(select(func.count()).where(_stores.tenant == tenant, _stores.state != "deleted"))
            # Files of deleted stores count until they are erased, as they take room until then.
            total = await connection.scalar(select(func.coalesce(func.sum(_files.usage_bytes), 0)).where(_files.tenant == tenant))
        return VectorStoreUsage(int(count), int(total))

    async def erase(self, now: int) -> bool:
        # Each step is a transaction of its own: SQLite has one writer, and other writes come in between (docs/decisions/0051).
        is_over = and_(_stores.state == "active", _stores.expires_at <= now)
        async with self._database.write() as connection:
            await connection.execute(bump_version(is_over).values(state="expired"))
        gone_stores = select(_stores.number).where(_stores.state != "active")
        victims = select(_files.number).where(_files.store_number.in_(gone_stores)).order_by(_files.number).limit(ERASE_FILES)
        async with self._database.write() as connection:
            count = (
                await connection.execute(delete(vector_store_files).where(_files.number.in_(lock_rows(victims, skips_locked=False))))
            ).rowcount
        if count == ERASE_FILES:
            return True
        has_files = exists().where(_files.store_number == _stores.number)
        async with self._database.write() as connection:
            await connection.execute(delete(vector_stores).where(_stores.state == "deleted", ~has_files))
        return False

    # Files

    async def add_files(
        self, tenant: str, store_id: str, files: Sequence[IndexedFileRecord], *, now: int, batch: FileBatchRecord | None = None
    ) -> bool:
        if has_nul(store_id):
            return False
        statement = bump_version(*owned_store(tenant, store_id), _is_active(now)).values(_used_at(now)).returning(_stores.number)
        async with self._database.write() as connection:
            store_number = await connection.scalar(statement)
            if store_number is None:
                return False
            for start in range(0, len(files), _ROWS):
                ids = [file.file_id for file in files[start : start + _ROWS]]
                await connection.execute(
                    delete(vector_store_files).where(lock_files(_files.store_number == store_number, _files.file_id.in_(ids)))
                )
            if batch is not None:
                row = {"id": batch.id, "store_number": store_number, "created_at": batch.created_at, "is_cancelled": False}
                await connection.execute(insert(vector_store_batches), row)
            await _insert_files(connection, store_number, tenant, files)
        return True

    async def file(self, tenant: str, store_id: str, file_id: str) -> IndexedFileRecord | None:
        if has_nul(store_id + file_id):
            return None
        query = SELECT_FILES.where(*owned_store(tenant, store_id), _files.file_id == file_id)
        async with self._database.read_connection() as connection:
            row = (await connection.execute(query)).first()
        return to_file(row) if row else None

    async def page_files(
        self, tenant: str, store_id: str, cursor: PageCursor, *, status: IndexingStatus | None = None, batch_id: str | None = None
    ) -> IndexedFilePage:
        if has_nul(store_id + (batch_id or "")):
            return IndexedFilePage((), has_more=False)
        query = SELECT_FILES.where(*owned_store(tenant, store_id))
        query = query if batch_id is None else query.where(_files.batch_id == batch_id)
        filters = [] if status is None else [_files.status == status]
        async with self._database.read_connection() as connection:
            rows, has_more = await read_page(connection, query, _files.number, _files.file_id, cursor, filters)
        return IndexedFilePage(tuple(map(to_file, rows)), has_more)

    async def set_attributes(self, tenant: str, store_id: str, file_id: str, attributes: bytes) -> bool:
        return await self._change_file(tenant, store_id, file_id, attributes)

    async def remove_file(self, tenant: str, store_id: str, file_id: str) -> bool:
        return await self._change_file(tenant, store_id, file_id, None)

    async def _change_file(self, tenant: str, store_id: str, file_id: str, attributes: bytes | None) -> bool:
        """Set a file's attributes, or without them take it out."""
        if has_nul(store_id + file_id):
            return False
        async with self._database.write() as connection:
            store_number = await connection.scalar(bump_version(*owned_store(tenant, store_id)).returning(_stores.number))
            is_it = and_(_files.store_number == store_number, _files.file_id == file_id)
            change = (
                delete(vector_store_files).where(is_it)
                if attributes is None
                else update(vector_store_files).where(is_it).values(attributes=attributes)
            )
            return store_number is not None and (await connection.execute(change)).rowcount > 0

    async def remove_everywhere(self, tenant: str, file_id: str) -> None:
        if has_nul(file_id):
            return
        is_it = and_(_files.file_id == file_id, _files.tenant == tenant)
        async with self._database.read_connection() as connection:
            rows = (await connection.execute(select(_files.store_number).where(is_it).order_by(_files.store_number))).all()
        for row in rows:
            async with self._database.write() as connection:
                await connection.execute(bump_version(_stores.number == row.store_number))
                await connection.execute(delete(vector_store_files).where(is_it, _files.store_number == row.store_number))

    async def batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatchRecord | None:
        async with self._database.read_connection() as connection:
            row = await _find_batch(connection, tenant, store_id, batch_id)
            return None if row is None else to_batch(row, store_id, await read_counts(connection, batch_id))

    async def cancel_batch(self, tenant: str, store_id: str, batch_id: str) -> bool:
        async with self._database.write() as connection:
            if await _find_batch(connection, tenant, store_id, batch_id) is None:
                return False
            await connection.execute(update(vector_store_batches).where(_batches.id == batch_id).values(is_cancelled=True))
            numbers = [row.number for row in await connection.execute(_stop_indexing(_files.batch_id == batch_id))]
            await connection.execute(delete(vector_store_parts).where(vector_store_parts.c.file_number.in_(numbers)))
        return True


def _is_active(now: int) -> ColumnElement[bool]:
    # `erase` marks a store as expired some time later, so the time is compared as well.
    return and_(_stores.state == "active", or_(_stores.expires_at.is_(None), _stores.expires_at > now))


def _used_at(now: int) -> dict[str, object]:
    later = case((_stores.last_active_at > now, _stores.last_active_at), else_=now)
    expiry = case((_stores.expires_after_days.is_(None), null()), else_=later + 86_400 * _stores.expires_after_days)
    return {"last_active_at": later, "expires_at": expiry}


async def _insert_files(connection: TimedConnection, store_number: int, tenant: str, files: Sequence[IndexedFileRecord]) -> None:
    rows = [file_row(file, tenant, store_number) for file in files]
    for start in range(0, len(rows), _ROWS):
        await connection.execute(insert(vector_store_files), rows[start : start + _ROWS])


async def _find_batch(connection: TimedConnection, tenant: str, store_id: str, batch_id: str) -> RowMapping | None:
    if has_nul(store_id + batch_id):
        return None
    query = select(vector_store_batches).join(vector_stores, _stores.number == _batches.store_number)
    return (await connection.execute(query.where(*owned_store(tenant, store_id), _batches.id == batch_id))).mappings().first()
