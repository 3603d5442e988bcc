"""The plan of a Realtime response: `response.create` and the session, resolved into one request to the engine."""

from collections.abc import Sequence
from typing import TypeVar

from msgspec import Struct

from antiphon.engine_api import commands, history as engine_history
from antiphon.engine_api.options import FunctionTool, Retention, Sampling, Tool, ToolChoice, Voice
from antiphon.errors import tool_choice_not_found, unsupported_parameter
from antiphon.protocols.realtime.settings import (
    RealtimeSessionConfig,
    audio_output,
    check_effort,
    check_modalities,
    check_voice,
    codec_of,
    function_tools,
    voice_name,
)
from antiphon.protocols.tool_loop import ApprovedCall, LoopLimits
from antiphon.tool_api import NO_SERVER_TOOLS, ServerFunction, ServerTools, mcp_function_name
from antiphon.wire.codec.fields import is_set, value_or
from antiphon.wire.codec.types import Maybe, Opt
from antiphon.wire.realtime.response import ResponseParams
from antiphon.wire.realtime.session import (
    Format,
    MaxOutputTokens,
    McpTool,
    Modality,
    RetentionRatio,
    Session,
    TokenLimits,
    Tool as WireTool,
    ToolChoice as WireToolChoice,
    VoiceId,
)
from antiphon.wire.responses.tools import FunctionChoice, McpChoice

T = TypeVar("T")


class ResponsePlan(Struct, frozen=True, kw_only=True):
    """
    What a response will be.

    Attributes:
        conversation_id: None if it is out of band: it may read the conversation and adds nothing to it.
        format: of its audio.
        temperature: None if none was requested.
        respond: the request to the engine.
        server_tools: the functions of MCP servers that the server calls.
        later_choice: the tool choice after the first turn of a response with them.
        approved_calls: those to make before the model is asked.
        loop_limits: of its calls.
    """

    id: str
    conversation_id: str | None
    modalities: list[Modality]
    voice: str | VoiceId
    format: Format
    max_output_tokens: MaxOutputTokens
    temperature: float | None
    metadata: dict[str, str] | None
    respond: commands.Respond
    server_tools: ServerTools = NO_SERVER_TOOLS
    later_choice: ToolChoice = ToolChoice()
    approved_calls: tuple[ApprovedCall, ...] = ()
    loop_limits: LoopLimits = LoopLimits()


def effective_tools(params: ResponseParams, session: Session) -> tuple[Sequence[WireTool], str]:
    """The tools of a response, which take the place of the session's, and their path for errors."""
    return _optional_setting(params.tools, session.tools) or (), _param_path(params, "tools")


def plan_response(
    id: str,
    params: ResponseParams,
    session: Session,
    config: RealtimeSessionConfig,
    history: tuple[engine_history.HistoryItem, ...],
    conversation_id: str | None,
    server_functions: tuple[ServerFunction, ...] = (),
    approved_calls: tuple[ApprovedCall, ...] = (),
) -> ResponsePlan:
    """
    Resolve a response from the session's settings and the parameters for this response alone.

    Args:
        server_functions: of the MCP servers among its tools.
        approved_calls: those that the user has approved and that are not made yet.

    Raises:
        ClientError: the engine can't do what they ask.
    """
    if is_set(params.prompt):
        raise unsupported_parameter("response.prompt", None)
    modalities = _setting(params.output_modalities, session.output_modalities)
    check_modalities(modalities, config, "response.output_modalities")
    reasoning = _optional_setting(params.reasoning, session.reasoning)
    check_effort(reasoning, config, "response.reasoning.effort")
    output = getattr(value_or(params.audio, None), "output", None)
    voice = _setting(getattr(output, "voice", None), audio_output(session).voice)
    check_voice(voice, config, "response.audio.output.voice")
    # In a call the server plays the audio, so a client's format has no effect.
    format = _setting(None if config.has_output_buffer else getattr(output, "format", None), audio_output(session).format)
    # Realtime: a response's own tools take the place of the session's.
    tools, tools_path = effective_tools(params, session)
    max_output_tokens: MaxOutputTokens = _setting(params.max_output_tokens, session.max_output_tokens)
    temperature = _optional_setting(params.temperature, session.temperature)
    # A hint, which an engine without efforts never sees.
    effort = getattr(reasoning, "effort", None) if config.capabilities.efforts else None
    wire_choice: WireToolChoice | None = _optional_setting(params.tool_choice, session.tool_choice)
    tool_choice = _tool_choice(wire_choice, tools, server_functions, _param_path(params, "tool_choice"))
    respond = commands.Respond(
        id=id,
        history=history,
        instructions=_optional_setting(params.instructions, session.instructions) or None,
        tools=(*_tools(tools, config, tools_path), *(own.function for own in server_functions)),
        tool_choice=tool_choice,
        parallel_tool_calls=_optional_setting(params.parallel_tool_calls, session.parallel_tool_calls) is not False,
        sampling=Sampling(temperature=temperature, max_tokens=max_output_tokens if isinstance(max_output_tokens, int) else None),
        truncate=session.truncation != "disabled" and config.capabilities.truncation,
        reasoning_effort=effort if isinstance(effort, str) else None,
        voice=_voice(voice, format, session) if list(modalities) == ["audio"] else None,
        retention=_retention(session.truncation) if config.capabilities.truncation else None,
        out_of_band=conversation_id is None,
    )
    metadata = value_or(params.metadata, None)
    types = frozenset({"mcp"}) if server_functions or approved_calls else frozenset[str]()
    server_tools = ServerTools(types, server_functions)
    return ResponsePlan(
        id=id,
        conversation_id=conversation_id,
        modalities=list(modalities),
        voice=voice,
        format=format,
        max_output_tokens=max_output_tokens,
        temperature=temperature,
        metadata=metadata,
        respond=respond,
        server_tools=server_tools,
        # Realtime: a choice that requires a call is met by the first turn.
        approved_calls=approved_calls,
        loop_limits=config.loop_limits,
        later_choice=ToolChoice("none" if tool_choice.mode == "none" else "auto"),
    )


def _setting(value: Maybe[T], session_value: Maybe[T]) -> T:
    """The response's own setting, or the session's, where a whole session always has one."""
    setting = _optional_setting(value, session_value)
    assert setting is not None
    return setting


def _optional_setting(value: Maybe[T], session_value: Maybe[T]) -> T | None:
    """The response's own setting, or the session's; None if neither is set."""
    return value_or(value, value_or(session_value, None))


def _param_path(params: ResponseParams, name: str) -> str:
    """Where the client set a field, for error messages: in this response or in the session."""
    return f"response.{name}" if is_set(getattr(params, name)) else f"session.{name}"


def _tools(tools: Sequence[WireTool] | None, config: RealtimeSessionConfig, path: str) -> tuple[Tool, ...]:
    functions = function_tools(tools)
    if functions and not config.capabilities.tools:
        raise unsupported_parameter(path, config.model)
    return tuple(FunctionTool(tool.name, value_or(tool.description, None), value_or(tool.parameters, None)) for tool in functions)


def _tool_choice(
    choice: WireToolChoice | None, tools: Sequence[WireTool] | None, server_functions: Sequence[ServerFunction], path: str
) -> ToolChoice:
    match choice:
        case FunctionChoice(name=name):
            if name not in [tool.name for tool in function_tools(tools)]:
                # Realtime: `tool_choice` names a function of this response, so a session's choice may miss its tool.
                raise tool_choice_not_found(path, name)
            return ToolChoice("required", (name,))
        case McpChoice(server_label=label, name=name):
            if not any(isinstance(tool, McpTool) and tool.server_label == label for tool in tools or ()):
                raise tool_choice_not_found(path, label)
            function_name = mcp_function_name(label, name) if isinstance(name, str) else None
            functions = [own.function for own in server_functions if own.function.namespace == label]
            keys = tuple(function.key for function in functions if function_name in (None, function.name))
            if not keys:
                raise tool_choice_not_found(path, name if isinstance(name, str) else label)
            return ToolChoice("required", keys)
        case "none" | "auto" | "required":
            return ToolChoice(choice)
        case _:
            return ToolChoice()


def _voice(voice: str | VoiceId, format: Format, session: Session) -> Voice:
    speed = audio_output(session).speed
    return Voice(voice_name(voice), codec_of(format).rate_hz, float(speed) if isinstance(speed, int | float) else 1.0)


def _retention(truncation: Opt[str | RetentionRatio]) -> Retention | None:
    if not isinstance(truncation, RetentionRatio):
        return None
    # Realtime reference: `post_instructions` is the limit of the conversation, without the instructions.
    limits = truncation.token_limits
    max_tokens = limits.post_instructions if isinstance(limits, TokenLimits) else None
    return Retention(truncation.retention_ratio, max_tokens if isinstance(max_tokens, int) else None)
