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


OnCompared = Callable[[bool], None]
"""Takes whether two transcripts have the same words."""

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
        on_partial: takes text while the turn goes on, which is certain; None if nobody reads it.
        on_hypothesis: takes all of the text so far, as it seems to be.

    Attributes:
        id: of its events.
        has_partials: whether `on_partial` is called.
        is_followed: whether `on_hypothesis` is called although nothing else takes text while the turn goes on.
        end_ms: where the audio appended so far ends.
        paused_ms: where speech stopped; None while it goes on.
        speech_ms: how long someone spoke; None if unknown.
        transcript_task: the transcript of all audio so far; None while more is appended.
        early_task: the same of less audio, made in the first moments of a pause; None if there was none.
    """

    def __init__(
        self,
        id: str,
        start_ms: int,
        transcriber: Transcriber | None,
        options: Transcription,
        start_task: StartTask,
        on_partial: Callable[[str], None] | None = None,
        on_hypothesis: Callable[[str], None] | None = None,
    ) -> None:
        self.id = id
        self.start_ms = start_ms
        self.end_ms = float(start_ms)
        self.paused_ms: int | None = None
        self.speech_ms: float | None = None
        self.transcript_task: TranscriptTask | None = None
        self.early_task: TranscriptTask | None = None
        self._start_task = start_task
        self.has_partials = on_partial is not None
        self.is_followed = False
        self._partials = (
            PartialTranscriber(transcriber, options, on_partial, on_hypothesis=on_hypothesis) if transcriber is not None else None
        )
        self._partials_task: asyncio.Task[None] | None = None
        self._comparison_task: asyncio.Task[None] | None = None

    @property
    def is_paused_in_words(self) -> bool:
        """Whether it has paused for so long that a transcript of it was begun."""
        return self.early_task is not None or self.transcript_task is not None

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
        if self.has_partials or self.is_followed:
            self._partials_task = self._start_task(partials.run())
        elif partials.has_full_segment:
            self._partials_task = self._start_task(_finalize_segments(partials))

    def start_early_transcript(self) -> TranscriptTask:
        """Transcribe all audio so far, as if no more of it mattered."""
        self._cancel(self._partials_task)
        self.early_task = self._start_task(self._transcribe())
        return self.early_task

    def start_transcript(self) -> TranscriptTask:
        """Transcribe all audio so far, once an early transcript is ready: never two at a time."""
        self._cancel(self._partials_task, self.transcript_task)
        self.transcript_task = self._start_task(self._transcribe(self.early_task))
        return self.transcript_task

    def compare(self, on_compared: OnCompared) -> None:
        """Call `on_compared` once both transcripts are ready; not if one of them is cancelled."""
        assert self.early_task is not None and self.transcript_task is not None
        self._comparison_task = self._start_task(_compare(self.early_task, self.transcript_task, on_compared))

    def cancel_early_transcript(self) -> bool:
        """Let the transcript wait no longer for an early one; returns whether it did."""
        if self.early_task is None or self.early_task.done():
            return False
        self._cancel(self.early_task, self._comparison_task)
        return True

    def reopen(self) -> None:
        """The turn goes on, or is dropped: cancel the transcripts."""
        self.paused_ms = None
        self._cancel(self._partials_task, self.early_task, self.transcript_task, self._comparison_task)
        self._partials_task = self.early_task = self.transcript_task = self._comparison_task = None

    def remaining_text(self, transcript: Transcript) -> str:
        """The part of the final transcript that `on_partial` did not get."""
        return self._partials.finish(transcript.text) if self._partials is not None else ""

    def _cancel(self, *tasks: "asyncio.Task[None] | TranscriptTask | None") -> None:
        for task in tasks:
            if task is not None:
                task.cancel()

    async def _transcribe(self, after: TranscriptTask | None = None) -> Transcript | ApiError:
        if after is not None and not after.done():
            await asyncio.wait([after])
        if self._partials is None:
            return Transcript(text="")
        try:
            return await self._partials.transcript(None if self.speech_ms is None else self.speech_ms / 1000)
        except ApiError as error:
            return error


async def _compare(early_task: TranscriptTask, transcript_task: TranscriptTask, on_compared: OnCompared) -> None:
    await asyncio.wait([early_task, transcript_task])
    if not early_task.cancelled() and not transcript_task.cancelled():
        on_compared(has_same_words(early_task.result(), transcript_task.result()))


def has_same_words(one: Transcript | ApiError, other: Transcript | ApiError) -> bool:
    """Whether two transcripts have the same letters and digits; marks, spaces and case may differ. An error has none."""
    if isinstance(one, ApiError) or isinstance(other, ApiError):
        return False
    return _letters(one.text) == _letters(other.text)


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))


async def _finalize_segments(partials: PartialTranscriber) -> None:
    """Transcribe full segments while the turn goes on, so that little is left for its end."""
    try:
        await partials.finalize_segments()
    except ApiError as error:
        await asyncio.sleep(error.retry_after_s or RETRY_DELAY_S)
