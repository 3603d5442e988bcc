"""
Files of sound, written as they are sent: what has left is never touched again, so that the first of it can be heard while the rest is made.
"""

import io
from typing import Any, Literal, Protocol

import numpy as np
import soundfile

from antiphon.audio import endless_wav_head
from antiphon.speech.audio_files.ffmpeg import AacFile

RATE_HZ = 24_000
"""Of the sound in all of them."""

Kind = Literal["pcm", "wav", "flac", "mp3", "opus", "aac"]

TYPES: dict[Kind, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "aac": "audio/aac",
}
"""What can be written, and its media type; `aac` where PyAV is installed."""


class SoundFile(Protocol):
    """
    A file under way.

    Attributes:
        is_bare: whether there is nothing to encode, so that it takes no time.
    """

    is_bare: bool

    def take(self, pcm: bytes) -> bytes:
        """What can be sent once this sound, s16le mono at `RATE_HZ`, is in it."""

    def finish(self) -> bytes:
        """The rest."""


def opened(kind: Kind) -> SoundFile:
    """An empty file of that kind."""
    match kind:
        case "pcm":
            return _Bare(b"")
        case "wav":
            return _Bare(endless_wav_head(RATE_HZ))
        case "flac":
            return _Encoded(format="FLAC", subtype="PCM_16")
        case "opus":
            return _Encoded(format="OGG", subtype="OPUS")
        case "aac":
            return AacFile(RATE_HZ)
        case "mp3":
            constant = {"bitrate_mode": "CONSTANT", "compression_level": 0.5}
            return _Encoded(drop_bytes=_MP3_FRAME_BYTES, format="MP3", subtype="MPEG_LAYER_III", **constant)


_MP3_FRAME_BYTES = 240
"""Of a frame at 24 kHz and 80 kbit/s. The first one holds a place for the number of frames, which is not known when it leaves."""


class _Bare:
    """Sound as it is, behind a head."""

    is_bare = True

    def __init__(self, head: bytes) -> None:
        self._head = head

    def take(self, pcm: bytes) -> bytes:
        head, self._head = self._head, b""
        return head + pcm

    def finish(self) -> bytes:
        return self.take(b"")


class _Encoded:
    """Sound as libsndfile encodes it."""

    is_bare = False

    def __init__(self, *, drop_bytes: int = 0, **options: Any) -> None:
        self._out = _Sent(drop_bytes)
        self._file = soundfile.SoundFile(self._out, "w", RATE_HZ, 1, **options)

    def take(self, pcm: bytes) -> bytes:
        self._file.write(np.frombuffer(pcm, "<i2"))
        return self._out.taken()

    def finish(self) -> bytes:
        self._file.close()
        return self._out.taken()


class _Sent(io.RawIOBase):
    """
    A file that can be written only at its end: what is written over what has left is dropped. That is lengths, which may be missing.

    Args:
        drop_bytes: at the beginning, which nobody is sent.
    """

    def __init__(self, drop_bytes: int) -> None:
        self._new = bytearray()
        self._drop_bytes = drop_bytes
        self._size = self._at = 0

    def taken(self) -> bytes:
        """What was written since the last time."""
        dropped = min(self._drop_bytes, len(self._new))
        self._drop_bytes -= dropped
        taken = bytes(self._new[dropped:])
        self._new.clear()
        return taken

    def write(self, piece: Any) -> int:
        written = bytes(piece)
        if self._at == self._size:
            self._new += written
            self._size += len(written)
        self._at += len(written)
        return len(written)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True
