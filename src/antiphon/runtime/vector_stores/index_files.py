"""
Files of idle indexes: the next search opens one instead of making the index again from the store.

A file has a label only while it waits, so a file that a crash left is begun anew. Each file is used by one process; the
others of the same server have files of their own.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

SLOTS = 16
"""The most files of one store, one for each process."""


_FORGOTTEN = b"forgotten"
"""What stands in the lock of a file that is erased when it is put back."""


class IndexLabel(Struct, frozen=True):
    """
    What a file is the index of.

    Attributes:
        embedding: the model that its vectors are of.
        version: of the store, when it was last used.
    """

    tenant: str
    store_id: str
    embedding: str
    version: int


class IndexFile:
    """A file for this process alone, until it is put back."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.lock = lock


_decoder = msgspec.json.Decoder(IndexLabel)


class IndexFiles:
    """
    Its methods block; any thread may call them.

    Args:
        folder: of the files; None where none are kept.
        limit_bytes: of all that wait.
    """

    def __init__(self, folder: Path | None, limit_bytes: int) -> None:
        self._folder = folder if limit_bytes > 0 else None
        self._limit_bytes = limit_bytes

    def take(self, store_id: str, embedding: str) -> IndexFile | None:
        """Lock a file for an index: as it was put back, or not there yet. None if no file can be kept; an index can do without."""
        if self._folder is None:
            return None
        file: IndexFile | None = None
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            paths = (self._folder / f"{store_id}.{slot}.index" for slot in range(SLOTS))
            file = next((own for path in paths if (own := self._lock(path)) is not None), None)
            if file is not None:
                label = _read_label(file.path)
                if label is None or label.embedding != embedding or _is_forgotten(file):
                    _erase(file.path)
                # On the disk before the file is used: a crash from here on must leave it without a label.
                _label_path(file.path).unlink(missing_ok=True)
                os.ftruncate(file.lock, 0)
                _sync(self._folder)
        except OSError:  # Such as a full disk: an index needs no file.
            if file is not None:
                os.close(file.lock)
            return None
        return file

    def put_back(self, file: IndexFile, label: IndexLabel | None) -> None:
        """Keep the file of a closed index; erase it if there is no label, or no room."""
        try:
            with contextlib.suppress(OSError):
                if _is_forgotten(file):
                    _erase_with_lock(file.path)
                elif label is None or not self._has_room(file.path):
                    _erase(file.path)
                else:
                    # The index before its label: a label vouches for what is on the disk.
                    _sync(file.path)
                    _write_label(_label_path(file.path), label)
                    _sync(file.path.parent)
        finally:
            os.close(file.lock)

    def forget(self, store_id: str) -> None:
        """Erase the files of a store, those that are in use when they are put back."""
        for slot in range(SLOTS if self._folder is not None else 0):
            assert self._folder is not None
            path = self._folder / f"{store_id}.{slot}.index"
            with contextlib.suppress(OSError):
                # Only under the lock: SQLite finds journals by name, and takes that of an unlinked file for a new one's.
                if not self._erase_idle(path):
                    _lock_path(path).write_bytes(_FORGOTTEN)

    def erase_remnants(self) -> None:
        """Erase the files that a crash has left, which have no label and are not in use."""
        if self._folder is not None:
            for path in self._folder.glob("*.index"):
                with contextlib.suppress(OSError):
                    if not _label_path(path).exists():
                        self._erase_idle(path, unless_labeled=True)

    def waiting(self) -> Sequence[IndexLabel]:
        """The labels of the files that wait."""
        labels = (_read_label(path) for path in self._paths())
        return [label for label in labels if label is not None]

    def _erase_idle(self, path: Path, *, unless_labeled: bool = False) -> bool:
        """Erase a file and its lock; returns whether nobody was using it."""
        if not _lock_path(path).exists() and not path.exists():
            return True
        if (file := self._lock(path)) is None:
            return False
        try:
            # It may have been put back before it was locked here.
            if not unless_labeled or not _label_path(path).exists():
                _erase_with_lock(path)
        finally:
            os.close(file.lock)
        return True

    def _lock(self, path: Path) -> IndexFile | None:
        lock = os.open(_lock_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # flock(2): the lock is of the file and not of its name, and another process may have removed that meanwhile.
            if os.fstat(lock).st_nlink:
                return IndexFile(path, lock)
        except BlockingIOError:
            pass
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
        return None

    def _has_room(self, path: Path) -> bool:
        """Whether there is room for a file to wait; files that have waited the longest are erased for it."""
        room = self._limit_bytes - path.stat().st_size
        others: list[tuple[float, int, Path]] = []
        for each in self._paths():
            with contextlib.suppress(FileNotFoundError):  # Another process has just taken it.
                if each != path:
                    others.append((_label_path(each).stat().st_mtime, each.stat().st_size, each))
        for _, size_bytes, each in sorted(others, reverse=True):
            room -= size_bytes
            if room < 0 and (file := self._lock(each)) is not None:
                room += size_bytes
                _erase(each)
                os.close(file.lock)
        return room >= 0

    def _paths(self) -> Iterator[Path]:
        if self._folder is not None:
            yield from (path.with_suffix(".index") for path in self._folder.glob("*.label"))


def _label_path(path: Path) -> Path:
    return path.with_suffix(".label")


def _lock_path(path: Path) -> Path:
    return path.with_suffix(".lock")


def _read_label(path: Path) -> IndexLabel | None:
    try:
        return _decoder.decode(_label_path(path).read_bytes()) if path.is_file() else None
    except (OSError, msgspec.MsgspecError):
        return None


def _write_label(path: Path, label: IndexLabel) -> None:
    with path.open("wb") as file:
        file.write(msgspec.json.encode(label))
        file.flush()
        os.fsync(file.fileno())


def _is_forgotten(file: IndexFile) -> bool:
    return os.fstat(file.lock).st_size > 0


def _erase_with_lock(path: Path) -> None:
    """Erase a file that this process has locked, and the lock's name."""
    _erase(path)
    _lock_path(path).unlink(missing_ok=True)


def _erase(path: Path) -> None:
    for each in (_label_path(path), path, *(path.with_name(path.name + suffix) for suffix in ("-journal", "-wal", "-shm"))):
        each.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Write a file, or the names in a folder, through to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
