"""Vector stores as clients use them: records in the store, where files also wait to be indexed."""

import time
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from antiphon.config.tools.vector_stores import VectorStoreSettings
from antiphon.errors import ClientError, not_found, shorten, unknown_cursor, vector_store_expired, vector_store_not_found
from antiphon.records import FileBatchRecord, IndexedFileRecord, IndexingStatus, VectorStoreRecord
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.files.library import FileLibrary
from antiphon.stores.base import UnknownCursor
from antiphon.stores.vector_stores import IndexedFilePage, PageCursor, VectorStoreChanges, VectorStorePage, VectorStoreRecords

AUTO_CHUNK_TOKENS, AUTO_OVERLAP_TOKENS = 800, 400
"""What the strategy `auto` means, as in the original."""

TOUCH_S = 60
"""The least time between two recorded uses, so that not every search has to write."""


class NewFile(Struct, frozen=True, kw_only=True):
    """
    A file to be added to a vector store.

    Attributes:
        param: the field that names it, for errors.
        attributes: as a JSON object.
    """

    file_id: str
    param: str
    attributes: bytes = b"{}"
    max_chunk_tokens: int = AUTO_CHUNK_TOKENS
    overlap_tokens: int = AUTO_OVERLAP_TOKENS


class VectorStoreLibrary:
    """
    The vector stores of a server, or of several that share a store.

    Args:
        files: the uploaded files.
        settings: the limits.
        clock: Unix seconds.

    Attributes:
        on_new_files: called when there may be files to index.
        on_files_removed: called when files may have been taken from those that are indexed.
    """

    def __init__(
        self, records: VectorStoreRecords, files: FileLibrary, settings: VectorStoreSettings, clock: Callable[[], float] = time.time
    ) -> None:
        self._records = records
        self._files = files
        self._settings = settings
        self._clock = clock
        self.on_new_files: Callable[[], None] = lambda: None
        self.on_files_removed: Callable[[], None] = lambda: None

    @property
    def now(self) -> int:
        """Unix seconds."""
        return int(self._clock())

    # Stores

    async def create(self, tenant: str, store: VectorStoreRecord, files: Sequence[NewFile]) -> VectorStoreRecord:
        """
        Store a new vector store; its id, tenant and times are set here.

        Raises:
            ClientError: a file isn't there, or the tenant has too many stores.
        """
        await self._check_quotas(tenant, is_new=True)
        self._check_room(0, files)
        store = replace(store, id=new_id("vs"), tenant=tenant, created_at=self.now, last_active_at=self.now)
        await self._records.create(store, await self._new_records(tenant, store.id, files))
        if files:
            self.on_new_files()
        return await self.find(tenant, store.id)

    async def find(self, tenant: str, store_id: str, param: str = "vector_store_id") -> VectorStoreRecord:
        """
        A vector store; `param` is the field that names it.

        Raises:
            ClientError: 404; there is none, or it is another tenant's.
        """
        store = await self._records.get(tenant, store_id)
        if store is None:
            raise vector_store_not_found(store_id, param)
        return store

    async def find_active(self, tenant: str, store_id: str, param: str = "vector_store_id") -> VectorStoreRecord:
        """
        A vector store that has not expired.

        Raises:
            ClientError: as `find`; or it has expired.
        """
        store = await self.find(tenant, store_id, param)
        if store.is_expired(self.now):
            raise vector_store_expired(store_id, param)
        return store

    async def page(self, tenant: str, cursor: PageCursor) -> VectorStorePage:
        """
        A page of a tenant's stores.

        Raises:
            ClientError: a cursor is none of them.
        """
        try:
            return await self._records.page(tenant, cursor)
        except UnknownCursor as error:
            raise _unknown_cursor("Vector store", cursor, error) from None

    async def update(self, tenant: str, store_id: str, changes: VectorStoreChanges) -> VectorStoreRecord:
        """
        Change a store.

        Raises:
            ClientError: as `find`; or its expiry is to be changed, and it has expired.
        """
        is_changed = await self._records.update(tenant, store_id, changes, self.now)
        store = await self.find(tenant, store_id)
        if not is_changed:
            raise vector_store_expired(store_id)
        await self.touch(store)
        return await self.find(tenant, store_id)

    async def touch(self, store: VectorStoreRecord) -> None:
        """Note that a store was used, which puts off its expiry; not more often than every `TOUCH_S` seconds."""
        if self.now >= store.last_active_at + TOUCH_S:
            await self._records.touch(store.id, self.now)

    async def delete(self, tenant: str, store_id: str) -> None:
        """
        Delete a vector store; its files stay in `/v1/files`.

        Raises:
            ClientError: 404; there is none.
        """
        if not await self._records.delete(tenant, store_id):
            raise vector_store_not_found(store_id)
        self.on_files_removed()

    async def sweep(self) -> None:
        """
        Delete what is left of stores that were deleted or have expired.

        Raises:
            StoreError: the store can't be used.
        """
        while await self._records.erase(self.now):
            pass

    # Files

    async def add(self, tenant: str, store_id: str, file: NewFile) -> IndexedFileRecord:
        """
        Add a file; one that is in the store already is indexed again.

        Raises:
            ClientError: there is no such store or no such file, or there is no room for it.
        """
        await self._add(tenant, store_id, [file], None)
        return await self.file(tenant, store_id, file.file_id)

    async def add_batch(self, tenant: str, store_id: str, files: Sequence[NewFile]) -> FileBatchRecord:
        """
        Add files together.

        Raises:
            ClientError: as `add`; then none is added.
        """
        batch = FileBatchRecord(id=new_id("vsfb"), store_id=store_id, created_at=self.now)
        await self._add(tenant, store_id, files, batch)
        return await self.batch(tenant, store_id, batch.id)

    async def _add(self, tenant: str, store_id: str, files: Sequence[NewFile], batch: FileBatchRecord | None) -> None:
        store = await self.find_active(tenant, store_id)
        await self._check_quotas(tenant)
        self._check_room(store.counts.total, files)
        records = await self._new_records(tenant, store_id, files, batch)
        if not await self._records.add_files(tenant, store_id, records, now=self.now, batch=batch):
            raise vector_store_not_found(store_id)
        self.on_files_removed()  # A file that was there already may be in work, and is to be indexed anew.
        self.on_new_files()

    async def file(self, tenant: str, store_id: str, file_id: str) -> IndexedFileRecord:
        """
        A file of a store.

        Raises:
            ClientError: 404; there is no such store, or it has no such file.
        """
        file = await self._records.file(tenant, store_id, file_id)
        if file is None:
            raise await self._file_not_found(tenant, store_id, file_id)
        return file

    async def files(
        self, tenant: str, store_id: str, cursor: PageCursor, *, status: IndexingStatus | None, batch_id: str | None = None
    ) -> IndexedFilePage:
        """
        A page of the files of a store, or of a batch.

        Raises:
            ClientError: there is no such store or batch, or a cursor is none of the files.
        """
        await (self.find(tenant, store_id) if batch_id is None else self.batch(tenant, store_id, batch_id))
        try:
            return await self._records.page_files(tenant, store_id, cursor, status=status, batch_id=batch_id)
        except UnknownCursor as error:
            raise _unknown_cursor("File", cursor, error) from None

    async def set_attributes(self, tenant: str, store_id: str, file_id: str, attributes: bytes) -> IndexedFileRecord:
        """
        Replace a file's attributes.

        Raises:
            ClientError: as `file`.
        """
        await self._records.set_attributes(tenant, store_id, file_id, attributes)
        return await self.file(tenant, store_id, file_id)

    async def remove(self, tenant: str, store_id: str, file_id: str) -> None:
        """
        Take a file out of a store.

        Raises:
            ClientError: as `file`.
        """
        if not await self._records.remove_file(tenant, store_id, file_id):
            raise await self._file_not_found(tenant, store_id, file_id)
        self.on_files_removed()

    async def forget_file(self, tenant: str, file_id: str) -> None:
        """
        Take a file that is deleted out of all stores.

        Raises:
            StoreError: the store can't be used.
        """
        await self._records.remove_everywhere(tenant, file_id)
        self.on_files_removed()

    async def batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatchRecord:
        """
        Files that were added together.

        Raises:
            ClientError: 404; there is no such store, or it has no such batch.
        """
        batch = await self._records.batch(tenant, store_id, batch_id)
        if batch is None:
            # The error names the store if that is what is missing.
            await self.find(tenant, store_id)
            raise not_found(f"The file batch '{shorten(batch_id)}' of this vector store")
        return batch

    async def cancel_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatchRecord:
        """
        Cancel what is not indexed yet of a batch.

        Raises:
            ClientError: as `batch`.
        """
        if (await self.batch(tenant, store_id, batch_id)).counts.in_progress:
            await self._records.cancel_batch(tenant, store_id, batch_id)
            self.on_files_removed()
        return await self.batch(tenant, store_id, batch_id)

    async def _file_not_found(self, tenant: str, store_id: str, file_id: str) -> ClientError:
        await self.find(tenant, store_id)
        return ClientError(
            f"No file with id '{shorten(file_id)}' found in vector store '{shorten(store_id)}'.", status=404, param="file_id"
        )

    async def _new_records(
        self, tenant: str, store_id: str, files: Sequence[NewFile], batch: FileBatchRecord | None = None
    ) -> list[IndexedFileRecord]:
        """The records of new files, one for each id; of two with one id, the later one counts."""
        uploads = await self._files.find_all(tenant, {file.file_id: file.param for file in files})
        records: dict[str, IndexedFileRecord] = {}
        for file in files:
            records[file.file_id] = IndexedFileRecord(
                store_id=store_id,
                file_id=file.file_id,
                filename=uploads[file.file_id].filename,
                created_at=self.now,
                attributes=file.attributes,
                max_chunk_tokens=file.max_chunk_tokens,
                overlap_tokens=file.overlap_tokens,
                batch_id=None if batch is None else batch.id,
            )
        return [*records.values()]

    def _check_room(self, count: int, files: Sequence[NewFile]) -> None:
        if count + len({file.file_id for file in files}) > self._settings.store_files:
            limit = f"the limit is {self._settings.store_files:,} (`tools.vector_stores.store_files`)"
            raise ClientError(f"The vector store would have too many files: {limit}.", code="vector_store_full", param=files[0].param)

    async def _check_quotas(self, tenant: str, *, is_new: bool = False) -> None:
        settings = self._settings
        usage = await self._records.usage(tenant)
        if is_new and settings.tenant_stores and usage.count >= settings.tenant_stores:
            limit = f"the limit is {settings.tenant_stores:,} (`tools.vector_stores.tenant_stores`)"
            raise ClientError(f"You have too many vector stores: {limit}. Delete some of them.", code="vector_store_quota_exceeded")
        if settings.tenant_gb and usage.bytes >= settings.tenant_gb * 1e9:
            limit = f"the limit is {settings.tenant_gb:g} GB (`tools.vector_stores.tenant_gb`)"
            raise ClientError(f"Your vector stores are too large: {limit}. Delete some of them.", code="vector_store_quota_exceeded")


def _unknown_cursor(kind: str, cursor: PageCursor, error: UnknownCursor) -> ClientError:
    param = "after" if cursor.after == error.args[0] else "before"
    unknown = unknown_cursor(kind, error.args[0])
    return ClientError(unknown.message, param=param, code=unknown.code)
