"""
The Messages session: one request, answered with a message of blocks, whole or as the stream of events that the original
sends.

`protocols.output` decides the order; here its steps open, fill and close blocks: one at a time, numbered from 0 without a
gap. What this API has no block for is left out.
"""

from collections.abc import Callable
from typing import Literal

import msgspec

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.fast_path import TextSeries
from antiphon.engine_api.token_estimate import text_tokens
from antiphon.errors import ApiError, UpstreamError
from antiphon.protocols import output as steps
from antiphon.protocols.dispatch import on, table
from antiphon.protocols.messages.request import ResolvedMessagesRequest
from antiphon.protocols.messages.thinking import Sign, sign_thinking
from antiphon.protocols.output import OutputItem
from antiphon.protocols.output_table import OutputKind
from antiphon.protocols.session import (
    Close,
    Effect,
    Event,
    FromClient,
    FromEngine,
    FromTool,
    Hangup,
    NewId,
    PersistFailed,
    Send,
    SendToEngine,
    Shutdown,
    TextRun,
    Tick,
    report_effect,
)
from antiphon.protocols.token_estimate import response_tokens
from antiphon.tool_api import decode_arguments
from antiphon.wire.codec.types import JsonDict, encode
from antiphon.wire.messages import blocks, events
from antiphon.wire.messages.errors import message_error
from antiphon.wire.messages.events import MessageEvent
from antiphon.wire.messages.response import MessageResponse, MessageUsage, OutputTokenDetails, StopReason

_AUDIO_RATE_HZ = 24_000

RAW_ARGUMENTS = "_raw"
"""
The only field of a call's input whose arguments are no JSON object. An empty input would look like a call without
arguments: clients ran it, and models called again, without an end.
"""

_Effects = list[Effect[MessageEvent]]


class MessagesSession:
    """
    The machine of one message.

    Args:
        respond: the command for the engine.
        input_tokens: of the request, counted or estimated: what the client is told before the engine has counted.
        sign: makes the signatures of reasoning; needed only where the client wants reasoning.

    Attributes:
        usage: what the client is told at the end; None before.
        stop_reason: why the message ended; None before.
    """

    def __init__(
        self,
        resolved_request: ResolvedMessagesRequest,
        respond: commands.Respond,
        new_id: NewId,
        input_tokens: int,
        sign: Sign = lambda _content: None,
    ) -> None:
        self.usage: MessageUsage | None = None
        self.stop_reason: StopReason | None = None
        self._resolved_request = resolved_request
        self._respond = respond
        self._input_tokens = input_tokens
        self._sign = sign
        self._output = steps.OutputMachine(new_id, requires_item=False)
        self._is_streamed = resolved_request.is_streamed
        self._content: list[Callable[[], blocks.ContentBlock]] = []
        self._block_count = 0
        self._open_block: OutputItem | None = None
        self._arguments: _ArgumentsWriter | None = None
        self._thinking = ""
        self._thinking_kind: OutputKind | None = None
        self._stop_sequence: str | None = None
        self._has_refused = False
        self._has_called = False
        self._has_client_left = False
        self._has_begun = False
        self._is_closed = False

    @property
    def tokens(self) -> int:
        """Input and output tokens; estimated if the engine did not report them."""
        return response_tokens(self._output, self._respond, _AUDIO_RATE_HZ)

    @property
    def outcome(self) -> Literal["completed", "incomplete"] | None:
        """How it ended by itself; None before, and where it failed or its client left."""
        if self.stop_reason is None:
            return None
        return "incomplete" if self.stop_reason in ("max_tokens", "model_context_window_exceeded") else "completed"

    def content(self) -> str:
        """The whole message as JSON, for the log; empty before its end."""
        return "" if self.usage is None else encode(self._whole(self.usage)).decode()

    @property
    def rewrite_status(self) -> engine_events.RewriteStatus | None:
        """How rewriting its text ended; None where that was not tried."""
        return self._output.rewrite_status

    def handle(self, event: Event[ResolvedMessagesRequest]) -> list[Effect[MessageEvent]]:
        if not isinstance(event, FromEngine):
            return self._handle_control_event(event)
        if self._is_closed:
            return []
        effects: _Effects = []
        output = self._output
        for engine_event in event.events:
            # The path of nearly every token, inline to save the calls.
            if (
                type(engine_event) is engine_events.TextDelta
                and (item := self._open_block) is not None
                and output.append_text(text := engine_event.text) is item
            ):
                if self._is_streamed:
                    piece = events.TextPiece(text=text)
                    effects.append(Send(events.ContentBlockDelta(index=self._block_count - 1, delta=piece)))
                continue
            if (report := report_effect(engine_event)) is not None:
                effects.append(report)
                continue
            if type(engine_event) is engine_events.ResponseEnded:
                self._stop_sequence = engine_event.stop_sequence
            for step in output.apply(engine_event):
                if (handler := _STEP_HANDLERS.get(type(step))) is not None:
                    handler(self, step, effects)
        return effects

    def begin_text(self, series: TextSeries) -> TextRun[MessageEvent] | None:
        place = self._output.open_text()
        if self._is_closed or not self._is_streamed or series.around is not None or place is None or place[0] is not self._open_block:
            return None
        index = self._block_count - 1
        return TextRun(lambda text: events.ContentBlockDelta(index=index, delta=events.TextPiece(text=text)), place[1])

    def end_text(self, count: int) -> None:
        """Nothing: the events of this API have no numbers."""

    def _handle_control_event(
        self, event: FromClient[ResolvedMessagesRequest] | FromTool | Hangup | PersistFailed | Shutdown | Tick
    ) -> list[Effect[MessageEvent]]:
        if self._is_closed:
            return []
        match event:
            case FromClient():
                return self._begin()
            case Hangup():
                self._has_client_left = True
                self._is_closed = True
                self._output.cancel()
                return [SendToEngine(commands.Cancel(self._respond.id)), Close()]
            case Shutdown(error):
                self._output.cancel()
                effects: _Effects = [SendToEngine(commands.Cancel(self._respond.id))]
                self._fail(error, effects)
                return effects
            case Tick() | PersistFailed() | FromTool():  # This session sets no timer, stores nothing and calls no tools.
                return []

    def _begin(self) -> list[Effect[MessageEvent]]:
        if self._has_begun:
            return []
        self._has_begun = True
        effects: _Effects = [SendToEngine(self._respond)]
        if self._is_streamed:
            usage = MessageUsage(input_tokens=self._input_tokens, cache_creation_input_tokens=0, cache_read_input_tokens=0, output_tokens=0)
            effects.append(Send(events.MessageStart(message=self._whole(usage))))
        return effects

    def _whole(self, usage: MessageUsage) -> MessageResponse:
        return MessageResponse(
            id=self._respond.id,
            model=self._resolved_request.model,
            content=[block() for block in self._content],
            stop_reason=self.stop_reason,
            stop_sequence=self._stop_sequence if self.stop_reason == "stop_sequence" else None,
            usage=usage,
        )

    # Blocks

    def _open(self, item: OutputItem, block: blocks.ContentBlock, effects: _Effects) -> None:
        self._open_block = item
        if self._is_streamed:
            effects.append(Send(events.ContentBlockStart(index=self._block_count, content_block=block)))
        self._block_count += 1

    def _grow(self, piece: events.BlockPiece, effects: _Effects) -> None:
        if self._is_streamed:
            effects.append(Send(events.ContentBlockDelta(index=self._block_count - 1, delta=piece)))

    def _close(self, block: Callable[[], blocks.ContentBlock], effects: _Effects) -> None:
        self._open_block = None
        self._content.append(block)
        if self._is_streamed:
            effects.append(Send(events.ContentBlockStop(index=self._block_count - 1)))

    def _on_item_added(self, step: steps.ItemAdded, effects: _Effects) -> None:
        call = step.item.call
        if call is None:
            return
        self._has_called = True
        self._arguments = _ArgumentsWriter()
        name = f"{call.namespace}__{call.name}" if call.namespace else call.name
        self._open(step.item, blocks.ToolUseBlock(id=call.call_id, name=name), effects)

    def _on_text(self, step: steps.TextAppended, effects: _Effects) -> None:
        if not step.text:
            return
        if step.item.is_reasoning:
            self._on_thinking(step, effects)
            return
        # Until it has text a block is not opened, and where a part follows another in one message, they are two blocks.
        if self._open_block is None:
            self._open(step.item, blocks.TextBlock(text=""), effects)
        self._has_refused |= step.part.kind is OutputKind.REFUSAL
        self._grow(events.TextPiece(text=step.text), effects)

    def _on_thinking(self, step: steps.TextAppended, effects: _Effects) -> None:
        if not self._resolved_request.wants_thinking:
            return
        text = step.text
        if self._open_block is None:
            self._thinking, self._thinking_kind = "", step.part.kind
            self._open(step.item, blocks.ThinkingBlock(thinking="", signature=""), effects)
        elif step.part.kind is not self._thinking_kind:
            return  # A summary of reasoning that was sent in full, or the other way round.
        elif len(step.part.chunks) == 1:
            text = f"\n\n{text}"  # A further part of the summary begins.
        self._thinking += text
        if self._resolved_request.shows_thinking:
            self._grow(events.ThinkingPiece(thinking=text), effects)

    def _on_arguments(self, step: steps.ArgumentsAppended, effects: _Effects) -> None:
        if self._arguments is not None and (piece := self._arguments.write(step.text)):
            self._grow(events.InputJsonPiece(partial_json=piece), effects)

    def _on_part_done(self, step: steps.PartDone, effects: _Effects) -> None:
        if self._open_block is step.item and not step.item.is_reasoning:
            text = step.part.text
            self._close(lambda: blocks.TextBlock(text=text), effects)

    def _on_item_done(self, step: steps.ItemDone, effects: _Effects) -> None:
        item = step.item
        if item.is_reasoning:
            self._end_thinking(item, effects)
        elif item.call is not None and self._arguments is not None:
            if piece := self._arguments.end():
                self._grow(events.InputJsonPiece(partial_json=piece), effects)
            self._close(lambda: _tool_use(item), effects)

    def _end_thinking(self, item: OutputItem, effects: _Effects) -> None:
        if self._open_block is item:
            is_shown = self._resolved_request.shows_thinking
            text = self._thinking
            # Messages, streaming: the signature comes in one `signature_delta`, just before the block ends.
            signature = sign_thinking(self._sign, text, item.encrypted_content, is_shown=is_shown)
            self._grow(events.SignaturePiece(signature=signature), effects)
            self._close(lambda: blocks.ThinkingBlock(thinking=text if is_shown else "", signature=signature), effects)
        elif item.encrypted_content is not None and self._resolved_request.wants_thinking:
            block = blocks.RedactedThinkingBlock(data=sign_thinking(self._sign, "", item.encrypted_content, is_shown=False))
            self._open(item, block, effects)
            self._close(lambda: block, effects)

    # The end

    def _on_output_finished(self, step: steps.OutputFinished, effects: _Effects) -> None:
        if step.failure is not None:
            self._fail(_to_api_error(step.failure), effects)
            return
        if step.outcome == "cancelled":  # By the engine: when a client leaves, the session is closed before this.
            self._fail(UpstreamError("The model was stopped before it had finished.", code="server_error"), effects)
            return
        self.usage = self._final_usage()
        self.stop_reason = self._final_stop_reason(step)
        if self._is_streamed:
            stop_sequence = self._stop_sequence if self.stop_reason == "stop_sequence" else None
            ending = events.MessageEnding(stop_reason=self.stop_reason, stop_sequence=stop_sequence)
            effects.append(Send(events.MessageDelta(delta=ending, usage=self.usage)))
            effects.append(Send(events.MessageStop()))
        else:
            effects.append(Send(self._whole(self.usage)))
        self._is_closed = True
        effects.append(Close())

    def _fail(self, error: ApiError, effects: _Effects) -> None:
        self._is_closed = True
        # The status line has long been sent, so the error is an event; otherwise `Close` makes it the answer.
        if self._is_streamed:
            effects.append(Send(message_error(error)))
        effects.append(Close(error))

    def _final_stop_reason(self, step: steps.OutputFinished) -> StopReason:
        if step.reason == "content_filter":
            return "refusal"
        # A call that was cut off must not be run: `tool_use` would tell the client to.
        if step.outcome == "incomplete":
            return "model_context_window_exceeded" if self._is_window_full() else "max_tokens"
        if self._has_called:
            return "tool_use"
        if self._has_refused:
            return "refusal"
        return "end_turn" if self._stop_sequence is None else "stop_sequence"

    def _is_window_full(self) -> bool:
        """Whether the answer was cut by the end of the context window before it had `max_tokens`."""
        usage, window = self._output.usage, self._resolved_request.capabilities.context_window
        return usage is not None and window is not None and usage.input_tokens + usage.output_tokens >= window

    def _final_usage(self) -> MessageUsage:
        usage = self._output.usage
        if usage is None:  # The field is required, so what the engine did not count is estimated.
            output_tokens = sum(text_tokens(len(_text_of(item).encode())) for item in self._output.items)
            return MessageUsage(
                input_tokens=self._input_tokens,
                cache_creation_input_tokens=0,
                cache_read_input_tokens=0,
                output_tokens=output_tokens,
            )
        # Messages: `input_tokens` has neither what was read from the cache nor what was written to it. Clients add the
        # three up to see how full the context window is.
        return MessageUsage(
            input_tokens=max(0, usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens),
            cache_creation_input_tokens=usage.cache_write_tokens,
            cache_read_input_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            output_tokens_details=(OutputTokenDetails(thinking_tokens=usage.reasoning_tokens) if usage.reasoning_tokens else msgspec.UNSET),
        )


class _ArgumentsWriter:
    """
    The JSON of a call's input, from its arguments as they come. What does not begin as an object becomes the text of one
    field.
    """

    def __init__(self) -> None:
        self._is_raw: bool | None = None
        self._blank = ""

    def write(self, text: str) -> str:
        """What to send of the next piece; empty while it is not known how it begins."""
        if self._is_raw is None:
            text = self._blank + text
            if not (begin := text.lstrip()):
                self._blank = text
                return ""
            self._is_raw = begin[0] != "{"
            if self._is_raw:
                return f'{{"{RAW_ARGUMENTS}":"{_escape(text)}'
            return text
        return _escape(text) if self._is_raw else text

    def end(self) -> str:
        """What closes the JSON; empty if the model's own arguments do."""
        return '"}' if self._is_raw else ""


def _escape(text: str) -> str:
    """Escape a text for the inside of a JSON string."""
    return msgspec.json.encode(text)[1:-1].decode()


def _tool_use(item: OutputItem) -> blocks.ToolUseBlock:
    assert item.call is not None
    name = f"{item.call.namespace}__{item.call.name}" if item.call.namespace else item.call.name
    return blocks.ToolUseBlock(id=item.call.call_id, name=name, input=_input(item.arguments))


def _input(arguments: str) -> JsonDict:
    if not arguments.strip():
        return {}
    try:
        fields = decode_arguments(arguments)
    except ValueError:
        fields = None
    return fields if isinstance(fields, dict) else {RAW_ARGUMENTS: arguments}


def _text_of(item: OutputItem) -> str:
    return "".join(part.text for part in (*item.parts, *item.summaries)) + item.arguments


def _to_api_error(failure: engine_events.ResponseFailed) -> ApiError:
    return ApiError(
        failure.message,
        code=failure.code,
        param=failure.param,
        status=failure.status,
        type=failure.type,
        retry_after_s=failure.retry_after_s,
    )


_STEP_HANDLERS = table(
    on(steps.ItemAdded, MessagesSession._on_item_added),
    on(steps.TextAppended, MessagesSession._on_text),
    on(steps.ArgumentsAppended, MessagesSession._on_arguments),
    on(steps.PartDone, MessagesSession._on_part_done),
    on(steps.ItemDone, MessagesSession._on_item_done),
    on(steps.OutputFinished, MessagesSession._on_output_finished),
)
