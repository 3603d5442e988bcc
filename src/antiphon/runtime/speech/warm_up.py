"""
Loading of the speech models, and the first run of each, which is slower than all others: both are best done before
anybody waits for them.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Protocol

from antiphon.audio import size_bytes
from antiphon.engine_api.options import Transcription
from antiphon.runtime.core import lazy
from antiphon.speech.base import INPUT_RATE_HZ, Synthesizer

VAD_TIMEOUT_S = 10.0
"""How long the model that detects speech may take for its first frame."""


class StackPart(Protocol):
    """One of the speech models."""

    async def start(self) -> None:
        """
        Load it; once.

        Raises:
            ApiError: it can't be loaded.
        """


_SECOND = bytes(size_bytes(1000, INPUT_RATE_HZ))
_TEXT = "Hello."


def import_modules() -> None:
    """Import what a voice session needs; for a thread, as it takes most of a second."""
    for name in ("Cascade", "SpeechStack"):
        getattr(lazy, name)


class LoadedParts:
    """The parts of a speech stack that are loaded: if one could not be, the others need not be loaded again."""

    def __init__(self) -> None:
        self._parts: set[StackPart] = set()

    async def start(self, parts: Iterable[StackPart]) -> None:
        """
        Load those that aren't, side by side, which takes a quarter less time than one after the other on two processors.

        Raises:
            Exception: one can't be loaded; all others are, or have failed as well.
        """
        errors: list[Exception] = []
        async with asyncio.TaskGroup() as tasks:
            for part in parts:
                if part not in self._parts:
                    tasks.create_task(self._start_one(part, errors))
        if errors:
            raise errors[0]

    async def _start_one(self, part: StackPart, errors: list[Exception]) -> None:
        try:
            await part.start()
        except Exception as error:
            errors.append(error)
        else:
            self._parts.add(part)


async def run_once(stack: "lazy.SpeechStack", *, transcribes: bool = True, speaks: bool = True) -> None:
    """
    Run every loaded model once.

    Args:
        transcribes: whether to run the transcriber too.
        speaks: whether to run the synthesizer too.

    Raises:
        ApiError: one failed.
    """
    if stack.synthesizer is not None and speaks:
        await _speak(stack.synthesizer)
    if stack.transcriber is not None and transcribes:
        await stack.transcriber.transcribe(_SECOND, Transcription())
    if stack.smart_turn is not None:
        await stack.smart_turn.likelihood(_SECOND)
    if stack.vad is not None:
        await _detect_speech(stack)


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
