"""
Turns a stream of the original's events into the short dialect's, and a response into its summary.

What the dialect has no event for is left out first, and the rest is numbered then, so that no number is missing: of the
events, of the items, and of the items' places in the output.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import UNSET, DecodeError, Struct, json

from antiphon.wire.codec.fields import is_set, value_or
from antiphon.wire.codec.response_ids import created_at_ms, uuid_of
from antiphon.wire.codec.types import JsonDict, Opt, Unknown, encode
from antiphon.wire.responses import events, summary
from antiphon.wire.responses.events import StreamEvent
from antiphon.wire.responses.items import CustomToolCall, FunctionCall, Item, Message
from antiphon.wire.responses.parts import OutputText, Refusal
from antiphon.wire.responses.response import Response
from antiphon.wire.responses.summary import AnySummaryEvent, CallSummary, FunctionCallSummary, MessageSummary, ResponseNotes

_MCP_ARGUMENTS_DONE = str(events.McpCallArgumentsDone.__struct_config__.tag)

CANCELLED_CODE, FILTER_CODE = "cancelled", "content_filtered"
_FILTER_MESSAGE = "The answer was stopped by a content filter."
_CANCEL_MESSAGE = "The response was cancelled."


class SummaryRules(Protocol):
    """
    What a profile chooses of the dialect.

    Attributes:
        only_types: those of events.
        milliseconds: whether times are in milliseconds.
        uuid_ids: whether ids are UUIDs.
        bare_parts: whether parts have a text only, and their events no item's id.
        arguments_in_added: whether a call is added with its arguments, and so once they are known.
        calls_with_output: whether calls that the server has made are shown, as function calls with an output.
    """

    @property
    def only_types(self) -> frozenset[str]: ...
    @property
    def milliseconds(self) -> bool: ...
    @property
    def uuid_ids(self) -> bool: ...
    @property
    def bare_parts(self) -> bool: ...
    @property
    def arguments_in_added(self) -> bool: ...
    @property
    def calls_with_output(self) -> bool: ...
    def error_code(self, code: str | None, type: str | None = None, status: int | None = None) -> str: ...


# Calls


class _Call(Struct):
    """A call as the dialect shows it; `output` is None where the client makes the call."""

    name: str
    call_id: str
    arguments: str
    output: str | None = None
    status: str = "completed"

    def fields(self) -> dict[str, Any]:
        """Those of a `CallSummary`, or of an item that is done."""
        fields = {"name": self.name, "call_id": self.call_id, "arguments": self.arguments, "status": self.status}
        return fields if self.output is None else fields | {"output": self.output}

    def new_item(self) -> FunctionCallSummary:
        """The item that is added."""
        return FunctionCallSummary(name=self.name, call_id=self.call_id, arguments=self.arguments)


class CallReader:
    """Reads the calls among the items of a response; a name that two MCP servers have is told with its server's."""

    def __init__(self, rules: SummaryRules) -> None:
        self._rules = rules
        self._labels: dict[str, set[str]] = defaultdict(set)

    def read(self, item: Item) -> _Call | None:
        """The call that an item is; None for any other item."""
        if isinstance(item, FunctionCall | CustomToolCall):
            return _client_call(item)
        if not self._rules.calls_with_output or isinstance(item, Message):
            return None
        fields: JsonDict = json.decode(encode(item))
        kind = str(fields.get("type"))
        if kind == "mcp_list_tools":
            self._note_tools(fields)
        if kind == "mcp_approval_request":
            return self._server_call(kind, fields)
        if not kind.endswith("_call"):
            return None
        return self._server_call(kind, fields)

    def _note_tools(self, fields: JsonDict) -> None:
        for tool in fields.get("tools") or ():
            if isinstance(tool, dict):
                self._labels[str(tool.get("name"))].add(str(fields.get("server_label")))

    def _server_call(self, kind: str, fields: JsonDict) -> _Call:
        parts: _Parts = _SERVER_CALLS.get(kind, _other_call)(kind, fields)
        name, argument_fields, output = parts
        if kind in ("mcp_call", "mcp_approval_request"):
            labels = self._labels[name]
            labels.add(label := str(fields.get("server_label")))
            name = f"{label}__{name}" if len(labels) > 1 else name
        arguments = _json_text(argument_fields)
        error = fields.get("error")
        has_failed = is_set(error) or fields.get("status") in ("failed", "incomplete")
        if has_failed:
            output = _error_text(error) if is_set(error) else "The call did not succeed."
        if kind == "mcp_approval_request":
            has_failed, output = True, _APPROVAL_TEXT.format(id=fields.get("id"))
        call_id = fields.get("call_id") or "call_" + str(fields.get("id", "")).partition("_")[2]
        if kind in _CLIENT_CALLS and fields.get("call_id") and not has_failed:
            return _Call(name, str(call_id), arguments or "{}")
        return _Call(name, str(call_id), arguments or "{}", _text(output), "failed" if has_failed else "completed")


def _client_call(item: FunctionCall | CustomToolCall) -> _Call:
    name = f"{item.namespace}__{item.name}" if is_set(item.namespace) else item.name
    arguments = item.arguments if isinstance(item, FunctionCall) else _json_text({"input": item.input})
    if item.status != "incomplete":
        return _Call(name, item.call_id, arguments or "{}")
    return _Call(name, item.call_id, arguments or "{}", "The call was cut off before its arguments were complete.", "failed")


_Parts = tuple[str, object, object]
"""A call's name, its arguments, and its output, as JSON."""


def _mcp_call(_kind: str, fields: JsonDict) -> _Parts:
    return str(fields.get("name")), str(fields.get("arguments") or ""), value_or(fields.get("output"), "")


def _web_search_call(_kind: str, fields: JsonDict) -> _Parts:
    action = fields.get("action")
    action = dict(action) if isinstance(action, dict) else {}
    sources = action.pop("sources", None)
    if action.pop("type", "search") == "search" and "query" in action:
        action = {"query": action["query"]}
    return "web_search", action, _results(sources)


def _file_search_call(_kind: str, fields: JsonDict) -> _Parts:
    return "file_search", {"queries": fields.get("queries") or []}, _results(fields.get("results"))


def _code_interpreter_call(_kind: str, fields: JsonDict) -> _Parts:
    return "code_interpreter", {"code": fields.get("code") or ""}, _results(fields.get("outputs"))


def _image_generation_call(_kind: str, fields: JsonDict) -> _Parts:
    result = fields.get("result")
    return "image_generation", {"prompt": fields.get("revised_prompt") or ""}, _file_note(result, is_picture=True) if result else ""


def _other_call(kind: str, fields: JsonDict) -> _Parts:
    arguments: object = next((fields[name] for name in ("arguments", "action", "actions", "input", "operation") if fields.get(name)), {})
    output = next((fields[name] for name in ("output", "result", "results") if name in fields), "")
    return kind.removesuffix("_call"), arguments, output


_APPROVAL_TEXT = (
    "The call was not made: it needs the user's approval. To approve it, send an item of type 'mcp_approval_response' with "
    "'approval_request_id' '{id}' and 'approve' true, with this response as 'previous_response_id' and the same tools. A tool with "
    "'require_approval' 'never' needs none."
)
"""The dialect has no approvals; a call that waits for one is told as a call that failed, and why."""

_CLIENT_CALLS = ("local_shell_call", "shell_call", "apply_patch_call", "computer_call", "tool_search_call")
"""Calls that the client makes, as far as they have a `call_id`."""

_SERVER_CALLS: Mapping[str, Callable[[str, JsonDict], _Parts]] = {
    "mcp_call": _mcp_call,
    "mcp_approval_request": _mcp_call,
    "web_search_call": _web_search_call,
    "file_search_call": _file_search_call,
    "code_interpreter_call": _code_interpreter_call,
    "image_generation_call": _image_generation_call,
}


def _results(results: object) -> list[object]:
    return [_bare_result(result) for result in results] if isinstance(results, list) else []


def _bare_result(result: object) -> object:
    """A result as an object without the `type` that all of them share."""
    return {name: value for name, value in result.items() if name != "type"} if isinstance(result, dict) else result


def _error_text(error: object) -> str:
    # EU GPT, "Server-run tools": of a call that failed, the output is a text that describes why.
    if not isinstance(error, dict):
        return str(error)
    content = error.get("content")
    if isinstance(content, list):  # as an MCP server gives it: `mcp_tool_execution_error`
        texts = [str(part["text"]) for part in content if isinstance(part, dict) and "text" in part]
        content = "\n".join(texts) or content
    return str(error.get("message") or _text(content or error))


# Texts


def _json_text(value: object) -> str:
    return value if isinstance(value, str) else json.encode(value).decode()


def _text(output: object) -> str:
    """An output as text: JSON, unless it is a text already. Pictures and files are left out: clients read outputs as text."""
    if not isinstance(output, str):
        return _json_text(_without_files(output))
    if output[:1] not in ("[", "{"):
        return str(_without_files(output))
    # A text may be the JSON of parts, as some model servers pass on what an MCP server gave them.
    try:
        parts = json.decode(output)
        other_parts = _without_files(parts)
        return output if parts == other_parts else _json_text(other_parts)
    except (DecodeError, RecursionError):  # it is no JSON, or nested deeper than parts are
        return output


_DATA_URL = re.compile(r"data:(?:(\w+)/[\w.+-]+)?(?:;[^,\s]*)?,\S*\s*", re.ASCII)
"""A text that is a data URL and nothing else; a picture's type begins with `image`."""

_FILE_FIELDS = (
    ("image", "data", "mimeType"),  # content of an MCP result
    ("audio", "data", "mimeType"),
    (None, "blob", "uri"),  # an embedded resource of such content
    ("base64", "data", "media_type"),  # the source of a picture or document in the Messages API
    ("input_file", "file_data", "type"),
)
"""Where files are that are base64 alone: the `type` of their object, None for any; their field; and one that is beside it."""


def _without_files(value: object) -> object:
    if isinstance(value, str):
        data_url = _DATA_URL.fullmatch(value) if value.startswith("data:") else None
        return value if data_url is None else _file_note(value, is_picture=data_url[1] == "image")
    if isinstance(value, list):
        return [_without_files(each) for each in value]
    if isinstance(value, dict):
        return {name: _without_files(each) for name, each in value.items()} | _file_notes(value)
    return value


def _file_notes(fields: JsonDict) -> JsonDict:
    """The fields of an object that are base64 alone, with what they are shown as."""
    names = [
        name
        for kind, name, other in _FILE_FIELDS
        if other in fields and isinstance(fields.get(name), str) and kind in (None, fields.get("type"))
    ]
    is_picture = str(fields.get("mimeType") or fields.get("media_type")).startswith("image/")
    return {name: _file_note(fields[name], is_picture=is_picture) for name in names}


def _file_note(content: str, *, is_picture: bool) -> str:
    return f"(a {'picture' if is_picture else 'file'} of {len(content)} characters, left out)"


# Responses


class Summarizer:
    """Summarizes responses by the rules of a profile."""

    def __init__(self, rules: SummaryRules) -> None:
        self.rules = rules

    def id(self, response_id: str) -> str:
        """The id of a response."""
        return uuid_of(response_id) if self.rules.uuid_ids else response_id

    def start(self, response: Response, model: str, status: str) -> summary.StartOfResponse:
        """A response that has begun."""
        return summary.StartOfResponse(id=self.id(response.id), created_at=self._created_at(response), model=model, status=status)

    def whole(self, response: Response, notes: ResponseNotes) -> summary.SummaryResponse:
        """A response that is not streamed."""
        is_filtered = _is_filtered(response)
        reader = CallReader(self.rules)
        calls = [CallSummary(**call.fields()) for item in response.output if (call := reader.read(item)) is not None]
        error: Opt[summary.SummaryError] = UNSET
        if is_filtered:
            error = summary.SummaryError(code=FILTER_CODE, message=_FILTER_MESSAGE)
        elif is_set(notes.failure):
            failure = notes.failure
            error = summary.SummaryError(code=self.rules.error_code(failure.code, failure.type), message=failure.message)
        elif is_set(response.error):
            error = summary.SummaryError(code=self.rules.error_code(response.error.code), message=response.error.message)
        status = str(response.status)
        return summary.SummaryResponse(
            id=self.id(response.id),
            created_at=self._created_at(response),
            model=notes.answered_by or response.model,
            status="failed" if is_filtered else "completed" if status == "incomplete" else status,
            output_text="".join(_message_text(item) for item in response.output if isinstance(item, Message)),
            tool_calls=calls or UNSET,
            routing=notes.routing,
            incomplete_details=UNSET if is_filtered else incomplete_reason(response),
            rewrite=notes.rewrite,
            error=error,
        )

    def _created_at(self, response: Response) -> int:
        return created_at_ms(response.id, response.created_at) if self.rules.milliseconds else int(response.created_at)


def incomplete_reason(response: Response) -> Opt[summary.IncompleteReason]:
    """Why a response ended early, if it did."""
    details = response.incomplete_details
    return summary.IncompleteReason(reason=details.reason) if is_set(details) and is_set(details.reason) else UNSET


def _is_filtered(response: Response) -> bool:
    return is_set(response.incomplete_details) and response.incomplete_details.reason == "content_filter"


def _message_text(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(
        part.text if isinstance(part, OutputText) else part.refusal for part in message.content if isinstance(part, OutputText | Refusal)
    )


# Streams


class SummaryStream:
    """
    The events of one response.

    Args:
        rules: the profile's.
    """

    def __init__(self, rules: SummaryRules) -> None:
        self._rules = rules
        self._summarizer = Summarizer(rules)
        self._calls = CallReader(rules)
        self._number = 0
        self._response: Response | None = None  # whose beginning is not told yet: its model may still be chosen
        self._model: str | None = None
        self._indexes: dict[int, int] = {}  # the places of shown items, by their places in the original's output
        self._shown_calls: dict[int, _Call] = {}
        self._open_items: dict[int, Item] = {}
        self._messages: set[int] = set()
        self._closing: list[AnySummaryEvent] = []  # what says that an item is complete, until it is sure that it is
        self._texts: list[str] = []
        self._tool_calls: list[CallSummary] = []
        self._rewrite: Opt[summary.RewriteSummary] = UNSET
        self._is_over = False

    def translate(self, event: StreamEvent) -> list[AnySummaryEvent]:
        """The events that a client gets for an event of the original."""
        out: list[AnySummaryEvent] = []
        if self._is_over:
            return out
        if self._response is not None and type(event) is not events.RoutingCompleted:
            self._start(out)
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event, out)
        listed_events = [each for each in out if each.type in self._rules.only_types]
        for each in listed_events:
            each.sequence_number = self._number
            self._number += 1
        return listed_events

    # The response

    def _on_created(self, event: events.ResponseCreated, _out: list[AnySummaryEvent]) -> None:
        self._response = event.response

    def _on_routing(self, event: events.RoutingCompleted, out: list[AnySummaryEvent]) -> None:
        self._model = event.model_id
        self._start(out)
        routing = summary.SummaryRouted(model_id=event.model_id, category=event.category, source=event.source, reasoning=event.reasoning)
        out.append(routing)

    def _start(self, out: list[AnySummaryEvent]) -> None:
        response, self._response = self._response, None
        if response is not None:
            model = self._model or response.model
            out.append(summary.SummaryCreated(response=self._summarizer.start(response, model, "in_progress")))

    def _on_fallback(self, event: events.AnsweredByFallback, _out: list[AnySummaryEvent]) -> None:
        self._model = event.model_id

    def _on_rewrite(self, _event: events.RewriteInProgress, out: list[AnySummaryEvent]) -> None:
        out.append(summary.SummaryRewrite())

    def _on_rewrite_failed(self, _event: events.RewriteFailed, _out: list[AnySummaryEvent]) -> None:
        self._rewrite = summary.RewriteSummary()

    def _on_end(self, event: events.ResponseCompleted | events.ResponseIncomplete, out: list[AnySummaryEvent]) -> None:
        response = event.response
        if _is_filtered(response):
            self._fail(FILTER_CODE, _FILTER_MESSAGE, out)
            return
        self._close(out)
        end = summary.EndOfResponse(
            id=self._summarizer.id(response.id),
            status="completed",
            model=self._model or response.model,
            output_text="".join(self._texts),
            tool_calls=self._tool_calls or UNSET,
            incomplete_details=incomplete_reason(response),
            rewrite=self._rewrite,
        )
        out.append(summary.SummaryCompleted(response=end))
        self._is_over = True

    def _on_error(self, event: events.ErrorEvent, out: list[AnySummaryEvent]) -> None:
        detail = event.error or None
        code = value_or(event.code, None) or (value_or(detail.code, None) if detail else None)
        message = event.message or (detail.message if detail else "The response failed.")
        self._fail(self._rules.error_code(code, detail.type if detail else None), message, out)

    def _on_failed(self, event: events.ResponseFailed, out: list[AnySummaryEvent]) -> None:
        error = value_or(event.response.error, None)
        if error is not None:
            self._fail(self._rules.error_code(error.code), error.message, out)
        else:
            self._fail(CANCELLED_CODE, _CANCEL_MESSAGE, out)

    def _fail(self, code: str, message: str, out: list[AnySummaryEvent]) -> None:
        self._closing.clear()
        out.append(summary.SummaryFailed(code=code, message=message))
        self._is_over = True

    # Items

    def _place(self, original_index: int) -> int:
        return self._indexes.setdefault(original_index, len(self._indexes))

    def _close(self, out: list[AnySummaryEvent]) -> None:
        out += self._closing
        for event in self._closing:
            if isinstance(event, summary.SummaryTextDone):
                self._texts.append(event.text)
            elif isinstance(event, summary.SummaryItemDone) and isinstance(event.item, FunctionCallSummary):
                call = event.item
                self._tool_calls.append(
                    CallSummary(name=call.name, call_id=call.call_id, arguments=call.arguments, output=call.output, status=call.status)
                )
        self._closing.clear()

    def _on_item_added(self, event: events.OutputItemAdded, out: list[AnySummaryEvent]) -> None:
        self._close(out)
        if isinstance(event.item, Message):
            self._messages.add(event.output_index)
            out.append(summary.SummaryItemAdded(output_index=self._place(event.output_index), item=MessageSummary()))
            return
        self._open_items[event.output_index] = event.item
        if not self._rules.arguments_in_added and (call := self._calls.read(event.item)) is not None:
            self._show_call(event.output_index, call, out)

    def _on_arguments(self, original_index: object, arguments: object, out: list[AnySummaryEvent]) -> None:
        """What the server calls is told before its output is there."""
        item = self._open_items.get(original_index) if isinstance(original_index, int) else None
        if not isinstance(original_index, int) or not isinstance(arguments, str) or item is None or item.type != "mcp_call":
            return
        if (call := self._calls.read(item)) is not None:
            call.arguments = arguments or "{}"
            self._show_call(original_index, call, out)

    def _on_unknown(self, event: Unknown, out: list[AnySummaryEvent]) -> None:
        if event.type == _MCP_ARGUMENTS_DONE:  # as an upstream sent it
            self._on_arguments(event.extra.get("output_index"), event.extra.get("arguments"), out)

    def _show_call(self, original_index: int, call: _Call, out: list[AnySummaryEvent]) -> None:
        if original_index not in self._shown_calls:
            self._shown_calls[original_index] = call
            out.append(summary.SummaryItemAdded(output_index=self._place(original_index), item=call.new_item()))

    def _on_item_done(self, event: events.OutputItemDone, out: list[AnySummaryEvent]) -> None:
        index, item = event.output_index, event.item
        self._open_items.pop(index, None)
        is_complete = getattr(item, "status", UNSET) != "incomplete"
        if isinstance(item, Message):
            message = MessageSummary(status="completed")
            self._closing.append(summary.SummaryItemDone(output_index=self._place(index), item=message))
        elif (call := self._calls.read(item)) is not None:
            self._show_call(index, call, self._closing)
            shown_call = self._shown_calls[index]  # what was added stays, whatever an upstream says later
            call.name, call.call_id, call.arguments = shown_call.name, shown_call.call_id, shown_call.arguments
            self._closing.append(summary.SummaryItemDone(output_index=self._place(index), item=FunctionCallSummary(**call.fields())))
            if isinstance(item, Unknown):
                is_complete = item.extra.get("status") != "incomplete"
        if is_complete:
            self._close(out)

    # Text

    def _part_fields(self, event: events.PartEvent) -> dict[str, Any]:
        fields: dict[str, Any] = {"output_index": self._place(event.output_index), "content_index": event.content_index}
        return fields if self._rules.bare_parts else fields | {"item_id": event.item_id}

    def _on_part_added(self, event: events.ContentPartAdded, out: list[AnySummaryEvent]) -> None:
        if event.output_index in self._messages:
            self._close(out)
            lists: Any = UNSET if self._rules.bare_parts else []
            part = summary.TextPart(text="", annotations=lists, logprobs=lists)
            out.append(summary.SummaryPartAdded(part=part, **self._part_fields(event)))

    def _on_text_delta(self, event: events.OutputTextDelta | events.RefusalDelta, out: list[AnySummaryEvent]) -> None:
        out.append(summary.SummaryTextDelta(delta=event.delta, **self._part_fields(event)))

    def _on_text_done(self, event: events.OutputTextDone, _out: list[AnySummaryEvent]) -> None:
        self._closing.append(summary.SummaryTextDone(text=event.text, **self._part_fields(event)))

    def _on_refusal_done(self, event: events.RefusalDone, _out: list[AnySummaryEvent]) -> None:
        self._closing.append(summary.SummaryTextDone(text=event.refusal, **self._part_fields(event)))


_Handler = Callable[[SummaryStream, Any, list[AnySummaryEvent]], None]

_HANDLERS: Mapping[type, _Handler] = {
    events.ResponseCreated: SummaryStream._on_created,
    events.RoutingCompleted: SummaryStream._on_routing,
    events.AnsweredByFallback: SummaryStream._on_fallback,
    events.RewriteInProgress: SummaryStream._on_rewrite,
    events.RewriteFailed: SummaryStream._on_rewrite_failed,
    events.ResponseCompleted: SummaryStream._on_end,
    events.ResponseIncomplete: SummaryStream._on_end,
    events.ResponseFailed: SummaryStream._on_failed,
    events.ErrorEvent: SummaryStream._on_error,
    events.OutputItemAdded: SummaryStream._on_item_added,
    events.OutputItemDone: SummaryStream._on_item_done,
    events.McpCallArgumentsDone: lambda stream, event, out: stream._on_arguments(event.output_index, event.arguments, out),
    Unknown: SummaryStream._on_unknown,
    events.ContentPartAdded: SummaryStream._on_part_added,
    events.OutputTextDelta: SummaryStream._on_text_delta,
    events.RefusalDelta: SummaryStream._on_text_delta,
    events.OutputTextDone: SummaryStream._on_text_done,
    events.RefusalDone: SummaryStream._on_refusal_done,
}
"""What each event of the original becomes. Those without a row have no place in the dialect."""
