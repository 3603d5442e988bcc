"""Rows of vector stores, their files and their batches, as records; and pages of them."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, RowMapping, Select, func, select

from antiphon.records import FileBatchRecord, FileCounts, IndexedFileRecord, IndexingError, VectorStoreRecord
from antiphon.stores.base import UnknownCursor
from antiphon.stores.database.connection import TimedConnection
from antiphon.stores.database.schema import has_nul, vector_store_files, vector_stores
from antiphon.stores.vector_stores import PageCursor

_FILE_FIELDS = (
    "number",
    "file_id",
    "filename",
    "created_at",
    "status",
    "usage_bytes",
    "attributes",
    "max_chunk_tokens",
    "overlap_tokens",
    "batch_id",
    "embedding",
    "chunk_count",
)
STORED_FILE_FIELDS = tuple(name for name in _FILE_FIELDS if name != "number")

_STORE_FIELDS = (
    "id",
    "tenant",
    "created_at",
    "last_active_at",
    "name",
    "description",
    "expires_after_days",
    "metadata",
    "state",
    "version",
)

FILE_COLUMNS = (*vector_store_files.c, vector_stores.c.id.label("store_id"))
SELECT_FILES = select(*FILE_COLUMNS).join(vector_stores, vector_stores.c.number == vector_store_files.c.store_number)
SELECT_STORES = select(vector_stores).where(vector_stores.c.state != "deleted")


def owned_store(tenant: str, store_id: str) -> tuple[ColumnElement[bool], ...]:
    """The conditions that a store is a tenant's, and not deleted."""
    return (vector_stores.c.id == store_id, vector_stores.c.tenant == tenant, vector_stores.c.state != "deleted")


def to_file(row: Row[Any]) -> IndexedFileRecord:
    """A row of `SELECT_FILES` as a record."""
    values = row._mapping
    error = None if values["error_code"] is None else IndexingError(values["error_code"], values["error_message"])
    return IndexedFileRecord(store_id=values["store_id"], error=error, **{name: values[name] for name in _FILE_FIELDS})


def to_batch(row: RowMapping, store_id: str, counts: FileCounts) -> FileBatchRecord:
    """A row of `vector_store_batches` as a record."""
    return FileBatchRecord(id=row["id"], store_id=store_id, created_at=row["created_at"], is_cancelled=row["is_cancelled"], counts=counts)


def store_row(store: VectorStoreRecord) -> dict[str, object]:
    """A vector store as a row of `vector_stores`."""
    return {name: getattr(store, name) for name in _STORE_FIELDS} | {"expires_at": store.expires_at}


def file_row(file: IndexedFileRecord, tenant: str, store_number: int) -> dict[str, object]:
    """A new file as a row of `vector_store_files`."""
    return {name: getattr(file, name) for name in STORED_FILE_FIELDS} | {"tenant": tenant, "store_number": store_number}


async def read_stores(connection: TimedConnection, rows: Sequence[Row[Any]]) -> list[VectorStoreRecord]:
    """Rows of `vector_stores` as records, with the counts of their files."""
    counts: dict[int, dict[str, int]] = {row.number: {} for row in rows}
    usage = dict.fromkeys(counts, 0)
    columns = vector_store_files.c
    query = select(columns.store_number, columns.status, func.count().label("count"), func.sum(columns.usage_bytes).label("bytes"))
    for row in await connection.execute(query.where(columns.store_number.in_([*counts])).group_by(columns.store_number, columns.status)):
        values = row._mapping
        counts[values["store_number"]][values["status"]] = int(values["count"])
        usage[values["store_number"]] += int(values["bytes"])
    return [
        VectorStoreRecord(
            **{name: row._mapping[name] for name in _STORE_FIELDS}, counts=FileCounts(**counts[row.number]), usage_bytes=usage[row.number]
        )
        for row in rows
    ]


async def read_counts(connection: TimedConnection, batch_id: str) -> FileCounts:
    """The counts of a batch's files."""
    columns = vector_store_files.c
    query = select(columns.status, func.count().label("count")).where(columns.batch_id == batch_id).group_by(columns.status)
    return FileCounts(**{row._mapping["status"]: int(row._mapping["count"]) for row in await connection.execute(query)})


async def read_page(
    connection: TimedConnection,
    query: Select[Any],
    number: ColumnElement[int],
    id: ColumnElement[str],
    cursor: PageCursor,
    filters: Iterable[ColumnElement[bool]] = (),
) -> tuple[Sequence[Row[Any]], bool]:
    """
    The rows of a page, and whether more follow.

    Args:
        query: for all rows of the list, and those that its cursors may name.
        number: sorts them.
        id: of a row, as cursors name it.
        filters: which of them are shown.

    Raises:
        UnknownCursor: a cursor names none of them.
    """
    page = query.where(*filters)
    is_rising = cursor.order == "asc"
    for name, is_lower_bound in ((cursor.after, is_rising), (cursor.before, not is_rising)):
        if name is not None:
            place = None if has_nul(name) else await connection.scalar(query.with_only_columns(number).where(id == name))
            if place is None:
                raise UnknownCursor(name)
            page = page.where(number > place if is_lower_bound else number < place)
    # A page that ends right before `before` is read from its end, and then turned round.
    is_backwards = cursor.before is not None and cursor.after is None
    page = page.order_by(number if is_rising != is_backwards else number.desc()).limit(cursor.limit + 1)
    rows = (await connection.execute(page)).all()
    has_more = len(rows) > cursor.limit
    rows = rows[: cursor.limit]
    return (rows[::-1] if is_backwards else rows), has_more
