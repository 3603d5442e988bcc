"""
A server that is a program: JSON lines over its standard input and output.

The library's own transport joins the parts of a line one by one, without an end; so lines are read here.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from antiphon.tools.mcp.dialing import CommandTarget
from antiphon.tools.mcp.transport import Exchange

_log = structlog.get_logger(__name__)

_ENVIRONMENT = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "SYSTEMROOT", "TERM", "TMPDIR", "USER")
"""What a program gets of the server's environment: no keys are in it."""

_END_GRACE_S = 1.0
"""How long a program may take to end after its standard input is closed, and again after SIGTERM."""

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program: the few variables that programs need, and the operator's `extra`."""
    return {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | dict(extra)


@asynccontextmanager
async def run_command(target: CommandTarget, max_line_bytes: int, exchange: Exchange) -> AsyncIterator[Streams]:
    """
    Run a program while the context is open; it and its children are ended with it.

    Args:
        exchange: gets the reason when the program says too much.

    Raises:
        OSError: it can't be started.
    """
    process = await asyncio.create_subprocess_exec(
        *target.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment(target.env),
        cwd=target.folder,
        limit=max_line_bytes,
        start_new_session=True,  # so that its children end with it, and Ctrl-C is for the server alone
    )
    try:
        to_session, from_program = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        to_program, from_session = anyio.create_memory_object_stream[SessionMessage](0)
        async with to_session, from_program, to_program, from_session, anyio.create_task_group() as group:
            group.start_soon(_read, process, to_session, exchange, target)
            group.start_soon(_write, process, from_session)
            yield from_program, to_program
            # Reading waits for a program that is ended only after this.
            group.cancel_scope.cancel()
    finally:
        # Also where the session is cancelled: no program may outlive it.
        with anyio.CancelScope(shield=True):
            await _end(process)


async def _read(
    process: asyncio.subprocess.Process,
    to_session: MemoryObjectSendStream[SessionMessage | Exception],
    exchange: Exchange,
    target: CommandTarget,
) -> None:
    assert process.stdout is not None
    async with to_session:
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # the line is longer than the limit
                exchange.problem = "its answer is larger than the limit (tools.mcp_answer_kib)"
                return
            if not line:
                return
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                # MCP, transports, "stdio": a server must write nothing but messages. Another line ends no session.
                if line.strip():
                    _log.warning("An MCP server printed what is no message.", label=target.label)
                continue
            try:
                await to_session.send(SessionMessage(message))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return


async def _write(process: asyncio.subprocess.Process, from_session: MemoryObjectReceiveStream[SessionMessage]) -> None:
    assert process.stdin is not None
    async with from_session:
        async for message in from_session:
            line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                process.stdin.write(line.encode() + b"\n")
                await process.stdin.drain()
            except OSError:  # it has ended, which `_read` sees
                return


async def _end(process: asyncio.subprocess.Process) -> None:
    """
    End the program: its standard input is closed, then it gets SIGTERM, then SIGKILL, always with its children.

    Source: MCP 2025-11-25, lifecycle, "Shutdown".
    """
    assert process.stdin is not None
    process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_GRACE_S):
                await process.wait()
                break
        _kill(process, number)
    # Also where the program ended by itself.
    # Children that outlive their parent have its process group.
    _kill(process, signal.SIGKILL)
    await process.wait()
    # Such a child may hold the pipes open, and unread output would keep them so. No public method closes them.
    if (transport := getattr(process, "_transport", None)) is not None:
        transport.close()


def _kill(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
