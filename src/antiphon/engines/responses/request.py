"""
A `Respond` as the body of a request for a response.

The upstream keeps nothing: the whole conversation goes with each request, its items without ids, since an id would be looked up there.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.engine_api import commands, history as engine_history
from antiphon.engine_api.options import CustomTool, FunctionTool, JsonObject, JsonSchema, Tool
from antiphon.engines.chat.request import assistant_texts, describe_namespaces, flat_name, input_audio, passthrough_fields
from antiphon.errors import ClientError

JsonDict = dict[str, Any]

BLOCKED_KEYS = frozenset(
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


class ResponsesQuirks(Struct, frozen=True, kw_only=True):
    """
    How the upstream wants to be asked.

    Attributes:
        namespaces: whether it knows tools of type `namespace`; else their tools are given as functions with longer names.
        pads: whether it would pad the sizes of its events unless it is asked not to.
    """

    namespaces: bool = False
    obfuscates: bool = False


def encode_request(request: commands.Respond, model: str, quirks: ResponsesQuirks) -> bytes:
    """
    JSON of the request.

    Raises:
        ClientError: the history has something that can't be carried.
    """
    body = {key: value for key, value in passthrough_fields(request.sampling.extra).items() if key not in BLOCKED_KEYS}
    body |= {"model": model, "input": input_items(request.history, quirks), "stream": True, "store": False}
    if quirks.obfuscates:
        body["stream_options"] = {"include_obfuscation": False}
    for part in (_sampling(request), _tools(request, quirks), _text(request), _reasoning(request), _include(request)):
        body |= part
    return msgspec.json.encode(body)


# How the answer is made


def _without_none(fields: JsonDict) -> JsonDict:
    return {name: value for name, value in fields.items() if value is not None}


def _sampling(request: commands.Respond) -> JsonDict:
    sampling = request.sampling
    return _without_none(
        {
            "instructions": request.instructions,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "max_output_tokens": sampling.max_tokens,
            "top_logprobs": sampling.top_logprobs,
            "truncation": "auto" if request.truncate else None,
        }
    )


def _text(request: commands.Respond) -> JsonDict:
    asked = _without_none({"format": _format(request.format), "verbosity": request.verbosity})
    return {"text": asked} if asked else {}


def _format(response_format: JsonObject | JsonSchema | None) -> JsonDict | None:
    match response_format:
        case None:
            return None
        case JsonObject():
            return {"type": "json_object"}
        case JsonSchema(name, schema, strict, description):
            return _without_none({"type": "json_schema", "name": name, "schema": schema, "strict": strict, "description": description})


def _reasoning(request: commands.Respond) -> JsonDict:
    asked = _without_none({"effort": request.reasoning_effort, "summary": request.reasoning_summary})
    return {"reasoning": asked} if asked else {}


def _include(request: commands.Respond) -> JsonDict:
    wanted = {
        "reasoning.encrypted_content": request.encrypt_reasoning,
        "message.output_text.logprobs": request.sampling.top_logprobs is not None,
    }
    include = [name for name, is_wanted in wanted.items() if is_wanted]
    return {"include": include} if include else {}


# Tools


def _tools(request: commands.Respond, quirks: ResponsesQuirks) -> JsonDict:
    # What may not be called is not offered: every server understands that, and few know `allowed_tools`.
    names = request.tool_choice.name_set
    offered = [tool for tool in request.tools if names is None or tool.key in names]
    hosted = [tool.spec for tool in request.hosted_tools if names is None or tool.type in names]
    if not offered and not hosted:
        return {}
    asked: JsonDict = {"tools": [*_tool_specs(offered, request.namespaces, quirks), *hosted]}
    if request.tool_choice.mode != "auto":
        asked["tool_choice"] = request.tool_choice.mode
    if not request.parallel_tool_calls:
        asked["parallel_tool_calls"] = False
    return asked


def _tool_specs(tools: Sequence[Tool], namespaces: Mapping[str, str], quirks: ResponsesQuirks) -> list[JsonDict]:
    if not quirks.namespaces:
        return [_tool(tool, flat_name(tool.name, tool.namespace)) for tool in describe_namespaces(tools, namespaces)]
    told: list[JsonDict] = []
    for namespace, group in groupby(sorted(tools, key=lambda tool: tool.namespace or ""), lambda tool: tool.namespace):
        described = [_tool(tool, tool.name) for tool in group]
        if namespace:
            described = [{"type": "namespace", "name": namespace, "description": namespaces.get(namespace, ""), "tools": described}]
        told += described
    return told


def _tool(tool: Tool, name: str) -> JsonDict:
    match tool:
        case FunctionTool():
            # `parameters` and `strict` are required, though both may be null.
            function = {"type": "function", "name": name, "parameters": tool.parameters, "strict": tool.strict}
            return function | _without_none({"description": tool.description})
        case CustomTool(syntax=syntax, grammar=grammar):
            format = {"type": "grammar", "syntax": syntax, "definition": grammar} if grammar is not None else None
            return _without_none({"type": "custom", "name": name, "description": tool.description, "format": format})


# What was said


def input_items(history: Sequence[engine_history.HistoryItem], quirks: ResponsesQuirks) -> list[JsonDict]:
    """
    The conversation as items.

    Raises:
        ClientError: a part can't be carried.
    """
    custom = {turn.call_id for turn in history if isinstance(turn, engine_history.ToolCall) and turn.custom}
    return [item for number, turn in enumerate(history) for item in _encode_item(turn, number, custom, quirks)]


def _encode_item(
    history_item: engine_history.HistoryItem, index: int, custom_call_ids: set[str], quirks: ResponsesQuirks
) -> list[JsonDict]:
    match history_item:
        case engine_history.Message(role="assistant", parts=parts, phase=phase):
            return [_assistant_message(parts, index) | _without_none({"phase": phase})]
        case engine_history.Message(role, parts):
            return [{"type": "message", "role": role, "content": _content(parts)}]
        case engine_history.ReasoningItem():
            return _reasoning_item(history_item, index)
        case engine_history.ToolCall():
            return [_call_item(history_item, quirks)]
        case engine_history.ToolResult(call_id, parts):
            kind = "custom_tool_call_output" if call_id in custom_call_ids else "function_call_output"
            return [{"type": kind, "call_id": call_id, "output": _content(parts)}]
        case engine_history.HostedToolItem(item):
            return [item]


def _assistant_message(parts: Sequence[engine_history.HistoryPart], index: int) -> JsonDict:
    """What the assistant said: a text as the simplest form that all servers take, and a refusal as the only one that there is."""
    if not any(isinstance(part, engine_history.RefusalPart) for part in parts):
        return {"type": "message", "role": "assistant", "content": "".join(assistant_texts(parts))}
    content: list[JsonDict] = [
        {"type": "refusal", "refusal": text}
        if isinstance(part, engine_history.RefusalPart)
        else {"type": "output_text", "text": text, "annotations": []}
        for part in parts
        for text in assistant_texts((part,))
    ]
    return {"type": "message", "id": f"msg_{index}", "status": "completed", "role": "assistant", "content": content}


def _reasoning_item(item: engine_history.ReasoningItem, index: int) -> list[JsonDict]:
    if item.encrypted_content is None and not item.text and not item.summary:
        return []
    thought: JsonDict = {"type": "reasoning", "summary": [{"type": "summary_text", "text": text} for text in item.summary]}
    if item.text:
        thought["content"] = [{"type": "reasoning_text", "text": item.text}]
    if item.encrypted_content is not None:
        return [thought | {"encrypted_content": item.encrypted_content}]
    # Servers that can't unseal anything insist on an id; it names nothing.
    return [thought | {"id": f"rs_{index}"}]


def _call_item(item: engine_history.ToolCall, quirks: ResponsesQuirks) -> JsonDict:
    name = item.name if quirks.namespaces else flat_name(item.name, item.namespace)
    call: JsonDict = {"call_id": item.call_id, "name": name}
    if item.namespace and quirks.namespaces:
        call["namespace"] = item.namespace
    if item.custom:
        return {"type": "custom_tool_call", **call, "input": item.arguments}
    return {"type": "function_call", **call, "arguments": item.arguments or "{}"}


def _content(parts: Sequence[engine_history.HistoryPart]) -> str | list[JsonDict]:
    """Parts as they are; a lone text as a string, which is all that some servers take."""
    if len(parts) == 1 and isinstance(parts[0], engine_history.TextPart):
        return parts[0].text
    return [_PART_ENCODERS[type(part)](part) for part in parts]


def _image_part(part: engine_history.ImagePart) -> JsonDict:
    if not part.url:
        raise _unsupported_part("image", "image_url")
    return {"type": "input_image", "image_url": part.url, "detail": part.detail}


def _file_part(part: engine_history.FilePart) -> JsonDict:
    if part.file_id:
        raise _unsupported_part("file", "file_data")
    return {"type": "input_file"} | _without_none({"file_url": part.url, "file_data": part.inline, "filename": part.filename})


def _unsupported_part(what: str, field: str) -> ClientError:
    # An uploaded file's id means nothing upstream, or someone else's file.
    return ClientError(
        f"This model can't be given the {what} by its id: give it as `{field}`.", code="unsupported_parameter", param="input"
    )


_PART_ENCODERS: dict[type, Callable[[Any], JsonDict]] = {
    engine_history.TextPart: lambda part: {"type": "input_text", "text": part.text},
    engine_history.RefusalPart: lambda part: {"type": "input_text", "text": part.text},
    engine_history.ImagePart: _image_part,
    engine_history.FilePart: _file_part,
    engine_history.AudioPart: lambda part: {"type": "input_audio", "input_audio": {"data": part.inline, "format": part.format}},
    engine_history.SpeechPart: input_audio,
}
