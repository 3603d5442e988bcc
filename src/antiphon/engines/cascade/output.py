"""
One answer of a cascade: the words of the engine within, as they are or aloud.

An answer may be begun before it is asked for. It is then held back until it is, or thrown away; nobody hears of what was thrown away.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

import msgspec

from antiphon.audio import bytes_of, ms_of
from antiphon.engine_api import events as talk_events
from antiphon.engine_api.engine import Deliver
from antiphon.engine_api.options import Voice
from antiphon.errors import Fault
from antiphon.speech.base import Mouth, Piece
from antiphon.speech.dsp.resample import Resampler
from antiphon.speech.text.aloud import aloud
from antiphon.speech.text.clauses import Clauses
from antiphon.speech.text.speakable import Speakable

MS_PER_TOKEN = 50
"""How much sound is counted as a token; models that make sound of their own count about so."""

PIECE_MS = 200
"""The most sound in one word: what is interrupted has been said up to one of them."""

MOST_HELD_MS = 10_000
"""How much of an answer that is held back is spoken: nobody may ever hear it."""

LATE_S = 0.25
"""How long after its first word an answer is waited for that is not yet one clause: a slow model takes a second for a long one."""

Ends = talk_events.Ended | talk_events.Broke

_BESIDE = (talk_events.Reasoning, talk_events.ReasoningBreak, talk_events.Sealed, talk_events.Annotated)
"""What says nothing, so that a clause may go on after it."""


class Answer:
    """
    An answer under way.

    Args:
        mouth: None for an answer in writing.
        deliver: takes its words.
        heard_tokens: what the sound in its history counts.
        is_held: whether it is begun before it is asked for.

    Attributes:
        id: by which the session knows it.
        ended: set when its last word was said, or nobody will hear it.
    """

    def __init__(
        self, id: str, voice: Voice | None, mouth: Mouth | None, deliver: Deliver, *, heard_tokens: int = 0, is_held: bool = False
    ) -> None:
        self.id = id
        self.ended = asyncio.Event()
        self._heard_tokens = heard_tokens
        self._voice = voice
        self._mouth = mouth if voice is not None else None
        self._deliver = deliver
        self._is_held = is_held
        self._held: list[talk_events.FromEngine] = []
        self._clauses = Clauses()
        self._queue: asyncio.Queue[str | talk_events.FromEngine] = asyncio.Queue()
        self._may_go_on = asyncio.Event()
        self._may_go_on.set()
        self._released = asyncio.Event()
        self._sound_ms = 0.0
        self._began_at: float | None = None
        self._used: talk_events.Used | None = None

    @property
    def has_failed(self) -> bool:
        """Whether it broke before anybody asked for it."""
        return bool(self._held) and isinstance(self._held[-1], talk_events.Broke)

    def release(self, heard_tokens: int) -> None:
        """It was asked for: say what was held back, and go on."""
        self._is_held = False
        self._heard_tokens = heard_tokens
        self._released.set()
        held, self._held = self._held, []
        if held:
            self._deliver([self._counted(word) for word in held])

    def discard(self) -> None:
        """Nobody will ask for it."""
        self.ended.set()
        self._held.clear()

    def pause(self) -> None:
        """The client is behind."""
        self._may_go_on.clear()

    def resume(self) -> None:
        """The client has caught up."""
        self._may_go_on.set()

    def take(self, words: Sequence[talk_events.FromEngine]) -> None:
        """Words of the engine within, under whatever id."""
        mine = [msgspec.structs.replace(word, id=self.id) if word.id != self.id else word for word in words]
        if self._mouth is None:
            self._say(mine)
            return
        for word in mine:
            for item in self._ready(word):
                self._queue.put_nowait(item)

    def _ready(self, word: talk_events.FromEngine) -> Sequence[str | talk_events.FromEngine]:
        """What can be said once that word has come: pieces of text aloud, all else as it is, in their order."""
        if isinstance(word, talk_events.Text | talk_events.Refusal):
            return self._clauses.take(word.text, is_late=self._is_late())
        if isinstance(word, _BESIDE):
            return [word]
        if isinstance(word, talk_events.Used):  # told when all is said, and how long that was is known
            self._used = word
            return []
        used, self._used = (self._used if isinstance(word, Ends) else None), None if isinstance(word, Ends) else self._used
        return [*self._clauses.flush(), *([used] if used else []), word]

    def _is_late(self) -> bool:
        now = asyncio.get_running_loop().time()
        self._began_at = self._began_at or now
        return now - self._began_at > LATE_S

    async def speak(self) -> None:
        """Say aloud what was taken, to the end; only for an answer that has a voice."""
        assert self._mouth is not None and self._voice is not None
        speakable = Speakable()
        resampler = Resampler(self._mouth.rate_hz, self._voice.rate_hz, live=True)
        while not self.ended.is_set():
            item = await self._queue.get()
            if isinstance(item, str):
                pieces = cast(AsyncGenerator[Piece, None], aloud(self._mouth, item, speakable, self._voice.name, self._voice.speed))
                async with aclosing(pieces):
                    async for piece in pieces:
                        await self._utter(piece.text, resampler.take(piece.pcm))
            else:
                if isinstance(item, talk_events.Ended | talk_events.Calling | talk_events.ItemBreak):
                    await self._utter("", resampler.flush())
                await self._may_go_on.wait()
                self._say([item])

    async def _utter(self, text: str, pcm: bytes) -> None:
        assert self._voice is not None
        if self._is_held and self._sound_ms > MOST_HELD_MS:
            await self._released.wait()
        await self._may_go_on.wait()
        words: list[talk_events.FromEngine] = [talk_events.Spoken(self.id, text)] if text else []
        most = bytes_of(PIECE_MS, self._voice.rate_hz)
        words += [talk_events.Sound(self.id, pcm[at : at + most]) for at in range(0, len(pcm), most)]
        self._sound_ms += ms_of(len(pcm), self._voice.rate_hz)
        self._say(words)

    def _counted(self, word: talk_events.FromEngine) -> talk_events.FromEngine:
        """What the engine within can't know is counted too: the sound that was heard, and that was made."""
        aloud_tokens = round(self._sound_ms / MS_PER_TOKEN)
        if not isinstance(word, talk_events.Used) or not (self._heard_tokens or aloud_tokens):
            return word
        return msgspec.structs.replace(
            word,
            input_tokens=word.input_tokens + self._heard_tokens,
            input_audio_tokens=self._heard_tokens,
            output_tokens=word.output_tokens + aloud_tokens,
            output_audio_tokens=aloud_tokens,
        )

    def fail(self, fault: Fault) -> None:
        """Say that it broke, if it was not over."""
        self._say([talk_events.Broke.by(self.id, fault)])

    def end(self, reason: talk_events.EndReason) -> None:
        """Say that it is over, if it wasn't."""
        self._say([talk_events.Ended(self.id, reason)])

    def _say(self, words: Sequence[talk_events.FromEngine]) -> None:
        if self.ended.is_set() or not words:
            return
        if isinstance(words[-1], Ends):
            self.ended.set()
        if self._is_held:
            self._held += words
        else:
            self._deliver([self._counted(word) for word in words])
