"""
The recorder: writes down what is said in sessions, beside them and never in their way.

A session's tap only notes each event, with its time, in one list of the whole process. A thread writes them, a few times a second, into a
folder for each session in the *spool*, on the local disk. When the session has ended its folder goes to where recordings are kept, and its
record into the store. A process holds a lock on its part of the spool; what is found without one was a process's that died, and is
mended and kept as `interrupted`.

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
from antiphon.runtime.metrics import Metrics
from antiphon.runtime.recorder_events import IN, OUT
from antiphon.runtime.recorder_spool import Filed, Part, abandoned, mended
from antiphon.runtime.recorder_writer import BEHIND, Noted, Writer
from antiphon.stores.base import Sessions
from antiphon.stores.blobs import Blobs

SWEEP_S = 600.0
"""How often old recordings are looked for, and what could not be kept is tried again."""


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
        self.begun_at_s = recorder.clock()
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
        clock: seconds from any origin.
        now: Unix seconds.
    """

    def __init__(
        self,
        spool: Path,
        blobs: Blobs,
        sessions: Sessions,
        metrics: Metrics,
        sweep: Callable[[], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.clock = clock
        self._now = now
        self._blobs = blobs
        self._sessions = sessions
        self._metrics = metrics
        self._sweep = sweep
        self._spool = spool
        self._writer = Writer(spool, clock, now, self._from_thread)
        self._inherited: Sequence[Part] = ()
        self._to_file: asyncio.Queue[Filed | None] = asyncio.Queue()  # two for each session
        self._unfiled: list[Filed] = []
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        """Begin to keep what has ended, here or in a process that died; once the store is open."""
        self._loop = asyncio.get_running_loop()
        self._inherited = await asyncio.to_thread(abandoned, self._spool)
        for part in self._inherited:
            for filed in await asyncio.to_thread(mended, part, self._now):
                self._to_file.put_nowait(filed)
        # It lives from `open` to `close`, longer than any one session's task group.
        self._task = asyncio.create_task(self._file(), name="recorder")  # noqa: TID251

    async def close(self) -> None:
        """Keep what has ended, and stop; while the store is still open. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        await asyncio.to_thread(self._writer.stop)
        self._to_file.put_nowait(None)
        await task
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
        if not self._writer.take(Noted(recording, self.clock(), direction, event)):
            recording.truncated = BEHIND

    def end(self, recording: Recording, reason: str) -> None:
        """Have the end written."""
        self._writer.take_end(Noted(recording, self.clock(), None, reason))

    # Keeping what has ended

    def _from_thread(self, filed: Filed) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._to_file.put_nowait, filed)

    async def _file(self) -> None:
        loop = asyncio.get_running_loop()
        sweep_at = loop.time()
        while True:
            try:
                async with asyncio.timeout_at(sweep_at):
                    filed = await self._to_file.get()
            except TimeoutError:
                sweep_at = loop.time() + SWEEP_S
                await self._look_again()
                continue
            if filed is None:
                return
            await self._keep(filed)

    async def _look_again(self) -> None:
        waiting, self._unfiled = self._unfiled, []
        for filed in waiting:
            await self._keep(filed)
        with contextlib.suppress(Fault):  # it is tried again
            await self._sweep()

    async def _keep(self, filed: Filed) -> None:
        record, folder = filed
        try:
            if folder is not None:
                await asyncio.to_thread(self._blobs.keep, folder, record.id)
            await self._sessions.put(record)
        except Fault:  # a full disk, or a store that is away: its files stay where they are
            if folder is not None:
                self._unfiled.append(filed)
                self._metrics.recordings["not_kept"] += 1
            return
        if folder is not None:
            self._metrics.recordings["truncated" if record.truncated else record.state] += 1
