"""A connection to the database of which every statement has a deadline."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection, CursorResult, Executable
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

GRACE_S = 2.0
"""How much longer a statement may take to end after its connection was cut."""

ResultT = TypeVar("ResultT")
Values = Mapping[str, object] | Sequence[Mapping[str, object]]


class StatementTimeout(OSError):
    """The database has not answered in time; `args[0]` says how long that was."""


class TimedConnection:
    """
    A connection of a pool.

    PostgreSQL's own `statement_timeout` is no help where the server hangs, and neither is asking it to cancel. So the
    deadline is ours, and the connection is cut.

    Args:
        cut: ends the statement under way; it may leave the connection unusable.
        timeout_s: for each statement.
    """

    def __init__(self, connection: AsyncConnection, cut: Callable[[], object], timeout_s: float) -> None:
        self._connection = connection
        self._cut = cut
        self._timeout_s = timeout_s

    async def execute(self, statement: Executable, values: Values | None = None) -> CursorResult[Any]:
        """As `AsyncConnection.execute`."""
        async with self._deadline(self._timeout_s):
            return await self._connection.execute(statement, values)

    async def scalar(self, statement: Executable, values: Mapping[str, object] | None = None) -> Any:
        """As `AsyncConnection.scalar`."""
        async with self._deadline(self._timeout_s):
            return await self._connection.scalar(statement, values)

    async def run_sync(self, function: Callable[[Connection], ResultT], timeout_s: float) -> ResultT:
        """As `AsyncConnection.run_sync`, with a deadline for all statements together."""
        async with self._deadline(timeout_s):
            return await self._connection.run_sync(function)

    async def set_autocommit(self) -> None:
        """Let every statement be a transaction."""
        await self._connection.execution_options(isolation_level="AUTOCOMMIT")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A transaction, committed on leaving without an error."""
        async with self._deadline(self._timeout_s):
            transaction = await self._connection.begin()
        try:
            yield
            async with self._deadline(self._timeout_s):
                await transaction.commit()
        except BaseException:
            with _suppress_failures():  # the error that led here says more
                async with self._deadline(self._timeout_s):
                    await transaction.rollback()
            raise

    async def close(self) -> None:
        """Give it back to its pool."""
        with _suppress_failures():  # then it is not used again
            async with self._deadline(self._timeout_s):
                await self._connection.close()

    async def discard(self) -> None:
        """Cut and forget it."""
        with _suppress_failures():
            self._cut()
            await self._connection.invalidate()
        await self.close()

    @asynccontextmanager
    async def _deadline(self, timeout_s: float) -> AsyncIterator[None]:
        is_due = False

        def cut() -> None:
            nonlocal is_due
            is_due = True
            self._cut()

        timer = asyncio.get_running_loop().call_later(timeout_s, cut)
        try:
            async with asyncio.timeout(timeout_s + GRACE_S):
                yield
        except asyncio.CancelledError:
            self._cut()  # asyncpg would ask the server to cancel, and wait for it
            raise
        except Exception as error:
            if is_due:
                raise StatementTimeout(f"{timeout_s:g} s") from error
            raise
        finally:
            timer.cancel()


async def connect(engine: AsyncEngine, cut: Callable[[Any], object], timeout_s: float) -> TimedConnection:
    """
    A connection of the engine's pool, or a new one.

    Args:
        cut: ends the statement under way on a connection of the driver.
        timeout_s: for the pool, for connecting, and later for each statement.

    Raises:
        StatementTimeout: there is none in time.
    """
    try:
        async with asyncio.timeout(timeout_s):
            connection = await engine.connect()
            try:
                driver_connection = (await connection.get_raw_connection()).driver_connection
            except BaseException:
                await connection.close()
                raise
    except TimeoutError as error:
        raise StatementTimeout(f"{timeout_s:g} s") from error
    return TimedConnection(connection, lambda: cut(driver_connection), timeout_s)


@contextmanager
def _suppress_failures() -> Iterator[None]:
    try:
        yield
    except (SQLAlchemyError, OSError):
        pass
