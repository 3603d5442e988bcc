"""
The conversation so far: from the Responses API's items to turns that any engine understands.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from antiphon import talk, turns
from antiphon.errors import ClientMistake, unsupported_value
from antiphon.wire import responses_items as items
from antiphon.wire import responses_parts as parts

Located = tuple[str, items.Item]
"""An item, and where the client finds it in what it sent: `input[3]`."""


def turns_of(located: Iterable[Located], abilities: talk.Abilities, model: str) -> tuple[turns.Turn, ...]:
    """
    Items as turns, in order.

    Raises:
        ClientMistake: the engine can't take an item or a part of one, or calls and their outputs don't pair up.
    """
    told = [turn for path, item in located for turn in _turn(item, path, abilities, model)]
    _pair(told)
    return tuple(told)


def _turn(item: items.Item, path: str, abilities: talk.Abilities, model: str) -> Iterable[turns.Turn]:
    read = _READERS.get(type(item))
    if read is None:
        raise unsupported_value(path, item.type, model, _READABLE)
    return (read(item, lambda content, below: _parts(content, f"{path}.{below}", abilities, model)),)


ReadParts = Callable[[Any, str], tuple[turns.Part, ...]]


def _message(item: items.Message, read: ReadParts) -> turns.Turn:
    return turns.Message(item.role, read(item.content, "content"))


def _reasoning(item: items.Reasoning, _read: ReadParts) -> turns.Turn:
    return turns.Thought(
        text="".join(part.text for part in item.content or ()),
        summary=tuple(part.text for part in item.summary),
        sealed=item.encrypted_content or None,
    )


def _function_call(item: items.FunctionCall, _read: ReadParts) -> turns.Turn:
    return turns.ToolCall(item.call_id, item.name, item.arguments, namespace=item.namespace or None)


def _custom_call(item: items.CustomToolCall, _read: ReadParts) -> turns.Turn:
    return turns.ToolCall(item.call_id, item.name, item.input, custom=True, namespace=item.namespace or None)


def _output(item: items.FunctionCallOutput | items.CustomToolCallOutput, read: ReadParts) -> turns.Turn:
    return turns.ToolResult(item.call_id or "", read(item.output, "output"))


_READERS: dict[type, Callable[[Any, ReadParts], turns.Turn]] = {
    items.Message: _message,
    items.Reasoning: _reasoning,
    items.FunctionCall: _function_call,
    items.FunctionCallOutput: _output,
    items.CustomToolCall: _custom_call,
    items.CustomToolCallOutput: _output,
}
"""The items that can be told to an engine; the others belong to tools that this server doesn't run."""

_READABLE = ("message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output")


def _parts(content: str | Sequence[Any], path: str, abilities: talk.Abilities, model: str) -> tuple[turns.Part, ...]:
    if isinstance(content, str):
        return (turns.TextPart(content),)
    return tuple(_part(part, f"{path}[{index}]", abilities, model) for index, part in enumerate(content))


def _part(part: Any, path: str, abilities: talk.Abilities, model: str) -> turns.Part:
    needed, read = _PARTS[type(part)]
    if needed is not None and not getattr(abilities, needed):
        raise ClientMistake(
            f"Unsupported parameter: '{path}' is not supported with the '{model}' model, which takes no {part.type}.",
            code="unsupported_parameter",
            param=path,
        )
    return read(part)


_PARTS: dict[type, tuple[str | None, Callable[[Any], turns.Part]]] = {
    parts.InputText: (None, lambda part: turns.TextPart(part.text)),
    parts.OutputText: (None, lambda part: turns.TextPart(part.text)),
    parts.Refusal: (None, lambda part: turns.RefusalPart(part.refusal)),
    parts.InputImage: ("images", lambda part: turns.ImagePart(part.image_url or None, part.file_id or None, part.detail or "auto")),
    parts.OutputImage: ("images", lambda part: turns.ImagePart(part.image_url or None, part.file_id or None, part.detail or "auto")),
    parts.InputFile: (
        "files",
        lambda part: turns.FilePart(part.file_url or None, part.file_id or None, part.file_data or None, part.filename or None),
    ),
    parts.InputAudio: ("audio_in", lambda part: turns.AudioPart(part.input_audio.data, part.input_audio.format)),
}
"""For each content part the ability that it needs, and its reading."""


def _pair(told: Sequence[turns.Turn]) -> None:
    """Every output answers a call that was made before it, and every call has its output, as the original insists."""
    open_calls: dict[str, None] = {}
    made: set[str] = set()
    for turn in told:
        match turn:
            case turns.ToolCall(call_id):
                made.add(call_id)
                open_calls[call_id] = None
            case turns.ToolResult(call_id) if call_id not in made:
                raise ClientMistake(f"No tool call found for function call output with call_id {call_id}.", param="input")
            case turns.ToolResult(call_id):
                open_calls.pop(call_id, None)
            case _:
                pass
    for call_id in open_calls:
        raise ClientMistake(f"No tool output found for function call {call_id}.", param="input")
