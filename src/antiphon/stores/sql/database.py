"""The database behind a SQL store: its connections, its migrations, and its errors in plain words."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

from sqlalchemy import ColumnElement
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError, StatementError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from antiphon.errors import ServerError
from antiphon.installation import install_hint
from antiphon.stores.sql.postgres import PostgresBackend
from antiphon.stores.sql.schema import NewerSchema, migrate
from antiphon.stores.sql.sqlite import SqliteBackend

_POOL_SIZE = 9  # concurrent reads, the writer, and the connection that shows other servers that this one lives


class DatabaseBackend(Protocol):
    """
    What differs between kinds of database. They share all statements.

    Attributes:
        driver: SQLAlchemy's name for it, with the asyncio driver.
        engine_options: options of SQLAlchemy's engine.
        write_options: execution options of a transaction that writes.
        is_orphaned: the condition that no living server works on an unfinished response.
        live_servers: the numbers of living servers, where the database itself doesn't know them.
    """

    driver: str
    engine_options: Mapping[str, object]
    write_options: Mapping[str, object]
    is_orphaned: ColumnElement[bool]
    live_servers: Sequence[int]

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

    async def register(self, engine: AsyncEngine) -> int:
        """
        Show other servers that this one lives, until `unregister` or its death; returns its number. Call it again to
        stay known.
        """

    async def unregister(self) -> None:
        """Show other servers that this one has stopped; idempotent."""

    def explain_error(self, error: BaseException) -> str | None:
        """What is wrong and what to do, as the end of a sentence about the database; None for an unknown error."""

    def is_systemic(self, error: Exception) -> bool:
        """Whether any other write would have failed with this error too."""


_BACKENDS: dict[str, Callable[[Sequence[int]], DatabaseBackend]] = {
    "sqlite": SqliteBackend,
    "postgresql": PostgresBackend,
    "postgres": PostgresBackend,
}


class Database:
    """
    Connections to the database behind an SQLAlchemy URL.

    Raises:
        ServerError: the URL can't be used.
    """

    def __init__(self, url: str, server_numbers: Sequence[int] = ()) -> None:
        database_url = _parse_url(url)
        self.backend = _BACKENDS[database_url.drivername.partition("+")[0]](server_numbers)
        self._display_name = self.backend.display_name(database_url)
        self._engine = _create_engine(self.backend.driver_url(database_url), self.backend)
        self._write_engine = self._engine.execution_options(**self.backend.write_options)
        self.server_number = 0

    async def open(self) -> None:
        """
        Connect, bring the schema up to date, and register with other servers.

        Raises:
            ServerError: the database can't be used; the message says what to do about it.
        """
        try:
            with self.translate_errors():
                self.backend.prepare(self._engine)
                async with self._write_engine.begin() as connection:
                    await connection.run_sync(migrate)
            await self.register()
        except BaseException:
            await self.close()
            raise

    async def register(self) -> None:
        """Show other servers that this one still lives."""
        with self.translate_errors():
            self.server_number = await self.backend.register(self._engine)

    async def close(self) -> None:
        """Disconnect; idempotent."""
        await self.backend.unregister()
        await self._engine.dispose()

    @asynccontextmanager
    async def read_connection(self) -> AsyncIterator[AsyncConnection]:
        """A connection that sees one state of the database."""
        with self.translate_errors():
            async with self._engine.connect() as connection:
                yield connection

    @asynccontextmanager
    async def write_transaction(self) -> AsyncIterator[AsyncConnection]:
        """
        A transaction, committed on leaving without an error. It raises the database's own errors; `write` translates
        them.
        """
        async with self._write_engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """
        A transaction, committed on leaving without an error.

        Raises:
            ServerError: the database failed.
        """
        with self.translate_errors():
            async with self.write_transaction() as connection:
                yield connection

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Turn the database's errors into a `ServerError` that says what failed, where, and what to do."""
        try:
            yield
        except NewerSchema as error:
            raise ServerError(
                f"The store at {self._display_name} was last used by a newer version of antiphon (schema {error.args[0]}). "
                "Install that version, or point `store.url` to another store."
            ) from error
        except (SQLAlchemyError, OSError, OverflowError, ValueError) as error:
            cause = (error.orig if isinstance(error, StatementError) else None) or error  # without the statement, which explains nothing
            explanation = self.backend.explain_error(cause) or _explain_unknown_error(cause)
            raise ServerError(f"The store at {self._display_name} {explanation}.") from error


def _explain_unknown_error(cause: BaseException) -> str:
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


def _create_engine(url: URL, backend: DatabaseBackend) -> AsyncEngine:
    try:
        # `hide_parameters`: they hold what people said, and errors end up in logs.
        return create_async_engine(url, pool_size=_POOL_SIZE, max_overflow=0, hide_parameters=True, **backend.engine_options)
    except ModuleNotFoundError as error:
        raise ServerError(f"`store.url` needs {url.drivername}, but {error.name} is not installed. {install_hint('postgres')}") from None
