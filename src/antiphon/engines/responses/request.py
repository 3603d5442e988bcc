"""
A `Respond` as the body of `POST /responses`.

The upstream stores nothing: each request has the whole conversation, its items without ids, which the upstream would
look up.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

import msgspec
from msgspec import Struct

from antiphon.engine_api import commands, history as engine_history
from antiphon.engine_api.options import Compaction, CustomTool, FunctionTool, JsonObject, JsonSchema, Tool
from antiphon.engines.chat import request as chat_request
from antiphon.engines.chat.request import assistant_texts, describe_namespaces, flat_name, input_audio, passthrough_fields, without_none
from antiphon.errors import ClientError
from antiphon.wire.codec.types import JsonDict

BLOCKED_KEYS = chat_request.BLOCKED_KEYS | {
    # vLLM: its raw messages in the response, and as input past the conversation.
    "enable_response_messages",
    "previous_input_messages",
    # Of the API over WebSocket.
    "generate",
    "stream_id",
}
"""Fields outside the API that are not sent upstream; all others are, unchanged."""


class ResponsesQuirks(Struct, frozen=True, kw_only=True):
    """
    What the upstream accepts.

    Attributes:
        namespaces: it knows tools of type `namespace`; else their tools are sent as functions with longer names.
        obfuscates: it pads its events against traffic analysis unless `include_obfuscation` is false.
    """

    namespaces: bool = False
    obfuscates: bool = False


def encode_request(request: commands.Respond, model: str, quirks: ResponsesQuirks) -> bytes:
    """The body as JSON; raises as `responses_body`."""
    return msgspec.json.encode(responses_body(request, model, quirks))


def responses_body(request: commands.Respond, model: str, quirks: ResponsesQuirks) -> JsonDict:
    """
    The body of the request.

    Raises:
        ClientError: the history has something that can't be sent.
    """
    body = passthrough_fields(request.sampling.extra, BLOCKED_KEYS)
    body |= {"model": model, "input": input_items(request.history, quirks), "stream": True, "store": False}
    if quirks.obfuscates:
        body["stream_options"] = {"include_obfuscation": False}
    for part in (_sampling(request), _tools(request, quirks), _text(request), _reasoning(request), _include(request)):
        body |= part
    if request.compaction is not None:
        body |= _context_management(request.compaction)
        if request.compaction.is_requested:
            body["input"].append({"type": "compaction_trigger"})
    return body


def _context_management(compaction: Compaction) -> JsonDict:
    if compaction.is_requested and compaction.threshold is None:
        return {}
    return {"context_management": [{"type": "compaction"} | without_none({"compact_threshold": compaction.threshold})]}


# Sampling and format


def _sampling(request: commands.Respond) -> JsonDict:
    sampling = request.sampling
    return without_none(
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
    text = without_none({"format": _format(request.format), "verbosity": request.verbosity})
    return {"text": text} if text else {}


def _format(response_format: JsonObject | JsonSchema | None) -> JsonDict | None:
    match response_format:
        case None:
            return None
        case JsonObject():
            return {"type": "json_object"}
        case JsonSchema(name, schema, strict, description):
            return without_none({"type": "json_schema", "name": name, "schema": schema, "strict": strict, "description": description})


def _reasoning(request: commands.Respond) -> JsonDict:
    reasoning = without_none({"effort": request.reasoning_effort, "summary": request.reasoning_summary})
    return {"reasoning": reasoning} if reasoning else {}


def _include(request: commands.Respond) -> JsonDict:
    flags = {
        "reasoning.encrypted_content": request.encrypt_reasoning,
        "message.output_text.logprobs": request.sampling.top_logprobs is not None,
    }
    include = [name for name, is_set in flags.items() if is_set]
    return {"include": include} if include else {}


# Tools


def _tools(request: commands.Respond, quirks: ResponsesQuirks) -> JsonDict:
    # Tools that may not be called are left out: every server understands that, and few know `allowed_tools`.
    names = request.tool_choice.name_set
    tools = [tool for tool in request.tools if names is None or tool.key in names]
    hosted_specs = [tool.spec for tool in request.hosted_tools if names is None or tool.type in names]
    if not tools and not hosted_specs:
        return {}
    fields: JsonDict = {"tools": [*_tool_specs(tools, request.namespaces, quirks), *hosted_specs]}
    if request.tool_choice.mode != "auto":
        fields["tool_choice"] = request.tool_choice.mode
    if not request.parallel_tool_calls:
        fields["parallel_tool_calls"] = False
    return fields


def _tool_specs(tools: Sequence[Tool], namespaces: Mapping[str, str], quirks: ResponsesQuirks) -> list[JsonDict]:
    if not quirks.namespaces:
        return [_tool(tool, flat_name(tool.name, tool.namespace)) for tool in describe_namespaces(tools, namespaces)]
    specs: list[JsonDict] = []
    for namespace, group in groupby(sorted(tools, key=lambda tool: tool.namespace or ""), lambda tool: tool.namespace):
        members = [_tool(tool, tool.name) for tool in group]
        if namespace:
            members = [{"type": "namespace", "name": namespace, "description": namespaces.get(namespace, ""), "tools": members}]
        specs += members
    return specs


def _tool(tool: Tool, name: str) -> JsonDict:
    deferral: JsonDict = {"defer_loading": True} if tool.defer_loading else {}
    match tool:
        case FunctionTool():
            # Responses reference, `FunctionTool`: `parameters` and `strict` are required, though both may be null.
            function = {"type": "function", "name": name, "parameters": tool.parameters, "strict": tool.strict}
            return function | without_none({"description": tool.description}) | deferral
        case CustomTool(syntax=syntax, grammar=grammar):
            format = {"type": "grammar", "syntax": syntax, "definition": grammar} if grammar is not None else None
            return without_none({"type": "custom", "name": name, "description": tool.description, "format": format}) | deferral


# Items


def input_items(history: Sequence[engine_history.HistoryItem], quirks: ResponsesQuirks) -> list[JsonDict]:
    """
    The conversation as items.

    Raises:
        ClientError: a part can't be sent.
    """
    custom_call_ids = {item.call_id for item in history if isinstance(item, engine_history.ToolCall) and item.custom}
    return [encoded_item for index, item in enumerate(history) for encoded_item in _encode_item(item, index, custom_call_ids, quirks)]


def _encode_item(
    history_item: engine_history.HistoryItem, index: int, custom_call_ids: set[str], quirks: ResponsesQuirks
) -> list[JsonDict]:
    match history_item:
        case engine_history.Message(role="assistant", parts=parts, phase=phase):
            return [_assistant_message(parts, index) | without_none({"phase": phase})]
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
    """
    An assistant message: text in the simplest form, which all servers take; only with a refusal the full form, which
    that needs.
    """
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
    body: JsonDict = {"type": "reasoning", "summary": [{"type": "summary_text", "text": text} for text in item.summary]}
    if item.text:
        body["content"] = [{"type": "reasoning_text", "text": item.text}]
    if item.encrypted_content is not None:
        return [body | {"encrypted_content": item.encrypted_content}]
    # Servers without encrypted reasoning require an id; any will do.
    return [body | {"id": f"rs_{index}"}]


def _call_item(item: engine_history.ToolCall, quirks: ResponsesQuirks) -> JsonDict:
    name = item.name if quirks.namespaces else flat_name(item.name, item.namespace)
    call: JsonDict = {"call_id": item.call_id, "name": name}
    if item.namespace and quirks.namespaces:
        call["namespace"] = item.namespace
    if item.custom:
        return {"type": "custom_tool_call", **call, "input": item.arguments}
    return {"type": "function_call", **call, "arguments": item.arguments or "{}"}


def _content(parts: Sequence[engine_history.HistoryPart]) -> str | list[JsonDict]:
    """Parts as a list; a single text as a string, which is all that some servers take."""
    if len(parts) == 1 and isinstance(parts[0], engine_history.TextPart):
        return parts[0].text
    return [_content_part(part) for part in parts]


def _content_part(part: engine_history.HistoryPart) -> JsonDict:
    match part:
        case engine_history.TextPart(text) | engine_history.RefusalPart(text):
            return {"type": "input_text", "text": text}
        case engine_history.ImagePart():
            return _image_part(part)
        case engine_history.FilePart():
            return _file_part(part)
        case engine_history.AudioPart():
            return {"type": "input_audio", "input_audio": {"data": part.inline, "format": part.format}}
        case engine_history.SpeechPart():
            return input_audio(part)
        case engine_history.VideoPart():
            raise ClientError("This model can't be given the video: its server takes none.", code="unsupported_parameter", param="input")


def _image_part(part: engine_history.ImagePart) -> JsonDict:
    if not part.url:
        raise _unsupported_part("image", "image_url")
    return {"type": "input_image", "image_url": part.url, "detail": part.detail}


def _file_part(part: engine_history.FilePart) -> JsonDict:
    if part.file_id:
        raise _unsupported_part("file", "file_data")
    return {"type": "input_file"} | without_none({"file_url": part.url, "file_data": part.inline, "filename": part.filename})


def _unsupported_part(what: str, field: str) -> ClientError:
    # Upstream, the id of a file uploaded here means nothing, or another file.
    return ClientError(
        f"This model can't be given the {what} by its id: give it as `{field}`.", code="unsupported_parameter", param="input"
    )
