"""
Audio that waits to be played in a call. Parts play one after another, in the order in which they began.

`protocols/realtime/output_buffer.py` reports playback to the client, from the same events and in the same order.
"""

from collections import deque

from msgspec import Struct

MAX_QUEUED_BYTES = 64 << 20
"""Limit of the queue, about 23 minutes; audio beyond it is dropped."""


class CallPlaybackPart(Struct):
    """The unplayed audio of one content part, and whether more may come."""

    key: tuple[str, int]
    pcm: bytearray
    is_open: bool = True


class PlaybackQueue:
    """Audio that waits to be played: s16le, mono, 24 kHz."""

    def __init__(self) -> None:
        self._parts: deque[CallPlaybackPart] = deque()
        self._queued_bytes = 0

    def append(self, key: tuple[str, int], pcm: bytes) -> None:
        """Add audio of a part; the key is item id and content index."""
        if self._queued_bytes + len(pcm) > MAX_QUEUED_BYTES:
            return
        part = self._find(key)
        if part is None:
            part = CallPlaybackPart(key, bytearray())
            self._parts.append(part)
        part.pcm += pcm
        self._queued_bytes += len(pcm)

    def close_part(self, key: tuple[str, int]) -> None:
        """No more audio of the part comes, so the next one plays after what is left of it."""
        part = self._find(key)
        if part is not None:
            part.is_open = False

    def clear(self) -> None:
        self._parts.clear()
        self._queued_bytes = 0

    def take(self, count: int) -> bytes:
        """The next `count` bytes, or fewer where no more are there yet."""
        pcm = b""
        while self._parts and len(pcm) < count:
            part = self._parts[0]
            chunk = bytes(part.pcm[: count - len(pcm)])
            del part.pcm[: len(chunk)]
            pcm += chunk
            if not part.pcm:
                # More of it may come, and the next part must not play before that.
                if part.is_open:
                    break
                self._parts.popleft()
        self._queued_bytes -= len(pcm)
        return pcm

    def _find(self, key: tuple[str, int]) -> CallPlaybackPart | None:
        return next((part for part in reversed(self._parts) if part.key == key), None)
