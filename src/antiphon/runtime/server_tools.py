"""The tools that the server runs: made from the configuration, and opened for each response that has some."""

from itertools import chain
from pathlib import Path

from msgspec import structs

from antiphon.config.load import Config
from antiphon.config.tools.settings import ToolsSettings
from antiphon.engine_api.engine import Fetch
from antiphon.installation import missing_modules
from antiphon.protocols.responses.request import ResolvedRequest
from antiphon.protocols.responses.tools import brings_tools, requested_tools, runs_on_server
from antiphon.protocols.tool_loop import LoopLimits
from antiphon.runtime.core import lazy
from antiphon.runtime.files.library import FileLibrary
from antiphon.runtime.files.reading import file_reader
from antiphon.runtime.vector_stores.service import VectorStoreService
from antiphon.tools.base import ToolContext, ToolKind
from antiphon.tools.functions.server import function_servers
from antiphon.tools.mcp.dialing import Dialer, DialLimits
from antiphon.tools.mcp.requests import OwnServers
from antiphon.tools.mcp.tool import McpTools
from antiphon.tools.toolbox import OpenTools, Toolbox, ToolLimits


def build_toolbox(config: Config, files: FileLibrary, vector_stores: VectorStoreService, fetch: Fetch) -> Toolbox:
    """
    The toolbox of a server, without the code interpreter, which is tried when the server starts.

    Raises:
        ServerError: the configuration names what isn't there.
    """
    settings = config.tools
    kinds: list[ToolKind] = [_build_mcp(config)]
    if not missing_modules(["numpy"]):
        kinds.append(lazy.FileSearch(vector_stores, settings.file_search.result_chars))
    if (web_search := settings.web_search) is not None:
        key = config.secrets.get(web_search.key_env or "")
        kinds.append(lazy.WebSearchKind(web_search, lazy.page_fetcher(web_search.networks), key, Path()))
    if settings.images:
        read_file = file_reader(files, lazy.MAX_PICTURE_BYTES)
        kinds.append(lazy.ImageGeneration(settings.images, config.secrets, read_file, fetch))
    return Toolbox(kinds, ToolLimits(call_s=settings.call_s, output_chars=settings.output_chars))


def _build_mcp(config: Config) -> McpTools:
    settings = config.tools

    def make_dialer(limits: DialLimits) -> Dialer:
        return lazy.RemoteServers(lazy.address_guard(config.server.fetch_networks), limits)

    functions = function_servers(settings.functions, Path())  # their paths are absolute
    own_servers = OwnServers(settings.mcp, config.secrets, functions)
    has_library = not missing_modules(["mcp"])
    limits = DialLimits(
        list_s=settings.mcp_list_s, call_s=settings.call_s, idle_s=settings.mcp_idle_s, answer_bytes=settings.mcp_answer_kib << 10
    )
    return McpTools(own_servers, make_dialer if has_library else None, limits, settings.output_chars)


def open_tools(toolbox: Toolbox, settings: ToolsSettings, resolved_request: ResolvedRequest) -> tuple[ResolvedRequest, OpenTools | None]:
    """
    Open the tools of a request that the server runs.

    Returns:
        The request with them, and what runs them; None where there are none.

    Raises:
        ClientError: a tool's options are wrong, or name what isn't there.
    """
    capabilities = resolved_request.capabilities
    if not toolbox.types or not capabilities.tools or resolved_request.is_warm_up:
        return resolved_request, None
    past, new = resolved_request.previous_items, resolved_request.input_items
    if not brings_tools(resolved_request.request, chain(past, new)):  # as of most requests, however long
        return resolved_request, None
    pairs = [*((resolved_request.request.previous_path, item) for item in past), *((f"input[{i}]", item) for i, item in enumerate(new))]
    tools = [
        (path, tool) for path, tool in requested_tools(resolved_request.request, pairs) if runs_on_server(tool, capabilities, toolbox.types)
    ]
    if not tools:
        return resolved_request, None
    context = ToolContext(
        response_id=resolved_request.id, tenant=resolved_request.tenant, model=resolved_request.model, items=(*past, *new)
    )
    tool_runner = toolbox.open(tools, context)
    limits = loop_limits(settings)
    return structs.replace(resolved_request, server_tools=tool_runner.offer, loop_limits=limits), tool_runner


def loop_limits(settings: ToolsSettings) -> LoopLimits:
    """The limits of each response."""
    return LoopLimits(
        calls=settings.calls,
        turns=settings.turns,
        parallel=settings.parallel,
        output_chars=settings.response_chars,
        infers_citations=settings.infer_citations,
    )


def session_tools(toolbox: Toolbox, tenant: str, model: str) -> OpenTools:
    """The tools of a live session, which are opened as the session names them, and closed with it."""
    return toolbox.open((), ToolContext(response_id="", tenant=tenant, model=model))
