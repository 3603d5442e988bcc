"""
The events of a background response on their way into the store.

What a client gets of a background response is what is stored: events are sent once they are durable, so that a
client that got one can read it again after any crash (docs/decisions/0026-background.md). The events of all responses are stored
together, so that a token costs a fraction of a write, and no other response waits for one.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from antiphon.errors import ApiError, ServerError, StoreError
from antiphon.protocols.responses.ending import INTERRUPTED_MESSAGE
from antiphon.records import ConversationTurn, EventRun, ResponseRecord
from antiphon.stores.availability import Availability
from antiphon.stores.base import UNFINISHED_STATUSES, ConversationStore, Store
from antiphon.wire.responses.events import OPENING_EVENTS, TERMINAL_EVENTS, UNNUMBERED_EVENTS, StreamEvent
from antiphon.wire.responses.profiles import JournalEncoder

WRITE_INTERVAL_S = 0.05
"""How long events gather before they are stored; the first after a silence are stored at once."""

RETRY_S = 1.0
"""When to try again to store events after the store has failed."""

MAX_PENDING_BYTES = 4 << 20
"""The engine is paused while more waits for the store."""

TAIL_BYTES = 64 << 10
"""How much of what is stored is kept in memory, for clients that follow."""


_ENCODER = JournalEncoder()


def encode_run(first: int, events: Sequence[StreamEvent]) -> EventRun:
    """Consecutive events as they are stored; `first` is the sequence number of the first."""
    body = bytearray()
    _ENCODER.encode_sse_into(events, body)
    return EventRun(first, _numbered_count(events), bytes(body))


def _numbered_count(events: Sequence[StreamEvent]) -> int:
    return sum(not isinstance(event, UNNUMBERED_EVENTS) for event in events)


def interrupted_error() -> ServerError:
    """The server that made the response has died, or was taken for dead."""
    return ServerError(INTERRUPTED_MESSAGE)


def _ignore(_is_behind: bool) -> None:
    pass


class Journal:
    """
    The client and the store of a background response's driver.

    Args:
        record: of the queued response; `events` are those that were stored with it, None where none are to be stored.
        mark: has `write` called soon.

    Attributes:
        is_over: whether nothing more is written: the response has ended, or is no longer ours.
        has_finished: whether the end of the response was stored by its session.
        on_backlog: called with whether too much waits for the store, each time that changes.
        error: what the session was closed with.
        event_count: how many events there were.
        first_token_at: when the first event with output came, by `time.perf_counter`.
        last_event: the latest event.
    """

    def __init__(self, store: Store, record: ResponseRecord, events: EventRun | None, mark: Callable[["Journal"], None]) -> None:
        self._store = store
        self._record = record
        self._mark = mark
        self.is_streamed = events is not None
        self.is_over = False
        self.has_finished = False
        self.on_backlog: Callable[[bool], None] = _ignore
        self.error: ApiError | None = None
        self.event_count = 0
        self.first_token_at: float | None = None
        self.last_event: StreamEvent | None = None
        self._batch: list[StreamEvent] = []
        # Called for each token: a list's own method costs no call in Python (docs/decisions/0013).
        self.send: Callable[[StreamEvent], None] = self._batch.append
        self._out = bytearray()
        self._out_count = 0
        self._next_number = 0 if events is None else events.first + events.count  # of the first event in `_out`
        self._is_ending = False
        self._is_behind = False
        self._unsure_run: EventRun | None = None  # it may be stored, as the answer was lost
        self._lock = asyncio.Lock()
        self._tail: deque[EventRun] = deque(() if events is None else (events,))
        self._tail_bytes = 0 if events is None else len(events.body)
        self._stored_number = self._next_number
        self._followers: set[asyncio.Event] = set()

    # The driver's client

    def flush(self) -> None:
        """Have what was sent stored soon."""
        batch = self._batch
        if not batch:
            return
        self.last_event = batch[-1]
        self.event_count += len(batch)
        if self.first_token_at is None and not all(isinstance(event, OPENING_EVENTS) for event in batch):
            self.first_token_at = time.perf_counter()
        if self.is_streamed and not self.is_over:
            _ENCODER.encode_sse_into(batch, self._out)
            self._out_count += _numbered_count(batch)
            # The last events are stored together with the end of the response, or not at all.
            self._is_ending = self._is_ending or isinstance(self.last_event, TERMINAL_EVENTS)
            if not self._is_ending:
                self._mark(self)
            self._check_backlog()
        batch.clear()

    def close(self, error: ApiError | None) -> None:
        self.error = error

    def release(self) -> None:
        """Forget what leads back to the driver, which refers to this: the callback, and the traceback of an error."""
        self.on_backlog = _ignore
        self.error = None

    def _check_backlog(self) -> None:
        is_behind = len(self._out) > MAX_PENDING_BYTES
        if is_behind is not self._is_behind:
            self._is_behind = is_behind
            self.on_backlog(is_behind)

    # The driver's store

    @property
    def availability(self) -> Availability:
        return self._store.availability

    @property
    def conversations(self) -> ConversationStore:
        return self._store.conversations

    async def put(self, record: ResponseRecord, turn: ConversationTurn | None = None) -> None:
        if not await self.finish(record, turn):  # it was put when it was queued
            raise interrupted_error()

    async def get(self, tenant: str, response_id: str) -> ResponseRecord | None:
        return await self._store.get(tenant, response_id)

    async def finish(self, record: ResponseRecord, turn: ConversationTurn | None = None) -> bool:
        """Store the response's progress, or its end with its turn, with all events before it."""
        async with self._lock:
            try:
                if self.is_over or (self._unsure_run is not None and not await self._append(self._unsure_run, is_repeated=True)):
                    return False
                run = self._take()
                is_stored = await self._store.background.finish(record, run, turn)
            except BaseException:
                self._end()
                raise
            if not is_stored:
                self._end()
                return False
            if run is not None:
                self._publish(run)
            if record.status not in UNFINISHED_STATUSES:
                self.has_finished = True
                self._end()
            return True

    # Writing

    async def write(self) -> float | None:
        """Store what waits; returns after how many seconds to try again, None where all is well."""
        async with self._lock:
            is_repeated = self._unsure_run is not None
            run = self._unsure_run or (None if self._is_ending else self._take())
            if run is None or self.is_over:
                return None
            try:
                await self._append(run, is_repeated=is_repeated)
            except StoreError:
                return RETRY_S
            except Exception:  # a defect must not end the writing of all others; the response fails when it is to be stored
                structlog.get_logger().exception("defect")
                self._end()
            # What came meanwhile has waited behind the repeated run, and was marked before that.
            if is_repeated and self._out_count:
                self._mark(self)
            return None

    async def _append(self, run: EventRun, *, is_repeated: bool) -> bool:
        self._unsure_run = run
        is_stored = await self._store.background.append(self._record, run, is_repeated=is_repeated)
        self._unsure_run = None
        if is_stored:
            self._publish(run)
        else:
            self._end()
        return is_stored

    def _take(self) -> EventRun | None:
        """What waits, which is then no longer waiting."""
        if not self._out_count:  # a comment alone waits for the event that it stands before
            return None
        run = EventRun(self._next_number, self._out_count, bytes(self._out))
        self._next_number += self._out_count
        self._out_count = 0
        self._out.clear()
        self._check_backlog()
        return run

    # Following

    def read(self, after: int) -> Sequence[EventRun] | None:
        """What is stored after a sequence number; None where it must be read from the store."""
        if self.is_over or not self._tail or self._tail[0].first > after + 1:
            return None
        return [run for run in self._tail if run.first + run.count > after + 1]

    def follow(self, wake: asyncio.Event) -> None:
        """Set `wake` whenever more is stored, and at the end."""
        self._followers.add(wake)

    def unfollow(self, wake: asyncio.Event) -> None:
        self._followers.discard(wake)

    def _publish(self, run: EventRun) -> None:
        self._tail.append(run)
        self._tail_bytes += len(run.body)
        while self._tail_bytes > TAIL_BYTES and len(self._tail) > 1:
            self._tail_bytes -= len(self._tail.popleft().body)
        self._wake_followers()

    def _end(self) -> None:
        self.is_over = True
        self._out.clear()
        self._out_count = 0
        self._wake_followers()

    def _wake_followers(self) -> None:
        for wake in self._followers:
            wake.set()


class EventWriter:
    """Stores the events of all journals of a process, together."""

    def __init__(self) -> None:
        self._dirty_journals: dict[Journal, None] = {}
        self._wake = asyncio.Event()

    def mark(self, journal: Journal) -> None:
        """Note that a journal has something to write, and wake the writer."""
        self._dirty_journals[journal] = None
        self._wake.set()

    async def run(self) -> None:
        """Write, until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            journals, self._dirty_journals = self._dirty_journals, {}
            async with asyncio.TaskGroup() as tasks:
                writes = [(journal, tasks.create_task(journal.write())) for journal in journals]
            for journal, write in writes:
                if (retry_s := write.result()) is not None:
                    loop.call_later(retry_s, self.mark, journal)
            await asyncio.sleep(WRITE_INTERVAL_S)
