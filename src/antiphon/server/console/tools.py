"""`GET /console/tools`: the tools that the server runs, from which a person chooses."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from antiphon.installation import missing_modules
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, guarded_routes
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import Operation

TYPES = ("web_search", "file_search", "code_interpreter", "image_generation")
"""The types to list. `web_search_preview`, the older name of `web_search`, would be listed twice."""


class ConsoleTool(Struct):
    """
    A tool as it stands in a request, but for what the person adds.

    Attributes:
        server_label: of an MCP server, or of functions, of the operator's.
        server_description: what it is for.
    """

    type: str
    server_label: str | UnsetType = UNSET
    server_description: str | UnsetType = UNSET


class ConsoleTools(Struct):
    """The tools that the server runs."""

    object: Literal["list"]
    data: list[ConsoleTool]


_TOOLS = Operation(
    "listConsoleTools",
    "Console",
    "The tools that the server runs",
    ConsoleTools,
    description="As they stand in a request for a response. MCP servers that requests bring by their URL are not listed.",
)


def routes(service: Service) -> list[GuardedRoute]:
    """The route `/console/tools`; none without the page."""
    if not service.config.server.console:
        return []

    async def tools(_request: Request) -> Response:
        types = service.toolbox.types
        own_tools = [ConsoleTool(type) for type in TYPES if type in types]
        return json_response(ConsoleTools("list", [*_operators_servers(service), *own_tools]), headers={"cache-control": "no-store"})

    return guarded_routes(service, [("GET", "/console/tools", tools, "responses:write", _TOOLS)])


def _operators_servers(service: Service) -> list[ConsoleTool]:
    """The MCP servers and functions that the operator configured; without the library `mcp` only the functions."""
    settings = service.config.tools
    servers = [] if missing_modules(["mcp"]) else settings.mcp
    mcp = [ConsoleTool("mcp", server.label, server.description or UNSET) for server in servers]
    return mcp + [ConsoleTool("mcp", entry.label) for entry in settings.functions]
