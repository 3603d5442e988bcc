"""
The conversation so far: from the Responses API's items to turns that any engine understands.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from antiphon.engine_api import history as turns
from antiphon.engine_api.capabilities import Abilities
from antiphon.errors import ClientMistake, unsupported_value
from antiphon.protocols.responses.history_tools import hosted, shell_call_ids, told
from antiphon.protocols.responses.tools import Terms
from antiphon.wire.responses import items, parts

Located = tuple[str, items.Item]
"""An item, and where the client finds it in what it sent: `input[3]`."""


def turns_of(located: Sequence[Located], terms: Terms) -> tuple[turns.Turn, ...]:
    """
    Items as turns, in order.

    Raises:
        ClientMistake: the engine can't take an item or a part of one, or calls and their outputs don't pair up.
    """
    history = [turn for path, item in located for turn in _turns(item, path, terms)]
    _pair(history, shell_call_ids(located))
    return tuple(history)


def _turns(item: items.Item, path: str, terms: Terms) -> Iterable[turns.Turn]:
    read = _READERS.get(type(item))
    if read is not None:
        return (read(item, lambda content, below: _parts(content, f"{path}.{below}", terms.abilities, terms.model)),)
    if (kept := hosted(item, terms.abilities)) is not None:
        return (kept,)
    if type(item) in _REFUSED or not terms.carries:
        raise unsupported_value(path, item.type, terms.model, _READABLE)
    said = told(item, terms.abilities)
    if not said and not isinstance(item, items.AdditionalTools):
        terms.left_out.items.append(item.type)
    return said


ReadParts = Callable[[Any, str], tuple[turns.Part, ...]]


def _message(item: items.Message, read: ReadParts) -> turns.Turn:
    return turns.Message(item.role, read(item.content, "content"), item.phase or None)


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
"""The items that every engine understands; the others belong to tools that this server doesn't run."""

_REFUSED = (items.Compaction, items.CompactionTrigger, items.ConfigurationUpdate)
"""Items without which the conversation would be another."""

_READABLE = ("message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output")


def _parts(content: str | Sequence[Any], path: str, abilities: Abilities, model: str) -> tuple[turns.Part, ...]:
    if isinstance(content, str):
        return (turns.TextPart(content),)
    return tuple(_part(part, f"{path}[{index}]", abilities, model) for index, part in enumerate(content))


NOTHING_SAID = "(A recording in which nothing is said.)"


def _part(part: Any, path: str, abilities: Abilities, model: str) -> turns.Part:
    if type(part) is parts.InputAudio and isinstance(part.transcript, str) and not abilities.audio_in:
        return turns.TextPart(part.transcript or NOTHING_SAID)
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


def _pair(history: list[turns.Turn], shell_calls: Mapping[str, str]) -> None:
    """Every output answers a call that was made before it, and every call has its output, as the original insists."""
    open_calls: dict[str, None] = {}
    made: set[str] = set()
    for place, turn in enumerate(history):
        match turn:
            case turns.ToolCall(call_id):
                made.add(call_id)
                open_calls[call_id] = None
            case turns.ToolResult(call_id, parts) if call_id not in made:
                if (meant := shell_calls.get(call_id)) not in made:
                    raise ClientMistake(f"No tool call found for function call output with call_id {call_id}.", param="input")
                history[place] = turns.ToolResult(str(meant), parts)
                open_calls.pop(str(meant), None)
            case turns.ToolResult(call_id):
                open_calls.pop(call_id, None)
            case turns.Hosted({"call_id": str(call_id)}):
                made.add(call_id)
            case _:
                pass
    for call_id in open_calls:
        raise ClientMistake(f"No tool output found for function call {call_id}.", param="input")
