"""
Where recordings are while they are made: a folder for each, in the part of the spool that their process holds.

A process holds a lock on its part for as long as it lives. A part without one was a process's that has died.
"""

import contextlib
import fcntl
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from msgspec import structs

from antiphon.records import SessionRecord
from antiphon.runtime import recorder_files as files
from antiphon.runtime.ids import mint

_LOCK, _PART = "lock", "spool"


class Filed(NamedTuple):
    """A session's record to be kept, and the folder of its files; None while it is live."""

    record: SessionRecord
    folder: Path | None


class Part:
    """A process's part of the spool; the operating system lets go of it however the process ends."""

    def __init__(self, folder: Path, lock: IO[bytes]) -> None:
        self.folder = folder
        self._lock = lock

    @classmethod
    def made(cls, spool: Path) -> "Part":
        """
        A new one.

        Raises:
            OSError: the disk is full, or can't be written.
        """
        name = mint(_PART)
        hidden = spool / f".{name}"  # so that no other process finds it before there is a lock on it
        hidden.mkdir(mode=0o700, parents=True)
        lock = (hidden / _LOCK).open("wb")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return cls(hidden.rename(spool / name), lock)

    def leave(self) -> None:
        """Let go of it. What could not be kept stays in it, for the next start."""
        (self.folder / _LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # there is something in it
            self.folder.rmdir()
        self._lock.close()


def abandoned(spool: Path) -> Sequence[Part]:
    """The parts of processes that have died; they are this one's now."""
    found = []
    for folder in sorted(spool.glob(f"{_PART}_*")):
        with contextlib.suppress(OSError):
            lock = (folder / _LOCK).open("ab")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # its process lives
                lock.close()
                continue
            found.append(Part(folder, lock))
    return found


def mended(part: Part, now: Callable[[], float]) -> Sequence[Filed]:
    """The recordings in a part, as whole as they can be made."""
    found = []
    for folder in sorted(folder for folder in part.folder.iterdir() if folder.is_dir()):
        with contextlib.suppress(OSError):  # one that can't be read or written stays for the next start, and keeps no other
            found.append(_mended(folder, now))
    return [filed for filed in found if filed is not None]


def _mended(folder: Path, now: Callable[[], float]) -> Filed | None:
    record = files.read_meta(folder)
    if record is None:  # its process died before it had said whose it is
        shutil.rmtree(folder, ignore_errors=True)
        return None
    lasted_s = files.lasted_s(folder)
    size_bytes = files.mend(folder)
    if record.state == "live":
        record = structs.replace(
            record,
            state="interrupted",
            ended_at=min(int(now()), record.created_at + int(lasted_s)),
            duration_ms=round(1000 * lasted_s),
            reason="interrupted",
        )
    record = structs.replace(record, bytes=size_bytes)
    files.write_meta(folder, record)
    return Filed(record, folder)
