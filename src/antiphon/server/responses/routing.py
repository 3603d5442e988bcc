"""The model that a request of the Responses API gets: the one that it names, or where it names a route, what the request decides."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, structs

from antiphon.engine_api.token_estimate import AUDIO_FILE_BYTES_PER_TOKEN, TOKENS_PER_FILE
from antiphon.protocols.client_tools.definitions import client_tool
from antiphon.protocols.responses.compaction import SUMMARY_PROMPT
from antiphon.protocols.responses.request import has_audio_output, is_set
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.resolve_request import KnownHistory, load_history
from antiphon.runtime.routing.features import (
    TOKENS_PER_IMAGE,
    RouteFeatures,
    estimate_tokens,
    last_user_text,
    lasting_names,
    route_caller,
)
from antiphon.runtime.routing.router import Resolution
from antiphon.runtime.service import Service
from antiphon.wire.codec.response_ids import read_response_id
from antiphon.wire.codec.types import Wire, encode
from antiphon.wire.responses import items, parts, tools
from antiphon.wire.responses.request import CreateRequest

_MODEL_ITEMS = (items.Reasoning, items.FunctionCall, items.CustomToolCall, items.Compaction)


class RoutedRequest(Struct, frozen=True):
    """
    A request's model.

    Attributes:
        history: what it continues; None where that was not needed yet.
    """

    resolution: Resolution[ServedModel]
    history: KnownHistory | None = None


async def route_request(
    service: Service,
    caller: Caller,
    request: CreateRequest,
    size_bytes: int,
    history: KnownHistory | None = None,
    response_id: str = "",
    session_id: str = "",
) -> RoutedRequest:
    """
    The model of a request, and of its history what was loaded to find it.

    Args:
        size_bytes: of the request's JSON.
        history: that of the previous response, if it is known.
        response_id: of the response that it creates; empty if it creates none, and is not remembered.

    Raises:
        ApiError: there is no such model, or what the request continues does not exist.
    """
    name = request.model or None
    # A model's own name needs no decision, so nothing of the conversation is read for it here.
    if not service.router.has(name):
        return RoutedRequest(Resolution(service.registry.find(name)), history)
    if is_set(request.previous_response_id):
        # Clients of another profile know the response by a UUID (docs/decisions/0036).
        request = structs.replace(request, previous_response_id=read_response_id(request.previous_response_id))
    earlier = history or await load_history(request, service.store, caller.tenant)
    # What a model lacks is then left out of its request, so it rules out no model.
    may_omit_tools = service.config.responses.unavailable_tools == "carry"
    resolution = await service.router.resolve(
        name,
        lambda: request_features(request, earlier, response_id=response_id, session_id=session_id, may_omit_tools=may_omit_tools),
        route_caller(caller),
        size_bytes + earlier.size_bytes,
    )
    return RoutedRequest(resolution, earlier)


def request_features(
    request: CreateRequest, history: KnownHistory, *, response_id: str = "", session_id: str = "", may_omit_tools: bool = True
) -> RouteFeatures:
    """What of a request, and of the conversation before it, decides where it goes."""
    input_items = request.input_items
    conversation = (*history.items, *input_items)
    all_parts = [part for item in conversation for part in _parts_of(item)]
    requested_tools = [
        *(request.tools or ()),
        *(tool for item in conversation if isinstance(item, items.AdditionalTools) for tool in item.tools),
    ]
    text_format = request.text.format if request.text and request.text.format else None
    continues, begins = _names(request, conversation, response_id, session_id)
    return RouteFeatures(
        text=last_user_text(_user_texts(conversation)),
        input_tokens=_count_tokens(request, conversation),
        output_tokens=request.max_output_tokens or 0,
        has_tools=bool(requested_tools),
        has_function_tools=any(
            isinstance(tool, _FUNCTION_TOOLS) or (not may_omit_tools and client_tool(tool) is not None) for tool in requested_tools
        ),
        has_custom_tools=any(isinstance(tool, tools.CustomTool) for tool in requested_tools),
        hosted_tools=tuple(
            dict.fromkeys(
                tool.type
                for tool in requested_tools
                if not isinstance(tool, (*_FUNCTION_TOOLS, tools.CustomTool)) and client_tool(tool) is None
            )
        ),
        may_omit_tools=may_omit_tools,
        has_images=any(isinstance(part, parts.InputImage) for part in all_parts),
        has_audio=any(isinstance(part, parts.InputAudio) for part in all_parts),
        has_files=any(isinstance(part, parts.InputFile) for part in all_parts),
        is_spoken=has_audio_output(request),
        json_object=isinstance(text_format, items.JsonObjectFormat),
        json_schema=isinstance(text_format, items.JsonSchemaFormat),
        top_logprobs=request.top_logprobs or None,
        answered_by=history.model,
        continues=continues,
        begins=begins,
    )


_FUNCTION_TOOLS = (tools.FunctionTool, tools.NamespaceTool, tools.ToolSearchTool)


def _names(
    request: CreateRequest, conversation: Sequence[items.Item], response_id: str, session_id: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What identifies the conversation so far, and what its next turn may be identified by."""
    first_text = next((text for item in conversation if _is_from_user(item) and (text := _text([item]))), "")
    tool_names = [str(getattr(tool, "name", "")) for tool in request.tools or ()]
    cache_key, instructions = request.prompt_cache_key or "", _text(request.instructions)
    lasting = lasting_names(instructions, first_text, tool_names, cache_key=cache_key, session_id=session_id)
    if request.conversation_id is not None:
        lasting.insert(0, f"conversation {request.conversation_id}")
    begins = (f"response {response_id}", *lasting) if response_id else ()
    # The response before is certain; other requests may have the same words or the same key.
    if request.previous_response_id:
        return (f"response {request.previous_response_id}",), begins
    if request.conversation_id is not None:
        return (lasting[0],), begins
    # The first turn is a new conversation, though another one began with the same words.
    is_first = not any(_is_from_model(item) for item in conversation)
    return (() if is_first else tuple(lasting)), begins


def _is_from_user(item: items.Item) -> bool:
    return isinstance(item, items.Message) and item.role == "user"


def _is_from_model(item: items.Item) -> bool:
    return isinstance(item, _MODEL_ITEMS) or (isinstance(item, items.Message) and item.role == "assistant")


def _user_texts(conversation: Sequence[items.Item]) -> Iterator[str]:
    """What users have said, the latest first; not what this server asks the model for in their name."""
    for item in reversed(conversation):
        if isinstance(item, items.Message) and item.role == "user" and (text := item.text) != SUMMARY_PROMPT:
            yield text


def _parts_of(item: items.Item) -> Iterable[Wire]:
    """The parts of a message or of a tool's output, if it has any."""
    content = item.content if isinstance(item, items.Message) else item.output if isinstance(item, _OUTPUTS) else ()
    return () if isinstance(content, str) else content


_OUTPUTS = (items.FunctionCallOutput, items.CustomToolCallOutput)


def _text(content: str | Iterable[items.Item] | object) -> str:
    """The text of instructions, which may be items."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(item.text for item in content if isinstance(item, items.Message))


def _count_tokens(request: CreateRequest, conversation: Sequence[items.Item]) -> int:
    """About how many tokens the engine's prompt has."""
    instructions: Sequence[items.Item] = request.instructions if isinstance(request.instructions, list) else ()
    tokens = estimate_tokens(_text(request.instructions)) if isinstance(request.instructions, str) else 0
    if request.tools:
        tokens += estimate_tokens(encode(request.tools).decode())
    return tokens + sum(_item_tokens(item) for item in (*instructions, *conversation))


def _item_tokens(item: items.Item) -> int:
    match item:
        case items.Message(content=str(text)) | items.FunctionCallOutput(output=str(text)) | items.CustomToolCallOutput(output=str(text)):
            return estimate_tokens(text)
        case items.Message() | items.FunctionCallOutput() | items.CustomToolCallOutput():
            return sum(map(_part_tokens, _parts_of(item)))
        case items.FunctionCall(name=name, arguments=text) | items.CustomToolCall(name=name, input=text):
            return estimate_tokens(name) + estimate_tokens(text)
        case items.Reasoning():  # models read little or nothing of what they thought in earlier turns
            return 0
        case _:
            return estimate_tokens(encode(item).decode())


def _part_tokens(part: Wire) -> int:
    match part:
        case parts.InputImage():
            return TOKENS_PER_IMAGE
        case parts.InputFile():
            return TOKENS_PER_FILE
        case parts.InputAudio(input_audio=clip):
            # Base64: four characters for three bytes (RFC 4648).
            return len(clip.data) * 3 // 4 // AUDIO_FILE_BYTES_PER_TOKEN
        case parts.Refusal(refusal=text):
            return estimate_tokens(text)
        case _:
            return estimate_tokens(str(getattr(part, "text", "")))
