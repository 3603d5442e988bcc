"""The tools that the server runs: made from the configuration, and opened for each response that has some."""

from msgspec import structs

from antiphon.config.tools.settings import ToolsSettings
from antiphon.protocols.responses.request import ResolvedRequest
from antiphon.protocols.responses.tools import requested_tools, runs_on_server
from antiphon.protocols.tool_loop import LoopLimits
from antiphon.tools.base import ToolContext, ToolKind
from antiphon.tools.toolbox import OpenTools, Toolbox, ToolLimits


def build_toolbox(settings: ToolsSettings, kinds: tuple[ToolKind, ...] = ()) -> Toolbox:
    """The toolbox of a server, with these tools."""
    return Toolbox(kinds, ToolLimits(call_s=settings.call_s, output_chars=settings.output_chars))


def open_tools(toolbox: Toolbox, settings: ToolsSettings, resolved_request: ResolvedRequest) -> tuple[ResolvedRequest, OpenTools | None]:
    """
    Open the tools of a request that the server runs.

    Returns:
        The request with them, and what runs them; None where there are none.

    Raises:
        ClientError: a tool's options are wrong, or name what isn't there.
    """
    if not toolbox.types or resolved_request.is_warm_up:
        return resolved_request, None
    items = (*resolved_request.previous_items, *resolved_request.input_items)
    pairs = [(f"input[{index - len(resolved_request.previous_items)}]", item) for index, item in enumerate(items)]
    capabilities = resolved_request.capabilities
    tools = [
        (path, tool) for path, tool in requested_tools(resolved_request.request, pairs) if runs_on_server(tool, capabilities, toolbox.types)
    ]
    if not tools or not capabilities.tools:
        return resolved_request, None
    context = ToolContext(response_id=resolved_request.id, tenant=resolved_request.tenant, model=resolved_request.model, items=items)
    open_tools = toolbox.open(tools, context)
    limits = LoopLimits(calls=settings.calls, turns=settings.turns, parallel=settings.parallel)
    return structs.replace(resolved_request, server_tools=open_tools.offer, loop_limits=limits), open_tools
