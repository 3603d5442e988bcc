"""
The events in a stream's bytes, fast: the data of each server-sent event, however the bytes were cut.

Nearly every event of a model's stream is one line, `data: {...}`, and comes whole and alone, so that is what the straight path takes.
Comments, other fields, several lines of data and other line ends go round by `_data_of`.
"""

from typing import TypeVar

from antiphon.errors import UpstreamError

T = TypeVar("T")

_BOM = b"\xef\xbb\xbf"
_DATA = b"data: "
_LF = 10


class SseScanner:
    """
    Reads one stream.

    Args:
        limit_bytes: the most that one event may take.
    """

    def __init__(self, limit_bytes: int = 8 << 20) -> None:
        self._limit_bytes = limit_bytes
        self._has_begun = False
        self._pending_pieces: list[bytes] = []
        self._pending_bytes = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """
        The data of every event that ends in `piece`.

        Raises:
            UpstreamError: an event is larger than the limit.
        """
        if self._has_begun and not self._pending_pieces and piece.startswith(_DATA):
            end = piece.find(b"\n")
            if end == len(piece) - 2 and piece[-1] == _LF:
                return [piece[6:end]]
        return self._feed_slowly(piece)

    def _feed_slowly(self, piece: bytes) -> list[bytes]:
        if piece.find(b"\n") < 0 and piece.find(b"\r") < 0:
            # It ends nothing; kept apart, so that a large event in many pieces is not copied with each of them.
            self._buffer(piece)
            return []
        if self._pending_pieces or not self._has_begun or piece.find(b"\r") >= 0:
            piece = self._join_pending(piece)
        *blocks, rest = piece.split(b"\n\n")
        if rest:
            self._buffer(rest)
        return [block[6:] if block.startswith(_DATA) and block.find(b"\n") < 0 else _event_data(block) for block in blocks]

    def end(self) -> list[bytes]:
        """What stands at the very end without the empty line that should follow: some servers leave it out."""
        last = b"".join(self._pending_pieces)
        self._pending_pieces.clear()
        return [_event_data(last.replace(b"\r", b"\n"))] if last else []

    def _buffer(self, rest: bytes) -> None:
        self._pending_pieces.append(rest)
        self._pending_bytes += len(rest)
        if self._pending_bytes > self._limit_bytes:
            raise UpstreamError(f"The model server sent an event larger than {self._limit_bytes} bytes.")

    def _join_pending(self, piece: bytes) -> bytes:
        """All that is unfinished with `piece`, line ends made LF; a CR at the end waits for what may follow it."""
        whole = b"".join([*self._pending_pieces, piece])
        self._pending_pieces.clear()
        self._pending_bytes = 0
        if not self._has_begun:
            self._has_begun = len(whole) >= len(_BOM)
            whole = whole.removeprefix(_BOM)
        if b"\r" not in whole:
            return whole
        held = b"\r" if whole.endswith(b"\r") else b""
        whole = whole[: len(whole) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return whole + held


def _event_data(block: bytes) -> bytes:
    """The data of one event; empty when it has none."""
    lines = (line.partition(b":") for line in block.split(b"\n"))
    return b"\n".join(value.removeprefix(b" ") for field, _, value in lines if field == b"data")
