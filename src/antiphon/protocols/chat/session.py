"""
The chat session: one request, answered whole or as a stream of chunks.

Each choice is a response of the engine, all of them in one conversation with it, side by side. What one fails of, fails
the completion: a client can't tell a choice that is missing from one that is empty.
"""

from collections.abc import Iterable, Sequence

from msgspec import UNSET

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.fast_path import TextSeries
from antiphon.errors import ApiError, ServerError, UpstreamError
from antiphon.protocols import output as steps
from antiphon.protocols.chat.choice import MAX_AUDIO_BYTES, Choice
from antiphon.protocols.chat.failure import to_chat_error
from antiphon.protocols.chat.request import ResolvedChat, engine_requests, later_tool_choice
from antiphon.protocols.output_table import Outcome
from antiphon.protocols.session import (
    CallTool,
    Close,
    Effect,
    Event,
    FromClient,
    FromEngine,
    FromTool,
    Hangup,
    NewId,
    PersistFailed,
    PrepareTools,
    Send,
    SendToEngine,
    Shutdown,
    TextRun,
    Tick,
    report_effect,
)
from antiphon.protocols.tool_loop import LoopStep, ToolLoop
from antiphon.wire.chat.response import ChatCompletion, ChatUsage, CompletionTokenDetails, PromptTokenDetails
from antiphon.wire.chat.stream import ChatEvent, ContentDelta, RoleChunk, StreamError, UsageChunk
from antiphon.wire.codec.types import encode

_Effects = list[Effect[ChatEvent]]


class ChatSession:
    """
    The machine of one completion.

    Attributes:
        outcome: how it ended; None before.

    Raises:
        ClientError: from the constructor only: the engine can't do what the request asks.
    """

    def __init__(self, chat: ResolvedChat, new_id: NewId) -> None:
        self.outcome: Outcome | None = None
        self._chat = chat
        self._is_streaming = chat.request.is_stream
        is_legacy = bool(chat.request.functions)
        self._choices = {
            request.id: Choice(index, request, new_id, chat.created_at, is_legacy=is_legacy, is_streaming=self._is_streaming)
            for index, request in enumerate(engine_requests(chat))
        }
        if chat.server_tools.types:
            for choice in self._choices.values():
                choice.loop = ToolLoop(choice.request, chat.server_tools, choice.output, new_id, chat.loop_limits, later_tool_choice(chat))
        self._has_begun = False

    @property
    def tokens(self) -> int:
        """Input and output tokens of all choices; estimated where the engine did not report them."""
        usage = self.usage
        return sum(choice.tokens for choice in self._choices.values()) if usage is None else usage.total_tokens

    @property
    def usage(self) -> ChatUsage | None:
        """The tokens of all choices, as the engine reported them; None if it did not."""
        usages = [usage for choice in self._choices.values() if (usage := choice.output.usage) is not None]
        return chat_usage(usages) if len(usages) == len(self._choices) else None

    @property
    def rewrite_status(self) -> engine_events.RewriteStatus | None:
        """What became of rewriting its texts; None where that was not tried."""
        statuses = {choice.output.rewrite_status for choice in self._choices.values()}
        return "failed" if "failed" in statuses else "completed" if "completed" in statuses else None

    @property
    def is_over(self) -> bool:
        """Whether the completion has ended; no more effects follow."""
        return self.outcome is not None

    def handle(self, event: Event[ResolvedChat]) -> list[Effect[ChatEvent]]:
        if self.is_over:
            return []
        if not isinstance(event, FromEngine):
            return self._handle_control_event(event)
        effects: _Effects = []
        for engine_event in event.events:
            choice = self._choices.get(engine_event.id)
            if choice is None:
                continue  # it is about the engine, or about what nobody asked for
            # The path of nearly every token, inline to save the calls.
            if (
                type(engine_event) is engine_events.TextDelta
                and not engine_event.logprobs
                and (choice.loop is None or not choice.loop.changes_text)
                and choice.output.append_text(text := engine_event.text) is not None
            ):
                if self._is_streaming:
                    effects.append(Send(ContentDelta(choice.index, text)))
                continue
            if (report := report_effect(engine_event)) is not None:
                if choice.index == 0:  # one answer has one header, and the others may have come from elsewhere
                    effects.append(report)
                continue
            loop = choice.loop
            if self._apply_all(choice, (engine_event,) if loop is None else loop.on_engine(engine_event), effects):
                break
        return effects

    def begin_text(self, series: TextSeries) -> TextRun[ChatEvent] | None:
        choice = self._choices.get(series.id)
        if self.is_over or not self._is_streaming or series.around is not None or choice is None:
            return None
        if choice.loop is not None and choice.loop.changes_text:
            return None
        index, place = choice.index, choice.output.open_text()
        return None if place is None else TextRun(lambda text: ContentDelta(index, text), place[1])

    def end_text(self, count: int) -> None:
        """Chunks have no number."""

    def _handle_control_event(self, event: FromClient[ResolvedChat] | FromTool | Hangup | PersistFailed | Shutdown | Tick) -> _Effects:
        match event:
            case FromClient():
                return self._begin()
            case Hangup():
                self.outcome = "cancelled"
                return [*self._cancel_choices(), Close()]
            case Shutdown(error):
                return self._fail(error)
            case FromTool(id=id):
                effects: _Effects = []
                choice = self._choices.get(id)
                if choice is not None and choice.loop is not None:
                    self._apply_all(choice, choice.loop.on_tool(event), effects)
                return effects
            case Tick() | PersistFailed():  # this session sets no timer and stores nothing
                return []

    def _begin(self) -> _Effects:
        if self._has_begun:
            return []
        self._has_begun = True
        effects: _Effects = [SendToEngine(choice.request) for choice in self._choices.values()]
        if self._is_streaming:
            effects += [Send(RoleChunk(choice.index)) for choice in self._choices.values()]
        return effects

    def _apply_all(self, choice: Choice, loop_steps: Iterable[LoopStep], effects: _Effects) -> bool:
        """Likewise for all steps of a loop."""
        for step in loop_steps:
            if isinstance(step, SendToEngine | CallTool | PrepareTools):
                effects.append(step)
            elif self._apply(choice, step, effects):
                break
        return self.is_over

    def _apply(self, choice: Choice, engine_event: engine_events.EngineEvent, effects: _Effects) -> bool:
        """Adds the effects of an event of a choice; returns whether the completion is over."""
        for step in choice.output.apply(engine_event):
            if isinstance(step, steps.OutputFinished):
                self._on_finished(choice, step, effects)
            else:
                effects.extend(Send(chunk) for chunk in choice.chunks(step))
        if len(choice.pcm) > MAX_AUDIO_BYTES and not choice.output.is_over:
            effects.append(SendToEngine(commands.Cancel(choice.request.id)))
            self._apply(choice, engine_events.ResponseEnded(choice.request.id, "length"), effects)
        return self.is_over

    def _on_finished(self, choice: Choice, step: steps.OutputFinished, effects: _Effects) -> None:
        if step.failure is not None:
            effects += self._fail(engine_error(step.failure))
            return
        if step.outcome == "cancelled":  # by the engine on its own, as the client still waits
            effects += self._fail(ServerError("The model was stopped before it had finished.", code="server_error"))
            return
        choice.finish(step)
        if self._is_streaming:
            effects.append(Send(choice.final_chunk()))
        if all(each.output.is_over for each in self._choices.values()):
            effects += self._complete()

    def _complete(self) -> _Effects:
        self.outcome = "incomplete" if any(each.output.outcome == "incomplete" for each in self._choices.values()) else "completed"
        if not self._is_streaming:
            return [Send(self.completion()), Close()]
        effects: _Effects = []
        if self._chat.request.includes_usage and (usage := self.usage) is not None:
            effects.append(Send(UsageChunk(usage)))
        return [*effects, Close()]

    def completion(self) -> ChatCompletion:
        """The whole completion; the audio of a spoken one is bare samples."""
        return ChatCompletion(
            id=self._chat.id,
            created=self._chat.created_at,
            model=self._chat.model,
            choices=[choice.whole() for choice in self._choices.values()],
            usage=self.usage,
            service_tier="default" if self._chat.request.service_tier else UNSET,
        )

    def content(self) -> str:
        """The whole completion as JSON, without the sound of a spoken one, for the log."""
        completion = self.completion()
        for choice in completion.choices:
            if choice.message.audio:
                choice.message.audio.data = b""
        return encode(completion).decode()

    def _fail(self, error: ApiError) -> _Effects:
        self.outcome = "failed"
        chat_error = to_chat_error(error, self._chat.capabilities.context_window)
        effects = self._cancel_choices()
        if self._is_streaming:
            effects.append(Send(StreamError(chat_error.body())))
        return [*effects, Close(chat_error)]

    def _cancel_choices(self) -> _Effects:
        if not self._has_begun:
            return []
        effects: _Effects = []
        for id, choice in self._choices.items():
            if not choice.output.is_over:
                effects.append(SendToEngine(commands.Cancel(id)))
                choice.output.cancel()  # what it has so far counts
        return effects


def chat_usage(usages: Sequence[engine_events.Usage]) -> ChatUsage:
    """The usage of choices that were made from one prompt, which counts once."""
    prompt = max(usages, key=lambda usage: usage.input_tokens)
    completion_tokens = sum(usage.output_tokens for usage in usages)
    return ChatUsage(
        prompt_tokens=prompt.input_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt.input_tokens + completion_tokens,
        prompt_tokens_details=PromptTokenDetails(
            cached_tokens=prompt.cached_tokens,
            audio_tokens=prompt.input_audio_tokens,
            cache_write_tokens=prompt.cache_write_tokens or UNSET,
            image_tokens=prompt.input_image_tokens or UNSET,
        ),
        completion_tokens_details=CompletionTokenDetails(
            reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
            audio_tokens=sum(usage.output_audio_tokens for usage in usages),
        ),
    )


def engine_error(failure: engine_events.ResponseFailed) -> ApiError:
    """The engine's failure as an error for the client."""
    return UpstreamError(
        failure.message,
        code=failure.code,
        param=failure.param,
        status=failure.status,
        type=failure.type,
        retry_after_s=failure.retry_after_s,
    )
