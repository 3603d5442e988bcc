"""
What in a request decides which model it goes to: for Chat Completions, and for requests that can only be passed on.

It is read from the request as it came, and not checked: what answers it does that.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from antiphon.engine_api.token_estimate import AUDIO_FILE_BYTES_PER_TOKEN, TOKENS_PER_FILE
from antiphon.runtime.routing.features import TOKENS_PER_IMAGE, RouteFeatures, estimate_tokens, last_user_text, lasting_names
from antiphon.wire.codec.types import JsonDict

_INSTRUCTION_ROLES = ("system", "developer")
_MODEL_ROLES = ("assistant", "tool", "function")


def chat_features(body: bytes, session_id: str = "", relay_path: str = "") -> RouteFeatures:
    """
    What decides which model a request goes to.

    Args:
        relay_path: the API's path, if its requests can only be passed on.
    """
    try:
        request = msgspec.json.decode(body, type=JsonDict)
    except (ValueError, RecursionError):  # the model that it goes to says what is wrong with it
        return RouteFeatures(relay_path=relay_path)
    if relay_path:
        texts, token_count = _prompts(request)
        return RouteFeatures(
            text=last_user_text(reversed(texts)),
            input_tokens=sum(map(estimate_tokens, texts)) + token_count,
            output_tokens=_number(request, "max_tokens"),
            relay_path=relay_path,
        )
    messages = _objects(request.get("messages"))
    tool_types = [str(tool.get("type", "function")) for tool in _objects(request.get("tools"))]
    part_types = {part.get("type") for message in messages for part in _objects(message.get("content"))}
    modalities, format = request.get("modalities"), request.get("response_format")
    format_type = format.get("type") if isinstance(format, dict) else None
    continues, begins = _names(request, messages, session_id)
    return RouteFeatures(
        text=last_user_text(_text(message) for message in reversed(messages) if message.get("role") == "user"),
        input_tokens=_count_tokens(request, messages),
        output_tokens=_number(request, "max_completion_tokens") or _number(request, "max_tokens"),
        has_tools=bool(tool_types or request.get("functions")),
        has_function_tools="function" in tool_types or bool(request.get("functions")),
        has_custom_tools="custom" in tool_types,
        may_omit_tools=False,  # no tool of a chat may be left out
        has_images="image_url" in part_types,
        has_audio="input_audio" in part_types,
        has_files="file" in part_types,
        is_spoken=isinstance(modalities, list) and "audio" in modalities,
        json_object=format_type == "json_object",
        json_schema=format_type == "json_schema",
        top_logprobs=_number(request, "top_logprobs") if request.get("logprobs") is True else None,
        continues=continues,
        begins=begins,
    )


def _names(request: JsonDict, messages: Sequence[JsonDict], session_id: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What identifies the conversation so far, and what its next turn may be identified by."""
    first = next((place for place, message in enumerate(messages) if message.get("role") == "user"), len(messages))
    instructions = "\n".join(_text(message) for message in messages[:first] if message.get("role") in _INSTRUCTION_ROLES)
    first_text = _text(messages[first]) if first < len(messages) else ""
    cache_key = request.get("prompt_cache_key")
    names = lasting_names(
        instructions, first_text, _tool_names(request), cache_key=cache_key if isinstance(cache_key, str) else "", session_id=session_id
    )
    # The first turn is a new conversation, even where another began with the same words.
    is_first = not any(message.get("role") in _MODEL_ROLES for message in messages)
    return () if is_first else tuple(names), tuple(names)


def _tool_names(request: JsonDict) -> Iterator[str]:
    for tool in (*_objects(request.get("tools")), *_objects(request.get("functions"))):
        definition = tool.get("function", tool.get("custom", tool))
        yield str(definition.get("name", "")) if isinstance(definition, dict) else ""


def _text(message: JsonDict) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(text for part in _objects(content) if isinstance(text := part.get("text"), str))


def _count_tokens(request: JsonDict, messages: Sequence[JsonDict]) -> int:
    """About how many tokens the engine's prompt has."""
    tokens = sum(
        estimate_tokens(msgspec.json.encode(value).decode())
        for value in (request.get("tools"), request.get("functions"), *(message.get("tool_calls") for message in messages))
        if value
    )
    for message in messages:
        tokens += estimate_tokens(_text(message)) + sum(_media_tokens(part) for part in _objects(message.get("content")))
    return tokens


def _media_tokens(part: JsonDict) -> int:
    match part:
        case {"type": "image_url"}:
            return TOKENS_PER_IMAGE
        case {"type": "file"}:
            return TOKENS_PER_FILE
        case {"type": "input_audio", "input_audio": {"data": str(data)}}:
            # Base64: four characters for three bytes (RFC 4648).
            return len(data) * 3 // 4 // AUDIO_FILE_BYTES_PER_TOKEN
        case _:
            return 0


def _prompts(request: JsonDict) -> tuple[list[str], int]:
    """The texts that are to be continued, or to be made vectors of, and how many tokens come as numbers."""
    value = request.get("prompt", request.get("input"))
    values: list[Any] = value if isinstance(value, list) else [value]
    token_count = sum(len(each) if isinstance(each, list) else isinstance(each, int) for each in values)
    return [each for each in values if isinstance(each, str)], token_count


def _objects(value: object) -> list[JsonDict]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _number(request: JsonDict, name: str) -> int:
    return value if isinstance(value := request.get(name), int) else 0
