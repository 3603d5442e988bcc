"""What a response of a Realtime session is to be: `response.create` and the session, made into one request to the engine."""

from typing import Any

from msgspec import UNSET, Struct

from antiphon.engine_api import commands, history as engine_history
from antiphon.engine_api.options import FunctionTool, Retention, Sampling, Tool, ToolChoice, Voice
from antiphon.errors import ClientError, shorten, unsupported_parameter
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
from antiphon.wire.realtime.response import ResponseParams
from antiphon.wire.realtime.session import MaxOutputTokens, McpTool, Modality, RetentionRatio, Session, TokenLimits
from antiphon.wire.responses.tools import FunctionChoice, McpChoice


class ResponsePlan(Struct, frozen=True, kw_only=True):
    """
    What an answer is to be.

    Attributes:
        conversation_id: None where it is out of band: it reads the conversation and adds nothing to it.
        format: of its sound, as the wire names it.
        temperature: None where none was asked for.
        respond: what the engine is told.
    """

    id: str
    conversation_id: str | None
    modalities: list[Modality]
    voice: Any
    format: Any
    max_output_tokens: MaxOutputTokens
    temperature: float | None
    metadata: dict[str, str] | None
    respond: commands.Respond


def plan_response(
    id: str,
    params: ResponseParams,
    session: Session,
    config: RealtimeSessionConfig,
    history: tuple[engine_history.HistoryItem, ...],
    conversation_id: str | None,
) -> ResponsePlan:
    """
    What an answer is to be, by the session's settings and what is asked for this one alone.

    Raises:
        ClientError: it can't be had.
    """
    if _is_set(params.prompt):
        raise unsupported_parameter("response.prompt", config.model)
    modalities = _value_or(params.output_modalities, session.output_modalities)
    check_modalities(modalities, config, "response.output_modalities")
    reasoning = _value_or(params.reasoning, session.reasoning)
    check_effort(reasoning, config, "response.reasoning.effort")
    output = getattr(_value_or(params.audio, None), "output", None)
    voice = _value_or(getattr(output, "voice", None), audio_output(session).voice)
    check_voice(voice, config, "response.audio.output.voice")
    format = _value_or(None if config.has_output_buffer else getattr(output, "format", None), audio_output(session).format)
    tools = _value_or(params.tools, session.tools)
    most = _value_or(params.max_output_tokens, session.max_output_tokens)
    temperature = _value_or(params.temperature, session.temperature)
    effort = getattr(reasoning, "effort", None)
    respond = commands.Respond(
        id=id,
        history=history,
        instructions=_value_or(params.instructions, session.instructions) or None,
        tools=_tools(tools, config, _param_path(params, "tools")),
        tool_choice=_tool_choice(_value_or(params.tool_choice, session.tool_choice), tools, _param_path(params, "tool_choice")),
        parallel_tool_calls=_value_or(params.parallel_tool_calls, session.parallel_tool_calls) is not False,
        sampling=Sampling(temperature=temperature, max_tokens=most if isinstance(most, int) else None),
        truncate=session.truncation != "disabled" and config.capabilities.truncation,
        reasoning_effort=effort if isinstance(effort, str) else None,
        voice=_voice(voice, format, session) if list(modalities) == ["audio"] else None,
        retention=_retention(session.truncation),
        out_of_band=conversation_id is None,
    )
    metadata = _value_or(params.metadata, None)
    return ResponsePlan(
        id=id,
        conversation_id=conversation_id,
        modalities=list(modalities),
        voice=voice,
        format=format,
        max_output_tokens=most,
        temperature=temperature,
        metadata=metadata,
        respond=respond,
    )


def _is_set(value: Any) -> bool:
    return value is not None and value is not UNSET


def _value_or(value: Any, default: Any) -> Any:
    if _is_set(value):
        return value
    return default if default is not UNSET else None


def _param_path(params: ResponseParams, name: str) -> str:
    """Where the client set that: for this answer alone, or for all of them."""
    return f"response.{name}" if _is_set(getattr(params, name)) else f"session.{name}"


def _tools(tools: Any, config: RealtimeSessionConfig, path: str) -> tuple[Tool, ...]:
    offered = function_tools(tools)
    if offered and not config.capabilities.tools:
        raise unsupported_parameter(path, config.model)
    return tuple(FunctionTool(tool.name, _value_or(tool.description, None), _value_or(tool.parameters, None)) for tool in offered)


def _tool_choice(choice: Any, tools: Any, path: str) -> ToolChoice:
    match choice:
        case FunctionChoice(name=name):
            if name not in [tool.name for tool in function_tools(tools)]:
                raise _no_such_choice(name, path)
            return ToolChoice("required", (name,))
        case McpChoice(server_label=label):
            if not any(isinstance(tool, McpTool) and tool.server_label == label for tool in tools or ()):
                raise _no_such_choice(label, path)
            raise ClientError("MCP tools are not available on this server.", code="unsupported_value", param=path)
        case "none" | "auto" | "required":
            return ToolChoice(choice)
        case _:
            return ToolChoice()


def _no_such_choice(name: str, path: str) -> ClientError:
    return ClientError(f"Tool choice '{shorten(name)}' not found in 'tools' parameter.", code="invalid_value", param=path)


def _voice(voice: Any, format: Any, session: Session) -> Voice:
    speed = audio_output(session).speed
    return Voice(voice_name(voice), codec_of(format).rate_hz, float(speed) if isinstance(speed, int | float) else 1.0)


def _retention(truncation: Any) -> Retention | None:
    if not isinstance(truncation, RetentionRatio):
        return None
    limits = truncation.token_limits
    most = limits.post_instructions if isinstance(limits, TokenLimits) else None
    return Retention(truncation.retention_ratio, most if isinstance(most, int) else None)
