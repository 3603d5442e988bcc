"""A WAV file as it comes over the network: its head is read as soon as it is there, and lengths that nobody knew yet are not believed."""

from struct import Struct as Format

from antiphon.audio import SAMPLE_BYTES

_CHUNK = Format("<4sI")
_FORMAT = Format("<HHIIHH")
_PCM, _EXTENSIBLE = 1, 0xFFFE
HEAD_LIMIT_BYTES = 1 << 16


class UnplayableAudio(ValueError):
    """It is no WAV file of 16 bits mono."""


class WavStream:
    """
    One file.

    Attributes:
        rate_hz: of its sound; None until its head is whole.
    """

    def __init__(self) -> None:
        self.rate_hz: int | None = None
        self._head = b""

    def feed(self, chunk: bytes) -> bytes:
        """
        The sound in more of the file.

        Raises:
            UnplayableAudio: it isn't what can be played.
        """
        if self.rate_hz is not None:
            return chunk
        self._head += chunk
        if not b"RIFF".startswith(self._head[:4]):
            raise UnplayableAudio("it is no WAV file")
        if len(self._head) > HEAD_LIMIT_BYTES:
            raise UnplayableAudio("its head has no end")
        return self._read_head()

    def _read_head(self) -> bytes:
        head, at, rate_hz = self._head, 12, None
        while at + _CHUNK.size <= len(head):
            name, size = _CHUNK.unpack_from(head, at)
            at += _CHUNK.size
            if name == b"data":
                if rate_hz is None:
                    raise UnplayableAudio("it says nothing of its form")
                self.rate_hz, self._head = rate_hz, b""
                return head[at:]
            if name == b"fmt " and at + _FORMAT.size <= len(head):
                kind, channels, rate_hz, _, _, bits = _FORMAT.unpack_from(head, at)
                if kind not in (_PCM, _EXTENSIBLE) or channels != 1 or bits != 8 * SAMPLE_BYTES or not rate_hz:
                    raise UnplayableAudio(f"it has {channels} channels of {bits} bits")
            at += size + size % 2
        return b""
