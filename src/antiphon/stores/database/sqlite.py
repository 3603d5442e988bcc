"""SQLite: its file, its pragmas, and what its errors mean."""

import asyncio
import contextlib
import fcntl
import os
import secrets
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Executable, bindparam, event
from sqlalchemy.dialects.sqlite.aiosqlite import AsyncAdapt_aiosqlite_connection
from sqlalchemy.engine import URL
from sqlalchemy.exc import InvalidatePoolError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import ConnectionPoolEntry

from antiphon.errors import ServerError
from antiphon.masking import mask_password
from antiphon.stores.database.connection import TimedConnection

LOCK_TIMEOUT_S = 60.0
"""How long to wait for another process that is opening the same file."""

_LOCK_POLL_S = 0.05

# The driver waits 5 s for another program's lock, or as `?timeout=` of the URL says.
#
# WAL lets reads go on while the one writer writes. With it `NORMAL` is safe against the death of this process at any
# moment; a power cut may take the last few transactions, but never damages the file. Source:
# https://www.sqlite.org/pragma.html#pragma_synchronous
#
# Foreign keys are off unless a connection turns them on. Source: https://www.sqlite.org/foreignkeys.html#fk_enable
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
    A SQLite file of one server and all its processes. Short-lived programs may use it at the same time.

    Args:
        server_numbers: those of the server's processes, this one's first; empty where it is the only one. A list may
            change when a process is replaced.
    """

    driver = "sqlite+aiosqlite"
    engine_options: Mapping[str, object] = {}
    write_options: Mapping[str, object] = {"writes": True}
    migration_lock: Executable | None = None  # a transaction that writes excludes all others

    def __init__(self, server_numbers: Sequence[int] = ()) -> None:
        self._path = Path()
        self._peek_connection: tuple[tuple[int, int], sqlite3.Connection] | None = None  # with the file's identity
        self.live_servers: Sequence[int] = server_numbers or (secrets.randbits(62),)  # differs from that of any earlier opening

    def display_name(self, url: URL) -> str:
        return url.database or ""

    def driver_url(self, url: URL) -> URL:
        if url.database in (None, "", ":memory:"):
            raise ServerError(f"`store.url` names no file: {mask_password(str(url))}. For a store in memory, set it to `memory`.")
        return url.set(drivername=self.driver)

    def prepare(self, engine: AsyncEngine) -> None:
        self._path = Path(engine.url.database or "")
        make_private_file(self._path)
        _prepare_connections(engine.sync_engine, self._path)

    def is_dead(self, owner: ColumnElement[int]) -> ColumnElement[bool]:
        return owner.is_(None) | owner.not_in(bindparam("living", expanding=True))

    @contextlib.asynccontextmanager
    async def lock_start(self) -> AsyncIterator[None]:
        # Turning a new file to WAL fails at once where another process does the same: SQLite does not wait there. The
        # lock is that of the folder, so that it needs no file; SQLite's own locks are of another kind (fcntl).
        # Source: https://www.sqlite.org/wal.html#sometimes_queries_return_sqlite_busy_in_wal_mode
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(PermissionError):  # a folder that can't be listed can't be locked
                folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, folder)
                await _lock(folder)
            yield

    def identify(self) -> object:
        return _identity(self._path)

    def peek(self, statement: str) -> object:
        # Readers of a file in WAL mode don't wait for writers, and what they read often is in memory. Where one would have
        # to wait for another reason, `timeout` makes it fail. Source: https://www.sqlite.org/wal.html#concurrency
        try:
            identity = _identity(self._path)
            if self._peek_connection is None or self._peek_connection[0] != identity:
                self._close_peek()
                uri = f"{self._path.absolute().as_uri()}?mode=ro"
                connection = sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
                self._peek_connection = identity, connection
            row = self._peek_connection[1].execute(statement).fetchone()
        except (OSError, sqlite3.Error):
            self._close_peek()
            return None
        return row[0]

    def _close_peek(self) -> None:
        if self._peek_connection is not None:
            self._peek_connection[1].close()
            self._peek_connection = None

    def cut(self, driver_connection: Any) -> None:
        with contextlib.suppress(ValueError):  # it is closed
            driver_connection._conn.interrupt()  # the public method is a coroutine for no reason

    async def register(self, _connect: Callable[[], Awaitable[TimedConnection]]) -> int:
        return self.live_servers[0]

    async def unregister(self) -> None:
        self._close_peek()  # otherwise nothing is to be done: no other server uses the file

    def explain_error(self, error: BaseException) -> str | None:
        if isinstance(error, FileNotFoundError):
            return "was removed. Put it back, or restart the server to begin with an empty one"
        code = getattr(error, "sqlite_errorcode", None)
        return None if code is None else _EXPLANATIONS.get(code & 0xFF)  # the low byte is the kind, the rest details

    def is_systemic(self, error: Exception) -> bool:
        return isinstance(error, OperationalError | OSError)

    def is_conflict(self, _error: Exception) -> bool:
        return False  # there is one writer

    def is_unreachable(self, error: Exception) -> bool:
        return isinstance(error, FileNotFoundError)


async def _lock(folder: int) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOCK_TIMEOUT_S):
            while True:
                try:
                    return fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    await asyncio.sleep(_LOCK_POLL_S)
                except OSError:  # a file system without locks
                    return None
    raise OSError("another process has been opening it for a minute")


def make_private_file(path: Path) -> None:
    """Create the database's folder and file if missing, readable only by this user: they hold conversations."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite gives its other files the same mode


def _identity(path: Path) -> tuple[int, int]:
    file = path.stat()
    return file.st_dev, file.st_ino


def _prepare_connections(engine: Engine, path: Path) -> None:
    """
    Set up every new connection of the engine, with transactions of our own, and use it only while its file is in place.

    The driver's transactions leave out reads and DDL, so that a page could mix two states of the database and a
    migration could stop half-way. A transaction that `writes` takes the write lock at once: taking it after a read
    fails when another program wrote in between. Sources:
    https://docs.python.org/3/library/sqlite3.html#transaction-control, https://www.sqlite.org/rescode.html#busy_snapshot
    """

    @event.listens_for(engine, "connect")
    def _configure(connection: AsyncAdapt_aiosqlite_connection, entry: ConnectionPoolEntry) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in _PRAGMAS:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()
        entry.info["identity"] = _identity(path)

    @event.listens_for(engine, "checkout")
    def _verify(_connection: object, entry: ConnectionPoolEntry, _fairy: object) -> None:
        if entry.info["identity"] != _identity(path):
            raise InvalidatePoolError("The file was replaced.")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")
