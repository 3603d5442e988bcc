"""
Server-sent events, read: bytes as they arrive to the data of each event.

Only `data` is kept; names, ids and comments are passed over. An event that its stream doesn't finish is not one.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

_BOM = b"\xef\xbb\xbf"


class SseParser:
    """
    Reads one stream, however it is cut into pieces.

    Args:
        limit_bytes: the most that one event, or one line, may take.
    """

    def __init__(self, limit_bytes: int = 1 << 20) -> None:
        self._limit_bytes = limit_bytes
        self._remainder = b""
        self._is_after_cr = False
        self._has_begun = False
        self._lines: list[bytes] = []
        self._size_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """
        The data of every event that ends in `piece`.

        Raises:
            ValueError: an event is larger than the limit; the stream is of no more use.
        """
        *lines, self._remainder = (self._remainder + self._normalize_line_ends(chunk)).split(b"\n")
        if not self._has_begun and (lines or len(self._remainder) >= len(_BOM)):
            self._has_begun = True
            if lines:
                lines[0] = lines[0].removeprefix(_BOM)
            else:
                self._remainder = self._remainder.removeprefix(_BOM)
        ended = [event for line in lines if (event := self._parse_line(line)) is not None]
        self._check_size(len(self._remainder))
        return ended

    def _normalize_line_ends(self, chunk: bytes) -> bytes:
        """The piece with all its line ends as LF; a CR at the end of the last piece was one already."""
        if self._is_after_cr and chunk.startswith(b"\n"):
            chunk, self._is_after_cr = chunk[1:], False
        if chunk:
            self._is_after_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in chunk else chunk

    def _parse_line(self, line: bytes) -> bytes | None:
        if not line:
            return self._end_event()
        field, _, value = line.partition(b":")
        if field == b"data":
            value = value.removeprefix(b" ")
            self._check_size(len(value))
            self._size_bytes += len(value) + 1
            self._lines.append(value)
        return None

    def _end_event(self) -> bytes | None:
        lines, self._lines, self._size_bytes = self._lines, [], 0
        return b"\n".join(lines) if lines else None

    def _check_size(self, more_bytes: int) -> None:
        if self._size_bytes + more_bytes > self._limit_bytes:
            raise ValueError(f"a server-sent event is larger than {self._limit_bytes} bytes")
