"""
Files of sound in the formats of phones and browsers: MP4 and M4A, WebM, and AAC as a stream. They take FFmpeg, which PyAV brings.

Files come from strangers: one is opened as what its first bytes say it is, as nothing else, and only its first track of sound is looked at.
A track may be of few encodings, and of rates, channels and frames that sound really has: a frame of 20 bytes can say that it lasts a day.
"""

import importlib.util
import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from antiphon.errors import ClientMistake
from antiphon.speech.base import HEARING_RATE_HZ

READS = ("m4a", "mp4", "webm", "aac")

_CODECS = {"aac", "mp3", "opus", "vorbis", "flac", "alac"}
_DECODERS = {*_CODECS, "mp3float", "libopus", "libvorbis"}
"""What FFmpeg may decode with, also while it finds out what is in a file; decoders of pictures are never begun with."""

_MOST_SAMPLES = 1 << 19
"""In a frame, of all its channels, as in the largest that FLAC has."""

_BIT_RATE = 64_000


def is_here() -> bool:
    """Whether what this takes is installed."""
    return importlib.util.find_spec("av") is not None


def kind_of(file: bytes) -> str | None:
    """What FFmpeg calls a file that begins like this one; None for one that is not for here."""
    if file[4:8] == b"ftyp":
        return "mp4"
    if file.startswith(b"\x1aE\xdf\xa3"):
        return "matroska"
    return "aac" if len(file) > 1 and file[0] == 0xFF and file[1] & 0xF6 == 0xF0 else None


def sound(file: bytes, kind: str, check: Callable[[int, int], None]) -> Iterator[bytes]:
    """
    The sound in a file, a frame at a time: s16le mono at `HEARING_RATE_HZ`.

    Args:
        check: raises a `ClientMistake` for a rate and a number of channels that sound may not have; asked of every frame.

    Raises:
        ClientMistake: there is none in it, or it can't be read.
    """
    import av  # noqa: PLC0415 - 60 MB of native code, and an extra

    try:
        only = {"codec_whitelist": ",".join(sorted(_DECODERS))}
        with av.open(io.BytesIO(file), "r", format=kind, options=only, metadata_errors="replace") as container:
            tracks = container.streams.audio
            decoder = tracks[0].codec_context if tracks else None
            if decoder is None or decoder.codec.canonical_name not in _CODECS:
                raise _broken()
            decoder.options = {"max_samples": str(_MOST_SAMPLES)}
            resampler = av.AudioResampler(format="s16", layout="mono", rate=HEARING_RATE_HZ)
            for frame in container.decode(tracks[0]):
                check(frame.sample_rate, frame.layout.nb_channels)
                yield from _pcm(resampler, frame)
            yield from _pcm(resampler, None)
    except (av.FFmpegError, OSError, ValueError):
        raise _broken() from None


def _pcm(resampler: Any, frame: Any) -> Iterator[bytes]:
    for made in resampler.resample(frame):
        yield bytes(made.planes[0])[: made.samples * 2]


def _broken() -> ClientMistake:
    return ClientMistake("Audio file might be corrupted or unsupported.", code="invalid_value", param="file")


class AacFile:
    """
    AAC under way, in frames that each say what they are (ADTS).

    Args:
        rate_hz: of the sound, s16le mono.
    """

    is_bare = False

    def __init__(self, rate_hz: int) -> None:
        import av  # noqa: PLC0415 - as above

        self._out = io.BytesIO()
        self._container = av.open(self._out, "w", format="adts")
        self._stream = self._container.add_stream("aac", rate=rate_hz, layout="mono", bit_rate=_BIT_RATE)
        self._resampler = av.AudioResampler(format="fltp", layout="mono", rate=rate_hz)
        self._waiting = av.AudioFifo()
        self._rate_hz = rate_hz
        self._new_frame = av.AudioFrame.from_ndarray

    def take(self, pcm: bytes) -> bytes:
        """What can be sent once `pcm` is in it."""
        if pcm:
            frame = self._new_frame(np.frombuffer(pcm, "<i2").reshape(1, -1), format="s16", layout="mono")
            frame.sample_rate = self._rate_hz
            for made in self._resampler.resample(frame):
                self._waiting.write(made)
        self._encode(is_last=False)
        return self._taken()

    def finish(self) -> bytes:
        """The rest."""
        self._encode(is_last=True)
        for packet in self._stream.encode(None):
            self._container.mux(packet)
        self._container.close()
        return self._taken()

    def _encode(self, *, is_last: bool) -> None:
        size = self._stream.codec_context.frame_size
        while (frame := self._waiting.read(size, partial=is_last)) is not None:
            for packet in self._stream.encode(frame):
                self._container.mux(packet)

    def _taken(self) -> bytes:
        taken = self._out.getvalue()
        self._out.seek(0)
        self._out.truncate()
        return taken
