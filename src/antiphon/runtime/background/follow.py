"""Reads the events of a background response from the store, and then follows it, wherever it is made."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec

from antiphon.errors import StoreError
from antiphon.offload import offload
from antiphon.records import EventRun
from antiphon.runtime.background.ending import terminal_event
from antiphon.runtime.background.journal import Journal, encode_run
from antiphon.runtime.core.ids import padding
from antiphon.stores.base import Store
from antiphon.wire.codec.stream_encoder import StreamEncoder
from antiphon.wire.responses.events import TERMINAL_EVENTS, StreamEvent
from antiphon.wire.responses.profiles import EventEncoder, read_journal

PAGE_RUNS = 16
"""Rows read at once, but no more after `PAGE_BYTES`: what is read waits in memory until the client has taken it."""

MIN_POLL_S = 0.1
MAX_POLL_S = 1.0
"""How often the store is asked for more events of a response that another process makes; less often while none come."""

KEEP_ALIVE = b": keep-alive\n\n"

_OBFUSCATION = re.compile(rb',"obfuscation":"[\w-]*"(?=}\n\n)')  # the last field of every delta that has one
_COMMENT = re.compile(rb"^: \{[^\n]*\n", re.MULTILINE)
_COMMENT_MARK = b': {"type":'
_DELTA = re.compile(rb"^data: (.*\"delta\":.*)$", re.MULTILINE)


_ENDS = tuple(f"event: {kind.__struct_config__.tag}\n".encode() for kind in TERMINAL_EVENTS)


class Follower:
    """
    One reader of a response's events.

    Args:
        journals: of the responses that this process makes, by id.
        after: the sequence number before the first event.
        heartbeat_s: after so long a silence, a comment is sent.
        obfuscation: whether deltas are padded; None for as they were sent.
    """

    def __init__(
        self,
        store: Store,
        encoder: EventEncoder,
        journals: Mapping[str, Journal],
        tenant: str,
        response_id: str,
        *,
        after: int,
        heartbeat_s: float,
        obfuscation: bool | None = None,
    ) -> None:
        self._store = store
        self._journals = journals
        self._tenant = tenant
        self._response_id = response_id
        # The journal has the numbers of sessions. Where the profile has its own, it is read from the beginning.
        self._after = after if encoder.keeps_numbers else -1
        self._stream = None if encoder.is_neutral else encoder.stream(after)
        self._heartbeat_s = heartbeat_s
        self._obfuscation = obfuscation
        self._wake = asyncio.Event()
        self._is_stopped = False
        self._poll_s = MIN_POLL_S

    def stop(self) -> None:
        """End `pages`: the reader is gone, or the server stops."""
        self._is_stopped = True
        self._wake.set()

    async def pages(self) -> AsyncIterator[bytes]:
        """Server-sent events, until the response has ended or is deleted."""
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        while not self._is_stopped:
            journal = self._journals.get(self._response_id)
            # Before reading: whatever is stored from here on sets it again.
            self._wake.clear()
            runs, is_over = await self._read(journal)
            if runs:
                self._poll_s = MIN_POLL_S
                sent_at = loop.time()
                if page := await self._translate(self._page(runs)):
                    yield page
                continue
            if is_over:
                yield await self._translate(await self._missing_end())
                return
            await self._wait(journal, sent_at + self._heartbeat_s - loop.time())
            if loop.time() >= sent_at + self._heartbeat_s:
                sent_at = loop.time()
                yield KEEP_ALIVE

    async def _read(self, journal: Journal | None) -> tuple[Sequence[EventRun], bool]:
        """The next events, and whether there will be none."""
        if journal is not None and (runs := journal.read(self._after)) is not None:
            return runs, False
        try:
            page = await self._store.background.events(self._tenant, self._response_id, self._after, PAGE_RUNS)
        except StoreError:  # it may be back soon
            return (), False
        return ((), True) if page is None else (page.runs, not page.is_unfinished)

    async def _missing_end(self) -> bytes:
        """The last event where it is not stored, as of a response that an older server has written off."""
        try:
            page = await self._store.background.events(self._tenant, self._response_id, max(self._after - 1, -1), 1)
            record = await self._store.get(self._tenant, self._response_id)
        except StoreError:
            return b""
        if page is None or record is None or page.is_unfinished or page.is_expired or not page.runs:
            return b""
        run = page.runs[0]
        if run.first + run.count - 1 != self._after or _is_ended(run.body):
            return b""
        return encode_run(self._after + 1, [terminal_event(record, self._after + 1)]).body

    async def _wait(self, journal: Journal | None, patience_s: float) -> None:
        """Wait until there may be more to read."""
        is_local = journal is not None and not journal.is_over
        # A response that is made here wakes its followers, so the store is not asked.
        wait_s = patience_s if is_local else min(patience_s, self._poll_s)
        self._poll_s = min(1.5 * self._poll_s, MAX_POLL_S)
        if journal is not None and is_local:
            journal.follow(self._wake)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, wait_s)):
                    await self._wake.wait()
        finally:
            if journal is not None:
                journal.unfollow(self._wake)

    async def _translate(self, page: bytes) -> bytes:
        """A page of the journal as the profile writes it; that of the original stays as it is."""
        if self._stream is None or not page:
            return page
        return await offload(len(page), _translate_page, page, self._stream, self._obfuscation)

    def _page(self, runs: Sequence[EventRun]) -> bytes:
        body = b"".join(run.body for run in runs)
        skip_count = self._after + 1 - runs[0].first
        start = 0
        for _ in range(skip_count):
            start = body.index(b"\n\n", start) + 2
        self._after = runs[-1].first + runs[-1].count - 1
        page = body[start:] if start else body
        if self._stream is not None:
            return page
        if _COMMENT_MARK in page:
            page = _COMMENT.sub(b"", page)
        return _set_padding(page, self._obfuscation)


def _translate_page(page: bytes, stream: StreamEncoder[StreamEvent], obfuscation: bool | None) -> bytes:
    body = bytearray()
    stream.encode_sse_into(read_journal(page), body)
    return _set_padding(bytes(body), obfuscation)


def _is_ended(body: bytes) -> bool:
    """Whether the last of these events is the last of a response."""
    return body.rstrip(b"\n").rpartition(b"\n\n")[2].startswith(_ENDS)


def _set_padding(page: bytes, obfuscation: bool | None) -> bytes:
    if obfuscation is None:
        return page
    page = _OBFUSCATION.sub(b"", page)
    return _DELTA.sub(_pad, page) if obfuscation else page


def _pad(line: re.Match[bytes]) -> bytes:
    """A delta with a padding, as a new stream would send it."""
    event = msgspec.json.decode(line[1])
    if not str(event.get("type")).endswith(".delta") or not isinstance(event.get("delta"), str):
        return line[0]
    paddings = padding()
    return b"data: " + msgspec.json.encode(event | {"obfuscation": paddings[len(event["delta"]) % len(paddings)]})
