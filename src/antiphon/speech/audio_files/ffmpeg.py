"""
Audio files of phones and browsers: MP4 and M4A, WebM, and AAC streams, by FFmpeg through PyAV.

Files are untrusted: a file is opened only as the format that its first bytes show, and only its first audio track is
read. Codecs, rates, channels and frame sizes are limited: a frame of 20 bytes can claim to last a day.
"""

import importlib.util
import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from antiphon.errors import ClientError
from antiphon.speech.base import INPUT_RATE_HZ

if TYPE_CHECKING:
    import av

FORMATS = ("m4a", "mp4", "webm", "aac")

_CODECS = {"aac", "mp3", "opus", "vorbis", "flac", "alac"}
_DECODERS = {*_CODECS, "mp3float", "libopus", "libvorbis"}
"""The decoders FFmpeg may use, also while it probes a file; decoders of images never run."""

_MAX_FRAME_SAMPLES = 1 << 19
"""Per frame, of all channels, as in the largest FLAC frame."""

_BIT_RATE = 64_000


def is_available() -> bool:
    """Whether PyAV is installed."""
    return importlib.util.find_spec("av") is not None


def detect_format(file: bytes) -> str | None:
    """FFmpeg's name for the format of a file, from its first bytes; None for a format that is not supported here."""
    if file[4:8] == b"ftyp":  # ISO/IEC 14496-12, 4.3
        return "mp4"
    if file.startswith(b"\x1aE\xdf\xa3"):  # the EBML header: RFC 8794, 11.2.1
        return "matroska"
    # ADTS: twelve bits set, and the two of `layer` not, which tells it from MP3 (ISO/IEC 13818-7, 6.2).
    return "aac" if len(file) > 1 and file[0] == 0xFF and file[1] & 0xF6 == 0xF0 else None


def decode(file: bytes, file_format: str, check_format: Callable[[int, int], None]) -> Iterator[bytes]:
    """
    The audio in a file, frame by frame: s16le mono at `INPUT_RATE_HZ`.

    Args:
        check_format: called for every frame with its rate and channels; raises a `ClientError` to refuse them.

    Raises:
        ClientError: it has no audio, or can't be read.
    """
    import av  # noqa: PLC0415 - 60 MB of native code, and an extra

    try:
        options = {"codec_whitelist": ",".join(sorted(_DECODERS))}
        with av.open(io.BytesIO(file), "r", format=file_format, options=options, metadata_errors="replace") as container:
            tracks = container.streams.audio
            decoder = tracks[0].codec_context if tracks else None
            if decoder is None or decoder.codec.canonical_name not in _CODECS:
                raise _corrupt_file_error()
            decoder.options = {"max_samples": str(_MAX_FRAME_SAMPLES)}
            resampler = av.AudioResampler(format="s16", layout="mono", rate=INPUT_RATE_HZ)
            for frame in container.decode(tracks[0]):
                check_format(frame.sample_rate, frame.layout.nb_channels)
                yield from _pcm(resampler, frame)
            yield from _pcm(resampler, None)
    except (av.FFmpegError, OSError, ValueError):
        raise _corrupt_file_error() from None


def _pcm(resampler: "av.AudioResampler", frame: "av.AudioFrame | None") -> Iterator[bytes]:
    for output in resampler.resample(frame):
        yield bytes(output.planes[0])[: output.samples * 2]


def _corrupt_file_error() -> ClientError:
    return ClientError("Audio file might be corrupted or unsupported.", code="invalid_value", param="file")


class AacEncoder:
    """
    An AAC file being written, as an ADTS stream.

    Args:
        rate_hz: of the audio, s16le mono.
    """

    is_passthrough = False

    def __init__(self, rate_hz: int) -> None:
        import av  # noqa: PLC0415 - as above

        self._out = io.BytesIO()
        self._container = av.open(self._out, "w", format="adts")
        self._stream = self._container.add_stream("aac", rate=rate_hz, layout="mono", bit_rate=_BIT_RATE)
        self._resampler = av.AudioResampler(format="fltp", layout="mono", rate=rate_hz)
        self._fifo = av.AudioFifo()
        self._rate_hz = rate_hz
        self._new_frame = av.AudioFrame.from_ndarray

    def encode(self, pcm: bytes) -> bytes:
        if pcm:
            frame = self._new_frame(np.frombuffer(pcm, "<i2").reshape(1, -1), format="s16", layout="mono")
            frame.sample_rate = self._rate_hz
            for output in self._resampler.resample(frame):
                self._fifo.write(output)
        self._encode_frames(is_last=False)
        return self._drain()

    def finish(self) -> bytes:
        self._encode_frames(is_last=True)
        for packet in self._stream.encode(None):
            self._container.mux(packet)
        self._container.close()
        return self._drain()

    def _encode_frames(self, *, is_last: bool) -> None:
        size = self._stream.codec_context.frame_size
        while (frame := self._fifo.read(size, partial=is_last)) is not None:
            for packet in self._stream.encode(frame):
                self._container.mux(packet)

    def _drain(self) -> bytes:
        result = self._out.getvalue()
        self._out.seek(0)
        self._out.truncate()
        return result
