"""
Uploaded files: their records are in the store, their bytes wherever `files.url` says.

A record is there from before the first byte until after the last one is deleted, so no crash leaves bytes without a record.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Literal

from msgspec.structs import replace

from antiphon.config.settings import FilesSettings
from antiphon.errors import ApiError, ClientError, ServerError, StoreError, file_not_found, file_too_large, unknown_cursor
from antiphon.records import FileRecord
from antiphon.runtime.access.body_budget import BodyLease
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.core.ids import new_file_id
from antiphon.stores.base import UnknownCursor
from antiphon.stores.blobs import STREAM_BYTES, BlobStore
from antiphon.stores.files import FilePage, FileStore, FileUsage

GB = 10**9

UPLOAD_TIMEOUT_S = 3600
"""How long an upload may take; one that is unfinished after twice that time is deleted by the sweep."""

CLEANUP_TIMEOUT_S = 30
"""How long the bytes of a file may take to be deleted before the sweep has to do it."""

_BATCH_SIZE = 100

ID_PREFIX = "file-"
_ID = re.compile(r"file-[A-Za-z0-9_-]{1,100}", re.ASCII)
"""The form of an id. It is checked, as an id becomes part of a path."""

_CONTENT = "content"
"""The name of a file's bytes in its folder."""


class FileLibrary:
    """
    The uploaded files of a server, or of several that share a store.

    Args:
        settings: the limits.
        clock: Unix seconds.

    Attributes:
        before_erasure: called with the tenant and the id of a file before it is deleted; the file stays where that fails.
    """

    def __init__(self, files: FileStore, blobs: BlobStore, settings: FilesSettings, clock: Callable[[], float] = time.time) -> None:
        self.before_erasure: Callable[[str, str], Awaitable[None]] | None = None
        self._files = files
        self._blobs = blobs
        self._settings = settings
        self._clock = clock
        self._suspects: Collection[str] = ()

    @property
    def now(self) -> int:
        """Unix seconds."""
        return int(self._clock())

    @property
    def upload_limit_bytes(self) -> int:
        """The most bytes of one file."""
        return self._settings.upload_mib << 20

    def upload(self, caller: Caller, lease: BodyLease, expected_bytes: int) -> "Upload":
        """
        A new upload, to be used with `async with`.

        Args:
            lease: counts the memory that it takes.
            expected_bytes: the size of the request, or 0 if it is unknown.
        """
        record = FileRecord(
            id=new_file_id(),
            tenant=caller.tenant,
            key_id=None if caller.key is None else caller.key.id,
            created_at=self.now,
            bytes=min(expected_bytes, self.upload_limit_bytes),
        )
        return Upload(self, self._files, self._blobs, record, lease)

    async def find(self, tenant: str, file_id: str, param: str = "id") -> FileRecord:
        """
        A file by its id; `param` is the field that names it.

        Raises:
            ClientError: 404; there is none, or it is another tenant's, or has expired.
        """
        record = await self._files.get(tenant, file_id, self.now) if _ID.fullmatch(file_id) else None
        if record is None:
            raise file_not_found(file_id, param)
        return record

    async def find_all(self, tenant: str, params_by_id: Mapping[str, str]) -> Mapping[str, FileRecord]:
        """
        Files by their ids.

        Args:
            params_by_id: the field that names each.

        Raises:
            ClientError: 404; as `find`, for the first that isn't there.
        """
        records = await self._files.get_all(tenant, [file_id for file_id in params_by_id if _ID.fullmatch(file_id)], self.now)
        for file_id, param in params_by_id.items():
            if file_id not in records:
                raise file_not_found(file_id, param)
        return records

    async def page(self, tenant: str, *, purpose: str | None, after: str | None, limit: int, order: Literal["asc", "desc"]) -> FilePage:
        """
        A page of a tenant's files.

        Raises:
            ClientError: `after` is not one of them.
        """
        try:
            return await self._files.page(tenant, purpose=purpose, now=self.now, after=after, limit=limit, order=order)
        except UnknownCursor:
            raise unknown_cursor("File", after) from None

    def chunks(self, record: FileRecord) -> AsyncIterator[bytes]:
        """A file's bytes, in chunks."""
        return self._blobs.read_chunks(f"{record.id}/{_CONTENT}")

    async def delete(self, tenant: str, file_id: str) -> None:
        """
        Delete a file. If its bytes can't be deleted now, the sweep does it.

        Raises:
            ClientError: 404; there is none.
        """
        record = await self.find(tenant, file_id)
        if not await self._files.hide(tenant, file_id, self.now):
            raise file_not_found(file_id)
        with contextlib.suppress(ApiError, TimeoutError):
            async with asyncio.timeout(CLEANUP_TIMEOUT_S):
                await self.erase(record)

    async def erase(self, record: FileRecord) -> None:
        """
        Delete a file's bytes, then its record.

        Raises:
            ServerError: that is not possible now.
        """
        # In this order: where a step fails, the record is still there for the sweep to find.
        if self.before_erasure is not None and record.filename:  # An unfinished upload has no name yet, and nothing refers to it.
            await self.before_erasure(record.tenant, record.id)
        await self._blobs.delete_folder(record.id)
        await self._files.remove(record.id)

    async def open(self, *, is_shared: bool) -> None:
        """
        Delete what an earlier process left unfinished, where the store is not shared: else it may be at work on it.

        Raises:
            StoreError: the store can't be used.
        """
        orphans = await self._files.orphans()
        self._suspects = {record.id for record in orphans}
        if not is_shared:
            await self._erase_all(orphans)

    async def sweep(self) -> None:
        """
        Delete files that have expired or were deleted, and uploads that will not end.

        A server that seems to be dead counts as such at the second look, as it is unknown for a moment after an outage.

        Raises:
            ApiError: the store, or the place of the files, can't be used; or not for some files, after all others.
        """
        orphans = await self._files.orphans()
        failures = await self._erase_all([record for record in orphans if record.id in self._suspects])
        self._suspects = {record.id for record in orphans}
        while True:
            # Those that failed are among the first again.
            records = await self._files.disposable(self.now, self.now - 2 * UPLOAD_TIMEOUT_S, _BATCH_SIZE + len(failures))
            batch = [record for record in records if record.id not in failures]
            new_failures = await self._erase_all(batch)
            failures |= new_failures
            if len(new_failures) == len(batch):  # There is none, or the place of the files can't be used.
                break
        if failures:
            raise next(iter(failures.values()))

    async def _erase_all(self, records: Sequence[FileRecord]) -> dict[str, ApiError]:
        """Erase files; returns why that was not possible, by the ids of those that it was not."""
        failures: dict[str, ApiError] = {}
        for record in records:
            try:
                await self.erase(record)
            except StoreError:
                raise
            except ApiError as error:
                failures[record.id] = error
        return failures

    async def reserve(self, record: FileRecord) -> int:
        """
        Store a new file's record, and check the quotas with it counted: so two uploads never exceed them together.

        Returns:
            How many bytes the file may have.

        Raises:
            ClientError: a quota is used up.
        """
        await self._files.add(record)
        return await self.check_quotas(record)

    async def check_quotas(self, record: FileRecord) -> int:
        """
        Check the quotas once a file is stored; returns how many bytes it may have.

        Raises:
            ClientError: one is exceeded.
        """
        settings = self._settings
        usage = await self._files.usage(record.tenant)
        if settings.tenant_files and usage.count > settings.tenant_files:
            raise _quota_error(f"the limit is {settings.tenant_files:,} files (`files.tenant_files`)")
        room = [self.upload_limit_bytes]
        if settings.tenant_gb:
            room.append(_room(usage, record, settings.tenant_gb, "tenant_gb"))
        if settings.key_gb and record.key_id is not None:
            room.append(_room(await self._files.usage(record.tenant, record.key_id), record, settings.key_gb, "key_gb"))
        return min(room)


def _room(usage: FileUsage, record: FileRecord, limit_gb: float, setting: str) -> int:
    """How many bytes a file may have, which `usage` counts already."""
    limit_bytes = int(limit_gb * GB)
    if usage.bytes > limit_bytes:
        raise _quota_error(f"the limit is {limit_gb:g} GB (`files.{setting}`)")
    return limit_bytes - usage.bytes + record.bytes


def _quota_error(limit: str) -> ClientError:
    return ClientError(f"You have too many files: {limit}. Delete some of them.", code="file_quota_exceeded", param="file")


class Upload:
    """
    One upload. Unless it is finished within `async with`, nothing remains of it.

    Args:
        record: of the file; it is not stored yet.

    Attributes:
        size_bytes: how many bytes of the file were written; None before `write`.
    """

    def __init__(self, library: FileLibrary, files: FileStore, blobs: BlobStore, record: FileRecord, lease: BodyLease) -> None:
        self.size_bytes: int | None = None
        self._library = library
        self._files = files
        self._blobs = blobs
        self._record = record
        self._lease = lease
        self._room_bytes = 0
        self._is_finished = False

    async def __aenter__(self) -> "Upload":
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self.size_bytes is None or self._is_finished:
            return
        # What can't be deleted in this time, or because the server ends, the sweep deletes.
        with contextlib.suppress(ApiError, TimeoutError):
            async with asyncio.timeout(CLEANUP_TIMEOUT_S):
                await self._library.erase(self._record)

    async def write(self, chunks: AsyncIterator[bytes]) -> None:
        """
        Store the file's bytes as they arrive.

        Raises:
            ClientError: they are too many, or a quota is used up.
        """
        self._lease.extend(min(self._record.bytes or STREAM_BYTES, STREAM_BYTES))
        # Before the record is stored: from here on there may be something to remove.
        self.size_bytes = 0
        self._room_bytes = await self._library.reserve(self._record)
        await self._blobs.put_stream(f"{self._record.id}/{_CONTENT}", self._limit_chunks(chunks))

    async def _limit_chunks(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        assert self.size_bytes is not None
        async for chunk in chunks:
            self.size_bytes += len(chunk)
            if self.size_bytes > self._library.upload_limit_bytes:
                raise file_too_large("file", self._library.upload_limit_bytes, "files.upload_mib")
            if self.size_bytes > self._room_bytes:
                raise _quota_error(f"{self._room_bytes} bytes are left (`files.tenant_gb`, `files.key_gb`)")
            yield chunk

    async def finish(self, filename: str, purpose: str, expires_in_s: int | None) -> FileRecord:
        """
        The record of the complete file, which is stored.

        Args:
            expires_in_s: seconds after its creation when it expires; None for never.

        Raises:
            ClientError: a quota is exceeded.
            ServerError: the file was deleted meanwhile, as this server was taken for dead.
        """
        assert self.size_bytes is not None
        pending = replace(self._record, bytes=self.size_bytes)
        expires_at = None if expires_in_s is None else pending.created_at + expires_in_s
        record = replace(pending, filename=filename, purpose=purpose, expires_at=expires_at, status="processed")
        if record.bytes > self._record.bytes:  # More than was reserved.
            # First with its real size and still hidden, so that the quotas count it before anyone can use it.
            if not await self._files.complete(pending):
                raise _lost_upload_error()
            await self._library.check_quotas(pending)
        if not await self._files.complete(record):
            raise _lost_upload_error()
        self._is_finished = True
        return record


def _lost_upload_error() -> ServerError:
    return ServerError("The server lost this file while it was uploaded. Please try again.")
