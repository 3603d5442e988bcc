"""
A conversation's history as text, for an engine that can't hear: transcripts in place of audio.

The speech input knows the transcripts of its own turns. Audio that the client sent as an item is transcribed when it is
first needed.
"""

import asyncio
from collections.abc import Sequence

from msgspec import structs

from antiphon.audio import INPUT_MS_PER_TOKEN, audio_tokens, duration_ms
from antiphon.engine_api import commands, history as engine_history
from antiphon.engine_api.options import Transcription
from antiphon.engines.cascade.input import SpeechInput
from antiphon.engines.cascade.turn import TranscriptTask
from antiphon.errors import ApiError
from antiphon.speech.base import INPUT_RATE_HZ, Transcriber
from antiphon.speech.dsp.resample import resample

UNKNOWN_SPEECH_TEXT = "(This was said aloud, and its words are not known.)"
"""
What the inner engine reads in place of speech that could not be transcribed, or whose transcript is no longer kept.
"""

MAX_CACHED_TRANSCRIPTS = 256
"""How many transcripts of audio items are kept."""


class TranscriptHistory:
    """Turns the audio in one conversation's histories into text."""

    def __init__(self, transcriber: Transcriber, speech_input: SpeechInput) -> None:
        self._transcriber = transcriber
        self._speech_input = speech_input
        self._transcript_cache: dict[tuple[int, int, int], str] = {}

    async def to_text(
        self, history: Sequence[engine_history.HistoryItem], last_transcript_task: TranscriptTask | None = None
    ) -> tuple[engine_history.HistoryItem, ...] | None:
        """
        The history as text.

        Args:
            last_transcript_task: transcript of the turn that it ends with, if that is still open.

        Returns:
            None if nothing was said in its last item, and no item before that waits for an answer.

        Raises:
            ApiError: its last item can't be transcribed.
        """
        past = await self.past_to_text(history[:-1])
        last = await self._item_to_text(history[-1], last_transcript_task, is_last=True) if history else None
        text_history = (*past, last) if last is not None else past
        if history and last is None and not (text_history and _awaits_response(text_history[-1])):
            return None
        return text_history

    async def past_to_text(self, history: Sequence[engine_history.HistoryItem]) -> tuple[engine_history.HistoryItem, ...]:
        """
        Earlier items as text: those without speech are left out, `UNKNOWN_SPEECH_TEXT` stands for what can't be
        transcribed.
        """
        items = [await self._item_to_text(item) for item in history]
        return tuple(item for item in items if item is not None)

    async def _item_to_text(
        self, item: engine_history.HistoryItem, transcript_task: TranscriptTask | None = None, *, is_last: bool = False
    ) -> engine_history.HistoryItem | None:
        """The item as text; None if it was audio without speech."""
        if not any(isinstance(part, engine_history.SpeechPart) for part in message_parts(item)):
            return item
        assert isinstance(item, engine_history.Message)
        parts = [await self._part_to_text(part, transcript_task, is_last=is_last) for part in item.parts]
        text_parts = tuple(part for part in parts if part is not None)
        return structs.replace(item, parts=text_parts) if text_parts else None

    async def _part_to_text(
        self, part: engine_history.HistoryPart, transcript_task: TranscriptTask | None, *, is_last: bool
    ) -> engine_history.HistoryPart | None:
        if not isinstance(part, engine_history.SpeechPart):
            return part
        try:
            text = await self._speech_text(part, transcript_task)
        except ApiError:
            if is_last:
                raise
            text = UNKNOWN_SPEECH_TEXT
        return engine_history.TextPart(text) if text else None

    async def _speech_text(self, part: engine_history.SpeechPart, transcript_task: TranscriptTask | None) -> str:
        if part.transcript is not None:
            return part.transcript
        if transcript_task is not None:
            transcript = await asyncio.shield(transcript_task)
            if isinstance(transcript, ApiError):
                raise transcript
            return transcript.text
        text = await self._speech_input.transcript_of(part.turn_id) if part.turn_id is not None else None
        if text is not None:
            return text
        return await self._transcribe_cached(part.pcm, part.rate_hz) if part.pcm else UNKNOWN_SPEECH_TEXT

    async def _transcribe_cached(self, pcm: bytes, rate_hz: int) -> str:
        key = (rate_hz, len(pcm), hash(pcm))
        if key not in self._transcript_cache:
            input_pcm = await asyncio.to_thread(resample, pcm, rate_hz, INPUT_RATE_HZ)
            self._transcript_cache[key] = (await self._transcriber.transcribe(input_pcm, Transcription())).text
            if len(self._transcript_cache) > MAX_CACHED_TRANSCRIPTS:
                del self._transcript_cache[next(iter(self._transcript_cache))]
        return self._transcript_cache[key]


def message_parts(item: engine_history.HistoryItem) -> tuple[engine_history.HistoryPart, ...]:
    """The parts of a message; none of any other item."""
    return item.parts if isinstance(item, engine_history.Message) else ()


def has_unknown_speech(history: Sequence[engine_history.HistoryItem]) -> bool:
    """Whether there is speech in a history that comes without its transcript."""
    parts = (part for item in history for part in message_parts(item))
    return any(isinstance(part, engine_history.SpeechPart) and part.transcript is None for part in parts)


def count_audio_tokens(history: Sequence[engine_history.HistoryItem]) -> int:
    """The tokens that the audio in a history counts as."""
    speech = [part for item in history for part in message_parts(item) if isinstance(part, engine_history.SpeechPart)]
    return sum(audio_tokens(int(duration_ms(len(part.pcm), part.rate_hz)), INPUT_MS_PER_TOKEN) for part in speech)


def _awaits_response(item: engine_history.HistoryItem) -> bool:
    return isinstance(item, engine_history.ToolResult) or (isinstance(item, engine_history.Message) and item.role != "assistant")


# Speculative requests


def last_turn_id(request: commands.Respond) -> str | None:
    """The id of the turn that a request's history ends with; None if that is no detected speech."""
    last = message_parts(request.history[-1])[-1:] if request.history else ()
    return last[0].turn_id if last and isinstance(last[0], engine_history.SpeechPart) else None


def is_same_request(expected_request: commands.Respond, request: commands.Respond) -> bool:
    """Whether a request is the expected one, apart from audio and transcripts of turns, which are known only later."""
    return last_turn_id(expected_request) == last_turn_id(request) is not None and _without_speech(expected_request) == _without_speech(
        request
    )


def _without_speech(request: commands.Respond) -> commands.Respond:
    return structs.replace(request, history=tuple(_without_item_speech(item) for item in request.history))


def _without_item_speech(item: engine_history.HistoryItem) -> engine_history.HistoryItem:
    if not isinstance(item, engine_history.Message):
        return item
    parts = tuple(
        structs.replace(part, pcm=b"", transcript=None) if isinstance(part, engine_history.SpeechPart) and part.turn_id else part
        for part in item.parts
    )
    return structs.replace(item, parts=parts)
