"""One request and its answer: what became of it, and how long each part of it may take."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

from antiphon.engines.upstream.faults import refused, retry_after_s
from antiphon.engines.upstream.http_connection import Connection
from antiphon.errors import Fault, UpstreamTrouble
from antiphon.wire.codec.event_scan import EventScan

ERROR_LIMIT_BYTES = 64 << 10
"""How much of an error is read; what matters of it comes first."""

WHOLE_LIMIT_BYTES = 16 << 20
"""How large an answer may be that comes whole, though a stream was asked for."""


UNLABELLED = frozenset({"text/plain", "application/octet-stream"})
"""What web frameworks call a body of which its server says nothing: such as a stream of events."""

FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":", b"\xef\xbb\xbf", b"\n", b"\r\n")
"""What a stream of events can begin with."""


class Listener(Protocol):
    """Whoever understands the events of an answer."""

    def hear(self, events: list[bytes]) -> bool:
        """
        Take the data of events that came together; whether the answer is over.

        Raises:
            Fault: they make no sense, or say that the answer failed.
        """

    def no_more(self) -> bool:
        """Take it that no more comes; whether the answer had said that it was complete."""


class Failure(Struct, frozen=True):
    """
    Why there is no answer, or none to the end.

    Attributes:
        reason: in a word, for counting.
        may_retry: nothing of an answer had come, and another try may help.
        is_stale: the connection had been idle, and was closed just as it was used.
        counts: whether it speaks against the upstream rather than against the request.
        after_s: the least time before another try.
    """

    fault: Fault
    reason: str
    may_retry: bool = False
    is_stale: bool = False
    counts: bool = False
    after_s: float = 0.0


RETRIED = frozenset({429, 502, 503, 504})
"""Statuses that may be different a moment later."""

AGAINST_UPSTREAM = frozenset({502, 503, 504})
"""Statuses that count as failures of the upstream. A 500 does not: some servers give it to requests that they dislike."""


class Exchange:
    """
    The receiver of one answer.

    Args:
        first_byte_s: the longest from the request to the first byte of the answer's body.
        idle_s: the longest between two reads after that.
        answered: called when an answer begins.

    Attributes:
        outcome: None for an answer heard to its end.
    """

    def __init__(self, listener: Listener, first_byte_s: float, idle_s: float, answered: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[Failure | None] = self._loop.create_future()
        self._listener = listener
        self._answered = answered
        self._idle_s = idle_s
        self._connection: Connection | None = None
        # How the body is taken; None for a stream of events, which is nearly every one.
        self._take: Callable[[list[bytes]], None] | None = self._take_refusal
        self._scan = EventScan()
        self._body = bytearray()
        self._limit_bytes = ERROR_LIMIT_BYTES
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._has_begun = False
        self._is_paused = False
        self._was_idle = False
        self._read_at = 0.0
        self._patience_s = first_byte_s
        self._alarm: asyncio.TimerHandle | None = None

    def start(self, connection: Connection, request: bytes) -> None:
        """Send the request."""
        self._connection = connection
        self._was_idle = connection.has_served
        self._read_at = self._loop.time()
        self._alarm = self._loop.call_later(self._patience_s, self._look_at_clock)
        connection.ask(request, self)
        if self._is_paused and self._connection is not None:
            connection.pause()

    def pause(self) -> None:
        """Read nothing, and let no time pass."""
        self._is_paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Read on."""
        self._is_paused = False
        self._read_at = self._loop.time()
        if self._connection is not None:
            self._connection.resume()

    def abort(self) -> None:
        """Stop the upstream, and hear nothing more."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        self._settle(None)

    # What the connection says

    def begun(self, status: int, headers: Mapping[str, str]) -> None:
        """The head is here: it says how the body is to be read."""
        self._status, self._headers = status, headers
        if status != 200:
            return
        self._answered()
        media_type = headers.get("content-type", "text/event-stream").partition(";")[0].strip().lower()
        if headers.get("content-encoding", "identity") != "identity":
            self._fail_with(f"sent its answer in an encoding that was not asked for: {headers['content-encoding']}", "malformed")
        elif media_type == "text/event-stream":
            self._take = None
        elif media_type == "application/json":
            self._take, self._limit_bytes = self._take_whole, WHOLE_LIMIT_BYTES
        elif media_type in UNLABELLED:
            self._take = self._take_unlabelled
        else:
            self._mistake_kind(media_type)

    def came(self, pieces: list[bytes]) -> None:
        """More of the body."""
        self._read_at = self._loop.time()
        if not self._has_begun:
            self._has_begun = True
            self._be_patient(self._idle_s)
        if self._take is not None:
            self._take(pieces)
            return
        try:
            events = self._scan.feed(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            if events and self._listener.hear(events):
                self._settle(None)
        except Fault as fault:
            self._settle(Failure(fault, "garbled" if isinstance(fault, UpstreamTrouble) else "refused"), at_once=True)

    def ended(self) -> None:
        """The body is whole."""
        self._connection = None
        if self._take == self._take_refusal:
            self._refuse()
        else:
            self._hear(self._scan.end() if self._take is None else [bytes(self._body)])
            self._conclude(None)

    def broke_off(self, why: str) -> None:
        """Nothing more comes. What came may yet be a whole answer, or tell an error well enough."""
        self._connection = None
        if self._status and self._take == self._take_refusal:
            self._refuse()
        elif self._has_begun:
            self._conclude(why)
        else:
            fault = UpstreamTrouble(f"The model server {why}.", code="upstream_broke_off")
            self._settle(Failure(fault, "broke_off", may_retry=True, is_stale=self._was_idle and not self._status, counts=True))

    # How the body is taken

    def _take_whole(self, pieces: list[bytes]) -> None:
        self._collect(pieces)
        if len(self._body) > self._limit_bytes:
            self._fail_with(f"sent an answer larger than {self._limit_bytes} bytes", "malformed")

    def _take_unlabelled(self, pieces: list[bytes]) -> None:
        self._collect(pieces)
        head = bytes(self._body[: max(map(len, FIELDS))])
        if head.startswith(FIELDS):
            self._take = None
            self.came([bytes(self._body)])
        elif not any(field.startswith(head) for field in FIELDS):
            self._mistake_kind(self._headers["content-type"].partition(";")[0])

    def _mistake_kind(self, media_type: str) -> None:
        self._fail_with(f"sent {media_type} where a stream of events was expected; its base_url may be wrong", "malformed")

    def _take_refusal(self, pieces: list[bytes]) -> None:
        self._collect(pieces)
        if len(self._body) > self._limit_bytes:
            self._refuse()

    def _collect(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self._body += piece

    # How it ends

    def _hear(self, events: list[bytes]) -> None:
        try:
            if events and not self.outcome.done() and self._listener.hear(events):
                self._settle(None)
        except Fault as fault:
            self._settle(Failure(fault, "garbled"))

    def _conclude(self, why: str | None) -> None:
        if self.outcome.done():
            return
        if self._listener.no_more():
            self._settle(None)
        else:
            fault = UpstreamTrouble(f"The model server {why or 'ended its answer before it was whole'}.", code="upstream_broke_off")
            self._settle(Failure(fault, "broke_off"))

    def _refuse(self) -> None:
        after_s = retry_after_s(self._headers)
        self._settle(
            Failure(
                refused(self._status, self._headers, bytes(self._body)),
                str(self._status),
                may_retry=self._status in RETRIED and (self._status != 429 or after_s is not None),
                counts=self._status in AGAINST_UPSTREAM,
                after_s=after_s or 0.0,
            ),
            at_once=True,
        )

    def _fail_with(self, why: str, reason: str) -> None:
        self._settle(Failure(UpstreamTrouble(f"The model server {why}.", code="upstream_malformed"), reason), at_once=True)

    def _settle(self, failure: Failure | None, *, at_once: bool = False) -> None:
        """It is over; `at_once` closes the connection, which may have much more to say."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        connection, self._connection = self._connection, None
        if connection is not None:
            if at_once:
                connection.abort()
            else:
                connection.leave()
        if not self.outcome.done():
            self.outcome.set_result(failure)

    # Time

    def _be_patient(self, patience_s: float) -> None:
        self._patience_s = patience_s
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = self._loop.call_later(patience_s, self._look_at_clock)

    def _look_at_clock(self) -> None:
        # Reads only note the time: a timer for each would cost more than the read.
        left_s = self._patience_s if self._is_paused else self._read_at + self._patience_s - self._loop.time()
        if left_s > 0.001:
            self._alarm = self._loop.call_later(left_s, self._look_at_clock)
            return
        if self._has_begun and self._listener.no_more():
            self._settle(None, at_once=True)
            return
        phase = "fell silent in the middle of its answer" if self._has_begun else "did not begin to answer"
        fault = UpstreamTrouble(f"The model server {phase} for {self._patience_s:g} seconds.", status=504, code="upstream_timeout")
        self._settle(Failure(fault, "timeout", counts=not self._has_begun), at_once=True)
