"""Which of a server's tools a request may use, and which of them need the user's approval."""

from collections.abc import Sequence

from antiphon.tools.mcp.server import ToolDescription
from antiphon.wire.responses.tools import ApprovalFilter, McpTool, ToolFilter


def is_allowed(tool: ToolDescription, request: McpTool, own_names: Sequence[str] | None = None) -> bool:
    """
    Whether a request may use a tool.

    Args:
        own_names: the only tools that the operator allows; None for all.
    """
    if own_names is not None and tool.name not in own_names:
        return False
    match request.allowed_tools:
        case list() as names:
            return tool.name in names
        case ToolFilter() as tool_filter:
            return _matches(tool, tool_filter)
        case _:
            return True


def known_names(request: McpTool) -> frozenset[str]:
    """The tools that a request names, which a list must have to be complete for it."""
    match request.allowed_tools:
        case list() as names:
            return frozenset(names)
        case ToolFilter(tool_names=list() as names):
            return frozenset(names)
        case _:
            return frozenset()


def needs_approval(tool: ToolDescription, request: McpTool) -> bool:
    """
    Whether the user has to approve a call.

    As in the original, a request that doesn't say otherwise asks for all of them, and one that names some tools asks for
    all that it does not name under `never`. A tool under both is asked for, and a `never` without conditions is none.
    """
    match request.require_approval:
        case "never":
            return False
        case ApprovalFilter(always=always, never=never):
            if isinstance(always, ToolFilter) and _has_conditions(always) and _matches(tool, always):
                return True
            return not (isinstance(never, ToolFilter) and _has_conditions(never) and _matches(tool, never))
        case _:
            return True


def _has_conditions(tool_filter: ToolFilter) -> bool:
    return isinstance(tool_filter.tool_names, list) or isinstance(tool_filter.read_only, bool)


def _matches(tool: ToolDescription, tool_filter: ToolFilter) -> bool:
    """Whether a tool meets all conditions of a filter."""
    names, read_only = tool_filter.tool_names, tool_filter.read_only
    if isinstance(names, list) and tool.name not in names:
        return False
    return not isinstance(read_only, bool) or tool.read_only == read_only
