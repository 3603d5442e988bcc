"""
A conversation's history in writing, for an engine that can't hear: words for sound.

What was said in a turn is known to the ears that heard it. Sound that the client gave whole, as an item, is written down when it is first
asked about.
"""

import asyncio
from collections.abc import Sequence

from msgspec import structs

from antiphon.audio import duration_ms
from antiphon.engine_api import commands, history as engine_history
from antiphon.engine_api.options import Transcription
from antiphon.engines.cascade.input import SpeechInput
from antiphon.engines.cascade.turn import TranscriptTask
from antiphon.errors import ApiError
from antiphon.speech.base import INPUT_RATE_HZ, Ear
from antiphon.speech.dsp.resample import resample

UNKNOWN_SPEECH_TEXT = "(This was said aloud, and its words are not known.)"
"""What the engine within is told of what nobody could make out, or was said so long ago that nobody remembers it."""

MAX_CACHED_TRANSCRIPTS = 256
"""Of how many sounds that the client gave whole the words are remembered."""

INPUT_MS_PER_TOKEN = 100
"""How much sound that is heard counts as a token; models that hear by themselves count about so."""


class TranscriptHistory:
    """The words for the sound in one conversation's histories."""

    def __init__(self, transcriber: Ear, speech_input: SpeechInput) -> None:
        self._transcriber = transcriber
        self._speech_input = speech_input
        self._transcript_cache: dict[tuple[int, int, int], str] = {}

    async def to_text(
        self, history: Sequence[engine_history.HistoryItem], last_transcript_task: TranscriptTask | None = None
    ) -> tuple[engine_history.HistoryItem, ...] | None:
        """
        The history in writing.

        Args:
            last_words: of the turn that it ends with, where that is not over yet.

        Returns:
            None where nothing was said in what it ends with, and nothing before it waits for an answer.

        Raises:
            ApiError: nobody could make out what it ends with.
        """
        told = await self.past_to_text(history[:-1])
        last = await self._item_to_text(history[-1], last_transcript_task, is_last=True) if history else None
        kept = (*told, last) if last is not None else told
        if history and last is None and not (kept and _awaits_response(kept[-1])):
            return None
        return kept

    async def past_to_text(self, history: Sequence[engine_history.HistoryItem]) -> tuple[engine_history.HistoryItem, ...]:
        """A history that goes on, in writing: without turns in which nothing was said, with a note for those that nobody could make out."""
        told = [await self._item_to_text(turn) for turn in history]
        return tuple(turn for turn in told if turn is not None)

    async def _item_to_text(
        self, item: engine_history.HistoryItem, transcript_task: TranscriptTask | None = None, *, is_last: bool = False
    ) -> engine_history.HistoryItem | None:
        """The turn; None where it was sound in which nothing was said."""
        if not any(isinstance(part, engine_history.SpeechPart) for part in message_parts(item)):
            return item
        assert isinstance(item, engine_history.Message)
        parts = [await self._part_to_text(part, transcript_task, is_last=is_last) for part in item.parts]
        kept = tuple(part for part in parts if part is not None)
        return structs.replace(item, parts=kept) if kept else None

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
        known = await self._speech_input.transcript_of(part.turn_id) if part.turn_id is not None else None
        if known is not None:
            return known
        return await self._transcribe_cached(part.pcm, part.rate_hz) if part.pcm else UNKNOWN_SPEECH_TEXT

    async def _transcribe_cached(self, pcm: bytes, rate_hz: int) -> str:
        key = (rate_hz, len(pcm), hash(pcm))
        if key not in self._transcript_cache:
            heard = await asyncio.to_thread(resample, pcm, rate_hz, INPUT_RATE_HZ)
            self._transcript_cache[key] = (await self._transcriber.transcribe(heard, Transcription())).text
            if len(self._transcript_cache) > MAX_CACHED_TRANSCRIPTS:
                del self._transcript_cache[next(iter(self._transcript_cache))]
        return self._transcript_cache[key]


def message_parts(item: engine_history.HistoryItem) -> tuple[engine_history.HistoryPart, ...]:
    """What a turn consists of, where it is a message."""
    return item.parts if isinstance(item, engine_history.Message) else ()


def count_audio_tokens(history: Sequence[engine_history.HistoryItem]) -> int:
    """How many tokens the sound in it counts."""
    sounds = [part for turn in history for part in message_parts(turn) if isinstance(part, engine_history.SpeechPart)]
    return sum(-(-int(duration_ms(len(sound.pcm), sound.rate_hz)) // INPUT_MS_PER_TOKEN) for sound in sounds)


def _awaits_response(item: engine_history.HistoryItem) -> bool:
    """Whether a turn waits for an answer."""
    return isinstance(item, engine_history.ToolResult) or (isinstance(item, engine_history.Message) and item.role != "assistant")


# What was foreseen


def last_turn_id(request: commands.Respond) -> str | None:
    """The turn that an ask ends with."""
    last = message_parts(request.history[-1])[-1:] if request.history else ()
    return last[0].turn_id if last and isinstance(last[0], engine_history.SpeechPart) else None


def is_same_request(expected_request: commands.Respond, request: commands.Respond) -> bool:
    """Whether what is asked is what was foreseen, but for what has become known of turns in the meantime: their sound and their words."""
    return last_turn_id(expected_request) == last_turn_id(request) is not None and _without_speech(expected_request) == _without_speech(
        request
    )


def _without_speech(request: commands.Respond) -> commands.Respond:
    return structs.replace(request, history=tuple(_without_item_speech(turn) for turn in request.history))


def _without_item_speech(item: engine_history.HistoryItem) -> engine_history.HistoryItem:
    if not isinstance(item, engine_history.Message):
        return item
    parts = tuple(
        structs.replace(part, pcm=b"", transcript=None) if isinstance(part, engine_history.SpeechPart) and part.turn_id else part
        for part in item.parts
    )
    return structs.replace(item, parts=parts)
