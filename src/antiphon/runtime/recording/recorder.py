"""
The recorder: writes the events of sessions to disk without slowing the sessions down.

A session's tap only queues each event with its time, in one queue of the whole process. A thread writes the queue, a
few times a second, into a folder for each session in the *spool*, on the local disk. When a session has ended, its
folder goes to the blob store, and its record into the store. A process holds a lock on its part of the spool; a part
without a lock belonged to a process that died: its recordings are repaired and stored as `interrupted`.

The blob store may be unavailable for any length of time. What waits for it is limited: beyond the limit the oldest
recording is deleted, as in the blob store itself, so that the newest are there when it is back.

An error ends the recording and nothing else: the session's record says why the recording is shorter than the session.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from msgspec import structs

from antiphon.errors import ApiError
from antiphon.records import KeyRecord, SessionRecord
from antiphon.runtime.core.metrics import Metrics
from antiphon.runtime.recording.events import IN, INTERNAL, OUT, LineDirection
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
from antiphon.runtime.recording.writer import DISK_TOO_SLOW, QueuedEnd, QueuedEvent, RecordingWriter
from antiphon.runtime.upkeep import one_round
from antiphon.stores.base import SessionStore
from antiphon.stores.blobs import BlobStore
from antiphon.wire.minicpmo import server_events as minicpmo_events
from antiphon.wire.realtime import server_events as realtime_events

SWEEP_S = 600.0
"""Seconds between two searches for old recordings."""

RETRY_S = 60.0
"""Seconds between two tries to store pending recordings. One try may take most of that, so there is none in between."""

CLOSE_TIMEOUT_S = 5.0
"""How long a stopping server waits for recordings to be stored; the rest waits for the next start."""


def should_record(policy: str, key: KeyRecord | None, *, is_requested: bool) -> bool:
    """
    Whether a session is recorded.

    Args:
        policy: the server's rule, `recording.when`; a key's own rule takes precedence.
        is_requested: whether the client asked for it.
    """
    rule = key.record if key is not None and key.record is not None else policy
    return rule == "always" or (rule == "consent" and is_requested)


FORGET_S = 10.0
"""How long after a session's end its record is kept that could not be stored. Storing it takes milliseconds."""


class RecordingTap:
    """
    Records the events of one session.

    Args:
        record: without the session's id, which comes with `session.created`.

    Attributes:
        truncation_reason: why nothing more is recorded; None while everything is.
    """

    def __init__(self, recorder: "Recorder", record: SessionRecord) -> None:
        self.record = record
        self.truncation_reason: str | None = None
        self.started_at_s = time.monotonic()
        self._recorder = recorder
        self._record_event = recorder.record_event
        self._live_id: str | None = None

    def on_client_event(self, event: object) -> None:
        if self.truncation_reason is None:
            self._record_event(self, IN, event)

    def on_server_event(self, event: object) -> None:
        if self._live_id is None and (session_id := _created_session_id(event)) is not None:
            self._live_id = session_id
            self._recorder.live_records[session_id] = structs.replace(self.record, id=session_id)
        if self.truncation_reason is None:
            self._record_event(self, OUT, event)

    def observe(self, observation: object) -> None:
        """Record what the session knows and did not send."""
        if self.truncation_reason is None:
            self._record_event(self, INTERNAL, observation)

    def end(self, reason: str) -> None:
        if self._live_id is not None:
            self._recorder.forget_live_record(self._live_id)
        self._recorder.end(self, reason)


def _created_session_id(event: object) -> str | None:
    match event:
        case realtime_events.SessionCreated(session=session) if session.id:
            return session.id
        case minicpmo_events.SessionCreated(session_id=session_id):
            return session_id
        case _:
            return None


class Recorder:
    """
    All recordings that one process makes.

    Args:
        spool: the folder of recordings that are in progress or wait to be stored.
        expire: deletes old recordings from the blob store.
        limits: of the spool.
        notice: called with a line for the operator.
        now: Unix seconds.

    Attributes:
        live_records: of the sessions whose record is not stored yet, by their ids: their clients may ask for them.
        pending: recordings that have ended and are not stored yet.
        close_timeout_s: how long `close` waits for them to be stored.
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
        self.live_records: dict[str, SessionRecord] = {}
        self.pending = PendingRecordings()
        self.close_timeout_s = CLOSE_TIMEOUT_S
        self._writer = RecordingWriter(spool, now, self._enqueue_from_thread, self._drop_from_thread, self.pending, limits)
        self._inherited_spools: Sequence[SpoolLock] = ()
        self._to_store: asyncio.Queue[SpooledRecording | None] = asyncio.Queue()  # two entries a session, as in the next
        self._to_persist: asyncio.Queue[SpooledRecording | None] = asyncio.Queue()
        self._persist_lock = asyncio.Lock()  # a round has the storage to itself, so that it asks one that is down once
        self._is_storage_down = self._is_dropping = False
        self._last_truncation: str | None = None
        self._tasks: Sequence[asyncio.Task[None]] = ()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        """Start to store ended recordings, also those of processes that died; call it once the store is open."""
        self._loop = asyncio.get_running_loop()
        self._inherited_spools = await asyncio.to_thread(adopt_abandoned, self._spool)
        for spool_lock in self._inherited_spools:
            for recording in await asyncio.to_thread(repair_recordings, spool_lock, self._now):
                self.pending.add(recording)
                self._to_store.put_nowait(recording)
        # What dead processes left counts towards the limits of this one.
        await asyncio.to_thread(self._writer.make_room)
        # They live from `open` to `close`, longer than any one session's task group.
        self._tasks = (
            asyncio.create_task(self._store_records(), name="recorder"),  # noqa: TID251
            asyncio.create_task(self._persist_all(), name="recorder: storing"),  # noqa: TID251
        )

    async def close(self) -> None:
        """
        Store ended recordings for up to `close_timeout_s`, and stop; call it while the store is still open. Idempotent.
        """
        tasks, self._tasks = self._tasks, ()
        if not tasks:
            return
        await asyncio.to_thread(self._writer.stop)
        self._to_store.put_nowait(None)
        store_task, persist_task = tasks
        await store_task
        with contextlib.suppress(TimeoutError):
            # A move within this machine has no timeout: its thread would keep the process alive anyway.
            async with asyncio.timeout(None if self._blobs.is_local else self.close_timeout_s):
                await persist_task
        self._writer.release()
        for spool_lock in self._inherited_spools:
            spool_lock.release()

    def tap(self, *, tenant: str, key_id: str | None, protocol: str, mode: str, model: str) -> RecordingTap:
        """A tap that records a session from `session.created` on; its `end` must be called."""
        return RecordingTap(
            self,
            SessionRecord(
                id="", tenant=tenant, key_id=key_id, protocol=protocol, mode=mode, model=model, created_at=int(self._now()), state="live"
            ),
        )

    def record_event(self, recording: RecordingTap, direction: LineDirection, event: object) -> None:
        """Queue an event to be written; a full queue ends the recording."""
        if not self._writer.enqueue(QueuedEvent(recording, time.monotonic(), direction, event)):
            recording.truncation_reason = DISK_TOO_SLOW

    def end(self, recording: RecordingTap, reason: str) -> None:
        """Queue the end of a recording."""
        self._writer.enqueue_end(QueuedEnd(recording, time.monotonic(), reason))

    def forget_live_record(self, session_id: str) -> None:
        """The session has ended: its record is in the store, soon will be, or never."""
        asyncio.get_running_loop().call_later(FORGET_S, self.live_records.pop, session_id, None)

    # Storing ended recordings

    def _enqueue_from_thread(self, recording: SpooledRecording) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._to_store.put_nowait, recording)

    def _drop_from_thread(self, record: SessionRecord) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._drop, record)

    def _drop(self, record: SessionRecord) -> None:
        """
        Report that a recording was deleted before it could be stored; its record stays, so that its owner can see it.
        """
        self._metrics.recordings["dropped"] += 1
        self._metrics.recordings_waiting_bytes = self.pending.bytes
        if record.truncated == DROPPED_FOR_SPACE and not self._is_dropping:
            self._is_dropping = True
            self._notice(
                f"Recordings that can't be stored have reached recording.spool_gb: the oldest are deleted, beginning with {record.id}."
            )
        self._to_store.put_nowait(SpooledRecording(record, None))

    async def _store_records(self) -> None:
        """
        Store records without files; those with files go on to `_persist_all`, so that a session's last record comes
        last.
        """
        while (recording := await self._to_store.get()) is not None:
            if recording.folder is not None:
                self._notice_truncation(recording.record)
                self.pending.mark_due(recording.folder)
                self._to_persist.put_nowait(recording)
                continue
            # A failure does little harm: a live session is stored again at its end, and a deleted one expires as lost.
            with one_round("session records"):
                await self._sessions.put(recording.record)
                self.live_records.pop(recording.record.id, None)
        self._to_persist.put_nowait(None)

    def _notice_truncation(self, record: SessionRecord) -> None:
        """Tell the operator that recordings are cut short: at the first one, and when the reason changes."""
        previous, self._last_truncation = self._last_truncation, record.truncated
        if record.truncated not in (None, previous):
            self._notice(f"The recording of {record.id} ends before its session: {record.truncated}.")

    async def _persist_all(self) -> None:
        loop = asyncio.get_running_loop()
        sweep_at = retry_at = loop.time()
        while True:
            try:
                async with asyncio.timeout_at(min(sweep_at, retry_at)):
                    recording = await self._to_persist.get()
            except TimeoutError:
                if loop.time() >= sweep_at:
                    with one_round("recording sweeper"):
                        await self.sweep()
                    sweep_at = loop.time() + SWEEP_S
                with one_round("recordings that wait"):
                    await self.retry_pending()
                retry_at = loop.time() + RETRY_S
                continue
            if recording is None:
                return
            with one_round("recordings"):
                async with self._persist_lock:
                    await self._persist(recording)

    async def sweep(self) -> None:
        """Delete recordings that are too old, pending or stored."""
        before = self._now() - self.limits.max_age_s
        while self.limits.max_age_s and (record := await asyncio.to_thread(self.pending.drop_oldest, DROPPED_FOR_AGE, before)) is not None:
            self._drop(record)
        with contextlib.suppress(ApiError):  # tried again by the next sweep
            await self._expire()

    async def retry_pending(self) -> None:
        """
        Try to store pending recordings, one after another, up to the first failure; but none before its turn, as the
        record of its live session would then be stored after it.
        """
        async with self._persist_lock:
            self._is_storage_down = False
            for recording in self.pending.due:
                await self._persist(recording)
                if self._is_storage_down:
                    return

    async def _persist(self, recording: SpooledRecording) -> None:
        record, folder = recording
        if folder is not None and not self._is_storage_down and self.pending.claim(folder):
            self._is_storage_down = not await self._try_persist(record, folder)
            self.pending.release(folder, is_persisted=not self._is_storage_down)
            self._is_dropping = self._is_dropping and self._is_storage_down
            outcome = "truncated" if record.truncated else record.state
            self._metrics.recordings["upload_failed" if self._is_storage_down else outcome] += 1
        self._metrics.recordings_waiting_bytes = self.pending.bytes

    async def _try_persist(self, record: SessionRecord, folder: Path) -> bool:
        """Store a recording; returns False, and leaves its files, where the disk is full or a store is unavailable."""
        try:
            await self._blobs.put_folder(folder, record.id)
            await self._sessions.put(record)
        except ApiError:
            return False
        return True
