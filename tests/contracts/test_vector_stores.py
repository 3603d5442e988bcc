"""What every store does with vector stores, their files, and the chunks and vectors of these."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from antiphon.records import (
    FileBatchRecord,
    FileCounts,
    IndexedFileRecord,
    IndexingError,
    IndexingJob,
    IndexPart,
    VectorStoreRecord,
    VectorStoreUsage,
)
from antiphon.stores.base import Store, UnknownCursor
from antiphon.stores.sql.store import SqlStore
from antiphon.stores.vector_stores import ERASE_FILES, PageCursor, VectorStoreChanges
from support.stores.tables import sqlite_store

pytestmark = pytest.mark.anyio

DAY_S = 86_400
PARTS = [IndexPart(0, 2, b"ab", b"\x00\x01"), IndexPart(1, 1, b"c", b"\x02\x03")]
PARTS_BYTES = 7


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def new_store(id: str = "vs_1", tenant: str = "ada", days: int | None = None) -> VectorStoreRecord:
    return VectorStoreRecord(id=id, tenant=tenant, created_at=100, last_active_at=100, name="Owls", expires_after_days=days)


def new_file(file_id: str, store_id: str = "vs_1", batch_id: str | None = None) -> IndexedFileRecord:
    return IndexedFileRecord(
        store_id=store_id,
        file_id=file_id,
        filename=f"{file_id}.txt",
        created_at=100,
        max_chunk_tokens=800,
        overlap_tokens=400,
        batch_id=batch_id,
    )


async def create(store: Store, *file_ids: str, id: str = "vs_1", tenant: str = "ada", days: int | None = None) -> None:
    await store.vector_stores.create(new_store(id, tenant, days), [new_file(file_id, id) for file_id in file_ids])


async def claim(store: Store, after_tenant: str = "") -> IndexingJob:
    job = await store.indexes.claim(after_tenant)
    assert job is not None
    return job


async def index(store: Store) -> int:
    """Index the next file; returns its number."""
    number = (await claim(store)).file.number
    assert await store.indexes.begin_indexing(number, "minilm") == 0
    for part in PARTS:
        assert await store.indexes.add_part(number, part)
    assert await store.indexes.finish(number, "completed")
    return number


async def version(store: Store, id: str = "vs_1") -> int:
    record = await store.vector_stores.get("ada", id)
    assert record is not None
    return record.version


# Stores


async def test_a_store_comes_back_as_it_was_created(store: Store) -> None:
    record = replace(new_store(days=2), name="Eulen ☽", description="of the night", metadata=b'{"a":"b"}')
    await store.vector_stores.create(record, [])
    assert await store.vector_stores.get("ada", "vs_1") == record
    assert record.expires_at == 100 + 2 * DAY_S


async def test_another_tenants_store_is_as_unknown_in_every_way(store: Store) -> None:
    await create(store, "file-1")
    stores = store.vector_stores
    await stores.add_files("ada", "vs_1", [], now=100, batch=FileBatchRecord(id="vsfb_1", store_id="vs_1", created_at=100))
    for tenant, id in (("bob", "vs_1"), ("ada", "vs_2"), ("ada", "vs_\0")):
        assert await stores.get(tenant, id) is None
        assert not await stores.update(tenant, id, VectorStoreChanges(name="Mine"), now=100)
        assert not await stores.delete(tenant, id)
        assert not await stores.add_files(tenant, id, [new_file("file-2", id)], now=100)
        assert await stores.file(tenant, id, "file-1") is None
        assert (await stores.page_files(tenant, id, PageCursor(limit=5))).files == ()
        assert not await stores.set_attributes(tenant, id, "file-1", b'{"a":1}')
        assert not await stores.remove_file(tenant, id, "file-1")
        assert await stores.batch(tenant, id, "vsfb_1") is None
        assert not await stores.cancel_batch(tenant, id, "vsfb_1")
    assert (await stores.page("bob", PageCursor(limit=5))).stores == ()
    assert await stores.usage("bob") == VectorStoreUsage(0, 0)
    await stores.remove_everywhere("bob", "file-1")
    assert await stores.file("ada", "vs_1", "file-\0") is None and await stores.batch("ada", "vs_1", "vsfb_\0") is None
    assert (await stores.file("ada", "vs_1", "file-1")) is not None


async def test_an_update_replaces_name_metadata_and_expiry(store: Store) -> None:
    await create(store)
    await store.vector_stores.touch("vs_1", 500)
    changes = VectorStoreChanges(name="", metadata=b'{"c":"d"}', expires_after_days=1)
    assert await store.vector_stores.update("ada", "vs_1", changes, now=500)
    record = await store.vector_stores.get("ada", "vs_1")
    assert record is not None and (record.name, record.metadata, record.expires_after_days) == ("", b'{"c":"d"}', 1)
    assert (record.last_active_at, record.expires_at) == (500, 500 + DAY_S)
    assert await store.vector_stores.update("ada", "vs_1", VectorStoreChanges(expires_after_days=None), now=500)
    assert not await store.vector_stores.erase(10 * DAY_S)
    record = await store.vector_stores.get("ada", "vs_1")
    assert record is not None and record.expires_at is None and record.state == "active"


async def test_an_update_leaves_what_it_does_not_name(store: Store) -> None:
    await create(store, days=3)
    for changes in (
        VectorStoreChanges(name="Bells"),
        VectorStoreChanges(metadata=b'{"c":"d"}'),
        VectorStoreChanges(expires_after_days=2),
        VectorStoreChanges(),
    ):
        assert await store.vector_stores.update("ada", "vs_1", changes, now=100)
    record = await store.vector_stores.get("ada", "vs_1")
    assert record is not None and (record.name, record.metadata, record.expires_after_days) == ("Bells", b'{"c":"d"}', 2)
    assert record.expires_at == 100 + 2 * DAY_S


@pytest.mark.parametrize("days", [None, 9])
async def test_no_change_of_the_expiry_brings_an_expired_store_back(store: Store, days: int | None) -> None:
    await create(store, days=1)
    end = 100 + DAY_S
    assert not await store.vector_stores.update("ada", "vs_1", VectorStoreChanges(name="Mine", expires_after_days=days), now=end)
    assert await store.vector_stores.update("ada", "vs_1", VectorStoreChanges(metadata=b'{"c":"d"}'), now=end)
    record = await store.vector_stores.get("ada", "vs_1")
    assert record is not None and record.is_expired(end) and (record.name, record.metadata) == ("Owls", b'{"c":"d"}')


async def test_use_puts_off_the_expiry_until_it_is_too_late(store: Store) -> None:
    await create(store, "file-1", days=1)
    await store.vector_stores.touch("vs_1", 100 + DAY_S - 1)
    record = await store.vector_stores.get("ada", "vs_1")
    assert record is not None and record.expires_at == 100 + 2 * DAY_S - 1 and not record.is_expired(100 + DAY_S)
    await store.vector_stores.touch("vs_1", 50)  # a clock that is behind
    end = 100 + 2 * DAY_S - 1
    assert record.is_expired(end)
    await store.vector_stores.touch("vs_1", end)
    assert await store.vector_stores.get("ada", "vs_1") == record
    assert not await store.vector_stores.add_files("ada", "vs_1", [new_file("file-2")], now=end)


async def test_an_expired_store_stays_without_its_files(store: Store) -> None:
    await create(store, "file-1", days=1)
    number = await index(store)
    assert not await store.vector_stores.erase(100 + DAY_S - 1)
    assert (await store.indexes.contents("vs_1")).files
    assert not await store.vector_stores.erase(100 + DAY_S)
    record = await store.vector_stores.get("ada", "vs_1")
    assert record is not None and (record.state, record.counts.total, record.usage_bytes) == ("expired", 0, 0)
    assert (await store.indexes.contents("vs_1")).files == () and await store.indexes.parts(number, 0, 5) == []
    assert not await store.vector_stores.update("ada", "vs_1", VectorStoreChanges(expires_after_days=None), now=0)  # no way back
    record = await store.vector_stores.get("ada", "vs_1")
    assert record is not None and record.is_expired(0)


async def test_a_deleted_store_is_gone_at_once_and_its_files_little_by_little(store: Store) -> None:
    await create(store, *(f"file-{number}" for number in range(ERASE_FILES + 1)))
    number = await index(store)
    running = (await claim(store)).file.number
    assert await store.vector_stores.delete("ada", "vs_1")
    assert not await store.vector_stores.delete("ada", "vs_1")
    assert await store.vector_stores.get("ada", "vs_1") is None
    assert (await store.vector_stores.page("ada", PageCursor(limit=5))).stores == ()
    assert (await store.indexes.contents("vs_1")).files == ()
    assert await store.indexes.claim() is None
    assert await store.indexes.find_lost([running]) == {running}
    assert await store.vector_stores.usage("ada") == VectorStoreUsage(0, PARTS_BYTES)
    assert await store.vector_stores.erase(100)
    assert not await store.vector_stores.erase(100)
    assert await store.vector_stores.usage("ada") == VectorStoreUsage(0, 0)
    assert await store.indexes.parts(number, 0, 5) == []


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_follow_each_other_both_ways(store: Store, order: str) -> None:
    for number in range(5):
        await create(store, id=f"vs_{number}")
    ids = [f"vs_{number}" for number in range(5)]
    ids = ids if order == "asc" else ids[::-1]

    async def page(limit: int, after: str | None = None, before: str | None = None) -> tuple[list[str], bool]:
        cursor = PageCursor(limit=limit, order="asc" if order == "asc" else "desc", after=after, before=before)
        page = await store.vector_stores.page("ada", cursor)
        return [each.id for each in page.stores], page.has_more

    assert await page(2) == (ids[:2], True)
    assert await page(2, after=ids[1]) == (ids[2:4], True)
    assert await page(2, after=ids[2]) == (ids[3:], False)
    assert await page(2, before=ids[4]) == (ids[2:4], True)
    assert await page(2, before=ids[2]) == (ids[:2], False)
    assert await page(5, after=ids[0], before=ids[4]) == (ids[1:4], False)
    assert await page(5, before=ids[0]) == ([], False)
    for cursor in ({"after": "vs_9"}, {"before": "vs_9"}, {"after": "vs_\0"}):
        with pytest.raises(UnknownCursor):
            await page(2, **cursor)


async def test_counts_and_bytes_are_those_of_the_files(store: Store) -> None:
    await create(store, "file-1", "file-2", "file-3")
    await create(store, "file-1", id="vs_2")
    await index(store)
    number = (await claim(store)).file.number
    assert await store.indexes.finish(number, "failed", error=IndexingError("invalid_file", "It is damaged."))
    record = await store.vector_stores.get("ada", "vs_1")
    assert record is not None and record.counts == FileCounts(in_progress=1, completed=1, failed=1) and record.counts.total == 3
    assert record.usage_bytes == PARTS_BYTES
    page = await store.vector_stores.page("ada", PageCursor(limit=5, order="asc"))
    assert page.stores[0] == record and page.stores[1].counts == FileCounts(in_progress=1)
    assert await store.vector_stores.usage("ada") == VectorStoreUsage(2, PARTS_BYTES)


# Files


async def test_a_file_comes_back_as_it_was_added(store: Store) -> None:
    await create(store)
    file = replace(new_file("file-1"), attributes=b'{"year":1843}', max_chunk_tokens=100, overlap_tokens=0)
    assert await store.vector_stores.add_files("ada", "vs_1", [file], now=900)
    added = await store.vector_stores.file("ada", "vs_1", "file-1")
    assert added is not None and added.number > 0 and replace(added, number=0) == file
    record = await store.vector_stores.get("ada", "vs_1")
    assert record is not None and record.last_active_at == 900


async def test_adding_a_file_again_begins_anew(store: Store) -> None:
    await create(store, "file-1")
    number = await index(store)
    before = await version(store)
    assert await store.vector_stores.add_files("ada", "vs_1", [new_file("file-1")], now=100)
    again = await store.vector_stores.file("ada", "vs_1", "file-1")
    assert again is not None and again.number > number and again.status == "in_progress"
    assert await version(store) > before
    assert await store.indexes.parts(number, 0, 5) == []


async def test_a_number_is_not_used_again(store: Store) -> None:
    await create(store, "file-1")
    number = (await claim(store)).file.number
    assert await store.vector_stores.remove_file("ada", "vs_1", "file-1")
    await store.vector_stores.add_files("ada", "vs_1", [new_file("file-1")], now=100)
    assert (await claim(store)).file.number > number


async def test_files_are_listed_by_status_and_batch(store: Store) -> None:
    await create(store, "file-0", "file-1")
    batch = FileBatchRecord(id="vsfb_1", store_id="vs_1", created_at=100)
    await store.vector_stores.add_files("ada", "vs_1", [new_file(f"file-{n}", batch_id="vsfb_1") for n in (2, 3, 4)], now=100, batch=batch)
    await index(store)
    await index(store)
    await index(store)

    async def page(batch_id: str | None = None, status: str | None = None, **cursor: str) -> list[str]:
        at = PageCursor(limit=3, order="asc", after=cursor.get("after"), before=cursor.get("before"))
        files = await store.vector_stores.page_files("ada", "vs_1", at, status=status, batch_id=batch_id)  # type: ignore[arg-type]
        return [file.file_id for file in files.files]

    assert await page() == ["file-0", "file-1", "file-2"]
    assert await page(after="file-2") == ["file-3", "file-4"]
    assert await page(status="in_progress") == ["file-3", "file-4"]
    assert await page(status="in_progress", after="file-0") == ["file-3", "file-4"]
    assert await page(batch_id="vsfb_1") == ["file-2", "file-3", "file-4"]
    assert await page(batch_id="vsfb_1", status="completed") == ["file-2"]
    assert await page(batch_id="vsfb_1", before="file-4") == ["file-2", "file-3"]
    assert await page(batch_id="vsfb_2") == []
    for cursor in ("file-9", "file-0"):  # which is not of the batch
        with pytest.raises(UnknownCursor):
            await page(batch_id="vsfb_1", after=cursor)


async def test_attributes_are_replaced_and_a_search_sees_it(store: Store) -> None:
    await create(store, "file-1")
    await index(store)
    before = await version(store)
    assert await store.vector_stores.set_attributes("ada", "vs_1", "file-1", b'{"a":true}')
    assert not await store.vector_stores.set_attributes("ada", "vs_1", "file-2", b"{}")
    contents = await store.indexes.contents("vs_1")
    assert [file.attributes for file in contents.files] == [b'{"a":true}']
    assert contents.version > before


async def test_a_file_is_taken_out_with_its_parts(store: Store) -> None:
    await create(store, "file-1", "file-2")
    number = await index(store)
    before = await version(store)
    assert await store.vector_stores.remove_file("ada", "vs_1", "file-1")
    assert not await store.vector_stores.remove_file("ada", "vs_1", "file-1")
    assert await store.indexes.parts(number, 0, 5) == []
    assert await version(store) > before


async def test_a_deleted_file_leaves_all_stores_of_its_tenant(store: Store) -> None:
    await create(store, "file-1", "file-2")
    await create(store, "file-1", id="vs_2")
    await create(store, "file-1", id="vs_3", tenant="bob")
    await store.vector_stores.remove_everywhere("ada", "file-1")
    await store.vector_stores.remove_everywhere("ada", "file-\0")
    assert await store.vector_stores.file("ada", "vs_1", "file-1") is None
    assert await store.vector_stores.file("ada", "vs_2", "file-1") is None
    assert await store.vector_stores.file("ada", "vs_1", "file-2") is not None
    assert await store.vector_stores.file("bob", "vs_3", "file-1") is not None


async def test_cancelling_a_batch_stops_what_is_not_indexed_yet(store: Store) -> None:
    await create(store)
    batch = FileBatchRecord(id="vsfb_1", store_id="vs_1", created_at=100)
    files = [new_file(f"file-{n}", batch_id="vsfb_1") for n in range(3)]
    assert await store.vector_stores.add_files("ada", "vs_1", files, now=100, batch=batch)
    assert await store.vector_stores.batch("ada", "vs_1", "vsfb_1") == replace(batch, counts=FileCounts(in_progress=3))
    await index(store)
    number = (await claim(store)).file.number
    assert await store.indexes.begin_indexing(number, "minilm") == 0
    assert await store.indexes.add_part(number, PARTS[0])
    assert await store.vector_stores.cancel_batch("ada", "vs_1", "vsfb_1")
    assert not await store.vector_stores.cancel_batch("ada", "vs_1", "vsfb_2")
    assert await store.indexes.begin_indexing(number, "minilm") is None
    assert not await store.indexes.add_part(number, PARTS[0])
    assert not await store.indexes.finish(number, "completed")
    assert await store.indexes.claim() is None and await store.indexes.parts(number, 0, 5) == []
    assert await store.vector_stores.usage("ada") == VectorStoreUsage(1, PARTS_BYTES)
    done = await store.vector_stores.batch("ada", "vs_1", "vsfb_1")
    assert done == replace(batch, is_cancelled=True, counts=FileCounts(completed=1, cancelled=2))


# Indexing


async def test_tenants_take_turns_and_their_files_go_in_order(store: Store) -> None:
    await create(store, "file-1", "file-2", "file-3")
    await create(store, "file-4", "file-5", id="vs_2", tenant="bob")
    jobs, tenant = [], ""
    while (job := await store.indexes.claim(tenant)) is not None:
        tenant = job.tenant
        jobs.append((tenant, job.file.file_id, job.file.store_id))
    assert jobs == [
        ("ada", "file-1", "vs_1"),
        ("bob", "file-4", "vs_2"),
        ("ada", "file-2", "vs_1"),
        ("bob", "file-5", "vs_2"),
        ("ada", "file-3", "vs_1"),
    ]


async def test_a_claim_passes_over_tenants(store: Store) -> None:
    await create(store, "file-1", tenant="")
    await create(store, "file-2", "file-3", id="vs_2")
    await create(store, "file-4", id="vs_3", tenant="bob")
    jobs = [await store.indexes.claim("bob", other_than) for other_than in ({""}, {"", "ada"}, {"", "ada"}, {"ada"})]
    assert [job and job.file.file_id for job in jobs] == ["file-2", "file-4", None, "file-1"]


async def test_a_tenant_without_a_name_has_its_turn(store: Store) -> None:
    await create(store, "file-1", tenant="")
    await create(store, "file-2", id="vs_2")
    assert {(await claim(store, tenant)).tenant for tenant in ("", "ada")} == {"", "ada"}
    assert await store.indexes.claim() is None


async def test_an_indexed_file_is_what_a_search_finds(store: Store) -> None:
    await create(store, "file-1", "file-2")
    before = await version(store)
    assert (await store.indexes.contents("vs_1")).files == ()
    number = await index(store)
    contents = await store.indexes.contents("vs_1")
    assert [(file.number, file.file_id, file.chunk_count, file.embedding) for file in contents.files] == [(number, "file-1", 3, "minilm")]
    assert contents.version == await version(store) > before
    assert list(await store.indexes.parts(number, 0, 5)) == PARTS
    assert list(await store.indexes.parts(number, 1, 5)) == PARTS[1:]
    assert list(await store.indexes.parts(number, 0, 1)) == PARTS[:1]
    assert await store.indexes.chunks(number, 1) == b"c"
    assert await store.indexes.chunks(number, 2) is None


async def test_a_file_that_fails_says_why_and_loses_its_parts(store: Store) -> None:
    await create(store, "file-1")
    number = (await claim(store)).file.number
    await store.indexes.begin_indexing(number, "minilm")
    await store.indexes.add_part(number, PARTS[0])
    error = IndexingError("server_error", "Try again.")
    assert await store.indexes.finish(number, "failed", error=error)
    assert not await store.indexes.finish(number, "completed")
    file = await store.vector_stores.file("ada", "vs_1", "file-1")
    assert file is not None and (file.status, file.error, file.chunk_count) == ("failed", error, 0)
    assert await store.indexes.parts(number, 0, 5) == []


async def test_a_file_that_is_not_claimed_can_not_be_indexed(store: Store) -> None:
    await create(store, "file-1")
    file = await store.vector_stores.file("ada", "vs_1", "file-1")
    assert file is not None
    assert await store.indexes.begin_indexing(file.number, "minilm") is None
    assert not await store.indexes.add_part(file.number, PARTS[0])
    assert await store.indexes.find_lost([file.number, 99]) == {file.number, 99}
    assert (await claim(store)).file.number == file.number
    assert await store.indexes.find_lost([file.number]) == set()
    assert await store.indexes.claim() is None


async def test_what_is_given_back_can_be_claimed_and_is_nobodys(store: Store) -> None:
    await create(store, "file-1")
    number = (await claim(store)).file.number
    await store.indexes.release()
    assert await store.indexes.begin_indexing(number, "minilm") is None
    assert (await claim(store)).file.number == number


async def test_files_of_another_models_vectors_are_indexed_again(store: Store) -> None:
    await create(store, "file-1", "file-2")
    number = await index(store)
    before = await version(store)
    assert await store.indexes.reindex("vs_1", "minilm") == 0
    assert await store.indexes.reindex("vs_1", "gemma") == 1
    assert await version(store) > before and (await store.indexes.contents("vs_1")).files == ()
    assert (await claim(store)).file.number == number
    assert await store.indexes.begin_indexing(number, "gemma") == 0
    assert await store.indexes.parts(number, 0, 5) == []
    assert await store.indexes.reindex("vs_9", "gemma") == 0


# Several servers, and restarts


@pytest.fixture(params=["sqlite", "postgresql"])
def lasting_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return sqlite_store(tmp_path / "store.sqlite3")
    url: str = request.getfixturevalue("postgres").new_store()
    return url


async def test_a_restart_goes_on_where_the_last_server_stopped(lasting_url: str) -> None:
    first = SqlStore(lasting_url)
    await first.open()
    await create(first, "file-1")
    number = (await claim(first)).file.number
    await first.indexes.begin_indexing(number, "minilm")
    await first.indexes.add_part(number, PARTS[0])
    await first.close()
    second = SqlStore(lasting_url)
    await second.open()
    assert (await claim(second)).file.number == number
    assert await second.indexes.begin_indexing(number, "minilm") == 1
    assert await second.indexes.add_part(number, PARTS[1])
    assert await second.indexes.finish(number, "completed")
    assert list(await second.indexes.parts(number, 0, 5)) == PARTS
    await second.close()


async def test_servers_of_one_store_never_index_the_same_file(request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("postgres").new_store()
    servers = [SqlStore(url), SqlStore(url)]
    for server in servers:
        await server.open()
    await create(servers[0], "file-1", "file-2")
    first, second = (await claim(servers[0])).file, (await claim(servers[1])).file
    assert {first.file_id, second.file_id} == {"file-1", "file-2"}
    assert await servers[1].indexes.begin_indexing(first.number, "minilm") is None
    await servers[0].close()  # its file is free for the other one
    assert (await claim(servers[1])).file.number == first.number
    await servers[1].close()
