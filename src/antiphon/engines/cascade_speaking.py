"""
One answer of a cascade: the words of the engine within, as they are or aloud.

An answer may be begun before it is asked for. It is then held back until it is, or thrown away; nobody hears of what was thrown away.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

import msgspec

from antiphon import talk
from antiphon.audio import bytes_of, ms_of
from antiphon.engines.base import Deliver
from antiphon.errors import Fault
from antiphon.speech.aloud import aloud
from antiphon.speech.base import Mouth, Piece
from antiphon.speech.clauses import Clauses
from antiphon.speech.resample import Resampler
from antiphon.speech.speakable import Speakable

MS_PER_TOKEN = 50
"""How much sound is counted as a token; models that make sound of their own count about so."""

PIECE_MS = 200
"""The most sound in one word: what is interrupted has been said up to one of them."""

Ends = talk.Ended | talk.Broke


class Answer:
    """
    An answer under way.

    Args:
        mouth: None for an answer in writing.
        deliver: takes its words.

    Attributes:
        id: by which the session knows it.
        is_over: whether its last word was said.
        ended: is set then.
    """

    def __init__(self, id: str, voice: talk.Voice | None, mouth: Mouth | None, deliver: Deliver, *, is_held: bool = False) -> None:
        self.id = id
        self.is_over = False
        self.ended = asyncio.Event()
        self._voice = voice
        self._mouth = mouth if voice is not None else None
        self._deliver = deliver
        self._is_held = is_held
        self._held: list[talk.FromEngine] = []
        self._clauses = Clauses()
        self._queue: asyncio.Queue[str | talk.FromEngine] = asyncio.Queue()
        self._may_go_on = asyncio.Event()
        self._may_go_on.set()
        self._sound_ms = 0.0
        self._used: talk.Used | None = None

    def release(self) -> None:
        """It was asked for: say what was held back, and go on."""
        self._is_held = False
        held, self._held = self._held, []
        if held:
            self._deliver(held)

    def discard(self) -> None:
        """Nobody will ask for it."""
        self.is_over = True
        self._held.clear()

    def pause(self) -> None:
        """The client is behind."""
        self._may_go_on.clear()

    def resume(self) -> None:
        """The client has caught up."""
        self._may_go_on.set()

    def take(self, words: Sequence[talk.FromEngine]) -> None:
        """Words of the engine within, under whatever id."""
        mine = [msgspec.structs.replace(word, id=self.id) if word.id != self.id else word for word in words]
        if self._mouth is None:
            self._say(mine)
            return
        for word in mine:
            for item in self._ready(word):
                self._queue.put_nowait(item)

    def _ready(self, word: talk.FromEngine) -> Sequence[str | talk.FromEngine]:
        """What can be said once that word has come: pieces of text aloud, all else as it is, in their order."""
        if isinstance(word, talk.Text | talk.Refusal):
            return self._clauses.take(word.text)
        if isinstance(word, talk.Reasoning | talk.ReasoningBreak):
            return [word]
        if isinstance(word, talk.Used):  # told when all is said, and how long that was is known
            self._used = word
            return []
        used, self._used = (self._used if isinstance(word, Ends) else None), None if isinstance(word, Ends) else self._used
        return [*self._clauses.flush(), *([used] if used else []), word]

    async def speak(self) -> None:
        """Say aloud what was taken, to the end; only for an answer that has a voice."""
        assert self._mouth is not None and self._voice is not None
        speakable = Speakable()
        resampler = Resampler(self._mouth.rate_hz, self._voice.rate_hz, live=True)
        while not self.is_over:
            item = await self._queue.get()
            if isinstance(item, str):
                pieces = cast(AsyncGenerator[Piece, None], aloud(self._mouth, item, speakable, self._voice.name, self._voice.speed))
                async with aclosing(pieces):
                    async for piece in pieces:
                        await self._utter(piece.text, resampler.take(piece.pcm))
            else:
                if isinstance(item, talk.Ended | talk.Calling):
                    await self._utter("", resampler.flush())
                await self._may_go_on.wait()
                self._say([self._counted(item)])

    async def _utter(self, text: str, pcm: bytes) -> None:
        assert self._voice is not None
        await self._may_go_on.wait()
        words: list[talk.FromEngine] = [talk.Spoken(self.id, text)] if text else []
        most = bytes_of(PIECE_MS, self._voice.rate_hz)
        words += [talk.Sound(self.id, pcm[at : at + most]) for at in range(0, len(pcm), most)]
        self._sound_ms += ms_of(len(pcm), self._voice.rate_hz)
        self._say(words)

    def _counted(self, word: talk.FromEngine) -> talk.FromEngine:
        if not isinstance(word, talk.Used):
            return word
        aloud_tokens = round(self._sound_ms / MS_PER_TOKEN)
        return msgspec.structs.replace(word, output_tokens=word.output_tokens + aloud_tokens, output_audio_tokens=aloud_tokens)

    def fail(self, fault: Fault) -> None:
        """Say that it broke, if it was not over."""
        self._say([talk.Broke.by(self.id, fault)])

    def end(self, reason: talk.EndReason) -> None:
        """Say that it is over, if it wasn't."""
        self._say([talk.Ended(self.id, reason)])

    def _say(self, words: Sequence[talk.FromEngine]) -> None:
        if self.is_over or not words:
            return
        if isinstance(words[-1], Ends):
            self.is_over = True
            self.ended.set()
        if self._is_held:
            self._held += words
        else:
            self._deliver(words)
