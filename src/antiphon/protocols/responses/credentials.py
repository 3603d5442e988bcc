"""
Credentials of tools, which come in a request's tools, and in items of its input that add tools: those of MCP servers,
and the secrets that a container sends to domains. Engines that run such tools get them; they are neither stored nor shown.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import UNSET, convert, structs

from antiphon.wire.codec.fields import is_set
from antiphon.wire.responses.hosted_calls import ToolSearchOutput
from antiphon.wire.responses.items import AdditionalTools, Item
from antiphon.wire.responses.request import CreateRequest
from antiphon.wire.responses.tools import (
    AutoContainer,
    CodeInterpreterTool,
    DomainSecret,
    McpTool,
    NetworkAllowlist,
    NewContainer,
    ShellTool,
    Tool,
)

_MCP_FIELDS = ("authorization", "headers")

Credentials = Mapping[str, object]
"""The fields of a tool that are secret: of an MCP server its own, of a container those of its network policy."""


def request_credentials(request: CreateRequest) -> list[Credentials]:
    """The credentials of every MCP tool and container, in the order of the request; empty if none has any."""
    lists = [request.tools or (), *(item.tools for item in _adding_items(request))]
    credentials = [secrets for tools in lists for tool in tools if (secrets := _credentials(tool)) is not None]
    return [*credentials] if any(credentials) else []


def request_without_credentials(request: CreateRequest) -> CreateRequest:
    """The request as it may be stored."""
    return _change_tools(request, tool_without_credentials)


def request_with_credentials(request: CreateRequest, credentials: Sequence[Credentials]) -> CreateRequest:
    """The request that had these `request_credentials`."""
    remaining = iter(credentials)

    def give(tool: Tool) -> Tool:
        return tool if _credentials(tool) is None else _replace(tool, next(remaining))

    return _change_tools(request, give)


def item_without_credentials(item: Item) -> Item:
    """The item as it may be stored, and shown."""
    return _change_item(item, tool_without_credentials)


def tool_without_credentials(tool: Tool) -> Tool:
    """The tool as it may be stored, and shown."""
    if credentials := _credentials(tool):
        return _replace(tool, dict.fromkeys(credentials, UNSET))
    return tool


def _credentials(tool: Tool) -> Credentials | None:
    """None where a tool of this kind has none."""
    if isinstance(tool, McpTool):
        return {name: value for name in _MCP_FIELDS if is_set(value := getattr(tool, name)) and value}
    container = _container(tool)
    if container is None or not isinstance(policy := container.network_policy, NetworkAllowlist):
        return None
    return {"domain_secrets": policy.domain_secrets} if is_set(policy.domain_secrets) else {}


def _container(tool: Tool) -> AutoContainer | NewContainer | None:
    """What the tool says of a container that is made for it."""
    if isinstance(tool, CodeInterpreterTool) and isinstance(tool.container, AutoContainer):
        return tool.container
    if isinstance(tool, ShellTool) and isinstance(tool.environment, NewContainer):
        return tool.environment
    return None


def _replace(tool: Tool, credentials: Credentials) -> Tool:
    """The tool with these in the place of its `_credentials`; they may come from JSON."""
    container = _container(tool)
    if container is None or not credentials:
        return structs.replace(tool, **credentials)
    assert isinstance(container.network_policy, NetworkAllowlist)  # others have no credentials
    secrets = credentials["domain_secrets"]
    if secrets is not UNSET:
        secrets = convert(secrets, list[DomainSecret])
    container = structs.replace(container, network_policy=structs.replace(container.network_policy, domain_secrets=secrets))
    return structs.replace(tool, **{"container" if isinstance(tool, CodeInterpreterTool) else "environment": container})


def _adding_items(request: CreateRequest) -> Iterator[AdditionalTools | ToolSearchOutput]:
    return (item for item in request.input_items if isinstance(item, AdditionalTools | ToolSearchOutput))


def _change_tools(request: CreateRequest, change: Callable[[Tool], Tool]) -> CreateRequest:
    if request.tools:
        request = structs.replace(request, tools=_change_list(request.tools, change))
    if any(_adding_items(request)):
        request = structs.replace(request, input=[_change_item(item, change) for item in request.input_items])
    return request


def _change_item(item: Item, change: Callable[[Tool], Tool]) -> Item:
    if not isinstance(item, AdditionalTools | ToolSearchOutput):
        return item
    return structs.replace(item, tools=_change_list(item.tools, change))


def _change_list(tools: Sequence[Tool], change: Callable[[Tool], Tool]) -> list[Tool]:
    return [change(tool) for tool in tools]
