"""Calls of MCP servers' tools, and requests for approval, as Realtime shows them."""

from collections.abc import Callable

from antiphon.protocols.outbox import Outbox
from antiphon.protocols.tool_loop import mcp_texts
from antiphon.wire.codec.types import JsonDict
from antiphon.wire.realtime import server_events as events
from antiphon.wire.realtime.items import (
    McpApprovalRequestItem,
    McpCallItem,
    McpHttpError,
    McpProtocolError,
    McpToolExecutionError,
)

CUT_OFF_ERROR = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "The response ended before the tool answered."}]}
"""The error of a call whose response is over before it is, as the Responses API has it."""

ITEM_TYPES = frozenset({"mcp_call", "mcp_approval_request"})
"""The types of hosted tools' items that this protocol has, of those that are in a response."""


def mcp_item(id: str, fields: JsonDict) -> McpCallItem | McpApprovalRequestItem:
    """The item, made of that of the Responses API, which has a status and the content of a tool's error."""
    if fields["type"] == "mcp_approval_request":
        return McpApprovalRequestItem(id=id, server_label=fields["server_label"], name=fields["name"], arguments=fields["arguments"])
    return McpCallItem(
        id=id,
        server_label=fields["server_label"],
        name=fields["name"],
        arguments=fields["arguments"],
        approval_request_id=fields.get("approval_request_id"),
        output=fields.get("output"),
        error=_error(fields.get("error")),
    )


def _error(fields: JsonDict | None) -> McpProtocolError | McpToolExecutionError | McpHttpError | None:
    if not fields:
        return None
    match fields["type"]:
        case "mcp_tool_execution_error":
            return McpToolExecutionError(message=mcp_texts(fields.get("content")) or "The tool failed.")
        case "http_error":
            return McpHttpError(code=fields["code"], message=fields["message"])
        case _:
            return McpProtocolError(code=fields["code"], message=fields["message"])


_PROGRESS_EVENTS: dict[str, Callable[..., events.ServerEvent]] = {
    "response.mcp_call.in_progress": events.ResponseMcpCallInProgress,
    "response.mcp_call.completed": events.ResponseMcpCallCompleted,
    "response.mcp_call.failed": events.ResponseMcpCallFailed,
}


def send_progress(outbox: Outbox[events.ServerEvent], event: JsonDict, response_id: str, item_id: str, output_index: int) -> None:
    """Send what a call reports; events that this protocol does not have are left out."""
    position: JsonDict = {"item_id": item_id, "output_index": output_index}
    match event["type"]:
        case "response.mcp_call_arguments.delta":
            # `@openai/agents-realtime` requires `obfuscation`; a single delta has no sizes to hide.
            outbox.send(events.ResponseMcpCallArgumentsDelta, response_id=response_id, **position, delta=event["delta"], obfuscation="")
        case "response.mcp_call_arguments.done":
            outbox.send(events.ResponseMcpCallArgumentsDone, response_id=response_id, **position, arguments=event["arguments"])
        case kind if kind in _PROGRESS_EVENTS:
            outbox.send(_PROGRESS_EVENTS[kind], **position)
        case _:
            pass
