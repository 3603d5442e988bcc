"""The conversation so far: from the Responses API's items to a history that any engine understands."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from antiphon.engine_api import history as engine_history
from antiphon.errors import ClientError, unsupported_value
from antiphon.protocols.dispatch import convert, table
from antiphon.protocols.responses.documents import file_part, image_part
from antiphon.protocols.responses.history_tools import hosted_history_item, is_item_of, plain_history_items, shell_call_ids
from antiphon.protocols.responses.tools import TranslationContext
from antiphon.wire.responses import items, parts
from antiphon.wire.responses.hosted_calls import McpApprovalRequest, McpApprovalResponse, McpCall

AnyPart = parts.MessagePart | parts.ToolOutputPart

ItemWithPath = tuple[str, items.Item]
"""An item, and its path in the request for error messages: `input[3]`."""


def to_history(items_with_paths: Sequence[ItemWithPath], context: TranslationContext) -> tuple[engine_history.HistoryItem, ...]:
    """
    The items as history, in order.

    Raises:
        ClientError: the engine can't read an item or a part of one, or tool calls and their outputs don't match.
    """
    history = [history_item for path, item in items_with_paths for history_item in _history_items(item, path, context)]
    _match_results_to_calls(history, shell_call_ids(items_with_paths))
    return tuple(_without_stray_reasoning(history))


def _history_items(item: items.Item, path: str, context: TranslationContext) -> Iterable[engine_history.HistoryItem]:
    if isinstance(item, items.Reasoning):
        return (_reasoning(item, context.decrypted_texts),)
    if isinstance(item, items.Compaction) and context.capabilities.compacts:
        return (engine_history.HostedToolItem({"type": item.type, "encrypted_content": item.encrypted_content}),)
    convert = _ITEM_CONVERTERS.get(type(item))
    if convert is not None:
        return (convert(item, lambda content, field: _parts(content, f"{path}.{field}", context)),)
    if (hosted_item := hosted_history_item(item, context.capabilities)) is not None:
        return (hosted_item,)
    if type(item) in _UNSUPPORTED_ITEMS:
        raise unsupported_value(path, item.type, None, SUPPORTED_ITEM_TYPES)
    if not context.omit_unsupported and not is_item_of(item, context.server_tools.types):
        raise unsupported_value(path, item.type, context.model, SUPPORTED_ITEM_TYPES)
    if context.approvals is not None and isinstance(item, McpApprovalRequest | McpApprovalResponse | McpCall):
        approved_items = context.approvals.history_items(item)
        if approved_items is not None:
            return approved_items
    plain_items = plain_history_items(item, context.capabilities)
    if not plain_items and not isinstance(item, items.AdditionalTools):
        context.omissions.items.append(item.type)
    return plain_items


ConvertParts = Callable[[str | Sequence[AnyPart], str], tuple[engine_history.HistoryPart, ...]]


def _message(item: items.Message, convert_parts: ConvertParts) -> engine_history.HistoryItem:
    return engine_history.Message(item.role, convert_parts(item.content, "content"), item.phase or None)


def _reasoning(item: items.Reasoning, decrypted_texts: Mapping[str, str]) -> engine_history.HistoryItem:
    decrypted_text = decrypted_texts.get(item.encrypted_content or "")
    return engine_history.ReasoningItem(
        # What was decrypted is as the model wrote it; what stands beside it may have been changed.
        text="".join(part.text for part in item.content or ()) if decrypted_text is None else decrypted_text,
        summary=tuple(part.text for part in item.summary),
        encrypted_content=(item.encrypted_content or None) if decrypted_text is None else None,
    )


def _function_call(item: items.FunctionCall, _convert_parts: ConvertParts) -> engine_history.HistoryItem:
    return engine_history.ToolCall(item.call_id, item.name, item.arguments, namespace=item.namespace or None)


def _custom_call(item: items.CustomToolCall, _convert_parts: ConvertParts) -> engine_history.HistoryItem:
    return engine_history.ToolCall(item.call_id, item.name, item.input, custom=True, namespace=item.namespace or None)


def _tool_result(item: items.FunctionCallOutput | items.CustomToolCallOutput, convert_parts: ConvertParts) -> engine_history.HistoryItem:
    return engine_history.ToolResult(item.call_id or "", convert_parts(item.output, "output"))


_ITEM_CONVERTERS = table(
    convert(items.Message, _message),
    convert(items.FunctionCall, _function_call),
    convert(items.FunctionCallOutput, _tool_result),
    convert(items.CustomToolCall, _custom_call),
    convert(items.CustomToolCallOutput, _tool_result),
)
"""The items that every engine understands. Others belong to tools that this server doesn't run."""

_UNSUPPORTED_ITEMS = (items.Compaction, items.CompactionTrigger, items.ConfigurationUpdate)
"""Items that change the meaning of the conversation if they are left out, so they are always refused."""

SUPPORTED_ITEM_TYPES = ("message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output")
"""The types of items that every engine understands."""


def _parts(content: str | Sequence[AnyPart], path: str, context: TranslationContext) -> tuple[engine_history.HistoryPart, ...]:
    if isinstance(content, str):
        return (engine_history.TextPart(content),)
    return tuple(_part(part, f"{path}[{index}]", context) for index, part in enumerate(content))


SILENT_RECORDING_TEXT = "(A recording in which nothing is said.)"


def _part(part: AnyPart, path: str, context: TranslationContext) -> engine_history.HistoryPart:
    capabilities = context.capabilities
    if type(part) is parts.InputAudio and isinstance(part.transcript, str) and not capabilities.audio_in:
        return engine_history.TextPart(part.transcript or SILENT_RECORDING_TEXT)
    capability = _REQUIRED_CAPABILITIES.get(type(part))
    if capability is not None and not getattr(capabilities, capability):
        raise ClientError(
            f"Unsupported parameter: '{path}' is not supported with the '{context.model}' model, which takes no {part.type}.",
            code="unsupported_parameter",
            param=path,
        )
    match part:
        case parts.InputImage():
            return image_part(part, path, context)
        case parts.InputFile():
            return file_part(part, path, context)
        case _:
            return _PART_CONVERTERS[type(part)](part)


_PART_CONVERTERS: dict[type, Callable[[AnyPart], engine_history.HistoryPart]] = table(
    convert(parts.InputText, lambda part: engine_history.TextPart(part.text)),
    convert(parts.OutputText, lambda part: engine_history.TextPart(part.text)),
    convert(parts.Refusal, lambda part: engine_history.RefusalPart(part.refusal)),
    convert(parts.InputAudio, lambda part: engine_history.AudioPart(part.input_audio.data, part.input_audio.format)),
)

_REQUIRED_CAPABILITIES = {
    parts.InputImage: "images",
    parts.OutputImage: "images",
    parts.InputAudio: "audio_in",
}
"""The capability that a content part needs."""


def _without_stray_reasoning(history: Sequence[engine_history.HistoryItem]) -> Sequence[engine_history.HistoryItem]:
    """
    The history without reasoning that leads to nothing, as of a response that was cut off in it: models take it only
    before the message or the call that it led to.
    """
    remaining: list[engine_history.HistoryItem] = []
    is_led_to = False
    for item in reversed(history):
        if not isinstance(item, engine_history.ReasoningItem):
            is_message = isinstance(item, engine_history.Message) and item.role == "assistant"
            is_led_to = is_message or isinstance(item, engine_history.ToolCall | engine_history.HostedToolItem)
        elif not is_led_to:
            continue
        remaining.append(item)
    return remaining[::-1]


def _match_results_to_calls(history: list[engine_history.HistoryItem], shell_calls: Mapping[str, str]) -> None:
    """
    Check that every output follows its call and every call has an output, as the original requires. Adapts local shell
    ids.
    """
    open_calls: dict[str, None] = {}
    call_ids: set[str] = set()
    for index, item in enumerate(history):
        match item:
            case engine_history.ToolCall(call_id):
                call_ids.add(call_id)
                open_calls[call_id] = None
            case engine_history.ToolResult(call_id, parts) if call_id not in call_ids:
                # A local shell's output may name its call by the id of the call's item.
                shell_call_id = shell_calls.get(call_id, "")
                if shell_call_id not in call_ids:
                    raise ClientError(f"No tool call found for function call output with call_id {call_id}.", param="input")
                history[index] = engine_history.ToolResult(shell_call_id, parts)
                open_calls.pop(shell_call_id, None)
            case engine_history.ToolResult(call_id):
                open_calls.pop(call_id, None)
            case engine_history.HostedToolItem({"call_id": str(call_id)}):
                call_ids.add(call_id)
            case _:
                pass
    # The original's rule. A model that sees half of a round trip makes up the rest (docs/decisions/0004).
    for call_id in open_calls:
        raise ClientError(f"No tool output found for function call {call_id}.", param="input")
