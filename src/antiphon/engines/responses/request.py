"""
A `Respond` as the body of a request for a response.

The upstream keeps nothing: the whole conversation goes with each request, its items without ids, since an id would be looked up there.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.engine_api import commands, history as turns
from antiphon.engine_api.options import CustomTool, FunctionTool, JsonObject, JsonSchema, Tool
from antiphon.engines.chat.request import explained, flat_name, passed, speech, words_said
from antiphon.errors import ClientMistake

Plain = dict[str, Any]

KEPT_HERE = frozenset(
    (
        # Of vLLM: what is told besides the answer, and prompts past the conversation.
        "enable_response_messages",
        "previous_input_messages",
        # Of the API over WebSocket.
        "generate",
        "stream_id",
    )
)
"""Keys beyond the protocol that stay here, besides those that no upstream is given; all others go upstream as they came."""


class Manners(Struct, frozen=True, kw_only=True):
    """
    How the upstream wants to be asked.

    Attributes:
        namespaces: whether it knows tools of type `namespace`; else their tools are given as functions with longer names.
        pads: whether it would pad the sizes of its events unless it is asked not to.
    """

    namespaces: bool = False
    pads: bool = False


def body_of(ask: commands.Respond, model: str, manners: Manners) -> bytes:
    """
    JSON of the request.

    Raises:
        ClientMistake: the history has something that can't be carried.
    """
    body = {key: value for key, value in passed(ask.sampling.extra).items() if key not in KEPT_HERE}
    body |= {"model": model, "input": input_of(ask.history, manners), "stream": True, "store": False}
    if manners.pads:
        body["stream_options"] = {"include_obfuscation": False}
    for part in (_sampling(ask), _tools(ask, manners), _text(ask), _reasoning(ask), _include(ask)):
        body |= part
    return msgspec.json.encode(body)


# How the answer is made


def _given(fields: Plain) -> Plain:
    return {name: value for name, value in fields.items() if value is not None}


def _sampling(ask: commands.Respond) -> Plain:
    sampling = ask.sampling
    return _given(
        {
            "instructions": ask.instructions,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "max_output_tokens": sampling.max_tokens,
            "top_logprobs": sampling.top_logprobs,
            "truncation": "auto" if ask.truncate else None,
        }
    )


def _text(ask: commands.Respond) -> Plain:
    asked = _given({"format": _format(ask.format), "verbosity": ask.verbosity})
    return {"text": asked} if asked else {}


def _format(wanted: JsonObject | JsonSchema | None) -> Plain | None:
    match wanted:
        case None:
            return None
        case JsonObject():
            return {"type": "json_object"}
        case JsonSchema(name, schema, strict, description):
            return _given({"type": "json_schema", "name": name, "schema": schema, "strict": strict, "description": description})


def _reasoning(ask: commands.Respond) -> Plain:
    asked = _given({"effort": ask.effort, "summary": ask.summarise})
    return {"reasoning": asked} if asked else {}


def _include(ask: commands.Respond) -> Plain:
    wanted = {"reasoning.encrypted_content": ask.seal, "message.output_text.logprobs": ask.sampling.top_logprobs is not None}
    include = [name for name, is_wanted in wanted.items() if is_wanted]
    return {"include": include} if include else {}


# Tools


def _tools(ask: commands.Respond, manners: Manners) -> Plain:
    # What may not be called is not offered: every server understands that, and few know `allowed_tools`.
    names = ask.tool_choice.only
    offered = [tool for tool in ask.tools if names is None or tool.key in names]
    hosted = [tool.spec for tool in ask.hosted if names is None or tool.type in names]
    if not offered and not hosted:
        return {}
    asked: Plain = {"tools": [*_described(offered, ask.namespaces, manners), *hosted]}
    if ask.tool_choice.mode != "auto":
        asked["tool_choice"] = ask.tool_choice.mode
    if not ask.parallel_tool_calls:
        asked["parallel_tool_calls"] = False
    return asked


def _described(offered: Sequence[Tool], namespaces: Mapping[str, str], manners: Manners) -> list[Plain]:
    if not manners.namespaces:
        return [_tool(tool, flat_name(tool.name, tool.namespace)) for tool in explained(offered, namespaces)]
    told: list[Plain] = []
    for namespace, group in groupby(sorted(offered, key=lambda tool: tool.namespace or ""), lambda tool: tool.namespace):
        described = [_tool(tool, tool.name) for tool in group]
        if namespace:
            described = [{"type": "namespace", "name": namespace, "description": namespaces.get(namespace, ""), "tools": described}]
        told += described
    return told


def _tool(tool: Tool, name: str) -> Plain:
    match tool:
        case FunctionTool():
            # `parameters` and `strict` are required, though both may be null.
            function = {"type": "function", "name": name, "parameters": tool.parameters, "strict": tool.strict}
            return function | _given({"description": tool.description})
        case CustomTool(syntax=syntax, grammar=grammar):
            format = {"type": "grammar", "syntax": syntax, "definition": grammar} if grammar is not None else None
            return _given({"type": "custom", "name": name, "description": tool.description, "format": format})


# What was said


def input_of(history: Sequence[turns.Turn], manners: Manners) -> list[Plain]:
    """
    The conversation as items.

    Raises:
        ClientMistake: a part can't be carried.
    """
    custom = {turn.call_id for turn in history if isinstance(turn, turns.ToolCall) and turn.custom}
    return [item for number, turn in enumerate(history) for item in _item(turn, number, custom, manners)]


def _item(turn: turns.Turn, number: int, custom: set[str], manners: Manners) -> list[Plain]:
    match turn:
        case turns.Message(role="assistant", parts=parts, phase=phase):
            return [_said(parts, number) | _given({"phase": phase})]
        case turns.Message(role, parts):
            return [{"type": "message", "role": role, "content": _content(parts)}]
        case turns.Thought():
            return _thought(turn, number)
        case turns.ToolCall():
            return [_call(turn, manners)]
        case turns.ToolResult(call_id, parts):
            kind = "custom_tool_call_output" if call_id in custom else "function_call_output"
            return [{"type": kind, "call_id": call_id, "output": _content(parts)}]
        case turns.Hosted(item):
            return [item]


def _said(parts: Sequence[turns.Part], number: int) -> Plain:
    """What the assistant said: a text as the simplest form that all servers take, and a refusal as the only one that there is."""
    if not any(isinstance(part, turns.RefusalPart) for part in parts):
        return {"type": "message", "role": "assistant", "content": "".join(words_said(parts))}
    content: list[Plain] = [
        {"type": "refusal", "refusal": text}
        if isinstance(part, turns.RefusalPart)
        else {"type": "output_text", "text": text, "annotations": []}
        for part in parts
        for text in words_said((part,))
    ]
    return {"type": "message", "id": f"msg_{number}", "status": "completed", "role": "assistant", "content": content}


def _thought(turn: turns.Thought, number: int) -> list[Plain]:
    if turn.sealed is None and not turn.text and not turn.summary:
        return []
    thought: Plain = {"type": "reasoning", "summary": [{"type": "summary_text", "text": text} for text in turn.summary]}
    if turn.text:
        thought["content"] = [{"type": "reasoning_text", "text": turn.text}]
    if turn.sealed is not None:
        return [thought | {"encrypted_content": turn.sealed}]
    # Servers that can't unseal anything insist on an id; it names nothing.
    return [thought | {"id": f"rs_{number}"}]


def _call(turn: turns.ToolCall, manners: Manners) -> Plain:
    name = turn.name if manners.namespaces else flat_name(turn.name, turn.namespace)
    call: Plain = {"call_id": turn.call_id, "name": name}
    if turn.namespace and manners.namespaces:
        call["namespace"] = turn.namespace
    if turn.custom:
        return {"type": "custom_tool_call", **call, "input": turn.arguments}
    return {"type": "function_call", **call, "arguments": turn.arguments or "{}"}


def _content(parts: Sequence[turns.Part]) -> str | list[Plain]:
    """Parts as they are; a lone text as a string, which is all that some servers take."""
    if len(parts) == 1 and isinstance(parts[0], turns.TextPart):
        return parts[0].text
    return [_PARTS[type(part)](part) for part in parts]


def _image(part: turns.ImagePart) -> Plain:
    if not part.url:
        raise _cant_carry("image", "image_url")
    return {"type": "input_image", "image_url": part.url, "detail": part.detail}


def _file(part: turns.FilePart) -> Plain:
    if part.file_id:
        raise _cant_carry("file", "file_data")
    return {"type": "input_file"} | _given({"file_url": part.url, "file_data": part.inline, "filename": part.filename})


def _cant_carry(what: str, field: str) -> ClientMistake:
    # An uploaded file's id means nothing upstream, or someone else's file.
    return ClientMistake(
        f"This model can't be given the {what} by its id: give it as `{field}`.", code="unsupported_parameter", param="input"
    )


_PARTS: dict[type, Callable[[Any], Plain]] = {
    turns.TextPart: lambda part: {"type": "input_text", "text": part.text},
    turns.RefusalPart: lambda part: {"type": "input_text", "text": part.text},
    turns.ImagePart: _image,
    turns.FilePart: _file,
    turns.AudioPart: lambda part: {"type": "input_audio", "input_audio": {"data": part.inline, "format": part.format}},
    turns.SpeechPart: speech,
}
