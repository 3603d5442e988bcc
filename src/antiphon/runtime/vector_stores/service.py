"""
The vector stores of a process: their library, the queue of files to index, and searches.

The parts that index and search are imported when they are first needed: numpy and the model take longer to load than the
rest of the server, and many servers have no vector stores.
"""

import asyncio
import importlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.config.tools.file_search import FileSearchSettings
from antiphon.config.tools.vector_stores import VectorStoreSettings
from antiphon.errors import ClientError
from antiphon.records import IndexedFileRecord, IndexingJob
from antiphon.runtime.files.library import FileLibrary
from antiphon.runtime.upkeep import one_round
from antiphon.runtime.vector_stores.index_files import IndexFiles
from antiphon.runtime.vector_stores.library import VectorStoreLibrary
from antiphon.runtime.vector_stores.part_text import StoredText, decode_text, without_overlaps
from antiphon.runtime.vector_stores.queue import IndexingQueue
from antiphon.stores.base import Store
from antiphon.wire.http.vector_stores import SearchVectorStoreRequest
from antiphon.wire.responses.tools import Filter

if TYPE_CHECKING:
    from antiphon.runtime.vector_stores.engine import EmbeddingModel, VectorEngine
    from antiphon.tools.file_search.base import Ranking, SearchResult

SWEEP_S = 30.0
"""How often deleted and expired stores are erased, and idle indexes dropped."""

CHECK_INDEXES = 100
"""How many kept indexes are compared with their stores in one sweep; the next sweep goes on from there."""


class VectorStoreService:
    """
    The vector stores; also what the tool `file_search` asks (`tools.file_search.base.VectorStores`).

    Args:
        files: the uploaded files.
        new_model: what makes vectors of texts; called when it is first needed.
        embedding: its name: files that were indexed with another one are indexed again.
        clock: Unix seconds.
        index_folder: keeps indexes for their next use; None where nothing is kept.

    Attributes:
        library: what clients do with vector stores.
    """

    def __init__(
        self,
        store: Store,
        files: FileLibrary,
        settings: VectorStoreSettings,
        parse_settings: FileSearchSettings,
        new_model: "Callable[[], EmbeddingModel]",
        embedding: str,
        clock: Callable[[], float] = time.time,
        index_folder: Path | None = None,
    ) -> None:
        self._store = store
        self._files = files
        self._settings = settings
        self._parse_settings = parse_settings
        self._new_model = new_model
        self._embedding = embedding
        self._index_files = IndexFiles(index_folder, settings.index_disk_mib << 20)
        self._checked_store_id = ""
        self._engine: VectorEngine | None = None
        self._engine_lock = asyncio.Lock()
        self._sweep_task: asyncio.Task[None] | None = None
        self._queue = IndexingQueue(store.indexes, self._index, settings.indexers)
        self.library = VectorStoreLibrary(store.vector_stores, files, settings, clock)
        self.library.on_new_files = self.library.on_files_removed = self._queue.wake
        files.before_erasure = self.library.forget_file

    def start(self) -> None:
        """Begin to index what waits."""
        self._queue.start()
        # It lives from `start` to `close`, longer than any request.
        self._sweep_task = asyncio.create_task(self._sweep(), name="vector store sweeper")  # noqa: TID251

    async def close(self) -> None:
        """Stop; idempotent. What is not indexed yet waits in the store."""
        task, self._sweep_task = self._sweep_task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self._queue.close()
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()

    async def check(self, tenant: str, store_ids: Sequence[str]) -> None:
        """As `tools.file_search.base.VectorStores`."""
        for store_id in store_ids:
            await self.library.find_active(tenant, store_id)

    async def search(
        self,
        tenant: str,
        store_ids: Sequence[str],
        queries: Sequence[str],
        *,
        filters: Filter | None,
        max_results: int,
        ranking: "Ranking",
    ) -> "Sequence[SearchResult]":
        """As `tools.file_search.base.VectorStores`."""
        searcher = (await self._loaded_engine()).searcher
        return await searcher.search(tenant, store_ids, queries, filters=filters, max_results=max_results, ranking=ranking)

    async def answer(self, tenant: str, store_id: str, request: SearchVectorStoreRequest) -> "Sequence[SearchResult]":
        """
        What a client's search finds in one store.

        Raises:
            ClientError: the store can't be searched, or the filters are wrong.
            ServerError: a search is not possible now.
        """
        # First, so that an unknown store is a 404 even where no model is installed.
        await self.library.find_active(tenant, store_id)
        return await (await self._loaded_engine()).answer(tenant, store_id, request)

    async def delete(self, tenant: str, store_id: str) -> None:
        """
        Delete a vector store; its files stay in `/v1/files`.

        Raises:
            ClientError: 404; there is none.
        """
        await self.library.delete(tenant, store_id)
        if self._engine is not None:
            await self._engine.forget(store_id)
        await asyncio.to_thread(self._index_files.forget, store_id)

    async def text_pieces(self, file: IndexedFileRecord) -> AsyncIterator[str]:
        """
        The text of an indexed file, in pieces that follow each other without a gap.

        Raises:
            ClientError: it isn't indexed, or isn't any more: it was taken out, or is indexed again, while it was read.
        """
        if file.status != "completed":
            status = f"its status is '{file.status}'"
            raise ClientError(f"The content of a file can be read once it is indexed; {status}.", code="file_not_indexed", param="file_id")
        former: list[StoredText] = []
        position = chunk_count = 0
        while (content := await self._store.indexes.chunks(file.number, position)) is not None:
            part = decode_text(content)
            yield [*without_overlaps([*former, part])][-1]
            former, position, chunk_count = [part], position + 1, chunk_count + len(part.spans)
        # What ends early looks whole to its reader.
        if chunk_count < file.chunk_count:
            raise ClientError("The file was removed or is indexed again. Please try again.", code="file_not_indexed", param="file_id")

    async def _index(self, job: IndexingJob) -> None:
        await (await self._loaded_engine()).indexer.index(job)

    async def _loaded_engine(self) -> "VectorEngine":
        async with self._engine_lock:
            if self._engine is None:
                # In a thread: loading the libraries takes longer than the event loop may be held.
                module = await asyncio.to_thread(importlib.import_module, "antiphon.runtime.vector_stores.engine")
                model = await asyncio.to_thread(self._new_model)
                self._engine = module.VectorEngine(
                    self._store, self._files, self.library, self._settings, self._parse_settings, model, self._embedding, self._index_files
                )
                self._engine.on_outdated = self._queue.wake
            return self._engine

    async def _sweep(self) -> None:
        while True:
            with one_round("vector store sweeper"):
                await self.library.sweep()
                await self._erase_old_indexes()
            with one_round("idle indexes"):
                if self._engine is not None:
                    await self._engine.drop_idle()
            await asyncio.sleep(SWEEP_S)

    async def _erase_old_indexes(self) -> None:
        """
        Erase the kept indexes of stores that have changed or are gone, and what crashes left: they may have texts of files
        that were deleted.
        """
        await asyncio.to_thread(self._index_files.erase_remnants)
        labels = sorted(await asyncio.to_thread(self._index_files.waiting), key=lambda label: label.store_id)
        later = [label for label in labels if label.store_id > self._checked_store_id][:CHECK_INDEXES]
        self._checked_store_id = later[-1].store_id if len(later) == CHECK_INDEXES else ""
        for label in later:
            store = await self._store.vector_stores.get(label.tenant, label.store_id)
            if store is None or store.version != label.version:
                await asyncio.to_thread(self._index_files.forget, label.store_id)
