"""One turn of a cascade's conversation, and the words that are made of it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from antiphon.audio import duration_ms
from antiphon.engine_api.options import Transcription
from antiphon.errors import ApiError
from antiphon.speech.base import INPUT_RATE_HZ, Ear, Transcript
from antiphon.speech.stt.partials import PartialTranscriber

MAX_TURN_MS = 30 * 60_000
"""The most sound of one turn that is written down; of a longer one, the beginning."""

RETRY_DELAY_S = 1.0
"""After which an ear that failed in the middle of a turn is asked again, where it doesn't say itself."""

TranscriptTask = asyncio.Task[Transcript | ApiError]
"""Words being made of sound; a fault where they can't be had."""


class StartTask(Protocol):
    """Begins with work that is seen to its end, or stopped when the conversation is over."""

    def __call__(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """The task in which it is done."""


class UserTurn:
    """
    A turn.

    Args:
        tell: takes words while the turn goes on; None where nobody wants to read them.

    Attributes:
        id: by which it is told.
        end_ms: up to where it was heard.
        paused_ms: where nobody spoke any more; None while someone does.
        speech_ms: for how long someone spoke; None where nobody looked.
        words: of all that was heard; None while more of it is being heard.
    """

    def __init__(
        self,
        id: str,
        start_ms: int,
        transcriber: Ear,
        options: Transcription,
        start_task: StartTask,
        on_partial: Callable[[str], None] | None = None,
    ) -> None:
        self.id = id
        self.start_ms = start_ms
        self.end_ms = float(start_ms)
        self.paused_ms: int | None = None
        self.speech_ms: float | None = None
        self.transcript_task: TranscriptTask | None = None
        self._start_task = start_task
        self._partials = PartialTranscriber(transcriber, options, on_partial or _ignore_partial)
        self._has_partials = on_partial is not None
        self._partials_task: asyncio.Task[None] | None = None

    @property
    def duration_s(self) -> float:
        """How long it is."""
        return (self.end_ms - self.start_ms) / 1000

    def append_audio(self, pcm: bytes) -> None:
        """It goes on: s16le at `HEARING_RATE_HZ`."""
        self.end_ms += duration_ms(len(pcm), INPUT_RATE_HZ)
        if self._partials.audio_ms < MAX_TURN_MS:
            self._partials.append_audio(pcm)
        if self._partials_task is None or self._partials_task.done():
            self._start_partials()

    def _start_partials(self) -> None:
        if self._has_partials:
            self._partials_task = self._start_task(self._partials.run())
        elif self._partials.has_full_segment:
            self._partials_task = self._start_task(self._transcribe_ahead())

    async def _transcribe_ahead(self) -> None:
        try:
            await self._partials.finalize_segments()
        except ApiError as fault:
            await asyncio.sleep(fault.retry_after_s or RETRY_DELAY_S)

    def start_transcript(self) -> TranscriptTask:
        """Make words of all that was heard."""
        self._cancel_tasks()
        self.transcript_task = self._start_task(self._transcribe())
        return self.transcript_task

    def reopen(self) -> None:
        """What was made of it is not all, or is nothing."""
        self.paused_ms = None
        self._cancel_tasks()

    def remaining_text(self, transcript: Transcript) -> str:
        """What of its transcript is still to be told."""
        return self._partials.finish(transcript.text)

    def _cancel_tasks(self) -> None:
        for task in (self._partials_task, self.transcript_task):
            if task is not None:
                task.cancel()
        self._partials_task = self.transcript_task = None

    async def _transcribe(self) -> Transcript | ApiError:
        try:
            return await self._partials.transcript(None if self.speech_ms is None else self.speech_ms / 1000)
        except ApiError as fault:
            return fault


def _ignore_partial(_text: str) -> None:
    """Reads along."""
