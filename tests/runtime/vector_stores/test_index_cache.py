"""The indexes in memory: read when they are used, brought up to date, and dropped for others or when they are idle."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from antiphon.config.tools.vector_stores import VectorStoreSettings
from antiphon.errors import ApiError
from antiphon.records import IndexedFileRecord, IndexPart, VectorStoreRecord
from antiphon.runtime.vector_stores.index_cache import MEMORY_FACTOR, IndexCache
from antiphon.runtime.vector_stores.part_text import StoredText, encode_text
from antiphon.runtime.vector_stores.part_vectors import encode_vectors
from antiphon.stores.memory import MemoryStore
from antiphon.tools.file_search.index import IndexEntry

pytestmark = pytest.mark.anyio

MIB = 1 << 20


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Shelf:
    """Stores with files of any size, a cache of 16 MiB over them, and a clock."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.now = 0.0
        self.outdated = 0
        self._threads = ThreadPoolExecutor(2)
        settings = VectorStoreSettings(index_mib=16, idle_minutes=1)
        self.cache = IndexCache(self.store.indexes, self._dimensions, "words", settings, self._threads, self._on_outdated, lambda: self.now)

    async def _dimensions(self) -> int:
        return 4

    def _on_outdated(self) -> None:
        self.outdated += 1

    async def add(self, store_id: str, file_id: str, size_bytes: int = 100, embedding: str = "words") -> None:
        """A file of that size in a store, which is created if it isn't there."""
        file = IndexedFileRecord(
            store_id=store_id, file_id=file_id, filename="a.txt", created_at=1, max_chunk_tokens=800, overlap_tokens=400
        )
        if await self.store.vector_stores.get("ada", store_id) is None:
            await self.store.vector_stores.create(VectorStoreRecord(id=store_id, tenant="ada", created_at=1, last_active_at=1), [file])
        else:
            assert await self.store.vector_stores.add_files("ada", store_id, [file], now=1)
        job = await self.store.indexes.claim()
        assert job is not None
        await self.store.indexes.begin_indexing(job.file.number, embedding)
        text = f"{file_id} " + "a" * size_bytes
        entry = IndexEntry(
            file_id=file_id, chunks=[text], vectors=np.ones((1, 4), np.float16) / 2, parents=np.zeros(1, np.uint32), version=""
        )
        part = IndexPart(0, 1, encode_text(StoredText(0, text, [(0, len(text))])), encode_vectors(entry))
        await self.store.indexes.add_part(job.file.number, part)
        await self.store.indexes.finish(job.file.number, "completed")

    async def use(self, store_id: str) -> set[str]:
        """Use an index for a second; the files in it."""
        async with self.cache.use(await self.record(store_id)) as entry:
            self.now += 1
            assert entry.files.keys() == entry.index.versions.keys()
            return {*entry.files}

    async def record(self, store_id: str) -> VectorStoreRecord:
        record = await self.store.vector_stores.get("ada", store_id)
        assert record is not None
        return record


async def test_an_index_follows_its_store() -> None:
    shelf = Shelf()
    await shelf.add("vs_1", "file-1")
    assert await shelf.use("vs_1") == {"file-1"}
    await shelf.add("vs_1", "file-2")
    assert await shelf.use("vs_1") == {"file-1", "file-2"}
    await shelf.add("vs_1", "file-1", 200)  # again
    assert await shelf.use("vs_1") == {"file-1", "file-2"}
    await shelf.store.vector_stores.remove_file("ada", "vs_1", "file-2")
    assert await shelf.use("vs_1") == {"file-1"}
    await shelf.store.vector_stores.set_attributes("ada", "vs_1", "file-1", b'{"a":1}')
    async with shelf.cache.use(await shelf.record("vs_1")) as entry:
        assert entry.files["file-1"].attributes == {"a": 1}
    await shelf.cache.close()


async def test_an_index_that_is_up_to_date_is_not_read_again() -> None:
    shelf = Shelf()
    await shelf.add("vs_1", "file-1")
    async with shelf.cache.use(await shelf.record("vs_1")) as first, shelf.cache.use(await shelf.record("vs_1")) as second:
        assert first is second and first.users == 2
    await shelf.cache.close()


async def test_many_first_searches_at_once_make_one_index() -> None:
    shelf = Shelf()
    await shelf.add("vs_1", "file-1")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(shelf.use("vs_1")) for _ in range(8)]
    assert [task.result() for task in tasks] == [{"file-1"}] * 8
    await shelf.cache.close()


async def test_an_idle_index_is_dropped_and_made_again() -> None:
    shelf = Shelf()
    await shelf.add("vs_1", "file-1")
    await shelf.add("vs_2", "file-2")
    async with shelf.cache.use(await shelf.record("vs_1")) as entry:
        await shelf.use("vs_2")
        shelf.now += 61
        await shelf.cache.drop_idle()
        await shelf.cache.forget("vs_1")  # not while it is used
        async with shelf.cache.use(await shelf.record("vs_1")) as same:
            assert same is entry
    await shelf.cache.drop_idle()
    async with shelf.cache.use(await shelf.record("vs_1")) as same:
        assert same is entry
    await shelf.cache.forget("vs_1")
    async with shelf.cache.use(await shelf.record("vs_1")) as other:
        assert other is not entry and {*other.files} == {"file-1"}
    await shelf.cache.close()


async def test_the_index_that_was_used_least_recently_makes_room() -> None:
    shelf = Shelf()
    for number in range(3):
        await shelf.add(f"vs_{number}", "file-1", 3 * MIB)  # 6 MiB each in memory: two fit
    entries = {}
    for number in (0, 1, 0, 2):
        async with shelf.cache.use(await shelf.record(f"vs_{number}")) as entries[number]:
            shelf.now += 1
    assert entries[0].index.versions and not entries[1].index.versions  # closed
    async with shelf.cache.use(await shelf.record("vs_0")) as entry:
        assert entry is entries[0]
    await shelf.cache.close()


async def test_room_that_others_use_is_not_taken() -> None:
    shelf = Shelf()
    for number in range(3):
        await shelf.add(f"vs_{number}", "file-1", 3 * MIB)
    async with shelf.cache.use(await shelf.record("vs_0")), shelf.cache.use(await shelf.record("vs_1")):
        with pytest.raises(ApiError, match="index_mib") as refusal:
            await shelf.use("vs_2")
        assert refusal.value.status == 503
    assert await shelf.use("vs_2") == {"file-1"}
    await shelf.cache.close()


async def test_a_store_that_never_fits_is_refused() -> None:
    shelf = Shelf()
    await shelf.add("vs_1", "file-1", 16 * MIB // MEMORY_FACTOR)
    with pytest.raises(ApiError, match="index_mib") as refusal:
        await shelf.use("vs_1")
    assert (refusal.value.status, refusal.value.code) == (400, "vector_store_too_large")
    await shelf.cache.close()


async def test_files_of_another_model_are_left_out_and_given_back_to_be_indexed() -> None:
    shelf = Shelf()
    await shelf.add("vs_1", "file-1")
    await shelf.add("vs_1", "file-2", embedding="gemma")
    assert await shelf.use("vs_1") == {"file-1"}
    assert shelf.outdated == 1
    assert (await shelf.record("vs_1")).counts.in_progress == 1
    await shelf.cache.close()
