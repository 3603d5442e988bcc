"""
The database behind a SQL store: its connections, its tables brought up to date, and its errors told in words.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

from sqlalchemy import ColumnElement
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError, StatementError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from antiphon.errors import ServerError
from antiphon.stores.sql.postgres import PostgresBackend
from antiphon.stores.sql.schema import NewerSchema, migrate
from antiphon.stores.sql.sqlite import SqliteBackend

_POOL_SIZE = 9  # reads that can be under way at the same time, the writer, and what tells that this server lives


class DatabaseBackend(Protocol):
    """
    What is peculiar to one kind of database; all statements are common to them.

    Attributes:
        driver: SQLAlchemy's name for it, with the asyncio driver.
        engine_options: of SQLAlchemy's engine.
        write_options: execution options of a transaction that writes.
        is_nobodys: the condition on an unfinished response that no living server works on it.
        living: the numbers of servers that live, where the database itself doesn't know.
    """

    driver: str
    engine_options: Mapping[str, Any]
    write_options: Mapping[str, Any]
    is_orphaned: ColumnElement[bool]
    live_servers: Sequence[int]

    def display_name(self, url: URL) -> str:
        """The database for people, without a password."""

    def driver_url(self, url: URL) -> URL:
        """
        The URL as the driver takes it.

        Raises:
            ServerError: it names no database.
        """

    def prepare(self, engine: AsyncEngine) -> None:
        """Make the database where that is ours to do, and have every connection set up as it must be."""

    async def register(self, engine: AsyncEngine) -> int:
        """Let other servers know that this one lives, until `leave` or its death; its number among them. Repeat it to stay known."""

    async def unregister(self) -> None:
        """Live no more, for other servers; idempotent."""

    def explain_error(self, error: BaseException) -> str | None:
        """What is wrong with the database and what to do, as the end of a sentence about it; None where the error isn't known."""

    def is_systemic(self, error: Exception) -> bool:
        """Whether what failed with this error would have failed whatever was written."""


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
        parsed = _parse_url(url)
        self.backend = _BACKENDS[parsed.drivername.partition("+")[0]](server_numbers)
        self._display_name = self.backend.display_name(parsed)
        self._engine = _create_engine(self.backend.driver_url(parsed), self.backend)
        self._write_engine = self._engine.execution_options(**self.backend.write_options)
        self.server_number = 0

    async def open(self) -> None:
        """
        Connect, bring the schema up to date, and be known to other servers.

        Raises:
            ServerError: the database can't be used, with what to do about it.
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
        """Stay known to other servers as living."""
        with self.translate_errors():
            self.server_number = await self.backend.register(self._engine)

    async def close(self) -> None:
        """Let go; idempotent."""
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
        """A transaction, durable when it is left without an error. Errors are the database's own: see `telling`."""
        async with self._write_engine.begin() as connection:
            yield connection

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Turn the database's errors into faults that say what, where, and what to do."""
        try:
            yield
        except NewerSchema as error:
            raise ServerError(
                f"The store at {self._display_name} was last used by a newer version of antiphon (schema {error.args[0]}). "
                "Install that version, or point `store.url` to another store."
            ) from error
        except (SQLAlchemyError, OSError, OverflowError, ValueError) as error:
            cause = (error.orig if isinstance(error, StatementError) else None) or error  # without the statement, which explains nothing
            told = self.backend.explain_error(cause) or _explain_unknown_error(cause)
            raise ServerError(f"The store at {self._display_name} {told}.") from error


def _explain_unknown_error(cause: BaseException) -> str:
    """The end of a sentence about an error that no backend knows."""
    if isinstance(cause, OSError):
        return f"can't be opened: {cause.strerror or cause}"
    return f"failed: {cause}"


def _parse_url(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ServerError(
            "`store.url` is neither `sqlite`, `memory` nor an SQLAlchemy URL, such as sqlite:////folder/file.sqlite3."
        ) from None
    if parsed.drivername.partition("+")[0] not in _BACKENDS:
        raise ServerError(f"`store.url` asks for a database that is not supported: {parsed.drivername}. There are sqlite and postgresql.")
    return parsed


def _create_engine(url: URL, backend: DatabaseBackend) -> AsyncEngine:
    try:
        # Parameters are hidden because they are people's words, and errors end up in logs.
        return create_async_engine(url, pool_size=_POOL_SIZE, max_overflow=0, hide_parameters=True, **backend.engine_options)
    except ModuleNotFoundError as error:
        raise ServerError(f"`store.url` asks for {url.drivername}, whose driver is not installed: pip install {error.name}.") from None
