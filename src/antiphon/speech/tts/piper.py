"""Piper's voices: quick, in many languages, and each in two files, `NAME.onnx` and `NAME.onnx.json`."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from antiphon.errors import OurFault, listed
from antiphon.speech.tts.process import Patience
from antiphon.speech.tts.synthesizer import ProcessMouth

PROGRAM = ("-m", "antiphon.speech.tts.piper_child")


class _Audio(Struct):
    sample_rate: int


class _Settings(Struct):
    audio: _Audio


def piper(
    folders: Iterable[Path],
    *,
    aliases: Mapping[str, str] | None = None,
    patience: Patience | None = None,
    notice: Callable[[str], None] = lambda _line: None,
) -> ProcessMouth:
    """
    A mouth with every voice in the folders; the first one's rate is the mouth's.

    Raises:
        OurFault: there is none, or the first one's settings can't be read.
    """
    folders = tuple(folders)
    weights = [path for folder in folders for path in sorted(folder.glob("*.onnx"))]
    paths: dict[str, Path] = {}
    for path in weights:
        if _settings(path).exists():
            paths.setdefault(path.stem, path)
    if not paths:
        raise OurFault(
            f"There is no voice of Piper's in {listed(map(str, folders))}: each is a pair of files, `NAME.onnx` and `NAME.onnx.json`."
        )
    files = tuple(paths.values())
    return ProcessMouth(PROGRAM, files, voices=tuple(paths), rate_hz=_rate_hz(files[0]), aliases=aliases, patience=patience, notice=notice)


def _rate_hz(path: Path) -> int:
    settings = _settings(path)
    try:
        return msgspec.json.decode(settings.read_bytes(), type=_Settings).audio.sample_rate
    except (OSError, msgspec.DecodeError) as error:
        raise OurFault(f"The settings of a voice, {settings}, can't be read: {error}.") from None


def _settings(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")
