"""Records of uploaded files in a SQL database."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from msgspec.structs import asdict
from sqlalchemy import ColumnElement, Row, and_, delete, func, insert, or_, select, update

from antiphon.records import FileRecord
from antiphon.stores.base import UnknownCursor
from antiphon.stores.database.database import Database
from antiphon.stores.database.schema import files, has_nul
from antiphon.stores.files import FilePage, FileUsage
from antiphon.stores.sql.conversations import READ_ROWS

_COLUMNS = [column for column in files.c if column.name not in ("number", "owner")]
_ADD = insert(files)


class SqlFileStore:
    """A `FileStore` in a SQL database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        is_orphaned = and_(files.c.status == "uploading", database.backend.is_dead(files.c.owner))
        self._orphans_query = select(*_COLUMNS).where(is_orphaned).order_by(files.c.number)

    async def add(self, file: FileRecord) -> None:
        async with self._database.write() as connection:
            await connection.execute(_ADD, asdict(file) | {"owner": self._database.server_number})

    async def complete(self, file: FileRecord) -> bool:
        statement = update(files).where(files.c.id == file.id, files.c.status == "uploading").values(asdict(file) | {"owner": None})
        async with self._database.write() as connection:
            return (await connection.execute(statement)).rowcount > 0

    async def get(self, tenant: str, file_id: str, now: int) -> FileRecord | None:
        if has_nul(file_id):
            return None
        query = select(*_COLUMNS).where(files.c.id == file_id, files.c.tenant == tenant, _is_visible(now))
        async with self._database.read_connection() as connection:
            row = (await connection.execute(query)).first()
        return _file(row) if row else None

    async def get_all(self, tenant: str, file_ids: Collection[str], now: int) -> Mapping[str, FileRecord]:
        ids = [file_id for file_id in file_ids if not has_nul(file_id)]
        query = select(*_COLUMNS).where(files.c.tenant == tenant, _is_visible(now))
        records: dict[str, FileRecord] = {}
        async with self._database.read_connection() as connection:
            for start in range(0, len(ids), READ_ROWS):
                rows = await connection.execute(query.where(files.c.id.in_(ids[start : start + READ_ROWS])))
                records |= {row.id: _file(row) for row in rows}
        return records

    async def page(
        self, tenant: str, *, purpose: str | None, now: int, after: str | None, limit: int, order: Literal["asc", "desc"]
    ) -> FilePage:
        number = files.c.number
        visible = (files.c.tenant == tenant, _is_visible(now))
        query = select(*_COLUMNS).where(*visible).order_by(number if order == "asc" else number.desc()).limit(limit + 1)
        if purpose is not None:
            query = query.where(files.c.purpose == purpose)
        async with self._database.read_connection() as connection:
            if after is not None:
                cursor = select(number).where(*visible, files.c.id == after)
                start = None if has_nul(after) else await connection.scalar(cursor)
                if start is None:
                    raise UnknownCursor(after)
                query = query.where(number > start if order == "asc" else number < start)
            # After the cursor: an unknown one is an error whatever the purpose.
            if purpose is not None and has_nul(purpose):
                return FilePage((), has_more=False)
            result = await connection.execute(query)
            records: list[FileRecord] = []
            while rows := result.fetchmany(READ_ROWS):
                records += map(_file, rows)
                await asyncio.sleep(0)
        return FilePage(tuple(records[:limit]), has_more=len(records) > limit)

    async def hide(self, tenant: str, file_id: str, now: int) -> bool:
        if has_nul(file_id):
            return False
        condition = (files.c.id == file_id, files.c.tenant == tenant, _is_visible(now))
        async with self._database.write() as connection:
            return (await connection.execute(update(files).where(*condition).values(status="deleted"))).rowcount > 0

    async def remove(self, file_id: str) -> None:
        async with self._database.write() as connection:
            await connection.execute(delete(files).where(files.c.id == file_id))

    async def usage(self, tenant: str, key_id: str | None = None) -> FileUsage:
        counts = (func.count(files.c.number).label("count"), func.coalesce(func.sum(files.c.bytes), 0).label("bytes"))
        query = select(*counts).where(files.c.tenant == tenant)
        if key_id is not None:
            query = query.where(files.c.key_id == key_id)
        async with self._database.read_connection() as connection:
            row = (await connection.execute(query)).mappings().one()
        return FileUsage(int(row["count"]), int(row["bytes"]))

    async def disposable(self, now: int, begun_before: int, limit: int) -> Sequence[FileRecord]:
        is_stale = and_(files.c.status == "uploading", files.c.created_at < begun_before)
        query = select(*_COLUMNS).where(or_(files.c.status == "deleted", files.c.expires_at <= now, is_stale))
        async with self._database.read_connection() as connection:
            return [_file(row) for row in await connection.execute(query.order_by(files.c.number).limit(limit))]

    async def orphans(self) -> Sequence[FileRecord]:
        await self._database.check()  # so that this server counts as living
        async with self._database.read_connection() as connection:
            rows = await connection.execute(self._orphans_query, {"living": self._database.backend.live_servers})
            return [_file(row) for row in rows]


def _is_visible(now: int) -> ColumnElement[bool]:
    return and_(files.c.status == "processed", or_(files.c.expires_at.is_(None), files.c.expires_at > now))


def _file(row: Row[Any]) -> FileRecord:
    return FileRecord(**row._mapping)
