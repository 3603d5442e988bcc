"""
The indexes of vector stores in memory. An index is made from the store's records when it is first used, or opened from a
file that was kept; the store's version tells whether it is out of date, whichever server made the change.
"""

import asyncio
import contextlib
import sqlite3
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import msgspec
from msgspec import Struct

from antiphon.config.tools.vector_stores import VectorStoreSettings
from antiphon.errors import ClientError, overloaded_error
from antiphon.records import IndexedFileRecord, IndexPart, VectorStoreRecord
from antiphon.runtime.vector_stores.index_files import IndexFile, IndexFiles, IndexLabel
from antiphon.runtime.vector_stores.part_vectors import index_version, join_parts
from antiphon.stores.vector_stores import IndexRecords
from antiphon.tools.file_search.base import Attributes
from antiphon.tools.file_search.index import Index

P = ParamSpec("P")
T = TypeVar("T")

OPEN_S = 60.0
"""How long a search waits for its index; reading goes on after that, for the next search."""

KEEP_S = 5.0
"""How long indexes are written to the disk when the server stops; the rest is not kept."""

READ_PARTS = 8
"""How many parts of a file are read at once: about 2 MB."""

MEMORY_FACTOR = 2
"""How much more memory an index takes than its stored parts, as its words are indexed, too."""

_attributes_decoder: msgspec.json.Decoder[dict[str, str | int | float | bool]] = msgspec.json.Decoder(dict[str, str | int | float | bool])


class SearchableFile(Struct, frozen=True):
    """A file in an index."""

    number: int
    filename: str
    attributes: Attributes


class OpenIndex:
    """
    The index of one vector store.

    Attributes:
        index: finds its chunks.
        store: of which it is the index.
        files: by id, those that a search may find.
        users: how many searches use it now.
        used_at: when it was last used, in seconds of the cache's clock.
        version: of the store, whose files it has.
        size_bytes: what it takes, or will once it is up to date; about.
        refresh_task: brings it up to date.
        file: that the index is in; None for a temporary one.
        has_lost_files: whether files were taken out of it: traces of them may be left in its file.
    """

    def __init__(self, index: Index, store: VectorStoreRecord, file: IndexFile | None) -> None:
        self.index = index
        self.store = store
        self.file = file
        self.has_lost_files = False
        self.files: Mapping[str, SearchableFile] = {}
        self.users = 0
        self.used_at = 0.0
        self.version = -1
        self.size_bytes = 0
        self.refresh_task: asyncio.Task[None] | None = None


class IndexCache:
    """
    The indexes of this process, at most so large together as the settings allow.

    Args:
        dimensions: says how many numbers a vector has.
        embedding: the name of the model that they are of.
        threads: do what blocks.
        on_outdated: called when files are to be indexed again, as their vectors are of another model.
        files: of indexes, for their next use.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        indexes: IndexRecords,
        dimensions: Callable[[], Awaitable[int]],
        embedding: str,
        settings: VectorStoreSettings,
        threads: ThreadPoolExecutor,
        on_outdated: Callable[[], None],
        files: IndexFiles,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._indexes = indexes
        self._files = files
        self._dimensions = dimensions
        self._embedding = embedding
        self._limit_bytes = settings.index_mib << 20
        self._limit_name = f"{settings.index_mib} MiB (`tools.vector_stores.index_mib`)"
        self._idle_s = 60 * settings.idle_minutes
        self._clock = clock
        self._threads = threads
        self._on_outdated = on_outdated
        self._open: dict[str, OpenIndex] = {}
        # By tenant, as many as leave a thread to the searches of others.
        self._tenant_reads = max(1, settings.searches - 1)
        self._reads: weakref.WeakValueDictionary[str, asyncio.Semaphore] = weakref.WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def use(self, store: VectorStoreRecord) -> AsyncIterator[OpenIndex]:
        """
        The index of a store, as it is at the record's version or later.

        Raises:
            ApiError: there is no room for it, or it takes too long to be read.
        """
        entry = await self._entry(store)
        entry.users += 1
        try:
            await self._update(store, entry)
            yield entry
        finally:
            entry.users -= 1
            entry.used_at = self._clock()

    async def _entry(self, store: VectorStoreRecord) -> OpenIndex:
        if (entry := self._open.get(store.id)) is None:
            own_entry = await self._run(self._open_index, store, await self._dimensions())
            entry = self._open.setdefault(store.id, own_entry)
            if entry is not own_entry:  # Another search was faster.
                await self._run(self._close_index, own_entry, False)
        return entry

    def _open_index(self, store: VectorStoreRecord, dimensions: int) -> OpenIndex:
        file = self._files.take(store.id, self._embedding)
        try:
            return OpenIndex(Index(dimensions, None if file is None else file.path), store, file)
        except (OSError, sqlite3.Error):
            if file is None:
                raise
            self._files.put_back(file, None)
            return OpenIndex(Index(dimensions), store, None)

    def _close_index(self, entry: OpenIndex, keeps: bool) -> None:
        entry.index.close()
        if entry.file is not None:
            # SQLite leaves deleted text in its pages, so a file that has lost texts is not kept on the disk (docs/decisions/0059).
            is_whole = keeps and entry.version >= 0 and not entry.has_lost_files
            label = IndexLabel(entry.store.tenant, entry.store.id, self._embedding, entry.version) if is_whole else None
            self._files.put_back(entry.file, label)

    async def _update(self, store: VectorStoreRecord, entry: OpenIndex) -> None:
        """Bring an index up to date, or wait until another search has. The work goes on when this search has given up."""
        try:
            async with asyncio.timeout(OPEN_S):
                for _ in range(2):  # The first may have begun before the change. If the second does not get there, the store is gone.
                    if entry.version >= store.version:
                        return
                    if entry.refresh_task is None:
                        # It may last longer than the search that needs it, and at most as long as the cache.
                        entry.refresh_task = asyncio.create_task(self._refresh(store.id, entry))  # noqa: TID251
                    await asyncio.shield(entry.refresh_task)
        except TimeoutError:
            message = "The vector store is large, and its index is still being read. Please try again."
            raise overloaded_error(message, retry_after_s=5) from None

    async def drop_idle(self) -> None:
        """Release the memory of idle indexes."""
        await self._drop(id for id, entry in self._open.items() if self._clock() - entry.used_at >= self._idle_s)

    async def forget(self, store_id: str) -> None:
        """Release the memory of a store's index unless a search uses it; its file is not kept."""
        if (entry := self._open.get(store_id)) is not None:
            entry.has_lost_files = True
            await self._drop([store_id])

    async def close(self) -> None:
        """Release all memory; idempotent."""
        entries, self._open = self._open, {}
        tasks = [entry.refresh_task for entry in entries.values() if entry.refresh_task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        keep_until = self._clock() + KEEP_S
        for entry in entries.values():
            await self._run(self._close_index, entry, self._clock() < keep_until)

    async def _run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*args, **kwargs))

    async def _drop(self, store_ids: Iterable[str]) -> None:
        for entry in [self._open.pop(id) for id in [*store_ids] if not self._open[id].users]:
            await self._run(self._close_index, entry, True)

    async def _refresh(self, store_id: str, entry: OpenIndex) -> None:
        # Counts as a user, so that the index is not dropped while it is being read.
        entry.users += 1
        turns = self._reads.setdefault(entry.store.tenant, asyncio.Semaphore(self._tenant_reads))
        try:
            async with turns:
                await self._read_changes(store_id, entry)
        finally:
            entry.users -= 1
            entry.refresh_task = None

    async def _read_changes(self, store_id: str, entry: OpenIndex) -> None:
        contents = await self._indexes.contents(store_id)
        records = [file for file in contents.files if file.embedding == self._embedding]
        if len(records) < len(contents.files) and await self._indexes.reindex(store_id, self._embedding):
            self._on_outdated()
        await self._make_room(entry, records)
        versions = {file.file_id: index_version(file) for file in records}
        indexed_versions = entry.index.versions
        stale_ids = {file_id for file_id, version in indexed_versions.items() if versions.get(file_id) != version}
        # Files that have changed are not found until they are indexed again: better than to find their former text.
        entry.files = {id: file for id, file in entry.files.items() if id not in stale_ids}
        for file_id in stale_ids:
            entry.has_lost_files = True
            await self._run(entry.index.remove, file_id)
        for record in records:
            if record.file_id in stale_ids or record.file_id not in indexed_versions:
                await self._add(entry, record)
        # Attributes and names also change without a new index.
        entry.files = {record.file_id: _searchable(record) for record in records}
        entry.version = contents.version

    async def _add(self, entry: OpenIndex, record: IndexedFileRecord) -> None:
        parts: list[IndexPart] = []
        while page := await self._indexes.parts(record.number, len(parts), READ_PARTS):
            parts += page
        if parts:  # Otherwise it has been removed meanwhile.
            await self._run(_add_file, entry.index, record, parts)

    async def _make_room(self, entry: OpenIndex, records: Iterable[IndexedFileRecord]) -> None:
        """Drop the least recently used indexes until this one fits."""
        needed_bytes = MEMORY_FACTOR * sum(record.usage_bytes for record in records)
        if needed_bytes > self._limit_bytes:
            raise ClientError(
                f"The vector store is too large to be searched: its index takes {needed_bytes >> 20} MiB, and the limit is "
                f"{self._limit_name}. Use several smaller ones.",
                code="vector_store_too_large",
            )
        entry.size_bytes = needed_bytes
        # Looked at anew each time: while one is dropped, others are opened and dropped.
        while needed_bytes + sum(each.size_bytes for each in self._open.values() if each is not entry) > self._limit_bytes:
            idle_ids = [id for id, each in self._open.items() if each is not entry and not each.users]
            if not idle_ids:
                entry.size_bytes = 0
                raise overloaded_error(f"Too many vector stores are searched at the moment: the limit is {self._limit_name}.")
            await self._drop([min(idle_ids, key=lambda id: self._open[id].used_at)])


def _add_file(index: Index, record: IndexedFileRecord, parts: Sequence[IndexPart]) -> None:
    index.add(join_parts(record, parts))


def _searchable(record: IndexedFileRecord) -> SearchableFile:
    return SearchableFile(record.number, record.filename, _attributes_decoder.decode(record.attributes))
