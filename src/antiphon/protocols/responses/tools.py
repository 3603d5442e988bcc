"""
The tools of a request, as the engine is offered them.

Clients such as Codex send every tool they know with every request, whatever the model behind it can do. What an engine can't do is
either carried, which means that the response lists it, the model is not offered it, and `LeftOut` says so; or it is refused.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import msgspec
from msgspec import Struct, UnsetType, field

from antiphon.engine_api.capabilities import Abilities
from antiphon.engine_api.options import CustomTool, FunctionTool, HostedTool, Tool, ToolChoice
from antiphon.errors import ClientMistake, unsupported_parameter
from antiphon.wire.codec.types import Tagged, encode
from antiphon.wire.responses import items, tools
from antiphon.wire.responses.hosted_calls import ToolSearchOutput
from antiphon.wire.responses.request import CreateRequest


class LeftOut(Struct):
    """
    What the model is not given of a request that was taken.

    Attributes:
        tools: the types of the tools that it is not offered.
        grammars: the names of custom tools whose grammar it is only told.
        items: the types of the items that it is not told.
    """

    tools: list[str] = field(default_factory=list)
    grammars: list[str] = field(default_factory=list)
    items: list[str] = field(default_factory=list)


class Terms(Struct, frozen=True):
    """
    The terms on which a model is given what a request has.

    Attributes:
        carries: whether what the engine can't do is carried rather than refused.
        left_out: gathers what is carried.
    """

    abilities: Abilities
    model: str
    carries: bool
    left_out: LeftOut


class Offer(Struct):
    """What the engine is offered; the fields of `talk.Respond`."""

    tools: list[Tool] = field(default_factory=list)
    hosted: list[HostedTool] = field(default_factory=list)
    namespaces: dict[str, str] = field(default_factory=dict)


def offer(located: Sequence[tuple[str, tools.Tool]], terms: Terms) -> Offer:
    """
    The offer of these tools.

    Args:
        located: each with the place where the client finds it: `tools[3]`.

    Raises:
        ClientMistake: the engine can't do one, and it is not to be carried.
    """
    made = Offer()
    for path, tool in located:
        if isinstance(tool, tools.NamespaceTool) and tool.type not in terms.abilities.hosted:
            made.namespaces[tool.name] = tool.description
            for index, member in enumerate(tool.tools):
                _add(member, f"{path}.tools[{index}]", tool.name, terms, made)
        else:
            _add(tool, path, None, terms, made)
    return made


def tools_of(request: CreateRequest, conversation: Sequence[tuple[str, items.Item]]) -> Iterator[tuple[str, tools.Tool]]:
    """Every tool that the model may use: those of the request, and those that were added in the conversation."""
    yield from ((f"tools[{index}]", tool) for index, tool in enumerate(request.tools or ()))
    for path, item in conversation:
        if isinstance(item, items.AdditionalTools | ToolSearchOutput):
            yield from ((f"{path}.tools[{index}]", tool) for index, tool in enumerate(item.tools))


def _add(tool: tools.Tool, path: str, namespace: str | None, terms: Terms, made: Offer) -> None:
    match tool:
        case tools.FunctionTool() if terms.abilities.tools:
            described = FunctionTool(tool.name, tool.description or None, tool.parameters or None, _or_none(tool.strict), namespace)
            made.tools.append(described)
        case tools.CustomTool() if terms.abilities.custom_tools:
            made.tools.append(_custom_tool(tool, path, namespace, terms))
        case _ if tool.type in terms.abilities.hosted:
            made.hosted.append(HostedTool(tool.type, msgspec.json.decode(tools.encode_tool(tool))))
        case _ if terms.carries and not isinstance(tool, tools.FunctionTool):
            terms.left_out.tools.append(tool.type)
        case _:
            what = f"'{path}' is not supported with the '{terms.model}' model, which has no tool of type '{tool.type}'"
            raise ClientMistake(f"Unsupported parameter: {what}.", code="unsupported_parameter", param=path)


def _custom_tool(tool: tools.CustomTool, path: str, namespace: str | None, terms: Terms) -> CustomTool:
    description = tool.description or None
    if not isinstance(tool.format, tools.GrammarFormat):
        return CustomTool(tool.name, description, namespace=namespace)
    syntax, grammar = tool.format.syntax, tool.format.definition
    if terms.abilities.grammars:
        return CustomTool(tool.name, description, syntax, grammar, namespace)
    if not terms.carries:
        raise unsupported_parameter(f"{path}.format", terms.model)
    terms.left_out.grammars.append(tool.name)
    told = f"The input must match this {syntax} grammar:\n{grammar}"
    return CustomTool(tool.name, f"{description}\n\n{told}" if description else told, namespace=namespace)


def _or_none(value: bool | UnsetType | None) -> bool | None:
    return None if isinstance(value, UnsetType) else value


# Choosing


def tool_choice(request: CreateRequest, made: Offer) -> ToolChoice:
    """
    Whether and which of the tools on offer are to be called.

    Raises:
        ClientMistake: the request chooses one that is not on offer.
    """
    match request.tool_choice:
        case "none" | "auto" as mode:
            return ToolChoice(mode)
        case "required":
            if not made.tools and not made.hosted:
                raise _not_found("required")
            return ToolChoice("required")
        case tools.AllowedToolsChoice(mode=mode, tools=allowed):
            return ToolChoice(mode, _keys(allowed, made))
        case None | UnsetType():
            return ToolChoice()
        case choice:
            return ToolChoice("required", _keys([_plain(choice)], made))


def _plain(choice: Tagged) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.json.decode(encode(choice))
    return fields


def _keys(chosen: Iterable[Mapping[str, Any]], made: Offer) -> tuple[str, ...]:
    """The tools that are chosen, each once; found in one walk over those on offer, as there may be thousands of both."""
    offered: dict[tuple[str | None, ...], dict[str, None]] = {(tool.type,): {tool.type: None} for tool in made.hosted}
    for tool in made.tools:
        for name, namespace in product((tool.name, tool.key), (None, tool.namespace)):
            offered.setdefault((name, namespace), {})[tool.key] = None
    keys: dict[str, None] = {}
    for meant in dict.fromkeys(map(_meant, chosen)):
        if meant not in offered:
            raise _not_found(str(meant[0]))
        keys |= offered[meant]
    return tuple(keys)


def _meant(chosen: Mapping[str, Any]) -> tuple[str | None, ...]:
    """What a choice means: a `name`, in every namespace or in the one it says; without a name, a `type`."""
    kind, name, namespace = chosen.get("type"), chosen.get("name"), chosen.get("namespace")
    meant = (kind,) if name is None or kind == "mcp" else (name, namespace)
    if not all(part is None or isinstance(part, str) for part in meant):
        raise _not_found(str(name or kind))
    return meant


def _not_found(name: str) -> ClientMistake:
    return ClientMistake(f"Tool choice '{name}' not found in 'tools' parameter.", code="invalid_value", param="tool_choice")
