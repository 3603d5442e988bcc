"""An operator's functions as a server of tools: the process that runs them, and the limits of each call."""

import asyncio
import itertools
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import structlog
from msgspec import Struct

from antiphon.config.tools.functions import FunctionsEntry
from antiphon.errors import shorten
from antiphon.framing import BadFrame, FrameDecoder, pack_frame
from antiphon.subprocesses import reap, spawn
from antiphon.tools.functions.messages import (
    FROM_PROCESS,
    CallAnswered,
    CallFunction,
    CancelCall,
    FromProcess,
    FunctionsLoaded,
    LoadedFunction,
    LoadFailed,
    LoadFunctions,
)
from antiphon.tools.mcp.server import CallError, ListingError, ToolDescription
from antiphon.wire.responses.hosted_calls import McpProtocolError, McpToolExecutionError

PROCESS_MODULE = ("-m", "antiphon.tools.functions.child")

START_TIMEOUT_S = 60.0
"""How long functions may take to load: an operator's file may import anything."""

RETRY_S = 5.0
"""The pause after a failed load: loading may be expensive, and any client can trigger it."""

KILL_GRACE_S = 2.0
"""How long a cancelled call may take to end; then the process is killed with all its calls."""

MAX_ARGUMENTS_BYTES = 1 << 20

INVALID_PARAMS, INTERNAL_ERROR = -32602, -32603
"""Errors for an unknown tool, and for functions that can't be loaded. Source: JSON-RPC 2.0, section 5.1; MCP, Tools, "Error Handling"."""

_log = structlog.get_logger(__name__)


class FunctionLimits(Struct, frozen=True, kw_only=True):
    """
    The limits of functions.

    Attributes:
        call_s: seconds that a call may take.
        memory_mib: that a call may take beyond what the loaded functions have.
        output_chars: of a result; the rest is left out.
        parallel: calls that run at once.
    """

    call_s: float = 30.0
    memory_mib: int = 512
    output_chars: int = 100_000
    parallel: int = 4


def function_servers(entries: Iterable[FunctionsEntry], base_folder: Path) -> dict[str, "FunctionServer"]:
    """
    The servers of an operator's functions, by label; none is started.

    Args:
        base_folder: that relative paths start from.
    """
    return {
        entry.label: FunctionServer(
            entry.label,
            file=None if entry.file is None else str(base_folder / Path(entry.file).expanduser()),
            entry_point=entry.entry_point,
            read_only=entry.read_only,
            limits=FunctionLimits(
                call_s=entry.call_s, memory_mib=entry.memory_mib, output_chars=entry.output_chars, parallel=entry.parallel
            ),
        )
        for entry in entries
    }


class FunctionServer:
    """
    The functions of one file or entry point, as a `ToolServer`. Their process starts when they are first needed, and
    again when it has died.

    Args:
        label: by which clients name it.
        file: absolute path of a Python file; None for an entry point.
        entry_point: its name in the group `antiphon.tools`; None for a file.
        read_only: names of the functions that change nothing.
    """

    def __init__(
        self,
        label: str,
        *,
        file: str | None = None,
        entry_point: str | None = None,
        read_only: Sequence[str] = (),
        limits: FunctionLimits | None = None,
    ) -> None:
        self._label = label
        self._limits = limits or FunctionLimits()
        self._load = LoadFunctions(
            file=file, entry_point=entry_point, memory_bytes=self._limits.memory_mib << 20, output_chars=self._limits.output_chars
        )
        self._read_only = frozenset(read_only)
        self._slots = asyncio.Semaphore(self._limits.parallel)
        self._start_lock = asyncio.Lock()
        self._process: _FunctionProcess | None = None
        self._failed_at: float | None = None
        self._is_closed = False

    async def list_tools(self) -> Sequence[ToolDescription]:
        process = await self._running_process()
        return [
            ToolDescription(
                name=each.name, input_schema=each.parameters, description=each.description, read_only=each.name in self._read_only
            )
            for each in process.functions.values()
        ]

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> str | CallError:
        try:
            process = await self._running_process()
        except ListingError as error:
            return McpProtocolError(code=INTERNAL_ERROR, message=f"The functions can't be called: {error.reason}.")
        if name not in process.functions:
            return McpProtocolError(code=INVALID_PARAMS, message=f"Unknown tool: {shorten(name)}")
        try:
            payload = msgspec.json.encode(arguments)
        except (TypeError, ValueError, RecursionError):
            return _execution_error("The arguments are wrong: they are no JSON.")
        if len(payload) > MAX_ARGUMENTS_BYTES:
            return _execution_error(f"The arguments are wrong: they have more than {MAX_ARGUMENTS_BYTES} bytes.")
        try:
            async with asyncio.timeout(self._limits.call_s):
                # Waiting for a slot is not counted as the function's own time.
                await self._slots.acquire()
        except TimeoutError:
            return _execution_error(
                f"Too many calls run already: at most {self._limits.parallel} at once (tools.functions.parallel). Try again later."
            )
        try:
            return await self._call(name, payload)
        finally:
            self._slots.release()

    async def close(self) -> None:
        """End the process; idempotent."""
        # Before the lock: a call that waits for it must not start another process.
        self._is_closed = True
        async with self._start_lock:
            if self._process is not None:
                await self._process.stop()

    async def _call(self, name: str, payload: bytes) -> str | CallError:
        try:
            process = await self._running_process()  # It may have died while the call waited.
        except ListingError as error:
            return McpProtocolError(code=INTERNAL_ERROR, message=f"The functions can't be called: {error.reason}.")
        call_id, answer = process.call(name, payload)
        try:
            async with asyncio.timeout(self._limits.call_s):
                # Shielded: the future still has to tell when the call has really ended, which frees its slot.
                outcome = await asyncio.shield(answer)
        except TimeoutError:
            return _execution_error(
                f"The function took longer than {self._limits.call_s:g} seconds (tools.functions.call_s), and was stopped."
            )
        finally:
            if not answer.done():
                # The slot stays taken until the process of the call is gone; else cancelled calls would run beyond the limit.
                await process.cancel(call_id, answer)
        if outcome.detail:
            _log.warning("A function failed.", label=self._label, function=name, reason=outcome.detail)
        return _execution_error(outcome.text) if outcome.is_error else outcome.text

    async def _running_process(self) -> "_FunctionProcess":
        """
        The process that has loaded the functions.

        Raises:
            ListingError: they can't be loaded.
        """
        async with self._start_lock:
            if self._process is not None and not self._process.is_over:
                return self._process
            now = asyncio.get_running_loop().time()
            if self._is_closed or (self._failed_at is not None and now - self._failed_at < RETRY_S):
                raise ListingError("they can't be loaded now")
            # Ends and reaps the one that died, whose socket is still open.
            if self._process is not None:
                await self._process.stop()
            process = self._process = _FunctionProcess()
            try:
                async with asyncio.timeout(START_TIMEOUT_S):
                    reason = await process.start(self._load)
            except TimeoutError:
                reason = f"they took longer than {START_TIMEOUT_S:g} seconds"
            except BaseException:
                await asyncio.shield(process.stop())
                raise
            if reason is None:
                self._failed_at = None
                return process
            self._failed_at = asyncio.get_running_loop().time()
            await process.stop()
            _log.error("Functions can't be loaded.", label=self._label, reason=reason)
            raise ListingError("they can't be loaded; the operator finds the reason in the server's log")


class _FunctionProcess(asyncio.Protocol):
    """One process, and our end of its socket."""

    def __init__(self) -> None:
        self.is_over = False
        self.functions: dict[str, LoadedFunction] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._frames: FrameDecoder[FromProcess] = FrameDecoder(FROM_PROCESS)
        self._load_outcome: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._answers: dict[int, asyncio.Future[CallAnswered]] = {}
        self._ids = itertools.count(1)

    async def start(self, load: LoadFunctions) -> str | None:
        """Start it, and load the functions; returns why that failed, or None."""
        try:
            self._process = await spawn((sys.executable, "-P", *PROCESS_MODULE), lambda: self)
        except OSError as error:
            return f"their process could not be started: {error.strerror}"
        if self._transport is not None:
            self._transport.write(pack_frame(load))
        return await self._load_outcome

    def call(self, name: str, arguments: bytes) -> "tuple[int, asyncio.Future[CallAnswered]]":
        """Start a call; returns its id, for `cancel`, and its answer."""
        call_id = next(self._ids)
        answer = self._answers[call_id] = asyncio.get_running_loop().create_future()
        if self.is_over or self._transport is None:
            self._resolve(call_id, _crash(call_id))
        else:
            self._transport.write(pack_frame(CallFunction(call_id, name, arguments)))
        return call_id, answer

    async def cancel(self, call_id: int, answer: "asyncio.Future[CallAnswered]") -> None:
        """End a call and wait for its end; kills all of the process if that takes too long."""
        if self._transport is not None and not self.is_over:
            self._transport.write(pack_frame(CancelCall(call_id)))
        await asyncio.wait((answer,), timeout=KILL_GRACE_S)
        if not answer.done():
            await self.stop()

    async def stop(self) -> None:
        """End it, with all its calls; idempotent."""
        self._lose("it was stopped")
        if self._transport is not None:
            self._transport.close()
        if self._process is not None:
            await reap(self._process, KILL_GRACE_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's class is not a subclass of it.

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                self._on_message(message)
        except BadFrame as error:
            # After a broken frame nothing in the stream can be read any more.
            self._lose(str(error))
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        self._lose("their process ended")

    def _on_message(self, message: FromProcess) -> None:
        match message:
            case FunctionsLoaded(functions):
                self.functions = {each.name: each for each in functions}
                self._set_load_outcome(None)
            case LoadFailed(reason):
                self._set_load_outcome(reason)
            case CallAnswered(call_id):
                self._resolve(call_id, message)

    def _lose(self, reason: str) -> None:
        self.is_over = True
        self._set_load_outcome(reason)
        for call_id in list(self._answers):
            self._resolve(call_id, _crash(call_id))

    def _set_load_outcome(self, reason: str | None) -> None:
        if not self._load_outcome.done():
            self._load_outcome.set_result(reason)

    def _resolve(self, call_id: int, outcome: CallAnswered) -> None:
        answer = self._answers.pop(call_id, None)
        if answer is not None and not answer.done():
            answer.set_result(outcome)


def _crash(call_id: int) -> CallAnswered:
    return CallAnswered(call_id, "The function crashed.", is_error=True, detail="The process of the functions ended.")


def _execution_error(text: str) -> McpToolExecutionError:
    return McpToolExecutionError(content=[{"type": "text", "text": text}])
