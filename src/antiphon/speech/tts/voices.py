"""
The voices that antiphon speaks with itself, each in a process of its own.

Kokoro's are slower than Piper's and nicer to hear: one model, and a small file for each voice. Piper's are quick and in
many languages: each is a pair of files, `NAME.onnx` and `NAME.onnx.json`.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from antiphon.errors import ServerError, quote_list
from antiphon.speech.tts.process import ProcessSynthesizer, VoiceLimits

KOKORO_PROGRAM = ("-m", "antiphon.speech.tts.kokoro_child")
KOKORO_RATE_HZ = 24_000
KOKORO_DEFAULT_VOICE = "af_heart"
"""The default voice, where its file is there."""

KOKORO_LANGUAGES = "abefhip"
"""
First letters of the names of voices whose language has a phonemizer here: the keys of `kokoro_child.LANGUAGES`, which
the server doesn't import because it needs onnxruntime.
"""

PIPER_PROGRAM = ("-m", "antiphon.speech.tts.piper_child")


class _PiperAudio(Struct):
    sample_rate: int


class _PiperSettings(Struct):
    audio: _PiperAudio


def kokoro_synthesizer(
    folder: Path,
    *,
    aliases: Mapping[str, str] | None = None,
    limits: VoiceLimits | None = None,
    notice: Callable[[str], None] = lambda _line: None,
) -> ProcessSynthesizer:
    """
    A synthesizer with the Kokoro model in the folder, and every voice in the folder and the folders below it.

    Raises:
        ServerError: there is no model or no voice.
    """
    models = sorted(folder.glob("*.onnx"))
    paths_by_name = {path.stem: path for path in folder.rglob("*.bin") if path.stem[:1] in KOKORO_LANGUAGES}
    voices = sorted(paths_by_name.values(), key=lambda path: (path.stem != KOKORO_DEFAULT_VOICE, path.stem))
    if not models or not voices:
        raise ServerError(
            f"There is no Kokoro voice in {folder}: it needs the model, `*.onnx`, and voices such as `{KOKORO_DEFAULT_VOICE}.bin`."
        )
    names = tuple(path.stem for path in voices)
    return ProcessSynthesizer(
        KOKORO_PROGRAM, (models[0], *voices), voices=names, rate_hz=KOKORO_RATE_HZ, aliases=aliases, limits=limits, notice=notice
    )


def piper_synthesizer(
    folders: Iterable[Path],
    *,
    aliases: Mapping[str, str] | None = None,
    limits: VoiceLimits | None = None,
    notice: Callable[[str], None] = lambda _line: None,
) -> ProcessSynthesizer:
    """
    A synthesizer with every Piper voice in the folders, at the sample rate of the first.

    Raises:
        ServerError: there is no voice, or the settings of the first can't be read.
    """
    folders = tuple(folders)
    weights = [path for folder in folders for path in sorted(folder.glob("*.onnx"))]
    paths: dict[str, Path] = {}
    for path in weights:
        # Of two voices with one name, that of the first folder counts.
        if _piper_settings_path(path).exists():
            paths.setdefault(path.stem, path)
    if not paths:
        raise ServerError(
            f"There is no Piper voice in {quote_list(map(str, folders))}: each is a pair of files, `NAME.onnx` and `NAME.onnx.json`."
        )
    files = tuple(paths.values())
    return ProcessSynthesizer(
        PIPER_PROGRAM,
        files,
        voices=tuple(paths),
        rate_hz=_piper_rate_hz(files[0]),
        aliases=aliases,
        joins_parts=True,
        limits=limits,
        notice=notice,
    )


def _piper_rate_hz(path: Path) -> int:
    settings = _piper_settings_path(path)
    try:
        return msgspec.json.decode(settings.read_bytes(), type=_PiperSettings).audio.sample_rate
    except (OSError, msgspec.DecodeError) as error:
        raise ServerError(f"The settings of the voice in {settings} can't be read: {error}.") from None


def _piper_settings_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")
