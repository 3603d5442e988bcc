"""The conversation so far: from the Responses API's items to a history that any engine understands."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from msgspec import structs

from antiphon.engine_api import history as engine_history
from antiphon.engine_api.options import Tool
from antiphon.errors import ClientError, shorten, unsupported_value
from antiphon.protocols.call_results import are_in_place, place_results
from antiphon.protocols.client_tools.definitions import CLIENT_ITEM_TYPES
from antiphon.protocols.dispatch import convert, table
from antiphon.protocols.responses.documents import file_part, image_part
from antiphon.protocols.responses.history_tools import hosted_history_item, is_item_of, plain_history_items, shell_call_ids
from antiphon.protocols.responses.tools import TranslationContext
from antiphon.wire.codec.fields import value_or
from antiphon.wire.responses import items, parts
from antiphon.wire.responses.hosted_calls import ComputerCall, ComputerCallOutput, McpApprovalRequest, McpApprovalResponse, McpCall

AnyPart = parts.MessagePart | parts.ToolOutputPart

ItemWithPath = tuple[str, items.Item]
"""An item, and its path in the request for error messages: `input[3]`."""


def to_history(items_with_paths: Sequence[ItemWithPath], context: TranslationContext) -> tuple[engine_history.HistoryItem, ...]:
    """
    The items as history, in order.

    Raises:
        ClientError: the engine can't read an item or a part of one, or tool calls and their outputs don't match.
    """
    _check_safety_checks(items_with_paths)
    history = [history_item for path, item in items_with_paths for history_item in _history_items(item, path, context)]
    async_ids = {
        item.call_id for _, item in items_with_paths if isinstance(item, items.FunctionCall | items.CustomToolCall) and item.async_
    }
    _match_results_to_calls(history, items_with_paths, async_ids)
    if not are_in_place(history):
        history = list(place_results(history))
    return tuple(_without_stray_reasoning(history))


def is_plain_message(item: items.Item) -> bool:
    """Whether an item is a message that is nothing but text: it refers to nothing."""
    if type(item) is not items.Message:
        return False
    content = item.content
    return isinstance(content, str) or all(type(part) is parts.InputText for part in content)


def plain_history(input_items: Iterable[items.Item]) -> tuple[engine_history.HistoryItem, ...]:
    """As `to_history`, for items that are all `is_plain_message`: there is nothing that could be missing or be matched."""
    history: list[engine_history.HistoryItem] = []
    for item in input_items:
        assert isinstance(item, items.Message)
        content = item.content
        texts = [content] if isinstance(content, str) else [part.text for part in content if isinstance(part, parts.InputText)]
        history.append(engine_history.Message(item.role, tuple(map(engine_history.TextPart, texts)), item.phase or None))
    return tuple(history)


def _check_safety_checks(items_with_paths: Sequence[ItemWithPath]) -> None:
    """Check that every safety check that a call waits for is acknowledged with its output, as the original requires."""
    pending: dict[str, set[str]] = {}
    for path, item in items_with_paths:
        if isinstance(item, ComputerCall) and item.pending_safety_checks:
            pending[item.call_id] = {check.id for check in item.pending_safety_checks}
        elif isinstance(item, ComputerCallOutput) and item.call_id in pending:
            missing = pending[item.call_id] - {check.id for check in item.acknowledged_safety_checks or ()}
            if missing:
                message = f"The safety check '{shorten(min(missing))}' of computer call '{item.call_id}' is not acknowledged."
                raise ClientError(message, code="invalid_value", param=f"{path}.acknowledged_safety_checks")


def _history_items(item: items.Item, path: str, context: TranslationContext) -> Iterable[engine_history.HistoryItem]:
    if isinstance(item, items.Reasoning):
        return (_reasoning(item, context.decrypted_texts),)
    if isinstance(item, items.Compaction) and context.capabilities.compacts:
        # Such an engine's upstream made it, and nobody else can open it.
        return (engine_history.HostedToolItem({"type": item.type, "encrypted_content": item.encrypted_content}),)
    convert = _ITEM_CONVERTERS.get(type(item))
    if convert is not None:
        history_item = convert(item, lambda content, field: _parts(content, f"{path}.{field}", context))
        return (history_item if "tool_search" in context.capabilities.hosted else _without_own_namespace(history_item),)
    if (hosted_item := hosted_history_item(item, context.capabilities)) is not None:
        return (hosted_item,)
    return _tool_history_items(item, path, context)


def _tool_history_items(item: items.Item, path: str, context: TranslationContext) -> Iterable[engine_history.HistoryItem]:
    """The item of a tool that the engine does not have."""
    if type(item) in _UNSUPPORTED_ITEMS:
        raise unsupported_value(path, item.type, None, _VALID_ITEM_TYPES)
    is_clients = context.capabilities.tools and isinstance(item, CLIENT_ITEM_TYPES)
    if not (context.omit_unsupported or is_clients or is_item_of(item, context.server_tools.types)):
        raise unsupported_value(path, item.type, context.model, SUPPORTED_ITEM_TYPES)
    if isinstance(item, ComputerCallOutput) and item.output.file_id and context.capabilities.images:
        screenshot = image_part(parts.InputImage(file_id=item.output.file_id), f"{path}.output", context)
        return (engine_history.ToolResult(item.call_id, (screenshot,)),)
    if context.approvals is not None and isinstance(item, McpApprovalRequest | McpApprovalResponse | McpCall):
        approved_items = context.approvals.history_items(item)
        if approved_items is not None:
            return approved_items
    plain_items = plain_history_items(item, context.capabilities)
    if not plain_items and not isinstance(item, items.AdditionalTools):
        context.omissions.items.append(item.type)
    return plain_items


def _without_own_namespace(item: engine_history.HistoryItem) -> engine_history.HistoryItem:
    """The item; a function that a search has found is its own namespace for the client, and has none for the engine."""
    if isinstance(item, engine_history.ToolCall) and item.namespace == item.name:
        return structs.replace(item, namespace=None)
    return item


ConvertParts = Callable[[str | Sequence[AnyPart], str], tuple[engine_history.HistoryPart, ...]]


def _message(item: items.Message, convert_parts: ConvertParts) -> engine_history.HistoryItem:
    return engine_history.Message(item.role, convert_parts(item.content, "content"), item.phase or None)


def _reasoning(item: items.Reasoning, decrypted_texts: Mapping[str, str]) -> engine_history.HistoryItem:
    decrypted_text = decrypted_texts.get(item.encrypted_content or "")
    return engine_history.ReasoningItem(
        # What was decrypted is as the model wrote it; what stands beside it may have been changed.
        text="".join(part.text for part in item.content or ()) if decrypted_text is None else decrypted_text,
        summary=tuple(part.text for part in item.summary),
        # What this server can't open may be its upstream's own.
        encrypted_content=(item.encrypted_content or None) if decrypted_text is None else None,
    )


def _function_call(item: items.FunctionCall, _convert_parts: ConvertParts) -> engine_history.HistoryItem:
    return engine_history.ToolCall(item.call_id, item.name, item.arguments, namespace=item.namespace or None)


def _custom_call(item: items.CustomToolCall, _convert_parts: ConvertParts) -> engine_history.HistoryItem:
    return engine_history.ToolCall(item.call_id, item.name, item.input, custom=True, namespace=item.namespace or None)


def _tool_result(item: items.FunctionCallOutput | items.CustomToolCallOutput, convert_parts: ConvertParts) -> engine_history.HistoryItem:
    # OpenAI's types don't require a function output's `call_id`; without one it matches no call, and is refused.
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

_VALID_ITEM_TYPES = tuple(name for name in items.ITEM_TYPES if name not in {str(kind.__struct_config__.tag) for kind in _UNSUPPORTED_ITEMS})
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


def with_namespaces(history: Sequence[engine_history.HistoryItem], tools: Sequence[Tool]) -> tuple[engine_history.HistoryItem, ...]:
    """
    The history, where a call that was sent back without its namespace has the one that its function is in.

    Raises:
        ClientError: several namespaces have a function of that name.
    """
    if not tools:
        return tuple(history)
    namespaces: dict[str, set[str | None]] = {}
    for tool in tools:
        namespaces.setdefault(tool.name, set()).add(tool.namespace)
    return tuple(_with_namespace(item, namespaces) for item in history) if any(tool.namespace for tool in tools) else tuple(history)


def _with_namespace(item: engine_history.HistoryItem, namespaces: Mapping[str, set[str | None]]) -> engine_history.HistoryItem:
    if not isinstance(item, engine_history.ToolCall) or item.namespace is not None:
        return item
    choices = namespaces.get(item.name, {None})
    # The name is also that of a function in no namespace, or of none in this request: the call stays as it came.
    if None in choices:
        return item
    if len(choices) > 1:
        hint = "Round-trip the model's function_call item with its namespace field included."
        raise ClientError(f"Missing namespace for function_call '{shorten(item.name)}'. {hint}", param="input")
    return structs.replace(item, namespace=next(iter(choices)))


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


def _match_results_to_calls(
    history: list[engine_history.HistoryItem], items_with_paths: Sequence[ItemWithPath], async_ids: Container[str]
) -> None:
    """
    Check that every output follows its call and every call has an output, as the original requires, but for those that
    need not wait (`async`). Adapts local shell ids.
    """
    shell_calls = shell_call_ids(items_with_paths)
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
                    kind = _kind_of(items_with_paths, call_id, "function call output")
                    raise ClientError(f"No tool call found for {kind} with call_id {shorten(call_id)}.", param="input")
                history[index] = engine_history.ToolResult(shell_call_id, parts)
                open_calls.pop(shell_call_id, None)
            case engine_history.ToolResult(call_id):
                open_calls.pop(call_id, None)
            # It is not among the open calls: whether a hosted call needs an output is its upstream's to say.
            case engine_history.HostedToolItem({"call_id": str(call_id)}):
                call_ids.add(call_id)
            case _:
                pass
    # The original's rule. A model that sees half of a round trip makes up the rest (docs/decisions/0004).
    for call_id in open_calls:
        if call_id in async_ids:
            continue
        kind = _kind_of(items_with_paths, call_id, "function call")
        raise ClientError(f"No tool output found for {kind} {shorten(call_id)}.", param="input")


def _kind_of(items_with_paths: Sequence[ItemWithPath], call_id: str, default: str) -> str:
    """What the original calls an item of a call, or of its output as `default` is: by its type."""
    suffix = "_output" if default.endswith("output") else "_call"
    for _, item in items_with_paths:
        # The output of a local shell may have its call's id in place of a `call_id`.
        ids = (value_or(getattr(item, "call_id", None), ""), value_or(getattr(item, "id", None), ""))
        if item.type.endswith(suffix) and call_id in ids:
            return item.type.replace("_", " ")
    return default
