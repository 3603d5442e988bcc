"""
The end of the fast path: texts become server-sent events by putting them between bytes that are the same for each.

Those bytes are cut out of an event that the stream's encoder wrote, so they are right whatever it writes.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from antiphon.protocols.session import PADDING_PERIOD, SAMPLE_NUMBER

_SAMPLE = b"a text that no other has"
_SAMPLE_TEXTS = tuple((_SAMPLE + b"." * ((length - len(_SAMPLE)) % PADDING_PERIOD)).decode() for length in range(PADDING_PERIOD))
"""By their length, up to multiples of the period: what hides a text's length depends on it."""

# RFC 9112, 7.1: a chunk begins with its size in hexadecimal. Made beforehand, as every token needs one.
_SIZE_LINES = tuple(b"%x\r\n" % size for size in range(2048))


class WrittenStream(Protocol):
    """
    The stream that a sink writes to.

    Attributes:
        event_count: how many events were sent.
        is_quiet: whether nothing was, since it was last looked.
    """

    event_count: int
    is_quiet: bool


class EventParts:
    """
    What stands before the number, between number and text, and behind the text, in each event of a series.

    Args:
        encode_sample: writes an event with that text, and with `SAMPLE_NUMBER` where events are numbered.
    """

    def __init__(self, encode_sample: Callable[[str], bytes], *, is_numbered: bool) -> None:
        self._encode_sample = encode_sample
        self._is_numbered = is_numbered
        self.tails: list[bytes | None] = [None] * PADDING_PERIOD
        parts = self._cut(0)
        self.is_complete = parts is not None
        self.head, self.middle, self.tails[0] = parts or (b"", b"", b"")

    def tail(self, length: int) -> bytes | None:
        """What stands behind a text of so many characters; None if more than that differs."""
        parts = self._cut(length % PADDING_PERIOD)
        if parts is None or parts[:2] != (self.head, self.middle):
            return None
        self.tails[length % PADDING_PERIOD] = parts[2]
        return parts[2]

    def _cut(self, residue: int) -> tuple[bytes, bytes, bytes] | None:
        text = _SAMPLE_TEXTS[residue]
        head, _, tail = self._encode_sample(text).partition(text.encode())
        middle = b""
        if self._is_numbered:
            number = b"%d" % SAMPLE_NUMBER
            # Digits that stand there twice, as in an id, leave open which are the event's number.
            if head.count(number) != 1:
                return None
            head, _, middle = head.partition(number)
        # An event that has its text twice can't be made by putting other bytes in one place.
        return (head, middle, tail) if tail and _SAMPLE not in tail else None


class SseTextSink:
    """
    Writes the texts of a series to a client, one chunk of the body for those that came together.

    Args:
        number: of the next event.
        texts: where they are kept, if they are.
    """

    # On the path of every token: with many streams, each object that it looks at is one that no cache has.
    __slots__ = ("_first", "_head", "_is_numbered", "_is_open", "_middle", "_number", "_parts", "_stream", "_tails", "_texts", "_transport")

    def __init__(
        self, parts: EventParts, number: int, texts: list[str] | None, stream: WrittenStream, transport: asyncio.Transport
    ) -> None:
        self._parts = parts
        self._head, self._middle, self._tails = parts.head, parts.middle, parts.tails
        self._is_open = True
        self._is_numbered = bool(parts.middle)
        self._first = self._number = number
        self._texts = texts
        self._stream = stream
        self._transport = transport

    def write(self, texts: list[str], strings: list[bytes]) -> bool:
        if not self._is_open or self._transport.is_closing():
            return False
        number, head, middle, tails = self._number, self._head, self._middle, self._tails
        out: list[bytes] = []
        for text, string in zip(texts, strings, strict=True):
            tail = tails[len(text) % PADDING_PERIOD] or self._parts.tail(len(text))
            if tail is None:
                return False
            if self._is_numbered:
                out += (head, b"%d" % number, middle, string, tail)
            else:
                out += (head, string, tail)
            number += 1
        # All that this changes, it changes before it writes: a write buffer that is full then closes it at once.
        self._number = number
        if self._texts is not None:
            self._texts += texts
        self._stream.is_quiet = False
        body = b"".join(out)
        size = len(body)
        size_line = _SIZE_LINES[size] if size < len(_SIZE_LINES) else b"%x\r\n" % size
        self._transport.write(b"".join((size_line, body, b"\r\n")))
        return True

    def close(self) -> int:
        """Take no more. Returns how many texts it has taken."""
        count = self._number - self._first
        if self._is_open:
            self._is_open = False
            self._stream.event_count += count
        return count
