"""
The updates of all listeners: each topic is sampled once, however many listen to it, and not at all without a listener.

A listener first gets the whole list of each topic, and then the rows that changed. Events are numbered, and the last of
them kept, so that a listener that lost its connection goes on where it was. Their ids also say which topics it had until
then: it may come back with others, whose lists it lacks.
"""

import asyncio
import contextlib
import contextvars
import json
import re
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

import msgspec
from msgspec import Struct

from antiphon.errors import ApiError, ClientError, ServerError
from antiphon.server.operate.facts import TOPICS, FactsQuery, ProcessFacts, Topic, now
from antiphon.server.operate.rows import Rows
from antiphon.server.transport import logs

TICK_S = 0.2
"""Between two samples, and so between two events about a row."""

INTERVALS_S: dict[Topic, float] = {"status": 1.0, "models": 1.0, "workers": 0.4}
"""Of topics that are sampled less often."""

SHARED_TICK_S = 1.0
"""The same where other processes have to be asked."""

MAX_LOAD = 0.05
"""The largest share of the time that sampling takes: where a sample takes long, the next comes later."""

GRACE_S = 30.0
"""How long sampling goes on after the last listener: one that lost its connection comes back and gets what it missed."""

RING_EVENTS, RING_BYTES = 1000, 4 << 20
"""What is kept for listeners that come back."""

BUFFER_BYTES = 1 << 20
"""What may wait for a slow listener, besides the first lists. With more it is cut off: a table that lacks rows stays wrong."""

MAX_LISTENERS = 64
MAX_GUESTS = 32
"""Listeners that are no operators; the other places are left for operators."""

MAX_LISTENERS_PER_HOLDER = 8
"""Of one key, or of one address where no key is needed."""

LOG_LINES = 200
"""The lines of the log that a listener gets first."""

Gather = Callable[[FactsQuery], Awaitable[Sequence[ProcessFacts]]]
BuildRows = Callable[[Topic, Sequence[ProcessFacts]], Rows]


class _Event(Struct, frozen=True):
    name: str
    number: int
    topic: Topic
    content: bytes


class Listener:
    """
    One stream of updates.

    Args:
        holder: the key or the address that it counts for.
        is_operator: whether it may follow all topics.
        on_cut: called when it is cut off: a client that reads nothing never gets the event that says so.
    """

    def __init__(self, topics: Collection[Topic], holder: str, on_cut: Callable[[], None], *, is_operator: bool = True) -> None:
        self.topics = frozenset(topics)
        self.is_operator = is_operator
        self.holder = holder
        self.is_over = False
        self._on_cut = on_cut
        self._chunks: list[bytes] = []
        self._bytes = 0
        self._wake = asyncio.Event()

    def begin(self, chunk: bytes) -> None:
        """Send the first lists, however large they are."""
        self._chunks.append(chunk)
        self._wake.set()

    def push(self, chunk: bytes) -> None:
        """Send events; cuts the listener off if too much waits for it."""
        if self.is_over:
            return
        self._bytes += len(chunk)
        if self._bytes > BUFFER_BYTES:
            message = f"More than {BUFFER_BYTES >> 10} KiB of updates waited for you: read faster, or listen to fewer topics."
            # Only the event that says so is still sent. Without some rows the table would be wrong for good.
            self._chunks = []
            self.end("cut", {"code": "too_slow", "message": message})
            self._on_cut()
            return
        self._chunks.append(chunk)
        self._wake.set()

    def end(self, event: str, content: object) -> None:
        """End the stream with an event; does nothing if it is over."""
        if not self.is_over:
            self.is_over = True
            self._chunks.append(f"event: {event}\ndata: {json.dumps(content)}\n\n".encode())
            self._wake.set()

    def shut_down(self, error: ApiError) -> None:
        self.end("error", error.body())

    async def next_chunk(self, heartbeat_s: float) -> bytes | None:
        """What to send next; after a silence a comment, so that proxies keep the connection; None at the end."""
        if not self._chunks and not self.is_over:
            try:
                async with asyncio.timeout(heartbeat_s):
                    await self._wake.wait()
            except TimeoutError:
                return b": keep-alive\n\n"
        self._wake.clear()
        chunks, self._chunks, self._bytes = self._chunks, [], 0
        return b"".join(chunks) or None


class UpdateHub:
    """
    All listeners of this process.

    Args:
        gather: asks the processes.
        build_rows: makes a topic's rows from their answers.
        is_shared: whether the server has other processes.
        is_draining: whether the server is about to stop.
    """

    def __init__(self, gather: Gather, build_rows: BuildRows, *, is_shared: bool, is_draining: Callable[[], bool]) -> None:
        self._gather = gather
        self._build_rows = build_rows
        self._tick_s = SHARED_TICK_S if is_shared else TICK_S
        self._is_draining = is_draining
        self._epoch = secrets.token_hex(4)
        self._number = 0
        self._listeners: set[Listener] = set()
        self._ring: deque[_Event] = deque()
        self._ring_bytes = 0
        self._dropped_number = 0
        self._rows: dict[Topic, dict[str, bytes]] = {}
        self._since: dict[Topic, int] = {}  # the number of the last event before the topic was followed
        self._due_at: dict[Topic, float] = {}
        self._lines: deque[bytes] = deque(maxlen=LOG_LINES)
        self._line_numbers: dict[int, int] = {}
        self._empty_since: float | None = None
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.sample_count = 0

    async def listen(self, listener: Listener, last_event_id: str | None) -> None:
        """
        Add a listener, and send it the lists of its topics, or what it missed.

        Raises:
            ClientError: there are too many.
            ServerError: the supervisor does not answer.
        """
        self._check_room(listener)
        # No sample of others comes between its lists and its first event, so it misses nothing and gets nothing twice.
        async with self._lock:
            await self.sample([topic for topic in listener.topics if topic not in self._rows])
            self._check_room(listener)  # again: others may have come while it waited
            listener.begin(b"".join(self._beginning(listener.topics, last_event_id)))
            self._listeners.add(listener)
        if self._task is None:
            # It ends by itself: after a while without a listener, or when the server stops. It outlives the request that
            # began it, whose id is not to stand in its log lines.
            self._task = asyncio.create_task(self._run(), name="updates", context=contextvars.Context())  # noqa: TID251

    def leave(self, listener: Listener) -> None:
        """Remove a listener; does nothing if it is none."""
        self._listeners.discard(listener)

    def _check_room(self, listener: Listener) -> None:
        own = sum(each.holder == listener.holder for each in self._listeners)
        guests = sum(not each.is_operator for each in self._listeners)
        is_full = len(self._listeners) >= MAX_LISTENERS or (guests >= MAX_GUESTS and not listener.is_operator)
        if is_full or own >= MAX_LISTENERS_PER_HOLDER:
            whose = "This server has as many streams of updates as it can." if is_full else f"You have {own} streams of updates already."
            raise ClientError(
                f"{whose} Please close one, or try again later.",
                status=429,
                type="rate_limit_error",
                code="too_many_connections",
                retry_after_s=5,
            )

    # What a listener gets first

    def _beginning(self, topics: Collection[Topic], last_event_id: str | None) -> Iterable[bytes]:
        number, former_topics = self._resume_point(last_event_id)
        # A topic begins anew if an event of it may have been dropped, or if it was not followed at that number.
        is_kept = self._dropped_number <= number
        client_topics = {topic for topic in topics if is_kept and topic in former_topics and self._since[topic] <= number}
        yield from (self._format(event, client_topics) for event in self._ring if event.number > number and event.topic in client_topics)
        # Last: a connection may end in between, and each id says what has come until then.
        for topic in topics:
            if topic not in client_topics:
                client_topics.add(topic)
                yield self._format(self._whole(topic), client_topics)
        yield b": listening\n\n"

    def _resume_point(self, last_event_id: str | None) -> tuple[int, Collection[Topic]]:
        # What is no id of this epoch is as none: it may be from before a restart, or from another process.
        match = re.fullmatch(r"([0-9a-f]+)-(\d{1,18})-([01]+)", last_event_id or "", re.ASCII)
        if match is None or match[1] != self._epoch or int(match[2]) > self._number:
            return 0, ()
        return int(match[2]), [topic for topic, mark in zip(TOPICS, match[3], strict=False) if mark == "1"]

    def _whole(self, topic: Topic) -> _Event:
        rows: Iterable[bytes] = self._lines if topic == "log" else self._rows[topic].values()
        content = b'{"now":%b,"rows":[%b]}' % (msgspec.json.encode(now()), b",".join(rows))
        return _Event(f"{topic}.all", self._number, topic, content)

    def _format(self, event: _Event, topics: Collection[Topic]) -> bytes:
        """The event as it is sent to a listener that has these topics."""
        marks = "".join("1" if topic in topics else "0" for topic in TOPICS)
        return f"event: {event.name}\nid: {self._epoch}-{event.number}-{marks}\ndata: ".encode() + event.content + b"\n\n"

    # Sampling

    async def _run(self) -> None:
        try:
            while True:
                if not await self._tick():
                    return  # without an `await` before `_forget`, so that a listener that comes next begins anew
                await asyncio.sleep(self._tick_s)
        except Exception:  # where the task ends
            logs.get().exception("defect")
            for listener in self._listeners:
                listener.shut_down(ServerError("The server had an error, and the updates can't go on. Please connect again."))
        finally:
            self._task = None
            self._forget()

    async def _tick(self) -> bool:
        """Sample what is due; returns whether to go on."""
        clock = asyncio.get_running_loop().time
        async with self._lock:  # a client that begins to listen counts only once its topics were sampled
            self._empty_since = None if self._listeners else self._empty_since or clock()
            if self._is_draining() or (self._empty_since is not None and clock() - self._empty_since >= GRACE_S):
                return False
            with contextlib.suppress(ApiError):  # the supervisor did not answer; the next tick asks again
                await self.sample([topic for topic in self._rows if self._due_at[topic] <= clock()])
        return True

    def _forget(self) -> None:
        """Drop all rows and events. Under the new epoch a listener that comes back gets whole lists."""
        self._empty_since = None
        self._epoch, self._number, self._dropped_number, self._ring_bytes = secrets.token_hex(4), 0, 0, 0
        for collection in (self._ring, self._rows, self._since, self._due_at, self._lines, self._line_numbers):
            collection.clear()

    async def sample(self, topics: Collection[Topic]) -> None:
        """Look at topics now, and send what changed. A topic that was not followed is followed from now on."""
        if not topics:
            return
        clock = asyncio.get_running_loop().time
        began_at = clock()
        self.sample_count += 1
        query = FactsQuery(tuple(topics), dict(self._line_numbers), LOG_LINES)
        parts = await self._gather(query)
        for topic in topics:
            is_new = topic not in self._rows
            events = self._log_events(parts) if topic == "log" else self._row_events(topic, self._build_rows(topic, parts))
            # Nobody has the list of a new topic yet, so there is nothing that changed.
            if is_new:
                self._since[topic] = self._number
            else:
                self._publish(topic, events)
            # The more a look costs, the later is the next: `MAX_LOAD` bounds what listeners take from the server.
            self._due_at[topic] = began_at + max(INTERVALS_S.get(topic, 0), (clock() - began_at) / MAX_LOAD, self._tick_s / 2)

    def _row_events(self, topic: Topic, rows: Rows) -> Sequence[tuple[str, bytes]]:
        former = self._rows.get(topic, {})
        self._rows[topic] = dict(rows)
        removals = [(f"{topic}.gone", b'{"id":' + msgspec.json.encode(id) + b"}") for id in former if id not in rows]
        return [*removals, *((f"{topic}.row", row) for id, row in rows.items() if former.get(id) != row)]

    def _log_events(self, parts: Sequence[ProcessFacts]) -> Sequence[tuple[str, bytes]]:
        # Its lines are in `_lines`; the entry says that the topic is followed.
        self._rows.setdefault("log", {})
        lines = sorted((line for part in parts for line in part.log), key=lambda line: line.at)
        for part in parts:
            if part.log:
                self._line_numbers[part.pid] = part.log[-1].number
            # A process that has logged nothing: from now on all of its lines are new.
            else:
                self._line_numbers.setdefault(part.pid, 0)
        self._lines.extend(line.json for line in lines)
        return [("log.row", line.json) for line in lines]

    def _publish(self, topic: Topic, events: Sequence[tuple[str, bytes]]) -> None:
        new_events = [_Event(name, number, topic, content) for number, (name, content) in enumerate(events, self._number + 1)]
        self._number += len(new_events)
        self._ring.extend(new_events)
        self._ring_bytes += sum(len(event.content) for event in new_events)
        while len(self._ring) > RING_EVENTS or self._ring_bytes > RING_BYTES:
            oldest = self._ring.popleft()
            self._ring_bytes -= len(oldest.content)
            self._dropped_number = oldest.number
        # Once for all that have the same topics, which are most.
        chunks: dict[frozenset[Topic], bytes] = {}
        for listener in self._listeners if new_events else ():
            if topic in listener.topics:
                if (topics := listener.topics) not in chunks:
                    chunks[topics] = b"".join(self._format(event, topics) for event in new_events)
                listener.push(chunks[topics])
