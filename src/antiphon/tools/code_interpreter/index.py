"""The records of containers and their files, in a SQLite file that processes may share. Its calls block."""

import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path

from antiphon.tools.code_interpreter.folder import FileStamp
from antiphon.tools.code_interpreter.records import Container, ContainerFile, ContainerFilePage, ContainerPage, Order
from antiphon.tools.sqlite_files import write_ahead

_SCHEMA = """
CREATE TABLE IF NOT EXISTS containers (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, name TEXT NOT NULL,
    created_at INTEGER NOT NULL, last_active_at INTEGER NOT NULL, expires_after_minutes INTEGER NOT NULL,
    memory_limit TEXT NOT NULL, bytes INTEGER NOT NULL DEFAULT 0, is_erased INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS containers_of_tenant ON containers (tenant, sequence);
CREATE TABLE IF NOT EXISTS files (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, container_id TEXT NOT NULL, path TEXT NOT NULL,
    bytes INTEGER NOT NULL, inode INTEGER NOT NULL, changed_at_ns INTEGER NOT NULL, created_at INTEGER NOT NULL,
    source TEXT NOT NULL, origin TEXT, UNIQUE (container_id, path)
);
"""

_BUSY_TIMEOUT_S = 10
_IS_RUNNING = "is_erased = 0 AND last_active_at + expires_after_minutes * 60 > :now"
_COLUMNS = f"id, tenant, name, created_at, last_active_at, expires_after_minutes, memory_limit, {_IS_RUNNING} AS is_running"
_FILE_COLUMNS = "id, container_id, path, bytes, created_at, source"


_ORDERS: dict[Order, str] = {"asc": " ORDER BY sequence", "desc": " ORDER BY sequence DESC"}


class ContainerIndex:
    """
    The records of containers and files, each call one transaction.

    Args:
        path: of the SQLite file; made if it isn't there.
    """

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        self._database.row_factory = sqlite3.Row
        write_ahead(self._database, _BUSY_TIMEOUT_S)
        # SQLite, WAL: a power failure may lose the last commits but not damage the file, and containers live for minutes.
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.executescript(_SCHEMA)
        # One for the event loop's thread, which the other's transactions don't hold up.
        self._reader = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        self._reader.row_factory = sqlite3.Row

    def close(self) -> None:
        """Close the file; idempotent."""
        self._reader.close()
        self._database.close()

    def add(self, container: Container, max_containers: int) -> bool:
        """Add a container; returns False, and adds none, if the tenant has that many that have not expired."""
        values = {
            "id": container.id,
            "tenant": container.tenant,
            "name": container.name,
            "now": container.created_at,
            "minutes": container.expires_after_minutes,
            "memory_limit": container.memory_limit,
            "limit": max_containers,
        }
        # One statement, so that two processes can't both take the last place.
        cursor = self._database.execute(
            "INSERT INTO containers (id, tenant, name, created_at, last_active_at, expires_after_minutes, memory_limit)"
            " SELECT :id, :tenant, :name, :now, :now, :minutes, :memory_limit WHERE"
            f" (SELECT COUNT(*) FROM containers WHERE tenant = :tenant AND {_IS_RUNNING}) < :limit",
            values,
        )
        return cursor.rowcount > 0

    def next_expiry(self, tenant: str, now: int) -> int:
        """When the first of a tenant's containers expires if none is used, in Unix seconds; `now` if there is none."""
        query = f"SELECT MIN(last_active_at + expires_after_minutes * 60) AS at FROM containers WHERE tenant = :tenant AND {_IS_RUNNING}"
        row = self._database.execute(query, {"tenant": tenant, "now": now}).fetchone()
        return now if row["at"] is None else int(row["at"])

    def touch(self, tenant: str, container_id: str, now: int) -> Container | None:
        """A container; used now, if it has not expired. None if there is none."""
        with self._database:
            # The write lock at once: where a transaction begins by reading, its first write fails if another process wrote meanwhile.
            self._database.execute("BEGIN IMMEDIATE")
            values = {"id": container_id, "tenant": tenant, "now": now}
            self._database.execute(
                "UPDATE containers SET last_active_at = :now"
                f" WHERE id = :id AND tenant = :tenant AND last_active_at < :now AND {_IS_RUNNING}",
                values,
            )
            row = self._database.execute(f"SELECT {_COLUMNS} FROM containers WHERE id = :id AND tenant = :tenant", values).fetchone()
        return None if row is None else _container(row)

    def find(self, tenant: str, container_id: str, now: int) -> Container | None:
        """A container, without using it; None if there is none. Reading waits for no other process."""
        row = self._reader.execute(
            f"SELECT {_COLUMNS} FROM containers WHERE id = :id AND tenant = :tenant", {"id": container_id, "tenant": tenant, "now": now}
        ).fetchone()
        return None if row is None else _container(row)

    def page(self, tenant: str, now: int, *, limit: int, order: Order, after: str | None, name: str | None) -> ContainerPage | None:
        """A page of a tenant's containers; None if `after` is not one of them."""
        condition, values = _after("containers", "tenant", tenant, order, after)
        if after is not None and not self._has("containers", "tenant", tenant, after):
            return None
        if name is not None:
            condition += " AND name = :name"
        # One more than asked for shows whether there is a next page.
        rows = self._database.execute(
            f"SELECT {_COLUMNS} FROM containers WHERE {condition}{_ORDERS[order]} LIMIT :limit",
            {**values, "now": now, "limit": limit + 1, "name": name},
        ).fetchall()
        return ContainerPage(tuple(_container(row) for row in rows[:limit]), len(rows) > limit)

    def remove(self, tenant: str, container_id: str) -> bool:
        """Forget a container and its files; returns whether there was one."""
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            cursor = self._database.execute("DELETE FROM containers WHERE id = ? AND tenant = ?", (container_id, tenant))
            if cursor.rowcount:
                self._database.execute("DELETE FROM files WHERE container_id = ?", (container_id,))
        return cursor.rowcount > 0

    def expire(self, now: int, forget_before: int) -> list[str]:
        """Mark what has expired, and forget what was last used before that time; returns the containers whose files are to go."""
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            rows = self._database.execute(f"SELECT id FROM containers WHERE is_erased = 0 AND NOT ({_IS_RUNNING})", {"now": now}).fetchall()
            self._database.executemany("UPDATE containers SET is_erased = 1, bytes = 0 WHERE id = ?", [(row["id"],) for row in rows])
            self._database.executemany("DELETE FROM files WHERE container_id = ?", [(row["id"],) for row in rows])
            self._database.execute("DELETE FROM containers WHERE is_erased = 1 AND last_active_at < ?", (forget_before,))
        return [row["id"] for row in rows]

    def living_ids(self, ids: Iterable[str], now: int) -> set[str]:
        """Those of the containers that are there and have not expired."""
        query = f"SELECT id FROM containers WHERE id = :id AND {_IS_RUNNING}"
        return {each for each in ids if self._database.execute(query, {"id": each, "now": now}).fetchone() is not None}

    def free_bytes(self, tenant: str, container_id: str, container_bytes: int, tenant_bytes: int) -> int:
        """How many bytes a container may have in all, within its own limit and what the tenant's others leave."""
        query = "SELECT COALESCE(SUM(bytes), 0) AS bytes FROM containers WHERE tenant = ? AND is_erased = 0 AND id != ?"
        others = self._database.execute(query, (tenant, container_id)).fetchone()["bytes"]
        return max(0, min(container_bytes, tenant_bytes - int(others)))

    def set_bytes(self, container_id: str, size_bytes: int) -> None:
        """Record how many bytes a container holds, which count against its tenant's limit."""
        self._database.execute("UPDATE containers SET bytes = ? WHERE id = ? AND is_erased = 0", (size_bytes, container_id))

    def file_page(self, container_id: str, *, limit: int, order: Order, after: str | None) -> ContainerFilePage | None:
        """A page of a container's files; None if `after` is not one of them."""
        condition, values = _after("files", "container_id", container_id, order, after)
        if after is not None and not self._has("files", "container_id", container_id, after):
            return None
        rows = self._database.execute(
            f"SELECT {_FILE_COLUMNS} FROM files WHERE {condition}{_ORDERS[order]} LIMIT :limit", {**values, "limit": limit + 1}
        ).fetchall()
        return ContainerFilePage(tuple(_file(row) for row in rows[:limit]), len(rows) > limit)

    def get_file(self, container_id: str, file_id: str) -> ContainerFile | None:
        """A file, or None."""
        query = f"SELECT {_FILE_COLUMNS} FROM files WHERE container_id = ? AND id = ?"
        row = self._database.execute(query, (container_id, file_id)).fetchone()
        return None if row is None else _file(row)

    def remove_file(self, container_id: str, file_id: str) -> None:
        """Delete the record of a file."""
        self._database.execute("DELETE FROM files WHERE container_id = ? AND id = ?", (container_id, file_id))

    def origins(self, container_id: str) -> set[str]:
        """The ids of uploaded files that were copied to the container."""
        rows = self._database.execute("SELECT origin FROM files WHERE container_id = ? AND origin IS NOT NULL", (container_id,))
        return {row["origin"] for row in rows}

    def stamps(self, container_id: str) -> dict[str, FileStamp]:
        """The container's files as they were last seen, by path."""
        query = "SELECT path, bytes, inode, changed_at_ns FROM files WHERE container_id = ?"
        rows = self._database.execute(query, (container_id,))
        return {row["path"]: FileStamp(row["bytes"], row["inode"], row["changed_at_ns"]) for row in rows}

    def put_file(self, file: ContainerFile, stamp: FileStamp, origin: str | None = None) -> ContainerFile | None:
        """Add a file, or record its change; a file at a known path keeps its id. None if its container is gone."""
        # The origin stays: a copy that code has changed must not be copied again over the change.
        row = self._database.execute(
            "INSERT INTO files (id, container_id, path, bytes, inode, changed_at_ns, created_at, source, origin)"
            " SELECT ?,?,?,?,?,?,?,?,? WHERE EXISTS (SELECT 1 FROM containers WHERE id = ? AND is_erased = 0)"
            " ON CONFLICT (container_id, path) DO UPDATE SET bytes = excluded.bytes, inode = excluded.inode, source = excluded.source,"
            f" changed_at_ns = excluded.changed_at_ns, origin = COALESCE(excluded.origin, origin) RETURNING {_FILE_COLUMNS}",
            (
                *(file.id, file.container_id, file.path, stamp.bytes, stamp.inode, stamp.changed_at_ns, file.created_at, file.source),
                *(origin, file.container_id),
            ),
        ).fetchone()
        return None if row is None else _file(row)

    def replace_files(
        self, container_id: str, changes: Mapping[str, tuple[ContainerFile, FileStamp]], lost_paths: Iterable[str]
    ) -> list[ContainerFile]:
        """Note what code did to a container's files; returns those that are new or have changed."""
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(
                "DELETE FROM files WHERE container_id = ? AND path = ?", [(container_id, path) for path in lost_paths]
            )
            files = [self.put_file(file, stamp) for file, stamp in changes.values()]
        return [file for file in files if file is not None]

    def _has(self, table: str, key: str, value: str, row_id: str) -> bool:
        return self._database.execute(f"SELECT 1 FROM {table} WHERE {key} = ? AND id = ?", (value, row_id)).fetchone() is not None


def _after(table: str, key: str, value: str, order: Order, after: str | None) -> tuple[str, dict[str, str | int | None]]:
    condition = f"{key} = :key"
    if after is not None:
        comparison = ">" if order == "asc" else "<"
        condition += f" AND sequence {comparison} (SELECT sequence FROM {table} WHERE id = :after)"
    return condition, {"key": value, "after": after}


def _container(row: sqlite3.Row) -> Container:
    return Container(
        id=row["id"],
        tenant=row["tenant"],
        name=row["name"],
        created_at=row["created_at"],
        last_active_at=row["last_active_at"],
        expires_after_minutes=row["expires_after_minutes"],
        memory_limit=row["memory_limit"],
        status="running" if row["is_running"] else "expired",
    )


def _file(row: sqlite3.Row) -> ContainerFile:
    return ContainerFile(
        id=row["id"],
        container_id=row["container_id"],
        path=row["path"],
        bytes=row["bytes"],
        created_at=row["created_at"],
        source=row["source"],
    )
