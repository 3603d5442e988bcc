"""The response object and its items, from the request and the output so far."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from antiphon.engine_api import events
from antiphon.engine_api.routing import RouteDecision
from antiphon.protocols import output as steps
from antiphon.protocols.output import ContentPart, OutputItem
from antiphon.protocols.output_table import OutputKind
from antiphon.protocols.responses.credentials import item_without_credentials, tool_without_credentials
from antiphon.protocols.responses.include import visible_item
from antiphon.protocols.responses.request import ResolvedRequest
from antiphon.protocols.session import NewId
from antiphon.records import Direction, ItemRecord
from antiphon.tool_api import ImageTokens
from antiphon.wire.codec.fields import is_set, value_or
from antiphon.wire.codec.types import Extra, JsonDict, Maybe, Unknown, encode
from antiphon.wire.responses import hosted_calls, items, parts, response as wire, tools
from antiphon.wire.responses.request import ConversationReference, TextOptions
from antiphon.wire.responses.summary import FailureNote, ResponseNotes, RewriteSummary, SummaryRouting


class ResponseBuilder:
    """
    Builds the response object at each stage of the response.

    Attributes:
        output: the completed items, in order.
    """

    def __init__(self, resolved_request: ResolvedRequest, new_id: NewId) -> None:
        self.output: list[items.Item] = []
        # Once, and before the session begins: many items take long to encode.
        in_conversation = resolved_request.conversation_id is not None
        input_items = resolved_request.input_items if resolved_request.is_stored or in_conversation else ()
        self._input_records = input_records(input_items, new_id) if input_items else ()
        self._previous_ids = resolved_request.previous_ids
        self._new_id = new_id
        self._resolved_request = resolved_request
        self._made_template: wire.Response | None = None

    @property
    def _template(self) -> wire.Response:
        """Made when it is first needed: by then the engine has been asked."""
        if self._made_template is None:
            self._made_template = _response_template(self._resolved_request)
        return self._made_template

    def build(self, status: str) -> wire.Response:
        """The object with that status and the output so far, as it is stored."""
        # A copy of the list: the object of `in_progress` must not grow with the output.
        return msgspec.structs.replace(self._template, status=status, output=list(self.output))

    def build_visible(self, status: str) -> wire.Response:
        """The same, as the client gets it."""
        return msgspec.structs.replace(self._template, status=status, output=list(map(self.visible, self.output)))

    def visible(self, item: items.Item) -> items.Item:
        """An item as the client gets it."""
        return visible_item(item, self._resolved_request.request.include or ())

    def finish(self, step: steps.OutputFinished, usage: events.Usage | None, at: float, tools: Maybe[wire.ToolUsage] = UNSET) -> None:
        """Set the fields that are known at the end of the response; `tools` is what the server's tools used."""
        self._made_template = msgspec.structs.replace(
            self._template,
            # Responses: only a response that completed has this time.
            completed_at=int(at) if step.outcome == "completed" else None,
            incomplete_details=wire.IncompleteDetails(reason=step.reason) if step.reason else None,  # type: ignore[arg-type]
            error=response_error(step.failure) if step.failure else None,
            usage=_usage(usage) if usage else None,
            tool_usage=tools,
        )

    def item_records(self) -> tuple[ItemRecord, ...]:
        """The items that this response adds to its conversation, for the store."""
        return (*self._input_records, *_item_records(self.output, "output"))

    def conversation_records(self) -> tuple[ItemRecord, ...]:
        """
        The same items for a conversation, where an id is used once: an upstream that numbers its items afresh in each
        response repeats them.
        """
        ids = {record.id for record in self._input_records}
        output: list[items.Item] = []
        for item in self.output:
            item_id = items.id_of(item)
            if item_id in self._previous_ids or item_id in ids:
                item = _with_new_id(item, self._new_id)
            ids.add(items.id_of(item) or "")
            output.append(item)
        return (*self._input_records, *_item_records(output, "output"))


def input_records(input_items: Iterable[items.Item], new_id: NewId) -> tuple[ItemRecord, ...]:
    """Items of a client for the store, each with an id."""
    return tuple(_item_records((complete_input_item(item, new_id) for item in input_items), "input"))


def output_records(output: Iterable[items.Item]) -> tuple[ItemRecord, ...]:
    """Items of a response's output for the store."""
    return tuple(_item_records(output, "output"))


def _item_records(wire_items: Iterable[items.Item], direction: Direction) -> Iterable[ItemRecord]:
    for item in wire_items:
        yield ItemRecord(id=str(items.id_of(item) or ""), direction=direction, body=encode(item))


def response_notes(
    route: RouteDecision | None,
    answered_by: str,
    rewrite_status: events.RewriteStatus | None,
    failure: events.ResponseFailed | None,
) -> ResponseNotes | None:
    """What of a response only some profiles show; None for nothing."""
    is_draft = rewrite_status == "failed"
    if route is None and not answered_by and not is_draft and failure is None:
        return None
    routing = (
        SummaryRouting(model_id=route.model, category=route.category, source=route.source, reasoning=route.reasoning) if route else UNSET
    )
    return ResponseNotes(
        routing=routing,
        answered_by=answered_by or UNSET,
        rewrite=RewriteSummary() if is_draft else UNSET,
        failure=failure_note(failure) if failure else UNSET,
    )


def failure_note(failure: events.ResponseFailed) -> FailureNote:
    """A failure for the notes of its response."""
    return FailureNote(code=failure.code, type=failure.type, message=failure.message)


_ECHO_FIELDS: Mapping[str, Any] = {
    "max_output_tokens": None,
    "max_tool_calls": None,
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt": UNSET,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "tool_choice": "auto",
    "top_logprobs": 0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "truncation": "disabled",
    "user": None,
}
"""Fields of a request that its response repeats, with what it has where the request says nothing."""

_echo_values = operator.attrgetter(*_ECHO_FIELDS)


def _response_template(resolved_request: ResolvedRequest) -> wire.Response:
    request, capabilities = resolved_request.request, resolved_request.capabilities
    conversation_id = request.conversation_id
    echo = {
        name: default if value is UNSET or value is None else value
        for (name, default), value in zip(_ECHO_FIELDS.items(), _echo_values(request), strict=True)
    }
    # Open Responses requires every key, null or not, and strict clients (in Rust, say) do too.
    return wire.Response(
        id=resolved_request.id,
        created_at=resolved_request.created_at,
        completed_at=None,
        status="in_progress",
        # OpenAI's SDKs require it: null is the standard program where none was asked for.
        access_programs=request.access_programs if request.access_programs and request.access_programs.cyber else None,
        background=resolved_request.is_background,
        conversation=UNSET if conversation_id is None else ConversationReference(id=conversation_id),
        error=None,
        incomplete_details=None,
        instructions=None if request.instructions is UNSET else request.instructions,
        metadata=request.metadata or {},
        model=resolved_request.model,
        output=[],
        reasoning=_response_reasoning(resolved_request),
        # The tier that was used, not the one that was asked for: there is only one.
        service_tier="default",
        # Open Responses requires this and the penalties below; OpenAI's types lack them, and its SDKs keep what they
        # don't know (docs/decisions/0004).
        store=resolved_request.is_stored,
        # Open Responses: neither this nor `top_p` may be null, so the model's own default stands in.
        temperature=value_or(request.temperature, capabilities.temperature_default),
        text=_echo_text(request.text) if request.text else _DEFAULT_TEXT,
        tools=[_echo_tool(tool) for tool in request.tools or ()],
        top_p=value_or(request.top_p, capabilities.top_p_default),
        usage=None,
        **echo,
    )


def _response_reasoning(resolved_request: ResolvedRequest) -> wire.ResponseReasoning:
    options = resolved_request.request.reasoning
    if not options:
        return wire.ResponseReasoning(effort=None, summary=None)
    return wire.ResponseReasoning(effort=options.effort or None, summary=options.summary or options.generate_summary or None)


def _echo_tool(tool: tools.Tool) -> tools.Tool:
    """The tool as the response shows it: with the defaults that hold, as the original fills them in, and no secrets."""
    tool = tool_without_credentials(tool)
    defaults = next((fields for kinds, fields in _ECHO_DEFAULTS if isinstance(tool, kinds)), None)
    if defaults is None:
        return tool
    defaults_used = {name: value for name, value in defaults.items() if not is_set(getattr(tool, name))}
    if isinstance(tool, tools.McpTool):
        defaults_used |= {"authorization": UNSET, "headers": None}  # Responses: they are in each response, as null
    elif isinstance(tool, tools.WebSearchTool | tools.WebSearchPreviewTool) and is_set(place := tool.user_location):
        nulls = {name: None for name in ("city", "country", "region", "timezone") if not is_set(getattr(place, name))}
        defaults_used["user_location"] = msgspec.structs.replace(place, type="approximate", **nulls)
    elif isinstance(tool, tools.FileSearchTool) and is_set(ranking := tool.ranking_options):
        defaults_used["ranking_options"] = msgspec.structs.replace(
            ranking, ranker=value_or(ranking.ranker, "auto"), score_threshold=value_or(ranking.score_threshold, 0)
        )
    return msgspec.structs.replace(tool, **defaults_used)


_WEB_SEARCH_DEFAULTS = {
    "search_context_size": "medium",
    "user_location": tools.UserLocation(type="approximate", city=None, country="US", region=None, timezone=None),
}

_ECHO_DEFAULTS: Sequence[tuple[type[tools.Tool] | tuple[type[tools.Tool], ...], Mapping[str, object]]] = (
    (tools.FunctionTool, {"description": None, "parameters": None, "strict": False}),
    (tools.McpTool, {"allowed_tools": None, "require_approval": "always"}),
    (
        tools.FileSearchTool,
        {"filters": None, "max_num_results": 20, "ranking_options": tools.RankingOptions(ranker="auto", score_threshold=0)},
    ),
    (tools.WebSearchTool, {"filters": None, **_WEB_SEARCH_DEFAULTS}),
    (tools.WebSearchPreviewTool, _WEB_SEARCH_DEFAULTS),
    (tools.ToolSearchTool, {"description": None, "parameters": None}),
    (
        tools.ImageGenerationTool,
        {
            "background": "auto",
            "moderation": "auto",
            "output_compression": 100,
            "output_format": "png",
            "quality": "auto",
            "size": "auto",
        },
    ),
)
"""What a response shows where the request says nothing; a code interpreter's container is shown as it came."""


_DEFAULT_TEXT = TextOptions(format=tools.TextFormat(), verbosity="medium")


def _echo_text(text: TextOptions) -> TextOptions:
    format = _echo_format(text.format) if text.format else tools.TextFormat()
    return msgspec.structs.replace(text, format=format, verbosity=text.verbosity or "medium")


def _echo_format(format: items.AnswerFormat) -> items.AnswerFormat:
    """The format as the response shows it, likewise."""
    if not isinstance(format, items.JsonSchemaFormat):
        return format
    return msgspec.structs.replace(format, description=value_or(format.description, None), strict=value_or(format.strict, False))


def _usage(usage: events.Usage) -> wire.ResponseUsage:
    return wire.ResponseUsage(
        input_tokens=usage.input_tokens,
        input_tokens_details=wire.InputTokensDetails(cached_tokens=usage.cached_tokens, cache_write_tokens=usage.cache_write_tokens),
        output_tokens=usage.output_tokens,
        output_tokens_details=wire.OutputTokensDetails(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.input_tokens + usage.output_tokens,
    )


def tool_usage(searches: int, tokens: ImageTokens) -> wire.ToolUsage:
    """What the server's tools used, as a response shows it."""
    input_details = wire.ImageTokens(image_tokens=tokens.input_image, text_tokens=tokens.input_text)
    output_details = wire.ImageTokens(image_tokens=tokens.output_image, text_tokens=tokens.output_text)
    input_tokens, output_tokens = tokens.input_image + tokens.input_text, tokens.output_image + tokens.output_text
    images = wire.ImageGenerationUsage(
        input_tokens=input_tokens,
        input_tokens_details=input_details,
        output_tokens=output_tokens,
        output_tokens_details=output_details,
        total_tokens=input_tokens + output_tokens,
    )
    return wire.ToolUsage(image_gen=images, web_search=wire.WebSearchUsage(num_requests=searches))


def response_error(failure: events.ResponseFailed) -> wire.ResponseError:
    """
    The response's `error`. Strict clients can't read a code that the API doesn't have, so any other code goes into the
    message.
    """
    code, message = failure.code, failure.message
    if code in wire.RESPONSE_ERROR_CODES | wire.UNDOCUMENTED_ERROR_CODES:
        return wire.ResponseError(code=code, message=message)
    return wire.ResponseError(code=_general_code(failure.status), message=f"{message} ({code})" if code else message)


def _general_code(status: int) -> str:
    """The one code of the API that says as much as an HTTP status."""
    if status == 429:
        return "rate_limit_exceeded"
    # The request is at fault, so a client must not send it again, as Codex does after a `server_error`.
    # A 408 is a timeout, which is worth another try.
    return "invalid_prompt" if 400 <= status < 500 and status != 408 else "server_error"


# Items


def empty_wire_item(item: OutputItem) -> items.Item:
    """The item as `output_item.added` shows it: empty, whatever the engine's event has already put into it."""
    return wire_item(OutputItem(item.id, item.index, item.kind, item.call, item.hosted_item, item.phase))


def empty_wire_part(part: ContentPart) -> parts.StreamedPart:
    """The part as `content_part.added` shows it: empty."""
    return wire_part(ContentPart(part.kind, part.index))


def wire_item(item: OutputItem) -> items.Item:
    """The item with its content so far."""
    if item.hosted_item is not None:
        return _wire_hosted_item(item, item.hosted_item)
    if item.call is not None:
        return _wire_tool_call(item, item.call)
    if item.is_reasoning:
        return items.Reasoning(
            id=item.id,
            summary=[parts.SummaryText(text=part.text) for part in item.summaries],
            content=[parts.ReasoningText(text=part.text) for part in item.parts] or UNSET,
            # Responses: complete in `output_item.done` only; a client that does not store sends it back.
            encrypted_content=item.encrypted_content if item.encrypted_content is not None else UNSET,
            status=item.status,
        )
    content: list[parts.MessagePart] = [_message_part(part) for part in item.parts]
    return items.Message(id=item.id, status=item.status, role="assistant", content=content, phase=item.phase or UNSET)


def _wire_hosted_item(item: OutputItem, fields: JsonDict) -> items.Item:
    # A response that was cut off in the item leaves it incomplete, whatever its upstream had said of it until then.
    status = {"status": item.status} if item.status == "incomplete" and "status" in fields else {}
    # The id that the item was added with: stream helpers compare the two, and an upstream's events may differ in it.
    return Unknown(extra=Extra({**fields, "id": item.id, **status}))


def _wire_tool_call(item: OutputItem, call: events.ToolCallStarted) -> items.Item:
    namespace = call.namespace if call.namespace is not None else UNSET
    if call.custom:
        return items.CustomToolCall(
            id=item.id, status=item.status, call_id=call.call_id, name=call.name, input=item.arguments, namespace=namespace
        )
    return items.FunctionCall(
        id=item.id, status=item.status, call_id=call.call_id, name=call.name, arguments=item.arguments, namespace=namespace
    )


def wire_part(part: ContentPart) -> parts.StreamedPart:
    """The part of a message or of reasoning text with its content so far."""
    return parts.ReasoningText(text=part.text) if part.kind is OutputKind.REASONING_TEXT else _message_part(part)


def _message_part(part: ContentPart) -> parts.OutputText | parts.Refusal:
    if part.kind is OutputKind.REFUSAL:
        return parts.Refusal(refusal=part.text)
    return parts.OutputText(text=part.text, annotations=_annotations(part), logprobs=wire_logprobs(part.logprobs))


def _annotations(part: ContentPart) -> list[Any]:
    # Plain JSON from the engine, which encodes as the wire's own type would; a copy, as the open part still grows.
    return list(part.annotations)


def wire_logprobs(tokens: Iterable[events.TokenLogprob]) -> list[parts.Logprob]:
    """Log probabilities for the wire."""
    return [
        parts.Logprob(
            token=token.token.token,
            logprob=token.token.logprob,
            bytes=list(token.token.bytes),
            top_logprobs=[
                parts.TopLogprob(token=other.token, logprob=other.logprob, bytes=list(other.bytes)) for other in token.alternatives
            ],
        )
        for token in tokens
    ]


# Input items, as `input_items` lists them


def complete_input_item(item: items.Item, new_id: NewId) -> items.Item:
    """
    The input item as `input_items` lists it: with an id and a status, a message's content as a list, a `detail` for
    every image, whatever else the types of listed items require, and no credentials of MCP servers.
    """
    complete = item = item_without_credentials(_with_required_fields(item))
    if isinstance(item, items.FunctionCallOutput | items.CustomToolCallOutput) and not isinstance(item.output, str):
        item = complete = msgspec.structs.replace(item, output=[_with_detail(part) for part in item.output])
    if isinstance(item, items.Message):
        complete = msgspec.structs.replace(item, content=_message_content(item), status=value_or(item.status, "completed"))
    elif "status" in getattr(item, "__struct_fields__", ()) and not is_set(item.status):  # type: ignore[union-attr]
        complete = msgspec.structs.replace(item, status="completed")
    return complete if items.id_of(complete) else _with_new_id(complete, new_id)


def _with_required_fields(item: items.Item) -> items.Item:
    # The API's schema requires these of items that are read, and not of those that are sent.
    if isinstance(item, hosted_calls.ToolSearchCall | hosted_calls.ToolSearchOutput):
        # What the client runs has a `call_id`, what the server runs has none.
        execution = value_or(item.execution, "client" if is_set(item.call_id) else "server")
        return msgspec.structs.replace(item, call_id=value_or(item.call_id, None), execution=execution)
    if isinstance(item, hosted_calls.ShellCall):
        limits = {name: value_or(getattr(item.action, name), None) for name in ("max_output_length", "timeout_ms")}
        action = msgspec.structs.replace(item.action, **limits)
        return msgspec.structs.replace(item, action=action, environment=value_or(item.environment, None))
    if isinstance(item, hosted_calls.ShellCallOutput):
        return msgspec.structs.replace(item, max_output_length=value_or(item.max_output_length, None))
    return item


def _with_new_id(item: items.Item, new_id: NewId) -> items.Item:
    if isinstance(item, Unknown):
        return Unknown(extra=Extra({**item.extra, "id": new_id("item")}))
    with_id: items.Item = msgspec.structs.replace(item, id=new_id(ID_PREFIXES.get(type(item), "item")))
    return with_id


def _with_detail(part: parts.ToolOutputPart) -> parts.ToolOutputPart:
    return msgspec.structs.replace(part, detail=part.detail or "auto") if isinstance(part, parts.OutputImage) else part


def _with_logprobs(part: parts.MessagePart) -> parts.MessagePart:
    # Required of text that is read, as above.
    return msgspec.structs.replace(part, logprobs=value_or(part.logprobs, [])) if isinstance(part, parts.OutputText) else part


def _message_content(message: items.Message) -> list[parts.MessagePart]:
    if not isinstance(message.content, str):
        return [_with_logprobs(part) for part in message.content]
    if message.role == "assistant":
        return [parts.OutputText(text=message.content, annotations=[], logprobs=[])]
    return [parts.InputText(text=message.content)]


# The original's prefixes, which it checks in ids that clients send back.
ID_PREFIXES: dict[type, str] = {
    items.Message: "msg",
    items.Reasoning: "rs",
    items.Compaction: "cmp",
    items.FunctionCall: "fc",
    items.FunctionCallOutput: "fco",
    items.CustomToolCall: "ctc",
    items.CustomToolCallOutput: "ctco",
}
