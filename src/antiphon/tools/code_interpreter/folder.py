"""
Reading a folder that hostile code writes to, also while it does.

No symbolic link is followed and nothing but a regular file is opened: each step of a path is opened from the one before
(`openat` with `O_NOFOLLOW`), so no name can lead out of the folder. What is removed or changed in between is passed over.
"""

import contextlib
import os
import secrets
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from msgspec import Struct

MAX_DEPTH = 32
"""Folders within folders; what lies deeper counts as too many files."""

NAME_BYTES = 255
"""What common file systems allow."""

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a FIFO must not block the open
_BIDI_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # show `exe.txt` for what is `txt.exe`


class FileStamp(Struct, frozen=True):
    """Tells whether a file has changed. By `ctime`, which code can't set, as it can set `mtime`."""

    bytes: int
    inode: int
    changed_at_ns: int


class FolderScan(Struct, frozen=True):
    """
    What a folder holds.

    Attributes:
        files: regular files by path, those alone whose names can be shown to a client.
        bytes: of everything, as it counts on the disk.
        is_over: there were more entries than the scan may look at, or they lie too deep; the rest is incomplete then.
    """

    files: dict[str, FileStamp]
    bytes: int
    entries: int
    is_over: bool


def is_presentable(name: str) -> bool:
    """Whether a file name may be shown to clients: UTF-8 of at most 255 bytes, without control characters."""
    # Cs: bytes that are no UTF-8 reach Python as lone surrogates (PEP 383), which can't be sent.
    if name in ("", ".", "..") or any(unicodedata.category(each) in ("Cc", "Cs") or each in _BIDI_CONTROLS for each in name):
        return False
    return "/" not in name and len(name.encode()) <= NAME_BYTES


def scan(root: Path, max_entries: int) -> FolderScan:
    """List and measure what a folder holds, up to `max_entries`."""
    files: dict[str, FileStamp] = {}
    total_bytes = entries = 0
    try:
        with _open_root(root) as folder:
            for path, status in _walk(folder, "", 1):
                entries += 1
                if entries > max_entries:
                    return FolderScan(files, total_bytes, entries, True)
                total_bytes += disk_bytes(status)
                if stat.S_ISREG(status.st_mode) and all(is_presentable(part) for part in path.split("/")):
                    files[path] = stamp(status)
    except _TooDeep:
        return FolderScan(files, total_bytes, entries, True)
    except FileNotFoundError:
        pass  # Removed with its container.
    return FolderScan(files, total_bytes, entries, False)


def stamp(status: os.stat_result) -> FileStamp:
    """The stamp of a file, from its `lstat`."""
    return FileStamp(status.st_size, status.st_ino, status.st_ctime_ns)


def disk_bytes(status: os.stat_result) -> int:
    """The bytes that a file or folder counts for: as long as it is, even where it has holes, or what it takes on the disk."""
    size = status.st_size if stat.S_ISREG(status.st_mode) else 0
    return max(size, status.st_blocks * 512)


def open_file(root: Path, path: str) -> int | None:
    """A descriptor of a regular file; None where there is none, as where the path goes over a symbolic link."""
    with _open_parent(root, path) as (parent, name):
        file = None if parent is None else _open_allowing(name, _FILE_FLAGS, parent, 0o600)
    # Of the open file, as what has the name may be another one by now.
    if file is not None and not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        return None
    return file


def remove_file(root: Path, path: str) -> None:
    """Remove what a path names, if it is there and no folder; of a symbolic link the link itself."""
    with _open_parent(root, path) as (parent, name), contextlib.suppress(OSError):
        if parent is not None:
            os.unlink(name, dir_fd=parent)


def remove_others(root: Path, keep: Mapping[str, FileStamp]) -> None:
    """Remove everything but the files whose stamps are in `keep`, and their folders. Nothing may write to it any more."""
    kept_folders = {str(folder) for path in keep for folder in PurePosixPath(path).parents}
    pending = [""]
    while pending:
        prefix = pending.pop()
        for name in os.listdir(root / prefix):
            path = prefix + name
            status = os.lstat(root / path)
            if path in kept_folders and stat.S_ISDIR(status.st_mode):
                os.chmod(root / path, 0o700)
                pending.append(f"{path}/")
            elif stat.S_ISDIR(status.st_mode):
                remove_tree(root / path)
            elif keep.get(path) != stamp(status):
                os.unlink(root / path)


def remove_tree(root: Path) -> None:
    """
    Remove a folder that nothing writes to any more, however deep it is and whatever its folders' modes are.

    Folders in it are moved up beside it and emptied there: no recursion, no long path.
    """
    pending = [root]
    while pending:
        folder = pending.pop()
        with contextlib.suppress(OSError):
            os.chmod(folder, 0o700)
            for name in os.listdir(folder):
                path = folder / name
                if stat.S_ISDIR(os.lstat(path).st_mode):
                    os.chmod(path, 0o700)  # Moving a folder writes to it, as its `..` changes.
                    moved_path = root.parent / f".removing-{secrets.token_hex(16)}"
                    os.rename(path, moved_path)
                    pending.append(moved_path)
                else:
                    os.unlink(path)
            os.rmdir(folder)


class _TooDeep(Exception):
    pass


@contextlib.contextmanager
def _open_root(root: Path) -> Iterator[int]:
    descriptor = os.open(root, _FOLDER_FLAGS)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _open_parent(root: Path, path: str) -> Iterator[tuple[int | None, str]]:
    """The folder of a path, None where there is none, and the name in it."""
    *folders, name = path.split("/")
    with contextlib.ExitStack() as stack:
        parent: int | None = stack.enter_context(_open_root(root))
        for folder in folders:
            assert parent is not None
            parent = _open_allowing(folder, _FOLDER_FLAGS, parent, 0o700)
            if parent is None:
                break
            stack.callback(os.close, parent)
        yield parent, name


def _walk(folder: int, prefix: str, depth: int) -> Iterator[tuple[str, os.stat_result]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            yield prefix + entry.name, status
            if stat.S_ISDIR(status.st_mode):
                if depth >= MAX_DEPTH:
                    raise _TooDeep
                # `O_NOFOLLOW` in the flags: code may put a link in place of the folder after the `stat`.
                child = _open_allowing(entry.name, _FOLDER_FLAGS, folder, 0o700)
                if child is not None:
                    try:
                        yield from _walk(child, f"{prefix}{entry.name}/", depth + 1)
                    finally:
                        os.close(child)


def _open_allowing(name: str, flags: int, parent: int, mode: int) -> int | None:
    """Open what code may have made unreadable: the owner of a file may change its mode, and the server is the owner."""
    for is_retry in (False, True):
        try:
            return os.open(name, flags, dir_fd=parent)
        except PermissionError:
            if is_retry:
                return None
            with contextlib.suppress(OSError):
                _set_mode(name, parent, mode)
        except (OSError, ValueError):
            return None
    return None


def _set_mode(name: str, parent: int, mode: int) -> None:
    # By a descriptor that names the file without reading it, so that the mode of what a link leads to never changes.
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if not stat.S_ISLNK(os.fstat(descriptor).st_mode):
            os.chmod(f"/proc/self/fd/{descriptor}", mode)
    finally:
        os.close(descriptor)
