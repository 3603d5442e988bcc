"""A write that is done, though its server never hears of it: nobody else takes up what that server has, so it must itself."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from antiphon.errors import StoreError
from antiphon.records import BackgroundRecord
from antiphon.stores.database.connection import TimedConnection
from antiphon.stores.sql.store import SqlStore
from contracts import test_vector_stores as index_stores
from support.stores.responses import response

pytestmark = pytest.mark.anyio

WAITING = BackgroundRecord(key_id=None, request=b"{}", is_streamed=False)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextlib.asynccontextmanager
async def opened(url: str, *server_numbers: int) -> AsyncIterator[SqlStore]:
    store = SqlStore(url, server_numbers)
    await store.open()
    yield store
    await store.close()


@contextlib.contextmanager
def lost_answers(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The connection fails when a transaction is committed, and before that is known."""
    write = store._database.write_transaction

    @contextlib.asynccontextmanager
    async def commit_unheard() -> AsyncIterator[TimedConnection]:
        async with write() as connection:
            yield connection
        raise OSError("connection lost")

    with monkeypatch.context() as patch:
        patch.setattr(store._database, "write_transaction", commit_unheard)
        yield


async def test_a_file_whose_claim_was_lost_is_claimed_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(url, 1, 2) as one, opened(url, 2, 1) as other:
        await index_stores.create(one, "file-1", "file-2")
        with lost_answers(one, monkeypatch), pytest.raises(StoreError):
            await one.indexes.claim()
        assert (await index_stores.claim(other)).file.file_id == "file-2", "the first server lives, and has the first file"
        assert (await index_stores.claim(one)).file.file_id == "file-1"
        assert await one.indexes.claim() is None, "it has it, and knows"


async def test_a_response_whose_taking_over_was_lost_is_taken_over_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    queued = response("resp_1", "queued")
    async with opened(url, 9) as gone:
        await gone.background.add(queued, WAITING, None)
    async with opened(url, 1, 2) as one, opened(url, 2, 1) as other:
        with lost_answers(one, monkeypatch), pytest.raises(StoreError):
            await one.background.take_over(queued)
        assert await other.orphans() == [], "the first server lives"
        assert [record.id for record in await one.orphans()] == ["resp_1"]
        assert await one.background.take_over(queued)
        assert await one.orphans() == []


async def test_what_another_server_has_taken_over_is_not_failed(postgres: Any) -> None:
    """An outage of the database: one server could not end its response, and is taken for dead until it is connected again."""
    url, queued = postgres.new_store(), response("resp_1", "queued")
    async with opened(url) as one, opened(url) as other:
        await one.background.add(queued, WAITING, None)
        postgres.stop()
        with pytest.raises(StoreError):
            await one.background.finish(response("resp_1", "failed"), None)
        postgres.start()
        await other.check()
        assert await other.background.take_over(queued)
        assert await one.orphans() == []
        assert not await one.background.end(response("resp_1", "failed"), lambda first: None, is_orphan=True)  # type: ignore[arg-type,return-value]
        assert await other.background.finish(response("resp_1"), None)
