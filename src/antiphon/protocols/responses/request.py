"""
A Responses request as a request to an engine: every field is checked against the engine's capabilities before any work.

A field that changes the meaning of the response, or what the client finds in it, is refused where the engine can't honour
it. A hint is taken and echoed, and an engine that can't act on it never sees it (docs/decisions/0024).
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Literal

from msgspec import UNSET, Struct, structs

from antiphon.engine_api import commands, events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.documents import FileContent
from antiphon.engine_api.history import HistoryItem
from antiphon.engine_api.options import Compaction, JsonObject, JsonSchema, Sampling, ToolChoice, Voice
from antiphon.errors import ClientError, invalid_modalities, invalid_value, shorten, unsupported_parameter, unsupported_value
from antiphon.protocols.client_tools.definitions import ClientTool
from antiphon.protocols.omissions import Omissions
from antiphon.protocols.responses.approvals import read_approvals
from antiphon.protocols.responses.compaction import CompactionPlan, Window, open_window, plan_compaction, requested_compaction
from antiphon.protocols.responses.history import SUPPORTED_ITEM_TYPES, ItemWithPath, plain_history, to_history, with_namespaces
from antiphon.protocols.responses.tools import (
    EngineTools,
    TranslationContext,
    build_engine_tools,
    check_output_format,
    check_tool_names,
    check_tool_schemas,
    found_tool_keys,
    later_tool_choice,
    requested_tools,
    tool_choice,
)
from antiphon.protocols.tool_loop import ApprovedCall, LoopLimits, ToolFinding
from antiphon.tool_api import NO_SERVER_TOOLS, ServerTools
from antiphon.wire.codec.fields import is_set as is_set, value_or
from antiphon.wire.codec.types import Unknown
from antiphon.wire.responses import items, tools
from antiphon.wire.responses.hosted_calls import McpApprovalResponse
from antiphon.wire.responses.request import CreateRequest, VoiceReference
from antiphon.wire.responses.websocket import ResponseCreate

INCLUDE_LOGPROBS = "message.output_text.logprobs"
INCLUDE_ENCRYPTED_REASONING = "reasoning.encrypted_content"

AUDIO_FORMATS = ("pcm16", "wav")
"""The formats that can be streamed: s16le mono at `AUDIO_RATE_HZ`, raw or after a WAV header."""

AUDIO_RATE_HZ = 24_000


class ResolvedRequest(Struct, frozen=True, kw_only=True):
    """
    A request with everything that it refers to.

    Attributes:
        id: of the response that it creates.
        model: the name that the client requested.
        created_at: in Unix seconds.
        input_items: the items in this request.
        previous_items: the items of the conversation before it, oldest first; those that a compaction stands for may be
            missing.
        previous_ids: of all items of the conversation that the response belongs to.
        decrypted_texts: reasoning and compactions of the conversation, by their `encrypted_content`.
        documents: files that the conversation names, by their ids, or URLs where the engine fetches none.
        size_bytes: of the JSON of the request and of the items before it.
        is_plain: whether the conversation is nothing but messages of text (`is_plain_message`) in this request.
        omit_unsupported: whether unsupported tools and items are left out (see `Omissions`) rather than refused.
        server_tools: the tools of the request that the server runs.
        loop_limits: of the response, if it has such tools.
        key_id: the key that it came with; None where no key was needed.
    """

    id: str
    tenant: str
    created_at: int
    model: str
    request: CreateRequest
    capabilities: Capabilities
    input_items: tuple[items.Item, ...]
    previous_items: tuple[items.Item, ...] = ()
    previous_ids: frozenset[str] = frozenset()
    decrypted_texts: Mapping[str, str] = {}
    documents: Mapping[str, FileContent] = {}
    size_bytes: int = 0
    is_plain: bool = False
    omit_unsupported: bool = True
    server_tools: ServerTools = NO_SERVER_TOOLS
    loop_limits: LoopLimits = LoopLimits()
    key_id: str | None = None

    @property
    def conversation_id(self) -> str | None:
        """The conversation that the response belongs to."""
        return self.request.conversation_id

    @property
    def engine_bytes(self) -> int:
        """About how large the request for the engine is, which has the uploaded files in it."""
        return self.size_bytes + sum(len(document.url) for document in self.documents.values()) if self.documents else self.size_bytes

    @property
    def is_stored(self) -> bool:
        """Whether the response is to be stored."""
        # Responses: a response is stored unless the client says no.
        return self.request.store is not False

    @property
    def is_warm_up(self) -> bool:
        """Whether the response is to have no output."""
        return isinstance(self.request, ResponseCreate) and self.request.generate is False

    @property
    def encrypts_reasoning(self) -> bool:
        """Whether the client wants reasoning in encrypted form, to give it back."""
        return INCLUDE_ENCRYPTED_REASONING in (self.request.include or ())

    @property
    def is_background(self) -> bool:
        """Whether the response outlives the request's connection."""
        return self.request.background is True

    @property
    def is_spoken(self) -> bool:
        """Whether the response has audio."""
        return has_audio_output(self.request)

    @property
    def audio_format(self) -> str:
        """The format of its audio."""
        return (self.request.audio.format or AUDIO_FORMATS[0]) if self.request.audio else AUDIO_FORMATS[0]


def has_audio_output(request: CreateRequest) -> bool:
    """Whether the request asks for audio beside text."""
    return "audio" in request.modalities if request.modalities else bool(request.audio)


class EngineRequest(Struct, frozen=True):
    """
    The command for the engine, and what it leaves out of the client's request.

    Attributes:
        compaction: how the conversation is compacted before the engine gets it; None where it is not.
        later_choice: the tool choice after the first turn, where the server runs tools.
        approved_calls: those to run before the model is asked.
        client_tools: those that the client runs and the engine gets as functions, by their keys.
        finding: the tools whose loading is deferred, and those whose results may come later.
    """

    respond: commands.Respond
    omissions: Omissions
    compaction: CompactionPlan | None = None
    later_choice: ToolChoice = ToolChoice()
    approved_calls: Sequence[ApprovedCall] = ()
    client_tools: Mapping[str, ClientTool] = {}
    finding: ToolFinding = ToolFinding()


def engine_request(resolved_request: ResolvedRequest) -> EngineRequest:
    """
    Translate the request for its engine.

    Raises:
        ClientError: the engine can't do what a field asks, or fields contradict each other.
    """
    request, capabilities = resolved_request.request, resolved_request.capabilities
    if _checked_values(request) != _NOTHING_TO_CHECK:
        for check in CHECKS:
            check(request, capabilities, resolved_request.model)
    instructions, prelude = _instructions(request)
    compaction = None if resolved_request.is_warm_up else requested_compaction(request, resolved_request.input_items)
    # Of text alone, nothing is to be found but the texts.
    is_plain = resolved_request.is_plain and compaction is None
    if is_plain and not request.tools and not resolved_request.server_tools.types:
        return _plain_engine_request(resolved_request, instructions)
    window = _PLAIN_WINDOW if is_plain else _window(resolved_request)
    items_with_paths = [*prelude, *window.head, *window.rest]
    context = _translation_context(resolved_request, items_with_paths)
    history = plain_history(resolved_request.input_items) if is_plain else to_history(items_with_paths, context)
    if not history and instructions is None:
        raise _no_input(resolved_request.input_items, context)
    tools_with_paths = tuple(requested_tools(request, items_with_paths))
    check_tool_schemas(tools_with_paths)
    engine_tools = build_engine_tools(tools_with_paths, context, found_tool_keys(items_with_paths))
    # A conversation that is only to be compacted goes on later, when its MCP servers are named again.
    is_answered = not (resolved_request.is_warm_up or (compaction is not None and compaction.is_requested))
    if context.approvals is None and is_answered:
        _check_approvals(items_with_paths, tools_with_paths, capabilities)
    respond = _respond(resolved_request, history, instructions, engine_tools, compaction if capabilities.compacts else None)
    engine_request = EngineRequest(
        respond,
        context.omissions,
        later_choice=later_tool_choice(request, respond.tool_choice),
        approved_calls=_approved_calls(context, engine_tools),
        client_tools={key: own for key, (_, own) in engine_tools.client_tools.items()},
        finding=ToolFinding(engine_tools.search or None, frozenset(engine_tools.found_names), frozenset(engine_tools.async_keys)),
    )
    if compaction is None or capabilities.compacts:
        return engine_request
    return structs.replace(engine_request, compaction=plan_compaction(compaction, respond, prelude, window, context))


def _plain_engine_request(resolved_request: ResolvedRequest, instructions: str | None) -> EngineRequest:
    """The request where there is nothing but text and no tool: the same, without looking for more (docs/decisions/0072)."""
    history, engine_tools = plain_history(resolved_request.input_items), EngineTools()
    if not history and instructions is None:
        raise _no_input(resolved_request.input_items, _translation_context(resolved_request, ()))
    respond = _respond(resolved_request, history, instructions, engine_tools, None)
    return EngineRequest(respond, Omissions(), later_choice=later_tool_choice(resolved_request.request, respond.tool_choice))


def _translation_context(resolved_request: ResolvedRequest, conversation: Sequence[ItemWithPath]) -> TranslationContext:
    return TranslationContext(
        resolved_request.capabilities,
        resolved_request.model,
        resolved_request.omit_unsupported,
        Omissions(),
        resolved_request.decrypted_texts,
        resolved_request.documents,
        resolved_request.server_tools,
        read_approvals(conversation) if "mcp" in resolved_request.server_tools.types else None,
    )


def _approved_calls(context: TranslationContext, engine_tools: EngineTools) -> Sequence[ApprovedCall]:
    if context.approvals is None:
        return ()
    _check_servers(context.approvals.pending, engine_tools.server_labels)
    return context.approvals.pending


def _check_approvals(
    conversation: Sequence[ItemWithPath], tools_with_paths: Sequence[tuple[str, tools.Tool]], capabilities: Capabilities
) -> None:
    """
    Refuse the user's answer in a request without its MCP server: nothing would come of it, and the user would not know. Where
    the input says more behind it, the client has gone on without the call.
    """
    is_last = bool(conversation) and isinstance(conversation[-1][1], McpApprovalResponse) and conversation[-1][0].startswith("input")
    if is_last and capabilities.tools and "mcp" not in capabilities.hosted:
        labels = {tool.server_label for _, tool in tools_with_paths if isinstance(tool, tools.McpTool)}
        _check_servers(read_approvals(conversation).pending, labels)


def _check_servers(approved_calls: Iterable[ApprovedCall], labels: Container[str]) -> None:
    for call in approved_calls:
        if call.server_label not in labels:
            # Its URL and its credentials are not stored: each request brings them.
            raise ClientError(f"The MCP server '{shorten(call.server_label)}' of the approved call is not in 'tools'.", param="tools")


def _respond(
    resolved_request: ResolvedRequest,
    history: tuple[HistoryItem, ...],
    instructions: str | None,
    engine_tools: EngineTools,
    compaction: Compaction | None,
) -> commands.Respond:
    request, capabilities = resolved_request.request, resolved_request.capabilities
    reasoning, text = request.reasoning or None, request.text or None
    return commands.Respond(
        id=resolved_request.id,
        size_bytes=resolved_request.engine_bytes,
        whole=request.stream is not True,
        history=with_namespaces(history, engine_tools.tools),
        instructions=instructions,
        tools=tuple(engine_tools.tools),
        hosted_tools=tuple(engine_tools.hosted_tools),
        namespaces=engine_tools.namespaces,
        tool_choice=tool_choice(request, engine_tools),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        sampling=_sampling(request),
        format=_engine_format(text.format or None) if text else None,
        # Responses: `disabled`, the default, fails where the input is too long; `auto` drops the oldest of it.
        truncate=request.truncation == "auto" and capabilities.truncation,
        reasoning_effort=(reasoning.effort or None) if reasoning and capabilities.efforts else None,
        reasoning_summary=_requested_summary(request) if capabilities.summaries else None,
        encrypt_reasoning=resolved_request.encrypts_reasoning,
        verbosity=(text.verbosity or None) if text and capabilities.verbosities else None,
        voice=Voice(_requested_voice(request), AUDIO_RATE_HZ) if resolved_request.is_spoken else None,
        compaction=compaction,
    )


_PLAIN_WINDOW = Window((), ())


def _window(resolved_request: ResolvedRequest) -> Window:
    """The conversation that the model reads."""
    conversation: list[ItemWithPath] = [
        # Responses: `previous_response_id` brings the items of earlier responses, but not their instructions.
        *((resolved_request.request.previous_path, item) for item in resolved_request.previous_items),
        *((f"input[{index}]", item) for index, item in enumerate(resolved_request.input_items)),
    ]
    # A trigger says what to do with the conversation, and is no part of it.
    conversation = [pair for pair in conversation if not isinstance(pair[1], items.CompactionTrigger)]
    return open_window(conversation, resolved_request.decrypted_texts)


def _no_input(input_items: Sequence[items.Item], context: TranslationContext) -> ClientError:
    """The error for a request that has nothing for the model: of the first item that was left out, if one was."""
    for index, item in enumerate(input_items):
        if isinstance(item, Unknown):
            return invalid_value(f"input[{index}].type", item.type, items.ITEM_TYPES)
        if item.type in context.omissions.items:
            return unsupported_value(f"input[{index}]", item.type, context.model, SUPPORTED_ITEM_TYPES)
    return ClientError(
        "One of 'input' or 'previous_response_id' or 'prompt' or 'conversation' must be provided.",
        code="missing_required_parameter",
        param="input",
    )


# Checks

_UNSUPPORTED_FIELDS = ("moderation",)
"""Fields whose features this server does not have, and without which the response would mean something else."""


def _check_unsupported_fields(request: CreateRequest, _capabilities: Capabilities, _model: str) -> None:
    for field in _UNSUPPORTED_FIELDS:
        if is_set(getattr(request, field)):
            raise unsupported_parameter(field, None)
    # Background mode guide, Limits: it requires `store=true`, and stateless requests are rejected.
    if request.background and request.store is False:
        raise ClientError("Background responses are always stored: 'background' can't be combined with 'store: false'.", param="background")
    program = request.access_programs.cyber if request.access_programs else None
    if program and program != "standard":
        raise unsupported_value("access_programs.cyber", program, None, ["standard"])
    # Responses reference, `stream_options`: "Only set this when you set `stream: true`."
    if is_set(request.stream_options) and not request.stream:
        raise ClientError("The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream_options")


def _check_sampling(request: CreateRequest, capabilities: Capabilities, model: str) -> None:
    if capabilities.temperature and capabilities.top_p and capabilities.penalties and capabilities.max_top_logprobs is not None:
        _check_top_logprobs(request, capabilities.max_top_logprobs)
        return
    is_unsupported_by_field = {
        # Responses: 1 is the default of both, so it asks for nothing.
        "temperature": value_or(request.temperature, 1) != 1 and not capabilities.temperature,
        "top_p": value_or(request.top_p, 1) != 1 and not capabilities.top_p,
        "presence_penalty": bool(request.presence_penalty) and not capabilities.penalties,
        "frequency_penalty": bool(request.frequency_penalty) and not capabilities.penalties,
        "top_logprobs": bool(request.top_logprobs) and capabilities.max_top_logprobs is None,
        "include": INCLUDE_LOGPROBS in (request.include or ()) and capabilities.max_top_logprobs is None,
    }
    for field, is_unsupported in is_unsupported_by_field.items():
        if is_unsupported:
            raise unsupported_parameter(field, model)
    _check_top_logprobs(request, capabilities.max_top_logprobs or 0)


def _check_top_logprobs(request: CreateRequest, most: int) -> None:
    if request.top_logprobs and request.top_logprobs > most:
        raise ClientError(
            f"Invalid 'top_logprobs': integer above maximum value. Expected a value <= {most}, but got {request.top_logprobs} instead.",
            code="integer_above_max_value",
            param="top_logprobs",
        )


def _check_reasoning(request: CreateRequest, capabilities: Capabilities, model: str) -> None:
    if not request.reasoning:
        return
    effort = request.reasoning.effort
    # For an engine that has no efforts at all it is a hint, which is echoed only (docs/decisions/0024).
    if effort and capabilities.efforts and effort not in capabilities.efforts:
        raise unsupported_value("reasoning.effort", effort, model, capabilities.efforts)


def _check_text(request: CreateRequest, capabilities: Capabilities, model: str) -> None:
    if not request.text:
        return
    verbosity = request.text.verbosity
    if verbosity and capabilities.verbosities and verbosity not in capabilities.verbosities:
        raise unsupported_value("text.verbosity", verbosity, model, capabilities.verbosities)
    kind = request.text.format.type if request.text.format else "text"
    formats = {"text": True, "json_object": capabilities.json_object, "json_schema": capabilities.json_schema}
    if not formats[kind]:
        raise unsupported_value("text.format.type", kind, model, [name for name, is_supported in formats.items() if is_supported])


def _check_audio(request: CreateRequest, capabilities: Capabilities, model: str) -> None:
    if request.modalities and "text" not in request.modalities:
        raise invalid_modalities("modalities", request.modalities, (("text",), ("text", "audio")))
    if not has_audio_output(request):
        return
    field = "modalities" if request.modalities else "audio"
    if not capabilities.audio_out:
        raise unsupported_parameter(field, model)
    # No item of a response object holds audio: it is in events only, and would be lost without a stream.
    if not request.stream:
        raise ClientError(f"Audio is only sent in streams: '{field}' needs 'stream' to be true.", param=field)
    voice, kind = _requested_voice(request), request.audio.format if request.audio else None
    if voice and capabilities.voices and voice not in capabilities.voices:
        raise unsupported_value("audio.voice", voice, model, capabilities.voices)
    if kind and kind not in AUDIO_FORMATS:
        raise unsupported_value("audio.format", kind, None, AUDIO_FORMATS)


def _requested_voice(request: CreateRequest) -> str | None:
    voice = request.audio.voice if request.audio else None
    return voice.id if isinstance(voice, VoiceReference) else voice or None


CHECKS: tuple[Callable[[CreateRequest, Capabilities, str], None], ...] = (
    _check_unsupported_fields,
    _check_sampling,
    _check_reasoning,
    _check_text,
    _check_audio,
    check_tool_names,
    check_output_format,
)

CHECKED_FIELDS = (
    "moderation",
    "background",
    "access_programs",
    "stream_options",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "include",
    "reasoning",
    "text",
    "modalities",
    "audio",
    "tools",
)
"""The fields that the checks look at first: a request that has none of them passes them all."""

_checked_values = attrgetter(*CHECKED_FIELDS)
_NOTHING_TO_CHECK = (UNSET,) * len(CHECKED_FIELDS)


# Instructions


def _instructions(request: CreateRequest) -> tuple[str | None, list[ItemWithPath]]:
    """Instructions as text; if they came as items, as the start of the conversation instead."""
    if not request.instructions:
        return None, []
    if isinstance(request.instructions, str):
        return request.instructions, []
    return None, [(f"instructions[{index}]", item) for index, item in enumerate(request.instructions)]


# How the response is generated


def _sampling(request: CreateRequest) -> Sampling:
    wants_logprobs = bool(request.top_logprobs) or INCLUDE_LOGPROBS in (request.include or ())
    return Sampling(
        temperature=None if request.temperature is UNSET else request.temperature,
        top_p=None if request.top_p is UNSET else request.top_p,
        presence_penalty=None if request.presence_penalty is UNSET else request.presence_penalty,
        frequency_penalty=None if request.frequency_penalty is UNSET else request.frequency_penalty,
        max_tokens=min(request.max_output_tokens, events.MAX_TOKENS) if request.max_output_tokens else None,
        top_logprobs=(request.top_logprobs or 0) if wants_logprobs else None,
        extra=dict(request.extra or {}),
    )


def _engine_format(text_format: items.AnswerFormat | None) -> JsonObject | JsonSchema | None:
    match text_format:
        case items.JsonObjectFormat():
            return JsonObject()
        case items.JsonSchemaFormat():
            return JsonSchema(text_format.name, text_format.schema, bool(text_format.strict), text_format.description or None)
        case _:
            return None


def made_summary(request: CreateRequest, capabilities: Capabilities) -> Literal["instead", "after"] | None:
    """
    How a summary is made of the reasoning's text where the request wishes for one: at once, for an engine that makes
    none itself; else only if it turns out to have made none.
    """
    if _requested_summary(request) is None:
        return None
    return "after" if capabilities.summaries else "instead"


def _requested_summary(request: CreateRequest) -> str | None:
    if not request.reasoning:
        return None
    return request.reasoning.summary or request.reasoning.generate_summary or None
