"""
What is peculiar to SQLite: its file, its pragmas, and what its errors mean. The SQL store itself knows no database by name.
"""

import os
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, bindparam, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from antiphon.errors import ServerError
from antiphon.stores.sql.schema import responses

# How long to wait for another program's lock is the driver's to know: 5 s, or `?timeout=` of the URL.
#
# WAL lets reads go on while the one writer writes. With it `NORMAL` is safe against the death of this process at any moment; a power
# cut may take the last few transactions, but never damages the file.
# Source: https://www.sqlite.org/pragma.html#pragma_synchronous
_PRAGMAS = ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON")

# Source: https://www.sqlite.org/rescode.html
_EXPLANATIONS = {
    sqlite3.SQLITE_FULL: "can't be written: the disk is full. Free some space; what was stored before is safe",
    sqlite3.SQLITE_BUSY: "is locked by another program. Stop it, or wait until it is done",
    sqlite3.SQLITE_LOCKED: "is locked by another program. Stop it, or wait until it is done",
    sqlite3.SQLITE_READONLY: "can't be written: it is read-only. Give this user write access to the file and to its folder",
    sqlite3.SQLITE_PERM: "can't be opened: permission denied. Give this user access to the file and to its folder",
    sqlite3.SQLITE_CANTOPEN: "can't be opened. Give this user access to the file and to its folder",
    sqlite3.SQLITE_IOERR: "can't be read or written: the disk reports an error. Check the disk and the space left on it",
    sqlite3.SQLITE_CORRUPT: "is damaged. Move the file away, together with those beside it that begin with its name, to start afresh",
    sqlite3.SQLITE_NOTADB: "is not a SQLite database. Move the file away, or point `store.url` to another",
}


class SqliteBackend:
    """
    A SQLite file, which one server has to itself, with all its processes; short-lived programs may use it at the same time.

    Args:
        numbers: those of the server's processes, this one's first; none where it is the only one.
    """

    driver = "sqlite+aiosqlite"
    engine_options: Mapping[str, Any] = {}
    write_options: Mapping[str, Any] = {"writes": True}
    is_orphaned: ColumnElement[bool] = responses.c.owner.is_(None) | responses.c.owner.not_in(bindparam("living", expanding=True))

    def __init__(self, server_numbers: Sequence[int] = ()) -> None:
        self.live_servers: Sequence[int] = tuple(server_numbers) or (secrets.randbits(62),)  # unlike those of any opening before

    def display_name(self, url: URL) -> str:
        """The path of the file."""
        return url.database or ""

    def driver_url(self, url: URL) -> URL:
        """The URL with the asyncio driver."""
        if url.database in (None, "", ":memory:"):
            raise ServerError(f"`store.url` names no file: {url}. For a store in memory, set it to `memory`.")
        return url.set(drivername=self.driver)

    def prepare(self, engine: AsyncEngine) -> None:
        """Make the file, and have every connection set up."""
        make_private_file(Path(engine.url.database or ""))
        prepare_engine(engine.sync_engine)

    async def register(self, _engine: AsyncEngine) -> int:
        """There is no other server to know of this one."""
        return self.live_servers[0]

    async def unregister(self) -> None:
        """There is no other server to know of this one."""

    def explain_error(self, error: BaseException) -> str | None:
        """What SQLite's error code means."""
        return explain_sqlite_error(error)

    def is_systemic(self, error: Exception) -> bool:
        """Whether the file or its disk failed, and not one write."""
        return isinstance(error, OperationalError)


def make_private_file(path: Path) -> None:
    """Make the database's folder and file, where missing, for nobody else to read: they hold conversations."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite gives its other files the same mode


def prepare_engine(engine: Engine) -> None:
    """
    Have every connection of the engine set up as the store needs it.

    The driver's own transactions would leave out reads and DDL, so that a page could mix two states of the database and a migration
    could stop half-way; they are replaced by our own BEGIN. A transaction that `writes` takes the write lock at once: taking it
    after reading fails when someone else wrote in between.
    """

    @event.listens_for(engine, "connect")
    def _set_up(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in _PRAGMAS:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")


def explain_sqlite_error(error: BaseException | None) -> str | None:
    """What is wrong with the database and what to do, as the end of a sentence about it; None where the error isn't known."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else _EXPLANATIONS.get(code & 0xFF)  # the low byte is the kind, the rest its details
