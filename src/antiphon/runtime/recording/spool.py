"""
The spool: a folder for each recording that is in progress or waits to be stored.

Each process has its own part of the spool and holds a lock on it while it lives. A part without a lock belonged to a
process that died.

Ended recordings wait here until they are stored elsewhere, which may be never: so there is a limit to what may wait.
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

DROPPED_FOR_SPACE = "deleted before it could be stored, as too many recordings waited"
DROPPED_FOR_AGE = "deleted before it could be stored, as it was too old"


class SpooledRecording(NamedTuple):
    """A session's record to be stored, and the folder of its files; None while it is live."""

    record: SessionRecord
    folder: Path | None


class SpoolLimits(NamedTuple):
    """
    Limits of a process's part of the spool; 0 is no limit.

    Attributes:
        max_bytes: of all its recordings, pending ones included.
        min_free_bytes: free space to leave on the disk.
        max_age_s: how long ended recordings may wait.
    """

    max_bytes: int = 0
    min_free_bytes: int = 0
    max_age_s: float = 0.0


NO_LIMITS = SpoolLimits()


class PendingRecordings:
    """Recordings that have ended and are not stored yet; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recordings: dict[Path, SpooledRecording] = {}
        self._due: set[Path] = set()
        self._claimed_folder: Path | None = None

    @property
    def bytes(self) -> int:
        """The size of all of them."""
        with self._lock:
            return sum(recording.record.bytes for recording in self._recordings.values())

    @property
    def due(self) -> Sequence[SpooledRecording]:
        """Those that may be stored at any time, in the order in which to try them."""
        with self._lock:
            return tuple(recording for folder, recording in self._recordings.items() if folder in self._due)

    def mark_due(self, folder: Path) -> None:
        """Note that the records from before the session's end are stored, so that its last one may follow."""
        with self._lock:
            if folder in self._recordings:
                self._due.add(folder)

    def add(self, recording: SpooledRecording) -> None:
        """Add a recording that has ended."""
        assert recording.folder is not None
        with self._lock:
            self._recordings[recording.folder] = recording

    def claim(self, folder: Path) -> bool:
        """Reserve a recording to store it, so that it is not dropped, one at a time; False where it is gone."""
        with self._lock:
            if folder not in self._recordings:
                return False
            self._claimed_folder = folder
            return True

    def release(self, folder: Path, *, is_persisted: bool) -> None:
        """End a reservation: the recording is stored, or goes to the end of the queue, as the error may be its own."""
        with self._lock:
            self._claimed_folder = None
            recording = self._recordings.pop(folder)
            if is_persisted:
                self._due.discard(folder)
            else:
                self._recordings[folder] = recording

    def drop_oldest(self, reason: str, before: float = math.inf) -> SessionRecord | None:
        """
        Delete the recording that ended first, unless it is being stored.

        Args:
            reason: why, for its record.
            before: Unix seconds; a recording that ended later is not deleted.

        Returns:
            Its record without files, to be stored; None where nothing was deleted.
        """
        with self._lock:
            candidates = [recording for folder, recording in self._recordings.items() if folder != self._claimed_folder]
            oldest = min(candidates, key=lambda recording: recording.record.ended_at or 0, default=None)
            if oldest is None or oldest.folder is None or (oldest.record.ended_at or 0) >= before:
                return None
            del self._recordings[oldest.folder]
            self._due.discard(oldest.folder)
        shutil.rmtree(oldest.folder, ignore_errors=True)
        return structs.replace(oldest.record, state="interrupted", bytes=0, truncated=reason)


class SpoolLock:
    """
    A process's part of the spool; the operating system releases the lock however the process ends.

    Source: flock(2). The locks of fcntl(2) would not do: closing any other descriptor of the file releases them.
    """

    def __init__(self, folder: Path, lock: IO[bytes]) -> None:
        self.folder = folder
        self._lock = lock

    @classmethod
    def create(cls, spool: Path) -> "SpoolLock":
        """
        A new part of the spool.

        Raises:
            OSError: the disk is full, or can't be written.
        """
        name = new_id(_SPOOL_PREFIX)
        hidden_folder = spool / f".{name}"  # so that no other process finds it before it is locked
        hidden_folder.mkdir(mode=0o700, parents=True)
        lock = (hidden_folder / _LOCK).open("wb")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return cls(hidden_folder.rename(spool / name), lock)

    def release(self) -> None:
        """Release it. Recordings that could not be stored stay in it for the next start."""
        (self.folder / _LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it is not empty
            self.folder.rmdir()
        self._lock.close()


def adopt_abandoned(spool: Path) -> Sequence[SpoolLock]:
    """The parts of processes that died, now locked by this process."""
    spool_locks = []
    for folder in sorted(spool.glob(f"{_SPOOL_PREFIX}_*")):
        with contextlib.suppress(OSError):
            lock = (folder / _LOCK).open("ab")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # its process lives
                lock.close()
                continue
            spool_locks.append(SpoolLock(folder, lock))
    return spool_locks


def repair_recordings(spool_lock: SpoolLock, now: Callable[[], float]) -> Sequence[SpooledRecording]:
    """The recordings of a part of the spool, repaired."""
    recordings = []
    for folder in sorted(folder for folder in spool_lock.folder.iterdir() if folder.is_dir()):
        with contextlib.suppress(OSError):  # one that can't be read or written stays for the next start
            recordings.append(_repair_recording(folder, now))
    return [recording for recording in recordings if recording is not None]


def _repair_recording(folder: Path, now: Callable[[], float]) -> SpooledRecording | None:
    record = files.read_meta(folder)
    if record is None:  # its process died before it wrote whose it is
        shutil.rmtree(folder, ignore_errors=True)
        return None
    # First, as it cuts off lines that can't be read.
    duration_s = files.last_event_s(folder)
    size_bytes = files.repair(folder)
    if record.state == "live":
        record = structs.replace(
            record,
            state="interrupted",
            ended_at=min(int(now()), record.created_at + int(duration_s)),
            duration_ms=round(1000 * duration_s),
            reason="interrupted",
        )
    record = structs.replace(record, bytes=size_bytes)
    files.write_meta(folder, record)
    return SpooledRecording(record, folder)
