"""
Ears and a voice around any engine that answers in writing, and ears around one that hears and speaks but takes whole turns.

A turn is heard, written down, put to the engine within, and its answer is read aloud clause by clause. An engine that answers by the
sound of a turn is given that, and one that speaks says its answer itself. While the silence after a turn is
still being counted, the turn is already written down and the answer begun; it is held back until it is asked for, and thrown away if the
person goes on speaking.

`docs/reference/engine-cascade.md` describes what it does and how it is set.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Literal

from msgspec import structs

from antiphon.engine_api import commands, events as talk_events, history as turns
from antiphon.engine_api.capabilities import Abilities
from antiphon.engine_api.engine import Conversation, CountingEngine, Deliver, Engine, EngineOverrun
from antiphon.engine_api.options import Settings
from antiphon.engines.cascade.history import Words, is_foreseen, tokens_heard, turn_of
from antiphon.engines.cascade.input import Hearing
from antiphon.engines.cascade.output import Answer
from antiphon.engines.cascade.parts import Parts
from antiphon.engines.cascade.turn import Listening
from antiphon.errors import Fault
from antiphon.speech.base import Ear

Count = Callable[[Literal["begun", "used", "dropped"]], None]
"""Counts answers that were begun before they were asked for, and what became of them."""


def uncounted(_outcome: str) -> None:
    """A `Count` that nobody reads."""


class Cascade:
    """
    An engine with ears and a voice.

    Args:
        within: answers. Whoever made it starts and stops it, and the parts, too.
        ready: awaited before every conversation; makes the parts ready where they aren't.
        count: is told of answers that were begun before they were asked for.
    """

    def __init__(
        self,
        within: Engine,
        parts: Parts,
        *,
        ready: Callable[[], Awaitable[None]] | None = None,
        speculates: bool = True,
        count: Count = uncounted,
    ) -> None:
        self._within = within
        self._parts = parts
        self._ready = ready
        self._count = count
        # What was said so far of a turn is known in words, and an engine that hears waits for all of the sound.
        foresees = speculates and parts.ear is not None and not within.abilities.hears_speech
        self.abilities = structs.replace(_abilities(within.abilities, parts), foresees=foresees)

    async def start(self) -> None:
        """Nothing of its own to load."""

    async def stop(self) -> None:
        """Nothing of its own to let go of."""

    async def count(self, ask: commands.Respond) -> int:
        """The tokens that the engine within reads."""
        within: CountingEngine = self._within  # type: ignore[assignment]  # asked only where its abilities say so
        return await within.count(ask)

    @contextlib.asynccontextmanager
    async def open(self, settings: Settings, deliver: Deliver) -> AsyncIterator[Conversation]:
        """
        A conversation that hears, and answers aloud where that is asked.

        Raises:
            Fault: the parts of speech can't be made ready.
        """
        if self._ready is not None:
            await self._ready()
        async with asyncio.TaskGroup() as tasks:
            count = self._count if self.abilities.foresees else None
            conversation = _Conversation(self._parts, self._within.abilities, deliver, tasks, count)
            async with self._within.open(settings, conversation.take) as within:
                conversation.within = within
                try:
                    yield conversation
                finally:
                    conversation.close()


def _abilities(within: Abilities, parts: Parts) -> Abilities:
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
        audio_out=mouth is not None or _speaks(within),
        voices=within.voices if _speaks(within) else parts.voices if mouth is not None else (),
        full_duplex=False,
        sees=False,
    )


def _speaks(within: Abilities) -> bool:
    """Whether an engine needs no voice of ours."""
    return within.audio_out and within.hears_speech


class _Work:
    """
    An answer, and the task that sees to it.

    Attributes:
        ask: as the session asked it, or will.
        within_id: by which the engine within knows it.
        task: prepares it and says it.
    """

    task: "asyncio.Task[None]"

    def __init__(self, ask: commands.Respond, within_id: str, answer: Answer) -> None:
        self.ask = ask
        self.within_id = within_id
        self.answer = answer


class _Conversation:
    """
    One conversation: a session without, an engine within.

    Args:
        count: None where no answer is begun before it is asked for.

    Attributes:
        within: the engine's side of it.
    """

    within: Conversation

    def __init__(self, parts: Parts, abilities: Abilities, deliver: Deliver, tasks: asyncio.TaskGroup, count: Count | None) -> None:
        self._abilities = abilities  # of the engine within
        self._mouth = parts.mouth if not _speaks(abilities) else None
        self._deliver = deliver
        self._tasks = tasks
        self._count = count
        self._ears = _Ears(parts, parts.ear, self, tasks, is_read=not abilities.hears_speech) if parts.ear is not None else None
        self._works: dict[str, _Work] = {}  # by the ids of the engine within
        self._begun = 0
        self._foreseen: commands.Respond | None = None
        self._overheard = "", ""
        self._foreseeing: asyncio.Task[None] | None = None
        self._ahead: _Work | None = None
        self._is_paused = self._is_closed = False

    # What the session says

    def tell(self, word: commands.ToEngine) -> None:
        match word:
            case commands.Respond():
                self._respond(word)
            case commands.Cancel(id):
                self._cancel(id)
            case commands.Foresee(ask):
                self._foresee(ask)
            case commands.Hear() | commands.Configure() | commands.Commit() | commands.Forget():
                if self._ears is not None:
                    self._ears.tell(word)
            case commands.Converse() | commands.See() | commands.Listen():
                pass  # its abilities say that it does no full duplex

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
        self._drop_ahead()
        self._stop_foreseeing()
        self._is_closed = True
        if self._ears is not None:
            self._ears.hearing.close()
        for work in self._works.values():
            work.task.cancel()

    def say(self, words: Sequence[talk_events.FromEngine]) -> None:
        """Tell the session."""
        if not self._is_closed:
            self._deliver(words)

    def overhear(self, words: Sequence[talk_events.FromEngine]) -> None:
        """Tell the session what the ears say; the engine within may know of it too, before the turn is over."""
        self.say(words)
        ask, heard = self._foreseen, [word for word in words if isinstance(word, talk_events.Heard)]
        for word in heard:
            turn_id, text = self._overheard
            self._overheard = word.id, (text if turn_id == word.id else "") + word.text
        if heard and ask is not None and self._ahead is None and turn_of(ask) == heard[-1].id:
            self._foresee_within(ask)

    # Answers

    def _respond(self, ask: commands.Respond) -> None:
        ahead = self._ahead
        if ahead is not None and is_foreseen(ahead.ask, ask) and not ahead.answer.has_failed:
            self._ahead = self._foreseen = None
            self._counted("used")
            # Not at once, as words may be waiting already and the session is in the middle of deciding.
            asyncio.get_running_loop().call_soon(self._release, ahead, tokens_heard(ask.history))
            return
        if not ask.aside:
            self._drop_ahead()
        self._begin(ask, tokens_heard(ask.history) if not self._abilities.hears_speech else 0)

    def _release(self, work: _Work, heard_tokens: int) -> None:
        work.answer.release(heard_tokens)
        if work.task.done():
            self._works.pop(work.within_id, None)

    def _begin(self, ask: commands.Respond, heard_tokens: int = 0, words: Listening | None = None) -> _Work:
        """See to an answer; one that isn't asked for yet has the `words` of the turn that it answers."""
        self._begun += 1
        is_held = words is not None
        within_id = f"{ask.id}.{self._begun}" if is_held or ask.id in self._works else ask.id
        answer = Answer(ask.id, ask.voice, self._mouth, self.say, heard_tokens=heard_tokens, is_held=is_held)
        work = self._works[within_id] = _Work(ask, within_id, answer)
        if self._is_paused:
            answer.pause()
        work.task = self._tasks.create_task(self._see_to(work, words))
        work.task.add_done_callback(partial(self._over, work))
        return work

    async def _see_to(self, work: _Work, words: Listening | None) -> None:
        ask, answer = work.ask, work.answer
        try:
            history = await self._understood(ask, words)
            if history is None:
                answer.end("stop")
                return
            voice = ask.voice if _speaks(self._abilities) else None
            self.within.tell(structs.replace(ask, id=work.within_id, history=history, voice=voice))
            if ask.voice is not None and self._mouth is not None:
                await answer.speak()
            else:
                await answer.ended.wait()
        except EngineOverrun as overrun:
            answer.fail(overrun.fault())
        except Fault as fault:
            self.within.tell(commands.Cancel(work.within_id))
            answer.fail(fault)

    async def _understood(self, ask: commands.Respond, words: Listening | None) -> tuple[turns.Turn, ...] | None:
        """The history as the engine within understands it; None where it ends in sound in which nothing was said."""
        if self._ears is None or self._abilities.hears_speech:
            return ask.history
        return await self._ears.words.written(ask.history, words)

    def _over(self, work: _Work, task: "asyncio.Task[None]") -> None:
        # Not the task's own last act: one that is cancelled before its first step does nothing at all.
        if task.cancelled():
            work.answer.end("cancelled")
        if work is not self._ahead:  # else it was whole before it was asked for, and goes on waiting to be
            self._works.pop(work.within_id, None)

    def _cancel(self, id: str) -> None:
        for work in tuple(self._works.values()):
            if work.ask.id == id and work is not self._ahead:
                self._stop(work)

    def _stop(self, work: _Work) -> None:
        self.within.tell(commands.Cancel(work.within_id))
        work.task.cancel()

    def take(self, words: Sequence[talk_events.FromEngine]) -> None:
        """Words of the engine within; those of an answer that nobody waits for are nothing, and that it is gone concerns all."""
        start = 0
        for end in range(1, len(words) + 1):
            if end == len(words) or words[end].id != words[start].id:
                work = self._works.get(words[start].id)
                if work is not None:
                    work.answer.take(words[start:end])
                elif lost := [word for word in words[start:end] if isinstance(word, talk_events.Lost)]:
                    self.say(lost)
                start = end

    # What is begun before it is asked for

    def _foresee(self, ask: commands.Respond) -> None:
        if self._ahead is not None and not is_foreseen(self._ahead.ask, ask):
            self._drop_ahead()
        self._foreseen = ask
        self._foresee_within(ask)
        pause = self._ears.hearing.pause if self._ears is not None else None
        if pause is not None and self._ahead is None:
            self.paused(*pause)

    def _foresee_within(self, ask: commands.Respond) -> None:
        if self._abilities.foresees:
            self._stop_foreseeing()
            self._foreseeing = self._tasks.create_task(self._tell_foreseen(ask))

    def _stop_foreseeing(self) -> None:
        if self._foreseeing is not None:
            self._foreseeing.cancel()

    async def _tell_foreseen(self, ask: commands.Respond) -> None:
        """Let the engine within know what it will be asked, as far as it has been said."""
        past = await self._ears.words.past(ask.history[:-1]) if self._ears is not None else ()
        if ask is self._foreseen and self._ahead is None and not self._is_closed:
            turn_id, text = self._overheard
            saying = turns.Message("user", (turns.TextPart(text if turn_id == turn_of(ask) else ""),))
            with contextlib.suppress(EngineOverrun):  # it will be asked without
                self.within.tell(commands.Foresee(structs.replace(ask, history=(*past, saying), voice=None)))

    def paused(self, turn_id: str, words: Listening) -> None:
        """A turn may be over: begin with its answer."""
        ask = self._foreseen
        if self._count is not None and ask is not None and turn_of(ask) == turn_id:
            self._drop_ahead()
            self._ahead = self._begin(ask, words=words)
            self._counted("begun")

    def resumed(self, turn_id: str) -> None:
        """It wasn't."""
        if self._ahead is not None and turn_of(self._ahead.ask) == turn_id:
            self._drop_ahead()

    def stopped(self, turn_id: str) -> None:
        """It was, and what isn't asked for by now is asked otherwise, or never."""
        self.resumed(turn_id)

    def _drop_ahead(self) -> None:
        work, self._ahead = self._ahead, None
        if work is None:
            return
        self._counted("dropped")
        work.answer.discard()
        self._stop(work)
        if work.task.done():
            self._works.pop(work.within_id, None)

    def _counted(self, outcome: Literal["begun", "used", "dropped"]) -> None:
        if self._count is not None:
            self._count(outcome)


class _Ears:
    """
    What a conversation hears with.

    Attributes:
        words: of its histories.
    """

    def __init__(self, parts: Parts, ear: Ear, conversation: _Conversation, tasks: asyncio.TaskGroup, *, is_read: bool) -> None:
        self.hearing = Hearing(parts, ear, conversation.overhear, conversation, tasks, is_read=is_read)
        self.words = Words(ear, self.hearing)

    def tell(self, word: commands.Hear | commands.Configure | commands.Commit | commands.Forget) -> None:
        """The session says this."""
        match word:
            case commands.Hear(pcm):
                self.hearing.hear(pcm)
            case commands.Configure():
                self.hearing.configure(word)
            case commands.Commit(id):
                self.hearing.commit(id)
            case commands.Forget():
                self.hearing.forget()
