"""A database that is unreachable, hangs, is full, locked or removed: the client learns that, and the operator the cause."""

import asyncio
import contextlib
import os
import re
import resource
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select

from antiphon.errors import ServerError, StoreError
from antiphon.records import BackgroundRecord
from antiphon.stores.availability import Availability
from antiphon.stores.database.schema import responses
from antiphon.stores.sql.store import SqlStore
from support.stores.responses import response
from support.stores.tables import sqlite_store

pytestmark = pytest.mark.anyio

NEUTRAL = "The server can't use its store now. Please try again later."
USES: dict[str, Callable[[SqlStore], Awaitable[object]]] = {
    "get": lambda store: store.get("ada", "resp_1"),
    "chain": lambda store: store.chain("ada", "resp_1"),
    "put": lambda store: store.put(response("resp_9")),
    "finish": lambda store: store.finish(response("resp_1")),
    "delete": lambda store: store.delete("ada", "resp_9"),
    "keys": lambda store: store.keys.all(),
    "uses of keys": lambda store: store.keys.mark_used({"key_1": 1}),
    "client secrets": lambda store: store.client_secrets.find(b"1"),
    "sessions": lambda store: store.sessions.total_bytes(),
    "orphans": lambda store: store.orphans(),
    "write off": lambda store: store.write_off(response("resp_1", "failed")),
    "check": lambda store: store.check(),
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Watched:
    """An open store with one unfinished response, and the messages for its operator."""

    def __init__(self, url: str, timeout_s: float = 10) -> None:
        self.reports: list[str | None] = []
        self.failures: list[str] = []
        self.store = SqlStore(url, (), Availability(self.reports.append, self.failures.append), timeout_s)

    async def open(self) -> None:
        await self.store.open()
        try:
            if await self.store.get("ada", "resp_1") is None:
                await self.store.put(response("resp_1", "in_progress"))
        except StoreError:
            await self.store.close()
            raise


async def opened(url: str, timeout_s: float = 10) -> Watched:
    """An open one that no use has failed of; on a busy machine it may miss a short deadline."""
    async with asyncio.timeout(60):
        while True:
            one = Watched(url, timeout_s)
            with contextlib.suppress(ServerError):
                await one.open()
                return one


@contextlib.asynccontextmanager
async def watched(url: str, timeout_s: float = 10) -> AsyncIterator[Watched]:
    one = await opened(url, timeout_s)
    try:
        yield one
    finally:
        async with asyncio.timeout(60):
            await one.store.close()


async def refuse(use: Awaitable[object]) -> StoreError:
    """The error of a use, which says nothing about the store."""
    with pytest.raises(StoreError) as error:
        async with asyncio.timeout(60):
            await use
    assert (error.value.message, error.value.status, error.value.code) == (NEUTRAL, 503, "store_unavailable")
    assert error.value.retry_after_s
    return error.value


async def until_done(use: Callable[[SqlStore], Awaitable[object]], store: SqlStore) -> None:
    """Use a store that works; on a busy machine it may miss a short deadline."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(StoreError):
                await use(store)
                return


@contextlib.contextmanager
def stopped(postgres: Any) -> Iterator[None]:
    postgres.stop()
    try:
        yield
    finally:
        postgres.start()


@contextlib.contextmanager
def hanging(postgres: Any) -> Iterator[None]:
    postgres.hang()
    try:
        yield
    finally:
        postgres.go_on()


# PostgreSQL


async def test_a_database_that_is_away_is_reported_once_and_once_when_it_is_back(postgres: Any) -> None:
    async with watched(postgres.new_store()) as one:
        with stopped(postgres):
            for use in USES.values():
                await refuse(use(one.store))
        assert len(one.reports) == 1 and one.reports[0] is not None
        assert one.reports[0].startswith("The store at postgresql://antiphon@/store_") and "can't be" in one.reports[0]
        for name, use in USES.items():
            if name not in ("finish", "write off"):
                await use(one.store)
        assert one.reports[1:] == [None] and one.failures == []


async def test_a_database_that_hangs_fails_every_use_and_works_again_when_it_goes_on(postgres: Any) -> None:
    async with watched(postgres.new_store(), 0.3) as one:
        with hanging(postgres):
            for _ in range(3):
                async with asyncio.TaskGroup() as group:
                    for use in USES.values():
                        group.create_task(refuse(use(one.store)))
            assert len(one.reports) == 1 and one.reports[0] is not None
        for name in ("check", "get", "delete", "put"):
            await until_done(USES[name], one.store)
        assert one.reports[-1] is None and not one.store.availability.is_out


class Proxy:
    """
    Between a store and PostgreSQL.

    Attributes:
        url: of the store.
        replies_left: pieces of what the server says that are still passed on.
    """

    def __init__(self, postgres: Any, folder: Path) -> None:
        self.replies_left = sys.maxsize
        self.url = postgres.new_store().replace(str(postgres.folder), str(folder))
        self._server_path, self._path = postgres.folder / ".s.PGSQL.5432", folder / ".s.PGSQL.5432"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with await asyncio.start_unix_server(self._pass_on, self._path):
            yield

    async def _pass_on(self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
        reader, writer = await asyncio.open_unix_connection(self._server_path)

        async def ask() -> None:
            with contextlib.suppress(ConnectionError):  # the store cuts what does not answer
                while piece := await client_reader.read(1 << 16):
                    writer.write(piece)
            writer.close()

        async def reply() -> None:
            with contextlib.suppress(ConnectionError):
                while piece := await reader.read(1 << 16):
                    self.replies_left -= 1
                    if self.replies_left >= 0:
                        client_writer.write(piece)
            client_writer.close()

        async with asyncio.TaskGroup() as group:
            group.create_task(ask())
            group.create_task(reply())


@pytest.mark.parametrize("replies", [0, 1, 3])
async def test_a_database_that_hangs_after_some_replies_fails_every_use_in_time(postgres: Any, replies: int) -> None:
    with tempfile.TemporaryDirectory() as folder:  # the path of a socket may have 100 characters at most
        proxy = Proxy(postgres, Path(folder))
        async with proxy.running(), watched(proxy.url, 0.3) as one:
            for use in (USES["get"], USES["check"], USES["sessions"]):
                await until_done(use, one.store)
                proxy.replies_left = replies
                async with asyncio.timeout(20):
                    with contextlib.suppress(StoreError):  # what needs no more replies is done
                        await use(one.store)
                    proxy.replies_left = 0
                    await refuse(use(one.store))
                    await refuse(use(one.store))
                proxy.replies_left = sys.maxsize
                await until_done(use, one.store)


async def test_a_store_whose_database_hangs_can_be_closed(postgres: Any) -> None:
    one = await opened(postgres.new_store(), 0.3)
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(until_done(USES["get"], one.store))
    with hanging(postgres):
        async with asyncio.timeout(60):
            await one.store.close()


async def test_a_statement_that_takes_too_long_costs_one_connection_and_no_other(postgres: Any) -> None:
    url = postgres.new_store()
    async with watched(url, 3) as one:
        other = SqlStore(url)
        await other.open()
        # The other server's transaction holds the row that the first one wants to change.
        async with other._database.write_transaction() as connection:
            await connection.execute(_lock_all())
            error = await refuse(one.store.finish(response("resp_1")))
            assert "does not answer: nothing came within 3 s" in error.operator_message
            assert await one.store.get("ada", "resp_1") is not None
        await other.close()
        assert await one.store.finish(response("resp_1"))


def _lock_all() -> Any:
    return select(responses.c.number).with_for_update()


async def test_more_uses_than_connections_wait_for_a_bounded_time(postgres: Any) -> None:
    async with watched(postgres.new_store(), 2.0) as one, contextlib.AsyncExitStack() as stack:
        for _ in range(8):
            await stack.enter_async_context(one.store._database.read_connection())
        await refuse(one.store.get("ada", "resp_1"))


async def test_a_server_that_lost_its_connection_keeps_its_number_and_its_responses(postgres: Any) -> None:
    url = postgres.new_store()
    async with watched(url, 2) as one:
        number = one.store._database.server_number
        with hanging(postgres):
            await refuse(one.store.check())
        while one.store.availability.is_out:
            with contextlib.suppress(StoreError):
                await one.store.check()
        assert one.store._database.server_number == number
        assert await one.store.finish(response("resp_1")) is True


async def test_a_response_whose_end_could_not_be_stored_is_an_orphan_of_its_own_server(postgres: Any) -> None:
    async with watched(postgres.new_store()) as one:
        with stopped(postgres):
            await refuse(one.store.finish(response("resp_1")))
        assert [record.id for record in await one.store.orphans()] == ["resp_1"]
        assert await one.store.write_off(response("resp_1", "failed")) is True
        assert await one.store.orphans() == []
        assert await one.store.finish(response("resp_1")) is False


async def test_one_that_its_own_server_begins_again_is_no_orphan_any_more(postgres: Any) -> None:
    record = response("resp_2", "queued")
    async with watched(postgres.new_store()) as one:
        await one.store.background.add(record, BackgroundRecord(key_id=None, request=b"{}", is_streamed=False), None)
        with stopped(postgres):
            await refuse(one.store.background.finish(response("resp_2", "in_progress"), None))
        assert [record.id for record in await one.store.orphans()] == ["resp_2"]
        assert await one.store.background.take_over(record) is True
        assert await one.store.orphans() == []
        assert await one.store.background.take_over(record) is False
        assert await one.store.background.finish(response("resp_2"), None) is True


# SQLite


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "home" / "store.sqlite3"
    sqlite_store(file)
    return file


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield
    other.execute("ROLLBACK")
    other.close()


@contextlib.contextmanager
def full(_file: Path) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("trouble", "explanation"), [(locked, "is locked by another"), (full, "the disk")])
async def test_a_file_that_cannot_be_written_is_reported_once_and_still_read(file: Path, trouble: Any, explanation: str) -> None:
    async with watched(f"sqlite:///{file}?timeout=0.01") as one:
        with trouble(file):
            for _ in range(3):
                for name in ("put", "finish"):
                    await refuse(USES[name](one.store))
                assert await one.store.get("ada", "resp_1") is not None
                await one.store.check()
            assert len(one.reports) == 1 and explanation in str(one.reports[0]) and str(file) in str(one.reports[0])
        await one.store.put(response("resp_2"))
        assert one.reports[1:] == [None]


async def set_pragma(store: SqlStore, pragma: str) -> None:
    """Set it on all connections."""

    def configure(connection: Any, _entry: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    event.listen(store._database._engine.sync_engine, "connect", configure)
    await store._database._engine.dispose()


async def test_a_file_without_room_for_another_page_is_full(file: Path) -> None:
    async with watched(f"sqlite:///{file}") as one:
        await set_pragma(one.store, "max_page_count = 1")  # never less than it has
        error = await refuse(one.store.put(response("resp_2", body=bytes(100_000))))
        assert "can't be written: the disk is full. Free some space" in error.operator_message
        assert await one.store.get("ada", "resp_1") is not None


async def test_a_file_that_is_read_only_is_reported(file: Path) -> None:
    async with watched(f"sqlite:///{file}") as one:
        await set_pragma(one.store, "query_only = ON")  # root may write any file
        error = await refuse(one.store.put(response("resp_2")))
        assert "can't be written: it is read-only" in error.operator_message


@pytest.mark.parametrize("use", USES.values(), ids=USES)
async def test_a_home_that_was_removed_is_noticed_by_every_use(file: Path, use: Any) -> None:
    async with watched(f"sqlite:///{file}") as one:
        shutil.rmtree(file.parent)
        for _ in range(2):
            error = await refuse(use(one.store))
            assert (
                error.operator_message == f"The store at {file} was removed. Put it back, or restart the server to begin with an empty one."
            )
        assert len(one.reports) == 1
        assert not file.parent.exists(), "nothing begins anew by itself"


async def test_a_home_that_was_put_back_is_used_again(file: Path) -> None:
    async with watched(f"sqlite:///{file}") as one:
        away = file.parent.with_name("away")
        file.parent.rename(away)
        await refuse(one.store.get("ada", "resp_1"))
        away.rename(file.parent)
        assert await one.store.get("ada", "resp_1") is not None
        assert len(one.reports) == 2


async def test_a_file_that_was_replaced_is_read_and_written_instead(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite3"
    async with watched(f"sqlite:///{copy}") as other:
        await other.store.put(response("resp_copy"))
    async with watched(f"sqlite:///{file}") as one:
        for name in ("store.sqlite3-wal", "store.sqlite3-shm"):
            (file.parent / name).unlink()
        os.replace(copy, file)
        assert await one.store.get("ada", "resp_copy") is not None
        await one.store.put(response("resp_2"))
    with contextlib.closing(sqlite3.connect(file)) as database:
        assert {id for (id,) in database.execute("SELECT id FROM responses")} == {"resp_1", "resp_copy", "resp_2"}


async def test_a_use_that_fails_by_itself_is_no_outage_and_says_nothing_of_the_store(file: Path) -> None:
    async with watched(f"sqlite:///{file}") as one:
        with pytest.raises(StoreError) as error:
            await one.store.put(response("resp_2", created_at=2**70))
        assert (error.value.status, error.value.code) == (500, "store_failed")
        assert not re.search(r"sqlite|home|SQL", error.value.message)
        assert one.reports == [] and len(one.failures) == 1 and str(file) in one.failures[0]
