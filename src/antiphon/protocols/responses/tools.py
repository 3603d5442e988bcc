"""
The tools of a request, as the engine gets them.

Clients such as Codex send every tool they know with every request, whatever the model can do. A tool that the engine
can't do is either omitted (the response lists it, the model doesn't get it, `Omissions` names it) or refused.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import product

import msgspec
from msgspec import Struct, UnsetType, field

from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.documents import FileContent
from antiphon.engine_api.options import CustomTool, FunctionTool, HostedTool, Tool, ToolChoice
from antiphon.errors import ClientError, tool_choice_not_found, unsupported_parameter
from antiphon.protocols.omissions import Omissions
from antiphon.protocols.responses.approvals import Approvals
from antiphon.tool_api import NO_SERVER_TOOLS, ServerTools, mcp_function_name
from antiphon.wire.codec.fields import is_set, value_or
from antiphon.wire.codec.types import JsonDict, Tagged, encode
from antiphon.wire.responses import items, tools
from antiphon.wire.responses.hosted_calls import ToolSearchOutput
from antiphon.wire.responses.request import CreateRequest


class TranslationContext(Struct, frozen=True):
    """
    What the translation of a request needs to know.

    Attributes:
        omit_unsupported: whether unsupported tools and items are omitted rather than refused.
        omissions: collects what is omitted.
        decrypted_texts: reasoning and compactions, by their `encrypted_content`.
        documents: files that the conversation names, by their ids, or URLs where the engine fetches none.
        server_tools: the tools of the request that the server runs.
        approvals: of MCP calls in the conversation; None where the server asks no MCP servers.
    """

    capabilities: Capabilities
    model: str
    omit_unsupported: bool
    omissions: Omissions
    decrypted_texts: Mapping[str, str] = {}
    documents: Mapping[str, FileContent] = {}
    server_tools: ServerTools = NO_SERVER_TOOLS
    approvals: Approvals | None = None


class EngineTools(Struct):
    """
    The tools for the engine, in the fields of `Respond`.

    Attributes:
        server_labels: of the MCP servers that the server asks; their functions are in their namespaces.
        server_keys: the keys of the functions that the server runs, by the types of their tools.
    """

    tools: list[Tool] = field(default_factory=list)
    hosted_tools: list[HostedTool] = field(default_factory=list)
    namespaces: dict[str, str] = field(default_factory=dict)
    server_labels: set[str] = field(default_factory=set)
    server_keys: dict[str, list[str]] = field(default_factory=dict)


def build_engine_tools(tools_with_paths: Sequence[tuple[str, tools.Tool]], context: TranslationContext) -> EngineTools:
    """
    Translate tools for the engine.

    Args:
        tools_with_paths: each with its path in the request: `tools[3]`.

    Raises:
        ClientError: the engine can't do one, and it must not be omitted.
    """
    engine_tools = EngineTools()
    for path, tool in tools_with_paths:
        # Codex sends the tools of MCP servers as namespaces; for a model without them each is flattened to its members
        # (docs/decisions/0010).
        if isinstance(tool, tools.NamespaceTool) and tool.type not in context.capabilities.hosted:
            engine_tools.namespaces[tool.name] = tool.description
            for index, member in enumerate(tool.tools):
                _add_tool(member, f"{path}.tools[{index}]", tool.name, context, engine_tools)
        else:
            _add_tool(tool, path, None, context, engine_tools)
    client_keys = {tool.key for tool in engine_tools.tools}
    for own in context.server_tools.functions:
        if own.function.key in client_keys:
            message = f"'tools' has a function '{own.function.key}', and so does its tool of type '{own.type}'. Rename yours."
            raise ClientError(message, code="invalid_value", param="tools")
        engine_tools.tools.append(own.function)
        engine_tools.server_keys.setdefault(own.type, []).append(own.function.key)
    return engine_tools


def runs_on_server(tool: tools.Tool, capabilities: Capabilities, server_types: Container[str]) -> bool:
    """
    Whether the server runs a tool of a request: it has such tools, and the engine has none of its own. MCP servers that
    only the operator knows, by their labels, are always the server's.

    Args:
        server_types: of the tools that the server has.
    """
    if tool.type not in server_types:
        return False
    is_operators = isinstance(tool, tools.McpTool) and not any(map(is_set, (tool.server_url, tool.connector_id)))
    return is_operators or tool.type not in capabilities.hosted


def brings_tools(request: CreateRequest, conversation: Iterable[items.Item]) -> bool:
    """Whether there are any `requested_tools`."""
    return bool(request.tools) or any(isinstance(item, items.AdditionalTools | ToolSearchOutput) for item in conversation)


def requested_tools(request: CreateRequest, conversation: Sequence[tuple[str, items.Item]]) -> Iterator[tuple[str, tools.Tool]]:
    """Every tool that the model may use: those of the request, and those added in the conversation."""
    yield from ((f"tools[{index}]", tool) for index, tool in enumerate(request.tools or ()))
    for path, item in conversation:
        if isinstance(item, items.AdditionalTools | ToolSearchOutput):
            yield from ((f"{path}.tools[{index}]", tool) for index, tool in enumerate(item.tools))


def _add_tool(tool: tools.Tool, path: str, namespace: str | None, context: TranslationContext, engine_tools: EngineTools) -> None:
    match tool:
        case tools.FunctionTool() if context.capabilities.tools:
            function = FunctionTool(tool.name, tool.description or None, tool.parameters or None, value_or(tool.strict, None), namespace)
            engine_tools.tools.append(function)
        case tools.CustomTool() if context.capabilities.custom_tools:
            engine_tools.tools.append(_custom_tool(tool, path, namespace, context))
        case _ if runs_on_server(tool, context.capabilities, context.server_tools.types):
            if isinstance(tool, tools.McpTool):
                engine_tools.server_labels.add(tool.server_label)
                engine_tools.namespaces[tool.server_label] = tool.server_description or ""
        case _ if tool.type in context.capabilities.hosted:
            engine_tools.hosted_tools.append(HostedTool(tool.type, msgspec.json.decode(tools.encode_tool(tool))))
        # A client that sends functions relies on them, so these are never omitted (docs/decisions/0010).
        case _ if context.omit_unsupported and not isinstance(tool, tools.FunctionTool):
            context.omissions.tools.append(tool.type)
        case _:
            reason = f"'{path}' is not supported with the '{context.model}' model, which has no tool of type '{tool.type}'"
            raise ClientError(f"Unsupported parameter: {reason}.", code="unsupported_parameter", param=path)


def _custom_tool(tool: tools.CustomTool, path: str, namespace: str | None, context: TranslationContext) -> CustomTool:
    description = tool.description or None
    if not isinstance(tool.format, tools.GrammarFormat):
        return CustomTool(tool.name, description, namespace=namespace)
    syntax, grammar = tool.format.syntax, tool.format.definition
    if context.capabilities.grammars:
        return CustomTool(tool.name, description, syntax, grammar, namespace)
    if not context.omit_unsupported:
        raise unsupported_parameter(f"{path}.format", context.model)
    context.omissions.grammars.append(tool.name)
    hint = f"The input must match this {syntax} grammar:\n{grammar}"
    return CustomTool(tool.name, f"{description}\n\n{hint}" if description else hint, namespace=namespace)


# Choosing


def tool_choice(request: CreateRequest, engine_tools: EngineTools) -> ToolChoice:
    """
    The request's tool choice.

    Raises:
        ClientError: it chooses a tool that the request does not have.
    """
    match request.tool_choice:
        case "none" | "auto" as mode:
            return ToolChoice(mode)
        case "required":
            if not (engine_tools.tools or engine_tools.hosted_tools or engine_tools.server_labels):
                raise tool_choice_not_found("tool_choice", "required")
            return ToolChoice("required")
        # Open Responses: a hard limit, which the server has to enforce.
        case tools.AllowedToolsChoice(mode=mode, tools=choices):
            return ToolChoice(mode, _selected_tool_keys(choices, engine_tools))
        case None | UnsetType():
            return ToolChoice()
        case choice:
            return ToolChoice("required", _selected_tool_keys([_to_dict(choice)], engine_tools))


def later_tool_choice(request: CreateRequest, first_choice: ToolChoice) -> ToolChoice:
    """The choice after the first turn of a response: one tool that was required is not, what `allowed_tools` forbids stays so."""
    # Responses: with `required`, the original still ends in a message once the tool was called.
    names = first_choice.names if isinstance(request.tool_choice, tools.AllowedToolsChoice) else None
    return ToolChoice("none" if first_choice.mode == "none" else "auto", names)


def _to_dict(choice: Tagged) -> JsonDict:
    fields: JsonDict = msgspec.json.decode(encode(choice))
    return fields


def _selected_tool_keys(choices: Iterable[Mapping[str, object]], engine_tools: EngineTools) -> tuple[str, ...]:
    """The keys of the chosen tools, each once. One pass over the tools, as there may be thousands of both."""
    keys_by_choice: dict[tuple[object, ...], dict[str, None]] = {(tool.type,): {tool.type: None} for tool in engine_tools.hosted_tools}
    for tool in engine_tools.tools:
        for name, namespace in product((tool.name, tool.key), (None, tool.namespace)):
            keys_by_choice.setdefault((name, namespace), {})[tool.key] = None
    for type, server_keys in engine_tools.server_keys.items():
        keys_by_choice.setdefault((type,), {}).update(dict.fromkeys(server_keys))
    keys: dict[str, None] = {}
    for choice_key in dict.fromkeys(_choice_key(choice, engine_tools.server_labels) for choice in choices):
        if isinstance(choice_key, str):  # of an MCP server, whose functions are not known yet
            keys[choice_key] = None
            continue
        if choice_key not in keys_by_choice:
            raise tool_choice_not_found("tool_choice", str(choice_key[0]))
        keys |= keys_by_choice[choice_key]
    return tuple(keys)


def _choice_key(choice: Mapping[str, object], server_labels: Container[str]) -> tuple[object, ...] | str:
    """
    What a choice selects: a `name`, in any namespace or in its own; without a name, a `type`. Of an MCP server that is asked
    here it is the key of a function, or the namespace of all of them and a dot.
    """
    kind, name, namespace = choice.get("type"), choice.get("name"), choice.get("namespace")
    label = choice.get("server_label")
    if kind == "mcp" and isinstance(label, str) and label in server_labels:
        return f"{label}.{mcp_function_name(label, name)}" if isinstance(name, str) else f"{label}."
    key = (kind,) if name is None or kind == "mcp" else (name, namespace)
    if not all(part is None or isinstance(part, str) for part in key):
        raise tool_choice_not_found("tool_choice", str(name or kind))
    return key
