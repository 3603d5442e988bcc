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
from antiphon.errors import ClientError, shorten, too_short, tool_choice_not_found, unsupported_parameter
from antiphon.protocols.client_tools.definitions import ClientTool, choice_types, client_tool
from antiphon.protocols.client_tools.search import SEARCH_NAME, DeferredTool, ToolSearch
from antiphon.protocols.omissions import Omissions
from antiphon.protocols.responses.approvals import Approvals
from antiphon.tool_api import NO_SERVER_TOOLS, ServerTools, mcp_function_name
from antiphon.wire.codec.fields import is_set, value_or
from antiphon.wire.codec.schemas import check_output_schema, check_parameters_schema, check_regex
from antiphon.wire.codec.types import JsonDict, Tagged, Unknown, encode
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
        client_tools: those that the client runs and the engine gets as functions, with their paths, by their keys.
        search: the server's search for tools whose loading is deferred; None where the request has none.
        found_names: of functions outside of namespaces that such a search has found.
        async_keys: of the functions and custom tools whose results may come later (`async`).
    """

    tools: list[Tool] = field(default_factory=list)
    hosted_tools: list[HostedTool] = field(default_factory=list)
    namespaces: dict[str, str] = field(default_factory=dict)
    server_labels: set[str] = field(default_factory=set)
    server_keys: dict[str, list[str]] = field(default_factory=dict)
    client_tools: dict[str, tuple[str, ClientTool]] = field(default_factory=dict)
    search: ToolSearch | None = None
    found_names: set[str] = field(default_factory=set)
    async_keys: set[str] = field(default_factory=set)


def build_engine_tools(
    tools_with_paths: Sequence[tuple[str, tools.Tool]], context: TranslationContext, found_keys: frozenset[str] = frozenset()
) -> EngineTools:
    """
    Translate tools for the engine.

    Args:
        tools_with_paths: each with its path in the request: `tools[3]`.
        found_keys: of tools that a search in the conversation has found.

    Raises:
        ClientError: the engine can't do one, and it must not be omitted.
    """
    engine_tools = EngineTools()
    deferral = _Deferral.of(tools_with_paths, context, found_keys) if tools_with_paths else None
    engine_tools.search = deferral.search if deferral is not None else None
    for path, requested_tool in tools_with_paths:
        tool = requested_tool if deferral is None else deferral.without_deferred(requested_tool, engine_tools)
        if tool is None:
            continue
        # Codex sends the tools of MCP servers as namespaces; for a model without them each is flattened to its members
        # (docs/decisions/0010).
        if isinstance(tool, tools.NamespaceTool) and tool.type not in context.capabilities.hosted:
            engine_tools.namespaces[tool.name] = tool.description
            for index, member in enumerate(tool.tools):
                _add_tool(member, f"{path}.tools[{index}]", tool.name, context, engine_tools)
        else:
            _add_tool(tool, path, None, context, engine_tools)
    keys = {tool.key for tool in engine_tools.tools}
    for path, clients in engine_tools.client_tools.values():
        _add_once(clients.function, clients.type, path, engine_tools, keys)
    search = engine_tools.search
    for own in context.server_tools.functions:
        if search is not None and search.hides(own.function.key, own.function.namespace):
            search.add_function(own.function)
            continue
        _add_once(own.function, own.type, "tools", engine_tools, keys)
        engine_tools.server_keys.setdefault(own.type, []).append(own.function.key)
    if search:
        _add_once(search.function, SEARCH_NAME, "tools", engine_tools, keys)
        engine_tools.server_keys[SEARCH_NAME] = [SEARCH_NAME]
    return engine_tools


def check_tool_names(request: CreateRequest, _capabilities: Capabilities, _model: str) -> None:
    """
    Check that no two functions, custom tools or namespaces of the request's `tools` have the same name: no model could tell
    them apart. Those that come with items may be there again, as a client names what it has found or added before.

    Raises:
        ClientError: two have.
    """
    paths_by_name: dict[tuple[str, str], str] = {}

    def check_names(path: str, tool_list: Sequence[tools.Tool], namespace: str) -> None:
        for index, tool in enumerate(tool_list):
            if not isinstance(tool, tools.FunctionTool | tools.CustomTool | tools.NamespaceTool):
                continue
            kind = "namespace" if isinstance(tool, tools.NamespaceTool) else f"tool {namespace}"
            own_path = f"{path}[{index}]"
            first_path = paths_by_name.setdefault((kind, tool.name), own_path)
            if first_path != own_path:
                message = f"Invalid '{own_path}.name': '{shorten(tool.name)}' is the name of '{first_path}' too. Rename one of them."
                raise ClientError(message, code="invalid_value", param=f"{own_path}.name")
            if isinstance(tool, tools.NamespaceTool):
                check_names(f"{own_path}.tools", tool.tools, tool.name)

    check_names("tools", request.tools or (), "")


def check_output_format(request: CreateRequest, _capabilities: Capabilities, _model: str) -> None:
    """
    Check that the schema to which the answer is held is a JSON Schema.

    Raises:
        ClientError: it is none.
    """
    text_format = request.text.format if request.text else None
    if isinstance(text_format, items.JsonSchemaFormat):
        check_output_schema(text_format.name, text_format.schema, "text.format.schema")


def check_tool_schemas(tools_with_paths: Iterable[tuple[str, tools.Tool]]) -> None:
    """
    Check that the schemas of strict functions are JSON Schemas, and that regular expressions are such.

    Raises:
        ClientError: one is none.
    """
    for path, tool in tools_with_paths:
        if isinstance(tool, tools.NamespaceTool):
            check_tool_schemas((f"{path}.tools[{index}]", member) for index, member in enumerate(tool.tools))
        else:
            _check_tool_schema(tool, path)


def _check_tool_schema(tool: tools.Tool, path: str) -> None:
    match tool:
        case tools.FunctionTool(strict=True, parameters=dict(parameters)):
            check_parameters_schema(tool.name, parameters, f"{path}.parameters")
        case tools.CustomTool(format=tools.GrammarFormat(syntax="regex", definition=pattern)):
            check_regex(pattern, f"{path}.format.definition")
        case _:
            pass


def found_tool_keys(conversation: Sequence[tuple[str, items.Item]]) -> frozenset[str]:
    """The keys of the tools that searches in the conversation have found."""
    if not conversation:
        return frozenset()
    found_tools: list[tools.Tool] = [tool for _, item in conversation if isinstance(item, ToolSearchOutput) for tool in item.tools]
    return frozenset(key for tool in found_tools for key in _keys(tool))


def _keys(tool: tools.Tool) -> Iterator[str]:
    if isinstance(tool, tools.FunctionTool | tools.CustomTool):
        yield tool.name
    elif isinstance(tool, tools.NamespaceTool):
        yield from (f"{tool.name}.{member.name}" for member in tool.tools if not isinstance(member, Unknown))


class _Deferral(Struct, frozen=True):
    """
    Which tools of a request are hidden until a search finds them: with `defer_loading`, where there is a search.

    Attributes:
        search: None where the client searches.
        labels: of the MCP servers that are asked here; what searches have found of them stays theirs.
    """

    search: ToolSearch | None
    found_keys: frozenset[str]
    labels: frozenset[str]
    seen_keys: set[str] = field(default_factory=set)

    @classmethod
    def of(
        cls, tools_with_paths: Sequence[tuple[str, tools.Tool]], context: TranslationContext, found_keys: frozenset[str]
    ) -> "_Deferral | None":
        searches = [tool for _, tool in tools_with_paths if isinstance(tool, tools.ToolSearchTool)]
        # Without a search nothing would ever find a hidden tool; an engine with one of its own hides them itself.
        if not searches or not context.capabilities.tools or SEARCH_NAME in context.capabilities.hosted:
            return None
        types = context.server_tools.types
        servers = [
            tool for _, tool in tools_with_paths if isinstance(tool, tools.McpTool) and runs_on_server(tool, context.capabilities, types)
        ]
        labels = frozenset(tool.server_label for tool in servers)
        if any(tool.execution == "client" for tool in searches):
            return cls(None, found_keys, labels)
        namespaces = {tool.name: tool.description for _, tool in tools_with_paths if isinstance(tool, tools.NamespaceTool)}
        namespaces |= {tool.server_label: tool.server_description or "" for tool in servers}
        deferred_labels = frozenset(tool.server_label for tool in servers if tool.defer_loading is True)
        return cls(ToolSearch(namespaces, deferred_labels, found_keys), found_keys, labels)

    def without_deferred(self, tool: tools.Tool, engine_tools: EngineTools) -> tools.Tool | None:
        """The tool as the engine gets it now, a namespace without those of its tools that are hidden; None for nothing."""
        match tool:
            case tools.ToolSearchTool():
                return None if self.search is not None else tool
            case tools.FunctionTool() | tools.CustomTool():
                if self._is_hidden(tool, None):
                    return None
                if self.search is not None and tool.defer_loading is True:
                    engine_tools.found_names.add(tool.name)
                return tool
            # A search's output has it as a namespace, but its functions come from the MCP server.
            case tools.NamespaceTool() if tool.name in self.labels:
                return None
            case tools.NamespaceTool():
                members = [member for member in tool.tools if isinstance(member, Unknown) or not self._is_hidden(member, tool.name)]
                return msgspec.structs.replace(tool, tools=members) if members else None
            case _:
                return tool

    def _is_hidden(self, tool: tools.FunctionTool | tools.CustomTool, namespace: str | None) -> bool:
        key = f"{namespace}.{tool.name}" if namespace else tool.name
        if key in self.found_keys:  # it stands in the request, and again where it was found
            is_known = key in self.seen_keys
            self.seen_keys.add(key)
            return is_known
        if tool.defer_loading is not True:
            return False
        if self.search is not None:
            self.search.add(DeferredTool(_plain_tool(tool, namespace), tool))
        return True


def _carry_deferral(engine_tool: Tool, tool: tools.FunctionTool | tools.CustomTool, context: TranslationContext) -> Tool:
    """The tool for an engine that may have a search of its own for tools."""
    if tool.defer_loading is not True or SEARCH_NAME not in context.capabilities.hosted:
        return engine_tool
    return msgspec.structs.replace(engine_tool, defer_loading=True)


def _plain_tool(tool: tools.FunctionTool | tools.CustomTool, namespace: str | None) -> Tool:
    if isinstance(tool, tools.FunctionTool):
        return FunctionTool(tool.name, tool.description or None, tool.parameters or None, value_or(tool.strict, None), namespace)
    grammar = tool.format if isinstance(tool.format, tools.GrammarFormat) else None
    syntax, definition = (grammar.syntax, grammar.definition) if grammar is not None else (None, None)
    return CustomTool(tool.name, tool.description or None, syntax, definition, namespace)


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
    additions = [(f"{path}.tools", item.tools) for path, item in conversation if isinstance(item, items.AdditionalTools | ToolSearchOutput)]
    own, *others = enumerate([("tools", request.tools or ()), *additions])
    # The store has no credentials of MCP servers: one that is named again, with them, takes the place of what is stored.
    newest = {
        tool.server_label: number for number, (_, tool_list) in (*others, own) for tool in tool_list if isinstance(tool, tools.McpTool)
    }
    for number, (path, tool_list) in (own, *others):
        for index, tool in enumerate(tool_list):
            if not isinstance(tool, tools.McpTool) or newest[tool.server_label] == number:
                yield f"{path}[{index}]", tool


def _add_tool(tool: tools.Tool, path: str, namespace: str | None, context: TranslationContext, engine_tools: EngineTools) -> None:
    _check_callers(tool, path, context)
    if isinstance(tool, tools.FunctionTool | tools.CustomTool) and tool.async_ is True:
        engine_tools.async_keys.add(f"{namespace}.{tool.name}" if namespace else tool.name)
    match tool:
        case tools.FunctionTool() if context.capabilities.tools:
            engine_tools.tools.append(_carry_deferral(_plain_tool(tool, namespace), tool, context))
        case tools.CustomTool() if context.capabilities.custom_tools:
            engine_tools.tools.append(_carry_deferral(_custom_tool(tool, path, namespace, context), tool, context))
        case _ if runs_on_server(tool, context.capabilities, context.server_tools.types):
            if isinstance(tool, tools.McpTool):
                engine_tools.server_labels.add(tool.server_label)
                engine_tools.namespaces[tool.server_label] = tool.server_description or ""
        case _ if tool.type in context.capabilities.hosted:
            engine_tools.hosted_tools.append(HostedTool(tool.type, msgspec.json.decode(tools.encode_tool(tool))))
        case _ if context.capabilities.tools and (own := client_tool(tool)) is not None:
            if own.function.key in engine_tools.client_tools:
                raise ClientError(f"'tools' has two tools of type '{tool.type}'.", code="invalid_value", param=path)
            engine_tools.client_tools[own.function.key] = path, own
        # A client that sends functions relies on them, so these are never omitted (docs/decisions/0010).
        case _ if context.omit_unsupported and not isinstance(tool, tools.FunctionTool):
            context.omissions.tools.append(tool.type)
        case _:
            reason = f"'{path}' is not supported with the '{context.model}' model, which has no tool of type '{tool.type}'"
            raise ClientError(f"Unsupported parameter: {reason}.", code="unsupported_parameter", param=path)


def _add_once(function: FunctionTool, type: str, path: str, engine_tools: EngineTools, keys: set[str]) -> None:
    if function.key in keys:
        message = f"'tools' has two tools named '{function.key}'; one of them is of type '{type}'. Rename the other."
        raise ClientError(message, code="invalid_value", param=path)
    keys.add(function.key)
    engine_tools.tools.append(function)


def _check_callers(tool: tools.Tool, path: str, context: TranslationContext) -> None:
    """Refuse a tool that only programs may call: no model here writes programs that call tools."""
    if getattr(tool, "allowed_callers", None) == ["programmatic"] and "programmatic_tool_calling" not in context.capabilities.hosted:
        raise unsupported_parameter(f"{path}.allowed_callers", context.model)


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
    # An engine that can't force a grammar can at least tell the model of it.
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
            if not choices:
                raise too_short("tool_choice.tools", "array", 1, 0)
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
    deferred_tools = engine_tools.search.tools if engine_tools.search is not None else ()
    keys_by_choice = _keys_by_choice(engine_tools, deferred_tools)
    keys: dict[str, None] = {}
    for choice_key in dict.fromkeys(_choice_key(choice, engine_tools.server_labels) for choice in choices):
        if isinstance(choice_key, str):  # of an MCP server, whose functions are not known yet
            keys[choice_key] = None
            continue
        if choice_key not in keys_by_choice:
            raise tool_choice_not_found("tool_choice", str(choice_key[0]))
        keys |= keys_by_choice[choice_key]
    if any(tool.key in keys for tool in deferred_tools):  # which the model has to find before it can call them
        keys[SEARCH_NAME] = None
    return tuple(keys)


def _keys_by_choice(engine_tools: EngineTools, deferred_tools: Sequence[Tool]) -> Mapping[tuple[object, ...], dict[str, None]]:
    keys: dict[tuple[object, ...], dict[str, None]] = {(tool.type,): {tool.type: None} for tool in engine_tools.hosted_tools}
    for tool in (*engine_tools.tools, *deferred_tools):
        # A choice may have a member's name or its key, and the namespace or not: all of these find it.
        for name, namespace in product((tool.name, tool.key), (None, tool.namespace)):
            keys.setdefault((name, namespace), {})[tool.key] = None
    for key, (_, own) in engine_tools.client_tools.items():
        for type in choice_types(own.type):
            keys.setdefault((type,), {})[key] = None
    for type, server_keys in engine_tools.server_keys.items():
        keys.setdefault((type,), {}).update(dict.fromkeys(server_keys))
    return keys


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
