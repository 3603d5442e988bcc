"""Transcripts of the audio in conversations, which is read again with each of their responses."""

import hashlib
from typing import NamedTuple

from antiphon.offload import offload

MAX_TRANSCRIPTS_BYTES = 16 << 20
"""What they may take in memory together; beyond it, those are forgotten that were not used for longest."""

_ENTRY_BYTES = 300
"""What one takes beside its text, about."""


class AudioKey(NamedTuple):
    """The audio of one tenant: an answer that comes at once must not show that another tenant has sent it before."""

    tenant: str
    sha256: bytes


async def audio_key(tenant: str, audio: str) -> AudioKey:
    """The key of audio in base64."""
    return AudioKey(tenant, await offload(len(audio), lambda: hashlib.sha256(audio.encode()).digest()))


class Transcripts:
    """What was said in audio, until the process ends."""

    def __init__(self, limit_bytes: int = MAX_TRANSCRIPTS_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._texts: dict[AudioKey, str] = {}  # in the order of their last use

    def find(self, key: AudioKey) -> str | None:
        """The transcript, if it is still known."""
        text = self._texts.pop(key, None)
        if text is not None:
            self._texts[key] = text
        return text

    def add(self, key: AudioKey, text: str) -> None:
        """Remember a transcript."""
        self._forget(key)
        self._texts[key] = text
        self._size_bytes += _size_bytes(text)
        while self._size_bytes > self._limit_bytes:
            self._forget(next(iter(self._texts)))

    def _forget(self, key: AudioKey) -> None:
        if (text := self._texts.pop(key, None)) is not None:
            self._size_bytes -= _size_bytes(text)


def _size_bytes(text: str) -> int:
    return len(text.encode()) + _ENTRY_BYTES
