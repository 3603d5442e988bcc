"""
Turn detection, speech to text and text to speech around any text engine, or only the first two around one that takes
speech turn by turn.

A turn is detected and transcribed, the inner engine answers it, and the answer is spoken clause by clause. An engine
that hears speech gets the audio of the turn, and one that speaks says its answer itself. A pause that may end a turn
already starts the transcript and a speculative answer: it is held back until the session requests it, and dropped if
the person goes on speaking.

`docs/reference/engine-cascade.md` describes what it does and how it is set.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Literal, cast

from msgspec import structs

from antiphon.engine_api import commands, events as engine_events, history as engine_history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import CountingEngine, Deliver, Engine, EngineConversation, EngineOverrun, deliver_nowhere
from antiphon.engine_api.options import ConversationSettings, ToolChoice
from antiphon.engines.cascade.call_guard import CallGuard, offered_tools
from antiphon.engines.cascade.history import TranscriptHistory, count_audio_tokens, has_unknown_speech, is_same_request, last_turn_id
from antiphon.engines.cascade.input import SpeechInput
from antiphon.engines.cascade.loading import InputCommand, SpeechLoader, SpeechLoading
from antiphon.engines.cascade.output import SpokenAnswer
from antiphon.engines.cascade.parts import SpeechStack
from antiphon.engines.cascade.turn import TranscriptTask
from antiphon.errors import ApiError
from antiphon.speech.base import Transcriber

MAX_FOLLOWED_TURNS = 2
"""How many turns are transcribed at once while they go on if only the model reads what is said."""

CountSpeculation = Callable[[Literal["begun", "used", "dropped"]], None]
"""Counts speculative answers, and what became of them."""


class Cascade:
    """
    A text engine that listens and speaks.

    Args:
        inner: answers. The caller starts and stops it, and the speech stack too.
        loader: loads the speech stack, where it isn't yet; what needs it waits.
        speculates: whether to begin answers before the session requests them.
        count_speculation: called with the outcome of speculative answers.
    """

    def __init__(
        self,
        inner: Engine,
        speech_stack: SpeechStack,
        *,
        loader: SpeechLoader | None = None,
        speculates: bool = True,
        count_speculation: CountSpeculation | None = None,
    ) -> None:
        self._inner = inner
        self._speech_stack = speech_stack
        self._loader = loader
        self._count_speculation = count_speculation
        self._followers = _Followers()
        # A turn is known in words while it goes on; an engine that hears speech needs the audio of the whole turn.
        self._speculates = speculates and speech_stack.transcriber is not None and not inner.capabilities.hears_speech
        self.capabilities = structs.replace(_cascade_capabilities(inner.capabilities, speech_stack), foresees=self._speculates)

    async def start(self) -> None:
        pass  # the caller starts the inner engine and the speech stack

    async def stop(self) -> None:
        pass

    async def count(self, request: commands.Respond) -> int:
        return await cast(CountingEngine, self._inner).count(request)  # called only where its capabilities say so

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        """
        A conversation that listens, and answers aloud where the request names a voice.

        It begins at once: while the speech stack is loaded, what it hears waits.
        """
        with contextlib.ExitStack() as ends:
            async with asyncio.TaskGroup() as tasks:
                conversation = _CascadeConversation(
                    self._speech_stack,
                    self._inner.capabilities,
                    deliver,
                    tasks,
                    self._followers,
                    loader=self._loader,
                    speculates=self._speculates,
                    count_speculation=self._count_speculation,
                )
                ends.callback(conversation.release)
                async with self._inner.open(settings, conversation.receive) as conversation.inner:
                    try:
                        yield conversation
                    finally:
                        conversation.close()


def _cascade_capabilities(inner: Capabilities, speech_stack: SpeechStack) -> Capabilities:
    transcriber, synthesizer, vad = speech_stack.transcriber, speech_stack.synthesizer, speech_stack.vad
    kinds = ("server_vad", "semantic_vad") if speech_stack.smart_turn is not None else ("server_vad",)
    return structs.replace(
        inner,
        audio_in=transcriber is not None,
        listens=transcriber is not None,
        transcribes=transcriber is not None,
        turn_detection=kinds if transcriber is not None and vad is not None else (),
        noise_reduction=tuple(speech_stack.noise_reduction) if transcriber is not None else (),
        languages=transcriber.languages if transcriber is not None else (),
        takes_prompt=transcriber is not None and transcriber.takes_prompt,
        audio_out=synthesizer is not None or _is_speech_to_speech(inner),
        voices=inner.voices if _is_speech_to_speech(inner) else speech_stack.voices if synthesizer is not None else (),
        full_duplex=False,
        sees=False,
    )


def _is_speech_to_speech(inner: Capabilities) -> bool:
    """Whether an engine speaks by itself, and needs no synthesizer."""
    return inner.audio_out and inner.hears_speech


class _Followers:
    """
    The conversations whose open turn is transcribed for the model's prompt alone: few, as each takes a part of a core
    while somebody speaks, half of one on a slow machine.
    """

    def __init__(self) -> None:
        self._conversations: set[_CascadeConversation] = set()

    def add(self, conversation: "_CascadeConversation") -> bool:
        """Whether it is one of them, or is from now on."""
        if conversation not in self._conversations and len(self._conversations) < MAX_FOLLOWED_TURNS:
            self._conversations.add(conversation)
        return conversation in self._conversations

    def discard(self, conversation: "_CascadeConversation") -> None:
        """It is none of them."""
        self._conversations.discard(conversation)


class _Generation:
    """
    An answer, and the task that makes it.

    Attributes:
        request: as the session sent it, or is expected to.
        inner_id: the response's id for the inner engine.
        inner_request: as the inner engine got it; None before.
        guard: keeps calls that are written as text from being spoken; None where there are none, or no voice.
        is_stopped: whether it was stopped; what still comes of it is the past.
        is_confirmed: whether the words that it answers are certain; those of an early transcript are not at first.
        awaiting_request: what the session requested, while its words are not certain.
        task: transcribes, requests the answer from the inner engine, and speaks it; None when it is over, as the
            traceback of its cancellation leads back here.
    """

    def __init__(self, request: commands.Respond, inner_id: str, answer: SpokenAnswer, *, is_confirmed: bool) -> None:
        self.request = request
        self.inner_id = inner_id
        self.answer = answer
        self.inner_request: commands.Respond | None = None
        self.guard: CallGuard | None = None
        self.is_stopped = False
        self.is_confirmed = is_confirmed
        self.awaiting_request: commands.Respond | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        return self.task is None or self.task.done()

    def stop(self) -> None:
        self.is_stopped = True
        if self.task is not None:
            self.task.cancel()


class _CascadeConversation:
    """
    One conversation: the session on one side, the inner engine on the other.

    Attributes:
        inner: the inner engine's conversation.
    """

    inner: EngineConversation

    def __init__(
        self,
        speech_stack: SpeechStack,
        inner_capabilities: Capabilities,
        deliver: Deliver,
        tasks: asyncio.TaskGroup,
        followers: _Followers,
        *,
        loader: SpeechLoader | None,
        speculates: bool,
        count_speculation: CountSpeculation | None,
    ) -> None:
        self._inner_capabilities = inner_capabilities
        self._synthesizer = speech_stack.synthesizer if not _is_speech_to_speech(inner_capabilities) else None
        self._deliver = deliver
        self._tasks = tasks
        self._followers = followers
        self._speculates = speculates
        self._count_speculation = count_speculation
        self._input = (
            _Input(speech_stack, speech_stack.transcriber, self, tasks, needs_transcripts=not inner_capabilities.hears_speech)
            if speech_stack.transcriber is not None
            else None
        )
        self._loading = SpeechLoading(loader, self._input.handle if self._input is not None else None, self.deliver, tasks)
        self._loading.begin()
        self._generations: dict[str, _Generation] = {}  # by `inner_id`
        self._generation_count = 0
        self._expected_request: commands.Respond | None = None
        self._hypothesis = "", ""  # the open turn, and what it seems to say
        self._prepare_task: asyncio.Task[None] | None = None
        self._speculative: _Generation | None = None
        self._is_paused = self._is_closed = False

    # Commands of the session

    def send(self, command: commands.EngineCommand) -> None:
        match command:
            case commands.AppendAudio() | commands.Configure() | commands.CommitAudio() | commands.ClearAudio():  # fifty a second
                self._loading.send(command)
            case commands.Respond():
                self._respond(command)
            case commands.Cancel(id):
                self._cancel(id)
            case commands.Prepare(request):
                self._prepare(request)
            case commands.StartDuplex() | commands.AppendImage() | commands.ForceListen() | commands.Relay():
                pass  # its capabilities say that it has no full duplex

    def pause(self) -> None:
        self._is_paused = True
        self.inner.pause()
        for generation in self._generations.values():
            generation.answer.pause()

    def resume(self) -> None:
        self._is_paused = False
        self.inner.resume()
        for generation in self._generations.values():
            generation.answer.resume()

    def close(self) -> None:
        """Stop all work and deliver nothing more."""
        self._followers.discard(self)
        self._drop_speculative()
        self._stop_preparing()
        for generation in self._awaiting_generations():
            self._discard(generation)
        self._is_closed = True
        self._loading.close()
        if self._input is not None:
            self._input.speech_input.close()
        for generation in self._generations.values():
            generation.stop()

    def release(self) -> None:
        """Forget all that was said, once all work has stopped: the parts of a conversation refer to each other."""
        self._input = self._speculative = self._expected_request = self._prepare_task = None
        self._generations.clear()
        self._deliver = deliver_nowhere

    def deliver(self, events: Sequence[engine_events.EngineEvent]) -> None:
        if not self._is_closed:
            self._deliver(events)

    # Answers

    def _respond(self, request: commands.Respond) -> None:
        speculative = self._speculative
        if speculative is not None and is_same_request(speculative.request, request) and not speculative.answer.has_failed:
            self._speculative = self._expected_request = None
            speculative.awaiting_request = request
            if speculative.is_confirmed:
                self._release(speculative, request)
            return
        if not request.out_of_band:  # such a response answers no turn (Realtime reference: `conversation: "none"`)
            self._drop_speculative()
        self._begin_generation(request, count_audio_tokens(request.history) if not self._inner_capabilities.hears_speech else 0)

    def _release(self, generation: _Generation, request: commands.Respond) -> None:
        """Deliver a speculative answer, which was requested."""
        generation.awaiting_request = None
        self._record_outcome("used")
        generation.answer.release(count_audio_tokens(request.history))
        if generation.is_over:
            self._generations.pop(generation.inner_id, None)

    def _begin_generation(
        self,
        request: commands.Respond,
        input_audio_tokens: int = 0,
        transcript_task: TranscriptTask | None = None,
        *,
        is_confirmed: bool = True,
    ) -> _Generation:
        """Begin an answer: a speculative one where `transcript_task` is the transcript of the turn that it answers."""
        self._generation_count += 1
        is_speculative = transcript_task is not None
        # An id of its own for the inner engine: a speculative answer that was dropped may end after the next has begun.
        inner_id = f"{request.id}.{self._generation_count}" if is_speculative or request.id in self._generations else request.id
        answer = SpokenAnswer(
            request.id, request.voice, self._synthesizer, self.deliver, input_audio_tokens=input_audio_tokens, is_speculative=is_speculative
        )
        generation = self._generations[inner_id] = _Generation(request, inner_id, answer, is_confirmed=is_confirmed)
        if self._is_paused:
            answer.pause()
        generation.task = self._tasks.create_task(self._run_generation(generation, transcript_task))
        generation.task.add_done_callback(partial(self._on_generation_over, generation))
        return generation

    async def _run_generation(self, generation: _Generation, transcript_task: TranscriptTask | None) -> None:
        request, answer = generation.request, generation.answer
        try:
            history = await self._inner_history(request, transcript_task)
            if history is None:
                answer.end("stop")
                return
            voice = request.voice if _is_speech_to_speech(self._inner_capabilities) else None
            generation.inner_request = structs.replace(request, id=generation.inner_id, history=history, voice=voice)
            if request.voice is not None and self._synthesizer is not None and offered_tools(request):
                generation.guard = CallGuard(request)
            self.inner.send(generation.inner_request)
            if request.voice is not None and self._synthesizer is not None:
                await self._loading.wait()
                await answer.speak()
            else:
                await answer.end_signal.wait()
        except EngineOverrun as error:
            answer.fail(error.api_error())
        except ApiError as error:
            answer.fail(error)  # first, as the inner engine may end the response while it takes the `Cancel`
            self.inner.send(commands.Cancel(generation.inner_id))

    async def _inner_history(
        self, request: commands.Respond, transcript_task: TranscriptTask | None
    ) -> tuple[engine_history.HistoryItem, ...] | None:
        """The history as the inner engine takes it; None if it ends in audio without speech."""
        if self._input is None or self._inner_capabilities.hears_speech:
            return request.history
        if has_unknown_speech(request.history):
            await self._loading.wait()
        return await self._input.history.to_text(request.history, transcript_task)

    def _on_generation_over(self, generation: _Generation, task: "asyncio.Task[None]") -> None:
        # In a callback, not at the end of the task: a task that is cancelled before its first step runs none of its
        # code.
        generation.task = None
        if task.cancelled():
            generation.answer.end("cancelled")
        # A complete speculative answer still waits for its request, or for its words to be certain.
        if generation is not self._speculative and generation.awaiting_request is None:
            self._generations.pop(generation.inner_id, None)

    def _cancel(self, id: str) -> None:
        for generation in tuple(self._generations.values()):
            if generation.request.id != id or generation is self._speculative:
                continue
            if generation.awaiting_request is not None:
                self._discard(generation)
                self.deliver([engine_events.ResponseEnded(id, "cancelled")])
            else:
                self._stop_generation(generation)

    def _stop_generation(self, generation: _Generation) -> None:
        generation.stop()  # first, as the inner engine may end the response while it takes the `Cancel`
        self.inner.send(commands.Cancel(generation.inner_id))

    def receive(self, events: Sequence[engine_events.EngineEvent]) -> None:
        """
        Take events of the inner engine. Those of unknown responses are dropped, except `EngineLost`, which concerns the
        session.
        """
        start = 0
        for end in range(1, len(events) + 1):
            if end == len(events) or events[end].id != events[start].id:
                generation = self._generations.get(events[start].id)
                if generation is not None:
                    self._take(generation, events[start:end])
                elif losses := [event for event in events[start:end] if isinstance(event, engine_events.EngineLost)]:
                    self.deliver(losses)
                start = end

    def _take(self, generation: _Generation, events: Sequence[engine_events.EngineEvent]) -> None:
        guard = generation.guard
        if guard is None:
            generation.answer.receive(events)
            return
        generation.answer.receive(guard.read(events))
        if guard.wants_other_answer and not (generation.is_stopped or generation.answer.end_signal.is_set()):
            self._ask_without_tools(generation, guard)

    def _ask_without_tools(self, generation: _Generation, guard: CallGuard) -> None:
        """Ask the inner engine again: what it wrote is a call that can't be made."""
        assert generation.inner_request is not None
        del self._generations[generation.inner_id]
        self.inner.send(commands.Cancel(generation.inner_id))
        self._generation_count += 1
        generation.inner_id = f"{generation.request.id}.{self._generation_count}"
        self._generations[generation.inner_id] = generation
        generation.guard = CallGuard(generation.request, is_last=True, usage=guard.usage)
        try:
            self.inner.send(
                structs.replace(generation.inner_request, id=generation.inner_id, tools=(), hosted_tools=(), tool_choice=ToolChoice("none"))
            )
        except EngineOverrun as error:
            generation.answer.fail(error.api_error())

    # Speculative answers

    def _prepare(self, request: commands.Respond) -> None:
        if self._speculative is not None and not is_same_request(self._speculative.request, request):
            self._drop_speculative()
        self._expected_request = request
        self._start_preparing(request)
        pause = self._input.speech_input.current_pause if self._input is not None else None
        if pause is not None and self._speculative is None:
            turn_id, transcript_task, is_early = pause
            self.on_turn_paused(turn_id, transcript_task, is_early=is_early)

    def _start_preparing(self, request: commands.Respond) -> None:
        if self._inner_capabilities.foresees:
            self._stop_preparing()
            self._prepare_task = self._tasks.create_task(self._prepare_inner(request))

    def _stop_preparing(self) -> None:
        if self._prepare_task is not None:
            self._prepare_task.cancel()

    async def _prepare_inner(self, request: commands.Respond) -> None:
        """Send the inner engine the request to expect, with the words of the open turn so far."""
        past = await self._input.history.past_to_text(request.history[:-1]) if self._input is not None else ()
        if request is self._expected_request and self._speculative is None and not self._is_closed:
            turn_id, text = self._hypothesis
            turn = engine_history.Message("user", (engine_history.TextPart(text if turn_id == last_turn_id(request) else ""),))
            with contextlib.suppress(EngineOverrun):  # the request itself will come without preparation
                self.inner.send(commands.Prepare(structs.replace(request, history=(*past, turn), voice=None)))

    def may_follow(self, turn_id: str) -> bool:
        return self._inner_capabilities.foresees and self.may_answer_early(turn_id) and self._followers.add(self)

    def on_hypothesis(self, turn_id: str, text: str) -> None:
        # The marks within it are read too: a word on which rounds agree without the comma behind it would have the
        # model read everything from there again.
        has_changed, self._hypothesis = self._hypothesis != (turn_id, text), (turn_id, text)
        if has_changed and self._speculative is None and self._expected_request is not None and self.may_answer_early(turn_id):
            self._start_preparing(self._expected_request)

    def may_answer_early(self, turn_id: str) -> bool:
        request = self._expected_request
        return self._speculates and request is not None and last_turn_id(request) == turn_id

    def on_turn_paused(self, turn_id: str, transcript_task: TranscriptTask, *, is_early: bool = False) -> None:
        self._followers.discard(self)
        self._restart_awaiting(turn_id)
        request, speculative = self._expected_request, self._speculative
        if request is None or not self.may_answer_early(turn_id):
            return
        if speculative is not None and speculative.is_confirmed and last_turn_id(speculative.request) == turn_id:
            return  # it was begun to these words
        self._drop_speculative()
        self._speculative = self._begin_generation(request, transcript_task=transcript_task, is_confirmed=not is_early)
        self._record_outcome("begun")

    def on_transcript_confirmed(self, turn_id: str) -> None:
        if self._speculative is not None and last_turn_id(self._speculative.request) == turn_id:
            self._speculative.is_confirmed = True
        for generation in self._awaiting_generations(turn_id):
            if generation.awaiting_request is not None and not generation.answer.has_failed:
                self._release(generation, generation.awaiting_request)
        self._restart_awaiting(turn_id)

    def on_turn_resumed(self, turn_id: str) -> None:
        self._followers.discard(self)
        self._restart_awaiting(turn_id)
        if self._speculative is not None and last_turn_id(self._speculative.request) == turn_id:
            self._drop_speculative()

    def on_turn_stopped(self, turn_id: str) -> None:
        self._followers.discard(self)
        # If the session did not request the speculative answer by now, it never will.
        if self._speculative is not None and last_turn_id(self._speculative.request) == turn_id:
            self._drop_speculative()
        if self._expected_request is not None and last_turn_id(self._expected_request) == turn_id:
            self._expected_request = None

    def _awaiting_generations(self, turn_id: str | None = None) -> list[_Generation]:
        """The requested answers to words that are not certain yet, of one turn or of all."""
        awaiting = [generation for generation in self._generations.values() if generation.awaiting_request is not None]
        return [generation for generation in awaiting if turn_id in (None, last_turn_id(generation.request))]

    def _restart_awaiting(self, turn_id: str) -> None:
        """The words were others: begin requested answers to them anew."""
        for generation in self._awaiting_generations(turn_id):
            request = generation.awaiting_request
            self._discard(generation)
            if request is not None:
                self._begin_generation(request, count_audio_tokens(request.history))

    def _drop_speculative(self) -> None:
        generation, self._speculative = self._speculative, None
        if generation is not None:
            self._discard(generation)

    def _discard(self, generation: _Generation) -> None:
        """Deliver nothing of an answer that was begun early."""
        generation.awaiting_request = None
        self._record_outcome("dropped")
        generation.answer.discard()
        self._stop_generation(generation)
        if generation.is_over:
            self._generations.pop(generation.inner_id, None)

    def _record_outcome(self, outcome: Literal["begun", "used", "dropped"]) -> None:
        if self._count_speculation is not None:
            self._count_speculation(outcome)


class _Input:
    """
    The input side of a conversation.

    Attributes:
        history: the text of its histories.
    """

    def __init__(
        self,
        speech_stack: SpeechStack,
        transcriber: Transcriber,
        conversation: _CascadeConversation,
        tasks: asyncio.TaskGroup,
        *,
        needs_transcripts: bool,
    ) -> None:
        self.speech_input = SpeechInput(
            speech_stack, transcriber, conversation.deliver, conversation, tasks, needs_transcripts=needs_transcripts
        )
        self.history = TranscriptHistory(transcriber, self.speech_input)

    def handle(self, command: InputCommand) -> None:
        match command:
            case commands.AppendAudio(pcm):
                self.speech_input.append_audio(pcm)
            case commands.Configure():
                self.speech_input.configure(command)
            case commands.CommitAudio(id):
                self.speech_input.commit(id)
            case commands.ClearAudio():
                self.speech_input.clear()
