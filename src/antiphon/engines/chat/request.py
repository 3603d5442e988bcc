"""
A `Respond` as the body of a chat completion request.

The differences between servers are columns of `quirks.QUIRKS`; what no server can take is refused by name.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from antiphon.audio import wav_file
from antiphon.engine_api import commands, history
from antiphon.engine_api.options import CustomTool, FunctionTool, JsonObject, JsonSchema, Sampling, Tool, ToolChoice
from antiphon.engines.chat.quirks import Quirks
from antiphon.errors import ClientError
from antiphon.wire.codec.media_urls import MEDIA_URL_BEGINNINGS, is_media_url
from antiphon.wire.codec.types import JsonDict

OWN_KEYS = frozenset(
    (
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
    )
)
"""What a translated request has from other fields, and what would change the shape of its response."""

BLOCKED_KEYS = OWN_KEYS | frozenset(
    (
        # Sent by clients of the Responses API; chat completions don't have it.
        "client_metadata",
        # Nothing is stored with the operator's account at the upstream.
        "store",
        "metadata",
        # With these, some gateways let a request choose the server and the key: only this server's operator may.
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
        # Which request's cached work is reused: that would leak one tenant's requests to another.
        "request_id",
        "rid",
        "id_slot",
        "session_params",
        # Code, and files on the server.
        "chat_template",
        "logits_processors",
        "custom_logit_processor",
        "lora_path",
    )
)
"""Fields outside the API that are not sent upstream; all others are, unchanged."""

BLOCKED_TEMPLATE_ARGUMENTS = frozenset(("chat_template", "tokenize"))
"""Keys that `chat_template_kwargs` may not have: a template is code, wherever it stands."""


def without_none(fields: Mapping[str, Any]) -> JsonDict:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def passthrough_fields(extra: Mapping[str, Any], blocked_keys: frozenset[str] = BLOCKED_KEYS) -> JsonDict:
    """A request's fields outside the API that may be sent upstream."""
    if not extra:
        return {}
    body: JsonDict = {key: value for key, value in extra.items() if key not in blocked_keys}
    if isinstance(arguments := body.get("chat_template_kwargs"), dict):
        body["chat_template_kwargs"] = {key: value for key, value in arguments.items() if key not in BLOCKED_TEMPLATE_ARGUMENTS}
    return body


def encode_request(request: commands.Respond, model: str, quirks: Quirks) -> bytes:
    """The body as JSON; raises as `chat_body`."""
    return msgspec.json.encode(chat_body(request, model, quirks))


def chat_body(request: commands.Respond, model: str, quirks: Quirks) -> JsonDict:
    """
    The body of the request.

    Raises:
        ClientError: the history has something that this server can't be sent.
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
    return body


# Sampling and format


def _sampling(sampling: Sampling, quirks: Quirks) -> JsonDict:
    fields: JsonDict = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        quirks.max_tokens_field: sampling.max_tokens,
    }
    if sampling.top_logprobs is not None:
        if not quirks.logprobs:
            raise ClientError("This model reports no log probabilities.", code="unsupported_parameter", param="top_logprobs")
        fields |= {"logprobs": True, "top_logprobs": sampling.top_logprobs}
    return without_none(fields)


def _format(response_format: JsonObject | JsonSchema | None, quirks: Quirks) -> JsonDict:
    if response_format is None:
        return {}
    if isinstance(response_format, JsonObject):
        if quirks.json_object:
            return {"response_format": {"type": "json_object"}}
        response_format = JsonSchema("object", {"type": "object"})
    json_schema: JsonDict = {"name": response_format.name, "schema": response_format.schema, "strict": response_format.strict}
    if response_format.description:
        json_schema["description"] = response_format.description
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}


def _effort(request: commands.Respond, body: JsonDict, quirks: Quirks) -> JsonDict:
    if request.reasoning_effort is None and request.verbosity is None:
        return {}
    fields = without_none({"reasoning_effort": request.reasoning_effort, "verbosity": request.verbosity})
    if request.reasoning_effort is not None and quirks.thinking_switch:
        own = body.get("chat_template_kwargs")
        switch = {"enable_thinking": request.reasoning_effort != "none"}
        fields["chat_template_kwargs"] = switch | (own if isinstance(own, dict) else {})
    return fields


# Tools


def _tools(request: commands.Respond, quirks: Quirks) -> JsonDict:
    choice = request.tool_choice
    tools = request.tools
    if (only := choice.name_set) is not None and quirks.tool_choice != "openai":
        # Tools that may not be called are left out: every server understands that.
        tools = tuple(tool for tool in tools if tool.key in only)
    if not tools or (choice.mode == "none" and quirks.tool_choice == "none"):
        return {}
    fields: JsonDict = {"tools": [_tool(tool) for tool in describe_namespaces(tools, request.namespaces)]}
    if quirks.tool_choice != "none" and (choice.mode != "auto" or choice.names is not None):
        fields["tool_choice"] = _tool_choice(choice, request.tools, quirks)
    if quirks.parallel_tool_calls is not None and request.parallel_tool_calls != quirks.parallel_tool_calls:
        fields["parallel_tool_calls"] = request.parallel_tool_calls
    return fields


def _tool_choice(choice: ToolChoice, tools: Sequence[Tool], quirks: Quirks) -> str | JsonDict:
    if (only := choice.name_set) is None or quirks.tool_choice == "word":
        return choice.mode
    references = [_function_reference(tool) for tool in tools if tool.key in only]
    if len(references) == 1 and choice.mode == "required":
        return references[0]
    if quirks.tool_choice != "openai":
        return choice.mode
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": references}}


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
    """The tools for a server without namespaces: the first of each namespace has its description too."""
    remaining = dict(namespaces)
    for tool in tools:
        if about := remaining.pop(tool.namespace or "", ""):
            note = f"(All tools named {tool.namespace}__…: {about})"
            tool = msgspec.structs.replace(tool, description=f"{tool.description}\n\n{note}" if tool.description else note)
        yield tool


def flat_name(name: str, namespace: str | None) -> str:
    """A tool's name for a server without namespaces."""
    return f"{namespace}__{name}" if namespace else name


CUSTOM_TOOL_PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "All of the tool's input, as free text."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""
Parameters of a custom tool, which takes text: chat completions have only functions, so the text is the one argument of
one.
"""


def _custom_tool_description(tool: CustomTool) -> str:
    texts = [tool.description or f"Takes free text as `input`: {tool.name}."]
    if tool.grammar is not None:
        texts.append(f"The input must match this {tool.syntax} grammar:\n{tool.grammar}")
    return "\n\n".join(texts)


# Messages


def chat_messages(request: commands.Respond, quirks: Quirks) -> list[JsonDict]:
    """
    The conversation, instructions first.

    Raises:
        ClientError: this server can't be sent a part.
    """
    messages: list[JsonDict] = []
    if request.instructions is not None:
        messages.append({"role": "developer" if quirks.developer_role else "system", "content": request.instructions})
    for item in request.history:
        _add_item(item, messages, quirks)
    roles = {message["role"] for message in messages}
    if _DEFERRED_ROLE in roles:
        messages = list(_defer_media(messages))
    if "system" in roles and not quirks.system_anywhere:
        messages = _merge_system_messages(messages)
    if "assistant" in roles:
        for message in messages:
            # Chat reference: an assistant message without `tool_calls` needs `content`.
            if message["role"] == "assistant" and "tool_calls" not in message and message.get("content") is None:
                message["content"] = ""
    return messages


def _add_item(item: history.HistoryItem, messages: list[JsonDict], quirks: Quirks) -> None:
    match item:
        case history.Message():
            _add_message(item, messages, quirks)
        case history.ReasoningItem():
            _add_reasoning(item, messages, quirks)
        case history.ToolCall():
            _add_call(item, messages)
        case history.ToolResult():
            _add_result(item, messages, quirks)
        case history.HostedToolItem():
            raise ClientError(
                f"This model can't be given an item of type '{item.item.get('type')}'.", code="unsupported_parameter", param="input"
            )


def _merge_system_messages(messages: list[JsonDict]) -> list[JsonDict]:
    """All instructions in one message at the start. As user messages in the middle they would have less weight."""
    system = [message for message in messages if message["role"] == "system"]
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
    content = _content(item.parts, quirks)
    if item.role == "user" or isinstance(content, str):
        messages.append({"role": role, "content": content})
        return
    # Chat reference: messages of the system and the developer have only text. Their media follow as the user's.
    if texts := _texts(content):
        messages.append({"role": role, "content": "".join(texts)})
    messages.append({"role": "user", "content": [part for part in content if part["type"] != "text"]})


def assistant_texts(parts: Iterable[history.HistoryPart]) -> Iterator[str]:
    """The texts of an assistant message. No server takes its audio back, so that goes as its transcript."""
    for part in parts:
        match part:
            case history.TextPart(text) | history.RefusalPart(text) | history.SpeechPart(transcript=str(text)):
                yield text
            case _:
                pass


def _add_reasoning(item: history.ReasoningItem, messages: list[JsonDict], quirks: Quirks) -> None:
    # Where only a summary is known, it stands for the reasoning: it may have been sent under that name.
    text = item.text or "\n\n".join(item.summary)
    if quirks.reasoning_field is not None and text:
        message = _open_assistant_message(messages, for_call=False)
        message[quirks.reasoning_field] = message.get(quirks.reasoning_field, "") + text


def _add_call(item: history.ToolCall, messages: list[JsonDict]) -> None:
    # Some servers parse the arguments, and an empty string is not JSON.
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
"""
A tool message takes only text. Its images and documents follow in a user message, after all results of the same calls.
"""


def _defer_media(messages: Iterable[JsonDict]) -> Iterator[JsonDict]:
    pending: list[JsonDict] = []
    for message in messages:
        if message["role"] == _DEFERRED_ROLE:
            pending.append(message | {"role": "user"})
            continue
        if message["role"] != "tool":
            yield from pending
            pending.clear()
        yield message
    yield from pending


def _open_assistant_message(messages: list[JsonDict], *, for_call: bool) -> JsonDict:
    """
    The assistant message to add to: the last one while it has room, since the items of one response are one message.
    """
    last = messages[-1] if messages else None
    if last is not None and last["role"] == "assistant" and (for_call or (last["content"] is None and "tool_calls" not in last)):
        return last
    message: JsonDict = {"role": "assistant", "content": None}
    messages.append(message)
    return message


def _content(parts: Sequence[history.HistoryPart], quirks: Quirks) -> str | list[JsonDict]:
    """Parts as a list; text alone as one string, which is all that some templates take."""
    if len(parts) == 1 and type(parts[0]) is history.TextPart:  # as in most messages
        return parts[0].text
    if all(isinstance(part, history.TextPart | history.RefusalPart) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, history.TextPart | history.RefusalPart))
    return [_content_part(part, quirks) for part in parts]


def _content_part(part: history.HistoryPart, quirks: Quirks) -> JsonDict:
    match part:
        case history.TextPart(text) | history.RefusalPart(text):
            return {"type": "text", "text": text}
        case history.ImagePart():
            return _image_part(part)
        case history.FilePart():
            return _file_part(part, quirks)
        case history.AudioPart():
            return {"type": "input_audio", "input_audio": {"data": part.inline, "format": part.format}}
        case history.SpeechPart():
            return input_audio(part)
        case history.VideoPart():
            raise _unsupported_part("video", "", ())


def _image_part(part: history.ImagePart) -> JsonDict:
    url = part.url or ""
    if not is_media_url(url):
        raise _unsupported_part("image", "image_url", MEDIA_URL_BEGINNINGS)
    detail = part.detail if part.detail in ("low", "high") else "auto"
    return {"type": "image_url", "image_url": {"url": url, "detail": detail}}


def _file_part(part: history.FilePart, quirks: Quirks) -> JsonDict:
    if part.inline is None or not quirks.files:
        raise _unsupported_part("file", "file_url` or `file_data", ("https://", "data:") if quirks.files else ())
    return {"type": "file", "file": {"filename": part.filename or "file", "file_data": part.inline}}


def input_audio(part: history.SpeechPart) -> JsonDict:
    """Speech as the WAV recording that both APIs take; a model hears more in it than its transcript says."""
    file = base64.b64encode(wav_file(part.pcm, part.rate_hz)).decode()
    return {"type": "input_audio", "input_audio": {"data": file, "format": "wav"}}


def _unsupported_part(what: str, field: str, schemes: Iterable[str]) -> ClientError:
    prefixes = " or ".join(f"'{scheme}'" for scheme in schemes)
    hint = f"give it as `{field}` that begins with {prefixes}" if prefixes else "its server takes none"
    return ClientError(f"This model can't be given the {what}: {hint}.", code="unsupported_parameter", param="input")
