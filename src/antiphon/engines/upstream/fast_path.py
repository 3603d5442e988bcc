"""
The fast path of a token: from the bytes of a read to the client's event, without what lies between.

Once an event was nothing but text, the bytes around its text are known. A read that has these bytes and other text is
taken here: whole HTTP chunks, each with one or more such events. Anything else is not taken, and goes the ordinary way,
after which the bytes are learnt anew. So does what is taken leave everything as the ordinary way would have left it, and
both are held equal by a random test (docs/decisions/0042-fast-path.md).
"""

import re
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from antiphon.deadline import Deadline
from antiphon.engine_api.fast_path import TextSeries, TextSink
from antiphon.wire.codec.types import ENCODER

MAX_READ_BYTES = 64 << 10
MAX_READ_EVENTS = 256
"""More than this the ordinary way takes in slices, so that nobody else waits."""

MAX_TEMPLATE_BYTES = 2048
"""An event that is longer around its text is no token's."""

WORTHWHILE_EVENTS = 8
"""A fast path that has taken so many events has paid for itself several times."""

PROBE = b"Any text?"
"""Stands for the text, to find out what would become of another one."""

_MAX_CHUNK_BYTES = 2048
_SIZES = {form % size: size for size in range(1, _MAX_CHUNK_BYTES) for form in (b"%x", b"%X")}
_CRLF = b"\r\n"
_FIRST_LINES = {len(line) + size + 2: line for size in range(1, _MAX_CHUNK_BYTES) for line in (b"%x\r\n" % size,)}
"""How a read that is one chunk begins, by the size of the read."""
_STRING_MEMBER = re.compile(rb'"(?:content|text)"\s*+:\s*+"([^"\\]*+(?:\\.[^"\\]*+)*+)"')
_decode_string = msgspec.json.Decoder(str).decode


class ReadAccount:
    """
    What may still come of a response, and until when.

    Attributes:
        remaining_bytes: below 0, it is too long; so is it with `remaining_events`.
        deadline: for the next read.
        idle_s: the time for a read.
    """

    __slots__ = ("deadline", "idle_s", "remaining_bytes", "remaining_events")

    def __init__(self, remaining_bytes: int, remaining_events: int, deadline: Deadline, idle_s: float) -> None:
        self.remaining_bytes = remaining_bytes
        self.remaining_events = remaining_events
        self.deadline = deadline
        self.idle_s = idle_s


class TextTemplate(Struct, frozen=True):
    """
    What stands around the text in the data of a server's events.

    Attributes:
        series: what becomes of them.
    """

    before: bytes
    behind: bytes
    series: TextSeries


def text_places(event: bytes) -> Iterator[tuple[bytes, bytes]]:
    """What stands around each string in an event that may be its text."""
    if len(event) <= 2 * MAX_TEMPLATE_BYTES:
        for match in _STRING_MEMBER.finditer(event):
            before, behind = event[: match.start(1)], event[match.end(1) :]
            if len(before) + len(behind) <= MAX_TEMPLATE_BYTES:
                yield before, behind


class FastPath:
    """
    Takes reads that are nothing but text.

    Attributes:
        event_count: how many events it has taken.
    """

    __slots__ = ("_account", "_before", "_behind", "_end", "_is_relay", "_loop", "_sink", "event_count")

    def __init__(self, frame: tuple[bytes, bytes], template: TextTemplate, sink: TextSink, account: ReadAccount) -> None:
        line, end = frame
        self.event_count = 0
        self._before = line + template.before
        self._behind = template.behind + end
        self._end = self._behind + _CRLF
        self._is_relay = template.series.around is not None
        self._sink: TextSink | None = sink
        self._account = account
        self._loop = account.deadline.loop

    def close(self) -> None:
        """Take no more."""
        self._sink = None

    def take(self, read: bytes) -> bool:
        """Write the text of a read. Returns whether it was that; if not, nothing was done."""
        if (sink := self._sink) is None:
            return False
        # Nearly every read is one chunk of one event, whose text is written as it is..
        size, account = len(read), self._account
        line = _FIRST_LINES.get(size)
        if line is None or not read.startswith(line) or not read.endswith(self._end) or not read.startswith(self._before, len(line)):
            return self._take_chunks(read, sink)
        string = read[len(line) + len(self._before) : -len(self._end)]
        try:
            text = string.decode()
        except ValueError:  # broken UTF-8
            return False
        if not text or not text.isprintable() or '"' in text or "\\" in text:
            return self._take_chunks(read, sink)
        chunk_bytes = size - len(line) - 2
        if chunk_bytes > account.remaining_bytes or account.remaining_events < 1 or not sink.write([text], [string]):
            return False
        account.remaining_bytes -= chunk_bytes
        account.remaining_events -= 1
        account.deadline.due_at = self._loop.time() + account.idle_s
        self.event_count += 1
        return True

    def _take_chunks(self, read: bytes, sink: TextSink) -> bool:
        """The same for any number of chunks and events, with texts that have escapes."""
        before, behind = self._before, self._behind
        texts: list[str] = []
        strings: list[bytes] = []
        at, size = 0, len(read)
        taken_bytes = 0
        while at < size:
            line_end = read.find(_CRLF, at, at + 6)
            chunk_bytes = _SIZES.get(read[at:line_end])
            if chunk_bytes is None:
                return False
            at = line_end + 2
            chunk_end = at + chunk_bytes
            while at < chunk_end:
                text_at = at + len(before)
                text_end = read.find(behind, text_at, chunk_end)
                if text_end <= text_at or not read.startswith(before, at):
                    return False
                string = read[text_at:text_end]
                try:
                    text = string.decode()
                    if not text.isprintable() or '"' in text or "\\" in text:
                        text, string = self._recode(string)
                except ValueError:  # broken UTF-8 or JSON
                    return False
                texts.append(text)
                strings.append(string)
                at = text_end + len(behind)
            if not read.startswith(_CRLF, at):
                return False
            at += 2
            taken_bytes += chunk_bytes
        account = self._account
        if (
            at != size
            or size > MAX_READ_BYTES
            or len(texts) > MAX_READ_EVENTS
            or taken_bytes > account.remaining_bytes
            or len(texts) > account.remaining_events
            or not sink.write(texts, strings)
        ):
            return False
        account.remaining_bytes -= taken_bytes
        account.remaining_events -= len(texts)
        account.deadline.due_at = self._loop.time() + account.idle_s
        self.event_count += len(texts)
        return True

    def _recode(self, string: bytes) -> tuple[str, bytes]:
        """
        The text of a JSON string, and the string as the session's client gets it.

        Raises:
            ValueError: it is none.
        """
        text = _decode_string(b'"%b"' % string)
        return text, string if self._is_relay else ENCODER.encode(text)[1:-1]


class FastPathLearner:
    """
    Opens fast paths for one response, at a cost that stays small where none is of use.

    After each one that has taken next to nothing, it waits for twice as many reads: for a server whose events differ in
    more than their text, or a client that needs every event.
    """

    def __init__(self) -> None:
        self._latest: FastPath | None = None
        self._failures = 0
        self._pause = 1  # the head of a stream leaves in the loop's turn after its first text: until then there is no place to write

    def is_due(self) -> bool:
        """Whether it is worth trying now; called once for each read that ended in text."""
        if (latest := self._latest) is not None:
            self.close()
            if latest.event_count >= WORTHWHILE_EVENTS:
                self._failures = self._pause = 0
        if self._pause:
            self._pause -= 1
            return False
        self._failures += 1
        self._pause = (2 << min(self._failures, 9)) - 2  # 2 after the first, 6 after the second, 14 …
        return True

    def open(self, frame: tuple[bytes, bytes], template: TextTemplate, sink: TextSink, account: ReadAccount) -> FastPath:
        """The fast path until the next read that it does not take."""
        self._latest = FastPath(frame, template, sink, account)
        return self._latest

    def close(self) -> None:
        """End the fast path, if there is one."""
        if self._latest is not None:
            self._latest.close()
            self._latest = None


def event_frame(read: bytes, pieces: Sequence[bytes], event: bytes) -> tuple[bytes, bytes] | None:
    """
    What stands around the data of an event, if it ends a read of whole HTTP chunks: then nothing is left in any parser.

    Args:
        pieces: the body in that read.
    """
    if not any(read == b"".join([form % (len(piece), piece) for piece in pieces]) for form in (b"%x\r\n%b\r\n", b"%X\r\n%b\r\n")):
        return None
    last = pieces[-1]
    for end in (b"\n\n", b"\r\n\r\n"):
        if last.endswith(event + end):
            line = last[: -len(event + end)].rpartition(b"\n")[2]
            return (line, end) if line in (b"data: ", b"data:") else None
    return None
