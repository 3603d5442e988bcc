"""The tool `mcp`: lists the tools of the servers that a request names, offers them to the model, and runs its calls."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast

import msgspec
import structlog

from antiphon.engine_api.history import TextPart
from antiphon.engine_api.options import FunctionTool
from antiphon.errors import ApiError, ClientError
from antiphon.installation import install_hint
from antiphon.tool_api import ApprovalRequired, ServerFunction, ServerToolCall, ToolOutput, ToolsListed, decode_arguments, mcp_function_name
from antiphon.tools.base import Report, Tool, ToolContext
from antiphon.tools.mcp.dialing import Dialer, DialLimits, MakeDialer, ToolConnection
from antiphon.tools.mcp.items import CallItem, ListItem, described_tools, report_approval_request
from antiphon.tools.mcp.permissions import is_allowed, known_names, needs_approval
from antiphon.tools.mcp.requests import OwnServers, ServerRequest, read_requests
from antiphon.tools.mcp.server import CallError, ListingError, ToolDescription, ToolServer
from antiphon.wire.codec.structure import check_depth
from antiphon.wire.codec.types import encode
from antiphon.wire.responses.hosted_calls import HttpError, McpListTools, McpProtocolError, McpToolExecutionError
from antiphon.wire.responses.tools import McpTool, Tool as WireTool

_log = structlog.get_logger(__name__)

INVALID_PARAMS = -32602
"""The error of a call with invalid arguments. Source: JSON-RPC 2.0, 5.1."""

MAX_LISTS = 10_000
"""Lists of tools whose servers are remembered; the oldest are forgotten."""

MAX_ORIGINS = 8
"""The most servers that are remembered for one list."""


class McpTools:
    """
    The tool `mcp`.

    Args:
        own_servers: the operator's.
        make_dialer: reaches servers; None where the library for it is not installed.
        limits: `call_s` is that of the toolbox.
        output_chars: the most of one call's result that is kept.
    """

    def __init__(self, own_servers: OwnServers, make_dialer: MakeDialer | None, limits: DialLimits, output_chars: int) -> None:
        self._own_servers = own_servers
        self._make_dialer = make_dialer
        self._limits = limits
        self._output_chars = output_chars
        self._dialer: Dialer | None = None
        self._dialer_lock = asyncio.Lock()
        self.lists = _ListOrigins()

    @property
    def types(self) -> frozenset[str]:
        return frozenset({"mcp"})

    def open(self, tools: Sequence[tuple[str, WireTool]], context: ToolContext) -> Tool:
        mcp_tools = [(path, tool) for path, tool in tools if isinstance(tool, McpTool)]
        requests = read_requests(mcp_tools, self._own_servers)
        if self._make_dialer is None and any(request.function_server is None for request in requests):
            raise ClientError(
                f"This server can't reach MCP servers, as the library for them is not installed. {install_hint('tools')}",
                code="unsupported_value",
                param="tools",
            )
        return _OpenMcp(self, requests, context, self._output_chars)

    async def close(self) -> None:
        dialer, self._dialer = self._dialer, None
        if dialer is not None:
            await dialer.close()
        await self._own_servers.close()

    async def connect(self, request: ServerRequest) -> ToolConnection:
        """A connection to a server that is not in this process."""
        assert request.target is not None and self._make_dialer is not None
        async with self._dialer_lock:
            if self._dialer is None:  # The library takes a second to load.
                self._dialer = await asyncio.to_thread(self._make_dialer, self._limits)
        return self._dialer.connect(request.target)


class _ListOrigins:
    """Which servers, with which filters, the latest lists of tools came from, as far as this process knows; several may have equal ones."""

    def __init__(self) -> None:
        self._origins: OrderedDict[bytes, tuple[bytes, ...]] = OrderedDict()

    def remember(self, tenant: str, request: ServerRequest, tools: Sequence[ToolDescription]) -> None:
        key, origin = self._key(tenant, request.label, tools), self._origin(request)
        others = [other for other in self._origins.get(key, ()) if other != origin]
        self._origins[key] = (origin, *others[: MAX_ORIGINS - 1])
        self._origins.move_to_end(key)
        if len(self._origins) > MAX_LISTS:
            self._origins.popitem(last=False)

    def is_of(self, tenant: str, request: ServerRequest, tools: Sequence[ToolDescription]) -> bool:
        """Whether a list is of this server with this filter. One that is not known is, if it has all that the filter names."""
        origins = self._origins.get(self._key(tenant, request.label, tools))
        if origins is not None:
            return self._origin(request) in origins
        return known_names(request.tool) <= {tool.name for tool in tools}

    @staticmethod
    def _key(tenant: str, label: str, tools: Sequence[ToolDescription]) -> bytes:
        return hashlib.sha256(msgspec.json.encode([tenant, label, [tool.name for tool in tools]])).digest()

    @staticmethod
    def _origin(request: ServerRequest) -> bytes:
        allowed_tools = request.tool.allowed_tools
        return hashlib.sha256(encode([request.tool.server_url or "", allowed_tools or None])).digest()


class _Server:
    """One server of a response."""

    def __init__(self, request: ServerRequest) -> None:
        self.request = request
        self.connection: ToolConnection | None = None
        self._tool_by_function: dict[str, ToolDescription] | None = None

    @property
    def is_listed(self) -> bool:
        return self._tool_by_function is not None

    @property
    def functions(self) -> list[FunctionTool]:
        """What the model may call."""
        functions = [
            FunctionTool(name, tool.description, tool.input_schema, namespace=self.request.label)
            for name, tool in (self._tool_by_function or {}).items()
        ]
        if functions and self.request.description:
            about = f"(All tools of '{self.request.label}': {self.request.description})"
            # Once, not with each tool: all descriptions are in every prompt.
            first = functions[0]
            functions[0] = msgspec.structs.replace(first, description="\n".join(filter(None, (first.description, about))))
        return functions

    def set_tools(self, tools: Sequence[ToolDescription]) -> Sequence[ToolDescription]:
        """Take the server's list, and return what of it the request may use."""
        own_tools = [tool for tool in tools if is_allowed(tool, self.request.tool, self.request.allowed_names)]
        self._tool_by_function = {}
        for tool in own_tools:
            self._tool_by_function.setdefault(mcp_function_name(self.request.label, tool.name), tool)
        return own_tools

    def tool(self, function_name: str) -> ToolDescription | None:
        return (self._tool_by_function or {}).get(function_name)


class _OpenMcp:
    """The servers of one response."""

    def __init__(self, tools: McpTools, requests: Sequence[ServerRequest], context: ToolContext, output_chars: int) -> None:
        self._tools = tools
        self._tenant = context.tenant
        self._output_chars = output_chars
        self._servers = {request.label: _Server(request) for request in requests}
        for item in context.items:
            # The list that is nearest to the end counts. Source: tools are not fetched again while their item is in context.
            if isinstance(item, McpListTools) and not item.error and (server := self._servers.get(item.server_label)) is not None:
                listed_tools = described_tools(item)
                if tools.lists.is_of(self._tenant, server.request, listed_tools):
                    server.set_tools(listed_tools)

    @property
    def functions(self) -> Sequence[FunctionTool]:
        return [function for server in self._servers.values() for function in server.functions]

    @property
    def must_prepare(self) -> bool:
        return any(not server.is_listed for server in self._servers.values())

    async def prepare(self, report: Report) -> None:
        """List the tools of all servers at once; their items are reported one after another, as in the original."""
        servers = [server for server in self._servers.values() if not server.is_listed]
        async with asyncio.TaskGroup() as group:
            tasks = [(server, group.create_task(self._list(server))) for server in servers]
            for server, task in tasks:
                label = server.request.label
                item = ListItem(report, label)
                item.start()
                outcome = await task
                if isinstance(outcome, ListingError):
                    item.fail(outcome.reason)
                    for _, other_task in tasks:
                        other_task.cancel()
                    # Not raised here: a task group would wrap it in an `ExceptionGroup`.
                    failure = outcome
                    break
                item.complete(server.set_tools(outcome))
                report(ToolsListed(tuple(ServerFunction("mcp", function) for function in server.functions)))
            else:
                return
        raise _listing_failed(label, failure)

    async def run(self, call: ServerToolCall, report: Report) -> ToolOutput | ApprovalRequired:
        server = self._servers.get(call.namespace or "")
        tool = server.tool(call.name) if server is not None else None
        if server is None or tool is None:
            return _text_output(f"There is no tool '{call.name}' on the MCP server '{call.namespace}'.")
        arguments = _read_arguments(call.arguments)
        label = server.request.label
        # Arguments that can't be read need no approval, as nothing will be called.
        if arguments is not None and call.approval_request_id is None and needs_approval(tool, server.request.tool):
            report_approval_request(report, server_label=label, name=tool.name, arguments=call.arguments)
            return ApprovalRequired()
        item = CallItem(report, server_label=label, name=tool.name, arguments=call.arguments, approval_request_id=call.approval_request_id)
        item.start()
        outcome: str | CallError
        if arguments is None:
            outcome = McpProtocolError(code=INVALID_PARAMS, message="The arguments are no JSON object.")
        else:
            outcome = await (await self._reach(server)).call_tool(tool.name, arguments)
        if isinstance(outcome, str):
            item.complete(_shorten(outcome, self._output_chars))
            # Whole: the toolbox cuts it for the model, and its note could not count what was cut before.
            return _text_output(outcome)
        item.fail(outcome)
        return _text_output(_describe(outcome))

    def fail(self, item: Mapping[str, Any], message: str) -> dict[str, Any]:
        if item["type"] == "mcp_list_tools":
            return {**item, "error": message}
        return {**item, "status": "failed", "error": {"type": "http_error", "code": int(HTTPStatus.GATEWAY_TIMEOUT), "message": message}}

    def close(self) -> None:
        for server in self._servers.values():
            if server.connection is not None:
                server.connection.close()

    async def _reach(self, server: _Server) -> ToolServer:
        if server.request.function_server is not None:
            return server.request.function_server
        if server.connection is None:
            server.connection = await self._tools.connect(server.request)
        return server.connection

    async def _list(self, server: _Server) -> Sequence[ToolDescription] | ListingError:
        try:
            tools = await (await self._reach(server)).list_tools()
        except ListingError as error:
            return error
        except Exception as error:  # A defect met with one server becomes that server's error, not a 500 of this one.
            _log.error("A server's tools could not be listed.", label=server.request.label, error=type(error).__name__)
            return ListingError("it failed")
        usable_tools = [tool for tool in tools if _is_shallow(tool.input_schema)]
        allowed_tools = [tool for tool in usable_tools if is_allowed(tool, server.request.tool, server.request.allowed_names)]
        # As the item has it, since that is what comes back with the conversation.
        self._tools.lists.remember(self._tenant, server.request, allowed_tools)
        return allowed_tools


def _listing_failed(label: str, failure: ListingError) -> ApiError:
    """
    The original answers a request with 424 when a server's tools can't be listed, with the status that it got from the
    server in the text, or 424 again where there was none.
    """
    status = failure.status or HTTPStatus.FAILED_DEPENDENCY
    phrases = {each.value: each.phrase for each in HTTPStatus}
    message = f"Error retrieving tool list from MCP server: '{label}'. Http status code: {status} ({phrases.get(status, 'Unknown')})"
    if failure.status is None:
        message = f"{message}. The reason: {failure.reason}."
    # What the official Python SDK answers to an unknown `Host`: its protection against DNS rebinding.
    elif status == HTTPStatus.MISDIRECTED_REQUEST:
        message = f"{message}. The server does not answer to this host name: many take `localhost` alone until they are told otherwise."
    return ApiError(message, status=HTTPStatus.FAILED_DEPENDENCY, type="external_connector_error", code="http_error", param="tools")


def _is_shallow(schema: dict[str, Any]) -> bool:
    """Whether a schema is nested as little as a request may be: a client may send it back."""
    try:
        check_depth(msgspec.json.encode(schema))
    except (ClientError, ValueError, RecursionError):
        return False
    return True


def _read_arguments(text: str) -> dict[str, Any] | None:
    """A call's arguments; `{}` for an empty text, None if the text is not a JSON object."""
    if not text.strip():
        return {}
    try:
        check_depth(text.encode())
        arguments = decode_arguments(text)
    except (ClientError, ValueError):
        return None
    return arguments if isinstance(arguments, dict) else None


def _describe(error: CallError) -> str:
    """Why a call failed, as text for the model."""
    match error:
        case HttpError(message=message) | McpProtocolError(message=message):
            return f"The call failed. {message}"
        case McpToolExecutionError(content=content):
            parts = cast(Sequence[Any], content) if isinstance(content, list) else []
            texts = [str(part["text"]) for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
            return "\n".join(texts) or "The tool failed, and did not say why."


def _shorten(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}\n[{len(text) - max_chars} more characters were left out (tools.output_chars).]"


def _text_output(text: str) -> ToolOutput:
    return ToolOutput((TextPart(text),))
