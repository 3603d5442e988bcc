"""The tools of a chat, as the engine gets them, and the choice among them."""

from collections.abc import Iterable, Sequence

from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import CustomTool, FunctionTool, Tool, ToolChoice
from antiphon.errors import ClientError, shorten, too_short, tool_choice_not_found
from antiphon.protocols.chat.content import ContentContext
from antiphon.wire.chat.request import ChatRequest
from antiphon.wire.chat.tools import (
    ChatAllowedTools,
    ChatCustomChoice,
    ChatCustomTool,
    ChatFunctionChoice,
    ChatFunctionTool,
    ChatGrammarFormat,
    ChatSchemaFormat,
    ChatTool,
    CustomDefinition,
    FunctionDefinition,
    GrammarDefinition,
    SchemaDefinition,
    ToolReference,
)
from antiphon.wire.codec.fields import value_or
from antiphon.wire.codec.schemas import check_output_schema, check_parameters_schema, check_regex


def to_tools(request: ChatRequest, capabilities: Capabilities, model: str) -> tuple[Tool, ...]:
    """
    The tools of the request, or its functions, in the form from before tools.

    Raises:
        ClientError: the model can't call one, or two have one name.
    """
    functions = [ChatFunctionTool(function=each) for each in request.functions or ()]
    field = "functions" if functions else "tools"
    tools: list[ChatTool] = [*(request.tools or ()), *functions]
    return _with_own_names([_tool(tool, f"{field}[{index}]", capabilities, model) for index, tool in enumerate(tools)], field)


def _with_own_names(tools: Sequence[Tool], field: str) -> tuple[Tool, ...]:
    """The tools, no two of which have one name: no model could tell them apart."""
    places: dict[str, int] = {}
    for index, tool in enumerate(tools):
        if (first := places.setdefault(tool.name, index)) != index:
            message = f"Invalid '{field}[{index}]': '{shorten(tool.name)}' is the name of '{field}[{first}]' too. Rename one of them."
            raise ClientError(message, code="invalid_value", param=f"{field}[{index}]")
    return tuple(tools)


def _tool(tool: ChatTool, path: str, capabilities: Capabilities, model: str) -> Tool:
    if not (capabilities.tools if isinstance(tool, ChatFunctionTool) else capabilities.custom_tools):
        raise ClientError(
            f"Unsupported parameter: '{path}' is not supported with the '{model}' model, which has no tool of type '{tool.type}'.",
            code="unsupported_parameter",
            param=path,
        )
    return _function(tool.function) if isinstance(tool, ChatFunctionTool) else _custom_tool(tool, capabilities)


def _function(function: FunctionDefinition) -> FunctionTool:
    return FunctionTool(function.name, function.description or None, function.parameters or None, value_or(function.strict, None))


def _custom_tool(tool: ChatCustomTool, capabilities: Capabilities) -> CustomTool:
    custom = tool.custom
    description = custom.description or None
    if not isinstance(custom.format, ChatGrammarFormat):
        return CustomTool(custom.name, description)
    syntax, grammar = custom.format.grammar.syntax, custom.format.grammar.definition
    if capabilities.grammars:
        return CustomTool(custom.name, description, syntax, grammar)
    # A model that can't be held to a grammar is told it, as in the Responses API (docs/decisions/0010).
    hint = f"The input must match this {syntax} grammar:\n{grammar}"
    return CustomTool(custom.name, f"{description}\n\n{hint}" if description else hint)


def check_schemas(request: ChatRequest, _context: ContentContext) -> None:
    """
    Check that the schemas to which the output is held are JSON Schemas, and that regular expressions are such.

    Raises:
        ClientError: one is none.
    """
    match request.response_format:
        case ChatSchemaFormat(json_schema=SchemaDefinition(name=name, schema=dict(schema))):
            check_output_schema(name, schema, "response_format.json_schema.schema")
        case _:
            pass
    for index, function in enumerate(request.functions or ()):
        _check_function(function, f"functions[{index}]")
    for index, tool in enumerate(request.tools or ()):
        match tool:
            case ChatFunctionTool(function=function):
                _check_function(function, f"tools[{index}].function")
            case ChatCustomTool(
                custom=CustomDefinition(format=ChatGrammarFormat(grammar=GrammarDefinition(syntax="regex", definition=pattern)))
            ):
                check_regex(pattern, f"tools[{index}].custom.format.grammar.definition")
            case _:
                pass


def _check_function(function: FunctionDefinition, path: str) -> None:
    if function.strict is True and isinstance(function.parameters, dict):
        check_parameters_schema(function.name, function.parameters, f"{path}.parameters")


def to_tool_choice(request: ChatRequest, tools: Iterable[Tool]) -> ToolChoice:
    """
    The request's choice; without one, the model decides.

    Raises:
        ClientError: it chooses a tool that the request does not have.
    """
    names = {tool.name for tool in tools}
    field = "function_call" if request.function_call else "tool_choice"
    match request.function_call or request.tool_choice:
        case "none" | "auto" as mode:
            return ToolChoice(mode)
        case "required":
            if not names:
                raise tool_choice_not_found(field, "required")
            return ToolChoice("required")
        case ToolReference(name=name):
            return ToolChoice("required", _known_names([name], names, field))
        case ChatFunctionChoice(function=reference) | ChatCustomChoice(custom=reference):
            return ToolChoice("required", _known_names([reference.name], names, field))
        case ChatAllowedTools(allowed_tools=choice):
            if not choice.tools:
                raise too_short("tool_choice.allowed_tools.tools", "array", 1, 0)
            choices = [each.function.name if isinstance(each, ChatFunctionChoice) else each.custom.name for each in choice.tools]
            return ToolChoice(choice.mode, _known_names(choices, names, field))
        case _:
            return ToolChoice()


def _known_names(choices: Iterable[str], names: set[str], field: str) -> tuple[str, ...]:
    choices = tuple(dict.fromkeys(choices))
    for name in choices:
        if name not in names:
            raise tool_choice_not_found(field, name)
    return choices
