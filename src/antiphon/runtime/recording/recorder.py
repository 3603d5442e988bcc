"""
The recorder: writes down what is said in sessions, beside them and never in their way.

A session's tap only notes each event, with its time, in one list of the whole process. A thread writes them, a few times a second, into a
folder for each session in the *spool*, on the local disk. When the session has ended its folder goes to where recordings are kept, and its
record into the store. A process holds a lock on its part of the spool; what is found without one was a process's that died, and is
mended and kept as `interrupted`.

Where recordings are kept may be away for ever. What waits for it has a bound, beyond which the oldest is deleted: so the newest are there
when it is back, as by the rule by which recordings are deleted where they are kept.

Whatever goes wrong ends the recording and nothing else: the session's record says why it is shorter than the session.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from antiphon.errors import ApiError
from antiphon.records import KeyRecord, SessionRecord
from antiphon.runtime.core.metrics import Metrics
from antiphon.runtime.recording.events import IN, OUT
from antiphon.runtime.recording.spool import (
    DROPPED_FOR_AGE,
    DROPPED_FOR_SPACE,
    NO_LIMITS,
    PendingRecordings,
    SpooledRecording,
    SpoolLimits,
    SpoolLock,
    adopt_abandoned,
    repair_recordings,
)
from antiphon.runtime.recording.writer import DISK_TOO_SLOW, QueuedEvent, RecordingWriter
from antiphon.stores.base import SessionStore
from antiphon.stores.blobs import BlobStore

SWEEP_S = 600.0
"""How often old recordings are looked for."""

RETRY_S = 60.0
"""How often what could not be kept is tried again. One try may take most of it, so nothing is tried between."""

CLOSE_TIMEOUT_S = 5.0
"""How long the end of a server waits for what is being kept; the rest waits for the next start."""


def should_record(policy: str, key: KeyRecord | None, *, is_requested: bool) -> bool:
    """
    Whether a session is recorded.

    Args:
        when: as the server is configured; a key's own rule goes before it.
        asks: whether the client wants it.
    """
    rule = key.record if key is not None and key.record is not None else policy
    return rule == "always" or (rule == "consent" and is_requested)


class RecordingTap:
    """
    The tap on one session.

    Args:
        record: all but the session's id, which is learned from the event that tells it.

    Attributes:
        truncated: why nothing more is recorded; None while all is.
    """

    def __init__(self, recorder: "Recorder", record: SessionRecord) -> None:
        self.record = record
        self.truncation_reason: str | None = None
        self.started_at_s = time.monotonic()
        self._recorder = recorder
        self._record_event = recorder.record_event

    def on_client_event(self, event: Any) -> None:
        if self.truncation_reason is None:
            self._record_event(self, IN, event)

    def on_server_event(self, event: Any) -> None:
        if self.truncation_reason is None:
            self._record_event(self, OUT, event)

    def end(self, reason: str) -> None:
        self._recorder.end(self, reason)


class Recorder:
    """
    All recordings that one process makes.

    Args:
        spool: the folder for what is being recorded.
        sweep: deletes old recordings.
        room: what the spool may take.
        notice: takes a line for the operator.
        now: Unix seconds.

    Attributes:
        waiting: what has ended and is not kept yet.
        closing_s: how long `close` waits for it to be kept.
    """

    def __init__(
        self,
        spool: Path,
        blobs: BlobStore,
        sessions: SessionStore,
        metrics: Metrics,
        expire: Callable[[], Awaitable[None]],
        limits: SpoolLimits = NO_LIMITS,
        notice: Callable[[str], None] = lambda _line: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.limits = limits
        self._now = now
        self._blobs = blobs
        self._sessions = sessions
        self._metrics = metrics
        self._expire = expire
        self._spool = spool
        self._notice = notice
        self.pending = PendingRecordings()
        self.close_timeout_s = CLOSE_TIMEOUT_S
        self._writer = RecordingWriter(spool, now, self._enqueue_from_thread, self._drop_from_thread, self.pending, limits)
        self._inherited_spools: Sequence[SpoolLock] = ()
        self._to_store: asyncio.Queue[SpooledRecording | None] = asyncio.Queue()  # two for each session, as in the next
        self._to_persist: asyncio.Queue[SpooledRecording | None] = asyncio.Queue()
        self._is_storage_down = self._is_dropping = False
        self._last_truncation: str | None = None
        self._tasks: Sequence[asyncio.Task[None]] = ()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        """Begin to keep what has ended, here or in a process that died; once the store is open."""
        self._loop = asyncio.get_running_loop()
        self._inherited_spools = await asyncio.to_thread(adopt_abandoned, self._spool)
        for part in self._inherited_spools:
            for filed in await asyncio.to_thread(repair_recordings, part, self._now):
                self.pending.add(filed)
                self._to_store.put_nowait(filed)
        await asyncio.to_thread(self._writer.make_room)
        # They live from `open` to `close`, longer than any one session's task group.
        self._tasks = (
            asyncio.create_task(self._store_records(), name="recorder"),  # noqa: TID251
            asyncio.create_task(self._persist_all(), name="recorder: keeping"),  # noqa: TID251
        )

    async def close(self) -> None:
        """Keep what has ended, as far as that goes soon, and stop; while the store is still open. Idempotent."""
        tasks, self._tasks = self._tasks, ()
        if not tasks:
            return
        await asyncio.to_thread(self._writer.stop)
        self._to_store.put_nowait(None)
        telling, keeping = tasks
        await telling
        with contextlib.suppress(TimeoutError):
            # What is moved within a machine is moved to its end: the process could not end before it.
            async with asyncio.timeout(None if self._blobs.is_local else self.close_timeout_s):
                await keeping
        self._writer.release()
        for part in self._inherited_spools:
            part.release()

    def tap(self, *, tenant: str, key_id: str | None, protocol: str, mode: str, model: str) -> RecordingTap:
        """Record a session; it begins when its id is told, and must be ended."""
        return RecordingTap(
            self,
            SessionRecord(
                id="", tenant=tenant, key_id=key_id, protocol=protocol, mode=mode, model=model, created_at=int(self._now()), state="live"
            ),
        )

    def record_event(self, recording: RecordingTap, direction: str, event: Any) -> None:
        """Have an event written, unless too much waits already."""
        if not self._writer.enqueue(QueuedEvent(recording, time.monotonic(), direction, event)):
            recording.truncation_reason = DISK_TOO_SLOW

    def end(self, recording: RecordingTap, reason: str) -> None:
        """Have the end written."""
        self._writer.enqueue_end(QueuedEvent(recording, time.monotonic(), None, reason))

    # Keeping what has ended

    def _enqueue_from_thread(self, recording: SpooledRecording) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._to_store.put_nowait, recording)

    def _drop_from_thread(self, record: SessionRecord) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._drop, record)

    def _drop(self, record: SessionRecord) -> None:
        """Say that a recording was deleted before it could be kept; its record stays, so that its owner is told, too."""
        self._metrics.recordings["dropped"] += 1
        self._metrics.recordings_waiting_bytes = self.pending.bytes
        if record.truncated == DROPPED_FOR_SPACE and not self._is_dropping:
            self._is_dropping = True
            self._notice(
                f"Recordings that can't be kept are deleted, the oldest first, from {record.id} on: they have come to recording.spool_gb."
            )
        self._to_store.put_nowait(SpooledRecording(record, None))

    async def _store_records(self) -> None:
        """Put records into the store that have no files; the others follow, so that none is put after that of its end."""
        while (filed := await self._to_store.get()) is not None:
            if filed.folder is not None:
                self._notice_truncation(filed.record)
                self._to_persist.put_nowait(filed)
                continue
            # One that goes on is put again at its end; of one that was deleted the store says that it is live until it is given up.
            with contextlib.suppress(ApiError):
                await self._sessions.put(filed.record)
        self._to_persist.put_nowait(None)

    def _notice_truncation(self, record: SessionRecord) -> None:
        """Tell the operator that recordings are cut short; once, until one is whole or there is another reason."""
        told, self._last_truncation = self._last_truncation, record.truncated
        if record.truncated not in (None, told):
            self._notice(f"The recording of {record.id} ends before its session: {record.truncated}.")

    async def _persist_all(self) -> None:
        loop = asyncio.get_running_loop()
        sweep_at = retry_at = loop.time()
        while True:
            try:
                async with asyncio.timeout_at(min(sweep_at, retry_at)):
                    filed = await self._to_persist.get()
            except TimeoutError:
                if loop.time() >= sweep_at:
                    await self.sweep()
                    sweep_at = loop.time() + SWEEP_S
                await self.retry_pending()
                retry_at = loop.time() + RETRY_S
                continue
            if filed is None:
                return
            await self._persist(filed)

    async def sweep(self) -> None:
        """Delete what is too old, where it is kept and where it waits for that."""
        before = self._now() - self.limits.max_age_s
        while self.limits.max_age_s and (record := await asyncio.to_thread(self.pending.drop_oldest, DROPPED_FOR_AGE, before)) is not None:
            self._drop(record)
        with contextlib.suppress(ApiError):  # it is tried again
            await self._expire()

    async def retry_pending(self) -> None:
        """Keep what could not be kept, one after another, up to the first that still can't."""
        self._is_storage_down = False
        for filed in self.pending.recordings:
            await self._persist(filed)
            if self._is_storage_down:
                return

    async def _persist(self, recording: SpooledRecording) -> None:
        record, folder = recording
        if folder is not None and not self._is_storage_down and self.pending.claim(folder):
            self._is_storage_down = not await self._try_persist(record, folder)
            self.pending.release(folder, is_persisted=not self._is_storage_down)
            self._is_dropping = self._is_dropping and self._is_storage_down
            outcome = "truncated" if record.truncated else record.state
            self._metrics.recordings["not_kept" if self._is_storage_down else outcome] += 1
        self._metrics.recordings_waiting_bytes = self.pending.bytes

    async def _try_persist(self, record: SessionRecord, folder: Path) -> bool:
        """Whether a recording could be kept; else, with a full disk or a store that is away, its files stay where they are."""
        try:
            await self._blobs.put_folder(folder, record.id)
            await self._sessions.put(record)
        except ApiError:
            return False
        return True
