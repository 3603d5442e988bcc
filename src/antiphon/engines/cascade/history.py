"""
A conversation's history in writing, for an engine that can't hear: words for sound.

What was said in a turn is known to the ears that heard it. Sound that the client gave whole, as an item, is written down when it is first
asked about.
"""

import asyncio
from collections.abc import Sequence

from msgspec import structs

from antiphon.audio import ms_of
from antiphon.engine_api import commands, history as turns
from antiphon.engine_api.options import Transcription
from antiphon.engines.cascade.input import Hearing
from antiphon.engines.cascade.turn import Listening
from antiphon.errors import Fault
from antiphon.speech.base import HEARING_RATE_HZ, Ear
from antiphon.speech.dsp.resample import resampled

UNHEARD = "(This was said aloud, and its words are not known.)"
"""What the engine within is told of what nobody could make out, or was said so long ago that nobody remembers it."""

SOUNDS_KEPT = 256
"""Of how many sounds that the client gave whole the words are remembered."""

MS_PER_TOKEN = 100
"""How much sound that is heard counts as a token; models that hear by themselves count about so."""


class Words:
    """The words for the sound in one conversation's histories."""

    def __init__(self, ear: Ear, hearing: Hearing) -> None:
        self._ear = ear
        self._hearing = hearing
        self._given: dict[tuple[int, int, int], str] = {}

    async def written(self, history: Sequence[turns.Turn], last_words: Listening | None = None) -> tuple[turns.Turn, ...] | None:
        """
        The history in writing.

        Args:
            last_words: of the turn that it ends with, where that is not over yet.

        Returns:
            None where nothing was said in what it ends with, and nothing before it waits for an answer.

        Raises:
            Fault: nobody could make out what it ends with.
        """
        told = await self.past(history[:-1])
        last = await self._turn(history[-1], last_words, is_last=True) if history else None
        kept = (*told, last) if last is not None else told
        if history and last is None and not (kept and _waits(kept[-1])):
            return None
        return kept

    async def past(self, history: Sequence[turns.Turn]) -> tuple[turns.Turn, ...]:
        """A history that goes on, in writing: without turns in which nothing was said, with a note for those that nobody could make out."""
        told = [await self._turn(turn) for turn in history]
        return tuple(turn for turn in told if turn is not None)

    async def _turn(self, turn: turns.Turn, words: Listening | None = None, *, is_last: bool = False) -> turns.Turn | None:
        """The turn; None where it was sound in which nothing was said."""
        if not any(isinstance(part, turns.SpeechPart) for part in parts_of(turn)):
            return turn
        assert isinstance(turn, turns.Message)
        parts = [await self._part(part, words, is_last=is_last) for part in turn.parts]
        kept = tuple(part for part in parts if part is not None)
        return structs.replace(turn, parts=kept) if kept else None

    async def _part(self, part: turns.Part, words: Listening | None, *, is_last: bool) -> turns.Part | None:
        if not isinstance(part, turns.SpeechPart):
            return part
        try:
            text = await self._text(part, words)
        except Fault:
            if is_last:
                raise
            text = UNHEARD
        return turns.TextPart(text) if text else None

    async def _text(self, part: turns.SpeechPart, words: Listening | None) -> str:
        if part.transcript is not None:
            return part.transcript
        if words is not None:
            transcript = await asyncio.shield(words)
            if isinstance(transcript, Fault):
                raise transcript
            return transcript.text
        known = await self._hearing.words_of(part.turn_id) if part.turn_id is not None else None
        if known is not None:
            return known
        return await self._of_sound(part.pcm, part.rate_hz) if part.pcm else UNHEARD

    async def _of_sound(self, pcm: bytes, rate_hz: int) -> str:
        key = (rate_hz, len(pcm), hash(pcm))
        if key not in self._given:
            heard = await asyncio.to_thread(resampled, pcm, rate_hz, HEARING_RATE_HZ)
            self._given[key] = (await self._ear.transcribe(heard, Transcription())).text
            if len(self._given) > SOUNDS_KEPT:
                del self._given[next(iter(self._given))]
        return self._given[key]


def parts_of(turn: turns.Turn) -> tuple[turns.Part, ...]:
    """What a turn consists of, where it is a message."""
    return turn.parts if isinstance(turn, turns.Message) else ()


def tokens_heard(history: Sequence[turns.Turn]) -> int:
    """How many tokens the sound in it counts."""
    sounds = [part for turn in history for part in parts_of(turn) if isinstance(part, turns.SpeechPart)]
    return sum(-(-int(ms_of(len(sound.pcm), sound.rate_hz)) // MS_PER_TOKEN) for sound in sounds)


def _waits(turn: turns.Turn) -> bool:
    """Whether a turn waits for an answer."""
    return isinstance(turn, turns.ToolResult) or (isinstance(turn, turns.Message) and turn.role != "assistant")


# What was foreseen


def turn_of(ask: commands.Respond) -> str | None:
    """The turn that an ask ends with."""
    last = parts_of(ask.history[-1])[-1:] if ask.history else ()
    return last[0].turn_id if last and isinstance(last[0], turns.SpeechPart) else None


def is_foreseen(foreseen: commands.Respond, ask: commands.Respond) -> bool:
    """Whether what is asked is what was foreseen, but for what has become known of turns in the meantime: their sound and their words."""
    return turn_of(foreseen) == turn_of(ask) is not None and _unheard(foreseen) == _unheard(ask)


def _unheard(ask: commands.Respond) -> commands.Respond:
    return structs.replace(ask, history=tuple(_without_sound(turn) for turn in ask.history))


def _without_sound(turn: turns.Turn) -> turns.Turn:
    if not isinstance(turn, turns.Message):
        return turn
    parts = tuple(
        structs.replace(part, pcm=b"", transcript=None) if isinstance(part, turns.SpeechPart) and part.turn_id else part
        for part in turn.parts
    )
    return structs.replace(turn, parts=parts)
