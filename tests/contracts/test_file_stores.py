"""What every store does with records of uploaded files."""

import pytest
from msgspec.structs import replace

from antiphon.records import FileRecord
from antiphon.stores.base import Store, UnknownCursor
from antiphon.stores.files import FileUsage

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def record(id: str, tenant: str = "ada", key_id: str | None = "key_1", expires_at: int | None = None, size_bytes: int = 10) -> FileRecord:
    return FileRecord(id=id, tenant=tenant, key_id=key_id, created_at=100, expires_at=expires_at, bytes=size_bytes)


async def add(store: Store, file: FileRecord, purpose: str = "user_data") -> FileRecord:
    await store.files.add(file)
    complete = replace(file, filename="a.txt", purpose=purpose, status="processed")
    assert await store.files.complete(complete)
    return complete


async def ids(
    store: Store, purpose: str | None = None, after: str | None = None, limit: int = 10, order: str = "asc", now: int = 200
) -> object:
    page = await store.files.page("ada", purpose=purpose, now=now, after=after, limit=limit, order="asc" if order == "asc" else "desc")
    return [file.id for file in page.files], page.has_more


async def test_a_file_comes_back_as_it_was_completed_and_not_before(store: Store) -> None:
    await store.files.add(record("file-1"))
    assert await store.files.get("ada", "file-1", 200) is None
    assert await ids(store) == ([], False)
    complete = replace(record("file-1"), filename="ä.txt", purpose="batch", bytes=3, expires_at=300, status="processed")
    assert await store.files.complete(complete)
    assert await store.files.get("ada", "file-1", 200) == complete
    assert not await store.files.complete(complete)  # once


async def test_another_tenants_file_is_as_unknown(store: Store) -> None:
    await add(store, record("file-1"))
    assert await store.files.get("bob", "file-1", 200) is None
    assert not await store.files.hide("bob", "file-1", 200)
    assert await store.files.usage("bob") == FileUsage(0, 0)
    assert await store.files.get("ada", "file-\0", 200) is None
    assert not await store.files.hide("ada", "file-\0", 200)


async def test_several_files_are_found_together(store: Store) -> None:
    files = [await add(store, record(f"file-{number}")) for number in range(3)]
    await add(store, record("file-3", tenant="bob"))
    await store.files.add(record("file-4"))
    found = await store.files.get_all("ada", ["file-2", "file-0", "file-3", "file-4", "file-9", "file-\0"], 200)
    assert found == {"file-0": files[0], "file-2": files[2]}
    assert await store.files.get_all("ada", [], 200) == {}


async def test_an_expired_file_is_gone_at_once_and_is_disposable(store: Store) -> None:
    await add(store, record("file-1", expires_at=200))
    assert await store.files.get("ada", "file-1", 199) is not None
    assert await store.files.disposable(199, 0, 10) == []
    assert await store.files.get("ada", "file-1", 200) is None
    assert await ids(store) == ([], False)
    assert [file.id for file in await store.files.disposable(200, 0, 10)] == ["file-1"]


async def test_a_hidden_file_counts_until_it_is_removed(store: Store) -> None:
    await add(store, record("file-1"))
    assert await store.files.hide("ada", "file-1", 200)
    assert not await store.files.hide("ada", "file-1", 200)
    assert await store.files.get("ada", "file-1", 200) is None
    assert [file.id for file in await store.files.disposable(0, 0, 10)] == ["file-1"]
    assert await store.files.usage("ada") == FileUsage(1, 10)
    await store.files.remove("file-1")
    await store.files.remove("file-1")
    assert await store.files.usage("ada") == FileUsage(0, 0)
    assert await store.files.disposable(0, 0, 10) == []


async def test_unfinished_files_count_and_become_disposable_with_time(store: Store) -> None:
    await store.files.add(record("file-1"))
    await store.files.add(record("file-2", key_id=None, size_bytes=5))
    assert await store.files.usage("ada") == FileUsage(2, 15)
    assert await store.files.usage("ada", "key_1") == FileUsage(1, 10)
    assert await store.files.disposable(200, 100, 10) == []
    assert [file.id for file in await store.files.disposable(200, 101, 10)] == ["file-1", "file-2"]
    assert len(await store.files.disposable(200, 101, 1)) == 1
    await store.files.remove("file-1")
    assert not await store.files.complete(record("file-1"))


async def test_a_file_that_a_living_server_works_on_is_no_orphan(store: Store) -> None:
    await store.files.add(record("file-1"))
    assert list(await store.files.orphans()) == []


async def test_pages_follow_each_other_in_both_orders(store: Store) -> None:
    for number in range(5):
        await add(store, record(f"file-{number}"), "batch" if number % 2 else "user_data")
    assert await ids(store, limit=2) == (["file-0", "file-1"], True)
    assert await ids(store, limit=2, after="file-2") == (["file-3", "file-4"], False)
    assert await ids(store, limit=3, order="desc") == (["file-4", "file-3", "file-2"], True)
    assert await ids(store, limit=3, order="desc", after="file-2") == (["file-1", "file-0"], False)
    assert await ids(store, purpose="batch") == (["file-1", "file-3"], False)
    assert await ids(store, purpose="batch", after="file-2") == (["file-3"], False)
    assert await ids(store, purpose="b\0") == ([], False)
    for cursor in ("file-9", "file-\0"):
        with pytest.raises(UnknownCursor):
            await ids(store, after=cursor)
