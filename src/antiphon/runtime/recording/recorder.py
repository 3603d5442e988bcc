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

from antiphon.errors import Fault
from antiphon.records import KeyRecord, SessionRecord
from antiphon.runtime.core.metrics import Metrics
from antiphon.runtime.recording.events import IN, OUT
from antiphon.runtime.recording.spool import ANY_ROOM, DROPPED, TOO_OLD, Filed, Part, Room, Waiting, abandoned, mended
from antiphon.runtime.recording.writer import BEHIND, Noted, Writer
from antiphon.stores.base import Sessions
from antiphon.stores.blobs import Blobs

SWEEP_S = 600.0
"""How often old recordings are looked for."""

RETRY_S = 60.0
"""How often what could not be kept is tried again. One try may take most of it, so nothing is tried between."""

CLOSING_S = 5.0
"""How long the end of a server waits for what is being kept; the rest waits for the next start."""


def is_wanted(when: str, key: KeyRecord | None, *, asks: bool) -> bool:
    """
    Whether a session is recorded.

    Args:
        when: as the server is configured; a key's own rule goes before it.
        asks: whether the client wants it.
    """
    rule = key.record if key is not None and key.record is not None else when
    return rule == "always" or (rule == "consent" and asks)


class Recording:
    """
    The tap on one session.

    Args:
        record: all but the session's id, which is learned from the event that tells it.

    Attributes:
        truncated: why nothing more is recorded; None while all is.
    """

    def __init__(self, recorder: "Recorder", record: SessionRecord) -> None:
        self.record = record
        self.truncated: str | None = None
        self.begun_at_s = time.monotonic()
        self._recorder = recorder
        self._note = recorder.note

    def said(self, event: Any) -> None:
        """The client said this."""
        if self.truncated is None:
            self._note(self, IN, event)

    def told(self, event: Any) -> None:
        """The client is told this."""
        if self.truncated is None:
            self._note(self, OUT, event)

    def end(self, reason: str) -> None:
        """The session is over; `reason` is one of few words."""
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
        blobs: Blobs,
        sessions: Sessions,
        metrics: Metrics,
        sweep: Callable[[], Awaitable[None]],
        room: Room = ANY_ROOM,
        notice: Callable[[str], None] = lambda _line: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.room = room
        self._now = now
        self._blobs = blobs
        self._sessions = sessions
        self._metrics = metrics
        self._sweep = sweep
        self._spool = spool
        self._notice = notice
        self.waiting = Waiting()
        self.closing_s = CLOSING_S
        self._writer = Writer(spool, now, self._from_thread, self._dropped_from_thread, self.waiting, room)
        self._inherited: Sequence[Part] = ()
        self._told: asyncio.Queue[Filed | None] = asyncio.Queue()  # two for each session, as in the next
        self._to_keep: asyncio.Queue[Filed | None] = asyncio.Queue()
        self._is_away = self._is_dropping = False
        self._cut_short: str | None = None
        self._tasks: Sequence[asyncio.Task[None]] = ()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        """Begin to keep what has ended, here or in a process that died; once the store is open."""
        self._loop = asyncio.get_running_loop()
        self._inherited = await asyncio.to_thread(abandoned, self._spool)
        for part in self._inherited:
            for filed in await asyncio.to_thread(mended, part, self._now):
                self.waiting.add(filed)
                self._told.put_nowait(filed)
        await asyncio.to_thread(self._writer.make_room)
        # They live from `open` to `close`, longer than any one session's task group.
        self._tasks = (
            asyncio.create_task(self._hand_on(), name="recorder"),  # noqa: TID251
            asyncio.create_task(self._keep_all(), name="recorder: keeping"),  # noqa: TID251
        )

    async def close(self) -> None:
        """Keep what has ended, as far as that goes soon, and stop; while the store is still open. Idempotent."""
        tasks, self._tasks = self._tasks, ()
        if not tasks:
            return
        await asyncio.to_thread(self._writer.stop)
        self._told.put_nowait(None)
        telling, keeping = tasks
        await telling
        with contextlib.suppress(TimeoutError):
            # What is moved within a machine is moved to its end: the process could not end before it.
            async with asyncio.timeout(None if self._blobs.is_here else self.closing_s):
                await keeping
        self._writer.leave()
        for part in self._inherited:
            part.leave()

    def tap(self, *, tenant: str, key_id: str | None, protocol: str, mode: str, model: str) -> Recording:
        """Record a session; it begins when its id is told, and must be ended."""
        return Recording(
            self,
            SessionRecord(
                id="", tenant=tenant, key_id=key_id, protocol=protocol, mode=mode, model=model, created_at=int(self._now()), state="live"
            ),
        )

    def note(self, recording: Recording, direction: str, event: Any) -> None:
        """Have an event written, unless too much waits already."""
        if not self._writer.take(Noted(recording, time.monotonic(), direction, event)):
            recording.truncated = BEHIND

    def end(self, recording: Recording, reason: str) -> None:
        """Have the end written."""
        self._writer.take_end(Noted(recording, time.monotonic(), None, reason))

    # Keeping what has ended

    def _from_thread(self, filed: Filed) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._told.put_nowait, filed)

    def _dropped_from_thread(self, record: SessionRecord) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._drop, record)

    def _drop(self, record: SessionRecord) -> None:
        """Say that a recording was deleted before it could be kept; its record stays, so that its owner is told, too."""
        self._metrics.recordings["dropped"] += 1
        self._metrics.recordings_waiting_bytes = self.waiting.bytes
        if record.truncated == DROPPED and not self._is_dropping:
            self._is_dropping = True
            self._notice(
                f"Recordings that can't be kept are deleted, the oldest first, from {record.id} on: they have come to recording.spool_gb."
            )
        self._told.put_nowait(Filed(record, None))

    async def _hand_on(self) -> None:
        """Put records into the store that have no files; the others follow, so that none is put after that of its end."""
        while (filed := await self._told.get()) is not None:
            if filed.folder is not None:
                self._tell_of(filed.record)
                self._to_keep.put_nowait(filed)
                continue
            # One that goes on is put again at its end; of one that was deleted the store says that it is live until it is given up.
            with contextlib.suppress(Fault):
                await self._sessions.put(filed.record)
        self._to_keep.put_nowait(None)

    def _tell_of(self, ended: SessionRecord) -> None:
        """Tell the operator that recordings are cut short; once, until one is whole or there is another reason."""
        told, self._cut_short = self._cut_short, ended.truncated
        if ended.truncated not in (None, told):
            self._notice(f"The recording of {ended.id} ends before its session: {ended.truncated}.")

    async def _keep_all(self) -> None:
        loop = asyncio.get_running_loop()
        sweep_at = retry_at = loop.time()
        while True:
            try:
                async with asyncio.timeout_at(min(sweep_at, retry_at)):
                    filed = await self._to_keep.get()
            except TimeoutError:
                if loop.time() >= sweep_at:
                    await self.sweep()
                    sweep_at = loop.time() + SWEEP_S
                await self.try_again()
                retry_at = loop.time() + RETRY_S
                continue
            if filed is None:
                return
            await self._keep(filed)

    async def sweep(self) -> None:
        """Delete what is too old, where it is kept and where it waits for that."""
        before = self._now() - self.room.most_s
        while self.room.most_s and (record := await asyncio.to_thread(self.waiting.drop_oldest, TOO_OLD, before)) is not None:
            self._drop(record)
        with contextlib.suppress(Fault):  # it is tried again
            await self._sweep()

    async def try_again(self) -> None:
        """Keep what could not be kept, one after another, up to the first that still can't."""
        self._is_away = False
        for filed in self.waiting.all:
            await self._keep(filed)
            if self._is_away:
                return

    async def _keep(self, filed: Filed) -> None:
        record, folder = filed
        if folder is not None and not self._is_away and self.waiting.take(folder):
            self._is_away = not await self._is_kept(record, folder)
            self.waiting.leave(folder, is_kept=not self._is_away)
            self._is_dropping = self._is_dropping and self._is_away
            outcome = "truncated" if record.truncated else record.state
            self._metrics.recordings["not_kept" if self._is_away else outcome] += 1
        self._metrics.recordings_waiting_bytes = self.waiting.bytes

    async def _is_kept(self, record: SessionRecord, folder: Path) -> bool:
        """Whether a recording could be kept; else, with a full disk or a store that is away, its files stay where they are."""
        try:
            await self._blobs.keep(folder, record.id)
            await self._sessions.put(record)
        except Fault:
            return False
        return True
