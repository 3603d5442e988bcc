"""Records of uploaded files, in memory."""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from msgspec.structs import replace

from antiphon.records import FileRecord
from antiphon.stores.base import UnknownCursor
from antiphon.stores.files import FilePage, FileUsage


class MemoryFileStore:
    """A `FileStore` in memory, until the process ends."""

    def __init__(self) -> None:
        self._files: dict[str, FileRecord] = {}

    async def add(self, file: FileRecord) -> None:
        self._files[file.id] = file

    async def complete(self, file: FileRecord) -> bool:
        current = self._files.get(file.id)
        if current is None or current.status != "uploading":
            return False
        self._files[file.id] = file
        return True

    async def get(self, tenant: str, file_id: str, now: int) -> FileRecord | None:
        file = self._files.get(file_id)
        return file if file is not None and file.tenant == tenant and _is_visible(file, now) else None

    async def get_all(self, tenant: str, file_ids: Collection[str], now: int) -> Mapping[str, FileRecord]:
        return {file.id: file for file_id in file_ids if (file := await self.get(tenant, file_id, now)) is not None}

    async def page(
        self, tenant: str, *, purpose: str | None, now: int, after: str | None, limit: int, order: Literal["asc", "desc"]
    ) -> FilePage:
        files = [file for file in self._files.values() if file.tenant == tenant and _is_visible(file, now)]
        if order == "desc":
            files.reverse()
        if after is not None:
            start = next((index for index, file in enumerate(files) if file.id == after), None)
            if start is None:
                raise UnknownCursor(after)
            files = files[start + 1 :]
        files = [file for file in files if purpose is None or file.purpose == purpose]
        return FilePage(tuple(files[:limit]), has_more=len(files) > limit)

    async def hide(self, tenant: str, file_id: str, now: int) -> bool:
        file = await self.get(tenant, file_id, now)
        if file is None:
            return False
        self._files[file_id] = replace(file, status="deleted")
        return True

    async def remove(self, file_id: str) -> None:
        self._files.pop(file_id, None)

    async def usage(self, tenant: str, key_id: str | None = None) -> FileUsage:
        sizes = [file.bytes for file in self._files.values() if file.tenant == tenant and key_id in (None, file.key_id)]
        return FileUsage(len(sizes), sum(sizes))

    async def disposable(self, now: int, begun_before: int, limit: int) -> Sequence[FileRecord]:
        files = [
            file
            for file in self._files.values()
            if (file.created_at < begun_before if file.status == "uploading" else not _is_visible(file, now))
        ]
        return files[:limit]

    async def orphans(self) -> Sequence[FileRecord]:
        return ()  # the records die with the process that works on them


def _is_visible(file: FileRecord, now: int) -> bool:
    return file.status == "processed" and (file.expires_at is None or now < file.expires_at)
