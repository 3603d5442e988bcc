"""Background responses and their events in a SQL database."""

from collections.abc import Awaitable, Callable, Collection

from sqlalchemy import BindParameter, ColumnElement, bindparam, delete, func, insert, select, update

from antiphon.records import BackgroundRecord, ConversationTurn, EventRun, ResponseRecord
from antiphon.stores.base import PAGE_BYTES, EventPage
from antiphon.stores.database.database import Database
from antiphon.stores.database.schema import background_responses, has_nul, is_unfinished, response_events, responses
from antiphon.stores.sql.webhook_outbox import WebhookOutbox
from antiphon.stores.sql.writes import WRITE_OFF, AppendEvents, FinishRecord, PutRecord, add_items, end_values, event_row, note_status

_MAX_EXPIRED = 100

_IS_IT = (responses.c.id == bindparam("id"), responses.c.tenant == bindparam("tenant"))
_GET = (
    select(background_responses, responses.c.status, responses.c.number)
    .join(responses, responses.c.number == background_responses.c.response_number)
    .where(*_IS_IT)
)
_NEXT_RUNS = (  # without their bodies, whose length databases keep beside them
    select(response_events.c.first, func.length(response_events.c.body).label("body_bytes"))
    .where(response_events.c.response_number == bindparam("number"))
    .where(response_events.c.first + response_events.c.event_count > bindparam("after") + 1)
    .order_by(response_events.c.first)
    .limit(bindparam("limit"))
    .subquery()
)
_RUN_PLACES = select(
    _NEXT_RUNS.c.first, (func.sum(_NEXT_RUNS.c.body_bytes).over(order_by=_NEXT_RUNS.c.first) - _NEXT_RUNS.c.body_bytes).label("start")
).subquery()
_EVENTS = (
    select(response_events)
    .where(response_events.c.response_number == bindparam("number"))
    .where(response_events.c.first.in_(select(_RUN_PLACES.c.first).where(_RUN_PLACES.c.start < PAGE_BYTES)))
    .order_by(response_events.c.first)
)
_NUMBER = select(responses.c.number).where(*_IS_IT)
_NEXT = select(func.coalesce(func.max(response_events.c.first + response_events.c.event_count), 0)).where(
    response_events.c.response_number == bindparam("number")
)
_OURS = select(responses.c.id).where(
    responses.c.id.in_(bindparam("ids", expanding=True)), responses.c.owner == bindparam("owner"), is_unfinished
)
_HAS_EVENTS = (background_responses.c.ended_at.is_not(None), background_responses.c.is_streamed, ~background_responses.c.is_expired)
_TOTAL = select(func.coalesce(func.sum(background_responses.c.event_bytes), 0)).where(*_HAS_EVENTS)
_OLDEST = (
    select(background_responses.c.response_number, background_responses.c.ended_at, background_responses.c.event_bytes)
    .where(*_HAS_EVENTS)
    .order_by(background_responses.c.ended_at, background_responses.c.response_number)
    .limit(_MAX_EXPIRED)
)
_NUMBERS: BindParameter[int] = bindparam("numbers", expanding=True)
# As all who write responses do: those who delete some have their events deleted afterwards.
_LOCK_RESPONSES = select(responses.c.number).where(responses.c.number.in_(_NUMBERS)).order_by(responses.c.id).with_for_update()
_DELETE_EVENTS = delete(response_events).where(response_events.c.response_number.in_(_NUMBERS))
_EXPIRE = update(background_responses).where(background_responses.c.response_number.in_(_NUMBERS)).values(is_expired=True)


class SqlBackgroundStore:
    """
    The background responses of a database.

    Args:
        write: performs a write together with all others that wait.
        is_orphaned: the condition that no living server works on a response; `orphan_values` are its parameters.
        new_outbox: for the webhooks of a transaction that ends a response.
        note_orphan: called with a response that may be owned by this server, though it does not make it.
        forget_orphan: called with a response that has ended, or that a server works on again.
    """

    def __init__(
        self,
        database: Database,
        write: Callable[[PutRecord | FinishRecord | AppendEvents], Awaitable[bool]],
        is_orphaned: ColumnElement[bool],
        orphan_values: Callable[[], dict[str, object]],
        new_outbox: Callable[[], WebhookOutbox],
        note_orphan: Callable[[str], None],
        forget_orphan: Callable[[str], None],
    ) -> None:
        self._database = database
        self._write = write
        self._orphan_values = orphan_values
        self._new_outbox = new_outbox
        self._note_orphan = note_orphan
        self._forget_orphan = forget_orphan
        self._end = WRITE_OFF.where(responses.c.tenant == bindparam("of_tenant"))
        self._end_orphan = self._end.where(is_orphaned)
        # `is_unfinished` beside the status: the index of unfinished responses serves only queries with this very text.
        self._take_over = (
            update(responses)
            .where(responses.c.id == bindparam("of_id"), is_unfinished, responses.c.status == "queued", is_orphaned)
            .values(owner=bindparam("new_owner"))
        )

    async def add(self, record: ResponseRecord, background: BackgroundRecord, events: EventRun | None) -> None:
        await self._write(PutRecord(record, background=background, events=events))

    async def append(self, record: ResponseRecord, events: EventRun, *, is_repeated: bool = False) -> bool:
        return await self._write(AppendEvents(record, events, is_repeated))

    async def finish(self, record: ResponseRecord, events: EventRun | None, turn: ConversationTurn | None = None) -> bool:
        return await self._write(FinishRecord(record, turn, is_background=True, events=events))

    async def end(self, record: ResponseRecord, closing_events: Callable[[int], EventRun], *, is_orphan: bool = False) -> bool:
        key: dict[str, object] = {"id": record.id, "tenant": record.tenant}
        values = end_values(record) | {"of_tenant": record.tenant}
        statement = self._end_orphan if is_orphan else self._end
        outbox = self._new_outbox()
        async with self._database.write() as connection:
            # The response's row is locked from here on: who appends to its events waits, and then finds it ended.
            if not (await connection.execute(statement, values | (self._orphan_values() if is_orphan else {}))).rowcount:
                return False
            row = (await connection.execute(_GET, key)).first()
            if row is not None:
                if row.is_streamed:
                    first = await connection.scalar(_NEXT, {"number": row.number})
                    await connection.execute(insert(response_events), event_row(row.number, closing_events(first)))
                await add_items(connection, record, row.number)
                await note_status(connection, [(row.number, record.status)], outbox)
        outbox.announce()
        self._forget_orphan(record.id)
        return True

    async def take_over(self, record: ResponseRecord) -> bool:
        values: dict[str, object] = {"of_id": record.id, "new_owner": self._database.server_number}
        try:
            async with self._database.write() as connection:
                is_ours = (await connection.execute(self._take_over, values | self._orphan_values())).rowcount > 0
        except BaseException:  # a connection may fail after the commit
            self._note_orphan(record.id)
            raise
        if is_ours:
            self._forget_orphan(record.id)
        return is_ours

    async def get(self, tenant: str, response_id: str) -> BackgroundRecord | None:
        if has_nul(response_id):
            return None
        async with self._database.read_connection() as connection:
            row = (await connection.execute(_GET, {"id": response_id, "tenant": tenant})).first()
        return None if row is None else BackgroundRecord(key_id=row.key_id, request=row.request, is_streamed=row.is_streamed)

    async def events(self, tenant: str, response_id: str, after: int, limit: int) -> EventPage | None:
        if has_nul(response_id):
            return None
        async with self._database.read_connection() as connection:
            row = (await connection.execute(_GET, {"id": response_id, "tenant": tenant})).first()
            if row is None or not row.is_streamed:
                return None
            # The driver of PostgreSQL refuses numbers that a 32-bit column can't hold.
            rows = await connection.execute(_EVENTS, {"number": row.number, "after": min(after, 2**31 - 2), "limit": limit})
            return EventPage(row.status, row.is_expired, tuple(EventRun(each.first, each.event_count, each.body) for each in rows))

    async def find_lost(self, response_ids: Collection[str]) -> Collection[str]:
        values = {"ids": [*response_ids], "owner": self._database.server_number}
        async with self._database.read_connection() as connection:
            ours = {row.id for row in await connection.execute(_OURS, values)}
        return {*response_ids} - ours

    async def expire(self, ended_before: int, limit_bytes: int) -> int:
        async with self._database.read_connection() as connection:
            total_bytes = await connection.scalar(_TOTAL)
            oldest = (await connection.execute(_OLDEST)).all()
        numbers: list[int] = []
        for row in oldest:
            if row.ended_at >= ended_before and total_bytes <= limit_bytes:
                break
            total_bytes -= row.event_bytes
            numbers.append(row.response_number)
        if numbers:
            async with self._database.write() as connection:
                await connection.execute(_LOCK_RESPONSES, {"numbers": numbers})
                await connection.execute(_DELETE_EVENTS, {"numbers": numbers})
                await connection.execute(_EXPIRE, {"numbers": numbers})
        return len(numbers)
