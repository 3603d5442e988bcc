"""Vector stores in memory."""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from msgspec import UNSET
from msgspec.structs import asdict, replace

from antiphon.records import (
    FileBatchRecord,
    FileCounts,
    IndexedFileRecord,
    IndexingError,
    IndexingJob,
    IndexingStatus,
    IndexPart,
    VectorStoreRecord,
    VectorStoreUsage,
)
from antiphon.stores.base import UnknownCursor
from antiphon.stores.vector_stores import (
    ERASE_FILES,
    IndexedFilePage,
    PageCursor,
    VectorStoreChanges,
    VectorStoreContents,
    VectorStorePage,
)

T = TypeVar("T")


class MemoryVectorStoreRecords:
    """`VectorStoreRecords` in memory, until the process ends."""

    def __init__(self) -> None:
        self.stores: dict[str, VectorStoreRecord] = {}
        self.files: dict[int, IndexedFileRecord] = {}  # the oldest first
        self._batches: dict[str, FileBatchRecord] = {}
        self.parts: dict[int, list[IndexPart]] = {}
        self._numbers = itertools.count(1)

    async def create(self, store: VectorStoreRecord, files: Sequence[IndexedFileRecord]) -> None:
        self.stores[store.id] = store
        self._insert(files)

    async def get(self, tenant: str, store_id: str) -> VectorStoreRecord | None:
        store = self._find(tenant, store_id)
        return None if store is None else self._with_counts(store)

    async def page(self, tenant: str, cursor: PageCursor) -> VectorStorePage:
        stores = [store for store in self.stores.values() if store.tenant == tenant and store.state != "deleted"]
        entries, has_more = _page(stores, cursor, lambda store: store.id)
        return VectorStorePage(tuple(map(self._with_counts, entries)), has_more)

    async def update(self, tenant: str, store_id: str, changes: VectorStoreChanges, now: int) -> bool:
        store = self._find(tenant, store_id)
        if store is None or (changes.expires_after_days is not UNSET and store.is_expired(now)):
            return False
        values = {name: value for name, value in asdict(changes).items() if value is not UNSET}
        self.stores[store_id] = replace(store, **values)
        return True

    async def touch(self, store_id: str, now: int) -> None:
        store = self.stores.get(store_id)
        if store is not None and store.state == "active" and not store.is_expired(now):
            self.stores[store_id] = replace(store, last_active_at=max(now, store.last_active_at))

    async def delete(self, tenant: str, store_id: str) -> bool:
        if self._find(tenant, store_id) is None:
            return False
        self._bump(store_id, state="deleted")
        self._stop_indexing(file for file in self.files.values() if file.store_id == store_id)
        return True

    async def usage(self, tenant: str) -> VectorStoreUsage:
        ids = {store.id for store in self.stores.values() if store.tenant == tenant}
        count = sum(self.stores[id].state != "deleted" for id in ids)
        return VectorStoreUsage(count, sum(file.usage_bytes for file in self.files.values() if file.store_id in ids))

    async def erase(self, now: int) -> bool:
        for store in [*self.stores.values()]:
            if store.state == "active" and store.is_expired(now):
                self._bump(store.id, state="expired")
        gone_ids = {store.id for store in self.stores.values() if store.state != "active"}
        victims = [number for number, file in self.files.items() if file.store_id in gone_ids][:ERASE_FILES]
        for number in victims:
            del self.files[number]
        if len(victims) == ERASE_FILES:
            return True
        deleted_ids = {id for id in gone_ids if self.stores[id].state == "deleted"}
        for store_id in deleted_ids:
            del self.stores[store_id]
        self._batches = {id: batch for id, batch in self._batches.items() if batch.store_id not in deleted_ids}
        return False

    # Files

    async def add_files(
        self, tenant: str, store_id: str, files: Sequence[IndexedFileRecord], *, now: int, batch: FileBatchRecord | None = None
    ) -> bool:
        store = self._find(tenant, store_id)
        if store is None or store.is_expired(now):
            return False
        self._bump(store_id, last_active_at=max(now, store.last_active_at))
        new_ids = {file.file_id for file in files}
        for number in [number for number, file in self.files.items() if file.store_id == store_id and file.file_id in new_ids]:
            del self.files[number]
        if batch is not None:
            self._batches[batch.id] = batch
        self._insert(files)
        return True

    async def file(self, tenant: str, store_id: str, file_id: str) -> IndexedFileRecord | None:
        if self._find(tenant, store_id) is None:
            return None
        return next((file for file in self.files.values() if file.store_id == store_id and file.file_id == file_id), None)

    async def page_files(
        self, tenant: str, store_id: str, cursor: PageCursor, *, status: IndexingStatus | None = None, batch_id: str | None = None
    ) -> IndexedFilePage:
        is_there = self._find(tenant, store_id) is not None
        files = [file for file in self.files.values() if is_there and file.store_id == store_id and batch_id in (None, file.batch_id)]
        entries, has_more = _page(files, cursor, lambda file: file.file_id, lambda file: status in (None, file.status))
        return IndexedFilePage(tuple(entries), has_more)

    async def set_attributes(self, tenant: str, store_id: str, file_id: str, attributes: bytes) -> bool:
        file = await self.file(tenant, store_id, file_id)
        if file is not None:
            self._bump(store_id)
            self.files[file.number] = replace(file, attributes=attributes)
        return file is not None

    async def remove_file(self, tenant: str, store_id: str, file_id: str) -> bool:
        file = await self.file(tenant, store_id, file_id)
        if file is not None:
            self._bump(store_id)
            del self.files[file.number]
        return file is not None

    async def remove_everywhere(self, tenant: str, file_id: str) -> None:
        for store in [*self.stores.values()]:
            if store.tenant == tenant and store.state != "deleted":
                await self.remove_file(tenant, store.id, file_id)

    async def batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatchRecord | None:
        batch = self._batches.get(batch_id)
        if batch is None or batch.store_id != store_id or self._find(tenant, store_id) is None:
            return None
        return replace(batch, counts=_count(file for file in self.files.values() if file.batch_id == batch_id))

    async def cancel_batch(self, tenant: str, store_id: str, batch_id: str) -> bool:
        batch = await self.batch(tenant, store_id, batch_id)
        if batch is not None:
            self._batches[batch_id] = replace(batch, is_cancelled=True)
            self._stop_indexing(file for file in self.files.values() if file.batch_id == batch_id)
        return batch is not None

    def _find(self, tenant: str, store_id: str) -> VectorStoreRecord | None:
        store = self.stores.get(store_id)
        return store if store is not None and store.tenant == tenant and store.state != "deleted" else None

    def _with_counts(self, store: VectorStoreRecord) -> VectorStoreRecord:
        files = [file for file in self.files.values() if file.store_id == store.id]
        return replace(store, counts=_count(files), usage_bytes=sum(file.usage_bytes for file in files))

    def _insert(self, files: Iterable[IndexedFileRecord]) -> None:
        for file in files:
            number = next(self._numbers)
            self.files[number] = replace(file, number=number)

    def _bump(self, store_id: str, **changes: object) -> None:
        store = self.stores[store_id]
        self.stores[store_id] = replace(store, version=store.version + 1, **changes)

    def _stop_indexing(self, files: Iterable[IndexedFileRecord]) -> None:
        for file in [file for file in files if file.status == "in_progress"]:
            self.files[file.number] = replace(file, status="cancelled", chunk_count=0, usage_bytes=0)
            self.parts.pop(file.number, None)


class MemoryIndexRecords:
    """`IndexRecords` in memory, until the process ends."""

    def __init__(self, records: MemoryVectorStoreRecords) -> None:
        self._records = records
        self._claimed_numbers: set[int] = set()

    async def release(self) -> None:
        self._claimed_numbers.clear()

    def _own_file(self, number: int) -> IndexedFileRecord | None:
        file = self._records.files.get(number)
        return file if file is not None and file.status == "in_progress" and number in self._claimed_numbers else None

    async def claim(self, after_tenant: str = "", other_than: Collection[str] = ()) -> IndexingJob | None:
        # Files are removed in many places, their parts only here.
        for number in [number for number in self._records.parts if number not in self._records.files]:
            del self._records.parts[number]
        waiting_files = [
            (self._records.stores[file.store_id].tenant, number)
            for number, file in self._records.files.items()
            if file.status == "in_progress"
            and number not in self._claimed_numbers
            and self._records.stores[file.store_id].tenant not in other_than
        ]
        if not waiting_files:
            return None
        tenant, number = min(waiting_files, key=lambda each: (each[0] <= after_tenant, each))
        self._claimed_numbers.add(number)
        return IndexingJob(tenant, self._records.files[number])

    async def begin_indexing(self, number: int, embedding: str) -> int | None:
        file = self._own_file(number)
        if file is None:
            return None
        if file.embedding != embedding:
            self._records.parts.pop(number, None)
            self._records.files[number] = replace(file, embedding=embedding, chunk_count=0, usage_bytes=0)
        return len(self._records.parts.get(number, ()))

    async def add_part(self, number: int, part: IndexPart) -> bool:
        file = self._own_file(number)
        if file is not None:
            self._records.parts.setdefault(number, []).append(part)
            usage_bytes = file.usage_bytes + len(part.chunks) + len(part.vectors)
            self._records.files[number] = replace(file, chunk_count=file.chunk_count + part.chunk_count, usage_bytes=usage_bytes)
        return file is not None

    async def finish(self, number: int, status: IndexingStatus, error: IndexingError | None = None) -> bool:
        file = self._own_file(number)
        if file is None:
            return False
        file = replace(file, status=status, error=error)
        if status != "completed":
            self._records.parts.pop(number, None)
            file = replace(file, chunk_count=0, usage_bytes=0)
        self._records.files[number] = file
        self._claimed_numbers.discard(number)
        store = self._records.stores[file.store_id]
        self._records.stores[store.id] = replace(store, version=store.version + 1)
        return True

    async def find_lost(self, numbers: Collection[int]) -> Collection[int]:
        return {number for number in numbers if self._own_file(number) is None}

    async def reindex(self, store_id: str, embedding: str) -> int:
        files = (await self.contents(store_id)).files
        outdated_files = [file for file in files if file.embedding != embedding]
        for file in outdated_files:
            self._records.files[file.number] = replace(file, status="in_progress")
        store = self._records.stores.get(store_id)
        if store is not None:
            self._records.stores[store_id] = replace(store, version=store.version + 1)
        return len(outdated_files)

    async def contents(self, store_id: str) -> VectorStoreContents:
        store = self._records.stores.get(store_id)
        if store is None or store.state != "active":
            return VectorStoreContents(0, ())
        files = [file for file in self._records.files.values() if file.store_id == store_id and file.status == "completed"]
        return VectorStoreContents(store.version, tuple(files))

    async def parts(self, number: int, first: int, limit: int) -> Sequence[IndexPart]:
        parts = self._records.parts.get(number, ()) if number in self._records.files else ()
        return [part for part in parts if part.position >= first][:limit]

    async def chunks(self, number: int, position: int) -> bytes | None:
        return next((part.chunks for part in await self.parts(number, position, 1) if part.position == position), None)


def _count(files: Iterable[IndexedFileRecord]) -> FileCounts:
    statuses = [file.status for file in files]
    return FileCounts(*(statuses.count(status) for status in ("in_progress", "completed", "failed", "cancelled")))


def _page(
    entries: Sequence[T], cursor: PageCursor, id: Callable[[T], str], is_shown: Callable[[T], bool] = lambda _entry: True
) -> tuple[Sequence[T], bool]:
    """The entries of a page, from all that its cursors may name, and whether more follow; as `read_page` of SQL."""
    entries = [*entries] if cursor.order == "asc" else [*reversed(entries)]
    bounds = [0, len(entries)]
    for side, name in enumerate((cursor.after, cursor.before)):
        if name is not None:
            place = next((index for index, entry in enumerate(entries) if id(entry) == name), None)
            if place is None:
                raise UnknownCursor(name)
            bounds[side] = place + (side == 0)
    page = [entry for entry in entries[slice(*bounds)] if is_shown(entry)]
    has_more = len(page) > cursor.limit
    if cursor.before is not None and cursor.after is None:
        return page[-cursor.limit :], has_more
    return page[: cursor.limit], has_more
