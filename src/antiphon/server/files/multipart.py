"""
`multipart/form-data` as it arrives: no part is ever whole in memory.

Source: RFC 7578, and RFC 2046 section 5.1.1 for the delimiters.
"""

import enum
import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from python_multipart.multipart import parse_options_header

from antiphon.errors import ClientError

MAX_PARTS = 32
HEAD_LIMIT_BYTES = 8 << 10
"""The most bytes of a part's header fields."""

PADDING_LIMIT_BYTES = 256
"""The most spaces behind a delimiter."""

_EXTENDED_FILENAME = re.compile(rb"(?i);\s*filename\*\s*=\s*utf-8'[^';]*'([^;\s]+)")
"""RFC 7578 forbids this form (section 4.2), but some clients send no other for names that are not ASCII."""


class PartHead(NamedTuple):
    """The beginning of a part; a part with a `filename` is a file."""

    name: str
    filename: str | None


class PartEnd(NamedTuple):
    """The end of a part."""


FormEvent = PartHead | bytes | PartEnd
"""The bytes are content of the part that began last."""


class _State(enum.Enum):
    PREAMBLE = enum.auto()
    DELIMITER = enum.auto()
    HEAD = enum.auto()
    CONTENT = enum.auto()
    EPILOGUE = enum.auto()


class MultipartScanner:
    """
    Cuts a form into its parts.

    Args:
        boundary: from the request's content type.
    """

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._buffer = bytearray(b"\r\n")  # no line needs to come before the first delimiter
        self._state = _State.PREAMBLE
        self._part_count = 0

    def feed(self, chunk: bytes) -> Iterator[FormEvent]:
        """
        What a chunk of the body brings, in order.

        Raises:
            ClientError: it is no valid form, or beyond a limit.
        """
        self._buffer += chunk
        is_moving = True
        while is_moving:
            match self._state:
                case _State.PREAMBLE:
                    _, is_moving = self._take_content()
                case _State.DELIMITER:
                    is_moving = self._end_delimiter()
                case _State.HEAD:
                    if is_moving := (head := self._take_head()) is not None:
                        yield head
                case _State.CONTENT:
                    content, is_moving = self._take_content()
                    if content:
                        yield content
                    if is_moving:
                        yield PartEnd()
                case _State.EPILOGUE:
                    self._buffer.clear()
                    is_moving = False

    def end(self) -> None:
        """
        Check that the form is complete.

        Raises:
            ClientError: it isn't.
        """
        if self._state is not _State.EPILOGUE:
            raise malformed_form("It ends before its last boundary")

    def _take_content(self) -> tuple[bytes, bool]:
        """What has come before the next delimiter, and whether that has come too."""
        index = self._buffer.find(self._delimiter)
        is_whole = index >= 0
        # What comes last may be the start of a delimiter.
        end = index if is_whole else max(0, len(self._buffer) - len(self._delimiter) + 1)
        content = bytes(self._buffer[:end])
        del self._buffer[: end + (len(self._delimiter) if is_whole else 0)]
        if is_whole:
            self._state = _State.DELIMITER
        return content, is_whole

    def _end_delimiter(self) -> bool:
        """Read the end of the delimiter's line; returns whether it has come."""
        # RFC 2046, 5.1.1: two hyphens behind a delimiter make it the last; what follows is ignored.
        if self._buffer.startswith(b"--"):
            self._state = _State.EPILOGUE
            return True
        index = self._buffer.find(b"\r\n")
        padding = self._buffer if index < 0 else self._buffer[:index]
        # The second hyphen may come with the next chunk, as may the line break behind a lone CR.
        is_end_possible = index < 0 and padding == b"-"
        # RFC 2046, 5.1.1: spaces and tabs may stand between a delimiter and the end of its line.
        if (padding.rstrip(b"\r").strip(b" \t") and not is_end_possible) or len(padding) > PADDING_LIMIT_BYTES:
            raise malformed_form("A boundary is followed by something else than the end of its line")
        if index < 0:
            return False
        del self._buffer[:index]  # the head begins with this line break, as it may have no fields
        self._state = _State.HEAD
        return True

    def _take_head(self) -> PartHead | None:
        index = self._buffer.find(b"\r\n\r\n")
        if index > HEAD_LIMIT_BYTES or (index < 0 and len(self._buffer) > HEAD_LIMIT_BYTES + 4):
            raise malformed_form(f"The header of a part is larger than {HEAD_LIMIT_BYTES} bytes")
        if index < 0:
            return None
        self._part_count += 1
        if self._part_count > MAX_PARTS:
            raise malformed_form(f"It has more than {MAX_PARTS} parts")
        head = _read_head(bytes(self._buffer[:index]))
        del self._buffer[: index + 4]
        self._state = _State.CONTENT
        return head


def _read_head(head: bytes) -> PartHead:
    for line in head.split(b"\r\n"):
        field, _, value = line.partition(b":")
        if field.strip().lower() == b"content-disposition":
            kind, options = parse_options_header(value.strip())
            name, filename = options.get(b"name"), options.get(b"filename")
            if filename is None and (match := _EXTENDED_FILENAME.search(value)) is not None:
                filename = unquote_to_bytes(match[1])
            if kind == b"form-data" and name is not None:
                return PartHead(_text(name), None if filename is None else _text(filename))
    raise malformed_form("A part has no name")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def malformed_form(problem: str) -> ClientError:
    """The body is no form, or beyond a limit; `problem` says why, beginning a sentence."""
    return ClientError(f"We could not parse the multipart form of your request. {problem}.", code="invalid_multipart_form")
