"""
One answer of a cascade: the words of the engine within, as they are or aloud.

An answer may be begun before it is asked for. It is then held back until it is, or thrown away; nobody hears of what was thrown away.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

import msgspec

from antiphon.audio import duration_ms, size_bytes
from antiphon.engine_api import events as engine_events
from antiphon.engine_api.engine import Deliver
from antiphon.engine_api.options import Voice
from antiphon.errors import ApiError
from antiphon.speech.base import Mouth, Piece
from antiphon.speech.dsp.resample import Resampler
from antiphon.speech.text.clauses import ClauseSplitter
from antiphon.speech.text.speakable import TextNormalizer, synthesize_clause

OUTPUT_MS_PER_TOKEN = 50
"""How much sound is counted as a token; models that make sound of their own count about so."""

MAX_CHUNK_MS = 200
"""The most sound in one word: what is interrupted has been said up to one of them."""

MAX_SPECULATIVE_AUDIO_MS = 10_000
"""How much of an answer that is held back is spoken: nobody may ever hear it."""

CLAUSE_TIMEOUT_S = 0.25
"""How long after its first word an answer is waited for that is not yet one clause: a slow model takes a second for a long one."""

TerminalEvent = engine_events.ResponseEnded | engine_events.ResponseFailed

_SILENT_EVENTS = (
    engine_events.ReasoningDelta,
    engine_events.ReasoningBoundary,
    engine_events.EncryptedReasoning,
    engine_events.AnnotationAdded,
)
"""What says nothing, so that a clause may go on after it."""


class SpokenAnswer:
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
        self,
        id: str,
        voice: Voice | None,
        synthesizer: Mouth | None,
        deliver: Deliver,
        *,
        input_audio_tokens: int = 0,
        is_speculative: bool = False,
    ) -> None:
        self.id = id
        self.end_signal = asyncio.Event()
        self._input_audio_tokens = input_audio_tokens
        self._voice = voice
        self._synthesizer = synthesizer if voice is not None else None
        self._deliver = deliver
        self._is_speculative = is_speculative
        self._pending_events: list[engine_events.EngineEvent] = []
        self._clauses = ClauseSplitter()
        self._queue: asyncio.Queue[str | engine_events.EngineEvent] = asyncio.Queue()
        self._resume_signal = asyncio.Event()
        self._resume_signal.set()
        self._release_signal = asyncio.Event()
        self._audio_ms = 0.0
        self._first_text_at: float | None = None
        self._usage: engine_events.Usage | None = None

    @property
    def has_failed(self) -> bool:
        """Whether it broke before anybody asked for it."""
        return bool(self._pending_events) and isinstance(self._pending_events[-1], engine_events.ResponseFailed)

    def release(self, input_audio_tokens: int) -> None:
        """It was asked for: say what was held back, and go on."""
        self._is_speculative = False
        self._input_audio_tokens = input_audio_tokens
        self._release_signal.set()
        held, self._pending_events = self._pending_events, []
        if held:
            self._deliver([self._add_audio_usage(word) for word in held])

    def discard(self) -> None:
        """Nobody will ask for it."""
        self.end_signal.set()
        self._pending_events.clear()

    def pause(self) -> None:
        """The client is behind."""
        self._resume_signal.clear()

    def resume(self) -> None:
        """The client has caught up."""
        self._resume_signal.set()

    def receive(self, events: Sequence[engine_events.EngineEvent]) -> None:
        """Words of the engine within, under whatever id."""
        mine = [msgspec.structs.replace(word, id=self.id) if word.id != self.id else word for word in events]
        if self._synthesizer is None:
            self._emit(mine)
            return
        for word in mine:
            for item in self._to_queue_items(word):
                self._queue.put_nowait(item)

    def _to_queue_items(self, event: engine_events.EngineEvent) -> Sequence[str | engine_events.EngineEvent]:
        """What can be said once that word has come: pieces of text aloud, all else as it is, in their order."""
        if isinstance(event, engine_events.TextDelta | engine_events.RefusalDelta):
            return self._clauses.feed(event.text, is_late=self._is_late())
        if isinstance(event, _SILENT_EVENTS):
            return [event]
        if isinstance(event, engine_events.Usage):  # told when all is said, and how long that was is known
            self._usage = event
            return []
        used, self._usage = (
            (self._usage if isinstance(event, TerminalEvent) else None),
            None if isinstance(event, TerminalEvent) else self._usage,
        )
        return [*self._clauses.flush(), *([used] if used else []), event]

    def _is_late(self) -> bool:
        now = asyncio.get_running_loop().time()
        self._first_text_at = self._first_text_at or now
        return now - self._first_text_at > CLAUSE_TIMEOUT_S

    async def speak(self) -> None:
        """Say aloud what was taken, to the end; only for an answer that has a voice."""
        assert self._synthesizer is not None and self._voice is not None
        speakable = TextNormalizer()
        resampler = Resampler(self._synthesizer.rate_hz, self._voice.rate_hz, live=True)
        while not self.end_signal.is_set():
            item = await self._queue.get()
            if isinstance(item, str):
                pieces = cast(
                    AsyncGenerator[Piece, None], synthesize_clause(self._synthesizer, item, speakable, self._voice.name, self._voice.speed)
                )
                async with aclosing(pieces):
                    async for piece in pieces:
                        await self._deliver_audio(piece.text, resampler.process(piece.pcm))
            else:
                if isinstance(item, engine_events.ResponseEnded | engine_events.ToolCallStarted | engine_events.ItemBoundary):
                    await self._deliver_audio("", resampler.flush())
                await self._resume_signal.wait()
                self._emit([item])

    async def _deliver_audio(self, text: str, pcm: bytes) -> None:
        assert self._voice is not None
        if self._is_speculative and self._audio_ms > MAX_SPECULATIVE_AUDIO_MS:
            await self._release_signal.wait()
        await self._resume_signal.wait()
        words: list[engine_events.EngineEvent] = [engine_events.AudioTranscriptDelta(self.id, text)] if text else []
        most = size_bytes(MAX_CHUNK_MS, self._voice.rate_hz)
        words += [engine_events.AudioDelta(self.id, pcm[at : at + most]) for at in range(0, len(pcm), most)]
        self._audio_ms += duration_ms(len(pcm), self._voice.rate_hz)
        self._emit(words)

    def _add_audio_usage(self, event: engine_events.EngineEvent) -> engine_events.EngineEvent:
        """What the engine within can't know is counted too: the sound that was heard, and that was made."""
        aloud_tokens = round(self._audio_ms / OUTPUT_MS_PER_TOKEN)
        if not isinstance(event, engine_events.Usage) or not (self._input_audio_tokens or aloud_tokens):
            return event
        return msgspec.structs.replace(
            event,
            input_tokens=event.input_tokens + self._input_audio_tokens,
            input_audio_tokens=self._input_audio_tokens,
            output_tokens=event.output_tokens + aloud_tokens,
            output_audio_tokens=aloud_tokens,
        )

    def fail(self, error: ApiError) -> None:
        """Say that it broke, if it was not over."""
        self._emit([engine_events.ResponseFailed.from_error(self.id, error)])

    def end(self, reason: engine_events.EndReason) -> None:
        """Say that it is over, if it wasn't."""
        self._emit([engine_events.ResponseEnded(self.id, reason)])

    def _emit(self, events: Sequence[engine_events.EngineEvent]) -> None:
        if self.end_signal.is_set() or not events:
            return
        if isinstance(events[-1], TerminalEvent):
            self.end_signal.set()
        if self._is_speculative:
            self._pending_events += events
        else:
            self._deliver([self._add_audio_usage(word) for word in events])
