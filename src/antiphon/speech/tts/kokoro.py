"""Kokoro's voices: slower than Piper's and nicer to hear; one model, and a small file for each voice."""

from collections.abc import Callable, Mapping
from pathlib import Path

from antiphon.errors import ServerError
from antiphon.speech.tts.process import VoiceLimits
from antiphon.speech.tts.synthesizer import ProcessSynthesizer

KOKORO_PROGRAM = ("-m", "antiphon.speech.tts.kokoro_child")
KOKORO_RATE_HZ = 24_000
KOKORO_DEFAULT_VOICE = "af_heart"
"""The voice of its own choice, where it is there."""

KOKORO_LANGUAGES = "abefhip"
"""The first letters of the names of the voices whose language can be made into phonemes here."""


def kokoro_synthesizer(
    folder: Path,
    *,
    aliases: Mapping[str, str] | None = None,
    limits: VoiceLimits | None = None,
    notice: Callable[[str], None] = lambda _line: None,
) -> ProcessSynthesizer:
    """
    A mouth with the model in the folder and every voice in it, or in the folders in it.

    Raises:
        ServerError: there is no model or no voice.
    """
    models = sorted(folder.glob("*.onnx"))
    found = {path.stem: path for path in folder.rglob("*.bin") if path.stem[:1] in KOKORO_LANGUAGES}
    voices = sorted(found.values(), key=lambda path: (path.stem != KOKORO_DEFAULT_VOICE, path.stem))
    if not models or not voices:
        raise ServerError(
            f"There is no voice of Kokoro's in {folder}: it needs the model, `*.onnx`, and voices such as `{KOKORO_DEFAULT_VOICE}.bin`."
        )
    names = tuple(path.stem for path in voices)
    return ProcessSynthesizer(
        KOKORO_PROGRAM, (models[0], *voices), voices=names, rate_hz=KOKORO_RATE_HZ, aliases=aliases, limits=limits, notice=notice
    )
