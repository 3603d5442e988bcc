"""
A streamed response, as engine events.

A server sends most content more than once: as deltas, as a complete part, as a complete item, and at the end in the
whole output. What was read is counted, so that whichever of these a server sends or leaves out, each piece becomes one
event.
"""

from collections.abc import Callable, Mapping

import msgspec

from antiphon.engine_api import events as engine_events, history
from antiphon.engine_api.options import Tool
from antiphon.engines.chat.response import token_count, token_logprob
from antiphon.engines.chat.tool_calls import CallIds
from antiphon.engines.responses.item_order import ItemKind, ItemSequencer, UpstreamItem
from antiphon.engines.upstream.faults import error_from_response, error_from_stream
from antiphon.errors import ApiError, UpstreamError, invalid_tool_call
from antiphon.wire.codec.repair import repair_json
from antiphon.wire.codec.sse import DONE
from antiphon.wire.codec.types import JsonDict
from antiphon.wire.responses.profiles import without_prefixes
from antiphon.wire.upstream import responses as loose
from antiphon.wire.upstream.chat_completions import TokenLogprob
from antiphon.wire.upstream.responses import Event

EventList = list[engine_events.EngineEvent]

ITEM_KINDS: dict[str, ItemKind] = {"message": "message", "reasoning": "reasoning", "function_call": "call", "custom_tool_call": "call"}
"""Item kinds by `type`; all other types are a hosted tool's."""

END_STATUSES = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
    "response.done": "completed",
}
"""Events that end a response, and the status that they mean where their response has none."""

END_REASONS: dict[str | None, engine_events.EndReason] = {"content_filter": "content_filter"}
"""
End reasons of an incomplete response; all others are limits (`max_output_tokens`, `length`, `max_iterations_exceeded`).
"""

ERROR_STATUSES = {
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "slow_down": 503,
    "server_is_overloaded": 503,
    "invalid_prompt": 400,
    "invalid_request_error": 400,
}
"""
The HTTP status that an error in a stream would have had as a response; codes that begin with `invalid_` mean 400 too.
"""


class ResponsesResponseReader:
    """
    Reads one response.

    Args:
        id: of the response.
        tools: by the names that the server was sent.
        keep_ids: items keep their upstream ids.
    """

    def __init__(self, id: str, tools: Mapping[str, Tool], keep_ids: bool) -> None:
        self._id = id
        self._tools = tools
        self._items = ItemSequencer(id, keep_ids)
        self._call_ids = CallIds(id)

    def read(self, events: list[bytes], out: EventList) -> bool:
        id = self._id
        items = self._items
        decode = loose.decode_event
        for raw in events:
            if not raw or raw == DONE:
                continue
            try:
                event = decode(raw)
            except (ValueError, RecursionError) as error:
                raw, event = repair_json(raw, decode, error, "event")
            active = items.active_item
            # Nearly every event is more text of the active item.
            if (
                active is not None
                and event.type == "response.output_text.delta"
                and event.item_id == active.upstream_id
                and event.output_index == active.index
                and event.content_index == active.current_text.index
                and not event.logprobs
                and type(event.delta) is str
            ):
                active.current_text.chars += len(event.delta)
                out.append(engine_events.TextDelta(id, event.delta))
                continue
            if self._read_event(event, raw, out):
                return True
        return False

    def finish(self, out: EventList) -> bool:
        return False  # a complete response ends with an event

    def cut(self, out: EventList) -> None:
        self._items.flush(out)
        out.append(engine_events.ResponseEnded(self._id, "length"))

    def _read_event(self, event: Event, raw: bytes, out: EventList) -> bool:
        if (plain := without_prefixes(raw)) is not raw:
            raw, event = plain, loose.decode_event(plain)
        if (read := _EVENT_READERS.get(event.type)) is not None:
            read(self, event, out)
        elif event.type in END_STATUSES:
            self._end(event.response, END_STATUSES[event.type], out)
            return True
        elif not event.type and event.object == "response":
            self._end(msgspec.Raw(raw), "completed", out)
            return True
        elif event.type in ("error", "response.error") or (not event.type and event.error is not None):
            raise error_in_stream(event.error if event.error is not None else _error_fields(event))
        elif event.type not in IGNORED_EVENTS and (item := self._items.find_hosted(event)) is not None and not item.is_done:
            fields = loose.decode_fields(raw) | {"type": EVENT_ALIASES.get(event.type, event.type)}
            self._items.emit(item, engine_events.HostedToolProgress(self._id, fields), out)
        return False

    # Text

    def _append_text(self, kind: ItemKind, channel: str, event: Event, text: object, out: EventList, *, is_final: bool = False) -> None:
        """More of a text; with `is_final` all of it, most of which has been read."""
        item = self._items.find(event, kind, is_late=is_final)
        if item.is_done or not isinstance(text, str):
            return
        index = event.summary_index if channel == "summary" else event.content_index
        tokens = tuple(token_logprob(token) for token in event.logprobs or ())
        if is_final:
            self._emit_missing_text(item, channel, index, text, tokens, out)
        else:
            self._emit_text(item, channel, index, text, tokens, out)
        item.is_text_complete = is_final

    def _emit_missing_text(
        self, item: UpstreamItem, channel: str, index: int | None, text: str, tokens: tuple[engine_events.TokenLogprob, ...], out: EventList
    ) -> None:
        chars = item.text_progress(channel, index).chars
        if len(text) > chars:
            self._emit_text(item, channel, index, text[chars:], () if chars else tokens, out)

    def _emit_text(
        self, item: UpstreamItem, channel: str, index: int | None, text: str, tokens: tuple[engine_events.TokenLogprob, ...], out: EventList
    ) -> None:
        part = item.text_progress(channel, index)
        part.chars += len(text)
        if channel == "text":
            item.current_text = part
        if channel == "summary":
            if item.summary_index not in (None, index or 0):
                self._items.emit(item, engine_events.ReasoningBoundary(self._id), out)
            item.summary_index = index or 0
        if text or tokens:
            self._items.emit(item, _DELTAS[channel](self._id, text, tokens), out)

    def _on_annotation(self, event: Event, out: EventList) -> None:
        item = self._items.find(event, "message", is_late=True)
        if isinstance(event.annotation, dict) and not item.is_done:
            item.text_progress("text", event.content_index).annotations += 1
            self._items.emit(item, engine_events.AnnotationAdded(self._id, event.annotation), out)

    def _on_content_part_done(self, event: Event, out: EventList) -> None:
        part = event.part if isinstance(event.part, dict) else {}
        kind: ItemKind = "reasoning" if part.get("type") == "reasoning_text" else "message"
        item = self._items.find(event, kind, is_late=True)
        if part.get("type") in _CHANNELS and not item.is_done:
            self._emit_missing_part(item, event.content_index or 0, part, out)
            item.is_text_complete = True

    def _on_summary_part_done(self, event: Event, out: EventList) -> None:
        item = self._items.find(event, "reasoning", is_late=True)
        if isinstance(event.part, dict):
            self._append_text("reasoning", "summary", event, event.part.get("text"), out, is_final=True)
        if item.summary_index is not None and not item.is_done:
            self._items.emit(item, engine_events.ReasoningBoundary(self._id), out)
            item.summary_index = None

    def _emit_missing_part(self, item: UpstreamItem, index: int, part: JsonDict, out: EventList) -> None:
        channel = _CHANNELS.get(str(part.get("type")))
        text = part.get("refusal") if channel == "refusal" else part.get("text")
        if channel is None or not isinstance(text, str):
            return
        self._emit_missing_text(item, channel, index, text, _logprobs(part.get("logprobs")), out)
        progress = item.text_progress(channel, index)
        annotations = [annotation for _, annotation in _indexed_objects(part.get("annotations"))] if channel == "text" else []
        for annotation in annotations[progress.annotations :]:
            progress.annotations += 1
            self._items.emit(item, engine_events.AnnotationAdded(self._id, annotation), out)

    # Calls

    def _append_arguments(self, event: Event, text: object, out: EventList, *, is_final: bool = False) -> None:
        item = self._items.find(event, "call", is_late=is_final)
        if item.is_done:
            return
        if event.name:
            item.name = item.name or event.name
        self._emit_arguments(item, _json_text(text), out, is_final=is_final)

    def _emit_arguments(self, item: UpstreamItem, text: str, out: EventList, *, is_final: bool) -> None:
        delta = text[item.current_text.chars :] if is_final else text
        item.current_text.chars += len(delta)
        if not delta:
            return
        if item.call_id:
            self._items.emit(item, engine_events.ToolArgumentsDelta(self._id, item.call_id, delta), out)
        else:
            item.early_arguments.append(delta)

    def _emit_call_start(self, item: UpstreamItem, fields: JsonDict, out: EventList) -> None:
        """Start a call, if its name is known by now."""
        if item.call_id or not (name := str(fields.get("name") or item.name)):
            return
        item.call_id = self._call_ids.take(str(fields.get("call_id") or item.upstream_id or ""))
        namespace = fields.get("namespace") if isinstance(fields.get("namespace"), str) else None
        if (tool := self._tools.get(name)) is not None and not namespace:
            name, namespace = tool.name, tool.namespace
        is_custom = fields.get("type") == "custom_tool_call"
        self._items.emit(
            item, engine_events.ToolCallStarted(self._id, item.call_id, name, custom=is_custom, namespace=namespace or None), out
        )
        if item.early_arguments:
            self._items.emit(item, engine_events.ToolArgumentsDelta(self._id, item.call_id, "".join(item.early_arguments)), out)
            item.early_arguments.clear()

    # Items

    def _on_item_added(self, event: Event, out: EventList) -> None:
        fields = event.item if isinstance(event.item, dict) else {}
        kind = ITEM_KINDS.get(str(fields.get("type")), "hosted")
        item = self._items.begin(_item_id(fields), event.output_index, kind)
        if item.is_done:
            return
        item.phase = _PHASES.get(str(fields.get("phase")))
        if kind == "call":
            self._emit_call_start(item, fields, out)
        if kind == "hosted" and "type" in fields:
            self._items.emit(item, engine_events.HostedToolStarted(self._id, fields), out)

    def _on_item_done(self, event: Event, out: EventList) -> None:
        if isinstance(event.item, dict):
            kind = ITEM_KINDS.get(str(event.item.get("type")), "hosted")
            self._finish_item(self._items.end(_item_id(event.item), event.output_index, kind), event.item, out)

    def _finish_item(self, item: UpstreamItem, fields: JsonDict, out: EventList) -> None:
        """An item is complete: emit what is still missing of it."""
        if item.is_done:
            return
        item.phase = item.phase or _PHASES.get(str(fields.get("phase")))
        _ITEM_FINISHERS[item.kind](self, item, fields, out)
        self._items.close(item, out, is_complete=fields.get("status") != "incomplete")

    def _finish_message(self, item: UpstreamItem, fields: JsonDict, out: EventList) -> None:
        content = fields.get("content")
        if isinstance(content, str):
            content = [{"type": "output_text", "text": content}]
        for index, part in _indexed_objects(content):
            self._emit_missing_part(item, index, part, out)

    def _finish_reasoning(self, item: UpstreamItem, fields: JsonDict, out: EventList) -> None:
        self._finish_message(item, fields, out)
        for index, part in _indexed_objects(fields.get("summary")):
            if isinstance(part.get("text"), str):
                self._emit_missing_text(item, "summary", index, part["text"], (), out)
        if content := fields.get("encrypted_content"):
            self._items.emit(item, engine_events.EncryptedReasoning(self._id, str(content)), out)

    def _finish_call(self, item: UpstreamItem, fields: JsonDict, out: EventList) -> None:
        self._emit_call_start(item, fields, out)
        text = fields.get("input") if fields.get("type") == "custom_tool_call" else fields.get("arguments")
        self._emit_arguments(item, _json_text(text), out, is_final=True)
        if item.call_id and not item.current_text.chars and fields.get("type") == "function_call" and fields.get("status") != "incomplete":
            self._emit_arguments(item, "{}", out, is_final=True)  # of a function without parameters; clients read it as JSON
        if item.call_id and fields.get("status") != "incomplete":
            self._items.emit(item, engine_events.ToolCallDone(self._id, item.call_id), out)

    def _finish_hosted(self, item: UpstreamItem, fields: JsonDict, out: EventList) -> None:
        if "type" in fields:
            if not item.is_announced:
                self._items.emit(item, engine_events.HostedToolStarted(self._id, fields), out)
            self._items.emit(item, engine_events.HostedToolDone(self._id, fields), out)

    # The end

    def _end(self, body: msgspec.Raw, status: str, out: EventList) -> None:
        try:
            response = loose.decode_response(body) if body else loose.Response()
        except (ValueError, RecursionError) as error:
            raise UpstreamError(f"The model server sent what is no response: {error}.", code="upstream_malformed") from None
        status = response.status or status
        if status == "failed":
            raise error_in_stream(response.error)
        self._emit_missing_output(response.output or [], out)
        self._items.flush(out)
        if any(item.early_arguments for item in self._items.items):
            raise invalid_tool_call("it has no name")
        if response.usage is not None:
            out.append(_usage(self._id, response.usage))
        reasons = {"completed": "stop", "cancelled": "cancelled"}
        reason = response.incomplete_details.reason if response.incomplete_details else None
        out.append(engine_events.ResponseEnded(self._id, reasons.get(status) or END_REASONS.get(reason, "length")))  # type: ignore[arg-type]

    def _emit_missing_output(self, output: list[object], out: EventList) -> None:
        """Emit what the final output has and the events did not."""
        counts: dict[ItemKind, int] = {}
        for _, fields in _indexed_objects(output):
            kind = ITEM_KINDS.get(str(fields.get("type")), "hosted")
            nth = counts[kind] = counts.get(kind, -1) + 1
            self._finish_item(self._items.match(_item_id(fields), kind, nth), fields, out)


_DELTAS: dict[str, Callable[[str, str, tuple[engine_events.TokenLogprob, ...]], engine_events.EngineEvent]] = {
    "text": engine_events.TextDelta,
    "refusal": lambda id, text, _tokens: engine_events.RefusalDelta(id, text),
    "reasoning": lambda id, text, _tokens: engine_events.ReasoningDelta(id, text),
    "summary": lambda id, text, _tokens: engine_events.ReasoningDelta(id, text, summary=True),
}

_CHANNELS = {"output_text": "text", "refusal": "refusal", "reasoning_text": "reasoning", "text": "text"}
"""Channels by the type of a part; some servers call `output_text` just `text`."""

_PHASES: dict[str, history.Phase] = {"commentary": "commentary", "final_answer": "final_answer"}

_ITEM_FINISHERS: dict[ItemKind, Callable[[ResponsesResponseReader, UpstreamItem, JsonDict, EventList], None]] = {
    "message": ResponsesResponseReader._finish_message,
    "reasoning": ResponsesResponseReader._finish_reasoning,
    "call": ResponsesResponseReader._finish_call,
    "hosted": ResponsesResponseReader._finish_hosted,
}

_EventReader = Callable[[ResponsesResponseReader, Event, EventList], None]

_EVENT_READERS: dict[str, _EventReader] = {
    "response.output_item.added": ResponsesResponseReader._on_item_added,
    "response.output_item.done": ResponsesResponseReader._on_item_done,
    "response.output_text.delta": lambda reader, event, out: reader._append_text("message", "text", event, event.delta, out),
    "response.output_text.done": lambda reader, event, out: reader._append_text("message", "text", event, event.text, out, is_final=True),
    "response.output_text.annotation.added": ResponsesResponseReader._on_annotation,
    "response.refusal.delta": lambda reader, event, out: reader._append_text("message", "refusal", event, event.delta, out),
    "response.refusal.done": lambda reader, event, out: reader._append_text("message", "refusal", event, event.refusal, out, is_final=True),
    "response.content_part.done": ResponsesResponseReader._on_content_part_done,
    "response.reasoning_text.delta": lambda reader, event, out: reader._append_text("reasoning", "reasoning", event, event.delta, out),
    "response.reasoning_text.done": lambda reader, event, out: reader._append_text(
        "reasoning", "reasoning", event, event.text, out, is_final=True
    ),
    "response.reasoning_summary_text.delta": lambda reader, event, out: reader._append_text(
        "reasoning", "summary", event, event.delta, out
    ),
    "response.reasoning_summary_text.done": lambda reader, event, out: reader._append_text(
        "reasoning", "summary", event, event.text, out, is_final=True
    ),
    "response.reasoning_summary_part.done": ResponsesResponseReader._on_summary_part_done,
    "response.function_call_arguments.delta": lambda reader, event, out: reader._append_arguments(event, event.delta, out),
    "response.function_call_arguments.done": lambda reader, event, out: reader._append_arguments(
        event, event.arguments, out, is_final=True
    ),
    "response.custom_tool_call_input.delta": lambda reader, event, out: reader._append_arguments(event, event.delta, out),
    "response.custom_tool_call_input.done": lambda reader, event, out: reader._append_arguments(event, event.input, out, is_final=True),
}

EVENT_ALIASES = {
    # Open Responses
    "response.reasoning.delta": "response.reasoning_text.delta",
    "response.reasoning.done": "response.reasoning_text.done",
    # leseb's gateway
    "response.reasoning_summary.delta": "response.reasoning_summary_text.delta",
    "response.reasoning_summary.done": "response.reasoning_summary_text.done",
    "response.output_text_annotation.added": "response.output_text.annotation.added",
    # OGX
    "response.mcp_call.arguments.delta": "response.mcp_call_arguments.delta",
    "response.mcp_call.arguments.done": "response.mcp_call_arguments.done",
}
"""Other servers' names of events, and OpenAI's."""

_EVENT_READERS |= {alias: _EVENT_READERS[name] for alias, name in EVENT_ALIASES.items() if name in _EVENT_READERS}

IGNORED_EVENTS = frozenset(
    (
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.content_part.added",
        "response.reasoning_part.added",
        "response.reasoning_part.done",
        "response.reasoning_summary_part.added",
        # Audio: no engine of this kind requests it, and its transcript comes as text too.
        "response.audio.delta",
        "response.audio.done",
        "response.audio.transcript.delta",
        "response.audio.transcript.done",
    )
)
"""Events without content of their own. Those of hosted tools are passed on, unknown ones are ignored."""


def error_in_stream(error: object) -> ApiError:
    """The error for an `error` or a failed response in the middle of a stream."""
    code = error.get("code") if isinstance(error, dict) else None
    status = ERROR_STATUSES.get(str(code)) or (400 if str(code).startswith("invalid_") else None)
    if status is not None:
        return error_from_response(status, {}, msgspec.json.encode({"error": error}))
    return error_from_stream(error)


def _error_fields(event: Event) -> JsonDict:
    return {"code": event.code, "message": event.message, "param": event.param}


def _item_id(fields: JsonDict) -> str | None:
    id = fields.get("id")
    return id if isinstance(id, str) and id else None


def _indexed_objects(parts: object) -> list[tuple[int, JsonDict]]:
    """The objects in a list, with their indexes; nothing else."""
    return [(index, part) for index, part in enumerate(parts) if isinstance(part, dict)] if isinstance(parts, list) else []


def _json_text(text: object) -> str:
    """Arguments as JSON text; some servers send the object itself."""
    if isinstance(text, str):
        return text
    return "" if text is None else msgspec.json.encode(text).decode()


def _logprobs(logprobs: object) -> tuple[engine_events.TokenLogprob, ...]:
    try:
        return tuple(token_logprob(token) for token in msgspec.convert(logprobs or [], list[TokenLogprob]))
    except msgspec.ValidationError:
        return ()


def _usage(id: str, usage: loose.Usage) -> engine_events.Usage:
    input_details, output_details = usage.input_tokens_details or loose.InputDetails(), usage.output_tokens_details or loose.OutputDetails()
    return engine_events.Usage(
        id=id,
        input_tokens=token_count(usage.input_tokens),
        output_tokens=token_count(usage.output_tokens),
        cached_tokens=token_count(input_details.cached_tokens),
        cache_write_tokens=token_count(input_details.cache_write_tokens),
        reasoning_tokens=token_count(output_details.reasoning_tokens),
    )
