"""
A chat as requests to an engine: every field is checked against the engine's capabilities before any work.

A field that changes the meaning of the answer, or what the client finds in it, is refused where the engine can't honour
it. A hint is taken, and an engine that can't act on it never sees it. Fields that the API does not have go on to the
engine.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from antiphon.engine_api import commands, events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.documents import FileContent
from antiphon.engine_api.options import JsonObject, JsonSchema, Sampling, Tool, ToolChoice, Voice
from antiphon.errors import ClientError, invalid_modalities, unsupported_parameter, unsupported_value
from antiphon.protocols.chat.content import ContentContext, check_voice
from antiphon.protocols.chat.history import to_history
from antiphon.protocols.chat.tools import check_schemas, to_tool_choice, to_tools
from antiphon.protocols.tool_loop import LoopLimits
from antiphon.tool_api import NO_SERVER_TOOLS, ServerTools
from antiphon.wire.chat.request import ChatRequest, ChatSearchOptions
from antiphon.wire.chat.tools import ChatSchemaFormat
from antiphon.wire.codec.fields import is_set, value_or
from antiphon.wire.responses.items import JsonObjectFormat
from antiphon.wire.responses.request import VoiceReference
from antiphon.wire.responses.tools import UserLocation, WebSearchTool

AUDIO_RATE_HZ = 24_000

MAX_CHOICES = 8
"""The most answers to one request: each takes a place at the engine."""

SEARCH_FUNCTION = "web_search"
"""The function that searches the web, of the tool of that type."""

PASSED_FIELDS = ("stop", "seed", "logit_bias")
"""Fields of the API that engines take as those beyond it."""


class ResolvedChat(Struct, frozen=True, kw_only=True):
    """
    A request with everything that it refers to.

    Attributes:
        id: of the completion.
        response_id: of the first of the engine's responses, from which the others are numbered.
        created_at: in Unix seconds.
        model: the name that the client requested.
        documents: the uploaded files that messages name, by id.
        transcripts: of recordings, by the path of their part, for an engine that takes none.
        size_bytes: about how large the request for the engine is.
        server_tools: the search of the web, where `web_search_options` ask for it and the server has one.
        loop_limits: of each choice, if it has such tools.
    """

    id: str
    response_id: str
    created_at: int
    model: str
    request: ChatRequest
    capabilities: Capabilities
    documents: Mapping[str, FileContent] = {}
    transcripts: Mapping[str, str] = {}
    size_bytes: int = 0
    server_tools: ServerTools = NO_SERVER_TOOLS
    loop_limits: LoopLimits = LoopLimits()


def search_tool(options: ChatSearchOptions) -> WebSearchTool:
    """The same search in the Responses API."""
    location: UserLocation | None = None
    if is_set(options.user_location):
        place = options.user_location.approximate
        location = UserLocation(type="approximate", city=place.city, country=place.country, region=place.region, timezone=place.timezone)
    return WebSearchTool(search_context_size=options.search_context_size, user_location=location)


def later_tool_choice(chat: ResolvedChat) -> ToolChoice:
    """The choice after the first turn, where that searches the web."""
    choice = to_tool_choice(chat.request, to_tools(chat.request, chat.capabilities, chat.model))
    if choice.names is None and choice.mode != "none":
        return choice
    names = (*(choice.names or ()), *(own.function.key for own in chat.server_tools.functions))
    return ToolChoice("auto" if choice.mode == "none" else choice.mode, names)


def engine_requests(chat: ResolvedChat) -> tuple[commands.Respond, ...]:
    """
    The request for each choice.

    Raises:
        ClientError: the engine can't do what a field asks, or fields contradict each other.
    """
    request, capabilities = chat.request, chat.capabilities
    context = ContentContext(capabilities, chat.model, chat.documents, chat.transcripts)
    for check in _CHECKS:
        check(request, context)
    tools = to_tools(request, capabilities, chat.model)
    tool_choice = to_tool_choice(request, tools)
    if is_set(request.web_search_options):
        _check_search(chat, tools)
        # Chat: with these options a model always searches before it answers.
        tools, tool_choice = (*tools, *(own.function for own in chat.server_tools.functions)), ToolChoice("required", (SEARCH_FUNCTION,))
    first = commands.Respond(
        id=chat.response_id,
        size_bytes=chat.size_bytes,
        whole=not request.is_stream,
        history=to_history(request.messages, context),
        tools=tools,
        tool_choice=tool_choice,
        # Before tools, a message had one call.
        parallel_tool_calls=request.parallel_tool_calls is not False and not request.functions,
        sampling=_sampling(request),
        format=_format(request),
        reasoning_effort=_effort(request, capabilities),
        verbosity=(request.verbosity or None) if capabilities.verbosities else None,
        voice=Voice(_voice(request), AUDIO_RATE_HZ) if request.is_spoken else None,
    )
    return (first, *(_sibling(first, number) for number in range(1, request.choice_count)))


def _sibling(first: commands.Respond, number: int) -> commands.Respond:
    """The request for a further choice: the same, but sampled differently."""
    extra = first.sampling.extra
    # With one seed, all choices would be alike.
    if isinstance(seed := extra.get("seed"), int):
        extra = extra | {"seed": seed + number}
    return structs.replace(first, id=f"{first.id}_{number}", sampling=structs.replace(first.sampling, extra=extra), out_of_band=True)


# Checks


def _check_search(chat: ResolvedChat, tools: Sequence[Tool]) -> None:
    own_keys = {own.function.key for own in chat.server_tools.functions}
    if not own_keys:
        raise unsupported_parameter("web_search_options", None)
    if chat.request.choice_count > 1:
        raise ClientError("'n' must be 1 with 'web_search_options'.", code="invalid_value", param="n")
    if names := own_keys.intersection(tool.key for tool in tools):
        raise ClientError(f"'tools' has a function '{min(names)}', and so has the search of the web.", code="invalid_value", param="tools")


def _check_features(request: ChatRequest, _context: ContentContext) -> None:
    """Refuse features that this server does not have, and without which the answer would mean something else."""
    if is_set(request.moderation):
        raise unsupported_parameter("moderation", None)
    if request.choice_count > MAX_CHOICES:
        raise ClientError(
            f"Invalid 'n': integer above maximum value. Expected a value <= {MAX_CHOICES}, the most choices that this server makes for "
            f"one request, but got {request.choice_count} instead.",
            code="integer_above_max_value",
            param="n",
        )


def _check_sampling(request: ChatRequest, context: ContentContext) -> None:
    capabilities = context.capabilities
    is_unsupported_by_field = {
        # 1 is the default of both, so it asks for nothing.
        "temperature": value_or(request.temperature, 1) != 1 and not capabilities.temperature,
        "top_p": value_or(request.top_p, 1) != 1 and not capabilities.top_p,
        "presence_penalty": bool(request.presence_penalty) and not capabilities.penalties,
        "frequency_penalty": bool(request.frequency_penalty) and not capabilities.penalties,
        "logprobs": request.logprobs is True and capabilities.max_top_logprobs is None,
    }
    for field, is_unsupported in is_unsupported_by_field.items():
        if is_unsupported:
            raise unsupported_parameter(field, context.model)
    if request.top_logprobs and request.top_logprobs > (capabilities.max_top_logprobs or 0):
        raise ClientError(
            f"Invalid 'top_logprobs': integer above maximum value. Expected a value <= {capabilities.max_top_logprobs}, "
            f"but got {request.top_logprobs} instead.",
            code="integer_above_max_value",
            param="top_logprobs",
        )


def _check_reasoning(request: ChatRequest, context: ContentContext) -> None:
    efforts, verbosities = context.capabilities.efforts, context.capabilities.verbosities
    if request.reasoning_effort and efforts and request.reasoning_effort not in efforts:
        raise unsupported_value("reasoning_effort", request.reasoning_effort, context.model, efforts)
    if request.verbosity and verbosities and request.verbosity not in verbosities:
        raise unsupported_value("verbosity", request.verbosity, context.model, verbosities)


def _check_format(request: ChatRequest, context: ContentContext) -> None:
    kind = request.response_format.type if request.response_format else "text"
    formats = {"text": True, "json_object": context.capabilities.json_object, "json_schema": context.capabilities.json_schema}
    if not formats[kind]:
        names = [name for name, is_supported in formats.items() if is_supported]
        raise unsupported_value("response_format.type", kind, context.model, names)


def _check_audio(request: ChatRequest, context: ContentContext) -> None:
    if request.modalities and "text" not in request.modalities:
        raise invalid_modalities("modalities", request.modalities, (("text",), ("text", "audio")))
    if not request.is_spoken or not request.audio:
        return
    if not context.capabilities.audio_out:
        raise unsupported_parameter("modalities", context.model)
    if request.choice_count > 1:
        raise ClientError("Only one choice can be spoken: 'n' must be 1 where 'modalities' has 'audio'.", code="invalid_value", param="n")
    check_voice(_voice(request), context)
    # The original's rule, and its words.
    if request.is_stream and request.audio.format != "pcm16":
        raise ClientError(
            f"Unsupported value: 'audio.format' does not support '{request.audio.format}' when stream=true. Supported values are: 'pcm16'.",
            code="unsupported_value",
            param="audio.format",
        )


def _voice(request: ChatRequest) -> str:
    voice = request.audio.voice if request.audio else ""
    return voice.id if isinstance(voice, VoiceReference) else voice


_CHECKS: tuple[Callable[[ChatRequest, ContentContext], None], ...] = (
    _check_features,
    _check_sampling,
    _check_reasoning,
    _check_format,
    _check_audio,
    check_schemas,
)


# How the answer is generated


def _sampling(request: ChatRequest) -> Sampling:
    # Chat reference: `max_tokens` is deprecated in favour of `max_completion_tokens`.
    limit = request.max_completion_tokens or request.max_tokens or None
    extra: dict[str, Any] = dict(request.extra or {})
    extra |= {name: value for name in PASSED_FIELDS if is_set(value := getattr(request, name))}
    return Sampling(
        temperature=value_or(request.temperature, None),
        top_p=value_or(request.top_p, None),
        presence_penalty=value_or(request.presence_penalty, None),
        frequency_penalty=value_or(request.frequency_penalty, None),
        max_tokens=None if limit is None else min(limit, events.MAX_TOKENS),
        top_logprobs=(request.top_logprobs or 0) if request.logprobs is True else None,
        extra=extra,
    )


def _format(request: ChatRequest) -> JsonObject | JsonSchema | None:
    match request.response_format:
        case JsonObjectFormat():
            return JsonObject()
        case ChatSchemaFormat(json_schema=definition):
            return JsonSchema(definition.name, definition.schema or {}, definition.strict is True, definition.description or None)
        case _:
            return None


class _Reasoning(Struct):
    effort: str | None = None


def _effort(request: ChatRequest, capabilities: Capabilities) -> str | None:
    """How much to reason; also in the form of other APIs, `reasoning.effort`, where the engine knows the value."""
    effort: str | None = request.reasoning_effort or None
    if effort is None and request.extra:
        # Another API's field: a value of any other form goes on to the engine unread, with the rest of `extra`.
        with contextlib.suppress(msgspec.ValidationError):
            effort = msgspec.convert(request.extra.get("reasoning"), _Reasoning).effort
    return effort if effort in capabilities.efforts else None
