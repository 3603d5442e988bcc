"""Kokoro's voices: slower than Piper's and nicer to hear; one model, and a small file for each voice."""

from collections.abc import Callable, Mapping
from pathlib import Path

from antiphon.errors import OurFault
from antiphon.speech.tts.process import Patience
from antiphon.speech.tts.synthesizer import ProcessMouth

PROGRAM = ("-m", "antiphon.speech.tts.kokoro_child")
RATE_HZ = 24_000
FAVOURITE = "af_heart"
"""The voice of its own choice, where it is there."""

SPOKEN = "abefhip"
"""The first letters of the names of the voices whose language can be made into phonemes here."""


def kokoro(
    folder: Path,
    *,
    aliases: Mapping[str, str] | None = None,
    patience: Patience | None = None,
    notice: Callable[[str], None] = lambda _line: None,
) -> ProcessMouth:
    """
    A mouth with the model in the folder and every voice in it, or in the folders in it.

    Raises:
        OurFault: there is no model or no voice.
    """
    models = sorted(folder.glob("*.onnx"))
    found = {path.stem: path for path in folder.rglob("*.bin") if path.stem[:1] in SPOKEN}
    voices = sorted(found.values(), key=lambda path: (path.stem != FAVOURITE, path.stem))
    if not models or not voices:
        raise OurFault(f"There is no voice of Kokoro's in {folder}: it needs the model, `*.onnx`, and voices such as `{FAVOURITE}.bin`.")
    names = tuple(path.stem for path in voices)
    return ProcessMouth(PROGRAM, (models[0], *voices), voices=names, rate_hz=RATE_HZ, aliases=aliases, patience=patience, notice=notice)
