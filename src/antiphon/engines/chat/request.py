"""
A `Respond` as the body of a chat completion.

The differences between servers are columns of `chat_quirks`; what none of them can take is refused by name.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from antiphon.audio import wav_file
from antiphon.engine_api import commands, history
from antiphon.engine_api.options import CustomTool, FunctionTool, JsonObject, JsonSchema, Sampling, Tool, ToolChoice
from antiphon.engines.chat.quirks import Quirks
from antiphon.errors import ClientError

JsonDict = dict[str, Any]

BLOCKED_KEYS = frozenset(
    (
        # A key of the Responses API's own clients.
        "client_metadata",
        # What a chat completion has for things that are asked in the Responses API's way, and what would change the answer's shape.
        "messages",
        "model",
        "stream",
        "stream_options",
        "n",
        "best_of",
        "tools",
        "tool_choice",
        "functions",
        "function_call",
        "response_format",
        "logprobs",
        "modalities",
        "audio",
        "echo",
        "return_tokens_as_token_ids",
        "store",
        "metadata",
        # Where some gateways let a request say whom they ask, and with what key: that is for this server's operator to say.
        "api_base",
        "base_url",
        "api_key",
        "api_version",
        "api_type",
        "organization",
        "headers",
        "extra_headers",
        "extra_body",
        "extra_query",
        "custom_llm_provider",
        "model_list",
        "fallbacks",
        "context_window_fallbacks",
        "user_config",
        "timeout",
        "mock_response",
        "proxy",
        "guardrails",
        "cache",
        "no-log",
        "litellm_params",
        "litellm_metadata",
        "kv_transfer_params",
        "ec_transfer_params",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        # Which other request's work is used again: that would tell one tenant of another.
        "request_id",
        "rid",
        "id_slot",
        "session_params",
        # Code, and files of the server.
        "chat_template",
        "logits_processors",
        "custom_logit_processor",
        "lora_path",
    )
)
"""Keys beyond the protocol that stay here; all others go upstream as they came."""

BLOCKED_TEMPLATE_ARGUMENTS = frozenset(("chat_template", "tokenize"))
"""What `chat_template_kwargs` may not have: a template is code, wherever it stands."""


def passthrough_fields(extra: Mapping[str, Any]) -> JsonDict:
    """What a request has beyond the protocol, without what stays here."""
    body: JsonDict = {key: value for key, value in extra.items() if key not in BLOCKED_KEYS}
    if isinstance(arguments := body.get("chat_template_kwargs"), dict):
        body["chat_template_kwargs"] = {key: value for key, value in arguments.items() if key not in BLOCKED_TEMPLATE_ARGUMENTS}
    return body


def encode_request(request: commands.Respond, model: str, quirks: Quirks) -> bytes:
    """
    JSON of the request.

    Raises:
        ClientError: the history has something that no chat completion can carry.
    """
    body = passthrough_fields(request.sampling.extra)
    body |= {"model": model, "messages": chat_messages(request, quirks), "stream": not request.whole}
    if not request.whole:
        body["stream_options"] = {"include_usage": True}
    for part in (
        _sampling(request.sampling, quirks),
        _tools(request, quirks),
        _format(request.format, quirks),
        _effort(request, body, quirks),
    ):
        body |= part
    return msgspec.json.encode(body)


# How the answer is made


def _sampling(sampling: Sampling, quirks: Quirks) -> JsonDict:
    asked: JsonDict = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        quirks.max_tokens_field: sampling.max_tokens,
    }
    if sampling.top_logprobs is not None:
        if not quirks.logprobs:
            raise ClientError("This model reports no log probabilities.", code="unsupported_parameter", param="top_logprobs")
        asked |= {"logprobs": True, "top_logprobs": sampling.top_logprobs}
    return {name: value for name, value in asked.items() if value is not None}


def _format(response_format: JsonObject | JsonSchema | None, quirks: Quirks) -> JsonDict:
    if response_format is None:
        return {}
    if isinstance(response_format, JsonObject):
        if quirks.json_object:
            return {"response_format": {"type": "json_object"}}
        response_format = JsonSchema("object", {"type": "object"})
    described: JsonDict = {"name": response_format.name, "schema": response_format.schema, "strict": response_format.strict}
    if response_format.description:
        described["description"] = response_format.description
    return {"response_format": {"type": "json_schema", "json_schema": described}}


def _effort(request: commands.Respond, body: JsonDict, quirks: Quirks) -> JsonDict:
    asked: JsonDict = {}
    if request.reasoning_effort is not None:
        asked["reasoning_effort"] = request.reasoning_effort
        if quirks.thinking_switch:
            given = body.get("chat_template_kwargs")
            asked["chat_template_kwargs"] = {"enable_thinking": request.reasoning_effort != "none"} | (
                given if isinstance(given, dict) else {}
            )
    if request.verbosity is not None:
        asked["verbosity"] = request.verbosity
    return asked


# Tools


def _tools(request: commands.Respond, quirks: Quirks) -> JsonDict:
    choice = request.tool_choice
    offered = request.tools
    if (only := choice.name_set) is not None and quirks.tool_choice != "openai":
        # What may not be called is not offered: every server understands that.
        offered = tuple(tool for tool in offered if tool.key in only)
    if not offered or (choice.mode == "none" and quirks.tool_choice == "none"):
        return {}
    asked: JsonDict = {"tools": [_tool(tool) for tool in describe_namespaces(offered, request.namespaces)]}
    if quirks.tool_choice != "none" and (choice.mode != "auto" or choice.names is not None):
        asked["tool_choice"] = _tool_choice(choice, request.tools, quirks)
    if quirks.parallel_tool_calls is not None and request.parallel_tool_calls != quirks.parallel_tool_calls:
        asked["parallel_tool_calls"] = request.parallel_tool_calls
    return asked


def _tool_choice(choice: ToolChoice, tools: Sequence[Tool], quirks: Quirks) -> Any:
    if (only := choice.name_set) is None or quirks.tool_choice == "word":
        return choice.mode
    allowed = [_function_reference(tool) for tool in tools if tool.key in only]
    if len(allowed) == 1 and choice.mode == "required":
        return allowed[0]
    if quirks.tool_choice != "openai":
        return choice.mode
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": allowed}}


def _function_reference(tool: Tool) -> JsonDict:
    return {"type": "function", "function": {"name": flat_name(tool.name, tool.namespace)}}


def _tool(tool: Tool) -> JsonDict:
    function: JsonDict = {"name": flat_name(tool.name, tool.namespace)}
    match tool:
        case FunctionTool():
            function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
            if tool.description:
                function["description"] = tool.description
            if tool.strict is not None:
                function["strict"] = tool.strict
        case CustomTool():
            function |= {"description": _custom_tool_description(tool), "parameters": CUSTOM_TOOL_PARAMETERS}
    return {"type": "function", "function": function}


def describe_namespaces(tools: Iterable[Tool], namespaces: Mapping[str, str]) -> Iterator[Tool]:
    """The tools for a server without namespaces: the first of each says what is said of all."""
    unsaid = dict(namespaces)
    for tool in tools:
        if about := unsaid.pop(tool.namespace or "", ""):
            said = f"(All tools named {tool.namespace}__…: {about})"
            tool = msgspec.structs.replace(tool, description=f"{tool.description}\n\n{said}" if tool.description else said)
        yield tool


def flat_name(name: str, namespace: str | None) -> str:
    """A tool's name where there are no namespaces."""
    return f"{namespace}__{name}" if namespace else name


CUSTOM_TOOL_PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "All of the tool's input, as free text."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""A custom tool's, which takes text: chat completions know only functions, so the text is the one argument of one."""


def _custom_tool_description(tool: CustomTool) -> str:
    said = [tool.description or f"Takes free text as `input`: {tool.name}."]
    if tool.grammar is not None:
        said.append(f"The input must match this {tool.syntax} grammar:\n{tool.grammar}")
    return "\n\n".join(said)


# What was said


def chat_messages(request: commands.Respond, quirks: Quirks) -> list[JsonDict]:
    """
    The conversation, instructions first.

    Raises:
        ClientError: a part can't be carried.
    """
    told: list[JsonDict] = []
    if request.instructions is not None:
        told.append({"role": "developer" if quirks.developer_role else "system", "content": request.instructions})
    for turn in request.history:
        _ITEM_ENCODERS[type(turn)](turn, told, quirks)
    told = list(_defer_media(told))
    if not quirks.system_anywhere:
        told = _merge_system_messages(told)
    for message in told:
        if message["role"] == "assistant" and "tool_calls" not in message and message.get("content") is None:
            message["content"] = ""
    return told


def _merge_system_messages(messages: list[JsonDict]) -> list[JsonDict]:
    """All instructions as one message at the head. Those from the middle keep their weight there, which they would not as a user's."""
    system = [message for message in messages if message["role"] == "system"]
    if not system:
        return messages
    texts = [text for message in system for text in _texts(message["content"])]
    return [{"role": "system", "content": "\n\n".join(texts)}, *(message for message in messages if message["role"] != "system")]


def _texts(content: str | list[JsonDict]) -> list[str]:
    return [content] if isinstance(content, str) else [str(part["text"]) for part in content if part["type"] == "text"]


def _add_message(item: history.Message, messages: list[JsonDict], quirks: Quirks) -> None:
    if item.role == "assistant":
        message = _open_assistant_message(messages, for_call=False)
        message["content"] = "".join(assistant_texts(item.parts))
        return
    role = "system" if item.role == "developer" and not quirks.developer_role else item.role
    messages.append({"role": role, "content": _content(item.parts, quirks)})


def assistant_texts(parts: Iterable[history.HistoryPart]) -> Iterator[str]:
    """The words of the assistant's parts: no server takes its sound, so of that what was said."""
    for part in parts:
        match part:
            case history.TextPart(text) | history.RefusalPart(text) | history.SpeechPart(transcript=str(text)):
                yield text
            case _:
                pass


def _add_reasoning(item: history.ReasoningItem, messages: list[JsonDict], quirks: Quirks) -> None:
    if quirks.reasoning_field is not None and item.text:
        message = _open_assistant_message(messages, for_call=False)
        message[quirks.reasoning_field] = message.get(quirks.reasoning_field, "") + item.text


def _add_call(item: history.ToolCall, messages: list[JsonDict], _quirks: Quirks) -> None:
    # An empty text is no JSON, and some servers parse it.
    arguments = msgspec.json.encode({"input": item.arguments}).decode() if item.custom else item.arguments or "{}"
    call = {"id": item.call_id, "type": "function", "function": {"name": flat_name(item.name, item.namespace), "arguments": arguments}}
    _open_assistant_message(messages, for_call=True).setdefault("tool_calls", []).append(call)


def _add_result(item: history.ToolResult, messages: list[JsonDict], quirks: Quirks) -> None:
    content = _content(item.parts, quirks)
    text = content if isinstance(content, str) else "\n".join(_texts(content)) or "See what follows."
    messages.append({"role": "tool", "tool_call_id": item.call_id, "content": text})
    if not isinstance(content, str):
        messages.append({"role": _DEFERRED_ROLE, "content": [part for part in content if part["type"] != "text"]})


_DEFERRED_ROLE = "later"
"""A tool's message takes text alone. Its pictures and documents follow as the user's, after the results that belong together."""


def _defer_media(messages: Iterable[JsonDict]) -> Iterator[JsonDict]:
    waiting: list[JsonDict] = []
    for message in messages:
        if message["role"] == _DEFERRED_ROLE:
            waiting.append(message | {"role": "user"})
            continue
        if message["role"] != "tool":
            yield from waiting
            waiting.clear()
        yield message
    yield from waiting


def _open_assistant_message(messages: list[JsonDict], *, for_call: bool) -> JsonDict:
    """The assistant's message to add to: its last one while that has room, since one answer's items are one message."""
    last = messages[-1] if messages else None
    if last is not None and last["role"] == "assistant" and (for_call or (last["content"] is None and "tool_calls" not in last)):
        return last
    message: JsonDict = {"role": "assistant", "content": None}
    messages.append(message)
    return message


_ITEM_ENCODERS: dict[type, Callable[[Any, list[JsonDict], Quirks], None]] = {
    history.Message: _add_message,
    history.ReasoningItem: _add_reasoning,
    history.ToolCall: _add_call,
    history.ToolResult: _add_result,
}


def _content(parts: Sequence[history.HistoryPart], quirks: Quirks) -> str | list[JsonDict]:
    """Parts as they are; text alone as one string, which is all that some templates take."""
    if all(isinstance(part, history.TextPart | history.RefusalPart) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, history.TextPart | history.RefusalPart))
    return [_PART_ENCODERS[type(part)](part, quirks) for part in parts]


def _image_part(part: history.ImagePart, quirks: Quirks) -> JsonDict:
    url = part.url or ""
    if not url.lower().startswith(("https://", "http://", "data:")):
        raise _unsupported_part("image", "image_url", ("https://", "http://", "data:"))
    detail = part.detail if part.detail in ("low", "high") else "auto"
    return {"type": "image_url", "image_url": {"url": url, "detail": detail}}


def _file_part(part: history.FilePart, quirks: Quirks) -> JsonDict:
    if part.inline is None or not quirks.files:
        raise _unsupported_part("file", "file_url` or `file_data", ("https://", "data:") if quirks.files else ())
    return {"type": "file", "file": {"filename": part.filename or "file", "file_data": part.inline}}


def input_audio(part: history.SpeechPart) -> JsonDict:
    """What was said aloud, as the recording that both of the APIs take; it tells more than its transcript does."""
    file = base64.b64encode(wav_file(part.pcm, part.rate_hz)).decode()
    return {"type": "input_audio", "input_audio": {"data": file, "format": "wav"}}


def _unsupported_part(what: str, field: str, schemes: Iterable[str]) -> ClientError:
    ways = " or ".join(f"'{scheme}'" for scheme in schemes)
    hint = f"give it as `{field}` that begins with {ways}" if ways else "the server that answers for it takes none"
    return ClientError(f"This model can't be given the {what}: {hint}.", code="unsupported_parameter", param="input")


_PART_ENCODERS: dict[type, Callable[[Any, Quirks], JsonDict]] = {
    history.TextPart: lambda part, _quirks: {"type": "text", "text": part.text},
    history.RefusalPart: lambda part, _quirks: {"type": "text", "text": part.text},
    history.ImagePart: _image_part,
    history.FilePart: _file_part,
    history.AudioPart: lambda part, _quirks: {"type": "input_audio", "input_audio": {"data": part.inline, "format": part.format}},
    history.SpeechPart: lambda part, _quirks: input_audio(part),
}
