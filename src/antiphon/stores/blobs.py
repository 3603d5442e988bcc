"""
Where files are kept: in a folder of this machine, or with an object store such as S3.

A file's name is `folder/name`, where the folder is all that belongs together. Credentials of an object store are its own environment
variables', such as `AWS_ACCESS_KEY_ID`, which its client reads.
"""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from antiphon.errors import ServerError

if TYPE_CHECKING:
    from obstore.store import ObjectStore, RetryConfig

CHUNK_BYTES = 1 << 18
"""How much of a file is read at once."""

_RETRIES: "RetryConfig" = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
"""How long a place that does not answer is asked again: whoever waits for it tries later."""

_LAST_FILE = "meta.json"
"""What is put last, so that whatever has it is whole."""


class Blob(Struct, frozen=True):
    """
    A file.

    Attributes:
        name: within its folder.
    """

    name: str
    bytes: int


class BlobStore:
    """
    Files at one place; nothing is touched before the first is asked for.

    Args:
        place: the path of a folder, or a URL such as `s3://bucket/prefix`.
        notice: takes a line for the operator, from any thread, when something goes wrong; not again before something went well.
    """

    def __init__(self, location: str, notice: Callable[[str], None] = lambda _line: None) -> None:
        self._location = location
        self._notice = notice
        self._is_unavailable = False
        self._folder = Path(location) if "://" not in location else None
        self._object_store: ObjectStore | None = None

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine, into which files are moved."""
        return self._folder is not None

    async def put_folder(self, folder: Path, name: str) -> None:
        """
        Keep all that is in a folder, and let the folder go; doing it again does no harm. Cancelled, it leaves the folder as it was.

        Raises:
            ServerError: it could not be kept; the folder is as it was.
        """
        paths = await asyncio.to_thread(_list_files, folder)
        if not paths:  # it was kept before
            return
        with self._translate_errors("written"):
            if self._folder is not None:
                await asyncio.to_thread(_move, folder, self._folder / name)
                return
            import obstore  # noqa: PLC0415 - many servers keep no files

            for path in paths:
                await obstore.put_async(self._store, f"{name}/{path.relative_to(folder).as_posix()}", path)
            await asyncio.to_thread(shutil.rmtree, folder)

    async def list_files(self, folder: str) -> list[Blob]:
        """What is in a folder, by name; nothing where there is none."""
        with self._translate_errors("read"):
            prefix = f"{folder}/"
            found = [entry async for page in self._store.list(prefix) for entry in page]
        return sorted((Blob(entry["path"].removeprefix(prefix), entry["size"]) for entry in found), key=lambda blob: blob.name)

    async def read_chunks(self, name: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """
        A file from `start` up to `end`, piece by piece.

        Raises:
            ServerError: it is not there, or can't be read.
        """
        with self._translate_errors("read"):
            if end is not None and end <= start:
                return
            got = await self._store.get_async(name, options={"range": (start, end) if end is not None else {"offset": start}})
            async for piece in got.stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(piece)

    async def delete_folder(self, folder: str) -> None:
        """Remove a folder and all that is in it; no harm where there is none."""
        names = [f"{folder}/{blob.name}" for blob in await self.list_files(folder)]
        with self._translate_errors("deleted"):
            if names:
                await self._store.delete_async(names)
        if self._folder is not None:  # of which the files are gone
            await asyncio.to_thread(shutil.rmtree, self._folder / folder, ignore_errors=True)

    @property
    def _store(self) -> "ObjectStore":
        if self._object_store is None:
            from obstore.store import LocalStore, from_url  # noqa: PLC0415 - many servers keep no files

            self._object_store = (
                LocalStore(self._folder, mkdir=True) if self._folder is not None else from_url(self._location, retry_config=_RETRIES)
            )
        return self._object_store

    @contextlib.contextmanager
    def _translate_errors(self, action: str) -> Iterator[None]:
        """Turn the errors of where it is kept into a fault, which clients may read; the operator is told what it was."""
        from obstore.exceptions import BaseError  # noqa: PLC0415 - many servers keep no files

        try:
            yield
            self._is_unavailable = False
        except (BaseError, OSError, ValueError) as error:
            if not self._is_unavailable:
                self._is_unavailable = True
                where = self._folder or self._location.partition("?")[0]
                self._notice(f"What is kept at {where} can't be {action}: {str(error).partition(chr(10))[0]}")
            message = f"What is kept of this can't be {action} now. Please try again later."
            raise ServerError(message, status=503, code="recordings_away", retry_after_s=10) from error


def _list_files(folder: Path) -> list[Path]:
    """All files of a folder in the order in which they are put; none where there is no such folder."""
    return sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.name == _LAST_FILE)


def _move(folder: Path, target: Path) -> None:
    # On one disk it is moved, not copied: it is there whole or not at all, and a full disk is no matter. What came to another disk in
    # part is deleted when it is tried again.
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    shutil.move(folder, target)
