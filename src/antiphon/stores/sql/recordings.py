"""Records of recorded sessions in a SQL database."""

from collections.abc import Sequence

from msgspec.structs import asdict
from sqlalchemy import ColumnElement, RowMapping, bindparam, delete, func, insert, select, update

from antiphon.records import SessionRecord
from antiphon.stores.base import SessionPage, SortOrder, UnknownCursor
from antiphon.stores.database.database import Database
from antiphon.stores.database.schema import has_nul, sessions

_COLUMNS = [column for column in sessions.c if column.name != "number"]
_ADD = insert(sessions)
_UPDATE = update(sessions).where(sessions.c.id == bindparam("session_id"))
_OLDEST = select(*_COLUMNS).where(sessions.c.state != "live").order_by(sessions.c.number).limit(bindparam("limit"))
_LIVE = select(*_COLUMNS).where(sessions.c.state == "live").order_by(sessions.c.number)
_TOTAL = select(func.coalesce(func.sum(sessions.c.bytes), 0))


class SqlSessionStore:
    """A `SessionStore` in a SQL database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, session: SessionRecord) -> None:
        values = asdict(session)
        async with self._database.write() as connection:
            # Changed in place, so that it keeps its number, which is its place in the list.
            result = await connection.execute(_UPDATE.values(values), {"session_id": session.id})
            if not result.rowcount:
                await connection.execute(_ADD, values)

    async def get(self, tenant: str | None, session_id: str) -> SessionRecord | None:
        if has_nul(session_id):
            return None
        async with self._database.read_connection() as connection:
            row = (
                (await connection.execute(select(*_COLUMNS).where(*_tenant_filter(tenant), sessions.c.id == session_id))).mappings().first()
            )
        return _session(row) if row else None

    async def page(self, tenant: str | None, *, after: str | None, limit: int, order: SortOrder) -> SessionPage:
        number = sessions.c.number
        query = select(*_COLUMNS).where(*_tenant_filter(tenant)).order_by(number if order == "asc" else number.desc()).limit(limit + 1)
        async with self._database.read_connection() as connection:
            if after is not None:
                cursor = select(number).where(*_tenant_filter(tenant), sessions.c.id == after)
                start = None if has_nul(after) else await connection.scalar(cursor)
                if start is None:
                    raise UnknownCursor(after)
                query = query.where(number > start if order == "asc" else number < start)
            rows = (await connection.execute(query)).mappings().all()
        return SessionPage(tuple(_session(row) for row in rows[:limit]), has_more=len(rows) > limit)

    async def delete(self, tenant: str | None, session_id: str) -> bool:
        if has_nul(session_id):
            return False
        async with self._database.write() as connection:
            result = await connection.execute(delete(sessions).where(*_tenant_filter(tenant), sessions.c.id == session_id))
        return result.rowcount > 0

    async def oldest(self, limit: int) -> Sequence[SessionRecord]:
        async with self._database.read_connection() as connection:
            return [_session(row) for row in (await connection.execute(_OLDEST, {"limit": limit})).mappings()]

    async def live(self) -> Sequence[SessionRecord]:
        async with self._database.read_connection() as connection:
            return [_session(row) for row in (await connection.execute(_LIVE)).mappings()]

    async def total_bytes(self) -> int:
        async with self._database.read_connection() as connection:
            return int(await connection.scalar(_TOTAL) or 0)


def _tenant_filter(tenant: str | None) -> Sequence[ColumnElement[bool]]:
    return () if tenant is None else (sessions.c.tenant == tenant,)


def _session(row: RowMapping) -> SessionRecord:
    return SessionRecord(**row)
