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

from antiphon.engine_api import commands, events as engine_events, history as engine_history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import CountingEngine, Deliver, Engine, EngineConversation, EngineOverrun
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.cascade.history import TranscriptHistory, count_audio_tokens, is_same_request, last_turn_id
from antiphon.engines.cascade.input import SpeechInput
from antiphon.engines.cascade.output import SpokenAnswer
from antiphon.engines.cascade.parts import SpeechStack
from antiphon.engines.cascade.turn import TranscriptTask
from antiphon.errors import ApiError
from antiphon.speech.base import Ear

CountSpeculation = Callable[[Literal["begun", "used", "dropped"]], None]
"""Counts answers that were begun before they were asked for, and what became of them."""


def ignore_outcome(_outcome: str) -> None:
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
        inner: Engine,
        speech_stack: SpeechStack,
        *,
        ensure_ready: Callable[[], Awaitable[None]] | None = None,
        speculates: bool = True,
        count_speculation: CountSpeculation = ignore_outcome,
    ) -> None:
        self._inner = inner
        self._speech_stack = speech_stack
        self._ensure_ready = ensure_ready
        self._count_speculation = count_speculation
        # What was said so far of a turn is known in words, and an engine that hears waits for all of the sound.
        foresees = speculates and speech_stack.transcriber is not None and not inner.capabilities.hears_speech
        self.capabilities = structs.replace(_cascade_capabilities(inner.capabilities, speech_stack), foresees=foresees)

    async def start(self) -> None:
        """Nothing of its own to load."""

    async def stop(self) -> None:
        """Nothing of its own to let go of."""

    async def count(self, request: commands.Respond) -> int:
        """The tokens that the engine within reads."""
        within: CountingEngine = self._inner  # type: ignore[assignment]  # asked only where its abilities say so
        return await within.count(request)

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        """
        A conversation that hears, and answers aloud where that is asked.

        Raises:
            ApiError: the parts of speech can't be made ready.
        """
        if self._ensure_ready is not None:
            await self._ensure_ready()
        async with asyncio.TaskGroup() as tasks:
            count = self._count_speculation if self.capabilities.foresees else None
            conversation = _CascadeConversation(self._speech_stack, self._inner.capabilities, deliver, tasks, count)
            async with self._inner.open(settings, conversation.receive) as within:
                conversation.inner = within
                try:
                    yield conversation
                finally:
                    conversation.close()


def _cascade_capabilities(inner: Capabilities, speech_stack: SpeechStack) -> Capabilities:
    ear, mouth, activity = speech_stack.transcriber, speech_stack.synthesizer, speech_stack.vad
    kinds = ("server_vad", "semantic_vad") if speech_stack.smart_turn is not None else ("server_vad",)
    return structs.replace(
        inner,
        audio_in=ear is not None,
        listens=ear is not None,
        transcribes=ear is not None,
        turn_detection=kinds if ear is not None and activity is not None else (),
        noise_reduction=tuple(speech_stack.noise_reduction) if ear is not None else (),
        languages=ear.languages if ear is not None else (),
        takes_prompt=ear is not None and ear.takes_prompt,
        audio_out=mouth is not None or _is_speech_to_speech(inner),
        voices=inner.voices if _is_speech_to_speech(inner) else speech_stack.voices if mouth is not None else (),
        full_duplex=False,
        sees=False,
    )


def _is_speech_to_speech(inner: Capabilities) -> bool:
    """Whether an engine needs no voice of ours."""
    return inner.audio_out and inner.hears_speech


class _Generation:
    """
    An answer, and the task that sees to it.

    Attributes:
        ask: as the session asked it, or will.
        within_id: by which the engine within knows it.
        task: prepares it and says it.
    """

    task: "asyncio.Task[None]"

    def __init__(self, request: commands.Respond, inner_id: str, answer: SpokenAnswer) -> None:
        self.request = request
        self.inner_id = inner_id
        self.answer = answer


class _CascadeConversation:
    """
    One conversation: a session without, an engine within.

    Args:
        count: None where no answer is begun before it is asked for.

    Attributes:
        within: the engine's side of it.
    """

    inner: EngineConversation

    def __init__(
        self,
        speech_stack: SpeechStack,
        inner_capabilities: Capabilities,
        deliver: Deliver,
        tasks: asyncio.TaskGroup,
        count_speculation: CountSpeculation | None,
    ) -> None:
        self._inner_capabilities = inner_capabilities  # of the engine within
        self._synthesizer = speech_stack.synthesizer if not _is_speech_to_speech(inner_capabilities) else None
        self._deliver = deliver
        self._tasks = tasks
        self._count_speculation = count_speculation
        self._input = (
            _Input(speech_stack, speech_stack.transcriber, self, tasks, needs_transcripts=not inner_capabilities.hears_speech)
            if speech_stack.transcriber is not None
            else None
        )
        self._generations: dict[str, _Generation] = {}  # by the ids of the engine within
        self._generation_count = 0
        self._expected_request: commands.Respond | None = None
        self._partial_transcript = "", ""
        self._prepare_task: asyncio.Task[None] | None = None
        self._speculation: _Generation | None = None
        self._is_paused = self._is_closed = False

    # What the session says

    def send(self, command: commands.EngineCommand) -> None:
        match command:
            case commands.Respond():
                self._respond(command)
            case commands.Cancel(id):
                self._cancel(id)
            case commands.Prepare(ask):
                self._prepare(ask)
            case commands.AppendAudio() | commands.Configure() | commands.CommitAudio() | commands.ClearAudio():
                if self._input is not None:
                    self._input.handle(command)
            case commands.StartDuplex() | commands.AppendImage() | commands.ForceListen():
                pass  # its abilities say that it does no full duplex

    def pause(self) -> None:
        self._is_paused = True
        self.inner.pause()
        for work in self._generations.values():
            work.answer.pause()

    def resume(self) -> None:
        self._is_paused = False
        self.inner.resume()
        for work in self._generations.values():
            work.answer.resume()

    def close(self) -> None:
        """Stop, and say nothing more."""
        self._drop_speculation()
        self._stop_preparing()
        self._is_closed = True
        if self._input is not None:
            self._input.speech_input.close()
        for work in self._generations.values():
            work.task.cancel()

    def deliver(self, events: Sequence[engine_events.EngineEvent]) -> None:
        """Tell the session."""
        if not self._is_closed:
            self._deliver(events)

    def deliver_input_events(self, events: Sequence[engine_events.EngineEvent]) -> None:
        """Tell the session what the ears say; the engine within may know of it too, before the turn is over."""
        self.deliver(events)
        ask, heard = self._expected_request, [word for word in events if isinstance(word, engine_events.InputTranscriptDelta)]
        for word in heard:
            turn_id, text = self._partial_transcript
            self._partial_transcript = word.id, (text if turn_id == word.id else "") + word.text
        if heard and ask is not None and self._speculation is None and last_turn_id(ask) == heard[-1].id:
            self._start_preparing(ask)

    # Answers

    def _respond(self, request: commands.Respond) -> None:
        ahead = self._speculation
        if ahead is not None and is_same_request(ahead.request, request) and not ahead.answer.has_failed:
            self._speculation = self._expected_request = None
            self._record_outcome("used")
            # Not at once, as words may be waiting already and the session is in the middle of deciding.
            asyncio.get_running_loop().call_soon(self._release, ahead, count_audio_tokens(request.history))
            return
        if not request.out_of_band:
            self._drop_speculation()
        self._begin_generation(request, count_audio_tokens(request.history) if not self._inner_capabilities.hears_speech else 0)

    def _release(self, generation: _Generation, input_audio_tokens: int) -> None:
        generation.answer.release(input_audio_tokens)
        if generation.task.done():
            self._generations.pop(generation.inner_id, None)

    def _begin_generation(
        self, request: commands.Respond, input_audio_tokens: int = 0, transcript_task: TranscriptTask | None = None
    ) -> _Generation:
        """See to an answer; one that isn't asked for yet has the `words` of the turn that it answers."""
        self._generation_count += 1
        is_held = transcript_task is not None
        within_id = f"{request.id}.{self._generation_count}" if is_held or request.id in self._generations else request.id
        answer = SpokenAnswer(
            request.id, request.voice, self._synthesizer, self.deliver, input_audio_tokens=input_audio_tokens, is_speculative=is_held
        )
        work = self._generations[within_id] = _Generation(request, within_id, answer)
        if self._is_paused:
            answer.pause()
        work.task = self._tasks.create_task(self._run_generation(work, transcript_task))
        work.task.add_done_callback(partial(self._on_generation_over, work))
        return work

    async def _run_generation(self, generation: _Generation, transcript_task: TranscriptTask | None) -> None:
        ask, answer = generation.request, generation.answer
        try:
            history = await self._inner_history(ask, transcript_task)
            if history is None:
                answer.end("stop")
                return
            voice = ask.voice if _is_speech_to_speech(self._inner_capabilities) else None
            self.inner.send(structs.replace(ask, id=generation.inner_id, history=history, voice=voice))
            if ask.voice is not None and self._synthesizer is not None:
                await answer.speak()
            else:
                await answer.end_signal.wait()
        except EngineOverrun as overrun:
            answer.fail(overrun.api_error())
        except ApiError as fault:
            self.inner.send(commands.Cancel(generation.inner_id))
            answer.fail(fault)

    async def _inner_history(
        self, request: commands.Respond, transcript_task: TranscriptTask | None
    ) -> tuple[engine_history.HistoryItem, ...] | None:
        """The history as the engine within understands it; None where it ends in sound in which nothing was said."""
        if self._input is None or self._inner_capabilities.hears_speech:
            return request.history
        return await self._input.history.to_text(request.history, transcript_task)

    def _on_generation_over(self, generation: _Generation, task: "asyncio.Task[None]") -> None:
        # Not the task's own last act: one that is cancelled before its first step does nothing at all.
        if task.cancelled():
            generation.answer.end("cancelled")
        if generation is not self._speculation:  # else it was whole before it was asked for, and goes on waiting to be
            self._generations.pop(generation.inner_id, None)

    def _cancel(self, id: str) -> None:
        for work in tuple(self._generations.values()):
            if work.request.id == id and work is not self._speculation:
                self._stop_generation(work)

    def _stop_generation(self, generation: _Generation) -> None:
        self.inner.send(commands.Cancel(generation.inner_id))
        generation.task.cancel()

    def receive(self, events: Sequence[engine_events.EngineEvent]) -> None:
        """Words of the engine within; those of an answer that nobody waits for are nothing, and that it is gone concerns all."""
        start = 0
        for end in range(1, len(events) + 1):
            if end == len(events) or events[end].id != events[start].id:
                work = self._generations.get(events[start].id)
                if work is not None:
                    work.answer.receive(events[start:end])
                elif lost := [word for word in events[start:end] if isinstance(word, engine_events.EngineLost)]:
                    self.deliver(lost)
                start = end

    # What is begun before it is asked for

    def _prepare(self, request: commands.Respond) -> None:
        if self._speculation is not None and not is_same_request(self._speculation.request, request):
            self._drop_speculation()
        self._expected_request = request
        self._start_preparing(request)
        pause = self._input.speech_input.current_pause if self._input is not None else None
        if pause is not None and self._speculation is None:
            self.on_turn_paused(*pause)

    def _start_preparing(self, request: commands.Respond) -> None:
        if self._inner_capabilities.foresees:
            self._stop_preparing()
            self._prepare_task = self._tasks.create_task(self._prepare_inner(request))

    def _stop_preparing(self) -> None:
        if self._prepare_task is not None:
            self._prepare_task.cancel()

    async def _prepare_inner(self, request: commands.Respond) -> None:
        """Let the engine within know what it will be asked, as far as it has been said."""
        past = await self._input.history.past_to_text(request.history[:-1]) if self._input is not None else ()
        if request is self._expected_request and self._speculation is None and not self._is_closed:
            turn_id, text = self._partial_transcript
            saying = engine_history.Message("user", (engine_history.TextPart(text if turn_id == last_turn_id(request) else ""),))
            with contextlib.suppress(EngineOverrun):  # it will be asked without
                self.inner.send(commands.Prepare(structs.replace(request, history=(*past, saying), voice=None)))

    def on_turn_paused(self, turn_id: str, transcript_task: TranscriptTask) -> None:
        """A turn may be over: begin with its answer."""
        ask = self._expected_request
        if self._count_speculation is not None and ask is not None and last_turn_id(ask) == turn_id:
            self._drop_speculation()
            self._speculation = self._begin_generation(ask, transcript_task=transcript_task)
            self._record_outcome("begun")

    def on_turn_resumed(self, turn_id: str) -> None:
        """It wasn't."""
        if self._speculation is not None and last_turn_id(self._speculation.request) == turn_id:
            self._drop_speculation()

    def on_turn_stopped(self, turn_id: str) -> None:
        """It was, and what isn't asked for by now is asked otherwise, or never."""
        self.on_turn_resumed(turn_id)

    def _drop_speculation(self) -> None:
        work, self._speculation = self._speculation, None
        if work is None:
            return
        self._record_outcome("dropped")
        work.answer.discard()
        self._stop_generation(work)
        if work.task.done():
            self._generations.pop(work.inner_id, None)

    def _record_outcome(self, outcome: Literal["begun", "used", "dropped"]) -> None:
        if self._count_speculation is not None:
            self._count_speculation(outcome)


class _Input:
    """
    What a conversation hears with.

    Attributes:
        words: of its histories.
    """

    def __init__(
        self,
        speech_stack: SpeechStack,
        transcriber: Ear,
        conversation: _CascadeConversation,
        tasks: asyncio.TaskGroup,
        *,
        needs_transcripts: bool,
    ) -> None:
        self.speech_input = SpeechInput(
            speech_stack, transcriber, conversation.deliver_input_events, conversation, tasks, needs_transcripts=needs_transcripts
        )
        self.history = TranscriptHistory(transcriber, self.speech_input)

    def handle(self, command: commands.AppendAudio | commands.Configure | commands.CommitAudio | commands.ClearAudio) -> None:
        """The session says this."""
        match command:
            case commands.AppendAudio(pcm):
                self.speech_input.append_audio(pcm)
            case commands.Configure():
                self.speech_input.configure(command)
            case commands.CommitAudio(id):
                self.speech_input.commit(id)
            case commands.ClearAudio():
                self.speech_input.clear()
