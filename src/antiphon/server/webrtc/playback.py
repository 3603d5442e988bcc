"""
The sound that waits to be played in a call: part by part in the order in which they began, each to its end before the next.

`protocols.playout` tells the client of it, from the same events and by the same order.
"""

from collections import deque

from msgspec import Struct

MAX_QUEUED_BYTES = 64 << 20
"""The most sound that waits, some 23 minutes; what is made beyond it is not played."""


class CallPlaybackPart(Struct):
    """One part: what of it has not been played, and whether more may come."""

    key: tuple[str, int]
    pcm: bytearray
    is_open: bool = True


class PlaybackQueue:
    """A queue of sound; s16le at one rate."""

    def __init__(self) -> None:
        self._parts: deque[CallPlaybackPart] = deque()
        self._queued_bytes = 0

    def append(self, key: tuple[str, int], pcm: bytes) -> None:
        """More sound of the part at that place: an item, and an index in its content."""
        if self._queued_bytes + len(pcm) > MAX_QUEUED_BYTES:
            return
        part = self._find(key)
        if part is None:
            part = CallPlaybackPart(key, bytearray())
            self._parts.append(part)
        part.pcm += pcm
        self._queued_bytes += len(pcm)

    def close_part(self, key: tuple[str, int]) -> None:
        """No more comes of it."""
        part = self._find(key)
        if part is not None:
            part.is_open = False

    def clear(self) -> None:
        """Drop everything."""
        self._parts.clear()
        self._queued_bytes = 0

    def take(self, count: int) -> bytes:
        """The next so many bytes; fewer where there are no more yet."""
        pcm = b""
        while self._parts and len(pcm) < count:
            part = self._parts[0]
            chunk = bytes(part.pcm[: count - len(pcm)])
            del part.pcm[: len(chunk)]
            pcm += chunk
            if not part.pcm:
                if part.is_open:
                    break
                self._parts.popleft()
        self._queued_bytes -= len(pcm)
        return pcm

    def _find(self, key: tuple[str, int]) -> CallPlaybackPart | None:
        return next((part for part in reversed(self._parts) if part.key == key), None)
