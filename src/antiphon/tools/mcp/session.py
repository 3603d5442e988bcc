"""A session of the library `mcp` with one server, in a task of its own: it must be left by the task that entered it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import Context
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import httpx2
from mcp import Client, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import Implementation

from antiphon import __version__
from antiphon.deadline import Deadline
from antiphon.errors import innermost_error
from antiphon.tools.mcp.dialing import CommandTarget, DialLimits, HttpTarget, Target
from antiphon.tools.mcp.stdio import run_command
from antiphon.tools.mcp.transport import Exchange, Pools, SessionTransport

CLOSE_S = 3.0
"""How long a session may take to end."""

_OLD_TRANSPORT_STATUSES = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})
"""
What a server of the HTTP+SSE transport says to a POST; the SDK's answers 405 to a GET that it does not know either.
Source: MCP 2025-11-25, transports, "Backwards Compatibility".
"""


class SessionFailure(Exception):
    """
    A session could not be opened; the message says why, as the end of a sentence.

    Attributes:
        status: the HTTP status that the server answered with, or None.
    """

    def __init__(self, problem: str, status: int | None = None) -> None:
        super().__init__(problem)
        self.status = status if status is not None and status >= HTTPStatus.MULTIPLE_CHOICES else None


class McpSession:
    """
    A session, from its start on. It ends when nobody has used it for some time.

    Args:
        programs: how many of the operator's programs run, by label.

    Attributes:
        task: that the session lives in.
        exchange: what happened outside its calls.
    """

    def __init__(self, target: Target, limits: DialLimits, pools: Pools, programs: Counter[str]) -> None:
        loop = asyncio.get_running_loop()
        self.exchange = Exchange()
        self._target = target
        self._limits = limits
        self._pools = pools
        self._programs = programs
        self._users = 0
        self._end = asyncio.Event()
        self._idle = Deadline(self._end.set)
        self._client: asyncio.Future[Client] = loop.create_future()
        # What the session does for others is not done in the context of its first user.
        self.task = loop.create_task(self._run(), name="session with an MCP server", context=Context())

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or is about to: then the next use needs another session."""
        return self._end.is_set() or self.task.done()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Client]:
        """
        The library's client.

        Raises:
            SessionFailure: the session can't be opened.
        """
        self._users += 1
        self._idle.cancel()
        try:
            yield await asyncio.shield(self._client)
        finally:
            self._users -= 1
            if not self._users and not self._client.done():
                self.end()  # No call is left that needs it.
            elif not self._users and not self.is_over:
                self._idle.set(asyncio.get_running_loop().time() + self._limits.idle_s)

    def end(self) -> None:
        """Let it end, in the background; idempotent."""
        # Once: a second cancellation would end the clean-up after the first.
        if not self._client.done() and not self._end.is_set():
            self.task.cancel()
        self._end.set()

    async def _run(self) -> None:
        try:
            match self._target:
                case CommandTarget() as target:
                    with self._count_program(target):
                        await self._stay(run_command(target, self._limits.answer_bytes, self.exchange))
                case HttpTarget() as target:
                    await self._stay_over_http(target)
        except SessionFailure as failure:
            self._fail(failure)
        except Exception as error:  # the library raises whatever its parts do, in groups
            self._fail(self._failure(error))
        finally:
            self._end.set()
            self._idle.close()
            self._fail(SessionFailure("the session was closed"))

    def _fail(self, failure: SessionFailure) -> None:
        if not self._client.done():
            self._client.set_exception(failure)
            self._client.exception()  # Marks it as retrieved: its callers may have left.

    def _failure(self, error: Exception) -> SessionFailure:
        return SessionFailure(self.exchange.problem or _describe(error), self.exchange.status)

    async def _stay_over_http(self, target: HttpTarget) -> None:
        """Try one transport, and the other if the server does not speak the first."""
        # A guess by the usual path: a wrong one costs a request, as the other transport is tried after it.
        is_sse = urlsplit(target.url).path.rstrip("/").endswith("/sse")
        try:
            await self._stay_over(target, is_sse=is_sse)
        except Exception as error:
            failure = self._failure(error)
            # A problem is this server's own, such as a refused address: the other transport would meet it again.
            if self._client.done() or self.exchange.problem or failure.status not in _OLD_TRANSPORT_STATUSES:
                raise
            try:
                await self._stay_over(target, is_sse=not is_sse)
            except Exception:
                if self._client.done():
                    raise
                # The first error is of the likelier transport, so it tells more.
                raise failure from None

    async def _stay_over(self, target: HttpTarget, *, is_sse: bool) -> None:
        # A request that fails ends an SSE session: the library would go on waiting for an answer.
        transport = SessionTransport(self._pools.pool(target.is_own), self._limits.answer_bytes, self._end.set if is_sse else lambda: None)
        self.exchange = transport.exchange
        # A session's own stream is silent while it waits for a call, and while the longest call runs.
        read_s = self._limits.call_s + self._limits.idle_s
        timeout = httpx2.Timeout(read_s, connect=self._limits.connect_s, pool=self._limits.connect_s)

        def make_client(*_args: object, **_options: object) -> httpx2.AsyncClient:
            # `trust_env=False`: a proxy from the environment would take requests past this transport and its guard.
            return httpx2.AsyncClient(transport=transport, headers=dict(target.headers), timeout=timeout, trust_env=False)

        if is_sse:
            await self._stay(sse_client(target.url, httpx_client_factory=make_client), transport)
            return
        async with make_client() as http_client:
            streams = streamable_http_client(target.url, http_client=http_client, max_sse_event_size=self._limits.answer_bytes)
            await self._stay(streams, transport)

    async def _stay(self, streams: AbstractAsyncContextManager[Any], transport: SessionTransport | None = None) -> None:
        """Open the session, and stay in it until it is to end."""
        async with asyncio.timeout(None) as closing:
            # The server's hints at how long its list is good are not followed: the conversation has the list.
            async with Client(streams, cache=None, client_info=Implementation(name="antiphon", version=__version__)) as client:
                if transport is not None:
                    transport.is_open = True
                self._client.set_result(client)
                await self._end.wait()
                closing.reschedule(asyncio.get_running_loop().time() + CLOSE_S)

    @contextmanager
    def _count_program(self, target: CommandTarget) -> Iterator[None]:
        if self._programs[target.label] >= target.processes:
            raise SessionFailure(f"all its {target.processes} processes are in use (tools.mcp[].processes)", HTTPStatus.SERVICE_UNAVAILABLE)
        self._programs[target.label] += 1
        try:
            yield
        finally:
            self._programs[target.label] -= 1


def _describe(error: Exception) -> str:
    """Why a session could not be opened. What the library says is not quoted: it has addresses in it."""
    match innermost_error(error):
        case httpx2.HTTPStatusError():
            return "it answered with an HTTP error"
        case OSError():
            return "it could not be started"
        case MCPError():
            return "it refused the connection, or does not speak the Model Context Protocol"
        case _:
            return "it does not speak the Model Context Protocol"
