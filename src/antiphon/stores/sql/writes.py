"""Writes of responses: what a batch of them changes, and how it is written."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Row, bindparam, delete, func, insert, null, select, update

from antiphon.records import BackgroundRecord, EventRun, ResponseRecord
from antiphon.stores.base import UNFINISHED_STATUSES
from antiphon.stores.sql.connection import TimedConnection
from antiphon.stores.sql.event_rows import BackgroundRows
from antiphon.stores.sql.schema import is_unfinished, items, responses

MAX_ROWS = 300
"""Rows in one statement: SQLAlchemy prepares them on the event loop, where 33,000 took half a second."""


class PutRecord(Struct, frozen=True):
    """Store a record; that of a background response with what else is stored of it."""

    record: ResponseRecord
    background: BackgroundRecord | None = None
    events: EventRun | None = None


class FinishRecord(Struct, frozen=True):
    """Change an unfinished record of this server, and add items and events to it."""

    record: ResponseRecord
    is_background: bool = False
    events: EventRun | None = None


class AppendEvents(Struct, frozen=True):
    """Add events to an unfinished record of this server; `is_repeated` where they may be stored already."""

    record: ResponseRecord
    events: EventRun
    is_repeated: bool = False


class DeleteRecord(Struct, frozen=True):
    """Delete a response."""

    tenant: str
    response_id: str


StoreWrite = PutRecord | FinishRecord | AppendEvents | DeleteRecord


class StoredStatus(NamedTuple):
    """The tenant and the status of a stored response, and whether it is this server's."""

    tenant: str
    status: str
    is_ours: bool = True


class Changes:
    """
    What a batch of writes changes: each response once, in the order of the attributes.

    Args:
        existing: the stored status of each response of the batch that the database has.

    Attributes:
        deleted_ids: responses to delete.
        updates: stored responses to change, by id; their items include those that are stored.
        new_records: responses to add, by id.
        results: of each write.
    """

    def __init__(self, writes: Iterable[StoreWrite], existing: Mapping[str, StoredStatus]) -> None:
        self._existing = existing
        self.deleted_ids: set[str] = set()
        self.updates: dict[str, ResponseRecord] = {}
        self.new_records: dict[str, ResponseRecord] = {}
        self.results = [self._add(write) for write in writes]

    def _add(self, write: StoreWrite) -> bool:
        match write:
            case PutRecord(record):
                self._remove(record.id)
                self.new_records[record.id] = record  # the order is that of the last put
                return True
            case FinishRecord(record):
                return self._finish(record)
            case AppendEvents(record):
                old = self._current(record.id)
                is_ours = old is not None and (isinstance(old, ResponseRecord) or old.is_ours)
                return is_ours and old is not None and old.tenant == record.tenant and old.status in UNFINISHED_STATUSES
            case DeleteRecord(tenant, response_id):
                old = self._current(response_id)
                if old is None or old.tenant != tenant:
                    return False
                self._remove(response_id)
                return True

    def _finish(self, record: ResponseRecord) -> bool:
        old = self._current(record.id)
        if old is None or old.tenant != record.tenant or old.status not in UNFINISHED_STATUSES:
            return False
        if isinstance(old, StoredStatus):
            if old.is_ours:
                self.updates[record.id] = record
            return old.is_ours
        target = self.new_records if record.id in self.new_records else self.updates
        target[record.id] = replace(old, status=record.status, body=record.body, items=old.items + record.items[len(old.items) :])
        return True

    def _current(self, response_id: str) -> ResponseRecord | StoredStatus | None:
        if (record := self.new_records.get(response_id) or self.updates.get(response_id)) is not None:
            return record
        return None if response_id in self.deleted_ids else self._existing.get(response_id)

    def _remove(self, response_id: str) -> None:
        self.new_records.pop(response_id, None)
        self.updates.pop(response_id, None)
        if response_id in self._existing:
            self.deleted_ids.add(response_id)


async def write_batch(connection: TimedConnection, writes: Sequence[StoreWrite], server_number: int) -> Sequence[bool]:
    """
    Perform writes within a transaction.

    Args:
        server_number: who owns the unfinished responses.

    Returns:
        The result of each write.
    """
    ids = {write.response_id if isinstance(write, DeleteRecord) else write.record.id for write in writes}
    rows: dict[str, Row[Any]] = {row.id: row for row in await connection.execute(_SELECT_STATUS, {"ids": [*ids]})}
    changes = Changes(writes, {id: StoredStatus(row.tenant, row.status, row.owner == server_number) for id, row in rows.items()})
    if changes.deleted_ids:
        await connection.execute(_DELETE, {"ids": [*changes.deleted_ids]})
    for record in changes.updates.values():
        await _update(connection, record, rows[record.id].number, server_number)
    new_numbers = await _insert_records(connection, [*changes.new_records.values()], server_number)
    numbers = {id: row.number for id, row in rows.items() if id not in changes.deleted_ids} | new_numbers
    await _background_rows(writes, changes.results, numbers).write(connection)
    return changes.results


def _background_rows(writes: Sequence[StoreWrite], results: Sequence[bool], numbers: Mapping[str, int]) -> BackgroundRows:
    rows = BackgroundRows()
    for write, is_done in zip(writes, results, strict=True):
        if isinstance(write, DeleteRecord) or not is_done or write.record.id not in numbers:  # put and deleted in one batch
            continue
        number = numbers[write.record.id]
        match write:
            case PutRecord(background=BackgroundRecord() as background):
                rows.new.append((number, background))
            case FinishRecord(is_background=True):
                rows.statuses.append((number, write.record.status))
            case AppendEvents(is_repeated=True):
                rows.repeats.append((number, write.events.first))
            case _:
                pass
        if write.events is not None:
            rows.events.append((number, write.events))
    return rows


async def _update(connection: TimedConnection, record: ResponseRecord, number: int, server_number: int) -> None:
    """Change an unfinished response, and add the items that are not stored yet."""
    owner = server_number if record.status in UNFINISHED_STATUSES else None
    values = {"new_status": record.status, "new_body": record.body, "new_owner": owner, "of_number": number, "of_owner": server_number}
    result = await connection.execute(_UPDATE, values)
    assert result.rowcount == 1, "the row was locked when its status was read"
    count = await connection.scalar(_COUNT_ITEMS, {"of_number": number})
    await _insert_items(connection, [(number, record)], skip=count)


async def _insert_records(connection: TimedConnection, records: Sequence[ResponseRecord], server_number: int) -> dict[str, int]:
    """Add new records with their items; returns the number of each."""
    all_numbers: dict[str, int] = {}
    columns = [name for name in responses.c.keys() if name not in ("number", "owner")]
    for start in range(0, len(records), MAX_ROWS):
        chunk = records[start : start + MAX_ROWS]
        rows = [
            {name: getattr(record, name) for name in columns} | {"owner": server_number if record.status in UNFINISHED_STATUSES else None}
            for record in chunk
        ]
        numbers = {row.id: row.number for row in await connection.execute(_INSERT, rows)}
        await _insert_items(connection, [(numbers[record.id], record) for record in chunk])
        all_numbers |= numbers
    return all_numbers


async def _insert_items(connection: TimedConnection, records: Iterable[tuple[int, ResponseRecord]], skip: int = 0) -> None:
    """Add the items of responses, by number, without the first `skip` of each."""
    rows: list[dict[str, object]] = []
    for number, record in records:
        for position in range(skip, len(record.items)):
            item = record.items[position]
            rows.append(
                {
                    "response_number": number,
                    "position": position,
                    "tenant": record.tenant,
                    "id": item.id,
                    "direction": item.direction,
                    "body": item.body,
                }
            )
            if len(rows) == MAX_ROWS:
                await connection.execute(_INSERT_ITEMS, rows)
                await asyncio.sleep(0)  # asyncpg may not wait at all
                rows = []
    if rows:
        await connection.execute(_INSERT_ITEMS, rows)


# Rows are locked in one order, so that servers that share the database never deadlock.
_SELECT_STATUS = (
    select(responses.c.number, responses.c.id, responses.c.tenant, responses.c.status, responses.c.owner)
    .where(responses.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(responses.c.id)
    .with_for_update()
)
_DELETE = delete(responses).where(responses.c.id.in_(bindparam("ids", expanding=True)))  # their items go with them
_INSERT = insert(responses).returning(responses.c.number, responses.c.id)
_INSERT_ITEMS = insert(items)
_UPDATE = (
    update(responses)
    .where(responses.c.number == bindparam("of_number"), responses.c.owner == bindparam("of_owner"), is_unfinished)
    .values(status=bindparam("new_status"), body=bindparam("new_body"), owner=bindparam("new_owner"))
)
_COUNT_ITEMS = select(func.coalesce(func.max(items.c.position) + 1, 0)).where(items.c.response_number == bindparam("of_number"))

WRITE_OFF = (
    update(responses)
    .where(responses.c.id == bindparam("of_id"), is_unfinished)
    .values(status=bindparam("new_status"), body=bindparam("new_body"), owner=null())
)
"""Ends a response; to be narrowed to an orphan."""
