"""
The Responses session: one request, answered with the stream of events that the original sends.

`protocols.output` decides the order of events; here each of its steps becomes events of the wire, numbered from 0
without a gap, between the events that show the response object. It makes no difference whether the client streams: if
not, it just gets the last event.
"""

from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from antiphon.audio import streaming_wav_header
from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.fast_path import TextSeries
from antiphon.engine_api.routing import RouteDecision
from antiphon.errors import ApiError, UpstreamError
from antiphon.protocols import output as steps, output_table
from antiphon.protocols.client_tools.calls import ClientCalls
from antiphon.protocols.dispatch import on, table
from antiphon.protocols.output import OutputItem
from antiphon.protocols.output_table import OutputKind
from antiphon.protocols.responses.part_events import (
    DELTA_EVENTS,
    is_custom,
    part_done_events,
    text_delta_event,
    tool_call_done_event,
)
from antiphon.protocols.responses.request import AUDIO_RATE_HZ, EngineRequest, ResolvedRequest, engine_request, made_summary
from antiphon.protocols.responses.response_object import (
    ResponseBuilder,
    empty_wire_item,
    empty_wire_part,
    response_notes,
    tool_usage,
    wire_item,
)
from antiphon.protocols.session import (
    PADDING_PERIOD,
    SAMPLE_NUMBER,
    CallTool,
    Close,
    Effect,
    Event,
    FromClient,
    FromEngine,
    FromTool,
    Hangup,
    NewId,
    Persist,
    PersistFailed,
    PrepareTools,
    ReportAttempts,
    ReportRetry,
    Send,
    SendToEngine,
    Shutdown,
    TextRun,
    Tick,
)
from antiphon.protocols.token_estimate import response_tokens
from antiphon.protocols.tool_loop import LoopStep, ToolLoop
from antiphon.records import ConversationTurn, ResponseRecord
from antiphon.wire.codec.fields import value_or
from antiphon.wire.codec.types import Extra, Opt, Unknown, encode
from antiphon.wire.responses import events, items, parts
from antiphon.wire.responses.events import StreamEvent
from antiphon.wire.responses.summary import ResponseNotes

Paddings = Sequence[str]
"""
Random text of `PADDING_PERIOD` characters, of one less, and so on, down to one: deltas are padded to a multiple of this
many characters, so that the size of a packet doesn't reveal the text in it.
"""

Encrypt = Callable[[str], str | None]
"""Encrypts text for a client that will give it back; None for text that is too long."""

COMPACTION_REPORT_S = 1.0
"""How often a client is told that its conversation is being compacted."""


class ResponsesSession:
    """
    The machine of one response.

    Args:
        paddings: the values of `obfuscation`; None for none.
        encrypt: encrypts reasoning; None where no client asked for it.
        route: why the request was given to its model; None where the client named the model.

    Attributes:
        route: likewise.
        omissions: what of the request the model does not get.
        compaction: how the conversation is to be compacted before the engine gets it; None where it is not.

    Raises:
        ClientError: from the constructor only: the engine can't do what the request asks.
    """

    def __init__(
        self,
        resolved_request: ResolvedRequest,
        new_id: NewId,
        paddings: Paddings | None = None,
        encrypt: Encrypt | None = None,
        route: RouteDecision | None = None,
    ) -> None:
        translated_request = engine_request(resolved_request)
        self.omissions = translated_request.omissions
        self.compaction = translated_request.compaction
        self._respond = translated_request.respond
        self._resolved_request = resolved_request
        self._builder = ResponseBuilder(resolved_request, new_id)
        self._client_calls = ClientCalls(translated_request.client_tools, translated_request.finding.async_keys)
        self._output = steps.OutputMachine(
            new_id,
            is_spoken=resolved_request.is_spoken,
            requires_item=not resolved_request.is_warm_up,
            made_summary=made_summary(resolved_request.request, resolved_request.capabilities),
            call_prefix=self._client_calls.id_prefix,
        )
        self._loop = _tool_loop(resolved_request, translated_request, self._output, new_id, self._client_calls)
        self._wav_header = streaming_wav_header(AUDIO_RATE_HZ) if resolved_request.audio_format == "wav" else b""
        self._paddings = paddings
        self._encrypt = encrypt
        self.route = route
        self._answered_by = ""
        self._failure: engine_events.ResponseFailed | None = None
        self._is_streaming = resolved_request.request.stream is True
        self._step_handlers = _STEP_HANDLERS if self._is_streaming or resolved_request.is_background else _WHOLE_STEP_HANDLERS
        self._sequence_number = 0
        self._terminal_sequence_number = 0
        self._compaction_reported_at = 0.0
        self._is_asked = False
        self._has_begun = False
        self._has_client_left = False
        self._is_closed = False

    @property
    def rewrite_status(self) -> engine_events.RewriteStatus | None:
        """What became of rewriting its text; None where that was not tried."""
        return self._output.rewrite_status

    @property
    def notes(self) -> ResponseNotes | None:
        """What of the response only some profiles show; None for nothing."""
        return response_notes(self.route, self._answered_by, self._output.rewrite_status, self._failure)

    @property
    def output(self) -> Sequence[items.Item]:
        """The items that are complete, with all that tools found."""
        return self._builder.output

    @property
    def tokens(self) -> int:
        """Input and output tokens; estimated if the engine did not report them."""
        return response_tokens(self._output, self._respond, AUDIO_RATE_HZ)

    def ask(self) -> commands.Respond | None:
        """
        What the engine is to be sent before this session gets its first event, which then does not send it; None if tools
        come first.
        """
        if self._loop is not None and self._loop.must_wait:
            return None
        self._is_asked = True
        return self._respond

    def handle(self, event: Event[ResolvedRequest]) -> list[Effect[StreamEvent]]:
        if not isinstance(event, FromEngine):
            return self._handle_control_event(event)
        if self._is_closed:
            return []
        effects: list[Effect[StreamEvent]] = []
        output = self._output
        if self._loop is not None and self._loop.changes_text:
            for engine_event in event.events:
                self._take_all(self._loop.on_engine(engine_event), event.at, effects)
            return effects
        for engine_event in event.events:
            # Nearly every token that does not take the fast path comes here.
            if (
                type(engine_event) is engine_events.TextDelta
                and not engine_event.logprobs
                and (item := output.append_text(text := engine_event.text)) is not None
            ):
                number = self._sequence_number
                self._sequence_number = number + 1
                if not self._is_streaming:  # the event would be dropped
                    continue
                effects.append(Send(self._text_delta(number, item, text)))
                continue
            if self._loop is not None:
                self._take_all(self._loop.on_engine(engine_event), event.at, effects)
            else:
                self._take(engine_event, event.at, effects)
        return effects

    def _take_all(self, loop_steps: Iterable[LoopStep], at: float, effects: list[Effect[StreamEvent]]) -> None:
        for step in loop_steps:
            if isinstance(step, SendToEngine | CallTool | PrepareTools):
                effects.append(step)
            else:
                self._take(step, at, effects)

    def _take(self, engine_event: engine_events.EngineEvent, at: float, effects: list[Effect[StreamEvent]]) -> None:
        if (report := _REPORTS.get(type(engine_event))) is not None:
            report(self, engine_event, at, effects)
            return
        for output_step in self._output.apply(engine_event):
            if (handle_step := self._step_handlers.get(type(output_step))) is not None:
                handle_step(self, output_step, at, effects)

    def _handle_control_event(
        self, event: FromClient[ResolvedRequest] | FromTool | Hangup | PersistFailed | Shutdown | Tick
    ) -> list[Effect[StreamEvent]]:
        if self._is_closed and not isinstance(event, PersistFailed):
            return []
        match event:
            case FromClient():
                return self._begin()
            case FromTool(at=at):
                effects: list[Effect[StreamEvent]] = []
                if self._loop is not None:
                    self._take_all(self._loop.on_tool(event), at, effects)
                return effects
            case Hangup(at):
                return self._abandon(at)
            case PersistFailed(record, error, at):
                return self._on_persist_failed(record, error, at)
            case Tick():  # this session sets no timer
                return []
            case Shutdown(error, at):
                failure = FromEngine([engine_events.ResponseFailed.from_error(self._resolved_request.id, error)], at)
                return [SendToEngine(commands.Cancel(self._resolved_request.id)), *self.handle(failure)]

    def begin_text(self, series: TextSeries) -> TextRun[StreamEvent] | None:
        if self._is_closed or not self._is_streaming or series.around is not None:
            return None
        if (self._loop is not None and self._loop.changes_text) or (place := self._output.open_text()) is None:
            return None
        item, texts = place
        return TextRun(lambda text: self._text_delta(SAMPLE_NUMBER, item, text), texts, self._sequence_number)

    def end_text(self, count: int) -> None:
        self._sequence_number += count

    # The response object

    def queue(self) -> tuple[ResponseRecord, Sequence[StreamEvent]]:
        """The record and the first events of a background response that waits; call it once, before any event."""
        response = self._builder.build("queued")
        created_event = events.ResponseCreated(sequence_number=self._next_sequence_number(), response=response)
        return self._record("queued"), (
            created_event,
            *self._route_events(),
            events.ResponseQueued(sequence_number=self._next_sequence_number(), response=response),
        )

    def _begin(self) -> list[Effect[StreamEvent]]:
        if self._has_begun:
            return []
        self._has_begun = True
        request, must_wait = self._resolved_request, self._loop is not None and self._loop.must_wait
        effects: list[Effect[StreamEvent]] = [] if self._is_asked or must_wait else [SendToEngine(self._respond)]
        if request.is_stored and (request.request.stream or request.is_background):
            # A streaming client sees the id at once and may ask for it at any time. Others see it at the end only.
            effects.append(Persist(self._record("in_progress")))
        if self._step_handlers is _WHOLE_STEP_HANDLERS:  # nobody would see these events, but they have their numbers
            self._sequence_number += 2
        else:
            effects += map(Send, self._opening_events())
        if self._loop is not None and must_wait:
            self._take_all(self._loop.begin(), request.created_at, effects)
        return effects

    def _opening_events(self) -> Iterable[StreamEvent]:
        # Responses: these two begin every stream. openai-python's stream helper raises if another event is first.
        response = self._builder.build("in_progress")
        if not self._resolved_request.is_background:  # else it was sent when the response was queued
            yield events.ResponseCreated(sequence_number=self._next_sequence_number(), response=response)
            yield from self._route_events()
        yield events.ResponseInProgress(sequence_number=self._next_sequence_number(), response=response)

    def _route_events(self) -> list[StreamEvent]:
        routes = () if self.route is None else (self.route,)
        return [events.RoutingCompleted(model_id=it.model, category=it.category, source=it.source, reasoning=it.reasoning) for it in routes]

    def _on_output_finished(self, step: steps.OutputFinished, at: float, effects: list[Effect[StreamEvent]]) -> None:
        if step.outcome == "cancelled" and not self._has_client_left:
            # The engine cancelled on its own, and the client still waits for the response: that is a failure.
            step = steps.OutputFinished(
                "failed",
                failure=engine_events.ResponseFailed(id=self._resolved_request.id, message="The model was stopped before it had finished."),
            )
        self._failure = step.failure
        tools = msgspec.UNSET if self._loop is None else tool_usage(self._loop.searches, self._loop.image_tokens)
        self._builder.finish(step, self._output.usage, at, tools)
        # Stored before the client is told: `completed` must be true after a crash as well (docs/decisions/0005). The last
        # events of a background response are stored together with it, so they come first (docs/decisions/0026).
        persist: list[Effect[StreamEvent]] = []
        if self._resolved_request.is_stored or self._resolved_request.conversation_id is not None:
            record = self._record(step.outcome) if self._resolved_request.is_stored else None
            persist.append(Persist(record, self._turn(step.outcome)))
        if not self._resolved_request.is_background:
            effects += persist
        self._terminal_sequence_number = self._sequence_number
        error = None
        if step.failure is not None:
            # The SDKs raise at `error`, Codex heeds only `response.failed`: both are sent (docs/decisions/0004).
            error = to_api_error(step.failure)
            effects.append(Send(self._error_event(error)))
        # Only a client that leaves cancels a response, so nobody would read a terminal event.
        if step.outcome != "cancelled":
            terminal = _TERMINAL_EVENTS[step.outcome]
            effects.append(Send(terminal(sequence_number=self._next_sequence_number(), response=self._builder.build_visible(step.outcome))))
        if self._resolved_request.is_background:
            effects += persist
        self._is_closed = True
        effects.append(Close(error))

    def _abandon(self, at: float) -> list[Effect[StreamEvent]]:
        self._has_client_left = True
        effects: list[Effect[StreamEvent]] = [SendToEngine(commands.Cancel(self._resolved_request.id))]
        for step in self._output.cancel():
            if isinstance(step, steps.OutputFinished):
                self._on_output_finished(step, at, effects)
            elif isinstance(step, steps.ItemDone):
                self._builder.output.append(self._wire_item(step.item))
        return effects

    def _on_persist_failed(self, record: ResponseRecord | None, error: ApiError, at: float) -> list[Effect[StreamEvent]]:
        """The store failed: don't promise the client a response that it can't retrieve."""
        if record is not None and record.status == "in_progress":  # the client has got nothing yet, whatever the engine has sent since
            self._is_closed = True
            return [SendToEngine(commands.Cancel(self._resolved_request.id)), Close(error)]
        # The terminal event was never sent, so its number is still free.
        self._sequence_number = self._terminal_sequence_number
        failure = engine_events.ResponseFailed(id=self._resolved_request.id, message=error.message)
        self._builder.finish(steps.OutputFinished("failed", failure=failure), self._output.usage, at)
        error_event = self._error_event(error)  # it has the first of the two numbers
        terminal = events.ResponseFailed(sequence_number=self._next_sequence_number(), response=self._builder.build_visible("failed"))
        return [Send(error_event), Send(terminal), Close(error)]

    def _error_event(self, error: ApiError) -> events.ErrorEvent:
        code = error.code or "server_error"
        return events.error_event(self._next_sequence_number(), message=error.message, type=error.type, code=code, param=error.param)

    def _record(self, status: str) -> ResponseRecord:
        notes = self.notes
        return ResponseRecord(
            id=self._resolved_request.id,
            tenant=self._resolved_request.tenant,
            created_at=self._resolved_request.created_at,
            status=status,
            model=self._resolved_request.model,
            previous_response_id=self._resolved_request.request.previous_response_id or None,
            body=encode(self._builder.build(status)),
            notes=None if notes is None else encode(notes),
            key_id=self._resolved_request.key_id,
            branch_of=value_or(self._resolved_request.request.metadata, {}).get("branch_of"),
            items=self._builder.item_records(),
        )

    def _turn(self, status: str) -> ConversationTurn | None:
        """The end of this response's turn in its conversation."""
        conversation_id = self._resolved_request.conversation_id
        if conversation_id is None:
            return None
        # Responses: items are added "after this response completes". One that failed or was cancelled adds nothing, so
        # that it can be asked for again (docs/decisions/0025).
        return ConversationTurn(
            conversation_id=conversation_id,
            tenant=self._resolved_request.tenant,
            response_id=self._resolved_request.id,
            items=self._builder.conversation_records() if status in ("completed", "incomplete") else (),
        )

    def _wire_item(self, item: OutputItem) -> items.Item:
        """The complete item, with its reasoning in encrypted form where the client wants it and the engine did not do it."""
        if self._encrypt is not None and item.encrypted_content is None and (text := item.reasoning_text):
            item.encrypted_content = self._encrypt(text)
        return self._client_calls.wire_item(item) or self._client_calls.with_async(item, wire_item(item))

    def _next_sequence_number(self) -> int:
        number = self._sequence_number
        self._sequence_number = number + 1
        return number

    def _text_delta(self, number: int, item: OutputItem, text: str) -> events.OutputTextDelta:
        part = item.parts[-1]
        return text_delta_event(number, item, part, steps.TextAppended(item, part, text, ()), self._padding_for(text))

    def _padding_for(self, text: str) -> Opt[str]:
        return msgspec.UNSET if self._paddings is None else self._paddings[len(text) % PADDING_PERIOD]

    def _report_compaction(self, progress: engine_events.CompactionProgress, at: float, effects: list[Effect[StreamEvent]]) -> None:
        """Tell that the conversation is being compacted. Its item follows with the content: without a summary there is none."""
        if at - self._compaction_reported_at < COMPACTION_REPORT_S:
            return
        self._compaction_reported_at = at
        number = self._next_sequence_number()
        effects.append(Send(events.CompactionCompacting(sequence_number=number, item_id=progress.item_id, output_index=0)))

    def _report_retry(self, _event: engine_events.RetryScheduled, _at: float, effects: list[Effect[StreamEvent]]) -> None:
        effects.append(ReportRetry())

    def _report_attempts(self, event: engine_events.AttemptsReported, _at: float, effects: list[Effect[StreamEvent]]) -> None:
        effects.append(ReportAttempts(event))
        if event.fallback_reason and event.id == self._resolved_request.id:
            self._answered_by = event.attempts[-1].model
            effects.append(Send(events.AnsweredByFallback(model_id=self._answered_by)))

    def _report_rewrite(self, _event: engine_events.RewriteStarted, _at: float, effects: list[Effect[StreamEvent]]) -> None:
        effects.append(Send(events.RewriteInProgress()))

    def _end_rewrite(self, event: engine_events.RewriteEnded, _at: float, effects: list[Effect[StreamEvent]]) -> None:
        self._output.apply(event)
        if event.status == "failed":
            effects.append(Send(events.RewriteFailed()))

    # Steps of the output machine

    def _on_item_added(self, step: steps.ItemAdded, _at: float, effects: list[Effect[StreamEvent]]) -> None:
        number, item = self._next_sequence_number(), step.item
        empty_item = self._client_calls.wire_item(item, is_empty=True) or self._client_calls.with_async(item, empty_wire_item(item))
        effects.append(Send(events.OutputItemAdded(sequence_number=number, output_index=item.index, item=empty_item)))

    def _on_part_added(self, step: steps.PartAdded, _at: float, effects: list[Effect[StreamEvent]]) -> None:
        item, part = step.item, step.part
        if part.kind is OutputKind.REASONING_SUMMARY:
            summary_part_added = events.ReasoningSummaryPartAdded(
                sequence_number=self._next_sequence_number(),
                item_id=item.id,
                output_index=item.index,
                summary_index=part.index,
                part=parts.SummaryText(text=""),
            )
            effects.append(Send(summary_part_added))
            return
        part_added = events.ContentPartAdded(
            sequence_number=self._next_sequence_number(),
            item_id=item.id,
            output_index=item.index,
            content_index=part.index,
            part=empty_wire_part(part),
        )
        effects.append(Send(part_added))

    def _on_text_appended(self, step: steps.TextAppended, _at: float, effects: list[Effect[StreamEvent]]) -> None:
        number = self._next_sequence_number()
        effects.append(Send(DELTA_EVENTS[step.part.kind](number, step.item, step.part, step, self._padding_for(step.text))))
        if step.part.kind is OutputKind.AUDIO:
            transcript = events.AudioTranscriptDelta(
                sequence_number=self._next_sequence_number(), response_id=self._resolved_request.id, delta=step.text
            )
            effects.append(Send(transcript))

    def _on_audio_appended(self, step: steps.AudioAppended, _at: float, effects: list[Effect[StreamEvent]]) -> None:
        # The header stands once, before the first audio.
        delta = b64encode(self._wav_header + step.pcm).decode()
        self._wav_header = b""
        event = events.AudioDelta(sequence_number=self._next_sequence_number(), response_id=self._resolved_request.id, delta=delta)
        effects.append(Send(event))

    def _on_arguments_appended(self, step: steps.ArgumentsAppended, _at: float, effects: list[Effect[StreamEvent]]) -> None:
        item = step.item
        if self._client_calls.is_call(item):
            self._send_numbered(self._client_calls.delta_events(item, self._sequence_number, self._padding_for), effects)
            return
        kind = events.CustomToolCallInputDelta if is_custom(item) else events.FunctionCallArgumentsDelta
        delta = kind(
            sequence_number=self._next_sequence_number(),
            item_id=item.id,
            output_index=item.index,
            delta=step.text,
            obfuscation=self._padding_for(step.text),
        )
        effects.append(Send(delta))

    def _send_numbered(self, numbered_events: Iterable[StreamEvent], effects: list[Effect[StreamEvent]]) -> None:
        """Send events that are numbered from here on."""
        for event in tuple(numbered_events):
            self._sequence_number += 1
            effects.append(Send(event))

    def _on_hosted_tool_progressed(self, step: steps.HostedToolProgressed, _at: float, effects: list[Effect[StreamEvent]]) -> None:
        # An upstream's event: its numbers and ids are not those of this stream.
        fields: dict[str, object] = {"sequence_number": self._next_sequence_number(), "output_index": step.item.index}
        if "item_id" in step.event:
            fields["item_id"] = step.item.id
        effects.append(Send(Unknown(extra=Extra({**step.event, **fields}))))

    def _on_annotation_appended(self, step: steps.AnnotationAppended, _at: float, effects: list[Effect[StreamEvent]]) -> None:
        annotation: Any = step.annotation  # plain JSON from the engine, which encodes as the wire's own type would
        annotation_added = events.AnnotationAdded(
            sequence_number=self._next_sequence_number(),
            item_id=step.item.id,
            output_index=step.item.index,
            content_index=step.part.index,
            annotation_index=step.index,
            annotation=annotation,
        )
        effects.append(Send(annotation_added))

    def _on_part_done(self, step: steps.PartDone, _at: float, effects: list[Effect[StreamEvent]]) -> None:
        self._send_numbered(part_done_events(self._sequence_number, step.item, step.part, self._resolved_request.id), effects)

    def _on_item_done(self, step: steps.ItemDone, _at: float, effects: list[Effect[StreamEvent]]) -> None:
        item = step.item
        if self._client_calls.is_call(item):
            self._send_numbered(self._client_calls.done_events(item, self._sequence_number, self._padding_for), effects)
        elif item.call is not None:
            effects.append(Send(tool_call_done_event(self._next_sequence_number(), item)))
        # Responses: `output[i]` of the response is the item of `output_index` i, with the id that it was added with;
        # stream helpers check both.
        done_item = self._wire_item(item)
        self._builder.output.append(done_item)
        number, visible_item = self._next_sequence_number(), self._builder.visible(done_item)
        effects.append(Send(events.OutputItemDone(sequence_number=number, output_index=item.index, item=visible_item)))


def _tool_loop(
    resolved_request: ResolvedRequest, engine_request: EngineRequest, output: steps.OutputMachine, new_id: NewId, client_calls: ClientCalls
) -> ToolLoop | None:
    """The loop of a response with tools that are run, found or read here; None for any other, which has no cost from it."""
    server_tools, limits = resolved_request.server_tools, resolved_request.loop_limits
    if not (server_tools.types or engine_request.client_tools or engine_request.finding):
        return None
    most_calls = value_or(resolved_request.request.max_tool_calls, None)
    if most_calls is not None and most_calls < limits.calls:
        limits = msgspec.structs.replace(limits, calls=most_calls, calls_field="max_tool_calls")
    extras = engine_request.later_choice, engine_request.approved_calls, client_calls, engine_request.finding
    return ToolLoop(engine_request.respond, server_tools, output, new_id, limits, *extras)


_REPORTS = table(
    on(engine_events.RetryScheduled, ResponsesSession._report_retry),
    on(engine_events.AttemptsReported, ResponsesSession._report_attempts),
    on(engine_events.CompactionProgress, ResponsesSession._report_compaction),
    on(engine_events.RewriteStarted, ResponsesSession._report_rewrite),
    on(engine_events.RewriteEnded, ResponsesSession._end_rewrite),
)
"""What is done about events that are no output."""

_STEP_HANDLERS = table(
    on(steps.TextAppended, ResponsesSession._on_text_appended),
    on(steps.AudioAppended, ResponsesSession._on_audio_appended),
    on(steps.ArgumentsAppended, ResponsesSession._on_arguments_appended),
    on(steps.HostedToolProgressed, ResponsesSession._on_hosted_tool_progressed),
    on(steps.ItemAdded, ResponsesSession._on_item_added),
    on(steps.PartAdded, ResponsesSession._on_part_added),
    on(steps.AnnotationAppended, ResponsesSession._on_annotation_appended),
    on(steps.PartDone, ResponsesSession._on_part_done),
    on(steps.ItemDone, ResponsesSession._on_item_done),
    on(steps.OutputFinished, ResponsesSession._on_output_finished),
)

_WHOLE_STEP_HANDLERS = table(
    on(steps.ItemDone, ResponsesSession._on_item_done),
    on(steps.OutputFinished, ResponsesSession._on_output_finished),
)
"""Those for a client that gets the whole response at its end: events of anything else would be dropped."""

_TERMINAL_EVENTS: dict[output_table.Outcome, type[events.ResponseCompleted | events.ResponseIncomplete | events.ResponseFailed]] = {
    "completed": events.ResponseCompleted,
    "incomplete": events.ResponseIncomplete,
    "failed": events.ResponseFailed,
}


def to_api_error(failure: engine_events.ResponseFailed) -> ApiError:
    """The engine's failure as an error for the client."""
    return UpstreamError(
        failure.message,
        code=failure.code,
        param=failure.param,
        status=failure.status,
        type=failure.type,
        retry_after_s=failure.retry_after_s,
    )
