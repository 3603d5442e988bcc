"""
The response object and its items, from what was asked and what has been said so far.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET

from antiphon.engine_api import events as talk_events
from antiphon.protocols import output as steps
from antiphon.protocols.output import Item, Part
from antiphon.protocols.output_table import Slot
from antiphon.protocols.responses.request import Order, given
from antiphon.protocols.session import Mint
from antiphon.records import Direction, ItemRecord
from antiphon.wire.codec.types import Extra, Unknown, encode
from antiphon.wire.responses import items, parts, response as wire, tools
from antiphon.wire.responses.request import TextOptions


class Draft:
    """
    The response object as it grows.

    Attributes:
        output: the items that are done, in order.
    """

    def __init__(self, order: Order, mint: Mint) -> None:
        self.output: list[items.Item] = []
        self._given = [stored_form(item, mint) for item in order.given]
        self._frame = _frame(order)

    def shown(self, status: str) -> wire.Response:
        """The object with that status, and all that is known now."""
        return msgspec.structs.replace(self._frame, status=status, output=list(self.output))

    def settle(self, step: steps.Finished, used: talk_events.Used | None, at: float) -> None:
        """The response is over: what it came to is known from now on."""
        self._frame = msgspec.structs.replace(
            self._frame,
            completed_at=int(at) if step.outcome == "completed" else None,
            incomplete_details=wire.IncompleteDetails(reason=step.reason) if step.reason else None,  # type: ignore[arg-type]
            error=error_of(step.broke) if step.broke else None,
            usage=_usage(used) if used else None,
        )

    def records(self) -> tuple[ItemRecord, ...]:
        """The items that this response adds to its conversation, as a store keeps them."""
        return (*_records(self._given, "input"), *_records(self.output, "output"))


def _records(kept: Iterable[items.Item], direction: Direction) -> Iterable[ItemRecord]:
    for item in kept:
        yield ItemRecord(id=str(_id_of(item) or ""), direction=direction, body=encode(item))


def _frame(order: Order) -> wire.Response:
    request, abilities = order.request, order.abilities
    text = request.text or TextOptions()
    return wire.Response(
        id=order.id,
        created_at=order.created_at,
        completed_at=None,
        status="in_progress",
        background=False,
        error=None,
        incomplete_details=None,
        instructions=_or(request.instructions, None),
        max_output_tokens=_or(request.max_output_tokens, None),
        max_tool_calls=_or(request.max_tool_calls, None),
        metadata=_or(request.metadata, {}),
        model=order.model,
        output=[],
        parallel_tool_calls=_or(request.parallel_tool_calls, True),
        previous_response_id=_or(request.previous_response_id, None),
        prompt_cache_key=_or(request.prompt_cache_key, None),
        reasoning=_reasoning(order),
        safety_identifier=_or(request.safety_identifier, None),
        service_tier="default",
        store=order.is_kept,
        temperature=_or(request.temperature, abilities.temperature_default),
        text=msgspec.structs.replace(
            text,
            format=_echo_format(_or(text.format, tools.TextFormat())),
            verbosity=_or(text.verbosity, "medium"),
        ),
        tool_choice=_or(request.tool_choice, "auto"),
        tools=[_echo(tool) for tool in request.tools or ()],
        top_logprobs=_or(request.top_logprobs, 0),
        top_p=_or(request.top_p, abilities.top_p_default),
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        truncation=_or(request.truncation, "disabled"),
        usage=None,
        user=_or(request.user, None),
    )


def _or(value: Any, default: Any) -> Any:
    return value if given(value) else default


def _reasoning(order: Order) -> wire.ResponseReasoning:
    asked = order.request.reasoning
    if not asked:
        return wire.ResponseReasoning(effort=None, summary=None)
    return wire.ResponseReasoning(effort=asked.effort or None, summary=asked.summary or asked.generate_summary or None)


def _echo(tool: tools.Tool) -> tools.Tool:
    """A tool as the response shows it: a function with every key that strict readers insist on."""
    if not isinstance(tool, tools.FunctionTool):
        return tool
    return msgspec.structs.replace(
        tool,
        description=_or(tool.description, None),
        parameters=_or(tool.parameters, None),
        strict=_or(tool.strict, False),
    )


def _echo_format(format: items.AnswerFormat) -> items.AnswerFormat:
    """A format as the response shows it, likewise."""
    if not isinstance(format, items.JsonSchemaFormat):
        return format
    return msgspec.structs.replace(format, description=_or(format.description, None), strict=_or(format.strict, False))


def _usage(used: talk_events.Used) -> wire.ResponseUsage:
    return wire.ResponseUsage(
        input_tokens=used.input_tokens,
        input_tokens_details=wire.InputTokensDetails(cached_tokens=used.cached_tokens, cache_write_tokens=used.cache_write_tokens),
        output_tokens=used.output_tokens,
        output_tokens_details=wire.OutputTokensDetails(reasoning_tokens=used.reasoning_tokens),
        total_tokens=used.input_tokens + used.output_tokens,
    )


def error_of(broke: talk_events.Broke) -> wire.ResponseError:
    """The response's `error`, from the engine's failure; an upstream's code goes through though it be none of the original's."""
    return wire.ResponseError(code=broke.code or "server_error", message=broke.message)


# Items


def item_begun(item: Item) -> items.Item:
    """An item as it is announced: empty, whatever the same word of the engine has already put into it."""
    return item_of(Item(item.id, item.index, item.slot, item.call, item.hosted, item.phase))


def part_begun(part: Part) -> Any:
    """A part as it is announced: empty."""
    return part_of(Part(part.slot, part.index))


def item_of(item: Item) -> items.Item:
    """An item as far as it has come."""
    if item.hosted is not None:
        return _hosted(item, item.hosted)
    if item.call is not None:
        return _call(item, item.call)
    if item.is_reasoning:
        return items.Reasoning(
            id=item.id,
            summary=[part_of(part) for part in item.summaries],
            content=[part_of(part) for part in item.parts] or UNSET,
            encrypted_content=item.sealed if item.sealed is not None else UNSET,
            status=item.status,
        )
    content = [part_of(part) for part in item.parts]
    return items.Message(id=item.id, status=item.status, role="assistant", content=content, phase=item.phase or UNSET)


def _hosted(item: Item, fields: dict[str, Any]) -> items.Item:
    cut_short = {"status": item.status} if item.status == "incomplete" and "status" in fields else {}
    return Unknown(extra=Extra({**fields, "id": item.id, **cut_short}))


def _call(item: Item, call: talk_events.Calling) -> items.Item:
    namespace = call.namespace if call.namespace is not None else UNSET
    if call.custom:
        return items.CustomToolCall(
            id=item.id, status=item.status, call_id=call.call_id, name=call.name, input=item.arguments, namespace=namespace
        )
    return items.FunctionCall(
        id=item.id, status=item.status, call_id=call.call_id, name=call.name, arguments=item.arguments, namespace=namespace
    )


def part_of(part: Part) -> Any:
    """A part as far as it has come."""
    match part.slot:
        case Slot.REFUSAL:
            return parts.Refusal(refusal=part.text)
        case Slot.THINKING:
            return parts.ReasoningText(text=part.text)
        case Slot.SUMMARY:
            return parts.SummaryText(text=part.text)
        case _:
            return parts.OutputText(text=part.text, annotations=_annotations(part), logprobs=logprobs_of(part.logprobs))


def _annotations(part: Part) -> list[Any]:
    return list(part.annotations)


def logprobs_of(tokens: Iterable[talk_events.TokenLogprob]) -> list[parts.Logprob]:
    """Log probabilities as the wire has them."""
    return [
        parts.Logprob(
            token=token.chosen.token,
            logprob=token.chosen.logprob,
            bytes=list(token.chosen.bytes),
            top_logprobs=[
                parts.TopLogprob(token=other.token, logprob=other.logprob, bytes=list(other.bytes)) for other in token.alternatives
            ],
        )
        for token in tokens
    ]


# What the client gave, as it is shown again


def stored_form(item: items.Item, mint: Mint) -> items.Item:
    """
    An input item as `input_items` lists it: with an id and a status, a message's content as a list, and the `detail` of every picture.
    """
    shown = item
    if isinstance(item, items.FunctionCallOutput | items.CustomToolCallOutput) and not isinstance(item.output, str):
        item = shown = msgspec.structs.replace(item, output=[_detailed(part) for part in item.output])
    if isinstance(item, items.Message):
        shown = msgspec.structs.replace(item, content=_content(item), status=_or(item.status, "completed"))
    elif "status" in getattr(item, "__struct_fields__", ()) and not given(item.status):  # type: ignore[union-attr]
        shown = msgspec.structs.replace(item, status="completed")
    if _id_of(shown):
        return shown
    if isinstance(shown, Unknown):
        return Unknown(extra=Extra({**shown.extra, "id": mint("item")}))
    named: items.Item = msgspec.structs.replace(shown, id=mint(ID_PREFIXES.get(type(shown), "item")))
    return named


def _id_of(item: items.Item) -> str | None:
    found = item.extra.get("id") if isinstance(item, Unknown) else getattr(item, "id", None)
    return found if isinstance(found, str) and found else None


def _detailed(part: parts.ToolOutputPart) -> parts.ToolOutputPart:
    return msgspec.structs.replace(part, detail=part.detail or "auto") if isinstance(part, parts.OutputImage) else part


def _content(message: items.Message) -> list[Any]:
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
