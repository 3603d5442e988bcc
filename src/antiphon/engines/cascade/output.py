"""
One answer of a cascade: the inner engine's events as they are, or spoken.

A speculative answer is held back until the session requests it, or discarded; nothing of a discarded one is delivered.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import msgspec
from msgspec import Struct

from antiphon.audio import OUTPUT_MS_PER_TOKEN, duration_ms, size_bytes
from antiphon.engine_api import events as engine_events
from antiphon.engine_api.engine import Deliver
from antiphon.engine_api.options import Voice
from antiphon.errors import ApiError
from antiphon.speech.base import Synthesizer
from antiphon.speech.dsp.resample import Resampler
from antiphon.speech.text.clauses import ClauseSplitter, ends_melody
from antiphon.speech.text.speakable import TextNormalizer, synthesize_clause

MAX_CHUNK_MS = 200
"""The most audio in one event, so that an interruption cuts close to where it happens."""

MAX_SPECULATIVE_AUDIO_MS = 10_000
"""How much of a speculative answer is synthesized: it may be discarded."""

MIN_AHEAD_S = 0.6
"""
How much speech there should be ahead of the listener. With less, a part of a sentence is spoken as soon as it is there.
"""

MAX_QUEUED_ITEMS = 1 << 16
"""
Clauses and events that wait to be spoken, hours of speech. When there are more the answer ends there, with reason
`length`.
"""

_SILENT_EVENTS = (
    engine_events.ReasoningDelta,
    engine_events.ReasoningBoundary,
    engine_events.EncryptedReasoning,
    engine_events.AnnotationAdded,
    engine_events.RetryScheduled,
    engine_events.AttemptsReported,
)
"""Events without spoken text: a clause may go on after them."""


class _Clause(Struct, frozen=True):
    """A text to speak, and whether its sentence goes on after it."""

    text: str
    continues: bool


_QueueItem = _Clause | engine_events.EngineEvent


class SpokenAnswer:
    """
    An answer under way.

    Args:
        synthesizer: None for a text answer.
        deliver: takes its events.
        input_audio_tokens: what the audio in its history counts as.
        is_speculative: whether the session has not requested it yet.

    Attributes:
        id: the session's id for it.
        end_signal: set once its last event was emitted, or it was discarded.
    """

    def __init__(
        self,
        id: str,
        voice: Voice | None,
        synthesizer: Synthesizer | None,
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
        self._clauses = ClauseSplitter(joins_parts=synthesizer is not None and synthesizer.joins_parts)
        self._queue: asyncio.Queue[_QueueItem] = asyncio.Queue(MAX_QUEUED_ITEMS + 1)  # and the end of a cut answer
        self._resume_signal = asyncio.Event()
        self._resume_signal.set()
        self._release_signal = asyncio.Event()
        self._audio_ms = 0.0
        self._is_speaking = False
        self._plays_until = 0.0  # by the loop's clock; not before `release`
        self._usage: engine_events.Usage | None = None

    @property
    def has_failed(self) -> bool:
        """Whether it failed before the session requested it."""
        return bool(self._pending_events) and isinstance(self._pending_events[-1], engine_events.ResponseFailed)

    def release(self, input_audio_tokens: int) -> None:
        """The session requested it: deliver what was held back, and go on."""
        self._is_speculative = False
        self._input_audio_tokens = input_audio_tokens
        self._plays_until = asyncio.get_running_loop().time() + self._audio_ms / 1000
        self._release_signal.set()
        pending, self._pending_events = self._pending_events, []
        if pending:
            self._deliver([self._add_audio_usage(event) for event in pending])

    def discard(self) -> None:
        """The session will not request it: deliver nothing."""
        self.end_signal.set()
        self._pending_events.clear()

    def pause(self) -> None:
        """Emit nothing until `resume`."""
        self._resume_signal.clear()

    def resume(self) -> None:
        self._resume_signal.set()

    def receive(self, events: Sequence[engine_events.EngineEvent]) -> None:
        """Take events of the inner engine, under its own id."""
        batch = [msgspec.structs.replace(event, id=self.id) if event.id != self.id else event for event in events]
        if self._synthesizer is None:
            self._emit(batch)
            return
        for event in batch:
            for item in self._to_queue_items(event):
                self._enqueue(item)

    def _enqueue(self, item: _QueueItem) -> None:
        waiting = self._queue.qsize()
        if waiting < MAX_QUEUED_ITEMS or (isinstance(item, engine_events.TerminalEvent) and not self._queue.full()):
            self._queue.put_nowait(item)
        elif waiting == MAX_QUEUED_ITEMS:
            self._queue.put_nowait(engine_events.ResponseEnded(self.id, "length"))

    def _to_queue_items(self, event: engine_events.EngineEvent) -> Sequence[_QueueItem]:
        """What an event adds to the queue, in order: clauses to speak, and events to pass on."""
        if isinstance(event, engine_events.TextDelta | engine_events.RefusalDelta):
            return self._complete_clauses(event.text)
        if isinstance(event, _SILENT_EVENTS):
            return [event]
        if isinstance(event, engine_events.Usage):  # held back until the length of the spoken audio is known
            self._usage = event
            return []
        items: list[_QueueItem] = [_Clause(text, continues=False) for text in self._clauses.flush()]
        if isinstance(event, engine_events.TerminalEvent) and self._usage is not None:
            items.append(self._usage)
            self._usage = None
        return [*items, event]

    def _complete_clauses(self, text: str) -> list[_Clause]:
        is_late = not self._is_speaking and self._queue.empty() and self._ahead_s() < MIN_AHEAD_S
        return [_Clause(clause, continues=not ends_melody(clause)) for clause in self._clauses.feed(text, is_late=is_late)]

    def _ahead_s(self) -> float:
        """How long what was spoken will play; all of it, as long as nobody listens to a speculative answer."""
        return self._audio_ms / 1000 if self._is_speculative else self._plays_until - asyncio.get_running_loop().time()

    async def _next_item(self) -> _QueueItem:
        """What to speak or pass on next; a part of a sentence, if its listener will soon have heard all before it."""
        if self._queue.empty() and not self._is_speculative:
            try:
                async with asyncio.timeout(max(0.0, self._ahead_s() - MIN_AHEAD_S)):
                    return await self._queue.get()
            except TimeoutError:
                for clause in self._complete_clauses(""):
                    self._enqueue(clause)
        return await self._queue.get()

    async def speak(self) -> None:
        """Speak the answer to its end; only for one with a voice."""
        assert self._synthesizer is not None and self._voice is not None
        normalizer = TextNormalizer()
        resampler = Resampler(self._synthesizer.rate_hz, self._voice.rate_hz, live=True)
        while not self.end_signal.is_set():
            item = await self._next_item()
            if isinstance(item, _Clause):
                self._is_speaking = True
                speech = synthesize_clause(
                    self._synthesizer, item.text, normalizer, self._voice.name, self._voice.speed, continues=item.continues
                )
                async with aclosing(speech) as chunks:
                    async for chunk in chunks:
                        await self._deliver_audio(chunk.text, resampler.process(chunk.pcm))
                self._is_speaking = False
            else:
                # What the resampler still holds belongs before the end of the speech, or of this part of it.
                if isinstance(item, engine_events.ResponseEnded | engine_events.ToolCallStarted | engine_events.ItemBoundary):
                    await self._deliver_audio("", resampler.flush())
                await self._resume_signal.wait()
                self._emit([item])

    async def _deliver_audio(self, text: str, pcm: bytes) -> None:
        assert self._voice is not None
        if self._is_speculative and self._audio_ms > MAX_SPECULATIVE_AUDIO_MS:
            await self._release_signal.wait()
        await self._resume_signal.wait()
        batch: list[engine_events.EngineEvent] = [engine_events.AudioTranscriptDelta(self.id, text)] if text else []
        max_bytes = size_bytes(MAX_CHUNK_MS, self._voice.rate_hz)
        batch += [engine_events.AudioDelta(self.id, pcm[start : start + max_bytes]) for start in range(0, len(pcm), max_bytes)]
        added_ms = duration_ms(len(pcm), self._voice.rate_hz)
        self._audio_ms += added_ms
        self._plays_until = max(self._plays_until, asyncio.get_running_loop().time()) + added_ms / 1000
        self._emit(batch)

    def _add_audio_usage(self, event: engine_events.EngineEvent) -> engine_events.EngineEvent:
        """The usage with what the inner engine can't know: audio heard and audio spoken."""
        output_audio_tokens = round(self._audio_ms / OUTPUT_MS_PER_TOKEN)
        if not isinstance(event, engine_events.Usage) or not (self._input_audio_tokens or output_audio_tokens):
            return event
        return msgspec.structs.replace(
            event,
            input_tokens=event.input_tokens + self._input_audio_tokens,
            input_audio_tokens=self._input_audio_tokens,
            output_tokens=event.output_tokens + output_audio_tokens,
            output_audio_tokens=output_audio_tokens,
        )

    def fail(self, error: ApiError) -> None:
        """End it with an error, if it has not ended."""
        self._emit([engine_events.ResponseFailed.from_error(self.id, error)])

    def end(self, reason: engine_events.EndReason) -> None:
        """End it, if it has not ended."""
        self._emit([engine_events.ResponseEnded(self.id, reason)])

    def _emit(self, events: Sequence[engine_events.EngineEvent]) -> None:
        if self.end_signal.is_set() or not events:
            return
        if isinstance(events[-1], engine_events.TerminalEvent):
            self.end_signal.set()
        if self._is_speculative:
            self._pending_events += events
        else:
            self._deliver([self._add_audio_usage(event) for event in events])
