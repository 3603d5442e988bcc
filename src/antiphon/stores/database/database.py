"""The database behind a SQL store: its connections, its migrations, and its errors in plain words."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Protocol
from weakref import WeakSet

from sqlalchemy import ColumnElement, Executable, event
from sqlalchemy.engine import URL, AdaptedConnection, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError, StatementError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from antiphon.errors import ServerError, StoreError
from antiphon.installation import install_hint
from antiphon.stores.availability import Availability
from antiphon.stores.database.connection import StatementTimeout, TimedConnection, connect
from antiphon.stores.database.postgres import PostgresBackend
from antiphon.stores.database.schema import REVISION, NewerSchema, is_current, migrate
from antiphon.stores.database.sqlite import SqliteBackend

_POOL_SIZE = 9  # concurrent reads, the writer, and the connection that shows other servers that this one lives

TIMEOUT_S = 10.0
"""How long a statement, or a new connection, may take; a server has `store.timeout_s`."""

MIGRATION_TIMEOUT_S = 300.0
"""How long changing the tables may take, and waiting for another server that does; large tables take minutes."""

CLOSE_TIMEOUT_S = 5.0
"""How long the database may take to close the connections, before they are cut."""

# sqlite3 raises `OverflowError` for integers beyond 64 bits; SQLAlchemy passes on what is not of the driver's own kind.
_DATABASE_ERRORS = (SQLAlchemyError, OSError, OverflowError, ValueError)


class DatabaseBackend(Protocol):
    """
    What differs between kinds of database. They share all statements.

    Attributes:
        driver: SQLAlchemy's name for it, with the asyncio driver.
        engine_options: options of SQLAlchemy's engine.
        write_options: execution options of a transaction that writes.
        live_servers: the numbers of living servers, where the database itself doesn't know them.
        migration_lock: a statement that waits until no other server migrates; None where `lock_start` is enough.
    """

    driver: str
    engine_options: Mapping[str, object]
    write_options: Mapping[str, object]
    live_servers: Sequence[int]
    migration_lock: Executable | None

    def display_name(self, url: URL) -> str:
        """The database as shown to people, without a password."""

    def driver_url(self, url: URL) -> URL:
        """
        The URL as the driver takes it.

        Raises:
            ServerError: it names no database.
        """

    def prepare(self, engine: AsyncEngine) -> None:
        """Create the database if that is our task, and have every new connection set up."""

    def is_dead(self, owner: ColumnElement[int]) -> ColumnElement[bool]:
        """
        The condition that `owner` is the number of no living server.

        Its parameter `living` is `live_servers`, where the database itself doesn't know them.
        """

    def lock_start(self) -> AbstractAsyncContextManager[None]:
        """
        Held while the store is opened, where opening it at the same time fails.

        Raises:
            TimeoutError: another process holds it.
        """

    def identify(self) -> object:
        """
        What tells this database from another one that takes its place while connections to it are open.

        Raises:
            OSError: it is gone.
        """

    def peek(self, statement: str) -> object:
        """
        The first value that a statement finds of what is committed, read in this call, within microseconds. None where
        that takes a wait, or fails.
        """

    def cut(self, driver_connection: Any) -> None:
        """End the statement under way on a connection of the driver, without asking the database."""

    async def register(self, connect: Callable[[], Awaitable[TimedConnection]]) -> int:
        """
        Show other servers that this one lives, until `unregister` or its death; returns its number, which never
        changes. Call it again to stay known, never twice at the same time.
        """

    async def unregister(self) -> None:
        """Show other servers that this one has stopped, and close what `peek` has opened; idempotent."""

    def explain_error(self, error: BaseException) -> str | None:
        """What is wrong and what to do, as the end of a sentence about the database; None for an unknown error."""

    def is_systemic(self, error: Exception) -> bool:
        """Whether any other write would have failed with this error too."""

    def is_conflict(self, error: Exception) -> bool:
        """Whether a write failed since others wrote at the same time, so that it may succeed when it is tried again."""

    def is_unreachable(self, error: Exception) -> bool:
        """Whether a write failed since the database can't be reached, so that reading would fail too."""


_BACKENDS: dict[str, Callable[[Sequence[int]], DatabaseBackend]] = {
    "sqlite": SqliteBackend,
    "postgresql": PostgresBackend,
    "postgres": PostgresBackend,
}


class Database:
    """
    Connections to the database behind an SQLAlchemy URL.

    Args:
        server_numbers: as `SqlStore`.
        availability: is told about every success and failure.
        timeout_s: how long a statement, or a new connection, may take.

    Raises:
        ServerError: the URL can't be used.
    """

    def __init__(
        self, url: str, server_numbers: Sequence[int] = (), availability: Availability | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        database_url = _parse_url(url)
        self.backend = _BACKENDS[database_url.drivername.partition("+")[0]](server_numbers)
        self._display_name = self.backend.display_name(database_url)
        self._availability = availability or Availability()
        self._timeout_s = timeout_s
        self._engine = _create_engine(self.backend.driver_url(database_url), self.backend, timeout_s)
        self._write_engine = self._engine.execution_options(**self.backend.write_options)
        self._driver_connections: WeakSet[Any] = WeakSet()
        event.listen(self._engine.sync_engine, "connect", self._note_connection)
        self._register_lock = asyncio.Lock()
        self.server_number = 0

    async def open(self) -> None:
        """
        Connect, bring the schema up to date, and register with other servers.

        Raises:
            ServerError: the database can't be used; the message says what to do about it.
        """
        try:
            try:
                self.backend.prepare(self._engine)
                async with self.backend.lock_start():
                    await self._migrate()
                await self._register()
            except (NewerSchema, *_DATABASE_ERRORS) as error:
                raise ServerError(self._explain(error)) from error
        except BaseException:
            await self.close()
            raise

    async def is_current(self) -> bool:
        """
        Whether the tables can be used as they are, without changing them; closes the database again.

        Raises:
            ServerError: the database can't be used; the message says what to do about it.
        """
        try:
            self.backend.prepare(self._engine)
            async with self._connection(self._engine) as connection, connection.transaction():
                return await connection.run_sync(is_current, self._timeout_s)
        except (NewerSchema, *_DATABASE_ERRORS) as error:
            raise ServerError(self._explain(error)) from error
        finally:
            await self.close()

    async def _migrate(self) -> None:
        # Most starts find the tables as they should be, and so need no lock.
        async with self._connection(self._engine) as connection, connection.transaction():
            if await connection.run_sync(is_current, self._timeout_s):
                return
        async with self._connection(self._write_engine, MIGRATION_TIMEOUT_S) as connection, connection.transaction():
            if self.backend.migration_lock is not None:
                await connection.execute(self.backend.migration_lock)
            await connection.run_sync(migrate, MIGRATION_TIMEOUT_S)

    async def _register(self) -> None:
        async with self._register_lock:
            self.server_number = await self.backend.register(lambda: connect(self._engine, self.backend.cut, self._timeout_s))

    async def check(self) -> None:
        """
        Show other servers that this one still lives, and see whether the database does.

        Raises:
            StoreError: it can't be used.
        """
        with self.track_use():
            self.backend.identify()
            await self._register()

    async def close(self) -> None:
        """Disconnect; idempotent."""
        cut = asyncio.get_running_loop().call_later(min(CLOSE_TIMEOUT_S, self._timeout_s), self._cut_all)  # where the database hangs
        try:
            await self.backend.unregister()
            await self._engine.dispose()
        finally:
            cut.cancel()

    def _note_connection(self, connection: AdaptedConnection, _entry: ConnectionPoolEntry) -> None:
        self._driver_connections.add(connection.driver_connection)

    def _cut_all(self) -> None:
        for driver_connection in [*self._driver_connections]:
            self.backend.cut(driver_connection)

    @asynccontextmanager
    async def read_connection(self) -> AsyncIterator[TimedConnection]:
        """
        A connection that sees one state of the database.

        Raises:
            StoreError: the database failed.
        """
        with self.track_use():
            self.backend.identify()
            async with self._connection(self._engine) as connection, connection.transaction():
                yield connection

    @asynccontextmanager
    async def write_transaction(self) -> AsyncIterator[TimedConnection]:
        """
        A transaction, committed on leaving without an error. It raises the database's own errors; `track_use`
        translates them.
        """
        identity = self.backend.identify()
        async with self._connection(self._write_engine) as connection, connection.transaction():
            yield connection
        if self.backend.identify() != identity:  # what was written to a file that is gone now is lost
            raise OSError("it was replaced during a write")

    @asynccontextmanager
    async def write(self) -> AsyncIterator[TimedConnection]:
        """
        A transaction, committed on leaving without an error.

        Raises:
            StoreError: the database failed.
        """
        with self.track_use(is_write=True):
            async with self.write_transaction() as connection:
                yield connection

    @contextmanager
    def track_use(self, *, is_write: bool = False) -> Iterator[None]:
        """Note whether a use of the database succeeds; turns its errors into a `StoreError`."""
        try:
            yield
        except _DATABASE_ERRORS as error:
            details = self._explain(error)
            # A write may be at fault itself, by its values or by rows that others have changed; a read may not.
            is_systemic = isinstance(error, SQLAlchemyError | OSError) and (not is_write or self.backend.is_systemic(error))
            if not is_systemic:
                self._availability.mark_failed(details)
            elif not is_write or self.backend.is_unreachable(error):
                self._availability.mark_unreachable(details)
            else:
                self._availability.mark_unwritable(details)
            raise StoreError(details, is_temporary=is_systemic or self.backend.is_conflict(error)) from error
        if is_write:
            self._availability.mark_written()
        else:
            self._availability.mark_reached()

    @asynccontextmanager
    async def _connection(self, engine: AsyncEngine, timeout_s: float | None = None) -> AsyncIterator[TimedConnection]:
        connection = await connect(engine, self.backend.cut, timeout_s or self._timeout_s)
        try:
            yield connection
        finally:
            await connection.close()

    def _explain(self, error: BaseException) -> str:
        """What failed, where, and what to do, for the operator."""
        if isinstance(error, NewerSchema):
            return (
                f"The store at {self._display_name} was last used by a newer version of antiphon (schema {error.args[0]}), "
                f"beside which this version (schema {REVISION}) can't run. "
                "Install that version, or point `store.url` to another store."
            )
        cause = (error.orig if isinstance(error, StatementError) else None) or error  # without the statement, which explains nothing
        explanation = self.backend.explain_error(cause) or _explain_unknown_error(cause)
        return f"The store at {self._display_name} {explanation}."


def _explain_unknown_error(cause: BaseException) -> str:
    if isinstance(cause, StatementTimeout):
        return f"does not answer: nothing came within {cause}"
    if isinstance(cause, OSError):
        return f"can't be opened: {cause.strerror or cause}"
    return f"failed: {cause}"


def _parse_url(url: str) -> URL:
    try:
        database_url = make_url(url)
    except ArgumentError:
        raise ServerError(
            "`store.url` is neither `sqlite`, `memory` nor an SQLAlchemy URL, such as sqlite:////folder/file.sqlite3."
        ) from None
    if database_url.drivername.partition("+")[0] not in _BACKENDS:
        raise ServerError(
            f"`store.url` asks for a database that is not supported: {database_url.drivername}. Supported are sqlite and postgresql."
        )
    return database_url


def _create_engine(url: URL, backend: DatabaseBackend, timeout_s: float) -> AsyncEngine:
    options = {"pool_size": _POOL_SIZE, "max_overflow": 0, "pool_timeout": timeout_s, **backend.engine_options}
    try:
        # `hide_parameters`: they hold what people said, and errors end up in logs.
        return create_async_engine(url, hide_parameters=True, **options)
    except ModuleNotFoundError as error:
        raise ServerError(f"`store.url` needs {url.drivername}, but {error.name} is not installed. {install_hint('postgres')}") from None
