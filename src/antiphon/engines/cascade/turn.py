"""One turn of a cascade's conversation, and the words that are made of it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from antiphon.audio import ms_of
from antiphon.engine_api.options import Transcription
from antiphon.errors import Fault
from antiphon.speech.base import HEARING_RATE_HZ, Ear, Transcript
from antiphon.speech.stt.partials import Partials

MOST_MS = 30 * 60_000
"""The most sound of one turn that is written down; of a longer one, the beginning."""

PATIENCE_S = 1.0
"""After which an ear that failed in the middle of a turn is asked again, where it doesn't say itself."""

Listening = asyncio.Task[Transcript | Fault]
"""Words being made of sound; a fault where they can't be had."""


class Begin(Protocol):
    """Begins with work that is seen to its end, or stopped when the conversation is over."""

    def __call__(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """The task in which it is done."""


class Turn:
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
        self, id: str, start_ms: int, ear: Ear, wish: Transcription, begin: Begin, tell: Callable[[str], None] | None = None
    ) -> None:
        self.id = id
        self.start_ms = start_ms
        self.end_ms = float(start_ms)
        self.paused_ms: int | None = None
        self.speech_ms: float | None = None
        self.words: Listening | None = None
        self._begin = begin
        self._partials = Partials(ear, wish, tell or _nobody)
        self._is_told = tell is not None
        self._meanwhile: asyncio.Task[None] | None = None

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.end_ms - self.start_ms) / 1000

    def hear(self, pcm: bytes) -> None:
        """It goes on: s16le at `HEARING_RATE_HZ`."""
        self.end_ms += ms_of(len(pcm), HEARING_RATE_HZ)
        if self._partials.heard_ms < MOST_MS:
            self._partials.hear(pcm)
        if self._meanwhile is None or self._meanwhile.done():
            self._listen_meanwhile()

    def _listen_meanwhile(self) -> None:
        if self._is_told:
            self._meanwhile = self._begin(self._partials.run())
        elif self._partials.is_long:
            self._meanwhile = self._begin(self._settle())

    async def _settle(self) -> None:
        try:
            await self._partials.settle()
        except Fault as fault:
            await asyncio.sleep(fault.retry_after_s or PATIENCE_S)

    def write(self) -> Listening:
        """Make words of all that was heard."""
        self._stop()
        self.words = self._begin(self._listen())
        return self.words

    def go_on(self) -> None:
        """What was made of it is not all, or is nothing."""
        self.paused_ms = None
        self._stop()

    def rest(self, transcript: Transcript) -> str:
        """What of its transcript is still to be told."""
        return self._partials.finish(transcript.text)

    def _stop(self) -> None:
        for task in (self._meanwhile, self.words):
            if task is not None:
                task.cancel()
        self._meanwhile = self.words = None

    async def _listen(self) -> Transcript | Fault:
        try:
            return await self._partials.transcript(None if self.speech_ms is None else self.speech_ms / 1000)
        except Fault as fault:
            return fault


def _nobody(_text: str) -> None:
    """Reads along."""
