"""The items and events of MCP calls and lists, as the original has them at each stage."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from antiphon.engine_api.events import HostedToolDone, HostedToolProgress, HostedToolStarted
from antiphon.tools.base import Report
from antiphon.tools.mcp.server import CallError, ToolDescription
from antiphon.wire.responses.hosted_calls import McpApprovalRequest, McpCall, McpListedTool, McpListTools

LIST_ID, CALL_ID, APPROVAL_ID = "mcpl_0", "mcp_0", "mcpr_0"
"""Placeholders of the right form: the session replaces them with ids of its own."""


class ListItem:
    """Reports the item `mcp_list_tools` and its events."""

    def __init__(self, report: Report, server_label: str) -> None:
        self._report = report
        self._label = server_label

    def start(self) -> None:
        """Report that the server is asked for its list."""
        self._report(HostedToolStarted(LIST_ID, list_item(self._label, ())))
        self._progress("in_progress")

    def complete(self, tools: Sequence[ToolDescription]) -> None:
        """Report the list."""
        self._progress("completed")
        self._report(HostedToolDone(LIST_ID, list_item(self._label, tools)))

    def fail(self, message: str) -> None:
        """Report why the tools can't be listed."""
        self._progress("failed")
        self._report(HostedToolDone(LIST_ID, list_item(self._label, ()) | {"error": message}))

    def _progress(self, stage: Literal["in_progress", "completed", "failed"]) -> None:
        self._report(HostedToolProgress(LIST_ID, {"type": f"response.mcp_list_tools.{stage}", "item_id": LIST_ID}))


class CallItem:
    """Reports the item `mcp_call` and its events."""

    def __init__(self, report: Report, *, server_label: str, name: str, arguments: str, approval_request_id: str | None) -> None:
        self._report = report
        self._arguments = arguments
        self._approval_request_id = approval_request_id
        self._item = McpCall(
            id=CALL_ID,
            status="in_progress",
            approval_request_id=approval_request_id,
            # Empty when the item is added: the events of the arguments bring them.
            arguments="",
            error=None,
            name=name,
            output=None,
            server_label=server_label,
        )

    def start(self) -> None:
        """Report the beginning of the call, with its arguments."""
        self._report(HostedToolStarted(CALL_ID, _plain(self._item)))
        self._progress("mcp_call.in_progress")
        self._progress("mcp_call_arguments.delta", delta=self._arguments)
        if self._approval_request_id is not None:  # as in recordings of the original
            self._progress("mcp_call.in_progress")
        self._progress("mcp_call_arguments.done", arguments=self._arguments)
        self._item.arguments = self._arguments

    def complete(self, output: str) -> None:
        """Report what the tool answered."""
        self._item.status, self._item.output = "completed", output
        self._progress("mcp_call.completed")
        self._report(HostedToolDone(CALL_ID, _plain(self._item)))

    def fail(self, error: CallError) -> None:
        """Report why there is no answer."""
        self._item.status, self._item.error = "failed", error
        self._progress("mcp_call.failed")
        self._report(HostedToolDone(CALL_ID, _plain(self._item)))

    def _progress(self, stage: str, **fields: str) -> None:
        self._report(HostedToolProgress(CALL_ID, {"type": f"response.{stage}", "item_id": CALL_ID, **fields}))


def report_approval_request(report: Report, *, server_label: str, name: str, arguments: str) -> None:
    """Report an item that asks the user for approval: it is complete at once, so there is no event between added and done."""
    item = _plain(McpApprovalRequest(id=APPROVAL_ID, arguments=arguments, name=name, server_label=server_label))
    report(HostedToolStarted(APPROVAL_ID, item))
    report(HostedToolDone(APPROVAL_ID, item))


def list_item(server_label: str, tools: Sequence[ToolDescription]) -> dict[str, Any]:
    """A list of tools as the fields of its item."""
    listed_tools = [
        McpListedTool(
            # Of a tool's annotations the original shows this one alone.
            annotations={"read_only": tool.read_only},
            description=tool.description,
            input_schema=tool.input_schema,
            name=tool.name,
        )
        for tool in tools
    ]
    return _plain(McpListTools(id=LIST_ID, server_label=server_label, tools=listed_tools))


def described_tools(item: McpListTools) -> list[ToolDescription]:
    """The tools in an item. A client may have written it, so entries that don't have the form of a tool are left out."""
    return [
        ToolDescription(
            name=tool.name,
            description=tool.description if isinstance(tool.description, str) else None,
            input_schema=tool.input_schema,
            read_only=isinstance(tool.annotations, dict) and tool.annotations.get("read_only") is True,
        )
        for tool in item.tools
        if isinstance(tool.input_schema, dict) and tool.name
    ]


def _plain(item: McpCall | McpListTools | McpApprovalRequest) -> dict[str, Any]:
    plain = msgspec.to_builtins(item)
    assert isinstance(plain, dict)
    return plain
