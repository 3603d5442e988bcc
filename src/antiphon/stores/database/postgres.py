"""
PostgreSQL: what its transactions see, how servers that share a database know of each other, and what its errors mean.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Executable, column, event, func, select, text
from sqlalchemy.dialects.postgresql.asyncpg import AsyncAdapt_asyncpg_connection
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, InterfaceError, InvalidatePoolError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import ConnectionPoolEntry

from antiphon.errors import ServerError, quote_list
from antiphon.masking import mask_password
from antiphon.stores.database.connection import TimedConnection

_LOCK_CLASS_ID = 0x616E7469  # marks our advisory locks among those of other programs
_MIGRATION_LOCK_ID = (_LOCK_CLASS_ID << 32) + 1  # a lock with one key, which is not among those with two

PING_TIMEOUT_S = 2.0
"""How long a connection that was not used for a while may take to show that it works."""

# Every server holds the lock of its number while it lives; PostgreSQL releases it when the connection ends. A lock with
# two keys has `objsubid` 2. Source: https://www.postgresql.org/docs/current/view-pg-locks.html
_LIVE_SERVERS = text(
    "SELECT objid::bigint AS number FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2 "
    f"AND classid = {_LOCK_CLASS_ID} AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
).columns(column("number", BigInteger))

_PARAMETERS = {"host", "passfile", "password", "port", "ssl", "target_session_attrs", "user"}  # asyncpg's own parameters of a URL

_BAD_CREDENTIALS = "can't be opened: the user or the password is wrong. Correct them in `store.url`"
_CONFLICT = "ended a transaction, as another program changed the same rows at the same time. It can be tried again"
_STARTING = "can't be used: the database server is starting or stopping. Try again in a moment"

# Source: https://www.postgresql.org/docs/current/errcodes-appendix.html
_EXPLANATIONS = {
    "28000": _BAD_CREDENTIALS,
    "28P01": _BAD_CREDENTIALS,
    "3D000": "can't be opened: the server has no database of that name. Make it with `createdb`, or correct `store.url`",
    "42501": "can't be used: permission denied. Grant this user all rights in the database's schema",
    "25006": "can't be written: the server is read-only. Point `store.url` to the primary",
    "53100": "can't be written: the disk is full. Free some space; what was stored before is safe",
    "53300": "can't be opened: the server has no connection left. Raise its `max_connections`",
    "40001": _CONFLICT,
    "40P01": _CONFLICT,
    "57P01": _STARTING,
    "57P02": _STARTING,
    "57P03": _STARTING,
}
_SYSTEMIC_CODES = ("08", "25006", "28", "53", "57", "58")  # classes of errors that any write would meet
_UNWRITABLE_CODES = ("25006", "53100", "58030")  # of these, those that a read would not meet


class PostgresBackend:
    """A PostgreSQL database, which several servers may share."""

    driver = "postgresql+asyncpg"
    engine_options: Mapping[str, object] = {
        # Several queries of one read see one state, which is that of its first query. Source:
        # https://www.postgresql.org/docs/current/transaction-iso.html
        "isolation_level": "REPEATABLE READ",
        # A server whose machine is gone counts as dead after a minute.
        "connect_args": {"server_settings": {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}},
    }
    # A write waits for that of another server; in `REPEATABLE READ` it would fail after it. Same source.
    write_options: Mapping[str, object] = {"isolation_level": "READ COMMITTED"}
    live_servers: Sequence[int] = ()  # the database knows
    migration_lock: Executable | None = select(func.pg_advisory_xact_lock(_MIGRATION_LOCK_ID))

    def __init__(self, _server_numbers: Sequence[int] = ()) -> None:
        self._lock_connection: TimedConnection | None = None
        self._server_number = 0

    def display_name(self, url: URL) -> str:
        return mask_password(url.render_as_string(hide_password=True))

    def driver_url(self, url: URL) -> URL:
        if not url.database:
            raise ServerError(f"`store.url` names no database: {self.display_name(url)}.")
        # libpq's `sslmode` is asyncpg's `ssl`.
        query = {"ssl" if key == "sslmode" else key: value for key, value in url.query.items()}
        if unknown := query.keys() - _PARAMETERS:
            names, all_names = quote_list(sorted(unknown)), quote_list(sorted(_PARAMETERS))
            raise ServerError(f"`store.url` has the parameter {names}, which is not known. Known are {all_names}.")
        return url.set(drivername=self.driver, query=query)

    def prepare(self, engine: AsyncEngine) -> None:
        event.listen(engine.sync_engine, "checkout", _ping)  # the operator creates the database

    def is_dead(self, owner: ColumnElement[int]) -> ColumnElement[bool]:
        return owner.is_(None) | owner.not_in(_LIVE_SERVERS)

    def lock_start(self) -> AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()

    def identify(self) -> object:
        return None  # the connections to a server break with it

    def peek(self, _statement: str) -> object:
        return None  # it is asked over a network

    def cut(self, driver_connection: Any) -> None:
        driver_connection.terminate()

    async def register(self, connect: Callable[[], Awaitable[TimedConnection]]) -> int:
        if self._lock_connection is not None:
            try:
                await self._lock_connection.execute(select(1))
                return self._server_number
            except (SQLAlchemyError, OSError):
                await self._lock_connection.discard()
                self._lock_connection = None
        connection = await connect()
        try:
            await connection.set_autocommit()
            is_new = self._server_number == 0
            self._server_number = self._server_number or _random_server_number()
            while not await connection.scalar(select(func.pg_try_advisory_lock(_LOCK_CLASS_ID, self._server_number))):
                if not is_new:  # PostgreSQL has not noticed yet that our earlier connection is gone
                    await connection.close()
                    return self._server_number
                self._server_number = _random_server_number()
        except BaseException:
            await connection.discard()
            raise
        self._lock_connection = connection
        return self._server_number

    async def unregister(self) -> None:
        connection, self._lock_connection = self._lock_connection, None
        if connection is None:
            return
        # PostgreSQL also unlocks when it notices that the connection is gone, which may be after the next server's start.
        with contextlib.suppress(SQLAlchemyError, OSError):
            await connection.execute(select(func.pg_advisory_unlock(_LOCK_CLASS_ID, self._server_number)))
        await connection.discard()

    def explain_error(self, error: BaseException) -> str | None:
        return _EXPLANATIONS.get(_sqlstate(error))

    def is_systemic(self, error: Exception) -> bool:
        cause = error.orig if isinstance(error, DBAPIError) else error
        return isinstance(error, OSError | InterfaceError) or _sqlstate(cause).startswith(_SYSTEMIC_CODES)

    def is_conflict(self, error: Exception) -> bool:
        return isinstance(error, DBAPIError) and _sqlstate(error.orig).startswith("40")

    def is_unreachable(self, error: Exception) -> bool:
        cause = error.orig if isinstance(error, DBAPIError) else error
        return self.is_systemic(error) and not _sqlstate(cause).startswith(_UNWRITABLE_CODES)


def _ping(connection: AsyncAdapt_asyncpg_connection, entry: ConnectionPoolEntry, _fairy: object) -> None:
    """
    Replace a connection that the server has closed, or does not answer on, before it is used.

    SQLAlchemy's own ping has no deadline, so a server that hangs would hang all who ask for a connection. It also is a
    transaction whose rollback fails where the server hangs, which hides that the caller was cancelled.
    """
    if not entry.info.get("is_used"):  # it was made just now
        entry.info["is_used"] = True
        return
    timer = asyncio.get_running_loop().call_later(PING_TIMEOUT_S, connection.driver_connection.terminate)
    try:
        connection.run_async(lambda driver_connection: driver_connection.execute(";"))
    except Exception as error:
        raise InvalidatePoolError("The connection does not answer.") from error
    except asyncio.CancelledError:
        connection.driver_connection.terminate()  # otherwise the pool closes it politely, and waits for the server
        raise
    finally:
        timer.cancel()


def _random_server_number() -> int:
    """A positive number that fits the lock's second key, a signed 32-bit integer."""
    return secrets.randbelow((1 << 31) - 1) + 1


def _sqlstate(error: BaseException | None) -> str:
    """PostgreSQL's five-character error code; empty for an error that is not the server's."""
    return str(getattr(error, "sqlstate", None) or "")
