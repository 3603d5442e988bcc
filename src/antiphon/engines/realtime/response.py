"""One response of a Realtime server, as engine events."""

from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from antiphon.audio import duration_ms
from antiphon.engine_api import commands, events
from antiphon.engines.chat.request import flat_name
from antiphon.engines.realtime.faults import ErrorMapper
from antiphon.engines.realtime.items import call_fingerprint
from antiphon.engines.realtime.mirror import Mirror, MirroredItem, PartText
from antiphon.engines.realtime.request import RealtimeAudioDecoder
from antiphon.wire.codec.types import Unknown
from antiphon.wire.realtime.items import FunctionCallItem, MessageItem
from antiphon.wire.realtime.response import Response, Usage
from antiphon.wire.realtime.server_events import (
    ResponseFunctionCallArgumentsDelta,
    ResponseFunctionCallArgumentsDone,
    ResponseOutputAudioDelta,
    ResponseOutputAudioTranscriptDelta,
    ResponseOutputAudioTranscriptDone,
    ResponseOutputItemAdded,
    ResponseOutputItemDone,
    ResponseOutputTextDelta,
    ResponseOutputTextDone,
    ServerEvent,
)

_ContentEvent = (
    ResponseOutputTextDelta
    | ResponseOutputTextDone
    | ResponseOutputAudioTranscriptDelta
    | ResponseOutputAudioTranscriptDone
    | ResponseOutputAudioDelta
)

END_REASONS: dict[str, events.EndReason] = {"max_output_tokens": "length", "content_filter": "content_filter"}


class RealtimeResponseReader:
    """
    Reads the response to one `Respond`.

    Args:
        mirror: takes the items that the response makes; None for an out-of-band response, which makes none.

    Attributes:
        event_id: of its `response.create`; "" before that is sent.
        response_id: the server's id, from `response.created` on.
        is_cancelled: whether the client cancelled it, or it failed; no more of its content is read.
        is_over: whether its last event was returned.
        last_activity_at: when it was requested, or its latest event came.
        has_output: whether any of its events came.
        received_bytes: of its events; once it is cut, of those that still come.
        received_count: of its events.
        is_cut: whether it ended because it came to more than it may.
    """

    def __init__(self, request: commands.Respond, mirror: Mirror | None, now: float) -> None:
        self.request = request
        self.event_id = ""
        self.response_id: str | None = None
        self.is_cancelled = False
        self.is_over = False
        self.last_activity_at = now
        self.has_output = False
        self.received_bytes = 0
        self.received_count = 0
        self.is_cut = False
        self._mirror = mirror
        self._tools = {flat_name(tool.name, tool.namespace): tool for tool in request.tools}
        self._mirrored_items: dict[str, MirroredItem] = {}
        self._parts: dict[tuple[str, int], _ContentPart] = {}
        self._calls: dict[str, _FunctionCall] = {}
        self._current_message_id: str | None = None

    @property
    def is_out_of_band(self) -> bool:
        """Whether it leaves the conversation upstream unchanged."""
        return self._mirror is None

    def read(self, event: ServerEvent | Unknown, out: list[events.EngineEvent]) -> None:
        """Add what the event says to `out`; its end is read by `end`."""
        self.has_output = True
        if not self.is_over and (read_event := _EVENT_READERS.get(type(event))) is not None:
            read_event(self, event, out)

    def end(self, response: Response, map_error: ErrorMapper) -> list[events.EngineEvent]:
        """The last events, by the response of `response.done`."""
        batch: list[events.EngineEvent] = []
        if self.is_over:
            return batch
        self.is_over = True
        id, details = self.request.id, response.status_details
        if response.usage is not None:
            batch.append(_usage(id, response.usage))
        match response.status:
            case "failed" if not self.is_cancelled:
                batch.append(events.ResponseFailed.from_error(id, map_error(details.error or None if details is not None else None)))
            case "incomplete" if not self.is_cancelled:
                batch.append(events.ResponseEnded(id, END_REASONS.get((details.reason or "") if details is not None else "", "length")))
            # Also after a cancellation, which came too late.
            case "completed":
                batch.append(events.ResponseEnded(id))
            case _:
                batch.append(events.ResponseEnded(id, "cancelled"))
        return batch

    # Its events

    def _on_item_added(self, event: ResponseOutputItemAdded, out: list[events.EngineEvent]) -> None:
        match event.item:
            case FunctionCallItem(id=str(item_id), call_id=str(call_id), name=name):
                self._get_call(item_id, call_id, name, out)
            case MessageItem(id=str(item_id)):
                self._begin_message(item_id, out)
            case _:
                pass  # such as reasoning, which has no engine event here

    def _on_text_delta(self, event: ResponseOutputTextDelta | ResponseOutputAudioTranscriptDelta, out: list[events.EngineEvent]) -> None:
        if self.is_cancelled:
            return
        part = self._get_part(event, out)
        part.part_text.chunks.append((part.part_text.audio_ms, event.delta))
        # A server may speak although text was requested: then its words are the text.
        is_transcript = isinstance(event, ResponseOutputAudioTranscriptDelta) and self.request.voice is not None
        out.append((events.AudioTranscriptDelta if is_transcript else events.TextDelta)(self.request.id, event.delta))

    def _on_text_done(self, event: ResponseOutputTextDone | ResponseOutputAudioTranscriptDone, out: list[events.EngineEvent]) -> None:
        """The whole text of a part; some servers send no deltas before it, or not all of them."""
        is_transcript = isinstance(event, ResponseOutputAudioTranscriptDone)
        streamed_text = self._get_part(event, out).part_text.text
        text = event.transcript if isinstance(event, ResponseOutputAudioTranscriptDone) else event.text
        if len(text) > len(streamed_text) and text.startswith(streamed_text):
            delta_type = ResponseOutputAudioTranscriptDelta if is_transcript else ResponseOutputTextDelta
            ids = {name: getattr(event, name) for name in ("event_id", "response_id", "item_id", "output_index", "content_index")}
            self._on_text_delta(delta_type(**ids, delta=text[len(streamed_text) :]), out)

    def _on_audio_delta(self, event: ResponseOutputAudioDelta, out: list[events.EngineEvent]) -> None:
        voice = self.request.voice
        if self.is_cancelled or voice is None:
            return
        part = self._get_part(event, out)
        if part.decoder is None:
            part.decoder = RealtimeAudioDecoder(voice.rate_hz)
        if pcm := part.decoder.decode(event.delta):
            part.part_text.audio_ms += duration_ms(len(pcm), voice.rate_hz)
            out.append(events.AudioDelta(self.request.id, pcm))

    def _on_arguments_delta(self, event: ResponseFunctionCallArgumentsDelta, out: list[events.EngineEvent]) -> None:
        # Without `response.output_item.added` the call has no name yet; the event that completes it has all of its
        # arguments.
        call = self._calls.get(event.item_id)
        if call is not None and not self.is_cancelled and not call.is_complete:
            call.arguments += event.delta
            out.append(events.ToolArgumentsDelta(self.request.id, call.call_id, event.delta))

    def _on_arguments_done(self, event: ResponseFunctionCallArgumentsDone, out: list[events.EngineEvent]) -> None:
        if event.name or event.item_id in self._calls:
            self._complete_call(self._get_call(event.item_id, event.call_id, event.name, out), event.item_id, event.arguments, out)

    def _on_item_done(self, event: ResponseOutputItemDone, out: list[events.EngineEvent]) -> None:
        item = event.item
        # A call that was cut off has no complete arguments.
        if isinstance(item, FunctionCallItem) and item.id is not UNSET and item.call_id is not UNSET and item.status != "incomplete":
            self._complete_call(self._get_call(item.id, item.call_id, item.name, out), item.id, item.arguments, out)

    # Its items

    def _begin_message(self, item_id: str, out: list[events.EngineEvent]) -> None:
        if item_id == self._current_message_id:
            return
        if self._current_message_id is not None and not self.is_cancelled:
            out.append(events.ItemBoundary(self.request.id))
        self._current_message_id = item_id
        self._get_mirrored_item(item_id)

    def _get_part(self, event: _ContentEvent, out: list[events.EngineEvent]) -> "_ContentPart":
        key = event.item_id, event.content_index
        part = self._parts.get(key)
        if part is None:
            self._begin_message(event.item_id, out)
            part = self._parts[key] = _ContentPart()
            self._get_mirrored_item(event.item_id).parts[event.content_index] = part.part_text
        return part

    def _get_call(self, item_id: str, call_id: str, name: str, out: list[events.EngineEvent]) -> "_FunctionCall":
        call = self._calls.get(item_id)
        if call is None:
            call = self._calls[item_id] = _FunctionCall(call_id, name)
            self._get_mirrored_item(item_id)
            if not self.is_cancelled:
                tool = self._tools.get(name)
                tool_name, namespace = (tool.name, tool.namespace) if tool is not None else (name, None)
                out.append(events.ToolCallStarted(self.request.id, call_id, tool_name, namespace=namespace))
        return call

    def _complete_call(self, call: "_FunctionCall", item_id: str, arguments: str, out: list[events.EngineEvent]) -> None:
        if call.is_complete or self.is_cancelled:
            return
        call.is_complete = True
        # A server may send them at the end only.
        if not call.arguments and arguments:
            call.arguments = arguments
            out.append(events.ToolArgumentsDelta(self.request.id, call.call_id, arguments))
        out.append(events.ToolCallDone(self.request.id, call.call_id))
        self._get_mirrored_item(item_id).fixed_fingerprint = call_fingerprint(call.call_id, call.name, call.arguments)

    def _get_mirrored_item(self, item_id: str) -> MirroredItem:
        item = self._mirrored_items.get(item_id)
        if item is None:
            item = MirroredItem(item_id) if self._mirror is None else self._mirror.find(item_id) or self._mirror.expect(None, item_id)
            self._mirrored_items[item_id] = item
        return item


class _ContentPart:
    """A part of a message: its text, and the decoder of its audio."""

    def __init__(self) -> None:
        self.part_text = PartText()
        self.decoder: RealtimeAudioDecoder | None = None


class _FunctionCall:
    """A function call so far."""

    def __init__(self, call_id: str, name: str) -> None:
        self.call_id = call_id
        self.name = name
        self.arguments = ""
        self.is_complete = False


_EVENT_READERS: dict[type[ServerEvent | Unknown], Callable[[RealtimeResponseReader, Any, list[events.EngineEvent]], None]] = {
    ResponseOutputItemAdded: RealtimeResponseReader._on_item_added,
    ResponseOutputTextDelta: RealtimeResponseReader._on_text_delta,
    ResponseOutputTextDone: RealtimeResponseReader._on_text_done,
    ResponseOutputAudioTranscriptDelta: RealtimeResponseReader._on_text_delta,
    ResponseOutputAudioTranscriptDone: RealtimeResponseReader._on_text_done,
    ResponseOutputAudioDelta: RealtimeResponseReader._on_audio_delta,
    ResponseFunctionCallArgumentsDelta: RealtimeResponseReader._on_arguments_delta,
    ResponseFunctionCallArgumentsDone: RealtimeResponseReader._on_arguments_done,
    ResponseOutputItemDone: RealtimeResponseReader._on_item_done,
}


def _usage(id: str, usage: Usage) -> events.Usage:
    inputs, outputs = usage.input_token_details or None, usage.output_token_details or None
    cached_inputs = (inputs.cached_tokens_details or None) if inputs is not None else None
    return events.Usage(
        id=id,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=inputs.cached_tokens if inputs is not None else 0,
        input_audio_tokens=inputs.audio_tokens if inputs is not None else 0,
        input_image_tokens=inputs.image_tokens if inputs is not None else 0,
        output_audio_tokens=outputs.audio_tokens if outputs is not None else 0,
        cached_audio_tokens=cached_inputs.audio_tokens if cached_inputs is not None else 0,
    )
