"""
The thread that writes recordings, a few times a second, in the order of their events.

It holds the interpreter's lock while it encodes events. With the sessions' thread it shares only a queue that both may
use at any time.
"""

import contextlib
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec import structs

from antiphon.records import SessionRecord
from antiphon.runtime.recording import files
from antiphon.runtime.recording.events import (
    INITIAL_ENCODINGS,
    EventFields,
    LineDirection,
    created_session_id,
    event_size_bytes,
    event_to_builtins,
)
from antiphon.runtime.recording.files import RecordingFiles
from antiphon.runtime.recording.spool import DROPPED_FOR_SPACE, PendingRecordings, SpooledRecording, SpoolLimits, SpoolLock

WRITE_INTERVAL_S = 0.2
"""How often it writes: a crash may lose that much of a recording."""

MAX_QUEUED_EVENTS, MAX_QUEUED_BYTES = 50_000, 64 << 20
"""The most that waits to be written, of all sessions together; a slower disk costs recordings, never sessions."""

MAX_EVENTS_BEFORE_START = 1_000
"""The most events of a session before its `session.created`."""

DISK_TOO_SLOW = "the disk is too slow"
DISK_ERROR = "the disk is full, or can't be written"
DISK_LOW = "the disk has too little room left"
SPOOL_FULL = "too many recordings wait to be stored"
NO_SESSION_START = "too many events came before the session began"
RECORDER_ERROR = "the recorder had an error"

_WRITABLE = (None, DISK_TOO_SLOW)
"""Truncation reasons with which queued events are still written."""


class WritableRecording(Protocol):
    """
    A recording, as the thread sees it.

    Attributes:
        record: without the session's id until that is known.
        truncation_reason: why no more events are queued; None while all are.
        started_at_s: by `time.monotonic`.
    """

    record: SessionRecord
    truncation_reason: str | None
    started_at_s: float


class QueuedEvent(NamedTuple):
    """An event that waits to be written; `at_s` is by `time.monotonic`."""

    recording: WritableRecording
    at_s: float
    direction: LineDirection
    event: object


class QueuedEnd(NamedTuple):
    """The end of a recording; `at_s` is by `time.monotonic`."""

    recording: WritableRecording
    at_s: float
    reason: str


class _OpenRecording:
    """A recording that has not ended; without files until the session's id is known."""

    def __init__(self, recording: WritableRecording) -> None:
        self.recording = recording
        self.events: list[QueuedEvent] = []
        self.files: RecordingFiles | None = None


class RecordingWriter:
    """
    The thread; it starts with the first recording.

    Args:
        now: Unix seconds.
        on_recording: called from the thread with each recording at its start and at its end.
        on_dropped: called from the thread with the record of a recording that was deleted to make room.
        pending: ended recordings are added to it.
        limits: of the spool.
    """

    def __init__(
        self,
        spool: Path,
        now: Callable[[], float],
        on_recording: Callable[[SpooledRecording], None],
        on_dropped: Callable[[SessionRecord], None],
        pending: PendingRecordings,
        limits: SpoolLimits,
    ) -> None:
        self._spool = spool
        self._on_dropped = on_dropped
        self._pending = pending
        self._limits = limits
        self._no_room_reason: str | None = None
        self._now = now
        self._on_recording = on_recording
        self._queue: deque[QueuedEvent | QueuedEnd] = deque()
        self._queued_bytes = 0  # raised by the sessions' thread alone
        self._written_bytes = 0  # raised by the writing thread alone
        self._open_recordings: dict[WritableRecording, _OpenRecording] = {}
        self._wake_event, self._stop_event = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._spool_lock: SpoolLock | None = None

    # From the sessions' thread

    def enqueue(self, event: QueuedEvent) -> bool:
        """Queue an event; returns False where too much waits."""
        if len(self._queue) >= MAX_QUEUED_EVENTS or self._queued_bytes - self._written_bytes >= MAX_QUEUED_BYTES:
            return False
        self._queued_bytes += event_size_bytes(event.event)
        self._queue.append(event)
        if not self._wake_event.is_set():
            self._wake_event.set()
            if self._thread is None:
                self._start()
        return True

    def enqueue_end(self, end: QueuedEnd) -> None:
        """Queue the end of a recording; there is always room for it."""
        if self._thread is not None:  # else nothing of it was written
            self._queue.append(end)
            self._wake_event.set()

    def stop(self) -> None:
        """Write the rest of the queue, end all open recordings, and stop the thread."""
        if self._thread is not None:
            self._stop_event.set()
            self._wake_event.set()
            self._thread.join()

    def release(self) -> None:
        """Release the spool, once its recordings were stored."""
        if self._spool_lock is not None:
            self._spool_lock.release()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    # In the thread

    def _run(self) -> None:
        while not self._stop_event.is_set():
            self._wake_event.wait()
            # Events gather meanwhile; a stop ends the pause at once.
            self._stop_event.wait(WRITE_INTERVAL_S)
            self._wake_event.clear()
            self._write()
        self._write()
        for open_recording in tuple(self._open_recordings.values()):
            self._end(open_recording.recording, time.monotonic(), "stopped")

    def _write(self) -> None:
        """Write what is queued by now."""
        self.make_room()
        changes: dict[WritableRecording, _OpenRecording] = {}
        size_bytes = 0
        # What comes while it writes is for the next round: busy sessions could keep it here for ever.
        for _ in range(len(self._queue)):
            entry = self._queue.popleft()
            if isinstance(entry, QueuedEnd):
                # The last events of a recording come before its end.
                self._write_files(changes)
                self._end(entry.recording, entry.at_s, entry.reason)
            else:
                size_bytes += event_size_bytes(entry.event)
                changes[entry.recording] = self._add(entry)
        self._write_files(changes)
        # Only here: until it is written, it takes memory.
        self._written_bytes += size_bytes

    def make_room(self) -> None:
        """
        Delete the oldest pending recordings while the spool is too large; if that is not enough, end the open ones.

        Another thread may call it before this one has started.
        """
        limit_bytes = self._limits.max_bytes
        open_bytes = sum(each.files.bytes for each in self._open_recordings.values() if each.files is not None)
        while (
            limit_bytes
            and open_bytes + self._pending.bytes > limit_bytes
            and (record := self._pending.drop_oldest(DROPPED_FOR_SPACE)) is not None
        ):
            self._on_dropped(record)
        self._no_room_reason = SPOOL_FULL if limit_bytes and open_bytes + self._pending.bytes > limit_bytes else self._low_disk_reason()
        if self._no_room_reason is not None:
            for recording in self._open_recordings:
                if recording.truncation_reason in _WRITABLE:
                    recording.truncation_reason = self._no_room_reason

    def _low_disk_reason(self) -> str | None:
        with contextlib.suppress(OSError):  # there is no spool yet, or the next write reports the error
            if self._limits.min_free_bytes and shutil.disk_usage(self._spool).free < self._limits.min_free_bytes:
                return DISK_LOW
        return None

    def _add(self, queued_event: QueuedEvent) -> _OpenRecording:
        recording = queued_event.recording
        open_recording = self._open_recordings.get(recording)
        if open_recording is None:
            open_recording = self._open_recordings[recording] = _OpenRecording(recording)
        open_recording.events.append(queued_event)
        if open_recording.files is None and recording.truncation_reason in _WRITABLE:
            with _truncate_on_error(recording):
                self._detect_start(open_recording, event_to_builtins(queued_event.event))
        return open_recording

    def _detect_start(self, open_recording: _OpenRecording, event: EventFields) -> None:
        recording = open_recording.recording
        if (session_id := created_session_id(event)) is None:
            if len(open_recording.events) > MAX_EVENTS_BEFORE_START:
                recording.truncation_reason = NO_SESSION_START
            return
        recording.record = structs.replace(recording.record, id=session_id)
        self._spool_lock = self._spool_lock or SpoolLock.create(self._spool)
        open_recording.files = RecordingFiles(self._spool_lock.folder / session_id, INITIAL_ENCODINGS[recording.record.protocol])
        self._on_recording(SpooledRecording(recording.record, None))
        if self._no_room_reason is not None:  # only its record is stored, with this reason
            recording.truncation_reason = self._no_room_reason
        else:
            open_recording.files.begin(recording.record)

    def _write_files(self, recordings: dict[WritableRecording, _OpenRecording]) -> None:
        for recording, open_recording in recordings.items():
            if open_recording.files is not None:
                batch, open_recording.events = open_recording.events, []
                if recording.truncation_reason not in _WRITABLE:
                    continue
                with _truncate_on_error(recording):
                    for entry in batch:
                        open_recording.files.add(entry.at_s - recording.started_at_s, entry.direction, event_to_builtins(entry.event))
                    open_recording.files.write()
        recordings.clear()

    def _end(self, recording: WritableRecording, at_s: float, reason: str) -> None:
        open_recording = self._open_recordings.pop(recording, None)
        if open_recording is None or open_recording.files is None:
            return
        record = structs.replace(
            recording.record,
            state="kept",
            ended_at=int(self._now()),
            duration_ms=round(1000 * (at_s - recording.started_at_s)),
            reason=reason,
            truncated=recording.truncation_reason,
        )
        folder = open_recording.files.folder
        with contextlib.suppress(OSError):  # the record in the store says it, even when the disk is full
            record = structs.replace(record, bytes=files.repair(folder))
            files.write_meta(folder, record)
        spooled_recording = SpooledRecording(record, folder)
        self._pending.add(spooled_recording)
        self._on_recording(spooled_recording)


@contextlib.contextmanager
def _truncate_on_error(recording: WritableRecording) -> Iterator[None]:
    """Let an error end this recording, and nothing else."""
    try:
        yield
    except OSError:
        recording.truncation_reason = DISK_ERROR
    except Exception as error:  # the thread goes on for the other recordings
        recording.truncation_reason = RECORDER_ERROR
        threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread())))
