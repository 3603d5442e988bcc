"""
The thread that writes recordings, a few times a second, in the order in which things were said.

It holds the interpreter's lock for as long as it makes lines of events, and shares nothing else with the sessions' thread but a list that
either side may touch at any time.
"""

import contextlib
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from msgspec import structs

from antiphon.records import SessionRecord
from antiphon.runtime.recording import files
from antiphon.runtime.recording.events import INITIAL_ENCODINGS, created_session_id, event_size_bytes, event_to_builtins
from antiphon.runtime.recording.files import RecordingFiles
from antiphon.runtime.recording.spool import DROPPED_FOR_SPACE, PendingRecordings, SpooledRecording, SpoolLimits, SpoolLock

WRITE_INTERVAL_S = 0.2
"""How often it writes: what a crash may cost of a recording."""

MAX_QUEUED_EVENTS, MAX_QUEUED_BYTES = 50_000, 64 << 20
"""The most that waits to be written, of all sessions; a disk that is slower than that loses recordings and no sessions."""

MAX_EVENTS_BEFORE_START = 1_000
"""The most events of a session that has not begun."""

DISK_TOO_SLOW = "the disk is too slow"
DISK_ERROR = "the disk is full, or can't be written"
DISK_LOW = "the disk has too little room left"
SPOOL_FULL = "too much waits to be kept"
NO_SESSION_START = "too much was said before the session began"
RECORDER_ERROR = "the recorder had an error"

_WRITABLE = (None, DISK_TOO_SLOW)
"""What is written though nothing more is noted."""


class WritableRecording(Protocol):
    """
    A recording, as the thread sees it.

    Attributes:
        record: without the session's id until that is known.
        truncated: why nothing more is noted; None while all is.
        begun_at_s: by `time.monotonic`.
    """

    record: SessionRecord
    truncation_reason: str | None
    started_at_s: float


class QueuedEvent(NamedTuple):
    """What waits to be written, and when it was said, by `time.monotonic`; without a direction, the end of a recording and its reason."""

    recording: WritableRecording
    at_s: float
    direction: str | None
    event: Any


class _OpenRecording:
    """A recording that has not ended; it has no files before its session's id is known."""

    def __init__(self, recording: WritableRecording) -> None:
        self.recording = recording
        self.events: list[QueuedEvent] = []
        self.files: RecordingFiles | None = None


class RecordingWriter:
    """
    The thread, which is there from the first recording on.

    Args:
        now: Unix seconds.
        tell: takes what has begun and what has ended; from the thread.
        tell_dropped: takes the records of what was deleted to make room; from the thread.
        waiting: takes what has ended, too.
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
        self._queued_events: deque[QueuedEvent] = deque()
        self._queued_bytes = 0  # raised by the sessions' thread alone
        self._written_bytes = 0  # raised by the writing thread alone
        self._open_recordings: dict[WritableRecording, _OpenRecording] = {}
        self._wake_event, self._stop_event = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._spool_lock: SpoolLock | None = None

    # From the sessions' thread

    def enqueue(self, event: QueuedEvent) -> bool:
        """Have it written; False where too much waits."""
        if len(self._queued_events) >= MAX_QUEUED_EVENTS or self._queued_bytes - self._written_bytes >= MAX_QUEUED_BYTES:
            return False
        self._queued_bytes += event_size_bytes(event.event)
        self._queued_events.append(event)
        if not self._wake_event.is_set():
            self._wake_event.set()
            if self._thread is None:
                self._start()
        return True

    def enqueue_end(self, event: QueuedEvent) -> None:
        """Have the end of a recording written; there is always room for that."""
        if self._thread is not None:  # else nothing of it was written
            self._queued_events.append(event)
            self._wake_event.set()

    def stop(self) -> None:
        """Write what is left, and end; recordings that are open end here."""
        if self._thread is not None:
            self._stop_event.set()
            self._wake_event.set()
            self._thread.join()

    def release(self) -> None:
        """Let go of the spool; once what is in it was kept."""
        if self._spool_lock is not None:
            self._spool_lock.release()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    # In the thread

    def _run(self) -> None:
        while not self._stop_event.is_set():
            self._wake_event.wait()
            self._stop_event.wait(WRITE_INTERVAL_S)
            self._wake_event.clear()
            self._write()
        self._write()
        for opened in tuple(self._open_recordings.values()):
            self._end(opened.recording, time.monotonic(), "stopped")

    def _write(self) -> None:
        """Write what was noted until now."""
        self.make_room()
        touched: dict[WritableRecording, _OpenRecording] = {}
        size_bytes = 0
        for _ in range(len(self._queued_events)):
            noted = self._queued_events.popleft()
            if noted.direction is None:
                self._write_files(touched)
                self._end(noted.recording, noted.at_s, noted.event)
            else:
                size_bytes += event_size_bytes(noted.event)
                touched[noted.recording] = self._add(noted)
        self._write_files(touched)
        self._written_bytes += size_bytes

    def make_room(self) -> None:
        """
        Delete the oldest that waits while there is too much, and end what is being recorded where that is not enough.

        Before the thread is there it may be called from another.
        """
        most_bytes = self._limits.max_bytes
        written = sum(opened.files.bytes for opened in self._open_recordings.values() if opened.files is not None)
        while (
            most_bytes
            and written + self._pending.bytes > most_bytes
            and (dropped := self._pending.drop_oldest(DROPPED_FOR_SPACE)) is not None
        ):
            self._on_dropped(dropped)
        self._no_room_reason = SPOOL_FULL if most_bytes and written + self._pending.bytes > most_bytes else self._low_disk_reason()
        if self._no_room_reason is not None:
            for recording in self._open_recordings:
                if recording.truncation_reason in _WRITABLE:
                    recording.truncation_reason = self._no_room_reason

    def _low_disk_reason(self) -> str | None:
        """What is wrong with the disk where it has less left than it should."""
        with contextlib.suppress(OSError):  # there is no spool yet, or what is wrong is told when it is written
            if self._limits.min_free_bytes and shutil.disk_usage(self._spool).free < self._limits.min_free_bytes:
                return DISK_LOW
        return None

    def _add(self, queued_event: QueuedEvent) -> _OpenRecording:
        recording = queued_event.recording
        opened = self._open_recordings.get(recording)
        if opened is None:
            opened = self._open_recordings[recording] = _OpenRecording(recording)
        opened.events.append(queued_event)
        if opened.files is None and recording.truncation_reason in _WRITABLE:
            with _truncate_on_error(recording):
                self._detect_start(opened, event_to_builtins(queued_event.event))
        return opened

    def _detect_start(self, open_recording: _OpenRecording, event: dict[str, Any]) -> None:
        recording = open_recording.recording
        if (session_id := created_session_id(event)) is None:
            if len(open_recording.events) > MAX_EVENTS_BEFORE_START:
                recording.truncation_reason = NO_SESSION_START
            return
        recording.record = structs.replace(recording.record, id=session_id)
        self._spool_lock = self._spool_lock or SpoolLock.create(self._spool)
        open_recording.files = RecordingFiles(self._spool_lock.folder / session_id, INITIAL_ENCODINGS[recording.record.protocol])
        self._on_recording(SpooledRecording(recording.record, None))
        if self._no_room_reason is not None:  # there is a record of it, which says so
            recording.truncation_reason = self._no_room_reason
        else:
            open_recording.files.begin(recording.record)

    def _write_files(self, recordings: dict[WritableRecording, _OpenRecording]) -> None:
        for recording, opened in recordings.items():
            if opened.files is not None:
                events, opened.events = opened.events, []
                if recording.truncation_reason not in _WRITABLE:
                    continue
                with _truncate_on_error(recording):
                    for noted in events:
                        opened.files.add(noted.at_s - recording.started_at_s, str(noted.direction), event_to_builtins(noted.event))
                    opened.files.write()
        recordings.clear()

    def _end(self, recording: WritableRecording, at_s: float, reason: str) -> None:
        opened = self._open_recordings.pop(recording, None)
        if opened is None or opened.files is None:
            return
        record = structs.replace(
            recording.record,
            state="kept",
            ended_at=int(self._now()),
            duration_ms=round(1000 * (at_s - recording.started_at_s)),
            reason=reason,
            truncated=recording.truncation_reason,
        )
        folder = opened.files.folder
        with contextlib.suppress(OSError):  # the record in the store tells, whatever the disk has room for
            record = structs.replace(record, bytes=files.repair(folder))
            files.write_meta(folder, record)
        filed = SpooledRecording(record, folder)
        self._pending.add(filed)
        self._on_recording(filed)


@contextlib.contextmanager
def _truncate_on_error(recording: WritableRecording) -> Iterator[None]:
    """End a recording, and nothing else, where it can't be written."""
    try:
        yield
    except OSError:
        recording.truncation_reason = DISK_ERROR
    except Exception as defect:  # the other recordings need the thread, and this one ends here
        recording.truncation_reason = RECORDER_ERROR
        threading.excepthook(threading.ExceptHookArgs((type(defect), defect, defect.__traceback__, threading.current_thread())))
