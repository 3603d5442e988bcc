"""Servers that speak the Model Context Protocol, over HTTP or as programs, by the library `mcp`."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

from mcp import Client, MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    PaginatedRequestParams,
)
from pydantic import ValidationError

from antiphon.errors import shorten
from antiphon.masking import MASK, is_secret
from antiphon.tools.mcp.content import text_of
from antiphon.tools.mcp.dialing import AddressGuard, CommandTarget, DialLimits, Target, ToolConnection
from antiphon.tools.mcp.server import CallError, ListingError, ToolDescription
from antiphon.tools.mcp.session import CLOSE_S, McpSession, SessionFailure
from antiphon.tools.mcp.transport import MAX_LIST_PARTS, Exchange, Pools, current_exchange
from antiphon.wire.responses.hosted_calls import HttpError, McpProtocolError, McpToolExecutionError

# The libraries log addresses with their queries, and messages with their arguments: both may have secrets in them.
for _name in ("mcp", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)

CALL_SHARE = 0.98
"""Of the toolbox's limit: a call that takes too long ends with its own events, before the toolbox cuts it short."""

MAX_PAGES = 100
MAX_NAME_LENGTH = 256
"""Of a tool; those with longer names are left out."""

MIN_SECRET_LENGTH = 8
"""Shorter values of headers are words that texts may have in them for other reasons."""

MAX_MESSAGE_LENGTH = 2000
"""The most of a server's error message that is passed on."""

_STATUS_MESSAGES = frozenset({"Server returned an error response", "Not Found", "Session terminated"})
"""What the library says of an HTTP error that has no JSON-RPC error in its body (`mcp` 2.3)."""

_CLOSED_MESSAGE = "Connection closed"
_LOST_MESSAGES = (_CLOSED_MESSAGE, "SSE stream")
"""How the library begins what it says of a connection that ended."""

_UNREADABLE_MESSAGES = ("Failed to parse JSON response", "Failed to parse SSE message")
"""How the library begins what it says of an answer that it can't read; then it quotes it, and its own parts."""

_NOT_THE_PROTOCOL = "The server's answer is not as the protocol has it."

MAX_ERROR_CODE = (1 << 31) - 1
"""Of a server's error: JSON-RPC has no limit, but many clients read a code as an integer of 32 bits."""


class RemoteServers:
    """The `Dialer` of this process."""

    def __init__(self, guard: AddressGuard, limits: DialLimits) -> None:
        self._guard = guard
        self._limits = limits
        self._sessions: set[McpSession] = set()
        self._programs: Counter[str] = Counter()
        self._pools = Pools(guard)

    def connect(self, target: Target) -> ToolConnection:
        return _RemoteServer(self, target)

    def open_session(self, target: Target) -> McpSession:
        """Begin a session; it is opened in a task of its own, and closed with all others by `close`."""
        session = McpSession(target, self._limits, self._pools, self._programs)
        self._sessions.add(session)
        session.task.add_done_callback(lambda _task: self._sessions.discard(session))
        return session

    @property
    def limits(self) -> DialLimits:
        """The limits of every connection."""
        return self._limits

    async def close(self) -> None:
        tasks = [session.task for session in self._sessions]
        for session in [*self._sessions]:
            session.end()
        if tasks:
            _, late_tasks = await asyncio.wait(tasks, timeout=CLOSE_S + 1)
            for task in late_tasks:
                task.cancel()
        await self._pools.close()


class _RemoteServer:
    """One server as one response sees it."""

    def __init__(self, servers: RemoteServers, target: Target) -> None:
        self._servers = servers
        self._limits = servers.limits
        self._target = target
        # The longest first: replacing one that is part of another would leave the rest of the longer one to be read.
        self._secrets = sorted(_secrets(target), key=len, reverse=True)
        self._session: McpSession | None = None

    async def list_tools(self) -> Sequence[ToolDescription]:
        exchange = Exchange(MAX_LIST_PARTS)
        token = current_exchange.set(exchange)
        session = self._open_session()
        try:
            async with asyncio.timeout(self._limits.list_s), session.use() as client:
                return await _list_all(client, self._limits.tools)
        except TimeoutError:
            raise ListingError(f"it did not list its tools within {self._limits.list_s:g} seconds (tools.mcp_list_s)") from None
        except SessionFailure as failure:
            raise ListingError(self._mask(str(failure)), failure.status) from None
        except MCPError as error:
            reason = _explain(error, exchange, session.exchange)
            # Where the server is not what said so, a status would hide the reason, such as a limit.
            status = reason.code if isinstance(reason, HttpError) and not exchange.problem else None
            raise ListingError(exchange.problem or self._mask(reason.message), status) from None
        except ValidationError:
            raise ListingError("its list of tools is not as the protocol has it") from None
        finally:
            current_exchange.reset(token)

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> str | CallError:
        try:
            async with asyncio.timeout(self._limits.call_s * CALL_SHARE):
                outcome = await self._call(name, arguments)
        except TimeoutError:
            message = f"The server did not answer within {self._limits.call_s:g} seconds (tools.call_s)."
            outcome = _http_error(HTTPStatus.GATEWAY_TIMEOUT, message)
        match outcome:
            case str():
                return self._mask(outcome)
            case McpToolExecutionError():
                return McpToolExecutionError(content=self._mask_all(outcome.content))
            case HttpError(code=code):
                return HttpError(code=code, message=self._mask(outcome.message))
            case McpProtocolError(code=code):
                return McpProtocolError(code=code, message=self._mask(outcome.message))

    def close(self) -> None:
        if self._session is not None:
            self._session.end()
            self._session = None

    def _open_session(self) -> McpSession:
        if self._session is None or self._session.is_over:
            self._session = self._servers.open_session(self._target)
        return self._session

    async def _call(self, name: str, arguments: dict[str, Any]) -> str | CallError:
        former_session = self._session
        outcome = await self._call_once(name, arguments)
        # None: the server ran nothing, so the call may be sent again, in a new session. If this one was new, another would not help.
        if outcome is None and former_session is not None:
            if self._session is former_session:
                self.close()
            outcome = await self._call_once(name, arguments)
        return outcome if outcome is not None else _http_error(HTTPStatus.NOT_FOUND, describe_status(HTTPStatus.NOT_FOUND))

    async def _call_once(self, name: str, arguments: dict[str, Any]) -> str | CallError | None:
        """What comes of a call; None if the server does not know the session."""
        exchange = Exchange()
        token = current_exchange.set(exchange)
        session = self._open_session()
        try:
            async with session.use() as client:
                result = await _send_call(client, name, arguments)
        except SessionFailure as failure:
            return _http_error(failure.status or HTTPStatus.BAD_GATEWAY, f"The server failed: {failure}.")
        except MCPError as error:
            if exchange.is_session_lost:
                return None
            if error.error.code == CONNECTION_CLOSED and error.error.message == _CLOSED_MESSAGE:
                session.end()  # the next call begins another
            return _explain(error, exchange, session.exchange)
        except ValidationError:
            return McpProtocolError(code=INVALID_REQUEST, message=_NOT_THE_PROTOCOL)
        finally:
            current_exchange.reset(token)
        if result.is_error:
            return McpToolExecutionError(content=[_content(part) for part in result.content])
        return text_of(result)

    def _mask(self, text: str) -> str:
        """The text without the credentials that were sent to the server, should it repeat them."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text

    def _mask_all(self, value: Any) -> Any:
        match value:
            case str():
                return self._mask(value)
            case list():
                return [self._mask_all(each) for each in value]
            case dict():
                return {key: self._mask_all(each) for key, each in value.items()}
            case _:
                return value


def _secrets(target: Target) -> Iterable[str]:
    if isinstance(target, CommandTarget):
        return {value for name, value in target.env.items() if is_secret(name) and len(value) >= MIN_SECRET_LENGTH}
    values = {value.strip() for value in target.headers.values()}
    # Of `Bearer KEY` the key alone, too: an error message may repeat it without the scheme.
    return {word for value in values for word in (value, value.rpartition(" ")[2]) if len(word) >= MIN_SECRET_LENGTH}


async def _list_all(client: Client, max_tools: int) -> Sequence[ToolDescription]:
    tools: dict[str, ToolDescription] = {}
    cursor = None
    for _ in range(MAX_PAGES):
        page = await client.session.list_tools(params=PaginatedRequestParams(cursor=cursor) if cursor else None)
        for tool in page.tools:
            if tool.name and len(tool.name) <= MAX_NAME_LENGTH:
                is_read_only = tool.annotations is not None and tool.annotations.read_only_hint is True
                tools.setdefault(
                    tool.name,
                    ToolDescription(name=tool.name, description=tool.description, input_schema=tool.input_schema, read_only=is_read_only),
                )
        if len(tools) > max_tools:
            raise ListingError(f"it has more than {max_tools} tools")
        if not (cursor := page.next_cursor):
            return [*tools.values()]
    raise ListingError(f"its list of tools has more than {MAX_PAGES} pages")


async def _send_call(client: Client, name: str, arguments: dict[str, Any]) -> CallToolResult:
    # Not by `call_tool`: it checks the result against the server's schema, whose patterns could hold the event loop.
    request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments))
    try:
        return await client.session.send_request(request, CallToolResult)
    except MCPError as error:
        if error.error.code != HEADER_MISMATCH:
            raise
    # The call was refused unread, as a header that the tool's schema asks for is missing: the list has to be known.
    # Source: MCP 2026-07-28, transports, "x-mcp-header".
    await client.session.list_tools()
    return await client.session.send_request(request, CallToolResult)


def _content(part: Any) -> Any:
    return part.model_dump(mode="json", by_alias=True, exclude_none=True)


def _explain(error: MCPError, exchange: Exchange, session_exchange: Exchange) -> HttpError | McpProtocolError:
    """
    Why there is no result: an HTTP error, or one of the protocol.

    Args:
        exchange: of the call.
        session_exchange: of the session, whose end may have ended the call.
    """
    code, message, status = error.error.code, error.error.message, exchange.status or 0
    # The library says then only that the connection ended: the reason is what this server saw, such as a limit.
    if exchange.problem:
        return _http_error(HTTPStatus.BAD_GATEWAY, _sentence(exchange.problem))
    # The credentials in the headers are for the server that the request names, and for no other origin.
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return _http_error(status, "The server redirects to another place, which is not followed.")
    if status >= HTTPStatus.BAD_REQUEST and message in _STATUS_MESSAGES:
        return _http_error(status, describe_status(status))
    if code == CONNECTION_CLOSED and message.startswith(_LOST_MESSAGES):
        problem = session_exchange.problem or "the server broke the connection"
        return _http_error(HTTPStatus.BAD_GATEWAY, _sentence(problem))
    if code == PARSE_ERROR and message.startswith(_UNREADABLE_MESSAGES):
        return McpProtocolError(code=PARSE_ERROR, message=_NOT_THE_PROTOCOL)
    if abs(code) > MAX_ERROR_CODE:
        code = INTERNAL_ERROR
    return McpProtocolError(code=code, message=shorten(message, MAX_MESSAGE_LENGTH))


def describe_status(status: int) -> str:
    """An HTTP status with its name: `401 (Unauthorized)`."""
    names = {each.value: each.phrase for each in HTTPStatus}
    return f"{status:d} ({names[status]})" if status in names else str(status)


def _http_error(code: int, message: str) -> HttpError:
    return HttpError(code=int(code), message=message)


def _sentence(problem: str) -> str:
    return f"{problem[:1].upper()}{problem[1:]}."
