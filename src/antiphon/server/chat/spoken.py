"""The audio of a spoken answer that is sent whole: bare samples to a file in the format that the client wants."""

import importlib.util
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from antiphon.audio import wav_file
from antiphon.errors import unsupported_value
from antiphon.offload import offload
from antiphon.protocols.chat.request import AUDIO_RATE_HZ
from antiphon.wire.chat.request import ChatRequest
from antiphon.wire.chat.response import ChatCompletion

if TYPE_CHECKING:
    from antiphon.speech.audio_files.decode import AudioFiles
    from antiphon.speech.audio_files.encode import AudioFileFormat

FILE_FORMATS: dict[str, "AudioFileFormat"] = {"mp3": "mp3", "opus": "opus", "flac": "flac", "aac": "aac"}
"""Formats that are encoded; `aac` needs PyAV."""

_PIECE_BYTES = 480_000
"""How much is encoded at once: ten seconds of 16-bit samples at 24 kHz."""


def check_audio_format(request: ChatRequest) -> None:
    """
    Check that the format of a spoken answer can be written.

    Raises:
        ClientError: it needs what is not installed.
    """
    if not request.is_spoken or not request.audio:
        return
    formats = ["wav", "pcm16", *(each for each in FILE_FORMATS if each != "aac" or importlib.util.find_spec("av"))]
    if request.audio.format not in formats:
        raise unsupported_value("audio.format", request.audio.format, None, formats)


async def encode_audio(completion: ChatCompletion, audio_format: str, files: "AudioFiles") -> int:
    """Replace the samples of each spoken choice by a file; returns the size of all files, in bytes."""
    size_bytes = 0
    for choice in completion.choices:
        if audio := choice.message.audio:
            audio.data = await _file(audio.data, audio_format, files)
            size_bytes += len(audio.data)
    return size_bytes


async def _file(pcm: bytes, audio_format: str, files: "AudioFiles") -> bytes:
    if audio_format == "wav":
        return await offload(len(pcm), wav_file, pcm, AUDIO_RATE_HZ)
    if (file_format := FILE_FORMATS.get(audio_format)) is None:
        return pcm
    return b"".join([piece async for piece in files.encode(_pieces(pcm), AUDIO_RATE_HZ, file_format)])


async def _pieces(pcm: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(pcm), _PIECE_BYTES):
        yield pcm[start : start + _PIECE_BYTES]
