"""
The last lines of the log, kept in memory for operators: as JSON, without secrets, whatever the log itself looks like.
"""

import datetime
import itertools
import re
import threading
from collections import deque
from collections.abc import Collection, Mapping

import msgspec
from msgspec import Struct

from antiphon.masking import MASK, mask_password

MAX_LINES = 2000
MAX_BYTES = 2 << 20
"""Of all lines together, which are some 200 bytes each."""

MAX_LINE_BYTES = 8 << 10
"""A longer line has its texts cut."""

_CUT_CHARS, _CUT_FIELDS = 500, 12

LEVELS = ("debug", "info", "warning", "error", "critical")

# Our own keys and secrets, those of OpenAI and Anthropic, and whatever stands where a key does in a header.
_SECRETS = re.compile(r"\b(?:ak-|ck_|ek_|sk-|whsec_)[\w-]{8,}|(?i:(?<=bearer )|(?<=basic ))[\w.~+/=-]{8,}")
_MARK = re.compile(rb"[ace]k[-_]|sk-|whsec_|://|[?&]|earer |EARER |asic |ASIC ")
"""A line without any of them has no secret that we know of: looking for them costs less than the patterns."""


class LogLine(Struct, frozen=True, array_like=True):
    """
    A line.

    Attributes:
        number: rises by one with each line of a process.
        at: Unix seconds.
        level: its place in `LEVELS`.
        json: the whole line, an object.
    """

    number: int
    at: float
    level: int
    event: str
    request_id: str
    json: bytes


class LogLines:
    """The last lines of a process, whichever thread writes them."""

    def __init__(self) -> None:
        self._lines: deque[LogLine] = deque()
        self._bytes = 0
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    @property
    def last_number(self) -> int:
        """The number of the latest line; 0 before the first."""
        return self._lines[-1].number if self._lines else 0

    def add(self, entry: Mapping[str, object]) -> None:
        """Keep a line; it must have a `level` and an `event`."""
        now = datetime.datetime.now(datetime.UTC)
        fields = {**entry, "timestamp": now.isoformat()}
        content = _encode(fields)
        if _MARK.search(content) is not None:
            fields = {name: _mask(value) for name, value in fields.items()}
            content = _encode(fields)
        if len(content) > MAX_LINE_BYTES:
            content = _encode({name: _cut(value) for name, value in [*fields.items()][:_CUT_FIELDS]} | {"truncated": True})
        level = str(entry.get("level"))
        rank = LEVELS.index(level) if level in LEVELS else 1
        with self._lock:
            line = LogLine(next(self._numbers), now.timestamp(), rank, str(entry.get("event")), str(entry.get("request_id") or ""), content)
            self._lines.append(line)
            self._bytes += len(content)
            while len(self._lines) > MAX_LINES or self._bytes > MAX_BYTES:
                self._bytes -= len(self._lines.popleft().json)

    def last(self, limit: int, level: int = 0, event: str | None = None, request_id: str | None = None) -> Collection[LogLine]:
        """
        The last lines, oldest first.

        Args:
            level: the least one, as its place in `LEVELS`.
        """
        with self._lock:
            lines = [*self._lines]
        fits = (
            line
            for line in reversed(lines)
            if line.level >= level and event in (None, line.event) and request_id in (None, line.request_id)
        )
        return [*itertools.islice(fits, limit)][::-1]

    def after(self, number: int) -> Collection[LogLine]:
        """The lines after that number, oldest first."""
        if self.last_number <= number:
            return ()
        with self._lock:
            newer = [*itertools.takewhile(lambda line: line.number > number, reversed(self._lines))]
        return newer[::-1]


LINES = LogLines()
"""Of this process, as its log is."""


_encode = msgspec.json.Encoder(enc_hook=str).encode


def _cut(value: object) -> object:
    text = value if isinstance(value, str) else _encode(value).decode(errors="replace")
    return value if len(text) <= _CUT_CHARS else f"{text[:_CUT_CHARS]}..."


def _mask(value: object) -> object:
    if isinstance(value, str):
        return _SECRETS.sub(MASK, mask_password(value))
    if isinstance(value, dict):
        return {name: _mask(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_mask(each) for each in value]
    return value
