"""
Tools as a small model can use them: what it is shown, and what it is held to where it must call one.
"""

import json
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from antiphon.engine_api import commands, events
from antiphon.engine_api.options import CustomTool, FunctionTool, Tool
from antiphon.engines.local.json_schema import OutputSchema, UnusableSchema, invalid_schema
from antiphon.errors import ClientError, quote_list

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
        name: with its namespace, where it has one.
        signature: its description, for the prompt.
        schema: of its arguments.
    """

    name: str
    tool: Tool
    signature: dict[str, Any]
    schema: OutputSchema

    @property
    def call_prefix(self) -> str:
        """How a call that follows the grammar begins, up to its arguments."""
        return f'{{"name": {json.dumps(self.name)}, "arguments": '

    def start_event(self, id: str, call_id: str) -> events.ToolCallStarted:
        """The word that begins a call."""
        return events.ToolCallStarted(id, call_id, self.tool.name, custom=self.is_custom, namespace=self.tool.namespace)

    @property
    def is_custom(self) -> bool:
        """Whether it takes free text, which the model writes as a function's one argument."""
        return isinstance(self.tool, CustomTool)

    def call_input(self, arguments: str) -> str:
        """What the tool is called with: the arguments as they are, or of a custom tool its input."""
        if not self.is_custom:
            return arguments
        try:
            return str(json.loads(arguments)["input"])
        except (ValueError, LookupError, TypeError):  # not the function's shape: then the text itself is the input
            return arguments


def callable_tools(request: commands.Respond) -> list[GrammarTool]:
    """
    The tools that may be called in this answer.

    Raises:
        ClientError: a tool's schema can't be used, or a call is required of none.
    """
    if request.tool_choice.mode == "none":
        return []
    names, only = request.tool_choice.names, request.tool_choice.name_set
    chosen = [_grammar_tool(tool, number) for number, tool in enumerate(request.tools) if only is None or tool.key in only]
    if request.tool_choice.mode == "required" and not chosen:
        raise ClientError(
            f"Tool choice {quote_list(names, 'or') if names else 'required'} not found in 'tools' parameter.",
            code="invalid_value",
            param="tool_choice",
        )
    return chosen


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
        raise invalid_schema(error, f"function '{name}'", "invalid_function_parameters", f"tools[{index}].parameters") from None
    function = {"name": name, "description": tool.description, "parameters": parameters}
    function = {key: value for key, value in function.items() if value is not None}
    return GrammarTool(name, tool, {"type": "function", "function": function}, schema)


def grammar(format: OutputSchema | None, tools: Sequence[GrammarTool]) -> str:
    """What the model is held to, for llguidance: an answer in that format, or one of these calls."""
    rules = [f"format: {format.rule()}"] if format else []
    starts = ["format"] if format else []
    for number, one in enumerate(tools):
        starts.append(f"call{number}")
        rules.append(f'call{number}: {json.dumps(one.call_prefix)} arguments{number} "}}"')
        rules.append(f"arguments{number}: {one.schema.rule()}")
    return "\n".join(["%llguidance {}", f"start: {' | '.join(starts)}", *rules])
