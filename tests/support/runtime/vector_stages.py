"""Vector stores on a stage: a service over any store, with files in a folder and an embedder that can be held."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from antiphon.config.settings import FilesSettings
from antiphon.config.tools.file_search import FileSearchSettings
from antiphon.config.tools.vector_stores import VectorStoreSettings
from antiphon.records import FileRecord, IndexedFileRecord, VectorStoreRecord
from antiphon.runtime.files.library import FileLibrary
from antiphon.runtime.vector_stores.library import NewFile
from antiphon.runtime.vector_stores.service import VectorStoreService
from antiphon.stores.base import Store
from antiphon.stores.blobs import BlobStore
from antiphon.tools.file_search.base import Ranking
from support.runtime.word_embedder import DIMENSIONS, WordEmbedder

PATIENCE_S = 30
POLL_S = 0.05


class HeldEmbedder(WordEmbedder):
    """
    Attributes:
        free_texts: after so many texts it waits for `release`.
    """

    def __init__(self, free_texts: int | None = None) -> None:
        super().__init__(is_held=free_texts is not None)
        self.free_texts = free_texts
        self.is_stopped = False

    async def dimensions(self) -> int:
        return DIMENSIONS

    async def embed(self, texts: Sequence[str]) -> np.ndarray:
        if self.free_texts is None or len(self.texts) + len(texts) > self.free_texts:
            await self.release.wait()
        self.texts += texts
        return np.stack([(await WordEmbedder().embed([text]))[0] for text in texts])

    async def stop(self) -> None:
        await super().stop()
        self.is_stopped = True


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110 - what is waited for is in a database
            await asyncio.sleep(POLL_S)


class VectorStage:
    """
    Args:
        store: is open.
        folder: of the files' bytes.

    Attributes:
        now: Unix seconds, for the library.
    """

    def __init__(
        self, store: Store, folder: Path, embedder: HeldEmbedder | None = None, embedding: str = "words", **settings: object
    ) -> None:
        self.store = store
        self.now = 1_000_000
        self.embedder = embedder or HeldEmbedder()
        self._blobs = BlobStore(str(folder))
        self.files = FileLibrary(store.files, self._blobs, FilesSettings(), lambda: self.now)
        self.index_folder = folder / "indexes"
        self.service = VectorStoreService(
            store,
            self.files,
            VectorStoreSettings(**settings),
            FileSearchSettings(),
            lambda: self.embedder,
            embedding,
            lambda: self.now,
            self.index_folder,
        )
        self.library = self.service.library

    async def __aenter__(self) -> "VectorStage":
        self.service.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.service.close()

    @staticmethod
    def new_file(file_id: str, attributes: bytes = b"{}") -> NewFile:
        return NewFile(file_id=file_id, param="file_id", attributes=attributes)

    async def upload(self, file_id: str, text: str, filename: str = "a.txt", tenant: str = "ada") -> str:
        async def chunks() -> object:
            yield text.encode()

        record = FileRecord(id=file_id, tenant=tenant, key_id=None, created_at=self.now, bytes=len(text.encode()))
        await self.store.files.add(record)
        await self._blobs.put_stream(f"{file_id}/content", chunks())  # type: ignore[arg-type]
        await self.store.files.complete(replace(record, filename=filename, purpose="assistants", status="processed"))
        return file_id

    async def create(self, *file_ids: str, tenant: str = "ada", days: int | None = None) -> VectorStoreRecord:
        template = VectorStoreRecord(id="", tenant="", created_at=0, last_active_at=0, expires_after_days=days)
        return await self.library.create(tenant, template, [self.new_file(file_id) for file_id in file_ids])

    async def add(self, store_id: str, file_id: str, attributes: bytes = b"{}", tenant: str = "ada") -> None:
        await self.library.add(tenant, store_id, self.new_file(file_id, attributes))

    async def file(self, store_id: str, file_id: str, tenant: str = "ada") -> IndexedFileRecord:
        return await self.library.file(tenant, store_id, file_id)

    async def indexed(self, store_id: str, *file_ids: str, tenant: str = "ada") -> None:
        """Wait until files are not in progress."""

        async def is_over() -> bool:
            return all([(await self.file(store_id, file_id, tenant)).status != "in_progress" for file_id in file_ids])

        await eventually(is_over)

    async def find(self, query: str, *store_ids: str, tenant: str = "ada") -> list[str]:
        """The ids of the files that a search finds, the best first."""
        results = await self.service.search(tenant, store_ids, [query], filters=None, max_results=10, ranking=Ranking())
        return [result.file_id for result in results]
