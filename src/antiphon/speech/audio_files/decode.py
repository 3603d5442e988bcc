"""
Reads audio files for transcription: WAV, FLAC, MP3 and Ogg, and with PyAV those of `ffmpeg`, at any rate and depth,
with their channels mixed into one.

Files are untrusted: the format is told by the first bytes, never by the name; the stated length is ignored, and at most
two hours are read, a chunk at a time.
"""

import io
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from functools import partial

import numpy as np
import numpy.typing as npt
import soundfile

from antiphon.errors import ClientError, quote_list
from antiphon.speech.audio_files import ffmpeg
from antiphon.speech.audio_files.encode import RATE_HZ, AudioEncoder, AudioFileFormat, open_encoder
from antiphon.speech.base import INPUT_RATE_HZ
from antiphon.speech.dsp.resample import Resampler
from antiphon.speech.threads import BoundedThreadPool

MAX_DURATION_S = 2 * 60 * 60
MIN_DURATION_S = 0.1

FORMATS = ("wav", "flac", "mp3", "ogg")

_MIN_RATE_HZ, _MAX_RATE_HZ = 4_000, 384_000
_MAX_CHANNELS = 32
_BLOCK_VALUES = 1 << 20
"""Samples of all channels per block; some ten seconds of music."""

_CHUNK_BYTES = 10 * INPUT_RATE_HZ * 2

_UNKNOWN_LENGTH = b"data" + bytes(4)
"""
Where the sound of a WAV file begins, as programs write it that don't know how much there will be and can't come back to
say it.
"""

_HEAD_BYTES = 4096

_CONTAINERS = {"WAV": "wav", "WAVEX": "wav", "FLAC": "flac", "MP3": "mp3", "OGG": "ogg"}
_ENCODINGS = {
    *("PCM_U8", "PCM_S8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"),
    *("MPEG_LAYER_I", "MPEG_LAYER_II", "MPEG_LAYER_III", "VORBIS", "OPUS"),
}
"""The encodings in use; libsndfile knows many more."""


class AudioFileReader:
    """
    Reads a file from its beginning.

    Args:
        max_duration_s: longer files are refused.

    Raises:
        ClientError: the format is not supported.
    """

    def __init__(self, file: bytes, max_duration_s: int = MAX_DURATION_S) -> None:
        self._max_duration_s = max_duration_s
        self._remaining_bytes = max_duration_s * INPUT_RATE_HZ * 2
        kind = ffmpeg.detect_format(file) if ffmpeg.is_available() else None
        self._chunks = _decode(_open(file)) if kind is None else ffmpeg.decode(file, kind, _check_format)

    def read(self) -> bytes:
        """
        The next chunk, s16le at `INPUT_RATE_HZ`; empty at the end.

        Raises:
            ClientError: the file is too long, or can't be read to its end.
        """
        piece = bytearray()
        for pcm in self._chunks:
            self._remaining_bytes -= len(pcm)
            if self._remaining_bytes < 0:
                raise ClientError(
                    f"The audio file is longer than {self._max_duration_s} seconds, which is the maximum.",
                    code="audio_too_long",
                    param="file",
                )
            piece += pcm
            if len(piece) >= _CHUNK_BYTES:
                break
        return bytes(piece)


def _open(file: bytes) -> soundfile.SoundFile:
    if not _is_known_format(file):
        raise _unsupported_format_error()
    try:
        audio_file = soundfile.SoundFile(io.BytesIO(_repair_length(file)))
    except soundfile.LibsndfileError:
        raise _corrupt_file_error() from None
    if audio_file.format not in _CONTAINERS or audio_file.subtype not in _ENCODINGS:
        raise _unsupported_format_error()
    _check_format(audio_file.samplerate, audio_file.channels)
    return audio_file


def _repair_length(file: bytes) -> bytes:
    """A file that says how much sound is in it; one that doesn't has what follows."""
    at = file.find(_UNKNOWN_LENGTH, 0, _HEAD_BYTES) if file.startswith(b"RIFF") else -1
    # libsndfile takes a length of 0 for no sound, and the greatest one for all that follows.
    return file if at < 0 else file[: at + 4] + b"\xff" * 4 + file[at + 8 :]


def _check_format(rate_hz: int, channels: int) -> None:
    if not _MIN_RATE_HZ <= rate_hz <= _MAX_RATE_HZ or channels > _MAX_CHANNELS:
        raise ClientError(
            f"The audio file has {channels} channels of {rate_hz} samples a second. It may have up to {_MAX_CHANNELS} "
            f"channels of {_MIN_RATE_HZ} to {_MAX_RATE_HZ}.",
            code="invalid_value",
            param="file",
        )


def _decode(file: soundfile.SoundFile) -> Iterator[bytes]:
    resampler = Resampler(file.samplerate, INPUT_RATE_HZ)
    values = np.empty((_BLOCK_VALUES // file.channels, file.channels), np.float32)
    is_last = False
    while not is_last:
        frames = _read_block(file, values)
        is_last = len(frames) < len(values)
        # Casting NaN to an integer is undefined.
        mono = np.nan_to_num(frames.mean(axis=1), nan=0.0, posinf=1.0, neginf=-1.0)
        yield resampler.process((np.clip(mono, -1, 1) * 32_767).astype("<i2").tobytes())
    yield resampler.flush()


def _read_block(file: soundfile.SoundFile, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The next samples of all channels; fewer than fit are the last."""
    # Shows what was read, where libsndfile itself does not say it.
    values.fill(np.nan)
    try:
        count = len(file.read(out=values))
    except soundfile.LibsndfileError:
        # Without a stated length libsndfile fails to seek at the end, though it has read all samples.
        count = int(np.count_nonzero(~np.isnan(values[:, 0])))
    return values[:count]


class AudioFiles:
    """Decodes and encodes audio files in threads."""

    def __init__(self, max_workers: int = 2, max_pending: int = 64) -> None:
        self._threads = BoundedThreadPool("antiphon-recording", max_workers, max_pending)

    async def stop(self) -> None:
        """Stop all work; idempotent."""
        await self._threads.stop()

    async def decode(self, file: bytes) -> AsyncIterator[bytes]:
        """
        The audio in a file, in chunks: s16le mono at `INPUT_RATE_HZ`.

        Raises:
            ApiError: a `ClientError` where the file can't be read, is too long or too short; or too much is read
                already.
        """
        recording = await self._threads.run(partial(AudioFileReader, file))
        size_bytes = 0
        while pcm := await self._threads.run(recording.read):
            size_bytes += len(pcm)
            yield pcm
        if size_bytes < MIN_DURATION_S * INPUT_RATE_HZ * 2:
            raise ClientError(
                f"Audio file is too short. Minimum audio length is {MIN_DURATION_S} seconds.", code="audio_too_short", param="file"
            )

    async def encode(self, audio: AsyncGenerator[bytes, None], rate_hz: int, file_format: AudioFileFormat) -> AsyncGenerator[bytes, None]:
        """
        Audio as a file, in chunks that can be sent while the rest is made.

        Args:
            audio: s16le mono at `rate_hz`; closed with the file.
        """
        encoder, resampler = open_encoder(file_format), Resampler(rate_hz, RATE_HZ, live=True)
        async with aclosing(audio) as pieces:
            async for pcm in pieces:
                yield await self._append(encoder, resampler.process(pcm))
        yield await self._append(encoder, resampler.flush())
        yield await self._threads.run(encoder.finish)

    async def _append(self, encoder: AudioEncoder, pcm: bytes) -> bytes:
        if not pcm:
            return b""
        return encoder.encode(pcm) if encoder.is_passthrough else await self._threads.run(partial(encoder.encode, pcm))


def _is_known_format(file: bytes) -> bool:
    head = file[:12]
    is_mpeg = len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0
    return head.startswith((b"fLaC", b"OggS", b"ID3")) or (head[:4], head[8:]) == (b"RIFF", b"WAVE") or is_mpeg


def _unsupported_format_error() -> ClientError:
    reads = (*FORMATS, *(ffmpeg.FORMATS if ffmpeg.is_available() else ()))
    return ClientError(f"Invalid file format. Supported formats: {quote_list(reads)}.", code="invalid_value", param="file")


def _corrupt_file_error() -> ClientError:
    return ClientError("Audio file might be corrupted or unsupported.", code="invalid_value", param="file")
