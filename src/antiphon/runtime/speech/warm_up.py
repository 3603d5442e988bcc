"""The first run of the speech models, which is slower than all others: done before anybody waits for it."""

import asyncio
import contextlib

from antiphon.audio import size_bytes
from antiphon.engine_api.options import Transcription
from antiphon.runtime.core import lazy
from antiphon.speech.base import INPUT_RATE_HZ, Synthesizer

VAD_TIMEOUT_S = 10.0
"""How long the model that detects speech may take for its first frame."""

_SECOND = bytes(size_bytes(1000, INPUT_RATE_HZ))
_TEXT = "Hello."


def import_modules() -> None:
    """Import what a voice session needs; for a thread, as it takes most of a second."""
    for name in ("Cascade", "SpeechStack"):
        getattr(lazy, name)


async def run_once(stack: "lazy.SpeechStack", *, transcribes: bool = True, speaks: bool = True) -> None:
    """
    Run every loaded model once.

    Args:
        transcribes: whether to run the transcriber too; likewise `speaks` the synthesizer.

    Raises:
        ApiError: one failed.
    """
    if stack.vad is not None:
        await _detect_speech(stack)
    if stack.smart_turn is not None:
        await stack.smart_turn.likelihood(_SECOND)
    if stack.transcriber is not None and transcribes:
        await stack.transcriber.transcribe(_SECOND, Transcription())
    if stack.synthesizer is not None and speaks:
        await _speak(stack.synthesizer)


async def _detect_speech(stack: "lazy.SpeechStack") -> None:
    assert stack.vad is not None
    frame_event = asyncio.Event()
    stream = stack.vad.open(lambda _start_ms, _probability: frame_event.set())
    try:
        stream.append_audio(_SECOND)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(VAD_TIMEOUT_S):
                await frame_event.wait()
    finally:
        stream.close()


async def _speak(synthesizer: Synthesizer) -> None:
    async with contextlib.aclosing(synthesizer.synthesize(_TEXT)) as chunks:
        async for _ in chunks:
            pass
