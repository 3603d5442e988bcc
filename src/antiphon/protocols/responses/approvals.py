"""The user's approval of MCP calls: what was asked for, what was answered, and what is still to be run."""

from collections.abc import Sequence

from msgspec import Struct, field

from antiphon.engine_api import history
from antiphon.errors import ClientError, shorten
from antiphon.protocols.tool_loop import ApprovedCall, denial, mcp_texts
from antiphon.tool_api import mcp_function_name
from antiphon.wire.codec.fields import value_or
from antiphon.wire.responses import hosted_calls as calls, items

_Item = calls.McpApprovalRequest | calls.McpApprovalResponse | calls.McpCall


class Approvals(Struct, frozen=True):
    """
    The approvals in a conversation.

    In the history an approved call is told where it was asked for, and its result where the user answered. A request
    that nobody has answered is left out.
    """

    requests: dict[str, calls.McpApprovalRequest] = field(default_factory=dict)
    responses: dict[str, calls.McpApprovalResponse] = field(default_factory=dict)
    approved_calls: dict[str, calls.McpCall] = field(default_factory=dict)

    @property
    def pending(self) -> list[ApprovedCall]:
        """The calls that were approved and are not run yet."""
        return [
            ApprovedCall(id, _function_name(request), request.arguments, request.server_label)
            for id, request in self.requests.items()
            if (response := self.responses.get(id)) is not None and response.approve and id not in self.approved_calls
        ]

    def history_items(self, item: _Item) -> tuple[history.HistoryItem, ...] | None:
        """What the model reads of an item; None for a call that nobody had to approve."""
        match item:
            case calls.McpApprovalRequest():
                # Every call in a history needs its output, and this one has none before the user has answered.
                if item.id not in self.responses:
                    return ()
                return (history.ToolCall(item.id, _function_name(item), item.arguments, namespace=item.server_label),)
            case calls.McpApprovalResponse():
                return (history.ToolResult(item.approval_request_id, self._result(item)),)
            case calls.McpCall():
                # Call and result stand where approval was asked for and given; here they would be told a second time.
                return () if item.approval_request_id in self.responses else None

    def _result(self, response: calls.McpApprovalResponse) -> tuple[history.HistoryPart, ...]:
        if not response.approve:
            return (denial(value_or(response.reason, None)),)
        call = self.approved_calls.get(response.approval_request_id)
        # The loop puts the result of a call that is still to be run here.
        return () if call is None else (history.TextPart(mcp_result_text(call)),)


def read_approvals(conversation: Sequence[tuple[str, items.Item]]) -> Approvals:
    """
    The approvals in a conversation.

    Args:
        conversation: its items, each with its path in the request.

    Raises:
        ClientError: an answer is to no request, or is the second to one.
    """
    approvals = Approvals()
    for path, item in conversation:
        match item:
            case calls.McpApprovalRequest():
                approvals.requests[item.id] = item
            case calls.McpApprovalResponse(approval_request_id=id):
                if id not in approvals.requests:
                    raise ClientError(f"No approval request found with id '{shorten(id)}'.", param=path.partition("[")[0])
                if id in approvals.responses:
                    raise ClientError(f"Approval request '{shorten(id)}' has been answered already.", param=path.partition("[")[0])
                approvals.responses[id] = item
            case calls.McpCall(approval_request_id=str(id)) if id:
                approvals.approved_calls[id] = item
    return approvals


def _function_name(request: calls.McpApprovalRequest) -> str:
    return mcp_function_name(request.server_label, request.name)


def mcp_result_text(call: calls.McpCall) -> str:
    """What the model reads of a call that was made."""
    error = call.error
    match error:
        # MCP, Tools, "Error Handling": a failure of the tool itself (`isError`) is told in content, for the model.
        case calls.McpToolExecutionError(content=content):
            return f"The tool failed: {mcp_texts(content) or content}"
        case calls.McpProtocolError(message=message) | calls.HttpError(message=message):
            return f"The call failed: {message}"
        case _:
            return call.output or ""
