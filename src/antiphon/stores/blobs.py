"""
Files in a folder of this machine, or in an object store such as S3.

A file's name is `folder/name`; a folder holds what belongs together. The object store's client reads its credentials
from its own environment variables, such as `AWS_ACCESS_KEY_ID`.
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
from antiphon.masking import mask_password

if TYPE_CHECKING:
    from obstore.store import ObjectStore, RetryConfig

CHUNK_BYTES = 1 << 18
"""How much of a file is read at a time."""

_PART_BYTES, _PARTS_AT_ONCE = 5 << 20, 2
"""
How a stream is stored: S3 takes no smaller parts. Source:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
"""

STREAM_BYTES = (_PARTS_AT_ONCE + 1) * _PART_BYTES
"""The memory that storing a stream takes: the parts on their way, and the one that is filled."""

_RETRIES: "RetryConfig" = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
"""
A store that doesn't answer is given up soon: callers try again later. By default it has 10 retries within 3 minutes.
Source: `obstore.store.RetryConfig`.
"""

_LAST_FILE = "meta.json"
"""
Stored last: a folder that has it is complete. S3 shows an object to all readers once it is stored. Source:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/Welcome.html#ConsistencyModel
"""


class Blob(Struct, frozen=True):
    """
    A stored file.

    Attributes:
        name: within its folder.
        bytes: its size.
    """

    name: str
    bytes: int


class BlobStore:
    """
    Files at one location, which is not touched before it is first used.

    Args:
        location: the path of a folder, or a URL such as `s3://bucket/prefix`.
        notice: called with a line for the operator, from any thread, at the first error after a success.
        error_code: the code of the error where the location can't be used.
    """

    def __init__(self, location: str, notice: Callable[[str], None] = lambda _line: None, *, error_code: str = "recordings_away") -> None:
        self._location = location
        self._notice = notice
        self._error_code = error_code
        self._is_unavailable = False
        self._folder = Path(location) if "://" not in location else None
        self._object_store: ObjectStore | None = None

    @property
    def is_local(self) -> bool:
        """Whether the location is a folder of this machine, so that files are moved into it."""
        return self._folder is not None

    async def put_folder(self, folder: Path, name: str) -> None:
        """
        Store all files of a folder as `name`, and delete the folder; repeating it does no harm.

        If it fails or is cancelled, the folder stays as it was.

        Raises:
            ServerError: the files can't be stored.
        """
        paths = await asyncio.to_thread(_list_files, folder)
        if not paths:  # they were stored before
            return
        with self._translate_errors("written"):
            if self._folder is not None:
                await asyncio.to_thread(_move, folder, self._folder / name)
                return
            import obstore  # noqa: PLC0415 - loads slowly, and many servers store no files

            for path in paths:  # given as a path, a file is uploaded in parts and never whole in memory
                await obstore.put_async(self._store, f"{name}/{path.relative_to(folder).as_posix()}", path)
            await asyncio.to_thread(shutil.rmtree, folder)

    async def put_stream(self, name: str, chunks: AsyncIterator[bytes]) -> None:
        """
        Store a file as it arrives. It takes at most `STREAM_BYTES` of memory.

        Nothing can be read before all of it is stored, and nothing is left if `chunks` raises, or if this is cancelled.

        Args:
            chunks: its content. What it raises is raised here.

        Raises:
            ServerError: the file can't be stored.
        """
        import obstore  # noqa: PLC0415 - as above

        with self._translate_errors("written"):
            if self._folder is not None:
                await asyncio.to_thread(self._folder.mkdir, mode=0o700, parents=True, exist_ok=True)
            await obstore.put_async(self._store, name, chunks, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    async def list_files(self, folder: str) -> list[Blob]:
        """The files of a folder, sorted by name; empty where there is no such folder."""
        with self._translate_errors("read"):
            prefix = f"{folder}/"
            entries = [entry async for page in self._store.list(prefix) for entry in page]
        return sorted((Blob(entry["path"].removeprefix(prefix), entry["size"]) for entry in entries), key=lambda blob: blob.name)

    async def read_chunks(self, name: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """
        A file's bytes from `start` up to `end`, in chunks.

        Raises:
            ServerError: there is no such file, or it can't be read.
        """
        with self._translate_errors("read"):
            if end is not None and end <= start:
                return
            result = await self._store.get_async(name, options={"range": (start, end) if end is not None else {"offset": start}})
            async for chunk in result.stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)

    async def delete_folder(self, folder: str) -> None:
        """Delete a folder and its files, if there is one."""
        names = [f"{folder}/{blob.name}" for blob in await self.list_files(folder)]
        with self._translate_errors("deleted"):
            if names:
                await self._store.delete_async(names)
        if self._folder is not None:  # its files are gone, the folder is still there
            await asyncio.to_thread(shutil.rmtree, self._folder / folder, ignore_errors=True)

    @property
    def _store(self) -> "ObjectStore":
        if self._object_store is None:
            from obstore.store import LocalStore, from_url  # noqa: PLC0415 - as above

            self._object_store = (
                LocalStore(self._folder, mkdir=True) if self._folder is not None else from_url(self._location, retry_config=_RETRIES)
            )
        return self._object_store

    @contextlib.contextmanager
    def _translate_errors(self, action: str) -> Iterator[None]:
        """Turn the location's errors into a `ServerError` fit for clients; the operator gets the cause."""
        from obstore.exceptions import BaseError  # noqa: PLC0415 - as above

        try:
            yield
            self._is_unavailable = False
        except (BaseError, OSError, ValueError) as error:
            if not self._is_unavailable:
                self._is_unavailable = True
                where = self._folder or mask_password(self._location.partition("?")[0])
                self._notice(f"The files at {where} can't be {action}: {mask_password(str(error).partition(chr(10))[0])}")
            message = f"The files can't be {action} now. Please try again later."
            raise ServerError(message, status=503, code=self._error_code, retry_after_s=10) from error


def _list_files(folder: Path) -> list[Path]:
    """The files of a folder in the order in which they are stored; empty where there is no such folder."""
    return sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.name == _LAST_FILE)


def _move(folder: Path, target: Path) -> None:
    # On one disk a folder is moved, not copied: all of it or nothing, even when the disk is full. What an earlier try
    # copied to another disk in part is deleted first.
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    shutil.move(folder, target)
