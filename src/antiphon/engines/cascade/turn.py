"""One turn of the user in a cascade's conversation, and its transcript."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Protocol, TypeVar

from antiphon.audio import duration_ms
from antiphon.engine_api.options import Transcription
from antiphon.errors import ApiError
from antiphon.speech.base import INPUT_RATE_HZ, Transcriber, Transcript
from antiphon.speech.stt.partials import PartialTranscriber

MAX_TURN_MS = 30 * 60_000
"""How much of one turn is transcribed, from its beginning."""

RETRY_DELAY_S = 1.0
"""How long after an error in the middle of a turn the transcriber is tried again, if the error names no time."""

TranscriptTask = asyncio.Task[Transcript | ApiError]
"""A transcript in the making; its result is an error if it fails."""


T = TypeVar("T")


class StartTask(Protocol):
    """Starts a task that is cancelled when the conversation ends."""

    def __call__(self, coroutine: Coroutine[None, None, T]) -> asyncio.Task[T]:
        """The task that runs the coroutine."""


class UserTurn:
    """
    A turn.

    Args:
        transcriber: None if nobody needs the transcript: then it is empty.
        on_partial: takes text while the turn goes on; None if nobody reads it.

    Attributes:
        id: of its events.
        end_ms: where the audio appended so far ends.
        paused_ms: where speech stopped; None while it goes on.
        speech_ms: how long someone spoke; None if unknown.
        transcript_task: the transcript of all audio so far; None while more is appended.
    """

    def __init__(
        self,
        id: str,
        start_ms: int,
        transcriber: Transcriber | None,
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
        self._partials = PartialTranscriber(transcriber, options, on_partial or (lambda _text: None)) if transcriber is not None else None
        self._has_partials = on_partial is not None
        self._partials_task: asyncio.Task[None] | None = None

    @property
    def is_transcribed(self) -> bool:
        """Whether there is a transcriber."""
        return self._partials is not None

    @property
    def duration_s(self) -> float:
        """How long the audio appended so far is."""
        return (self.end_ms - self.start_ms) / 1000

    def append_audio(self, pcm: bytes) -> None:
        """Append s16le audio at `INPUT_RATE_HZ`."""
        self.end_ms += duration_ms(len(pcm), INPUT_RATE_HZ)
        if self._partials is None:
            return
        if self._partials.audio_ms < MAX_TURN_MS:
            self._partials.append_audio(pcm)
        if self._partials_task is None or self._partials_task.done():
            self._start_partials(self._partials)

    def _start_partials(self, partials: PartialTranscriber) -> None:
        if self._has_partials:
            self._partials_task = self._start_task(partials.run())
        elif partials.has_full_segment:
            self._partials_task = self._start_task(_finalize_segments(partials))

    def start_transcript(self) -> TranscriptTask:
        """Transcribe all audio so far."""
        self._cancel_tasks()
        self.transcript_task = self._start_task(self._transcribe())
        return self.transcript_task

    def reopen(self) -> None:
        """The turn goes on, or is dropped: cancel the transcript."""
        self.paused_ms = None
        self._cancel_tasks()

    def remaining_text(self, transcript: Transcript) -> str:
        """The part of the final transcript that `on_partial` did not get."""
        return self._partials.finish(transcript.text) if self._partials is not None else ""

    def _cancel_tasks(self) -> None:
        for task in (self._partials_task, self.transcript_task):
            if task is not None:
                task.cancel()
        self._partials_task = self.transcript_task = None

    async def _transcribe(self) -> Transcript | ApiError:
        if self._partials is None:
            return Transcript(text="")
        try:
            return await self._partials.transcript(None if self.speech_ms is None else self.speech_ms / 1000)
        except ApiError as error:
            return error


async def _finalize_segments(partials: PartialTranscriber) -> None:
    """Transcribe full segments while the turn goes on, so that little is left for its end."""
    try:
        await partials.finalize_segments()
    except ApiError as error:
        await asyncio.sleep(error.retry_after_s or RETRY_DELAY_S)
