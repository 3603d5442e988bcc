"""
The folder of presets and voices.

`<mode>/<id>.toml` is a preset, with its audio files beside it; `voices/<id>.wav` is a saved voice, described in
`<id>.json`; `voices/default.*` is the voice for clients that send none. Names come from requests and files from people:
only names that match a pattern are looked up, and only files below a size limit are read.
"""

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from antiphon.audio import SAMPLE_BYTES, wav_file
from antiphon.errors import ClientError, ServerError, not_found

RATE_HZ = 16_000
VOICES = "voices"
DEFAULT = "default"

MAX_PRESETS = 256
"""The most presets of a mode, and the most saved voices."""

PRESET_LIMIT_BYTES = 64 << 10
AUDIO_LIMIT_BYTES = 10 << 20

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_AUDIO_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\.(wav|flac|mp3|ogg)")
_SUFFIXES = ("wav", "flac", "mp3", "ogg")


class PresetContent(Struct, forbid_unknown_fields=True):
    """One part of the system prompt: a text, or the name of an audio file."""

    text: str | None = None
    audio: str | None = None


class Preset(Struct, kw_only=True, forbid_unknown_fields=True):
    """
    A preset, with the fields of its file.

    Attributes:
        order: lower ones are listed first.
        ref_audio: the name of an audio file with the voice to speak with, beside the preset or among the voices.
    """

    name: str
    description: str = ""
    order: int = 999
    system_prompt: str | None = None
    system_content: list[PresetContent] = []
    ref_audio: str | None = None

    @property
    def audio_names(self) -> list[str]:
        """The audio files in `system_content`, in order."""
        return [each.audio for each in self.system_content if each.audio is not None]


class SavedVoice(Struct, kw_only=True):
    """A saved voice; `created_at` in Unix seconds."""

    id: str
    name: str
    duration_ms: int
    created_at: float


class AudioVersion(Struct, frozen=True):
    """A file as it is now: a change of it changes its time, in nanoseconds, or its size."""

    path: Path
    changed_at_ns: int
    size_bytes: int


class PresetFolder:
    """
    Presets and voices in a folder, which need not exist. Every method may block on the disk.

    Args:
        notice: takes a line for the operator about each preset that can't be read.
    """

    def __init__(self, path: Path, notice: Callable[[str], None] = lambda _line: None) -> None:
        self._path = path
        self._notice = notice

    # Presets

    def presets(self) -> dict[str, list[tuple[str, Preset]]]:
        """Ids and presets by mode, in order; unreadable ones are left out."""
        modes = sorted(
            each.name for each in _list_files(self._path) if each.is_dir() and each.name != VOICES and _NAME.fullmatch(each.name)
        )
        presets_by_mode = {mode: sorted(self._load_presets(mode), key=lambda each: (each[1].order, each[0])) for mode in modes}
        return {mode: presets for mode, presets in presets_by_mode.items() if presets}

    def _load_presets(self, mode: str) -> Iterator[tuple[str, Preset]]:
        files = sorted(file for file in _list_files(self._path / mode) if file.suffix == ".toml" and _NAME.fullmatch(file.stem))
        for file in files[:MAX_PRESETS]:
            try:
                yield file.stem, _decode_preset(file)
            except (OSError, ValueError, ClientError) as error:
                self._notice(f"The preset {mode}/{file.name} can't be read: {error}")

    def preset(self, mode: str, preset_id: str) -> Preset:
        """
        Load a preset.

        Raises:
            ClientError: 404.
        """
        if mode != VOICES and _NAME.fullmatch(mode) and _NAME.fullmatch(preset_id):
            with contextlib.suppress(OSError, ValueError):
                return _decode_preset(self._path / mode / f"{preset_id}.toml")
        raise not_found(f"The preset '{mode}/{preset_id}'")

    def read_audio(self, mode: str, name: str) -> bytes:
        """
        Read a preset's audio file: beside the preset, or else among the voices.

        Raises:
            ClientError: 404; there is none, or it is too large.
        """
        for path in self._audio_paths(mode, name):
            with contextlib.suppress(OSError):
                return _read(path, AUDIO_LIMIT_BYTES)
        raise not_found(f"The audio file '{name}'")

    def audio_version(self, mode: str, name: str) -> AudioVersion | None:
        """The file that `read_audio` reads, or None; while it stays equal, so does the file's content."""
        for path in self._audio_paths(mode, name):
            with contextlib.suppress(OSError):
                status = path.stat()
                return AudioVersion(path, status.st_mtime_ns, status.st_size)
        return None

    def _audio_paths(self, mode: str, name: str) -> Sequence[Path]:
        is_name = _NAME.fullmatch(mode) and _AUDIO_NAME.fullmatch(name)
        return [self._path / mode / name, self._path / VOICES / name] if is_name else []

    # Voices

    def default_voice(self) -> tuple[str, bytes]:
        """
        The file name and content of the voice for clients that send none.

        Raises:
            ClientError: 404; there is none.
        """
        for suffix in _SUFFIXES:
            name = f"{DEFAULT}.{suffix}"
            with contextlib.suppress(OSError):
                return name, _read(self._path / VOICES / name, AUDIO_LIMIT_BYTES)
        raise not_found("A default voice")

    def voices(self) -> list[SavedVoice]:
        """The saved voices, oldest first."""
        voices = []
        for file in _list_files(self._path / VOICES):
            if file.suffix == ".json" and _NAME.fullmatch(file.stem):
                with contextlib.suppress(OSError, ValueError, ClientError):
                    voices.append(msgspec.json.decode(_read(file, PRESET_LIMIT_BYTES), type=SavedVoice))
        return sorted(voices, key=lambda voice: (voice.created_at, voice.id))

    def voice(self, voice_id: str) -> tuple[SavedVoice, bytes]:
        """
        A saved voice and its WAV file.

        Raises:
            ClientError: 404.
        """
        if _NAME.fullmatch(voice_id):
            with contextlib.suppress(OSError, ValueError):
                voice = msgspec.json.decode(_read(self._path / VOICES / f"{voice_id}.json", PRESET_LIMIT_BYTES), type=SavedVoice)
                return voice, _read(self._path / VOICES / f"{voice_id}.wav", AUDIO_LIMIT_BYTES)
        raise not_found(f"The voice '{voice_id}'")

    def save_voice(self, voice_id: str, name: str, pcm: bytes) -> SavedVoice:
        """
        Save a voice.

        Args:
            pcm: s16le mono at 16 kHz.

        Raises:
            ClientError: there are too many.
            ServerError: it can't be written.
        """
        if len(self.voices()) >= MAX_PRESETS:
            raise ClientError(f"The limit of {MAX_PRESETS} saved voices is reached.", code="too_many_voices", status=409)
        voice = SavedVoice(id=voice_id, name=name, duration_ms=1000 * len(pcm) // (SAMPLE_BYTES * RATE_HZ), created_at=time.time())
        folder = self._path / VOICES
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _write(folder / f"{voice_id}.wav", wav_file(pcm, RATE_HZ))
            # Last, as a voice is listed by its description.
            _write(folder / f"{voice_id}.json", msgspec.json.encode(voice))
        except OSError as error:
            with contextlib.suppress(OSError):  # without its description it would never be listed, nor deleted
                (folder / f"{voice_id}.wav").unlink()
            raise ServerError(f"The voice could not be written: {error.strerror}.") from error
        return voice

    def delete_voice(self, voice_id: str) -> SavedVoice:
        """
        Delete a saved voice and return its description.

        Raises:
            ClientError: 404.
        """
        voice, _ = self.voice(voice_id)
        # The description first, as a voice is listed by it.
        for suffix in ("json", "wav"):
            (self._path / VOICES / f"{voice_id}.{suffix}").unlink(missing_ok=True)
        return voice


def _list_files(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _decode_preset(file: Path) -> Preset:
    text = _read(file, PRESET_LIMIT_BYTES).decode()
    preset = msgspec.toml.decode(text, type=Preset)
    names = [*preset.audio_names, *([preset.ref_audio] if preset.ref_audio else [])]
    if bad_names := [name for name in names if not _AUDIO_NAME.fullmatch(name)]:
        raise ValueError(f"expected the name of an audio file, such as 'anna.wav', but got {bad_names[0]!r}")
    if any((each.text is None) is (each.audio is None) for each in preset.system_content):
        raise ValueError("each part of 'system_content' needs either 'text' or 'audio'")
    return preset


def _read(file: Path, limit_bytes: int) -> bytes:
    with file.open("rb") as stream:
        content = stream.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise ClientError(f"'{file.name}' is larger than {limit_bytes} bytes.", status=404, code="not_found")
    return content


def _write(file: Path, content: bytes) -> None:
    """Write a file atomically."""
    handle, part = tempfile.mkstemp(dir=file.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.replace(part, file)
    except OSError:
        Path(part).unlink(missing_ok=True)
        raise
