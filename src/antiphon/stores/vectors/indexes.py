"""The chunks and vectors of files in vector stores, in a SQL database, and who makes them."""

import asyncio
from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, and_, bindparam, delete, func, insert, null, or_, select, update

from antiphon.records import IndexedFileRecord, IndexingError, IndexingJob, IndexingStatus, IndexPart
from antiphon.stores.database.database import Database
from antiphon.stores.database.schema import lock_rows, vector_store_files, vector_store_parts, vector_stores
from antiphon.stores.vector_stores import VectorStoreContents
from antiphon.stores.vectors.rows import SELECT_FILES, to_file
from antiphon.stores.vectors.stores import bump_version, lock_files

_READ_ROWS = 1000
"""Rows that become records between two turns of the event loop."""

_stores, _files, _parts = vector_stores.c, vector_store_files.c, vector_store_parts.c


class SqlIndexRecords:
    """`IndexRecords` in a SQL database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lost_numbers: set[int] = set()  # maybe claimed in the database, by a write whose answer was lost
        is_lost = and_(_files.owner == bindparam("this_server"), _files.number.in_(bindparam("lost", expanding=True)))
        is_waiting = and_(_files.status == "in_progress", or_(database.backend.is_dead(_files.owner), is_lost))
        # Both may be the empty text, the tenant of a server without keys.
        is_meant = _files.tenant.not_in(bindparam("other_than", expanding=True))
        self._first_tenant = select(func.min(_files.tenant)).where(is_waiting, is_meant)
        self._next_tenant = self._first_tenant.where(_files.tenant > bindparam("after_tenant"))
        oldest = select(_files.number).where(is_waiting, _files.tenant == bindparam("of_tenant")).order_by(_files.number).limit(1)
        claim = update(vector_store_files).where(_files.number.in_(lock_rows(oldest)))
        self._claim = claim.values(owner=bindparam("new_owner")).returning(_files.number)

    def _is_ours(self, number: int) -> ColumnElement[bool]:
        return and_(_files.number == number, _files.status == "in_progress", _files.owner == self._database.server_number)

    async def claim(self, after_tenant: str = "", other_than: Collection[str] = ()) -> IndexingJob | None:
        lost_numbers = {*self._lost_numbers}
        ours = {"this_server": self._database.server_number, "lost": [*lost_numbers]}
        waiting = {"living": self._database.backend.live_servers} | ours
        search = waiting | {"other_than": [*other_than]}
        # Tenants take turns, so that one with ten thousand files keeps no other waiting (docs/decisions/0051).
        async with self._database.read_connection() as connection:
            tenant = await connection.scalar(self._next_tenant, search | {"after_tenant": after_tenant})
            if tenant is None:
                tenant = await connection.scalar(self._first_tenant, search)
        if tenant is None:
            if not other_than:
                self._lost_numbers -= lost_numbers  # none of them waits any more
            return None
        values = waiting | {"of_tenant": tenant, "new_owner": self._database.server_number}
        number = None
        try:
            async with self._database.write() as connection:
                number = await connection.scalar(self._claim, values)
                if number is None:  # another server was faster
                    return None
                row = (await connection.execute(SELECT_FILES.where(_files.number == number))).one()
        except BaseException:
            if number is not None:  # a connection may fail after the commit
                self._lost_numbers.add(number)
            raise
        self._lost_numbers.discard(number)
        return IndexingJob(tenant, to_file(row))

    async def release(self) -> None:
        is_ours = and_(_files.status == "in_progress", _files.owner == self._database.server_number)
        async with self._database.write() as connection:
            await connection.execute(update(vector_store_files).where(lock_files(is_ours)).values(owner=null()))

    async def begin_indexing(self, number: int, embedding: str) -> int | None:
        async with self._database.write() as connection:
            query = select(_files.embedding).where(self._is_ours(number)).with_for_update()
            former = await connection.scalar(query)
            if former is None:
                return None
            if former != embedding:
                await connection.execute(delete(vector_store_parts).where(_parts.file_number == number))
                change = update(vector_store_files).where(_files.number == number)
                await connection.execute(change.values(embedding=embedding, chunk_count=0, usage_bytes=0))
            return int(await connection.scalar(select(func.count()).where(_parts.file_number == number)))

    async def add_part(self, number: int, part: IndexPart) -> bool:
        usage_bytes = _files.usage_bytes + len(part.chunks) + len(part.vectors)
        sums = {"chunk_count": _files.chunk_count + part.chunk_count, "usage_bytes": usage_bytes}
        row = {
            "file_number": number,
            "position": part.position,
            "chunk_count": part.chunk_count,
            "chunks": part.chunks,
            "vectors": part.vectors,
        }
        async with self._database.write() as connection:
            if (await connection.execute(update(vector_store_files).where(self._is_ours(number)).values(sums))).rowcount == 0:
                return False
            await connection.execute(insert(vector_store_parts), row)
        return True

    async def finish(self, number: int, status: IndexingStatus, error: IndexingError | None = None) -> bool:
        values: dict[str, object] = {"status": status, "owner": None}
        values |= {"error_code": error and error.code, "error_message": error and error.message}
        if status != "completed":
            values |= {"chunk_count": 0, "usage_bytes": 0}
        store_number = select(_files.store_number).where(_files.number == number).scalar_subquery()
        async with self._database.write() as connection:
            # The store's row first, in the order of all that change files (`vectors.stores`).
            await connection.execute(bump_version(_stores.number == store_number))
            change = update(vector_store_files).where(self._is_ours(number)).values(values)
            if (await connection.execute(change)).rowcount == 0:
                return False
            if status != "completed":
                await connection.execute(delete(vector_store_parts).where(_parts.file_number == number))
        return True

    async def find_lost(self, numbers: Collection[int]) -> Collection[int]:
        is_ours = and_(_files.status == "in_progress", _files.owner == self._database.server_number)
        async with self._database.read_connection() as connection:
            rows = await connection.execute(select(_files.number).where(_files.number.in_([*numbers]), is_ours))
            return {*numbers} - {row.number for row in rows}

    async def reindex(self, store_id: str, embedding: str) -> int:
        async with self._database.write() as connection:
            number = await connection.scalar(bump_version(_stores.id == store_id, _stores.state == "active").returning(_stores.number))
            is_outdated = and_(_files.store_number == number, _files.status == "completed", _files.embedding != embedding)
            change = update(vector_store_files).where(is_outdated).values(status="in_progress", owner=null())
            return 0 if number is None else (await connection.execute(change)).rowcount

    async def contents(self, store_id: str) -> VectorStoreContents:
        query = SELECT_FILES.where(_stores.id == store_id, _files.status == "completed").order_by(_files.number)
        async with self._database.read_connection() as connection:
            version = await connection.scalar(select(_stores.version).where(_stores.id == store_id, _stores.state == "active"))
            files: list[IndexedFileRecord] = []
            rows = None if version is None else await connection.execute(query)
            while rows is not None and (chunk := rows.fetchmany(_READ_ROWS)):
                files.extend(map(to_file, chunk))
                await asyncio.sleep(0)
        return VectorStoreContents(version or 0, tuple(files))

    async def parts(self, number: int, first: int, limit: int) -> Sequence[IndexPart]:
        query = select(vector_store_parts).where(_parts.file_number == number, _parts.position >= first)
        async with self._database.read_connection() as connection:
            rows = (await connection.execute(query.order_by(_parts.position).limit(limit))).all()
        return [IndexPart(row.position, row.chunk_count, row.chunks, row.vectors) for row in rows]

    async def chunks(self, number: int, position: int) -> bytes | None:
        query = select(_parts.chunks).where(_parts.file_number == number, _parts.position == position)
        async with self._database.read_connection() as connection:
            chunks: bytes | None = await connection.scalar(query)
        return chunks
