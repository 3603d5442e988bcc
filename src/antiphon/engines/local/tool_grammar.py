"""Tools for a small model: their signatures for the prompt, and a grammar where it must call one."""

import json
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from antiphon.engine_api import commands, events
from antiphon.engine_api.options import CustomTool, FunctionTool, Tool
from antiphon.engines.local.json_schema import OutputSchema, UnusableSchema
from antiphon.errors import invalid_schema, tool_choice_not_found

TOOL_CALL_OPEN = "<tool_call>\n"
TOOL_CALL_CLOSE = "\n</tool_call>"

_CUSTOM_TOOL_PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


class GrammarTool(Struct, frozen=True, eq=False):
    """
    A tool as the model sees it: a function with a name of its own.

    Attributes:
        name: with its namespace, if it has one.
        signature: its description, for the prompt.
        schema: of its arguments.
    """

    name: str
    tool: Tool
    signature: dict[str, Any]
    schema: OutputSchema

    @property
    def call_prefix(self) -> str:
        """The start of a call in the grammar, up to its arguments."""
        return f'{{"name": {json.dumps(self.name)}, "arguments": '

    def start_event(self, id: str, call_id: str) -> events.ToolCallStarted:
        """The event that starts a call."""
        return events.ToolCallStarted(id, call_id, self.tool.name, custom=self.is_custom, namespace=self.tool.namespace)

    @property
    def is_custom(self) -> bool:
        """Whether it takes free text, which the model writes as the one argument of a function."""
        return isinstance(self.tool, CustomTool)

    def call_input(self, arguments: str) -> str:
        """The tool's input: the arguments unchanged, or a custom tool's text out of them."""
        if not self.is_custom:
            return arguments
        try:
            return str(json.loads(arguments)["input"])
        except (ValueError, LookupError, TypeError):  # not such an object: then all of it is the input
            return arguments


def callable_tools(request: commands.Respond) -> list[GrammarTool]:
    """
    The tools that may be called in this response.

    Raises:
        ClientError: a tool's schema can't be used, or a call is required and there is no tool for it.
    """
    if request.tool_choice.mode == "none":
        return []
    names, only = request.tool_choice.names, request.tool_choice.name_set
    tools = [_grammar_tool(tool, index) for index, tool in enumerate(request.tools) if only is None or tool.key in only]
    if request.tool_choice.mode == "required" and not tools:
        raise tool_choice_not_found("tool_choice", *(names or ("required",)))
    return tools


def _grammar_tool(tool: Tool, index: int) -> GrammarTool:
    name = tool.key
    match tool:
        case CustomTool():
            parameters: dict[str, Any] = _CUSTOM_TOOL_PARAMETERS
            strict = True
        case FunctionTool():
            parameters = tool.parameters or {"type": "object", "properties": {}}
            strict = bool(tool.strict)
    try:
        schema = OutputSchema(parameters, strict)
    except UnusableSchema as error:
        raise invalid_schema(str(error), f"function '{name}'", "invalid_function_parameters", f"tools[{index}].parameters") from None
    function = {"name": name, "description": tool.description, "parameters": parameters}
    function = {key: value for key, value in function.items() if value is not None}
    return GrammarTool(name, tool, {"type": "function", "function": function}, schema)


def grammar(format: OutputSchema | None, tools: Sequence[GrammarTool]) -> str:
    """An llguidance grammar: output in that format, or a call of one of these tools."""
    rules = [f"format: {format.rule()}"] if format else []
    starts = ["format"] if format else []
    for number, one in enumerate(tools):
        starts.append(f"call{number}")
        rules.append(f'call{number}: {json.dumps(one.call_prefix)} arguments{number} "}}"')
        rules.append(f"arguments{number}: {one.schema.rule()}")
    return "\n".join(["%llguidance {}", f"start: {' | '.join(starts)}", *rules])
