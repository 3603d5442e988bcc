"""Credentials of MCP servers, which come in a request's tools, and in items of its input that add tools."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import UNSET, structs

from antiphon.wire.codec.fields import is_set
from antiphon.wire.responses.hosted_calls import ToolSearchOutput
from antiphon.wire.responses.items import AdditionalTools, Item
from antiphon.wire.responses.request import CreateRequest
from antiphon.wire.responses.tools import McpTool, Tool

_FIELDS = ("authorization", "headers")

_NOTHING = dict.fromkeys(_FIELDS, UNSET)

Credentials = Mapping[str, object]
"""The fields of an MCP tool that are secret."""


def request_credentials(request: CreateRequest) -> list[Credentials]:
    """The credentials of every MCP tool, in the order of the request; empty if none has any."""
    lists = [request.tools or (), *(item.tools for item in _adding_items(request))]
    tools = [tool for tools in lists for tool in tools if isinstance(tool, McpTool)]
    credentials = [{name: value for name in _FIELDS if is_set(value := getattr(tool, name)) and value} for tool in tools]
    return [*credentials] if any(credentials) else []


def request_without_credentials(request: CreateRequest) -> CreateRequest:
    """The request as it may be stored."""
    return _change_tools(request, _tool_without_credentials)


def request_with_credentials(request: CreateRequest, credentials: Sequence[Credentials]) -> CreateRequest:
    """The request that had these `request_credentials`."""
    remaining = iter(credentials)
    return _change_tools(request, lambda tool: structs.replace(tool, **next(remaining)))


def item_without_credentials(item: Item) -> Item:
    """The item as it may be stored, and shown."""
    return _change_item(item, _tool_without_credentials)


def _tool_without_credentials(tool: McpTool) -> McpTool:
    return structs.replace(tool, **_NOTHING)


def _adding_items(request: CreateRequest) -> Iterator[AdditionalTools | ToolSearchOutput]:
    return (item for item in request.input_items if isinstance(item, AdditionalTools | ToolSearchOutput))


def _change_tools(request: CreateRequest, change: Callable[[McpTool], McpTool]) -> CreateRequest:
    if request.tools:
        request = structs.replace(request, tools=_change_list(request.tools, change))
    if any(_adding_items(request)):
        request = structs.replace(request, input=[_change_item(item, change) for item in request.input_items])
    return request


def _change_item(item: Item, change: Callable[[McpTool], McpTool]) -> Item:
    if not isinstance(item, AdditionalTools | ToolSearchOutput):
        return item
    return structs.replace(item, tools=_change_list(item.tools, change))


def _change_list(tools: Sequence[Tool], change: Callable[[McpTool], McpTool]) -> list[Tool]:
    return [change(tool) if isinstance(tool, McpTool) else tool for tool in tools]
