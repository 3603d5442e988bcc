"""
Ears and a voice around any engine that answers in writing.

A turn is heard, written down, put to the engine within, and its answer is read aloud clause by clause. While the silence after a turn is
still being counted, the turn is already written down and the answer begun; it is held back until it is asked for, and thrown away if the
person goes on speaking.

`docs/reference/engine-cascade.md` describes what it does and how it is set.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

from msgspec import structs

from antiphon import talk, turns
from antiphon.engines.base import Conversation, CountingEngine, Deliver, Engine
from antiphon.engines.cascade_hearing import Hearing, Listening
from antiphon.engines.cascade_parts import Parts
from antiphon.engines.cascade_speaking import Answer
from antiphon.errors import Fault, OurFault
from antiphon.speech.base import HEARING_RATE_HZ
from antiphon.speech.resample import resampled

UNHEARD = "(The sound of this is gone, and so are its words.)"
"""What the engine within is told of what was said so long ago that nobody remembers it."""


class Cascade:
    """
    An engine with ears and a voice.

    Args:
        within: answers in writing. Whoever made it starts and stops it, and the parts, too.
        ready: awaited before every conversation; makes the parts ready where they aren't.
    """

    def __init__(
        self, within: Engine, parts: Parts, *, ready: Callable[[], Awaitable[None]] | None = None, speculates: bool = True
    ) -> None:
        self._within = within
        self._parts = parts
        self._ready = ready
        self._speculates = speculates
        self.abilities = structs.replace(_abilities(within.abilities, parts), foresees=speculates and parts.ear is not None)

    async def start(self) -> None:
        """Nothing of its own to load."""

    async def stop(self) -> None:
        """Nothing of its own to let go of."""

    async def count(self, ask: talk.Respond) -> int:
        """The tokens that the engine within reads."""
        within: CountingEngine = self._within  # type: ignore[assignment]  # asked only where its abilities say so
        return await within.count(ask)

    @contextlib.asynccontextmanager
    async def open(self, settings: talk.Settings, deliver: Deliver) -> AsyncIterator[Conversation]:
        """
        A conversation that hears, and answers aloud where that is asked.

        Raises:
            Fault: the parts of speech can't be made ready.
        """
        if self._ready is not None:
            await self._ready()
        async with asyncio.TaskGroup() as tasks:
            conversation = _Conversation(self._parts, deliver, tasks, speculates=self._speculates)
            async with self._within.open(settings, conversation.take) as within:
                conversation.within = within
                try:
                    yield conversation
                finally:
                    conversation.close()


def _abilities(within: talk.Abilities, parts: Parts) -> talk.Abilities:
    ear, mouth, activity = parts.ear, parts.mouth, parts.activity
    kinds = ("server_vad", "semantic_vad") if parts.smart_turn is not None else ("server_vad",)
    return structs.replace(
        within,
        audio_in=ear is not None,
        listens=ear is not None,
        transcribes=ear is not None,
        turn_detection=kinds if ear is not None and activity is not None else (),
        noise_reduction=tuple(parts.noise_reduction) if ear is not None else (),
        languages=ear.languages if ear is not None else (),
        takes_prompt=ear is not None and ear.takes_prompt,
        audio_out=mouth is not None,
        voices=parts.voices if mouth is not None else (),
    )


class _Work:
    """
    An answer, and the task that sees to it.

    Attributes:
        ask: as the session asked it, or will.
        turn_id: of the turn that it was begun before the end of; None for one that was asked for.
        task: prepares it and says it.
    """

    def __init__(self, ask: talk.Respond, answer: Answer, turn_id: str | None) -> None:
        self.ask = ask
        self.answer = answer
        self.turn_id = turn_id
        self.task: asyncio.Task[None] | None = None


class _Conversation:
    """
    One conversation: a session without, an engine within.

    Attributes:
        within: the engine's side of it.
    """

    within: Conversation

    def __init__(self, parts: Parts, deliver: Deliver, tasks: asyncio.TaskGroup, *, speculates: bool) -> None:
        self._parts = parts
        self._deliver = deliver
        self._tasks = tasks
        self._speculates = speculates
        self._hearing = Hearing(parts, self._say, self, tasks)
        self._works: dict[str, _Work] = {}  # by the id that the engine within knows
        self._begun = 0
        self._foreseen: talk.Respond | None = None
        self._ahead: str | None = None
        self._is_paused = self._is_closed = False

    # What the session says

    def tell(self, word: talk.ToEngine) -> None:
        match word:
            case talk.Hear(pcm):
                self._hearing.hear(pcm)
            case talk.Respond():
                self._respond(word)
            case talk.Cancel(id):
                self._cancel(id)
            case talk.Foresee(ask):
                self._foresee(ask)
            case talk.Configure():
                self._hearing.configure(word)
            case talk.Commit(id):
                self._drop_ahead()
                self._hearing.commit(id)
            case talk.Forget():
                self._drop_ahead()
                self._hearing.forget()

    def pause(self) -> None:
        self._is_paused = True
        self.within.pause()
        for work in self._works.values():
            work.answer.pause()

    def resume(self) -> None:
        self._is_paused = False
        self.within.resume()
        for work in self._works.values():
            work.answer.resume()

    def close(self) -> None:
        """Stop, and say nothing more."""
        self._is_closed = True
        self._hearing.close()
        for work in tuple(self._works.values()):
            if work.task is not None:
                work.task.cancel()

    def _say(self, words: Sequence[talk.FromEngine]) -> None:
        if not self._is_closed:
            self._deliver(words)

    # Answers

    def _respond(self, ask: talk.Respond) -> None:
        ahead = self._works.get(self._ahead) if self._ahead is not None else None
        if ahead is not None and _is_foreseen(ahead.ask, ask):
            self._ahead = None
            # Not at once, as words may be waiting already and the session is in the middle of deciding.
            asyncio.get_running_loop().call_soon(ahead.answer.release)
            return
        self._drop_ahead()
        self._begin(ask, None)

    def _begin(self, ask: talk.Respond, ahead_of: str | None, words: Listening | None = None) -> str:
        self._begun += 1
        within_id = ask.id if ahead_of is None and ask.id not in self._works else f"{ask.id}.{self._begun}"
        answer = Answer(ask.id, ask.voice, self._parts.mouth, self._say, is_held=ahead_of is not None)
        work = self._works[within_id] = _Work(ask, answer, ahead_of)
        if self._is_paused:
            answer.pause()
        work.task = self._tasks.create_task(self._see_to(within_id, work, words))
        work.task.add_done_callback(partial(self._over, within_id, work))
        return within_id

    async def _see_to(self, within_id: str, work: _Work, words: Listening | None) -> None:
        try:
            history = await self._written(work.ask.history, words)
            if history is None:  # nothing was said that anyone could answer
                work.answer.end("stop")
                return
            self.within.tell(structs.replace(work.ask, id=within_id, history=history, voice=None))
            if work.ask.voice is not None and self._parts.mouth is not None:
                await work.answer.speak()
            else:
                await self._ended(work)
        except Fault as fault:
            self.within.tell(talk.Cancel(within_id))
            work.answer.fail(fault)

    async def _ended(self, work: _Work) -> None:
        await work.answer.ended.wait()

    def _over(self, within_id: str, work: _Work, task: "asyncio.Task[None]") -> None:
        # Also where the task was cancelled before its first step.
        del self._works[within_id]
        if self._ahead == within_id:
            # It was whole before it was asked for, and goes on waiting to be.
            self._works[within_id] = work
        if task.cancelled() and not self._is_closed:
            work.answer.end("cancelled")

    def _cancel(self, id: str) -> None:
        for within_id, work in tuple(self._works.items()):
            if work.ask.id == id and within_id != self._ahead:
                self._stop(within_id, work)

    def _stop(self, within_id: str, work: _Work) -> None:
        self.within.tell(talk.Cancel(within_id))
        if work.task is not None:
            work.task.cancel()

    def take(self, words: Sequence[talk.FromEngine]) -> None:
        """Words of the engine within; those of an answer that nobody waits for are nothing."""
        start = 0
        for end in range(1, len(words) + 1):
            if end == len(words) or words[end].id != words[start].id:
                work = self._works.get(words[start].id)
                if work is not None:
                    work.answer.take(words[start:end])
                start = end

    # What is begun before it is asked for

    def _foresee(self, ask: talk.Respond) -> None:
        if self._foreseen is not None and not _is_foreseen(self._foreseen, ask):
            self._drop_ahead()
        self._foreseen = ask

    def paused(self, turn_id: str, words: Listening) -> None:
        """A turn may be over: begin with its answer."""
        ask = self._foreseen
        if self._speculates and ask is not None and _turn_of(ask) == turn_id:
            self._drop_ahead()
            self._ahead = self._begin(ask, turn_id, words)

    def resumed(self, turn_id: str) -> None:
        """It wasn't."""
        self._drop_ahead()

    def _drop_ahead(self) -> None:
        within_id, self._ahead = self._ahead, None
        work = self._works.get(within_id) if within_id is not None else None
        if within_id is None or work is None:
            return
        work.answer.discard()
        self._stop(within_id, work)
        if work.task is not None and work.task.done():
            self._works.pop(within_id, None)

    # What was said, in writing

    async def _written(self, history: tuple[turns.Turn, ...], words: Listening | None) -> tuple[turns.Turn, ...] | None:
        """The history with words for sound; None where the last of it has none."""
        told: list[turns.Turn] = []
        for number, turn in enumerate(history):
            if not isinstance(turn, turns.Message) or not any(isinstance(part, turns.SpeechPart) for part in turn.parts):
                told.append(turn)
                continue
            is_last = number == len(history) - 1
            parts = [await self._part(part, words if is_last else None) for part in turn.parts]
            kept = tuple(part for part in parts if part is not None)
            if kept:
                told.append(structs.replace(turn, parts=kept))
            elif is_last:
                return None
        return tuple(told)

    async def _part(self, part: turns.Part, words: Listening | None) -> turns.Part | None:
        if not isinstance(part, turns.SpeechPart):
            return part
        text = await self._words(part, words)
        return turns.TextPart(text) if text else None

    async def _words(self, part: turns.SpeechPart, words: Listening | None) -> str:
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
        if not part.pcm:
            return UNHEARD
        if self._parts.ear is None:
            raise OurFault("Nobody here can hear.")
        return (await self._parts.ear.transcribe(resampled(part.pcm, part.rate_hz, HEARING_RATE_HZ), talk.Transcription())).text


def _turn_of(ask: talk.Respond) -> str | None:
    """The turn that an ask ends with."""
    last = ask.history[-1] if ask.history else None
    part = last.parts[-1] if isinstance(last, turns.Message) and last.parts else None
    return part.turn_id if isinstance(part, turns.SpeechPart) else None


def _is_foreseen(foreseen: talk.Respond, ask: talk.Respond) -> bool:
    """Whether what is asked is what was foreseen, but for the sound of the turn that was still open then."""
    return _turn_of(foreseen) == _turn_of(ask) is not None and _unheard(foreseen) == _unheard(ask)


def _unheard(ask: talk.Respond) -> talk.Respond:
    last = ask.history[-1]
    assert isinstance(last, turns.Message)
    part = last.parts[-1]
    assert isinstance(part, turns.SpeechPart)
    bare = structs.replace(last, parts=(*last.parts[:-1], structs.replace(part, pcm=b"", transcript=None)))
    return structs.replace(ask, history=(*ask.history[:-1], bare))
