"""
The folder of presets and voices.

`<mode>/<id>.toml` is a preset, with its sounds beside it; `voices/<id>.wav` is a voice that was kept, with what is known of it in
`<id>.json`; `voices/default.*` is the voice of clients that bring none. Names come from requests, and what is in the folder from people:
only names that match a pattern are looked for, and only files that are not too large are read.
"""

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.audio import SAMPLE_BYTES, wav_file
from antiphon.errors import ClientError, ServerError

RATE_HZ = 16_000
VOICES = "voices"
DEFAULT = "default"

MAX_PRESETS = 256
"""In one mode; likewise of the voices that are kept."""

PRESET_LIMIT_BYTES = 64 << 10
AUDIO_LIMIT_BYTES = 10 << 20

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_AUDIO_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\.(wav|flac|mp3|ogg)")
_SUFFIXES = ("wav", "flac", "mp3", "ogg")


class PresetContent(Struct, forbid_unknown_fields=True):
    """A piece of what the model is told first: a text, or the name of a file of sound."""

    text: str | None = None
    audio: str | None = None


class Preset(Struct, kw_only=True, forbid_unknown_fields=True):
    """
    A preset, as its file has it.

    Attributes:
        ref_audio: the name of a file with the voice to speak with, beside the preset or among the voices.
    """

    name: str
    description: str = ""
    order: int = 999
    system_prompt: str | None = None
    system_content: list[PresetContent] = []
    ref_audio: str | None = None

    @property
    def audio_names(self) -> list[str]:
        """The files of sound in `system_content`, in their order."""
        return [each.audio for each in self.system_content if each.audio is not None]


class SavedVoice(Struct, kw_only=True):
    """A voice that was kept; `created_at` in Unix seconds."""

    id: str
    name: str
    duration_ms: int
    created_at: float


class PresetFolder:
    """
    Presets and voices in a folder, which need not exist. Everything here may take the time of a disk.

    Args:
        notice: takes a line for the operator about a preset that can't be read.
    """

    def __init__(self, path: Path, notice: Callable[[str], None] = lambda _line: None) -> None:
        self._path = path
        self._notice = notice

    # Presets

    def presets(self) -> dict[str, list[tuple[str, Preset]]]:
        """Ids and presets by mode, in their order; one that can't be read is left out."""
        modes = sorted(
            each.name for each in _list_files(self._path) if each.is_dir() and each.name != VOICES and _NAME.fullmatch(each.name)
        )
        found = {mode: sorted(self._load_presets(mode), key=lambda each: (each[1].order, each[0])) for mode in modes}
        return {mode: presets for mode, presets in found.items() if presets}

    def _load_presets(self, mode: str) -> Iterator[tuple[str, Preset]]:
        files = sorted(file for file in _list_files(self._path / mode) if file.suffix == ".toml" and _NAME.fullmatch(file.stem))
        for file in files[:MAX_PRESETS]:
            try:
                yield file.stem, _decode_preset(file)
            except (OSError, ValueError, ClientError) as error:
                self._notice(f"The preset {mode}/{file.name} can't be read: {error}")

    def preset(self, mode: str, preset_id: str) -> Preset:
        """
        One preset.

        Raises:
            ClientError: 404.
        """
        if mode != VOICES and _NAME.fullmatch(mode) and _NAME.fullmatch(preset_id):
            with contextlib.suppress(OSError, ValueError):
                return _decode_preset(self._path / mode / f"{preset_id}.toml")
        raise not_found(f"The preset '{mode}/{preset_id}'")

    def read_audio(self, mode: str, name: str) -> bytes:
        """
        A preset's file of sound: beside the preset, or else among the voices.

        Raises:
            ClientError: 404; or it is too large.
        """
        if _NAME.fullmatch(mode) and _AUDIO_NAME.fullmatch(name):
            for folder in (self._path / mode, self._path / VOICES):
                with contextlib.suppress(OSError):
                    return _read(folder / name, AUDIO_LIMIT_BYTES)
        raise not_found(f"The sound '{name}'")

    # Voices

    def default_voice(self) -> tuple[str, bytes]:
        """
        The name and the file of the voice of clients that bring none.

        Raises:
            ClientError: 404; there is none.
        """
        for suffix in _SUFFIXES:
            name = f"{DEFAULT}.{suffix}"
            with contextlib.suppress(OSError):
                return name, _read(self._path / VOICES / name, AUDIO_LIMIT_BYTES)
        raise not_found("A default voice")

    def voices(self) -> list[SavedVoice]:
        """Those that were kept, the oldest first."""
        found = []
        for file in _list_files(self._path / VOICES):
            if file.suffix == ".json" and _NAME.fullmatch(file.stem):
                with contextlib.suppress(OSError, ValueError, ClientError):
                    found.append(msgspec.json.decode(_read(file, PRESET_LIMIT_BYTES), type=SavedVoice))
        return sorted(found, key=lambda voice: (voice.created_at, voice.id))

    def voice(self, voice_id: str) -> tuple[SavedVoice, bytes]:
        """
        One that was kept, and its file.

        Raises:
            ClientError: 404.
        """
        if _NAME.fullmatch(voice_id):
            with contextlib.suppress(OSError, ValueError):
                told = msgspec.json.decode(_read(self._path / VOICES / f"{voice_id}.json", PRESET_LIMIT_BYTES), type=SavedVoice)
                return told, _read(self._path / VOICES / f"{voice_id}.wav", AUDIO_LIMIT_BYTES)
        raise not_found(f"The voice '{voice_id}'")

    def save_voice(self, voice_id: str, name: str, pcm: bytes) -> SavedVoice:
        """
        Keep a voice.

        Args:
            pcm: s16le mono at 16 kHz.

        Raises:
            ClientError: there are too many.
            ServerError: it can't be written.
        """
        if len(self.voices()) >= MAX_PRESETS:
            raise ClientError(f"There are {MAX_PRESETS} voices already, which is the limit.", code="too_many_voices", status=409)
        told = SavedVoice(id=voice_id, name=name, duration_ms=1000 * len(pcm) // (SAMPLE_BYTES * RATE_HZ), created_at=time.time())
        folder = self._path / VOICES
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _write(folder / f"{voice_id}.wav", wav_file(pcm, RATE_HZ))
            _write(folder / f"{voice_id}.json", msgspec.json.encode(told))
        except OSError as error:
            with contextlib.suppress(OSError):  # a sound of which nothing is known would be there for ever
                (folder / f"{voice_id}.wav").unlink()
            raise ServerError(f"The voice could not be written: {error.strerror}.") from error
        return told

    def delete_voice(self, voice_id: str) -> SavedVoice:
        """
        Keep a voice no longer.

        Raises:
            ClientError: 404.
        """
        told, _ = self.voice(voice_id)
        for suffix in ("json", "wav"):
            (self._path / VOICES / f"{voice_id}.{suffix}").unlink(missing_ok=True)
        return told


def not_found(what: str) -> ClientError:
    """There is no such thing."""
    return ClientError(f"{what} does not exist.", status=404, code="not_found")


def _list_files(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _decode_preset(file: Path) -> Preset:
    text = _read(file, PRESET_LIMIT_BYTES).decode()
    preset: Any = msgspec.toml.decode(text, type=Preset)
    names = [*preset.audio_names, *([preset.ref_audio] if preset.ref_audio else [])]
    if wrong := [name for name in names if not _AUDIO_NAME.fullmatch(name)]:
        raise ValueError(f"expected the name of a file of sound, such as 'anna.wav', and not {wrong[0]!r}")
    if any((each.text is None) is (each.audio is None) for each in preset.system_content):
        raise ValueError("each piece of 'system_content' has either 'text' or 'audio'")
    return preset  # type: ignore[no-any-return]  # msgspec says no more of what it reads than that


def _read(file: Path, limit_bytes: int) -> bytes:
    with file.open("rb") as opened:
        content = opened.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise ClientError(f"'{file.name}' is larger than {limit_bytes} bytes.", status=404, code="not_found")
    return content


def _write(file: Path, content: bytes) -> None:
    """Write a file so that it is there whole, or not at all."""
    handle, part = tempfile.mkstemp(dir=file.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(content)
        os.replace(part, file)
    except OSError:
        Path(part).unlink(missing_ok=True)
        raise
