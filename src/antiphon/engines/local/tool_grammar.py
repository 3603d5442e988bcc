"""
Tools as a small model can use them: what it is shown, and what it is held to where it must call one.
"""

import json
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from antiphon.engine_api import commands, events as talk_events
from antiphon.engine_api.options import CustomTool, FunctionTool, Tool
from antiphon.engines.local.json_schema import Schema, Unfit, invalid_schema
from antiphon.errors import ClientMistake, listed

OPEN = "<tool_call>\n"
CLOSE = "\n</tool_call>"

_TEXT_ONLY = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


class Offer(Struct, frozen=True, eq=False):
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
    schema: Schema

    @property
    def prefix(self) -> str:
        """How a call that follows the grammar begins, up to its arguments."""
        return f'{{"name": {json.dumps(self.name)}, "arguments": '

    def calling(self, id: str, call_id: str) -> talk_events.Calling:
        """The word that begins a call."""
        return talk_events.Calling(id, call_id, self.tool.name, custom=self.custom, namespace=self.tool.namespace)

    @property
    def custom(self) -> bool:
        """Whether it takes free text, which the model writes as a function's one argument."""
        return isinstance(self.tool, CustomTool)

    def given(self, arguments: str) -> str:
        """What the tool is called with: the arguments as they are, or of a custom tool its input."""
        if not self.custom:
            return arguments
        try:
            return str(json.loads(arguments)["input"])
        except (ValueError, LookupError, TypeError):  # not the function's shape: then the text itself is the input
            return arguments


def offers(ask: commands.Respond) -> list[Offer]:
    """
    The tools that may be called in this answer.

    Raises:
        ClientMistake: a tool's schema can't be used, or a call is required of none.
    """
    if ask.tool_choice.mode == "none":
        return []
    names, only = ask.tool_choice.names, ask.tool_choice.only
    chosen = [_offer(tool, number) for number, tool in enumerate(ask.tools) if only is None or tool.key in only]
    if ask.tool_choice.mode == "required" and not chosen:
        raise ClientMistake(
            f"Tool choice {listed(names, 'or') if names else 'required'} not found in 'tools' parameter.",
            code="invalid_value",
            param="tool_choice",
        )
    return chosen


def _offer(tool: Tool, number: int) -> Offer:
    name = tool.key
    match tool:
        case CustomTool():
            parameters: dict[str, Any] = _TEXT_ONLY
            strict = True
        case FunctionTool():
            parameters = tool.parameters or {"type": "object", "properties": {}}
            strict = bool(tool.strict)
    try:
        schema = Schema(parameters, strict)
    except Unfit as error:
        raise invalid_schema(error, f"function '{name}'", "invalid_function_parameters", f"tools[{number}].parameters") from None
    function = {"name": name, "description": tool.description, "parameters": parameters}
    function = {key: value for key, value in function.items() if value is not None}
    return Offer(name, tool, {"type": "function", "function": function}, schema)


def grammar(format: Schema | None, calls: Sequence[Offer]) -> str:
    """What the model is held to, for llguidance: an answer in that format, or one of these calls."""
    rules = [f"format: {format.rule()}"] if format else []
    starts = ["format"] if format else []
    for number, one in enumerate(calls):
        starts.append(f"call{number}")
        rules.append(f'call{number}: {json.dumps(one.prefix)} arguments{number} "}}"')
        rules.append(f"arguments{number}: {one.schema.rule()}")
    return "\n".join(["%llguidance {}", f"start: {' | '.join(starts)}", *rules])
