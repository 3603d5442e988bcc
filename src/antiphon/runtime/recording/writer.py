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
from antiphon.runtime.recording.events import BEGINS, plain, session_id_of, size_of
from antiphon.runtime.recording.files import Files
from antiphon.runtime.recording.spool import DROPPED, Filed, Part, Room, Waiting

WRITE_S = 0.2
"""How often it writes: what a crash may cost of a recording."""

MOST_EVENTS, MOST_BYTES = 50_000, 64 << 20
"""The most that waits to be written, of all sessions; a disk that is slower than that loses recordings and no sessions."""

MOST_BEFORE = 1_000
"""The most events of a session that has not begun."""

BEHIND = "the disk is too slow"
DISK_TROUBLE = "the disk is full, or can't be written"
DISK_LOW = "the disk has too little room left"
SPOOL_FULL = "too much waits to be kept"
NOT_BEGUN = "too much was said before the session began"
DEFECT = "the recorder had an error"

_GOING_ON = (None, BEHIND)
"""What is written though nothing more is noted."""


class Recorded(Protocol):
    """
    A recording, as the thread sees it.

    Attributes:
        record: without the session's id until that is known.
        truncated: why nothing more is noted; None while all is.
        begun_at_s: by `time.monotonic`.
    """

    record: SessionRecord
    truncated: str | None
    begun_at_s: float


class Noted(NamedTuple):
    """What waits to be written, and when it was said, by `time.monotonic`; without a direction, the end of a recording and its reason."""

    recording: Recorded
    at_s: float
    direction: str | None
    event: Any


class _Open:
    """A recording that has not ended; it has no files before its session's id is known."""

    def __init__(self, recording: Recorded) -> None:
        self.recording = recording
        self.events: list[Noted] = []
        self.files: Files | None = None


class Writer:
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
        tell: Callable[[Filed], None],
        tell_dropped: Callable[[SessionRecord], None],
        waiting: Waiting,
        room: Room,
    ) -> None:
        self._spool = spool
        self._tell_dropped = tell_dropped
        self._waiting = waiting
        self._room = room
        self._no_room: str | None = None
        self._now = now
        self._tell = tell
        self._noted: deque[Noted] = deque()
        self._noted_bytes = 0  # raised by the sessions' thread alone
        self._written_bytes = 0  # raised by the writing thread alone
        self._open: dict[Recorded, _Open] = {}
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._part: Part | None = None

    # From the sessions' thread

    def take(self, noted: Noted) -> bool:
        """Have it written; False where too much waits."""
        if len(self._noted) >= MOST_EVENTS or self._noted_bytes - self._written_bytes >= MOST_BYTES:
            return False
        self._noted_bytes += size_of(noted.event)
        self._noted.append(noted)
        if not self._wake.is_set():
            self._wake.set()
            if self._thread is None:
                self._start()
        return True

    def take_end(self, noted: Noted) -> None:
        """Have the end of a recording written; there is always room for that."""
        if self._thread is not None:  # else nothing of it was written
            self._noted.append(noted)
            self._wake.set()

    def stop(self) -> None:
        """Write what is left, and end; recordings that are open end here."""
        if self._thread is not None:
            self._stopping.set()
            self._wake.set()
            self._thread.join()

    def leave(self) -> None:
        """Let go of the spool; once what is in it was kept."""
        if self._part is not None:
            self._part.leave()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    # In the thread

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait()
            self._stopping.wait(WRITE_S)
            self._wake.clear()
            self._write()
        self._write()
        for opened in tuple(self._open.values()):
            self._end(opened.recording, time.monotonic(), "stopped")

    def _write(self) -> None:
        """Write what was noted until now."""
        self.make_room()
        touched: dict[Recorded, _Open] = {}
        size_bytes = 0
        for _ in range(len(self._noted)):
            noted = self._noted.popleft()
            if noted.direction is None:
                self._write_files(touched)
                self._end(noted.recording, noted.at_s, noted.event)
            else:
                size_bytes += size_of(noted.event)
                touched[noted.recording] = self._add(noted)
        self._write_files(touched)
        self._written_bytes += size_bytes

    def make_room(self) -> None:
        """
        Delete the oldest that waits while there is too much, and end what is being recorded where that is not enough.

        Before the thread is there it may be called from another.
        """
        most_bytes = self._room.most_bytes
        written = sum(opened.files.bytes for opened in self._open.values() if opened.files is not None)
        while most_bytes and written + self._waiting.bytes > most_bytes and (dropped := self._waiting.drop_oldest(DROPPED)) is not None:
            self._tell_dropped(dropped)
        self._no_room = SPOOL_FULL if most_bytes and written + self._waiting.bytes > most_bytes else self._disk_low()
        if self._no_room is not None:
            for recording in self._open:
                if recording.truncated in _GOING_ON:
                    recording.truncated = self._no_room

    def _disk_low(self) -> str | None:
        """What is wrong with the disk where it has less left than it should."""
        with contextlib.suppress(OSError):  # there is no spool yet, or what is wrong is told when it is written
            if self._room.free_bytes and shutil.disk_usage(self._spool).free < self._room.free_bytes:
                return DISK_LOW
        return None

    def _add(self, noted: Noted) -> _Open:
        recording = noted.recording
        opened = self._open.get(recording)
        if opened is None:
            opened = self._open[recording] = _Open(recording)
        opened.events.append(noted)
        if opened.files is None and recording.truncated in _GOING_ON:
            with _cut_short(recording):
                self._look_for_beginning(opened, plain(noted.event))
        return opened

    def _look_for_beginning(self, opened: _Open, event: dict[str, Any]) -> None:
        recording = opened.recording
        if (session_id := session_id_of(event)) is None:
            if len(opened.events) > MOST_BEFORE:
                recording.truncated = NOT_BEGUN
            return
        recording.record = structs.replace(recording.record, id=session_id)
        self._part = self._part or Part.made(self._spool)
        opened.files = Files(self._part.folder / session_id, BEGINS[recording.record.protocol])
        self._tell(Filed(recording.record, None))
        if self._no_room is not None:  # there is a record of it, which says so
            recording.truncated = self._no_room
        else:
            opened.files.begin(recording.record)

    def _write_files(self, touched: dict[Recorded, _Open]) -> None:
        for recording, opened in touched.items():
            if opened.files is not None:
                events, opened.events = opened.events, []
                if recording.truncated not in _GOING_ON:
                    continue
                with _cut_short(recording):
                    for noted in events:
                        opened.files.add(noted.at_s - recording.begun_at_s, str(noted.direction), plain(noted.event))
                    opened.files.write()
        touched.clear()

    def _end(self, recording: Recorded, at_s: float, reason: str) -> None:
        opened = self._open.pop(recording, None)
        if opened is None or opened.files is None:
            return
        record = structs.replace(
            recording.record,
            state="kept",
            ended_at=int(self._now()),
            duration_ms=round(1000 * (at_s - recording.begun_at_s)),
            reason=reason,
            truncated=recording.truncated,
        )
        folder = opened.files.folder
        with contextlib.suppress(OSError):  # the record in the store tells, whatever the disk has room for
            record = structs.replace(record, bytes=files.mend(folder))
            files.write_meta(folder, record)
        filed = Filed(record, folder)
        self._waiting.add(filed)
        self._tell(filed)


@contextlib.contextmanager
def _cut_short(recording: Recorded) -> Iterator[None]:
    """End a recording, and nothing else, where it can't be written."""
    try:
        yield
    except OSError:
        recording.truncated = DISK_TROUBLE
    except Exception as defect:  # the other recordings need the thread, and this one ends here
        recording.truncated = DEFECT
        threading.excepthook(threading.ExceptHookArgs((type(defect), defect, defect.__traceback__, threading.current_thread())))
