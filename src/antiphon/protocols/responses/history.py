"""
The conversation so far: from the Responses API's items to turns that any engine understands.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from antiphon.engine_api import history as engine_history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.errors import ClientError, unsupported_value
from antiphon.protocols.responses.history_tools import hosted_history_item, plain_history_items, shell_call_ids
from antiphon.protocols.responses.tools import TranslationContext
from antiphon.wire.responses import items, parts

ItemWithPath = tuple[str, items.Item]
"""An item, and where the client finds it in what it sent: `input[3]`."""


def to_history(items_with_paths: Sequence[ItemWithPath], context: TranslationContext) -> tuple[engine_history.HistoryItem, ...]:
    """
    Items as turns, in order.

    Raises:
        ClientError: the engine can't take an item or a part of one, or calls and their outputs don't pair up.
    """
    history = [turn for path, item in items_with_paths for turn in _history_items(item, path, context)]
    _match_results_to_calls(history, shell_call_ids(items_with_paths))
    return tuple(history)


def _history_items(item: items.Item, path: str, context: TranslationContext) -> Iterable[engine_history.HistoryItem]:
    read = _ITEM_READERS.get(type(item))
    if read is not None:
        return (read(item, lambda content, below: _parts(content, f"{path}.{below}", context.capabilities, context.model)),)
    if (kept := hosted_history_item(item, context.capabilities)) is not None:
        return (kept,)
    if type(item) in _UNSUPPORTED_ITEMS or not context.omit_unsupported:
        raise unsupported_value(path, item.type, context.model, _SUPPORTED_ITEM_TYPES)
    said = plain_history_items(item, context.capabilities)
    if not said and not isinstance(item, items.AdditionalTools):
        context.omissions.items.append(item.type)
    return said


ReadParts = Callable[[Any, str], tuple[engine_history.HistoryPart, ...]]


def _message(item: items.Message, read: ReadParts) -> engine_history.HistoryItem:
    return engine_history.Message(item.role, read(item.content, "content"), item.phase or None)


def _reasoning(item: items.Reasoning, _read: ReadParts) -> engine_history.HistoryItem:
    return engine_history.ReasoningItem(
        text="".join(part.text for part in item.content or ()),
        summary=tuple(part.text for part in item.summary),
        encrypted_content=item.encrypted_content or None,
    )


def _function_call(item: items.FunctionCall, _read: ReadParts) -> engine_history.HistoryItem:
    return engine_history.ToolCall(item.call_id, item.name, item.arguments, namespace=item.namespace or None)


def _custom_call(item: items.CustomToolCall, _read: ReadParts) -> engine_history.HistoryItem:
    return engine_history.ToolCall(item.call_id, item.name, item.input, custom=True, namespace=item.namespace or None)


def _tool_result(item: items.FunctionCallOutput | items.CustomToolCallOutput, read: ReadParts) -> engine_history.HistoryItem:
    return engine_history.ToolResult(item.call_id or "", read(item.output, "output"))


_ITEM_READERS: dict[type, Callable[[Any, ReadParts], engine_history.HistoryItem]] = {
    items.Message: _message,
    items.Reasoning: _reasoning,
    items.FunctionCall: _function_call,
    items.FunctionCallOutput: _tool_result,
    items.CustomToolCall: _custom_call,
    items.CustomToolCallOutput: _tool_result,
}
"""The items that every engine understands; the others belong to tools that this server doesn't run."""

_UNSUPPORTED_ITEMS = (items.Compaction, items.CompactionTrigger, items.ConfigurationUpdate)
"""Items without which the conversation would be another."""

_SUPPORTED_ITEM_TYPES = ("message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output")


def _parts(content: str | Sequence[Any], path: str, capabilities: Capabilities, model: str) -> tuple[engine_history.HistoryPart, ...]:
    if isinstance(content, str):
        return (engine_history.TextPart(content),)
    return tuple(_part(part, f"{path}[{index}]", capabilities, model) for index, part in enumerate(content))


SILENT_RECORDING_TEXT = "(A recording in which nothing is said.)"


def _part(part: Any, path: str, capabilities: Capabilities, model: str) -> engine_history.HistoryPart:
    if type(part) is parts.InputAudio and isinstance(part.transcript, str) and not capabilities.audio_in:
        return engine_history.TextPart(part.transcript or SILENT_RECORDING_TEXT)
    needed, read = _PART_READERS[type(part)]
    if needed is not None and not getattr(capabilities, needed):
        raise ClientError(
            f"Unsupported parameter: '{path}' is not supported with the '{model}' model, which takes no {part.type}.",
            code="unsupported_parameter",
            param=path,
        )
    return read(part)


_PART_READERS: dict[type, tuple[str | None, Callable[[Any], engine_history.HistoryPart]]] = {
    parts.InputText: (None, lambda part: engine_history.TextPart(part.text)),
    parts.OutputText: (None, lambda part: engine_history.TextPart(part.text)),
    parts.Refusal: (None, lambda part: engine_history.RefusalPart(part.refusal)),
    parts.InputImage: (
        "images",
        lambda part: engine_history.ImagePart(part.image_url or None, part.file_id or None, part.detail or "auto"),
    ),
    parts.OutputImage: (
        "images",
        lambda part: engine_history.ImagePart(part.image_url or None, part.file_id or None, part.detail or "auto"),
    ),
    parts.InputFile: (
        "files",
        lambda part: engine_history.FilePart(part.file_url or None, part.file_id or None, part.file_data or None, part.filename or None),
    ),
    parts.InputAudio: ("audio_in", lambda part: engine_history.AudioPart(part.input_audio.data, part.input_audio.format)),
}
"""For each content part the ability that it needs, and its reading."""


def _match_results_to_calls(history: list[engine_history.HistoryItem], shell_calls: Mapping[str, str]) -> None:
    """Every output answers a call that was made before it, and every call has its output, as the original insists."""
    open_calls: dict[str, None] = {}
    made: set[str] = set()
    for place, turn in enumerate(history):
        match turn:
            case engine_history.ToolCall(call_id):
                made.add(call_id)
                open_calls[call_id] = None
            case engine_history.ToolResult(call_id, parts) if call_id not in made:
                if (meant := shell_calls.get(call_id)) not in made:
                    raise ClientError(f"No tool call found for function call output with call_id {call_id}.", param="input")
                history[place] = engine_history.ToolResult(str(meant), parts)
                open_calls.pop(str(meant), None)
            case engine_history.ToolResult(call_id):
                open_calls.pop(call_id, None)
            case engine_history.HostedToolItem({"call_id": str(call_id)}):
                made.add(call_id)
            case _:
                pass
    for call_id in open_calls:
        raise ClientError(f"No tool output found for function call {call_id}.", param="input")
