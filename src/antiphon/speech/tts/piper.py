"""Piper's voices: quick, in many languages, and each in two files, `NAME.onnx` and `NAME.onnx.json`."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from antiphon.errors import ServerError, quote_list
from antiphon.speech.tts.process import VoiceLimits
from antiphon.speech.tts.synthesizer import ProcessSynthesizer

PIPER_PROGRAM = ("-m", "antiphon.speech.tts.piper_child")


class _Audio(Struct):
    sample_rate: int


class _Settings(Struct):
    audio: _Audio


def piper_synthesizer(
    folders: Iterable[Path],
    *,
    aliases: Mapping[str, str] | None = None,
    limits: VoiceLimits | None = None,
    notice: Callable[[str], None] = lambda _line: None,
) -> ProcessSynthesizer:
    """
    A mouth with every voice in the folders; the first one's rate is the mouth's.

    Raises:
        ServerError: there is none, or the first one's settings can't be read.
    """
    folders = tuple(folders)
    weights = [path for folder in folders for path in sorted(folder.glob("*.onnx"))]
    paths: dict[str, Path] = {}
    for path in weights:
        if _settings_path(path).exists():
            paths.setdefault(path.stem, path)
    if not paths:
        raise ServerError(
            f"There is no voice of Piper's in {quote_list(map(str, folders))}: each is a pair of files, `NAME.onnx` and `NAME.onnx.json`."
        )
    files = tuple(paths.values())
    return ProcessSynthesizer(
        PIPER_PROGRAM, files, voices=tuple(paths), rate_hz=_voice_rate_hz(files[0]), aliases=aliases, limits=limits, notice=notice
    )


def _voice_rate_hz(path: Path) -> int:
    settings = _settings_path(path)
    try:
        return msgspec.json.decode(settings.read_bytes(), type=_Settings).audio.sample_rate
    except (OSError, msgspec.DecodeError) as error:
        raise ServerError(f"The settings of a voice, {settings}, can't be read: {error}.") from None


def _settings_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")
