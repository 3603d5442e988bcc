"""The contract for records of uploaded files. `tests/contracts/test_file_stores.py` holds every store to it."""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from antiphon.records import FileRecord


class FilePage(Struct, frozen=True):
    """One page of a list of files, and whether more follow in the order asked for."""

    files: tuple[FileRecord, ...]
    has_more: bool


class FileUsage(Struct, frozen=True):
    """How many files there are, and their bytes together."""

    count: int
    bytes: int


class FileStore(Protocol):
    """
    Records of uploaded files. Clients see a file from `complete` until it is hidden or expires.

    A server works on the files it has added until they are completed or removed, or until it dies.
    """

    async def add(self, file: FileRecord) -> None:
        """Store a new file whose bytes are still to come."""

    async def complete(self, file: FileRecord) -> bool:
        """Replace the record of a file that is being uploaded; returns False, and changes nothing, where it is none."""

    async def get(self, tenant: str, file_id: str, now: int) -> FileRecord | None:
        """The file with that id, or None."""

    async def get_all(self, tenant: str, file_ids: Collection[str], now: int) -> Mapping[str, FileRecord]:
        """Those of the files that there are, by id."""

    async def page(
        self, tenant: str, *, purpose: str | None, now: int, after: str | None, limit: int, order: Literal["asc", "desc"]
    ) -> FilePage:
        """
        A page of a tenant's files.

        Args:
            purpose: only files with that one; None for all.
            after: id of the file before the page, in that order, whatever its purpose; None for the first page.
            limit: the most files in the page, at least 1.
            order: `asc` is the order in which their uploads began.

        Raises:
            UnknownCursor: there is no such file.
        """

    async def hide(self, tenant: str, file_id: str, now: int) -> bool:
        """Let clients see a file no longer; returns whether they did."""

    async def remove(self, file_id: str) -> None:
        """Delete a record, if there is one."""

    async def usage(self, tenant: str, key_id: str | None = None) -> FileUsage:
        """What all records of a tenant come to, or those of one of its keys: hidden files and unfinished ones too."""

    async def disposable(self, now: int, begun_before: int, limit: int) -> Sequence[FileRecord]:
        """Files of all tenants that are hidden, have expired, or are unfinished since a time; at most `limit`."""

    async def orphans(self) -> Sequence[FileRecord]:
        """Unfinished files of all tenants that no living server works on."""
