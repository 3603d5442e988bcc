"""The tools that the server runs: made from the configuration, and opened for each response that has some."""

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from antiphon.config.load import Config
from antiphon.config.tools.code_interpreter import CodeInterpreterSettings
from antiphon.config.tools.settings import ToolsSettings
from antiphon.engine_api.engine import Fetch
from antiphon.errors import ClientError
from antiphon.installation import missing_modules
from antiphon.protocols.chat.request import ResolvedChat, search_tool
from antiphon.protocols.responses.request import ResolvedRequest
from antiphon.protocols.responses.tools import brings_tools, requested_tools, runs_on_server
from antiphon.protocols.tool_loop import LoopLimits
from antiphon.runtime.core import lazy
from antiphon.runtime.files.library import FileLibrary
from antiphon.runtime.files.reading import file_reader
from antiphon.runtime.vector_stores.service import VectorStoreService
from antiphon.tools.base import ToolContext, ToolKind
from antiphon.tools.code_interpreter.records import ContainerLimits
from antiphon.tools.functions.server import function_servers
from antiphon.tools.mcp.dialing import Dialer, DialLimits
from antiphon.tools.mcp.requests import OwnServers
from antiphon.tools.mcp.tool import McpTools
from antiphon.tools.toolbox import OpenTools, Toolbox, ToolLimits
from antiphon.wire.codec.fields import is_set
from antiphon.wire.responses.tools import Tool


class _Kind(NamedTuple):
    """
    How a kind of tool is made.

    Attributes:
        stamp: of all that it is made from; another one needs another kind.
        build: may take long, and raises `ServerError`: the configuration names what isn't there.
    """

    stamp: object
    build: Callable[[], ToolKind]


class ToolChanges(NamedTuple):
    """
    New kinds of tools, not yet in use.

    Attributes:
        kinds: by name, with their stamps.
        dropped: names of kinds that are replaced or left out.
        settings: keys whose value is the same, but not what it stands for.
    """

    kinds: Mapping[str, tuple[object, ToolKind]]
    dropped: Sequence[str]
    limits: ToolLimits
    settings: Sequence[str]


class ConfiguredTools:
    """
    The tools that a server's configuration names, without the code interpreter, which is tried when the server starts.

    Args:
        fetch: fetches what requests name by URL.

    Raises:
        ServerError: the configuration names what isn't there.
    """

    def __init__(self, config: Config, files: FileLibrary, vector_stores: VectorStoreService, fetch: Fetch) -> None:
        self._files = files
        self._vector_stores = vector_stores
        self._fetch = fetch
        self._kinds = {name: (kind.stamp, kind.build()) for name, kind in self._list_kinds(config).items()}
        self.toolbox = Toolbox([kind for _, kind in self._kinds.values()], _limits(config))

    def prepare(self, config: Config) -> ToolChanges:
        """
        Make the kinds that another configuration needs; to be called in a thread.

        Raises:
            ServerError: it names what isn't there.
        """
        kinds = self._list_kinds(config)
        former_stamps = {name: stamp for name, (stamp, _) in self._kinds.items()}
        dropped_names = [name for name, stamp in former_stamps.items() if name not in kinds or kinds[name].stamp != stamp]
        new_kinds = {name: (kind.stamp, kind.build()) for name, kind in kinds.items() if former_stamps.get(name) != kind.stamp}
        former_files = former_stamps["mcp"].files if isinstance(former_stamps["mcp"], _McpStamp) else ()
        settings = ["tools.functions"] if former_files != _file_stamps(config) else []
        return ToolChanges(new_kinds, dropped_names, _limits(config), settings)

    def take(self, changes: ToolChanges, deadline_s: float) -> None:
        """Offer them from now on. What runs keeps what it has for `deadline_s` at most; see `Toolbox.exchange`."""
        dropped = [self._kinds.pop(name)[1] for name in changes.dropped]
        self._kinds |= changes.kinds
        self.toolbox.exchange(dropped, [kind for _, kind in changes.kinds.values()], changes.limits, deadline_s)

    def _list_kinds(self, config: Config) -> dict[str, _Kind]:
        settings = config.tools
        kinds = {"mcp": _Kind(_mcp_stamp(config), lambda: _build_mcp(config))}
        if not missing_modules(["numpy"]):
            kinds["file_search"] = _Kind(None, lambda: lazy.FileSearch(self._vector_stores, settings.file_search.result_chars))
        if (web_search := settings.web_search) is not None:
            key = config.secrets.get(web_search.key_env or "")
            kinds["web_search"] = _Kind(
                (web_search, key), lambda: lazy.WebSearchKind(web_search, lazy.page_fetcher(web_search.networks), key, Path())
            )
        if settings.images:
            keys = [config.secrets.get(entry.key_env or "") for entry in settings.images]
            kinds["images"] = _Kind((settings.images, keys), lambda: self._build_images(config))
        return kinds

    def _build_images(self, config: Config) -> ToolKind:
        read_file = file_reader(self._files, lazy.MAX_PICTURE_BYTES)
        return lazy.ImageGeneration(config.tools.images, config.secrets, read_file, self._fetch)


def _limits(config: Config) -> ToolLimits:
    return ToolLimits(call_s=config.tools.call_s, output_chars=config.tools.output_chars)


class _McpStamp(NamedTuple):
    settings: Sequence[object]
    keys: Sequence[str | None]
    files: Sequence[tuple[int, int] | None]


def _mcp_stamp(config: Config) -> _McpStamp:
    tools = config.tools
    settings = (
        *(tools.mcp, tools.functions, tools.mcp_list_s, tools.call_s, tools.mcp_idle_s, tools.mcp_answer_kib, tools.output_chars),
        config.server.fetch_networks,
    )
    return _McpStamp(settings, [config.secrets.get(entry.key_env or "") for entry in tools.mcp], _file_stamps(config))


def _file_stamps(config: Config) -> list[tuple[int, int] | None]:
    """When the files of functions were changed, and their sizes; None for what isn't a file."""
    stamps: list[tuple[int, int] | None] = []
    for entry in config.tools.functions:
        try:
            status = os.stat(Path(entry.file or "").expanduser())
        except OSError:  # the call that needs the functions gets the error
            stamps.append(None)
        else:
            stamps.append((status.st_mtime_ns, status.st_size) if entry.file is not None else None)
    return stamps


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


async def open_tools(
    toolbox: Toolbox, settings: ToolsSettings, resolved_request: ResolvedRequest
) -> tuple[ResolvedRequest, OpenTools | None]:
    """
    Open the tools of a request that the server runs; while the server starts, first wait for those that are being tried.

    Returns:
        The request with them, and what runs them; None where there are none.

    Raises:
        ClientError: a tool's options are wrong, or name what isn't there.
    """
    capabilities = resolved_request.capabilities
    if not toolbox.types or not capabilities.tools or resolved_request.is_warm_up:
        return resolved_request, None
    past, new = resolved_request.previous_items, resolved_request.input_items
    conversation = () if resolved_request.is_plain else chain(past, new)
    if not brings_tools(resolved_request.request, conversation):  # as of most requests, however long
        return resolved_request, None
    pairs = [*((resolved_request.request.previous_path, item) for item in past), *((f"input[{i}]", item) for i, item in enumerate(new))]
    tools_with_paths = [*requested_tools(resolved_request.request, pairs)]
    await toolbox.wait_for_trials({tool.type for _, tool in tools_with_paths})
    tools = [(path, tool) for path, tool in tools_with_paths if runs_on_server(tool, capabilities, toolbox.types)]
    if not tools:
        return resolved_request, None
    context = ToolContext(
        response_id=resolved_request.id, tenant=resolved_request.tenant, model=resolved_request.model, items=(*past, *new)
    )
    tool_runner = toolbox.open(tools, context)
    limits = loop_limits(settings)
    return structs.replace(resolved_request, server_tools=tool_runner.server_tools, loop_limits=limits), tool_runner


def open_search(toolbox: Toolbox, settings: ToolsSettings, chat: ResolvedChat, tenant: str) -> tuple[ResolvedChat, OpenTools | None]:
    """
    Open the search of the web that a chat asks for; see `open_tools`.

    Raises:
        ClientError: its options are wrong.
    """
    options = chat.request.web_search_options
    if not is_set(options) or "web_search" not in toolbox.types or not chat.capabilities.tools:
        return chat, None
    context = ToolContext(response_id=chat.response_id, tenant=tenant, model=chat.model)
    try:
        tool_runner = toolbox.open([("web_search_options", search_tool(options))], context)
    except ClientError as error:  # in this API the place is one level deeper
        if error.param:
            path = error.param.replace("user_location.", "user_location.approximate.")
            error.message, error.param = error.message.replace(error.param, path), path
        raise
    return structs.replace(chat, server_tools=tool_runner.server_tools, loop_limits=loop_limits(settings)), tool_runner


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


def tool_check(toolbox: Toolbox, tenant: str, model: str) -> Callable[[Sequence[tuple[str, Tool]]], None]:
    """What checks the tools that a live session names, by the kinds of tools that it has."""
    return session_tools(toolbox, tenant, model).check


def container_limits(settings: CodeInterpreterSettings) -> ContainerLimits:
    """What containers may take."""
    return ContainerLimits(
        containers=settings.containers,
        bytes=settings.disk_mib << 20,
        tenant_bytes=settings.tenant_disk_mib << 20,
        files=settings.files,
        expires_after_minutes=settings.expires_after_minutes,
        memory_limit=settings.memory_limit,
    )
