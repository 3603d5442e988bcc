"""The contract for vector stores. `tests/contracts/test_vector_stores.py` holds every store to it."""

from collections.abc import Collection, Sequence
from typing import Literal, Protocol

from msgspec import UNSET, Struct, UnsetType

from antiphon.records import (
    FileBatchRecord,
    IndexedFileRecord,
    IndexingError,
    IndexingJob,
    IndexingStatus,
    IndexPart,
    VectorStoreRecord,
    VectorStoreUsage,
)

ERASE_FILES = 20
"""The most files that are erased at once: each may have hundreds of parts."""


class PageCursor(Struct, frozen=True, kw_only=True):
    """
    Which page of a list.

    Attributes:
        order: `asc` for the oldest first.
        limit: the most entries, at least 1.
        after: id of the entry before the page, in that order; None for the first page.
        before: id of the entry after the page, in that order. Without `after`, the page ends right before it.
    """

    limit: int
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None
    before: str | None = None


class VectorStoreChanges(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    What to change of a vector store; what is unset stays as it is.

    Attributes:
        metadata: as a JSON object.
        expires_after_days: None for never.
    """

    name: str | UnsetType = UNSET
    metadata: bytes | UnsetType = UNSET
    expires_after_days: int | UnsetType | None = UNSET


class VectorStorePage(Struct, frozen=True):
    """One page of a list of vector stores, and whether more follow in the direction asked for."""

    stores: tuple[VectorStoreRecord, ...]
    has_more: bool


class IndexedFilePage(Struct, frozen=True):
    """The same of files in a vector store."""

    files: tuple[IndexedFileRecord, ...]
    has_more: bool


class VectorStoreContents(Struct, frozen=True):
    """What a search finds in a vector store: the files that are indexed, as they are at `version`."""

    version: int
    files: tuple[IndexedFileRecord, ...]


class VectorStoreRecords(Protocol):
    """
    Vector stores with their files and batches.

    Clients see a store until it is deleted, though it may have expired. Every look-up by a client's id names the tenant.
    What changes the files that a search finds, or their attributes, raises the store's version in the same transaction.
    """

    async def create(self, store: VectorStoreRecord, files: Sequence[IndexedFileRecord]) -> None:
        """Store a new vector store, with files to be indexed."""

    async def get(self, tenant: str, store_id: str) -> VectorStoreRecord | None:
        """The store with that id, or None."""

    async def page(self, tenant: str, cursor: PageCursor) -> VectorStorePage:
        """
        A page of a tenant's stores.

        Raises:
            UnknownCursor: `after` or `before` is none of them.
        """

    async def update(self, tenant: str, store_id: str, changes: VectorStoreChanges, now: int) -> bool:
        """
        Change a store, all or nothing.

        Returns:
            False where there is no such store, or where its expiry is to be changed and it has expired.
        """

    async def touch(self, store_id: str, now: int) -> None:
        """Note that a store was used, which puts off its expiry; one that has expired stays so."""

    async def delete(self, tenant: str, store_id: str) -> bool:
        """Let clients see a store no longer, and index nothing more of it; returns whether they did."""

    async def usage(self, tenant: str) -> VectorStoreUsage:
        """What all stores of a tenant come to."""

    async def erase(self, now: int) -> bool:
        """
        Delete files of stores that were deleted or have expired, at most `ERASE_FILES`, and deleted stores without any.
        Returns whether there is more to do.
        """

    # Files

    async def add_files(
        self, tenant: str, store_id: str, files: Sequence[IndexedFileRecord], *, now: int, batch: FileBatchRecord | None = None
    ) -> bool:
        """
        Add files to be indexed, all or none. One that is there already is taken out first.

        Returns:
            False, and changes nothing, where there is no such store, or it has expired.
        """

    async def file(self, tenant: str, store_id: str, file_id: str) -> IndexedFileRecord | None:
        """The file of a store, or None."""

    async def page_files(
        self, tenant: str, store_id: str, cursor: PageCursor, *, status: IndexingStatus | None = None, batch_id: str | None = None
    ) -> IndexedFilePage:
        """
        A page of a store's files, or those of a batch.

        Args:
            status: only files that have it; None for all. The cursor's own files may have any.

        Raises:
            UnknownCursor: `after` or `before` is none of them.
        """

    async def set_attributes(self, tenant: str, store_id: str, file_id: str, attributes: bytes) -> bool:
        """Replace a file's attributes; returns whether there is such a file."""

    async def remove_file(self, tenant: str, store_id: str, file_id: str) -> bool:
        """Take a file out of a store, with all that is stored of it; returns whether it was in it."""

    async def remove_everywhere(self, tenant: str, file_id: str) -> None:
        """Take a file out of all stores of its tenant."""

    async def batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatchRecord | None:
        """The batch with that id, or None."""

    async def cancel_batch(self, tenant: str, store_id: str, batch_id: str) -> bool:
        """Cancel the files of a batch that are in progress, which lose their parts; returns whether there is such a batch."""


class IndexRecords(Protocol):
    """
    The chunks and vectors of the files in vector stores, and who makes them.

    A file to be indexed is that of the server that has claimed it, until it is finished or the server dies.
    """

    async def claim(self, after_tenant: str = "", other_than: Collection[str] = ()) -> IndexingJob | None:
        """
        Give this server a file that is to be indexed and that no living server has: the oldest of the tenant that comes
        next by name, and after the last one of the first. None where there is none.

        Args:
            other_than: tenants whose files are not claimed.
        """

    async def release(self) -> None:
        """Give back all files that this server has claimed, or that a process before it had with the same number."""

    async def begin_indexing(self, number: int, embedding: str) -> int | None:
        """
        Set the model of a file's vectors. What is stored of another model's is deleted.

        Returns:
            How many parts are stored; None where the file is not this server's any more.
        """

    async def add_part(self, number: int, part: IndexPart) -> bool:
        """
        Store a part, whose bytes count from then on; returns False, and changes nothing, where the file is not this server's
        any more.
        """

    async def finish(self, number: int, status: IndexingStatus, error: IndexingError | None = None) -> bool:
        """
        End the indexing of a file. Unless it is completed, it loses its parts.

        Returns:
            False, and changes nothing, where the file is not this server's any more.
        """

    async def find_lost(self, numbers: Collection[int]) -> Collection[int]:
        """Those of the files that this server is not to index any more."""

    async def reindex(self, store_id: str, embedding: str) -> int:
        """Have the files be indexed again whose vectors are of another model; returns how many they are."""

    async def contents(self, store_id: str) -> VectorStoreContents:
        """What a search finds, from one state of the store."""

    async def parts(self, number: int, first: int, limit: int) -> Sequence[IndexPart]:
        """At most `limit` parts of a file from a position on, in order."""

    async def chunks(self, number: int, position: int) -> bytes | None:
        """The chunks of one part, without their vectors; None where there is none."""
