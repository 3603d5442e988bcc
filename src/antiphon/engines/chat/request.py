"""
A `Respond` as the body of a chat completion.

The differences between servers are columns of `chat_quirks`; what none of them can take is refused by name.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from antiphon.audio import wav
from antiphon.engine_api import commands, history as turns
from antiphon.engine_api.options import CustomTool, FunctionTool, JsonObject, JsonSchema, Sampling, Tool, ToolChoice
from antiphon.engines.chat.quirks import Quirks
from antiphon.errors import ClientMistake

Plain = dict[str, Any]

NOT_PASSED = frozenset(
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

NO_TEMPLATE_ARGUMENTS = frozenset(("chat_template", "tokenize"))
"""What `chat_template_kwargs` may not have: a template is code, wherever it stands."""


def passed(extra: Mapping[str, Any]) -> Plain:
    """What a request has beyond the protocol, without what stays here."""
    body: Plain = {key: value for key, value in extra.items() if key not in NOT_PASSED}
    if isinstance(arguments := body.get("chat_template_kwargs"), dict):
        body["chat_template_kwargs"] = {key: value for key, value in arguments.items() if key not in NO_TEMPLATE_ARGUMENTS}
    return body


def body_of(ask: commands.Respond, model: str, quirks: Quirks) -> bytes:
    """
    JSON of the request.

    Raises:
        ClientMistake: the history has something that no chat completion can carry.
    """
    body = passed(ask.sampling.extra)
    body |= {"model": model, "messages": messages_of(ask, quirks), "stream": not ask.whole}
    if not ask.whole:
        body["stream_options"] = {"include_usage": True}
    for part in (_sampling(ask.sampling, quirks), _tools(ask, quirks), _format(ask.format, quirks), _effort(ask, body, quirks)):
        body |= part
    return msgspec.json.encode(body)


# How the answer is made


def _sampling(sampling: Sampling, quirks: Quirks) -> Plain:
    asked: Plain = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        quirks.max_tokens: sampling.max_tokens,
    }
    if sampling.top_logprobs is not None:
        if not quirks.logprobs:
            raise ClientMistake("This model reports no log probabilities.", code="unsupported_parameter", param="top_logprobs")
        asked |= {"logprobs": True, "top_logprobs": sampling.top_logprobs}
    return {name: value for name, value in asked.items() if value is not None}


def _format(wanted: JsonObject | JsonSchema | None, quirks: Quirks) -> Plain:
    if wanted is None:
        return {}
    if isinstance(wanted, JsonObject):
        if quirks.json_object:
            return {"response_format": {"type": "json_object"}}
        wanted = JsonSchema("object", {"type": "object"})
    described: Plain = {"name": wanted.name, "schema": wanted.schema, "strict": wanted.strict}
    if wanted.description:
        described["description"] = wanted.description
    return {"response_format": {"type": "json_schema", "json_schema": described}}


def _effort(ask: commands.Respond, body: Plain, quirks: Quirks) -> Plain:
    asked: Plain = {}
    if ask.effort is not None:
        asked["reasoning_effort"] = ask.effort
        if quirks.thinking_switch:
            given = body.get("chat_template_kwargs")
            asked["chat_template_kwargs"] = {"enable_thinking": ask.effort != "none"} | (given if isinstance(given, dict) else {})
    if ask.verbosity is not None:
        asked["verbosity"] = ask.verbosity
    return asked


# Tools


def _tools(ask: commands.Respond, quirks: Quirks) -> Plain:
    choice = ask.tool_choice
    offered = ask.tools
    if (only := choice.only) is not None and quirks.choice != "openai":
        # What may not be called is not offered: every server understands that.
        offered = tuple(tool for tool in offered if tool.key in only)
    if not offered or (choice.mode == "none" and quirks.choice == "none"):
        return {}
    asked: Plain = {"tools": [_tool(tool) for tool in explained(offered, ask.namespaces)]}
    if quirks.choice != "none" and (choice.mode != "auto" or choice.names is not None):
        asked["tool_choice"] = _choice(choice, ask.tools, quirks)
    if quirks.parallel is not None and ask.parallel_tool_calls != quirks.parallel:
        asked["parallel_tool_calls"] = ask.parallel_tool_calls
    return asked


def _choice(choice: ToolChoice, offered: Sequence[Tool], quirks: Quirks) -> Any:
    if (only := choice.only) is None or quirks.choice == "word":
        return choice.mode
    allowed = [_named(tool) for tool in offered if tool.key in only]
    if len(allowed) == 1 and choice.mode == "required":
        return allowed[0]
    if quirks.choice != "openai":
        return choice.mode
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": allowed}}


def _named(tool: Tool) -> Plain:
    return {"type": "function", "function": {"name": flat_name(tool.name, tool.namespace)}}


def _tool(tool: Tool) -> Plain:
    function: Plain = {"name": flat_name(tool.name, tool.namespace)}
    match tool:
        case FunctionTool():
            function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
            if tool.description:
                function["description"] = tool.description
            if tool.strict is not None:
                function["strict"] = tool.strict
        case CustomTool():
            function |= {"description": _described(tool), "parameters": CUSTOM_PARAMETERS}
    return {"type": "function", "function": function}


def explained(offered: Iterable[Tool], namespaces: Mapping[str, str]) -> Iterator[Tool]:
    """The tools for a server without namespaces: the first of each says what is said of all."""
    unsaid = dict(namespaces)
    for tool in offered:
        if about := unsaid.pop(tool.namespace or "", ""):
            said = f"(All tools named {tool.namespace}__…: {about})"
            tool = msgspec.structs.replace(tool, description=f"{tool.description}\n\n{said}" if tool.description else said)
        yield tool


def flat_name(name: str, namespace: str | None) -> str:
    """A tool's name where there are no namespaces."""
    return f"{namespace}__{name}" if namespace else name


CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "All of the tool's input, as free text."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""A custom tool's, which takes text: chat completions know only functions, so the text is the one argument of one."""


def _described(tool: CustomTool) -> str:
    said = [tool.description or f"Takes free text as `input`: {tool.name}."]
    if tool.grammar is not None:
        said.append(f"The input must match this {tool.syntax} grammar:\n{tool.grammar}")
    return "\n\n".join(said)


# What was said


def messages_of(ask: commands.Respond, quirks: Quirks) -> list[Plain]:
    """
    The conversation, instructions first.

    Raises:
        ClientMistake: a part can't be carried.
    """
    told: list[Plain] = []
    if ask.instructions is not None:
        told.append({"role": "developer" if quirks.developer else "system", "content": ask.instructions})
    for turn in ask.history:
        _TURNS[type(turn)](turn, told, quirks)
    told = list(_postponed(told))
    if not quirks.system_anywhere:
        told = _led(told)
    for message in told:
        if message["role"] == "assistant" and "tool_calls" not in message and message.get("content") is None:
            message["content"] = ""
    return told


def _led(told: list[Plain]) -> list[Plain]:
    """All instructions as one message at the head. Those from the middle keep their weight there, which they would not as a user's."""
    system = [message for message in told if message["role"] == "system"]
    if not system:
        return told
    texts = [text for message in system for text in _texts(message["content"])]
    return [{"role": "system", "content": "\n\n".join(texts)}, *(message for message in told if message["role"] != "system")]


def _texts(content: str | list[Plain]) -> list[str]:
    return [content] if isinstance(content, str) else [str(part["text"]) for part in content if part["type"] == "text"]


def _message(turn: turns.Message, told: list[Plain], quirks: Quirks) -> None:
    if turn.role == "assistant":
        message = _assistant(told, for_call=False)
        message["content"] = "".join(words_said(turn.parts))
        return
    role = "system" if turn.role == "developer" and not quirks.developer else turn.role
    told.append({"role": role, "content": _content(turn.parts, quirks)})


def words_said(parts: Iterable[turns.Part]) -> Iterator[str]:
    """The words of the assistant's parts: no server takes its sound, so of that what was said."""
    for part in parts:
        match part:
            case turns.TextPart(text) | turns.RefusalPart(text) | turns.SpeechPart(transcript=str(text)):
                yield text
            case _:
                pass


def _thought(turn: turns.Thought, told: list[Plain], quirks: Quirks) -> None:
    if quirks.reasoning is not None and turn.text:
        message = _assistant(told, for_call=False)
        message[quirks.reasoning] = message.get(quirks.reasoning, "") + turn.text


def _call(turn: turns.ToolCall, told: list[Plain], _quirks: Quirks) -> None:
    # An empty text is no JSON, and some servers parse it.
    arguments = msgspec.json.encode({"input": turn.arguments}).decode() if turn.custom else turn.arguments or "{}"
    call = {"id": turn.call_id, "type": "function", "function": {"name": flat_name(turn.name, turn.namespace), "arguments": arguments}}
    _assistant(told, for_call=True).setdefault("tool_calls", []).append(call)


def _result(turn: turns.ToolResult, told: list[Plain], quirks: Quirks) -> None:
    content = _content(turn.parts, quirks)
    text = content if isinstance(content, str) else "\n".join(_texts(content)) or "See what follows."
    told.append({"role": "tool", "tool_call_id": turn.call_id, "content": text})
    if not isinstance(content, str):
        told.append({"role": _LATER, "content": [part for part in content if part["type"] != "text"]})


_LATER = "later"
"""A tool's message takes text alone. Its pictures and documents follow as the user's, after the results that belong together."""


def _postponed(told: Iterable[Plain]) -> Iterator[Plain]:
    waiting: list[Plain] = []
    for message in told:
        if message["role"] == _LATER:
            waiting.append(message | {"role": "user"})
            continue
        if message["role"] != "tool":
            yield from waiting
            waiting.clear()
        yield message
    yield from waiting


def _assistant(told: list[Plain], *, for_call: bool) -> Plain:
    """The assistant's message to add to: its last one while that has room, since one answer's items are one message."""
    last = told[-1] if told else None
    if last is not None and last["role"] == "assistant" and (for_call or (last["content"] is None and "tool_calls" not in last)):
        return last
    message: Plain = {"role": "assistant", "content": None}
    told.append(message)
    return message


_TURNS: dict[type, Callable[[Any, list[Plain], Quirks], None]] = {
    turns.Message: _message,
    turns.Thought: _thought,
    turns.ToolCall: _call,
    turns.ToolResult: _result,
}


def _content(parts: Sequence[turns.Part], quirks: Quirks) -> str | list[Plain]:
    """Parts as they are; text alone as one string, which is all that some templates take."""
    if all(isinstance(part, turns.TextPart | turns.RefusalPart) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, turns.TextPart | turns.RefusalPart))
    return [_PARTS[type(part)](part, quirks) for part in parts]


def _image(part: turns.ImagePart, quirks: Quirks) -> Plain:
    url = part.url or ""
    if not url.lower().startswith(("https://", "http://", "data:")):
        raise _cant_carry("image", "image_url", ("https://", "http://", "data:"))
    detail = part.detail if part.detail in ("low", "high") else "auto"
    return {"type": "image_url", "image_url": {"url": url, "detail": detail}}


def _file(part: turns.FilePart, quirks: Quirks) -> Plain:
    if part.inline is None or not quirks.files:
        raise _cant_carry("file", "file_url` or `file_data", ("https://", "data:") if quirks.files else ())
    return {"type": "file", "file": {"filename": part.filename or "file", "file_data": part.inline}}


def speech(part: turns.SpeechPart) -> Plain:
    """What was said aloud, as the recording that both of the APIs take; it tells more than its transcript does."""
    file = base64.b64encode(wav(part.pcm, part.rate_hz)).decode()
    return {"type": "input_audio", "input_audio": {"data": file, "format": "wav"}}


def _cant_carry(what: str, field: str, schemes: Iterable[str]) -> ClientMistake:
    ways = " or ".join(f"'{scheme}'" for scheme in schemes)
    hint = f"give it as `{field}` that begins with {ways}" if ways else "the server that answers for it takes none"
    return ClientMistake(f"This model can't be given the {what}: {hint}.", code="unsupported_parameter", param="input")


_PARTS: dict[type, Callable[[Any, Quirks], Plain]] = {
    turns.TextPart: lambda part, _quirks: {"type": "text", "text": part.text},
    turns.RefusalPart: lambda part, _quirks: {"type": "text", "text": part.text},
    turns.ImagePart: _image,
    turns.FilePart: _file,
    turns.AudioPart: lambda part, _quirks: {"type": "input_audio", "input_audio": {"data": part.inline, "format": part.format}},
    turns.SpeechPart: lambda part, _quirks: speech(part),
}
