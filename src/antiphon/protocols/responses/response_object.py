"""
The response object and its items, from what was asked and what has been said so far.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET

from antiphon.engine_api import events
from antiphon.protocols import output as steps
from antiphon.protocols.output import ContentPart, OutputItem
from antiphon.protocols.output_table import OutputKind
from antiphon.protocols.responses.request import ResolvedRequest, is_set
from antiphon.protocols.session import NewId
from antiphon.records import Direction, ItemRecord
from antiphon.wire.codec.types import Extra, Unknown, encode
from antiphon.wire.responses import items, parts, response as wire, tools
from antiphon.wire.responses.request import TextOptions


class ResponseBuilder:
    """
    The response object as it grows.

    Attributes:
        output: the items that are done, in order.
    """

    def __init__(self, resolved_request: ResolvedRequest, new_id: NewId) -> None:
        self.output: list[items.Item] = []
        self._input_items = [complete_input_item(item, new_id) for item in resolved_request.input_items]
        self._template = _response_template(resolved_request)

    def build(self, status: str) -> wire.Response:
        """The object with that status, and all that is known now."""
        return msgspec.structs.replace(self._template, status=status, output=list(self.output))

    def finish(self, step: steps.OutputFinished, usage: events.Usage | None, at: float) -> None:
        """The response is over: what it came to is known from now on."""
        self._template = msgspec.structs.replace(
            self._template,
            completed_at=int(at) if step.outcome == "completed" else None,
            incomplete_details=wire.IncompleteDetails(reason=step.reason) if step.reason else None,  # type: ignore[arg-type]
            error=response_error(step.failure) if step.failure else None,
            usage=_usage(usage) if usage else None,
        )

    def item_records(self) -> tuple[ItemRecord, ...]:
        """The items that this response adds to its conversation, as a store keeps them."""
        return (*_item_records(self._input_items, "input"), *_item_records(self.output, "output"))


def _item_records(wire_items: Iterable[items.Item], direction: Direction) -> Iterable[ItemRecord]:
    for item in wire_items:
        yield ItemRecord(id=str(_item_id(item) or ""), direction=direction, body=encode(item))


def _response_template(resolved_request: ResolvedRequest) -> wire.Response:
    request, abilities = resolved_request.request, resolved_request.capabilities
    text = request.text or TextOptions()
    return wire.Response(
        id=resolved_request.id,
        created_at=resolved_request.created_at,
        completed_at=None,
        status="in_progress",
        background=False,
        error=None,
        incomplete_details=None,
        instructions=_value_or(request.instructions, None),
        max_output_tokens=_value_or(request.max_output_tokens, None),
        max_tool_calls=_value_or(request.max_tool_calls, None),
        metadata=_value_or(request.metadata, {}),
        model=resolved_request.model,
        output=[],
        parallel_tool_calls=_value_or(request.parallel_tool_calls, True),
        previous_response_id=_value_or(request.previous_response_id, None),
        prompt_cache_key=_value_or(request.prompt_cache_key, None),
        reasoning=_response_reasoning(resolved_request),
        safety_identifier=_value_or(request.safety_identifier, None),
        service_tier="default",
        store=resolved_request.is_stored,
        temperature=_value_or(request.temperature, abilities.temperature_default),
        text=msgspec.structs.replace(
            text,
            format=_echo_format(_value_or(text.format, tools.TextFormat())),
            verbosity=_value_or(text.verbosity, "medium"),
        ),
        tool_choice=_value_or(request.tool_choice, "auto"),
        tools=[_echo_tool(tool) for tool in request.tools or ()],
        top_logprobs=_value_or(request.top_logprobs, 0),
        top_p=_value_or(request.top_p, abilities.top_p_default),
        presence_penalty=_value_or(request.presence_penalty, 0.0),
        frequency_penalty=_value_or(request.frequency_penalty, 0.0),
        truncation=_value_or(request.truncation, "disabled"),
        usage=None,
        user=_value_or(request.user, None),
    )


def _value_or(value: Any, default: Any) -> Any:
    return value if is_set(value) else default


def _response_reasoning(resolved_request: ResolvedRequest) -> wire.ResponseReasoning:
    asked = resolved_request.request.reasoning
    if not asked:
        return wire.ResponseReasoning(effort=None, summary=None)
    return wire.ResponseReasoning(effort=asked.effort or None, summary=asked.summary or asked.generate_summary or None)


def _echo_tool(tool: tools.Tool) -> tools.Tool:
    """A tool as the response shows it: a function with every key that strict readers insist on."""
    if not isinstance(tool, tools.FunctionTool):
        return tool
    return msgspec.structs.replace(
        tool,
        description=_value_or(tool.description, None),
        parameters=_value_or(tool.parameters, None),
        strict=_value_or(tool.strict, False),
    )


def _echo_format(format: items.AnswerFormat) -> items.AnswerFormat:
    """A format as the response shows it, likewise."""
    if not isinstance(format, items.JsonSchemaFormat):
        return format
    return msgspec.structs.replace(format, description=_value_or(format.description, None), strict=_value_or(format.strict, False))


def _usage(usage: events.Usage) -> wire.ResponseUsage:
    return wire.ResponseUsage(
        input_tokens=usage.input_tokens,
        input_tokens_details=wire.InputTokensDetails(cached_tokens=usage.cached_tokens, cache_write_tokens=usage.cache_write_tokens),
        output_tokens=usage.output_tokens,
        output_tokens_details=wire.OutputTokensDetails(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.input_tokens + usage.output_tokens,
    )


def response_error(failure: events.ResponseFailed) -> wire.ResponseError:
    """The response's `error`, from the engine's failure; an upstream's code goes through though it be none of the original's."""
    return wire.ResponseError(code=failure.code or "server_error", message=failure.message)


# Items


def empty_wire_item(item: OutputItem) -> items.Item:
    """An item as it is announced: empty, whatever the same word of the engine has already put into it."""
    return wire_item(OutputItem(item.id, item.index, item.kind, item.call, item.hosted_item, item.phase))


def empty_wire_part(part: ContentPart) -> Any:
    """A part as it is announced: empty."""
    return wire_part(ContentPart(part.kind, part.index))


def wire_item(item: OutputItem) -> items.Item:
    """An item as far as it has come."""
    if item.hosted_item is not None:
        return _wire_hosted_item(item, item.hosted_item)
    if item.call is not None:
        return _wire_tool_call(item, item.call)
    if item.is_reasoning:
        return items.Reasoning(
            id=item.id,
            summary=[wire_part(part) for part in item.summaries],
            content=[wire_part(part) for part in item.parts] or UNSET,
            encrypted_content=item.encrypted_content if item.encrypted_content is not None else UNSET,
            status=item.status,
        )
    content = [wire_part(part) for part in item.parts]
    return items.Message(id=item.id, status=item.status, role="assistant", content=content, phase=item.phase or UNSET)


def _wire_hosted_item(item: OutputItem, fields: dict[str, Any]) -> items.Item:
    cut_short = {"status": item.status} if item.status == "incomplete" and "status" in fields else {}
    return Unknown(extra=Extra({**fields, "id": item.id, **cut_short}))


def _wire_tool_call(item: OutputItem, call: events.ToolCallStarted) -> items.Item:
    namespace = call.namespace if call.namespace is not None else UNSET
    if call.custom:
        return items.CustomToolCall(
            id=item.id, status=item.status, call_id=call.call_id, name=call.name, input=item.arguments, namespace=namespace
        )
    return items.FunctionCall(
        id=item.id, status=item.status, call_id=call.call_id, name=call.name, arguments=item.arguments, namespace=namespace
    )


def wire_part(part: ContentPart) -> Any:
    """A part as far as it has come."""
    match part.kind:
        case OutputKind.REFUSAL:
            return parts.Refusal(refusal=part.text)
        case OutputKind.REASONING_TEXT:
            return parts.ReasoningText(text=part.text)
        case OutputKind.REASONING_SUMMARY:
            return parts.SummaryText(text=part.text)
        case _:
            return parts.OutputText(text=part.text, annotations=_wire_annotations(part), logprobs=wire_logprobs(part.logprobs))


def _wire_annotations(part: ContentPart) -> list[Any]:
    return list(part.annotations)


def wire_logprobs(tokens: Iterable[events.TokenLogprob]) -> list[parts.Logprob]:
    """Log probabilities as the wire has them."""
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


# What the client gave, as it is shown again


def complete_input_item(item: items.Item, new_id: NewId) -> items.Item:
    """
    An input item as `input_items` lists it: with an id and a status, a message's content as a list, and the `detail` of every picture.
    """
    shown = item
    if isinstance(item, items.FunctionCallOutput | items.CustomToolCallOutput) and not isinstance(item.output, str):
        item = shown = msgspec.structs.replace(item, output=[_with_detail(part) for part in item.output])
    if isinstance(item, items.Message):
        shown = msgspec.structs.replace(item, content=_message_content(item), status=_value_or(item.status, "completed"))
    elif "status" in getattr(item, "__struct_fields__", ()) and not is_set(item.status):  # type: ignore[union-attr]
        shown = msgspec.structs.replace(item, status="completed")
    if _item_id(shown):
        return shown
    if isinstance(shown, Unknown):
        return Unknown(extra=Extra({**shown.extra, "id": new_id("item")}))
    named: items.Item = msgspec.structs.replace(shown, id=new_id(ID_PREFIXES.get(type(shown), "item")))
    return named


def _item_id(item: items.Item) -> str | None:
    found = item.extra.get("id") if isinstance(item, Unknown) else getattr(item, "id", None)
    return found if isinstance(found, str) and found else None


def _with_detail(part: parts.ToolOutputPart) -> parts.ToolOutputPart:
    return msgspec.structs.replace(part, detail=part.detail or "auto") if isinstance(part, parts.OutputImage) else part


def _message_content(message: items.Message) -> list[Any]:
    if not isinstance(message.content, str):
        return list(message.content)
    if message.role == "assistant":
        return [parts.OutputText(text=message.content, annotations=[])]
    return [parts.InputText(text=message.content)]


ID_PREFIXES: dict[type, str] = {
    items.Message: "msg",
    items.Reasoning: "rs",
    items.FunctionCall: "fc",
    items.FunctionCallOutput: "fco",
    items.CustomToolCall: "ctc",
    items.CustomToolCallOutput: "ctco",
}
