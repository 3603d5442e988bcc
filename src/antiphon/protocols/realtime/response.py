"""
One response of a Realtime session: its events, from `response.created` to `response.done`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET

from antiphon.audio import duration_ms, encode_alaw, encode_ulaw, size_bytes
from antiphon.engine_api import commands, events as engine_events
from antiphon.protocols import output as steps, output_table
from antiphon.protocols.dispatch import convert, on, table
from antiphon.protocols.outbox import Outbox
from antiphon.protocols.output_table import OutputKind
from antiphon.protocols.realtime.conversation import ConversationEntry, ConversationItems, ItemAudio, text_token_counts
from antiphon.protocols.realtime.mcp_items import CUT_OFF_ERROR, ITEM_TYPES, mcp_item, send_progress
from antiphon.protocols.realtime.output_buffer import OutputBuffer
from antiphon.protocols.realtime.plan import ResponsePlan
from antiphon.protocols.realtime.settings import codec_of, voice_name
from antiphon.protocols.session import CallTool, CancelTools, FromTool, NewId, PrepareTools, SendToEngine
from antiphon.protocols.token_estimate import response_tokens
from antiphon.protocols.tool_loop import LoopStep, ToolLoop
from antiphon.wire.realtime import server_events as events
from antiphon.wire.realtime.items import (
    AudioContent,
    FunctionCallItem,
    Item,
    McpApprovalRequestItem,
    McpCallItem,
    MessageItem,
    OutputAudio,
    OutputText,
    Part,
    TextContent,
)
from antiphon.wire.realtime.response import (
    CachedTokensDetails,
    InputTokenDetails,
    OutputTokenDetails,
    Response,
    ResponseAudio,
    ResponseAudioOutput,
    ResponseStatus,
    StatusDetails,
    StatusError,
    Usage,
)

MAX_DELTA_MS = 200
"""How much audio goes into one event: some clients accept no message over 1 MiB, and a player wants to start early."""

MAX_DELTA_CHARACTERS = 1_000
"""How many characters of text go into one event; longer deltas are rare, and split to keep messages small."""

EVENT_LIMIT_BYTES = 900 << 10
"""
The limit of an item, a response or a session as JSON: each is sent whole in one event, and some clients accept no
message over 1 MiB.
"""

ITEM_OVERHEAD_BYTES = 256
"""An upper bound of what an item or a part takes as JSON beyond its text."""

AUDIO_ENCODERS: dict[str, Callable[[bytes], bytes]] = {"audio/pcm": bytes, "audio/pcmu": encode_ulaw, "audio/pcma": encode_alaw}
"""From s16le to the bytes on the wire."""

OutputItem: TypeAlias = MessageItem | FunctionCallItem | McpCallItem | McpApprovalRequestItem
"""An item of a response."""

CancelReason = Literal["turn_detected", "client_cancelled"]


class RealtimeResponse:
    """
    A response, from its creation to its end.

    Args:
        conversation: where its items are added; None if it is out of band.
        output_buffer: plays its audio; None if the client does.

    Attributes:
        has_audio: whether it has audio so far.
        audio_ms: how much audio it has.
        audio_started_at: when the first of it came, in Unix seconds; 0 before.
    """

    def __init__(
        self,
        plan: ResponsePlan,
        outbox: Outbox[events.ServerEvent],
        new_id: NewId,
        conversation: ConversationItems | None,
        output_buffer: OutputBuffer | None = None,
    ) -> None:
        self.plan = plan
        self.has_audio = False
        self.audio_ms = 0.0
        self.audio_started_at = 0.0
        self._outbox = outbox
        self._conversation = conversation
        self._output_buffer = output_buffer
        self._is_spoken = list(plan.modalities) == ["audio"]
        self._output_machine = steps.OutputMachine(lambda _prefix: new_id("item"), is_spoken=self._is_spoken, requires_item=False)
        self._loop = _tool_loop(plan, self._output_machine, new_id)
        self._output: list[OutputItem] = []
        self._entry: ConversationEntry
        self._rate_hz = codec_of(plan.format).rate_hz
        self._encode = AUDIO_ENCODERS[getattr(plan.format, "type", "audio/pcm")]
        self._max_delta_bytes = size_bytes(MAX_DELTA_MS, self._rate_hz)
        self._position: dict[str, object] = {}
        self._sent_bytes = 0
        self._deferred_step: steps.OutputStep | None = None

    @property
    def tokens(self) -> int:
        """Input and output tokens; estimated if the engine did not report them."""
        return response_tokens(self._output_machine, self.plan.respond, self._rate_hz)

    def begin(self) -> None:
        """Send `response.created`, and the request to the engine."""
        if self._output_buffer is not None:
            self._output_buffer.begin_response(self.plan.id)
        self._outbox.send(events.ResponseCreated, response=self._response_object("in_progress", None))
        if self._loop is not None and self._loop.must_wait:
            self._take_all(self._loop.begin(), self.audio_started_at)
        else:
            self._outbox.send_to_engine(self.plan.respond)

    def refuse(self, failure: engine_events.ResponseFailed, at: float) -> None:
        """Send a response that failed at once; the engine gets no request."""
        self._outbox.send(events.ResponseCreated, response=self._response_object("in_progress", None))
        self.handle_event(failure, at)

    def handle_event(self, event: engine_events.EngineEvent, at: float) -> bool:
        """
        Send the client what follows from an engine event.

        Returns:
            Whether the response is over.
        """
        event = self._limit_length(_EVENT_SUBSTITUTES[type(event)](event) if type(event) in _EVENT_SUBSTITUTES else event)
        if type(event) not in _IGNORED_EVENTS:
            if self._loop is None:
                self._perform(self._output_machine.apply(event), at)
            else:
                self._take_all(self._loop.on_engine(event), at)
        return self._output_machine.is_over

    def handle_tool(self, event: FromTool) -> bool:
        """The same for what a tool of the server says."""
        if self._loop is not None and not self._output_machine.is_over:
            self._take_all(self._loop.on_tool(event), event.at)
        return self._output_machine.is_over

    def _take_all(self, loop_steps: Iterable[LoopStep], at: float) -> None:
        for step in loop_steps:
            if isinstance(step, SendToEngine | CallTool | PrepareTools):
                self._outbox.effects.append(step)
            elif not isinstance(step, engine_events.HostedToolStarted) or step.item.get("type") in ITEM_TYPES:
                self._perform(self._output_machine.apply(step), at)

    def cancel(self, reason: CancelReason, at: float) -> None:
        """End the response now and close everything that is open."""
        self._stop()
        self._perform(self._output_machine.cancel(), at, reason)

    def abandon(self) -> None:
        """End the response without telling the client, which has left."""
        self._stop()
        self._output_machine.cancel()

    def _stop(self) -> None:
        self._outbox.send_to_engine(commands.Cancel(self.plan.id))
        if self._loop is not None:
            self._outbox.effects.append(CancelTools(self.plan.id))

    def _limit_length(self, event: engine_events.EngineEvent) -> engine_events.EngineEvent:
        """The event itself, or the end of a response that has grown too long for `response.done`."""
        text = getattr(event, "text", None)
        if text is None:
            return event
        self._sent_bytes += len(msgspec.json.encode(text))
        if self._sent_bytes <= EVENT_LIMIT_BYTES or self._output_machine.is_over:
            return event
        self._outbox.send_to_engine(commands.Cancel(self.plan.id))
        return engine_events.ResponseEnded(self.plan.id, "length")

    # Steps of the output machine

    def _perform(self, output_steps: Sequence[steps.OutputStep], at: float, cancelled_by: str | None = None) -> None:
        if self._deferred_step is not None:
            output_steps, self._deferred_step = [self._deferred_step, *output_steps], None
        for step in output_steps:
            if isinstance(step, steps.OutputFinished):
                self._on_output_finished(step, cancelled_by)
                if self._output_buffer is not None:
                    self._output_buffer.finish_response(self.plan.id, at)
            elif isinstance(step, steps.ItemDone) and step.item.call is not None and step is output_steps[-1] and self._loop is None:
                # Clients send a call's output and the next `response.create` as soon as the call is complete: this
                # response must be over by then.
                self._deferred_step = step
            else:
                _STEP_HANDLERS[type(step)](self, step, at)

    def _on_item_added(self, step: steps.ItemAdded, _at: float) -> None:
        self._sent_bytes += ITEM_OVERHEAD_BYTES
        item = self._wire_item(step.item, "in_progress")
        self._position = {"response_id": self.plan.id, "item_id": step.item.id, "output_index": step.item.index}
        self._entry = ConversationEntry(item, is_open=True)
        # This order (output item, conversation item, part, deltas) is what the beta's reference client insists on;
        # livekit needs the item before its deltas.
        self._outbox.send(events.ResponseOutputItemAdded, response_id=self.plan.id, output_index=step.item.index, item=item)
        if self._conversation is not None:
            # Realtime: an out-of-band response adds no items.
            previous_id = self._conversation.add(self._entry)
            self._outbox.send(events.ConversationItemAdded, previous_item_id=previous_id, item=item)

    def _on_part_added(self, step: steps.PartAdded, _at: float) -> None:
        self._sent_bytes += ITEM_OVERHEAD_BYTES
        # Realtime GA: in `response.content_part.*` a part is of type `text` or `audio`, in its item `output_text` or
        # `output_audio`.
        part: AudioContent | TextContent = TextContent(text="")
        if step.part.kind is OutputKind.AUDIO:
            self._entry.audio_by_part[step.part.index] = ItemAudio(self._rate_hz)
            part = AudioContent(transcript="")
        self._outbox.send(events.ResponseContentPartAdded, **self._position, content_index=step.part.index, part=part)

    def _on_text_appended(self, step: steps.TextAppended, _at: float) -> None:
        index = step.part.index
        kind: type[events.ResponseOutputTextDelta | events.ResponseOutputAudioTranscriptDelta] = events.ResponseOutputTextDelta
        if step.part.kind is OutputKind.AUDIO:
            kind = events.ResponseOutputAudioTranscriptDelta
            recording = self._entry.audio_by_part[index]
            # Words come before the audio in which they are heard, so the offset tells which were heard
            # (docs/decisions/0015).
            recording.transcript_chunks.append((recording.length_bytes, step.text))
        for start in range(0, len(step.text), MAX_DELTA_CHARACTERS):
            self._outbox.send(kind, **self._position, content_index=index, delta=step.text[start : start + MAX_DELTA_CHARACTERS])

    def _on_audio_appended(self, step: steps.AudioAppended, at: float) -> None:
        if not self.has_audio:
            self.has_audio, self.audio_started_at = True, at
        self._entry.audio_by_part[step.part.index].append(step.pcm)
        length_ms = duration_ms(len(step.pcm), self._rate_hz)
        self.audio_ms += length_ms
        buffer = self._output_buffer
        # In a call, audio of a response that was interrupted is not played; it still counts as generated.
        if buffer is not None and not buffer.append_audio(self.plan.id, step.item.id, step.part.index, length_ms, at):
            return
        for pcm in _chunks(step.pcm, self._max_delta_bytes):
            self._outbox.send(events.ResponseOutputAudioDelta, **self._position, content_index=step.part.index, delta=self._encode(pcm))

    def _on_arguments_appended(self, step: steps.ArgumentsAppended, _at: float) -> None:
        assert step.item.call is not None
        for start in range(0, len(step.text), MAX_DELTA_CHARACTERS):
            # Realtime: a call has no content parts, so its deltas have no `content_index`.
            delta = step.text[start : start + MAX_DELTA_CHARACTERS]
            self._outbox.send(events.ResponseFunctionCallArgumentsDelta, **self._position, call_id=step.item.call.call_id, delta=delta)

    def _on_hosted_tool_progressed(self, step: steps.HostedToolProgressed, _at: float) -> None:
        send_progress(self._outbox, step.event, self.plan.id, step.item.id, step.item.index)

    def _on_part_done(self, step: steps.PartDone, at: float) -> None:
        position = {**self._position, "content_index": step.part.index}
        text = step.part.text
        part: AudioContent | TextContent
        if step.part.kind is OutputKind.AUDIO:
            if self._output_buffer is not None:
                self._output_buffer.close_part(step.item.id, step.part.index, at)
            # Realtime: the `done` events come for a response that was interrupted as well.
            self._outbox.send(events.ResponseOutputAudioDone, **position)
            self._outbox.send(events.ResponseOutputAudioTranscriptDone, **position, transcript=text)
            part = AudioContent(transcript=text)
        else:
            self._outbox.send(events.ResponseOutputTextDone, **position, text=text)
            part = TextContent(text=text)
        self._outbox.send(events.ResponseContentPartDone, **position, part=part)

    def _on_item_done(self, step: steps.ItemDone, at: float) -> None:
        fields = step.item.hosted_item
        if fields is not None and fields["type"] == "mcp_call" and step.item.status == "incomplete":
            # Realtime: a call that is in progress completes or fails, and its item has no status to say otherwise.
            step.item.hosted_item = fields | {"error": CUT_OFF_ERROR}
            self._on_hosted_tool_progressed(steps.HostedToolProgressed(step.item, {"type": "response.mcp_call.failed"}), at)
        item = self._wire_item(step.item, step.item.status)
        if isinstance(item, FunctionCallItem):
            # Realtime GA: `name` is required here; openai-agents reports an error without it.
            call = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
            self._outbox.send(events.ResponseFunctionCallArgumentsDone, **self._position, **call)
        self._output.append(item)
        entry, conversation = self._entry, self._conversation
        entry.is_open = False
        entry.item = without_truncated_transcripts(item, entry)
        # The client may have deleted the item meanwhile.
        if conversation is not None and conversation.find(step.item.id) is entry:
            self._outbox.send(events.ConversationItemDone, previous_item_id=conversation.previous_id(step.item.id), item=item)
        # Realtime: `conversation.item.done` comes before `response.output_item.done`.
        self._outbox.send(events.ResponseOutputItemDone, response_id=self.plan.id, output_index=step.item.index, item=item)

    def _on_output_finished(self, step: steps.OutputFinished, cancelled_by: str | None) -> None:
        details: StatusDetails | None = None
        match step.outcome:
            case "cancelled":
                # Realtime: `turn_detected` if the user spoke, `client_cancelled` after `response.cancel`.
                details = StatusDetails(type="cancelled", reason=cancelled_by or "client_cancelled")
            case "incomplete":
                details = StatusDetails(type="incomplete", reason=step.reason or UNSET)
            case "failed":
                assert step.failure is not None
                error = StatusError(type=step.failure.type, code=step.failure.code, message=step.failure.message)
                details = StatusDetails(type="failed", error=error)
            case "completed":
                pass
        self._outbox.send(events.ResponseDone, response=self._response_object(step.outcome, details))

    # Wire objects

    def _response_object(self, status: ResponseStatus, details: StatusDetails | None) -> Response:
        # Realtime: fields that are null are sent as well; pipecat 1.7 failed without them. livekit finds its
        # response by the `metadata` that it sent, and gives up without it.
        plan = self.plan
        return Response(
            object="realtime.response",
            id=plan.id,
            status=status,
            status_details=details,
            output=list(self._output),
            conversation_id=plan.conversation_id,
            output_modalities=list(plan.modalities),
            max_output_tokens=plan.max_output_tokens,
            temperature=UNSET if plan.temperature is None else plan.temperature,
            audio=ResponseAudio(output=ResponseAudioOutput(format=plan.format, voice=voice_name(plan.voice))),
            usage=_usage(self._output_machine.usage),
            metadata=plan.metadata,
        )

    def _wire_item(self, item: steps.OutputItem, status: output_table.Status) -> OutputItem:
        if item.hosted_item is not None:
            return mcp_item(item.id, item.hosted_item)
        if item.call is not None:
            return FunctionCallItem(
                id=item.id,
                object="realtime.item",
                status=status,
                name=item.call.name,
                call_id=item.call.call_id,
                arguments=item.arguments,
            )
        content: list[Part] = [
            OutputAudio(transcript=part.text) if part.kind is OutputKind.AUDIO else OutputText(text=part.text)
            # Realtime: an item is announced empty, and its audio is never in it.
            for part in (item.parts if status != "in_progress" else ())
        ]
        return MessageItem(id=item.id, object="realtime.item", status=status, role="assistant", content=content)


def without_truncated_transcripts(item: Item, entry: ConversationEntry) -> Item:
    """
    The item without the transcripts of truncated audio.

    Which of the words the user heard is not known (Realtime reference: `conversation.item.truncate`).
    """
    truncated_parts = [index for index, recording in entry.audio_by_part.items() if recording.truncated_at_ms is not None]
    if not truncated_parts or not isinstance(item, MessageItem):
        return item
    content: list[Part] = [OutputAudio() if index in truncated_parts else part for index, part in enumerate(item.content)]
    return MessageItem(id=item.id, object=item.object, status=item.status, role=item.role, content=content)


def _chunks(pcm: bytes, max_bytes: int) -> Iterator[bytes]:
    if len(pcm) <= max_bytes:
        yield pcm
        return
    for start in range(0, len(pcm), max_bytes):
        yield pcm[start : start + max_bytes]


def _usage(usage: engine_events.Usage | None) -> Usage | None:
    if usage is None:
        return None
    text_in, text_out = text_token_counts(usage)
    cached_text = max(0, usage.cached_tokens - usage.cached_audio_tokens)
    return Usage(
        total_tokens=usage.input_tokens + usage.output_tokens,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        input_token_details=InputTokenDetails(
            cached_tokens=usage.cached_tokens,
            text_tokens=text_in,
            audio_tokens=usage.input_audio_tokens,
            image_tokens=usage.input_image_tokens,
            cached_tokens_details=CachedTokensDetails(text_tokens=cached_text, audio_tokens=usage.cached_audio_tokens, image_tokens=0),
        ),
        output_token_details=OutputTokenDetails(text_tokens=text_out, audio_tokens=usage.output_audio_tokens),
    )


_STEP_HANDLERS = table(
    on(steps.ItemAdded, RealtimeResponse._on_item_added),
    on(steps.PartAdded, RealtimeResponse._on_part_added),
    on(steps.TextAppended, RealtimeResponse._on_text_appended),
    on(steps.AudioAppended, RealtimeResponse._on_audio_appended),
    on(steps.ArgumentsAppended, RealtimeResponse._on_arguments_appended),
    on(steps.HostedToolProgressed, RealtimeResponse._on_hosted_tool_progressed),
    on(steps.PartDone, RealtimeResponse._on_part_done),
    on(steps.ItemDone, RealtimeResponse._on_item_done),
)


def _refusal_as_text(event: engine_events.RefusalDelta) -> engine_events.EngineEvent:
    return engine_events.TextDelta(event.id, event.text)


def _boundary_without_id(event: engine_events.ItemBoundary) -> engine_events.EngineEvent:
    return engine_events.ItemBoundary(event.id)


_EVENT_SUBSTITUTES = table(
    convert(engine_events.RefusalDelta, _refusal_as_text),
    convert(engine_events.ItemBoundary, _boundary_without_id),
)
"""
A refusal has no form of its own here, so it is text; an engine's item ids are dropped, as they may not be new in the
conversation.
"""

_IGNORED_EVENTS = frozenset(
    {
        engine_events.ReasoningDelta,
        engine_events.ReasoningBoundary,
        engine_events.EncryptedReasoning,
        engine_events.AnnotationAdded,
        engine_events.HostedToolStarted,
        engine_events.HostedToolProgress,
        engine_events.HostedToolDone,
    }
)
"""Events of engines that this protocol has no form for."""


def _tool_loop(plan: ResponsePlan, output: steps.OutputMachine, new_id: NewId) -> ToolLoop | None:
    if not plan.server_tools.types:
        return None
    return ToolLoop(plan.respond, plan.server_tools, output, new_id, plan.loop_limits, plan.later_choice, plan.approved_calls)
