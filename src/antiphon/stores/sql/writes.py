"""Writes of responses: what a batch of them changes, and how it is written."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Row, bindparam, delete, func, insert, null, select, update

from antiphon.errors import conversation_lock_lost
from antiphon.records import BackgroundRecord, ConversationTurn, EventRun, ResponseRecord
from antiphon.stores.base import UNFINISHED_STATUSES
from antiphon.stores.database.connection import TimedConnection
from antiphon.stores.database.schema import background_responses, has_nul, is_unfinished, items, response_events, responses
from antiphon.stores.sql.conversation_writes import (
    MAX_ROWS,
    ConversationChanges,
    ConversationWrite,
    LockRules,
    WriteResult,
    conversation_id_of,
)
from antiphon.stores.sql.webhook_outbox import WebhookOutbox


class PutRecord(Struct, frozen=True):
    """Store a record, and the turn that ends with it; that of a background response with what else is stored of it."""

    record: ResponseRecord
    turn: ConversationTurn | None = None
    background: BackgroundRecord | None = None
    events: EventRun | None = None


class FinishRecord(Struct, frozen=True):
    """Change an unfinished record of this server, and add items and events to it; store the turn that ends with it."""

    record: ResponseRecord
    turn: ConversationTurn | None = None
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


RecordWrite = PutRecord | FinishRecord | AppendEvents | DeleteRecord
StoreWrite = RecordWrite | ConversationWrite


class BackgroundRows:
    """
    What a batch of writes adds to the rows of background responses, by number of the response.

    Attributes:
        new: background responses.
        events: to add.
        repeats: the first events of those that may be stored already.
        statuses: of responses that have begun or ended.
    """

    def __init__(self) -> None:
        self.new: list[tuple[int, BackgroundRecord]] = []
        self.events: list[tuple[int, EventRun]] = []
        self.repeats: list[tuple[int, int]] = []
        self.statuses: list[tuple[int, str]] = []

    async def write(self, connection: TimedConnection, outbox: WebhookOutbox) -> None:
        """Write them, within a transaction."""
        if self.new:
            await connection.execute(_INSERT_BACKGROUND, [_background_row(number, background) for number, background in self.new])
        # Before events are added: what an earlier attempt may have left has the same numbers.
        for number, first in self.repeats:
            await connection.execute(_DELETE_EVENTS_FROM, {"of_number": number, "of_first": first})
        if self.events:
            await connection.execute(_INSERT_EVENTS, [event_row(number, events) for number, events in self.events])
        await note_status(connection, self.statuses, outbox)


async def note_status(connection: TimedConnection, changes: Sequence[tuple[int, str]], outbox: WebhookOutbox) -> None:
    """Note that responses, by number, have begun or ended, within a transaction that stores their status."""
    for number, status in changes:
        if status in UNFINISHED_STATUSES:
            await connection.execute(_BEGIN_BACKGROUND, {"of_number": number})
        else:
            await connection.execute(_END_BACKGROUND, {"of_number": number, "now": int(time.time())})
    await outbox.add(connection, [number for number, status in changes if status not in UNFINISHED_STATUSES])


def event_row(number: int, events: EventRun) -> dict[str, object]:
    """The row of events of the response with that number."""
    return {"response_number": number, "first": events.first, "event_count": events.count, "body": events.body}


def _background_row(number: int, background: BackgroundRecord) -> dict[str, object]:
    return {
        "response_number": number,
        "key_id": background.key_id,
        "request": background.request,
        "is_streamed": background.is_streamed,
        "is_expired": False,
        "event_bytes": 0,
        "ended_at": None,
    }


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

    def __init__(self, writes: Iterable[RecordWrite], existing: Mapping[str, StoredStatus]) -> None:
        self._existing = existing
        self.deleted_ids: set[str] = set()
        self.updates: dict[str, ResponseRecord] = {}
        self.new_records: dict[str, ResponseRecord] = {}
        self.results = [self._add(write) for write in writes]

    def _add(self, write: RecordWrite) -> bool:
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
        target[record.id] = replace(
            old, status=record.status, body=record.body, notes=record.notes, items=old.items + record.items[len(old.items) :]
        )
        return True

    def is_gone(self, response_id: str) -> bool:
        """Whether there is no such response after all writes."""
        return self._current(response_id) is None

    def _current(self, response_id: str) -> ResponseRecord | StoredStatus | None:
        if (record := self.new_records.get(response_id) or self.updates.get(response_id)) is not None:
            return record
        return None if response_id in self.deleted_ids else self._existing.get(response_id)

    def _remove(self, response_id: str) -> None:
        self.new_records.pop(response_id, None)
        self.updates.pop(response_id, None)
        if response_id in self._existing:
            self.deleted_ids.add(response_id)


async def write_batch(
    connection: TimedConnection, writes: Sequence[StoreWrite], server_number: int, lock_rules: LockRules, outbox: WebhookOutbox
) -> Sequence[WriteResult]:
    """
    Perform writes within a transaction.

    Args:
        server_number: who owns the unfinished responses.
        lock_rules: says whose locks count.
        outbox: gets the background responses that end.

    Returns:
        The result of each write.
    """
    record_writes = [write for write in writes if isinstance(write, RecordWrite)]
    rows = await _lock_responses(connection, record_writes)
    conversations = ConversationChanges(connection, lock_rules, server_number)
    await conversations.lock_rows(conversation_id for write in writes if (conversation_id := _conversation_id(write)) is not None)
    # Of a response that lost its conversation to another one nothing is stored, and it fails (docs/decisions/0025).
    lost_turns = {turn.response_id for write in record_writes if (turn := _turn(write)) is not None and conversations.is_lost(turn)}
    kept_writes = [write for write in record_writes if (turn := _turn(write)) is None or turn.response_id not in lost_turns]
    changes = Changes(kept_writes, {id: StoredStatus(row.tenant, row.status, row.owner == server_number) for id, row in rows.items()})
    # Before others are added: a record that replaces one has its id.
    if changes.deleted_ids:
        await connection.execute(_DELETE, {"ids": [*changes.deleted_ids]})
    for record in changes.updates.values():
        await _update(connection, record, rows[record.id].number, server_number)
    new_records = [*changes.new_records.values()]
    new_numbers = await _insert_records(connection, new_records, await _roots(connection, new_records), server_number)
    numbers = {id: row.number for id, row in rows.items() if id not in changes.deleted_ids} | new_numbers
    await _background_rows(kept_writes, changes.results, numbers).write(connection, outbox)
    record_results = iter(changes.results)
    results: list[WriteResult] = []
    for write in writes:
        if not isinstance(write, RecordWrite):
            results.append(await conversations.perform(write))
        elif (turn := _turn(write)) is not None and turn.response_id in lost_turns:
            results.append(conversation_lock_lost())
        else:
            is_written = next(record_results)
            if turn is not None and isinstance(write, PutRecord | FinishRecord):
                await conversations.end_turn(turn if is_written or changes.is_gone(write.record.id) else replace(turn, items=()))
            results.append(is_written)
    return results


async def _lock_responses(connection: TimedConnection, writes: Iterable[RecordWrite]) -> dict[str, Row[Any]]:
    ids = {write.response_id if isinstance(write, DeleteRecord) else write.record.id for write in writes}
    return {row.id: row for row in await connection.execute(_SELECT_STATUS, {"ids": [*ids]})} if ids else {}


def _turn(write: RecordWrite) -> ConversationTurn | None:
    return write.turn if isinstance(write, PutRecord | FinishRecord) else None


def _conversation_id(write: StoreWrite) -> str | None:
    if not isinstance(write, RecordWrite):
        return conversation_id_of(write)
    turn = _turn(write)
    return turn.conversation_id if turn is not None else None


def _background_rows(writes: Sequence[RecordWrite], results: Sequence[bool], numbers: Mapping[str, int]) -> BackgroundRows:
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
    values = {"new_status": record.status, "new_body": record.body, "new_notes": record.notes, "new_owner": owner}
    values |= {"of_number": number, "of_owner": server_number}
    result = await connection.execute(_UPDATE, values)
    assert result.rowcount == 1, "the row was locked when its status was read"
    await add_items(connection, record, number)


async def add_items(connection: TimedConnection, record: ResponseRecord, number: int) -> None:
    """Add the items of a stored response, by number, that are not stored yet."""
    count = await connection.scalar(_COUNT_ITEMS, {"of_number": number})
    await _insert_items(connection, [(number, record)], skip=count)


async def _roots(connection: TimedConnection, records: Sequence[ResponseRecord]) -> dict[str, str]:
    """The root of the tree of each new record, by its id."""
    new_ids = {record.id for record in records}
    known_ids = {id for record in records if (id := record.previous_response_id or record.branch_of)} - new_ids
    known_ids = {id for id in known_ids if not has_nul(id)}
    rows = await connection.execute(_SELECT_ROOTS, {"ids": [*known_ids]}) if known_ids else ()
    roots = {(row.tenant, row.id): row.root_id or row.id for row in rows}
    # What continues a response that is gone has that one's id as its root, as have all others that continue it.
    for record in records:
        previous = record.previous_response_id
        root = roots.get((record.tenant, previous or record.branch_of or ""))
        roots[record.tenant, record.id] = root or previous or record.id
    return {record.id: roots[record.tenant, record.id] for record in records}


async def _insert_records(
    connection: TimedConnection, records: Sequence[ResponseRecord], roots: Mapping[str, str], server_number: int
) -> dict[str, int]:
    """Add new records with their items; returns the number of each."""
    all_numbers: dict[str, int] = {}
    columns = [name for name in responses.c.keys() if name not in ("number", "owner", "root_id", "is_indexed")]
    for start in range(0, len(records), MAX_ROWS):
        chunk = records[start : start + MAX_ROWS]
        rows = [
            {name: getattr(record, name) for name in columns}
            | {"owner": server_number if record.status in UNFINISHED_STATUSES else None, "root_id": roots[record.id]}
            for record in chunk
        ]
        # By their ids: `RETURNING` promises no order.
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
                await asyncio.sleep(0)  # let the loop serve others: asyncpg may send without waiting at all
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
_SELECT_ROOTS = select(responses.c.id, responses.c.tenant, responses.c.root_id).where(responses.c.id.in_(bindparam("ids", expanding=True)))
_DELETE = delete(responses).where(responses.c.id.in_(bindparam("ids", expanding=True)))  # their items go with them
_INSERT = insert(responses).returning(responses.c.number, responses.c.id)
_INSERT_ITEMS = insert(items)
_UPDATE = (
    update(responses)
    .where(responses.c.number == bindparam("of_number"), responses.c.owner == bindparam("of_owner"), is_unfinished)
    .values(status=bindparam("new_status"), body=bindparam("new_body"), notes=bindparam("new_notes"), owner=bindparam("new_owner"))
)
_COUNT_ITEMS = select(func.coalesce(func.max(items.c.position) + 1, 0)).where(items.c.response_number == bindparam("of_number"))

_INSERT_BACKGROUND = insert(background_responses)
_INSERT_EVENTS = insert(response_events)
_DELETE_EVENTS_FROM = delete(response_events).where(
    response_events.c.response_number == bindparam("of_number"), response_events.c.first >= bindparam("of_first")
)
_ONE_BACKGROUND = update(background_responses).where(background_responses.c.response_number == bindparam("of_number"))
_BEGIN_BACKGROUND = _ONE_BACKGROUND.values(request=null())
_event_bytes = (
    select(func.coalesce(func.sum(func.length(response_events.c.body)), 0))
    .where(response_events.c.response_number == bindparam("of_number"))
    .scalar_subquery()
)
_END_BACKGROUND = _ONE_BACKGROUND.values(request=null(), ended_at=bindparam("now"), event_bytes=_event_bytes)

WRITE_OFF = (
    update(responses)
    .where(responses.c.id == bindparam("of_id"), is_unfinished)
    .values(status=bindparam("new_status"), body=bindparam("new_body"), notes=bindparam("new_notes"), owner=null())
)
"""Ends a response; to be narrowed to an orphan."""


def end_values(record: ResponseRecord) -> dict[str, object]:
    """What `WRITE_OFF` writes, and of which response."""
    return {"of_id": record.id, "new_status": record.status, "new_body": record.body, "new_notes": record.notes}
