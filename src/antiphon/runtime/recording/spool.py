"""
Where recordings are while they are made: a folder for each, in the part of the spool that their process holds.

A process holds a lock on its part for as long as it lives. A part without one was a process's that has died.

What has ended waits here until it is kept elsewhere, which may be never: so there is a bound to what may wait.
"""

import contextlib
import fcntl
import math
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from msgspec import structs

from antiphon.records import SessionRecord
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.recording import files

_LOCK, _SPOOL_PREFIX = "lock", "spool"

DROPPED_FOR_SPACE = "deleted before it could be kept, as too much waited"
DROPPED_FOR_AGE = "deleted before it could be kept, as it was too old"


class SpooledRecording(NamedTuple):
    """A session's record to be kept, and the folder of its files; None while it is live."""

    record: SessionRecord
    folder: Path | None


class SpoolLimits(NamedTuple):
    """
    How much a process may write, and for how long; 0 of anything is no bound.

    Attributes:
        most_bytes: of all recordings in its part, those that wait included.
        free_bytes: what is to be left of the disk.
        most_s: how long what has ended may wait.
    """

    max_bytes: int = 0
    min_free_bytes: int = 0
    max_age_s: float = 0.0


NO_LIMITS = SpoolLimits()


class PendingRecordings:
    """What has ended and is not kept yet; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recordings: dict[Path, SpooledRecording] = {}
        self._claimed_folders: set[Path] = set()

    @property
    def bytes(self) -> int:
        """What all of it comes to."""
        with self._lock:
            return sum(filed.record.bytes for filed in self._recordings.values())

    @property
    def recordings(self) -> Sequence[SpooledRecording]:
        """What waits, in the order in which it is to be tried."""
        with self._lock:
            return tuple(self._recordings.values())

    def add(self, recording: SpooledRecording) -> None:
        """One more has ended."""
        assert recording.folder is not None
        with self._lock:
            self._recordings[recording.folder] = recording

    def claim(self, folder: Path) -> bool:
        """Begin to keep one, which is not dropped meanwhile; False where it is gone, or somebody is at it."""
        with self._lock:
            if folder not in self._recordings or folder in self._claimed_folders:
                return False
            self._claimed_folders.add(folder)
            return True

    def release(self, folder: Path, *, is_persisted: bool) -> None:
        """It is kept; or it could not be, and is tried again after all others: what is wrong may be wrong with it alone."""
        with self._lock:
            self._claimed_folders.discard(folder)
            filed = self._recordings.pop(folder)
            if not is_persisted:
                self._recordings[folder] = filed

    def drop_oldest(self, reason: str, before: float = math.inf) -> SessionRecord | None:
        """
        Delete the one that ended first.

        Args:
            before: Unix seconds; one that ended later is not deleted.

        Returns:
            Its record, as it is to be kept without files, or None where there is none to delete.
        """
        with self._lock:
            there = [filed for folder, filed in self._recordings.items() if folder not in self._claimed_folders]
            oldest = min(there, key=lambda filed: filed.record.ended_at or 0, default=None)
            if oldest is None or oldest.folder is None or (oldest.record.ended_at or 0) >= before:
                return None
            del self._recordings[oldest.folder]
        shutil.rmtree(oldest.folder, ignore_errors=True)
        return structs.replace(oldest.record, state="interrupted", bytes=0, truncated=reason)


class SpoolLock:
    """A process's part of the spool; the operating system lets go of it however the process ends."""

    def __init__(self, folder: Path, lock: IO[bytes]) -> None:
        self.folder = folder
        self._lock = lock

    @classmethod
    def create(cls, spool: Path) -> "SpoolLock":
        """
        A new one.

        Raises:
            OSError: the disk is full, or can't be written.
        """
        name = new_id(_SPOOL_PREFIX)
        hidden = spool / f".{name}"  # so that no other process finds it before there is a lock on it
        hidden.mkdir(mode=0o700, parents=True)
        lock = (hidden / _LOCK).open("wb")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return cls(hidden.rename(spool / name), lock)

    def release(self) -> None:
        """Let go of it. What could not be kept stays in it, for the next start."""
        (self.folder / _LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # there is something in it
            self.folder.rmdir()
        self._lock.close()


def adopt_abandoned(spool: Path) -> Sequence[SpoolLock]:
    """The parts of processes that have died; they are this one's now."""
    found = []
    for folder in sorted(spool.glob(f"{_SPOOL_PREFIX}_*")):
        with contextlib.suppress(OSError):
            lock = (folder / _LOCK).open("ab")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # its process lives
                lock.close()
                continue
            found.append(SpoolLock(folder, lock))
    return found


def repair_recordings(spool_lock: SpoolLock, now: Callable[[], float]) -> Sequence[SpooledRecording]:
    """The recordings in a part, as whole as they can be made."""
    found = []
    for folder in sorted(folder for folder in spool_lock.folder.iterdir() if folder.is_dir()):
        with contextlib.suppress(OSError):  # one that can't be read or written stays for the next start, and keeps no other
            found.append(_repair_recording(folder, now))
    return [filed for filed in found if filed is not None]


def _repair_recording(folder: Path, now: Callable[[], float]) -> SpooledRecording | None:
    record = files.read_meta(folder)
    if record is None:  # its process died before it had said whose it is
        shutil.rmtree(folder, ignore_errors=True)
        return None
    lasted_s = files.last_event_s(folder)
    size_bytes = files.repair(folder)
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
    return SpooledRecording(record, folder)
