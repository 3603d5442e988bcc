"""Vector stores as a process has them: indexed in the background, searched, expired, and shared with other processes."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from antiphon.errors import ClientError, ServerError
from antiphon.records import IndexPart
from antiphon.stores.memory import MemoryStore
from antiphon.stores.sql.store import SqlStore
from antiphon.stores.vector_stores import IndexRecords, VectorStoreChanges
from antiphon.tools.file_search.base import Ranking, VectorStores
from support.runtime.vector_stages import HeldEmbedder, VectorStage, eventually

pytestmark = pytest.mark.anyio

OWLS = "Owls hunt at night and their feathers make no sound"
BELLS = "Church bells are cast in bronze by a founder"
LONG = " ".join(f"word{number}" for number in range(12_000))  # more parts than one


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "files"


async def test_the_tool_finds_what_was_indexed(folder: Path) -> None:
    async with VectorStage(MemoryStore(), folder) as stage:
        store = await stage.create(await stage.upload("file-1", OWLS), await stage.upload("file-2", BELLS))
        await stage.indexed(store.id, "file-1", "file-2")
        stores: VectorStores = stage.service
        await stores.check("ada", [store.id])
        results = await stores.search("ada", [store.id], ["bells of bronze"], filters=None, max_results=1, ranking=Ranking())
        assert [(result.file_id, result.filename, result.text) for result in results] == [("file-2", "a.txt", BELLS)]


async def test_several_stores_are_searched_together(folder: Path) -> None:
    async with VectorStage(MemoryStore(), folder) as stage:
        first = await stage.create(await stage.upload("file-1", OWLS))
        second = await stage.create(await stage.upload("file-2", BELLS))
        await stage.indexed(first.id, "file-1")
        await stage.indexed(second.id, "file-2")
        assert {*await stage.find("owls bells", first.id, second.id, first.id)} == {"file-1", "file-2"}
        assert await stage.find("owls bells", first.id) == ["file-1"]


async def test_another_tenant_finds_nothing_and_changes_nothing(folder: Path) -> None:
    async with VectorStage(MemoryStore(), folder) as stage:
        store = await stage.create(await stage.upload("file-1", OWLS))
        await stage.indexed(store.id, "file-1")
        await stage.upload("file-2", BELLS, tenant="bob")
        for call in (
            stage.find("owls", store.id, tenant="bob"),
            stage.service.check("bob", [store.id]),
            stage.add(store.id, "file-2", tenant="bob"),
            stage.add(store.id, "file-2"),  # bob's file
            stage.library.set_attributes("bob", store.id, "file-1", b"{}"),
            stage.library.remove("bob", store.id, "file-1"),
            stage.service.delete("bob", store.id),
        ):
            with pytest.raises(ClientError) as refusal:
                await call
            assert refusal.value.status == 404
        assert await stage.find("owls", store.id) == ["file-1"]


async def test_a_search_sees_each_change_at_once(folder: Path) -> None:
    async with VectorStage(MemoryStore(), folder) as stage:
        store = await stage.create(await stage.upload("file-1", OWLS))
        await stage.indexed(store.id, "file-1")
        assert await stage.find("owls", store.id) == ["file-1"]
        await stage.add(store.id, await stage.upload("file-2", BELLS))
        await stage.indexed(store.id, "file-2")
        assert (await stage.find("bronze bells", store.id))[0] == "file-2"
        await stage.library.remove("ada", store.id, "file-2")
        assert await stage.find("bronze bells", store.id) == ["file-1"]
        await stage.files.delete("ada", "file-1")
        assert await stage.find("owls", store.id) == []


async def test_a_file_that_is_added_again_is_indexed_again(folder: Path) -> None:
    async with VectorStage(MemoryStore(), folder) as stage:
        store = await stage.create(await stage.upload("file-1", OWLS))
        await stage.indexed(store.id, "file-1")
        number = (await stage.file(store.id, "file-1")).number
        assert await stage.find("owls", store.id) == ["file-1"]
        await stage.add(store.id, "file-1", b'{"a":1}')
        await stage.indexed(store.id, "file-1")
        file = await stage.file(store.id, "file-1")
        assert file.number > number and file.attributes == b'{"a":1}'
        assert await stage.find("owls", store.id) == ["file-1"]


class HeldReads:
    """The records of indexes, of which some files can't be read before `may_read` is set."""

    def __init__(self, indexes: IndexRecords) -> None:
        self._indexes = indexes
        self.held_numbers: set[int] = set()
        self.has_begun = asyncio.Event()
        self.may_read = asyncio.Event()
        self.reads = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._indexes, name)

    async def parts(self, number: int, first: int, limit: int) -> Sequence[IndexPart]:
        if number in self.held_numbers:
            self.reads += 1
            self.has_begun.set()
            await self.may_read.wait()
        return await self._indexes.parts(number, first, limit)


class HeldStore(MemoryStore):
    """A store with `HeldReads`."""

    def __init__(self) -> None:
        super().__init__()
        self.held = self.indexes = HeldReads(self.indexes)  # type: ignore[assignment]


async def test_a_tenant_whose_indexes_take_long_to_be_read_keeps_nobody_from_searching(folder: Path) -> None:
    store = HeldStore()
    async with VectorStage(store, folder, searches=1) as stage:
        large_stores = [await stage.create(await stage.upload(f"file-{number}", OWLS)) for number in range(3)]
        for number, large_store in enumerate(large_stores):
            await stage.indexed(large_store.id, f"file-{number}")
            store.held.held_numbers.add((await stage.file(large_store.id, f"file-{number}")).number)
        other = await stage.create(await stage.upload("file-9", BELLS, tenant="bob"), tenant="bob")
        await stage.indexed(other.id, "file-9", tenant="bob")
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(stage.find("owls", large_store.id)) for large_store in large_stores]
            await store.held.has_begun.wait()
            assert await stage.find("bells", other.id, tenant="bob") == ["file-9"]
            assert store.held.reads == 1, "a tenant reads few at once"
            store.held.may_read.set()
        assert [task.result() for task in tasks] == [["file-0"], ["file-1"], ["file-2"]]


async def test_a_restart_goes_on_with_the_part_that_was_not_stored(folder: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.sqlite3"
    first_store = SqlStore(url)
    await first_store.open()
    async with VectorStage(first_store, folder, HeldEmbedder(free_texts=100)) as first:
        store = await first.create(await first.upload("file-1", LONG))

        async def has_part() -> bool:
            return (await first.file(store.id, "file-1")).chunk_count > 0

        await eventually(has_part)
    early_texts = {*first.embedder.texts}
    await first_store.close()
    second_store = SqlStore(url)
    await second_store.open()
    async with VectorStage(second_store, folder) as second:
        await second.indexed(store.id, "file-1")
        file = await second.file(store.id, "file-1")
        assert file.status == "completed" and second.embedder.texts
        assert len(early_texts & {*second.embedder.texts}) < len(early_texts)  # those of the part that was not stored
        assert {*await second.find("word11999", store.id)} == {"file-1"}
        assert "".join([piece async for piece in second.service.text_pieces(file)]) == LONG
    await second_store.close()
    assert first.embedder.is_stopped and second.embedder.is_stopped


async def test_a_text_that_is_taken_away_while_it_is_read_does_not_end_as_if_it_were_whole(folder: Path) -> None:
    async with VectorStage(MemoryStore(), folder) as stage:
        store = await stage.create(await stage.upload("file-1", LONG))
        await stage.indexed(store.id, "file-1")
        pieces = stage.service.text_pieces(await stage.file(store.id, "file-1"))
        beginning = await anext(pieces)
        assert LONG.startswith(beginning) and beginning != LONG
        await stage.library.remove("ada", store.id, "file-1")
        await stage.add(store.id, "file-1")  # indexed anew, under another number
        await stage.indexed(store.id, "file-1")
        with pytest.raises(ClientError) as refusal:
            await anext(pieces)
        assert refusal.value.code == "file_not_indexed"


async def test_cancelling_a_batch_stops_what_runs(folder: Path) -> None:
    async with VectorStage(MemoryStore(), folder, HeldEmbedder(free_texts=0), indexers=1) as stage:
        store = await stage.create()
        from_batch = [await stage.upload(f"file-{number}", OWLS) for number in range(3)]
        batch = await stage.library.add_batch("ada", store.id, [*map(stage.new_file, from_batch)])
        assert batch.counts.in_progress == 3
        await stage.add(store.id, await stage.upload("file-9", BELLS))
        batch = await stage.library.cancel_batch("ada", store.id, batch.id)
        assert (batch.is_cancelled, batch.counts.cancelled, batch.counts.in_progress) == (True, 3, 0)
        stage.embedder.release.set()
        await stage.indexed(store.id, "file-9")  # the only indexer is free
        assert await stage.find("owls bells", store.id) == ["file-9"]
        assert OWLS not in stage.embedder.texts[:-1]


async def test_a_file_that_is_taken_out_frees_its_indexer(folder: Path) -> None:
    async with VectorStage(MemoryStore(), folder, HeldEmbedder(free_texts=0), indexers=1) as stage:
        store = await stage.create(await stage.upload("file-1", OWLS), await stage.upload("file-2", BELLS))
        await stage.library.remove("ada", store.id, "file-1")
        await stage.upload("file-3", OWLS)
        other = await stage.create("file-3")
        await stage.service.delete("ada", other.id)
        stage.embedder.release.set()
        await stage.indexed(store.id, "file-2")
        assert await stage.find("owls bells", store.id) == ["file-2"]


async def test_a_file_that_is_deleted_while_it_waits_leaves_the_store(folder: Path) -> None:
    async with VectorStage(MemoryStore(), folder, HeldEmbedder(free_texts=0), indexers=1) as stage:
        store = await stage.create(await stage.upload("file-1", OWLS), await stage.upload("file-2", BELLS))
        await stage.files.delete("ada", "file-2")
        stage.embedder.release.set()
        await stage.indexed(store.id, "file-1")
        found = await stage.library.find("ada", store.id)
        assert (found.counts.completed, found.counts.total) == (1, 1)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_processes_of_one_store_share_the_work_and_see_each_others(
    kind: str, folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/store.sqlite3" if kind == "sqlite" else request.getfixturevalue("postgres").new_store()
    numbers = (([1, 2]), ([2, 1])) if kind == "sqlite" else ([], [])
    stores = [SqlStore(url, own) for own in numbers]
    for each in stores:
        await each.open()
    held = HeldEmbedder(free_texts=0)
    async with VectorStage(stores[0], folder, held, indexers=1) as first, VectorStage(stores[1], folder, indexers=1) as second:
        store = await first.create(*[await first.upload(f"file-{number}", f"{OWLS} {number}") for number in range(4)])

        async def is_done_but_one() -> bool:
            return (await second.library.find("ada", store.id)).counts.completed >= 3

        await eventually(is_done_but_one)  # the first process holds at most one of them
        held.release.set()
        await first.indexed(store.id, *[f"file-{number}" for number in range(4)])
        assert len(await second.find("owls", store.id)) == 4
        assert len(await first.find("owls", store.id)) == 4
        await first.library.remove("ada", store.id, "file-2")
        assert "file-2" not in await second.find("owls", store.id)
    for each in stores:
        await each.close()


async def test_a_store_expires_a_while_after_its_last_use(folder: Path) -> None:
    async with VectorStage(MemoryStore(), folder) as stage:
        store = await stage.create(await stage.upload("file-1", OWLS), days=1)
        await stage.indexed(store.id, "file-1")
        stage.now += 80_000
        assert await stage.find("owls", store.id) == ["file-1"]
        assert (await stage.library.find("ada", store.id)).last_active_at == stage.now
        stage.now += 86_399
        assert not (await stage.library.find("ada", store.id)).is_expired(stage.now)
        stage.now += 1
        for call in (
            stage.find("owls", store.id),
            stage.add(store.id, "file-1"),
            stage.service.check("ada", [store.id]),
            stage.library.update("ada", store.id, VectorStoreChanges(expires_after_days=None)),
        ):
            with pytest.raises(ClientError) as refusal:
                await call
            assert refusal.value.code == "vector_store_expired"
        await stage.library.sweep()
        record = await stage.library.find("ada", store.id)
        assert (record.state, record.counts.total, record.usage_bytes) == ("expired", 0, 0)
        assert (await stage.files.find("ada", "file-1")).filename == "a.txt"


async def test_files_of_another_model_are_indexed_again_when_they_are_searched(folder: Path) -> None:
    store = MemoryStore()
    async with VectorStage(store, folder) as stage:
        vector_store = await stage.create(await stage.upload("file-1", OWLS))
        await stage.indexed(vector_store.id, "file-1")
    async with VectorStage(store, folder, embedding="gemma") as stage:
        assert await stage.find("owls", vector_store.id) == []
        await stage.indexed(vector_store.id, "file-1")
        assert await stage.find("owls", vector_store.id) == ["file-1"]
        assert (await stage.file(vector_store.id, "file-1")).embedding == "gemma"


async def test_limits_are_named(folder: Path) -> None:
    async with VectorStage(MemoryStore(), folder, tenant_stores=2, store_files=2, file_mib=1, file_chars=5000) as stage:
        ids = [await stage.upload(f"file-{number}", OWLS) for number in range(3)]
        store = await stage.create()
        for call, name in (
            (stage.create(*ids), "store_files"),
            (stage.library.add_batch("ada", store.id, [*map(stage.new_file, ids)]), "store_files"),
        ):
            with pytest.raises(ClientError, match=name):
                await call
        await stage.create()
        with pytest.raises(ClientError, match="tenant_stores"):
            await stage.create()
        await stage.add(store.id, await stage.upload("file-8", "a" * (1 << 20) + "b"))
        await stage.add(store.id, await stage.upload("file-9", "word " * 1001))
        await stage.indexed(store.id, "file-8", "file-9")
        for file_id, name in (("file-8", "file_mib"), ("file-9", "file_chars")):
            error = (await stage.file(store.id, file_id)).error
            assert error is not None and error.code == "invalid_file" and f"tools.vector_stores.{name}" in error.message


async def test_what_a_tenant_may_take_is_limited(folder: Path) -> None:
    async with VectorStage(MemoryStore(), folder, tenant_gb=0.000001) as stage:
        store = await stage.create(await stage.upload("file-1", LONG))
        await stage.indexed(store.id, "file-1")
        file = await stage.file(store.id, "file-1")
        assert (file.status, file.usage_bytes) == ("failed", 0)
        assert file.error is not None and "tools.vector_stores.tenant_gb" in file.error.message
        await stage.add(store.id, await stage.upload("file-2", " ".join([OWLS] * 100)))
        await stage.indexed(store.id, "file-2")
        for call in (stage.create(), stage.add(store.id, "file-1")):
            with pytest.raises(ClientError, match="tenant_gb"):
                await call
        other = await stage.create(tenant="bob")  # has room of his own
        assert other.tenant == "bob"


async def test_a_model_that_is_missing_fails_files_and_searches_without_saying_where_it_should_be(folder: Path) -> None:
    class MissingModel(HeldEmbedder):
        async def embed(self, texts):  # type: ignore[no-untyped-def]
            raise ServerError(f"The embedding model in {folder} can't be loaded.", code="weights_unavailable")

    store = MemoryStore()
    async with VectorStage(store, folder) as stage:
        vector_store = await stage.create(await stage.upload("file-1", OWLS), await stage.upload("file-2", OWLS))
        await stage.indexed(vector_store.id, "file-1", "file-2")
    async with VectorStage(store, folder, MissingModel()) as stage:
        with pytest.raises(ServerError) as refusal:
            await stage.find("owls", vector_store.id)
        assert refusal.value.status == 503 and str(folder) not in refusal.value.message
        await stage.add(vector_store.id, "file-2")
        await stage.indexed(vector_store.id, "file-2")
        error = (await stage.file(vector_store.id, "file-2")).error
        assert error is not None and error.code == "server_error" and str(folder) not in error.message


async def test_an_index_waits_on_the_disk_and_goes_with_what_is_deleted(folder: Path) -> None:
    store = MemoryStore()
    async with VectorStage(store, folder) as stage:
        first = await stage.create(await stage.upload("file-1", OWLS))
        second = await stage.create(await stage.upload("file-2", BELLS))
        third = await stage.create("file-2")
        for each, file_id in ((first, "file-1"), (second, "file-2"), (third, "file-2")):
            await stage.indexed(each.id, file_id)
            assert await stage.find("owls bells", each.id) == [file_id]
    assert kept_stores(stage) == {first.id, second.id, third.id}
    async with VectorStage(store, folder) as stage:
        assert await stage.find("owls", first.id) == ["file-1"]
        await stage.service.delete("ada", third.id)
        assert third.id not in kept_stores(stage)
    await stage.files.delete("ada", "file-2")
    assert kept_stores(stage) == {first.id, second.id}
    async with VectorStage(store, folder) as stage:  # which looks at what was kept when it starts

        async def is_erased() -> bool:
            return kept_stores(stage) == {first.id}

        await eventually(is_erased)


def kept_stores(stage: VectorStage) -> set[str]:
    return {path.name.partition(".")[0] for path in stage.index_folder.glob("*.index")}
