"""
The tools of a request, as the engine gets them.

Tools that the original's servers run are left out, as other programs send them with every request; `Omissions` names
them. One that must be called is refused instead.
"""

from collections.abc import Sequence

from antiphon.engine_api.options import FunctionTool, ToolChoice
from antiphon.errors import ClientError, missing_parameter, shorten, tool_choice_not_found
from antiphon.protocols.messages.client_tools import known_tool
from antiphon.protocols.messages.content import MessagesContext
from antiphon.wire.codec.fields import is_set, value_or
from antiphon.wire.codec.schemas import check_parameters_schema
from antiphon.wire.messages.request import (
    AnyToolChoice,
    AutoToolChoice,
    CountTokensRequest,
    MessageToolChoice,
    NamedToolChoice,
    NoToolChoice,
    ToolParam,
)


def engine_tools(request: CountTokensRequest, context: MessagesContext) -> tuple[FunctionTool, ...]:
    """
    Translate the tools.

    Raises:
        ClientError: the engine can't do one that must not be left out, or two have one name.
    """
    tools: dict[str, FunctionTool] = {}
    forced_name = request.tool_choice.name if isinstance(request.tool_choice, NamedToolChoice) else None
    for index, tool in enumerate(request.tools or ()):
        path = f"tools[{index}]"
        function = _function(tool, path)
        if function is None:
            _omit(tool, path, forced_name, context)
        elif not context.capabilities.tools:
            raise ClientError(
                f"Unsupported parameter: 'tools' is not supported with the '{context.model}' model.",
                code="unsupported_parameter",
                param="tools",
            )
        elif function.name in tools:
            raise ClientError("Tool names must be unique.", param=f"{path}.name")
        else:
            tools[function.name] = function
    return tuple(tools.values())


def _function(tool: ToolParam, path: str) -> FunctionTool | None:
    """The tool as a function; None if the client does not run it."""
    kind = value_or(tool.type, "custom")
    description = value_or(tool.description, None)
    if kind == "custom":
        if not tool.name:
            raise missing_parameter(f"{path}.name")
        if not is_set(tool.input_schema):
            raise missing_parameter(f"{path}.input_schema")
        if tool.strict is True:
            check_parameters_schema(tool.name, tool.input_schema, f"{path}.input_schema")
        return FunctionTool(tool.name, description, tool.input_schema, value_or(tool.strict, None))
    standard_tool = known_tool(kind, tool.extra or {})
    if standard_tool is None:
        return None
    return FunctionTool(tool.name or kind.rpartition("_")[0], description or standard_tool.description, standard_tool.parameters)


def _omit(tool: ToolParam, path: str, forced_name: str | None, context: MessagesContext) -> None:
    kind = str(tool.type)
    # Leaving it out would leave a choice that no tool can meet.
    if (tool.name and tool.name == forced_name) or not context.omit_unsupported:
        raise ClientError(
            f"Input tag '{shorten(kind)}' is not supported with the '{context.model}' model: the Messages API runs no tools of the server.",
            code="unsupported_parameter",
            param=path,
        )
    context.omissions.tools.append(kind)


def engine_tool_choice(choice: MessageToolChoice | None, tools: Sequence[FunctionTool]) -> ToolChoice:
    """
    Translate the choice.

    Raises:
        ClientError: it demands a tool that the request does not have.
    """
    match choice:
        case AnyToolChoice():
            if not tools:
                raise tool_choice_not_found("tool_choice", "any")
            return ToolChoice("required")
        case NamedToolChoice(name=name):
            if name not in {tool.name for tool in tools}:
                raise ClientError(f"Tool '{shorten(name)}' not found in provided tools", param="tool_choice.name")
            return ToolChoice("required", (name,))
        case NoToolChoice():
            return ToolChoice("none")
        case _:
            return ToolChoice()


def allows_parallel_calls(choice: MessageToolChoice | None) -> bool:
    """Whether the model may call several tools at once."""
    return not (isinstance(choice, AutoToolChoice | AnyToolChoice | NamedToolChoice) and choice.disable_parallel_tool_use is True)
