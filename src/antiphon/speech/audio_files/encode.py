"""
Files of sound, written as they are sent: what has left is never touched again, so that the first of it can be heard
while the rest is made.
"""

import io
from typing import Any, Literal, Protocol

import numpy as np
import soundfile

from antiphon.audio import streaming_wav_header
from antiphon.speech.audio_files.ffmpeg import AacEncoder

RATE_HZ = 24_000
"""Of the sound in all of them."""

AudioFileFormat = Literal["pcm", "wav", "flac", "mp3", "opus", "aac"]

MEDIA_TYPES: dict[AudioFileFormat, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "aac": "audio/aac",
}
"""What can be written, and its media type; `aac` where PyAV is installed."""


class AudioEncoder(Protocol):
    """
    A file under way.

    Attributes:
        is_bare: whether there is nothing to encode, so that it takes no time.
    """

    is_passthrough: bool

    def encode(self, pcm: bytes) -> bytes:
        """What can be sent once this sound, s16le mono at `RATE_HZ`, is in it."""

    def finish(self) -> bytes:
        """The rest."""


def open_encoder(file_format: AudioFileFormat) -> AudioEncoder:
    """An empty file of that kind."""
    match file_format:
        case "pcm":
            return _PassthroughEncoder(b"")
        case "wav":
            return _PassthroughEncoder(streaming_wav_header(RATE_HZ))
        case "flac":
            return _SoundfileEncoder(format="FLAC", subtype="PCM_16")
        case "opus":
            return _SoundfileEncoder(format="OGG", subtype="OPUS")
        case "aac":
            return AacEncoder(RATE_HZ)
        case "mp3":
            constant = {"bitrate_mode": "CONSTANT", "compression_level": 0.5}
            return _SoundfileEncoder(drop_bytes=_MP3_FRAME_BYTES, format="MP3", subtype="MPEG_LAYER_III", **constant)


_MP3_FRAME_BYTES = 240
"""Of a frame at 24 kHz and 80 kbit/s. The first one holds a place for the number of frames, which is not known when it leaves."""


class _PassthroughEncoder:
    """Sound as it is, behind a head."""

    is_passthrough = True

    def __init__(self, head: bytes) -> None:
        self._head = head

    def encode(self, pcm: bytes) -> bytes:
        head, self._head = self._head, b""
        return head + pcm

    def finish(self) -> bytes:
        return self.encode(b"")


class _SoundfileEncoder:
    """Sound as libsndfile encodes it."""

    is_passthrough = False

    def __init__(self, *, drop_bytes: int = 0, **options: Any) -> None:
        self._out = _AppendOnlyFile(drop_bytes)
        self._file = soundfile.SoundFile(self._out, "w", RATE_HZ, 1, **options)

    def encode(self, pcm: bytes) -> bytes:
        self._file.write(np.frombuffer(pcm, "<i2"))
        return self._out.drain()

    def finish(self) -> bytes:
        self._file.close()
        return self._out.drain()


class _AppendOnlyFile(io.RawIOBase):
    """
    A file that can be written only at its end: what is written over what has left is dropped. That is lengths, which
    may be missing.

    Args:
        drop_bytes: at the beginning, which nobody is sent.
    """

    def __init__(self, drop_bytes: int) -> None:
        self._pending = bytearray()
        self._drop_bytes = drop_bytes
        self._size = self._position = 0

    def drain(self) -> bytes:
        """What was written since the last time."""
        dropped = min(self._drop_bytes, len(self._pending))
        self._drop_bytes -= dropped
        taken = bytes(self._pending[dropped:])
        self._pending.clear()
        return taken

    def write(self, piece: Any) -> int:
        written = bytes(piece)
        if self._position == self._size:
            self._pending += written
            self._size += len(written)
        self._position += len(written)
        return len(written)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True
