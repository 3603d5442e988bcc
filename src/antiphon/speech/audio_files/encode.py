"""
Audio files that are sent while they are written: bytes that have left are never changed, so playback can start before
the rest is made.
"""

import io
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import soundfile

from antiphon.audio import streaming_wav_header
from antiphon.speech.audio_files.ffmpeg import AacEncoder

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

RATE_HZ = 24_000
"""Of the audio in all formats."""

AudioFileFormat = Literal["pcm", "wav", "flac", "mp3", "opus", "aac"]
"""The formats; `aac` needs PyAV."""


class AudioEncoder(Protocol):
    """
    A file being written.

    Attributes:
        is_passthrough: whether nothing is encoded, so that it takes no time.
    """

    is_passthrough: bool

    def encode(self, pcm: bytes) -> bytes:
        """Append s16le mono at `RATE_HZ`; the bytes that can be sent."""

    def finish(self) -> bytes:
        """The rest of the file."""


def open_encoder(file_format: AudioFileFormat) -> AudioEncoder:
    """A new file."""
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
            # A constant bit rate, so that the first frame has a known size.
            options = {"bitrate_mode": "CONSTANT", "compression_level": 0.5}
            return _SoundfileEncoder(drop_bytes=_MP3_FRAME_BYTES, format="MP3", subtype="MPEG_LAYER_III", **options)


_MP3_FRAME_BYTES = 240
"""
Size of a frame at 24 kHz and 80 kbit/s. The first holds the number of frames, unknown when it is sent, so it is
dropped.
"""


class _PassthroughEncoder:
    """PCM after a header."""

    is_passthrough = True

    def __init__(self, head: bytes) -> None:
        self._head = head

    def encode(self, pcm: bytes) -> bytes:
        head, self._head = self._head, b""
        return head + pcm

    def finish(self) -> bytes:
        return self.encode(b"")


class _SoundfileEncoder:
    """Encodes with libsndfile."""

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
    A file that only grows: writes over bytes that were drained are dropped. They are lengths, which may be missing.

    Args:
        drop_bytes: how many bytes at the beginning are not sent.
    """

    def __init__(self, drop_bytes: int) -> None:
        self._pending = bytearray()
        self._drop_bytes = drop_bytes
        self._size = self._position = 0

    def drain(self) -> bytes:
        """The bytes written since the last call."""
        drop = min(self._drop_bytes, len(self._pending))
        self._drop_bytes -= drop
        result = bytes(self._pending[drop:])
        self._pending.clear()
        return result

    def write(self, buffer: "ReadableBuffer") -> int:
        chunk = bytes(buffer)
        if self._position == self._size:
            self._pending += chunk
            self._size += len(chunk)
        self._position += len(chunk)
        return len(chunk)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True
