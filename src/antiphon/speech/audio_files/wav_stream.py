"""
Reads a WAV file as it arrives over the network; lengths in its header are ignored, as the sender may not know them yet.
"""

from struct import Struct as Format

from antiphon.audio import SAMPLE_BYTES

_CHUNK = Format("<4sI")
_FORMAT = Format("<HHIIHH")
_PCM, _EXTENSIBLE = 1, 0xFFFE
HEAD_LIMIT_BYTES = 1 << 16


class UnplayableAudio(ValueError):
    """Not a WAV file of 16 bits mono."""


class WavStream:
    """
    One file.

    Attributes:
        rate_hz: of its audio; None until the header is complete.
    """

    def __init__(self) -> None:
        self.rate_hz: int | None = None
        self._head = b""

    def feed(self, chunk: bytes) -> bytes:
        """
        The audio in the file's next chunk.

        Raises:
            UnplayableAudio: the format is not supported.
        """
        if self.rate_hz is not None:
            return chunk
        self._head += chunk
        if not b"RIFF".startswith(self._head[:4]):
            raise UnplayableAudio("it is not a WAV file")
        if len(self._head) > HEAD_LIMIT_BYTES:
            raise UnplayableAudio("its header is too long")
        return self._read_head()

    def _read_head(self) -> bytes:
        head, offset, rate_hz = self._head, 12, None
        while offset + _CHUNK.size <= len(head):
            name, size = _CHUNK.unpack_from(head, offset)
            offset += _CHUNK.size
            if name == b"data":
                if rate_hz is None:
                    raise UnplayableAudio("it states no format")
                self.rate_hz, self._head = rate_hz, b""
                return head[offset:]
            if name == b"fmt " and offset + _FORMAT.size <= len(head):
                kind, channels, rate_hz, _, _, bits = _FORMAT.unpack_from(head, offset)
                if kind not in (_PCM, _EXTENSIBLE) or channels != 1 or bits != 8 * SAMPLE_BYTES or not rate_hz:
                    raise UnplayableAudio(f"it has {channels} channels of {bits} bits")
            # RIFF: a chunk with an odd size is padded by a byte.
            offset += size + size % 2
        return b""
