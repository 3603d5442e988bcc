"""What a response of a Realtime session is to be: `response.create` and the session, made into one request to the engine."""

from typing import Any

from msgspec import UNSET, Struct

from antiphon.engine_api import commands, history as turns
from antiphon.engine_api.options import FunctionTool, Retention, Sampling, Tool, ToolChoice, Voice
from antiphon.errors import ClientMistake, shown, unsupported_parameter
from antiphon.protocols.realtime.settings import (
    Opening,
    check_effort,
    check_modalities,
    check_voice,
    coding_of,
    functions,
    sound_out,
    voice_name,
)
from antiphon.wire.realtime.response import ResponseParams
from antiphon.wire.realtime.session import MaxOutputTokens, McpTool, Modality, RetentionRatio, Session, TokenLimits
from antiphon.wire.responses.tools import FunctionChoice, McpChoice


class Plan(Struct, frozen=True, kw_only=True):
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


def plan(
    id: str, params: ResponseParams, session: Session, opening: Opening, history: tuple[turns.Turn, ...], conversation_id: str | None
) -> Plan:
    """
    What an answer is to be, by the session's settings and what is asked for this one alone.

    Raises:
        ClientMistake: it can't be had.
    """
    if _given(params.prompt):
        raise unsupported_parameter("response.prompt", opening.model)
    modalities = _or(params.output_modalities, session.output_modalities)
    check_modalities(modalities, opening, "response.output_modalities")
    reasoning = _or(params.reasoning, session.reasoning)
    check_effort(reasoning, opening, "response.reasoning.effort")
    output = getattr(_or(params.audio, None), "output", None)
    voice = _or(getattr(output, "voice", None), sound_out(session).voice)
    check_voice(voice, opening, "response.audio.output.voice")
    format = _or(None if opening.has_output_buffer else getattr(output, "format", None), sound_out(session).format)
    tools = _or(params.tools, session.tools)
    most = _or(params.max_output_tokens, session.max_output_tokens)
    temperature = _or(params.temperature, session.temperature)
    effort = getattr(reasoning, "effort", None)
    respond = commands.Respond(
        id=id,
        history=history,
        instructions=_or(params.instructions, session.instructions) or None,
        tools=_tools(tools, opening, _path(params, "tools")),
        tool_choice=_choice(_or(params.tool_choice, session.tool_choice), tools, _path(params, "tool_choice")),
        parallel_tool_calls=_or(params.parallel_tool_calls, session.parallel_tool_calls) is not False,
        sampling=Sampling(temperature=temperature, max_tokens=most if isinstance(most, int) else None),
        truncate=session.truncation != "disabled" and opening.abilities.truncation,
        effort=effort if isinstance(effort, str) else None,
        voice=_voice(voice, format, session) if list(modalities) == ["audio"] else None,
        retain=_retained(session.truncation),
        aside=conversation_id is None,
    )
    metadata = _or(params.metadata, None)
    return Plan(
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


def _given(value: Any) -> bool:
    return value is not None and value is not UNSET


def _or(value: Any, otherwise: Any) -> Any:
    if _given(value):
        return value
    return otherwise if otherwise is not UNSET else None


def _path(params: ResponseParams, name: str) -> str:
    """Where the client set that: for this answer alone, or for all of them."""
    return f"response.{name}" if _given(getattr(params, name)) else f"session.{name}"


def _tools(tools: Any, opening: Opening, path: str) -> tuple[Tool, ...]:
    offered = functions(tools)
    if offered and not opening.abilities.tools:
        raise unsupported_parameter(path, opening.model)
    return tuple(FunctionTool(tool.name, _or(tool.description, None), _or(tool.parameters, None)) for tool in offered)


def _choice(choice: Any, tools: Any, path: str) -> ToolChoice:
    match choice:
        case FunctionChoice(name=name):
            if name not in [tool.name for tool in functions(tools)]:
                raise _no_such_choice(name, path)
            return ToolChoice("required", (name,))
        case McpChoice(server_label=label):
            if not any(isinstance(tool, McpTool) and tool.server_label == label for tool in tools or ()):
                raise _no_such_choice(label, path)
            raise ClientMistake("MCP tools are not available on this server.", code="unsupported_value", param=path)
        case "none" | "auto" | "required":
            return ToolChoice(choice)
        case _:
            return ToolChoice()


def _no_such_choice(name: str, path: str) -> ClientMistake:
    return ClientMistake(f"Tool choice '{shown(name)}' not found in 'tools' parameter.", code="invalid_value", param=path)


def _voice(voice: Any, format: Any, session: Session) -> Voice:
    speed = sound_out(session).speed
    return Voice(voice_name(voice), coding_of(format).rate_hz, float(speed) if isinstance(speed, int | float) else 1.0)


def _retained(truncation: Any) -> Retention | None:
    if not isinstance(truncation, RetentionRatio):
        return None
    limits = truncation.token_limits
    most = limits.post_instructions if isinstance(limits, TokenLimits) else None
    return Retention(truncation.retention_ratio, most if isinstance(most, int) else None)
