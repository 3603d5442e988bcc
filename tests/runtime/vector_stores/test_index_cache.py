"""The indexes in memory: read when they are used, brought up to date, and dropped for others or when they are idle."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from antiphon.config.tools.vector_stores import VectorStoreSettings
from antiphon.errors import ApiError
from antiphon.records import IndexedFileRecord, IndexPart, VectorStoreRecord
from antiphon.runtime.vector_stores.index_cache import MEMORY_FACTOR, IndexCache
from antiphon.runtime.vector_stores.index_files import IndexFiles
from antiphon.runtime.vector_stores.part_text import StoredText, encode_text
from antiphon.runtime.vector_stores.part_vectors import encode_vectors
from antiphon.stores.memory import MemoryStore
from antiphon.stores.vector_stores import IndexRecords, VectorStoreContents
from antiphon.tools.file_search.index import IndexEntry

pytestmark = pytest.mark.anyio

MIB = 1 << 20


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Shelf:
    """Stores with files of any size, a cache of 16 MiB over them, and a clock."""

    def __init__(self, folder: Path | None = None, disk_bytes: int = 64 * MIB) -> None:
        self.store = MemoryStore()
        self.now = 0.0
        self.outdated = 0
        self.files = IndexFiles(folder, disk_bytes)
        self.cache = self.new_cache()

    def new_cache(self, embedding: str = "words", indexes: IndexRecords | None = None) -> IndexCache:
        """That of another process, or of the same server after a restart."""
        settings, threads = VectorStoreSettings(index_mib=16, idle_minutes=1), ThreadPoolExecutor(2)
        indexes = indexes or self.store.indexes
        return IndexCache(indexes, self._dimensions, embedding, settings, threads, self._on_outdated, self.files, lambda: self.now)

    async def restart(self) -> None:
        await self.cache.close()
        self.cache = self.new_cache()

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


async def test_two_indexes_that_need_room_at_once_may_drop_the_same_one() -> None:
    shelf = Shelf()
    for store_id, size_bytes in (("vs_1", 2 * MIB), ("vs_2", 2 * MIB), ("vs_large", 13 * MIB // 2), ("vs_small", MIB)):
        await shelf.add(store_id, "file-1", size_bytes)
    await shelf.use("vs_1")
    await shelf.use("vs_2")
    # The large one needs the room of both others, the small one that of the second, while the first is being closed.
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(shelf.use(store_id)) for store_id in ("vs_large", "vs_small")]
    assert [task.result() for task in tasks] == [{"file-1"}] * 2
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


async def add_and_use(shelf: Shelf, *file_ids: str) -> None:
    for file_id in file_ids:
        await shelf.add("vs_1", file_id)
    assert await shelf.use("vs_1") == {*file_ids}


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.index"))


def names(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.iterdir())


def index_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.index"))


class WithoutParts:
    """What is stored of files can't be read any more: they can only be found in an index that was kept."""

    def __init__(self, indexes: IndexRecords) -> None:
        self._indexes = indexes

    async def contents(self, store_id: str) -> VectorStoreContents:
        return await self._indexes.contents(store_id)

    async def reindex(self, store_id: str, embedding: str) -> int:
        return await self._indexes.reindex(store_id, embedding)

    async def parts(self, number: int, first: int, limit: int) -> Sequence[IndexPart]:
        return []


async def kept_files(shelf: Shelf, embedding: str = "words") -> set[str]:
    """The files that are in the index after a restart without being read from the store."""
    await shelf.restart()
    cache = shelf.new_cache(embedding, cast(IndexRecords, WithoutParts(shelf.store.indexes)))
    async with cache.use(await shelf.record("vs_1")) as entry:
        files = {*entry.index.versions}
    await cache.close()
    return files


async def test_an_index_is_kept_for_the_next_use(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    await add_and_use(shelf, "file-1", "file-2")
    shelf.now += 61
    await shelf.cache.drop_idle()
    assert names(tmp_path) == [".index", ".label", ".lock"]
    assert await shelf.use("vs_1") == {"file-1", "file-2"}
    assert await kept_files(shelf) == {"file-1", "file-2"}


async def test_what_has_changed_meanwhile_is_read_and_what_is_gone_is_not_found(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    await add_and_use(shelf, "file-1", "file-2")
    await shelf.restart()
    await shelf.add("vs_1", "file-1", 200)  # again
    await shelf.add("vs_1", "file-3")
    await shelf.store.vector_stores.remove_file("ada", "vs_1", "file-2")
    assert await shelf.use("vs_1") == {"file-1", "file-3"}
    await shelf.restart()
    assert names(tmp_path) == [".lock"], "traces of what was taken out may be left in a file"


async def test_another_process_has_a_file_of_its_own(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    await add_and_use(shelf, "file-1")
    other = shelf.new_cache()
    async with other.use(await shelf.record("vs_1")) as entry:
        assert {*entry.files} == {"file-1"}
    await other.close()
    await shelf.cache.close()
    assert names(tmp_path) == [".index", ".index", ".label", ".label", ".lock", ".lock"]


def harm(folder: Path, damage: str) -> None:
    (label,) = folder.glob("*.label")
    if damage == "crash":
        label.unlink()
    elif damage == "label":
        label.write_bytes(b"{")
    elif damage == "noise":
        label.with_suffix(".index").write_bytes(b"no database at all" * 500)


@pytest.mark.parametrize("damage", ["crash", "noise", "label", "embedding"])
async def test_what_is_not_whole_or_of_another_model_is_begun_anew(tmp_path: Path, damage: str) -> None:
    shelf = Shelf(tmp_path)
    await add_and_use(shelf, "file-1")
    await shelf.restart()
    harm(tmp_path, damage)
    assert await kept_files(shelf, "others" if damage == "embedding" else "words") == set()


async def test_a_store_that_is_forgotten_leaves_no_file(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    await add_and_use(shelf, "file-1")
    other = shelf.new_cache()
    async with other.use(await shelf.record("vs_1")):
        await shelf.cache.forget("vs_1")
        shelf.files.forget("vs_1")
    await other.close()  # it had the file open, and does not keep it
    assert names(tmp_path) == []


async def test_a_file_in_use_is_neither_unlinked_nor_given_to_another_when_its_store_is_forgotten(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    await add_and_use(shelf, "file-1")
    shelf.files.forget("vs_1")
    assert names(tmp_path) == [".index", ".lock"]
    other = shelf.files.take("vs_1", "words")
    assert other is not None and other.path.name == "vs_1.1.index"
    shelf.files.put_back(other, None)
    await shelf.cache.close()
    assert names(tmp_path) == [".lock"], "that of the other"


async def test_what_a_crash_left_is_erased_and_what_waits_or_is_used_stays(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    for store_id in ("vs_1", "vs_2", "vs_3"):
        await shelf.add(store_id, "file-1")
    await shelf.use("vs_1")
    await shelf.use("vs_2")
    await shelf.restart()
    (tmp_path / "vs_1.0.label").unlink()
    await shelf.use("vs_3")
    shelf.files.erase_remnants()
    assert index_names(tmp_path) == ["vs_2.0.index", "vs_3.0.index"]
    await shelf.cache.close()


async def test_an_index_is_kept_though_another_process_takes_one_at_the_moment(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    await add_and_use(shelf, "file-1")
    (tmp_path / "vs_9.0.label").touch()  # listed, and gone when it is looked at
    await shelf.cache.close()
    assert [label.store_id for label in shelf.files.waiting()] == ["vs_1"]


async def test_those_that_have_waited_the_longest_make_room_on_the_disk(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, disk_bytes=MIB)
    for store_id in ("vs_1", "vs_2", "vs_3"):
        await shelf.add(store_id, f"file-{store_id}", 300_000)
        await shelf.use(store_id)
        shelf.now += 61
        await shelf.cache.drop_idle()
    assert sorted(label.store_id for label in shelf.files.waiting()) != ["vs_1", "vs_2", "vs_3"]
    assert "vs_3" in [label.store_id for label in shelf.files.waiting()]
    assert size_of(tmp_path) <= MIB
    await shelf.cache.close()


async def test_no_folder_keeps_nothing_and_a_folder_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (None, tmp_path / "file" / "folder"):
        shelf = Shelf(folder)
        await add_and_use(shelf, "file-1")
        assert await kept_files(shelf) == set()
