"""
Server-sent events, read: bytes as they arrive to the data of each event.

Only `data` counts; names, ids and comments are passed over. An event that its stream doesn't finish is not one, unless
`end` is called.

This is on the path of every token. Nearly every event of a model's stream is one line, `data: {...}`, and comes whole
and alone in one read, so that is what the fast path takes. Everything else (comments, other fields, several lines,
other line ends) takes the slow one.

Source: HTML, sections 9.2.5 and 9.2.6,
https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

DONE = b"[DONE]"
"""Data of the last event of a stream, by OpenAI's convention."""

_BOM = b"\xef\xbb\xbf"
_DATA = b"data: "
_LF = 10


class EventTooLarge(ValueError):
    """
    An event, or what stands in place of one, is larger than the limit; the rest of its stream can't be read.

    Args:
        block: it, as far as it came.
    """

    def __init__(self, block: bytes, limit_bytes: int) -> None:
        what = f"an event larger than {limit_bytes} bytes" if _has_data(block) else f"more than {limit_bytes} bytes without an event"
        super().__init__(what)


class SseParser:
    """
    Reads one stream, however it is cut into pieces.

    Args:
        limit_bytes: the largest event that is put together from several pieces, with its field names.
    """

    def __init__(self, limit_bytes: int = 8 << 20) -> None:
        self._limit_bytes = limit_bytes
        self._has_begun = False
        self._is_after_cr = False
        self._pending = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """
        The data of every event that ends in `piece`.

        Raises:
            EventTooLarge: an event is larger than the limit.
        """
        if self._has_begun and not self._pending and piece.startswith(_DATA):
            end = piece.find(b"\n")
            if end == len(piece) - 2 and piece[-1] == _LF:
                return [piece[6:end]]
        return self._feed_slowly(piece) if piece else []

    def end(self) -> list[bytes]:
        """
        The data of an event at the very end, without the empty line that should follow: some servers leave it out.
        """
        # HTML 9.2.6 discards it; a model's server that closes after its last word would lose that.
        last = bytes(self._pending)
        self._pending.clear()
        return [_event_data(last)] if _has_data(last) else []

    def _feed_slowly(self, piece: bytes) -> list[bytes]:
        if self._is_after_cr or b"\r" in piece:
            piece = self._normalize_line_ends(piece)
        if b"\n\n" not in piece and not (piece.startswith(b"\n") and self._pending.endswith(b"\n")):
            # It ends nothing; set aside, so that a large event in many pieces is not copied with each of them.
            self._buffer(piece)
            return []
        piece = self._join_pending(piece)
        *blocks, rest = piece.split(b"\n\n")
        if len(piece) > self._limit_bytes:
            for block in blocks:
                if len(block) > self._limit_bytes:
                    raise EventTooLarge(block, self._limit_bytes)
        if rest:
            self._buffer(rest)
        return [
            block[6:] if block.startswith(_DATA) and block.find(b"\n") < 0 else _event_data(block)
            for block in blocks
            if block.startswith(_DATA) or (b"data" in block and _has_data(block))
        ]

    def _normalize_line_ends(self, piece: bytes) -> bytes:
        """
        The piece with LF for every line end. A CR ends a line at once; the LF that may follow in the next piece is
        dropped. (HTML 9.2.5: a line ends with CRLF, LF or CR.)
        """
        if self._is_after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._is_after_cr = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _join_pending(self, piece: bytes) -> bytes:
        if self._pending:
            piece = bytes(self._pending) + piece
            self._pending.clear()
        if not self._has_begun:
            self._has_begun = True
            piece = piece.removeprefix(_BOM)  # HTML 9.2.5: one byte order mark may lead the stream
        return piece

    def _buffer(self, rest: bytes) -> None:
        self._pending += rest
        if len(self._pending) > self._limit_bytes:
            raise EventTooLarge(bytes(self._pending), self._limit_bytes)


def _has_data(block: bytes) -> bool:
    """Whether any line is a `data` field: without one, a block is no event."""
    return any(line.partition(b":")[0] == b"data" for line in block.split(b"\n"))


def _event_data(block: bytes) -> bytes:
    # HTML 9.2.6: values of several `data` lines are joined by LF, each without the one space that may lead it.
    lines = (line.partition(b":") for line in block.split(b"\n"))
    return b"\n".join(value.removeprefix(b" ") for field, _, value in lines if field == b"data")
