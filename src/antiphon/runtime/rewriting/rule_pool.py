"""The processes that apply rules, as the server uses them."""

import asyncio
import sys
from collections.abc import Sequence
from typing import cast
from weakref import WeakValueDictionary

import msgspec

from antiphon.runtime.rewriting.annotations import Edit
from antiphon.runtime.rewriting.failure import RewriteFailed
from antiphon.subprocesses import reap, spawn

PROCESS_MODULE = ("-m", "antiphon.runtime.rewriting.rule_process")

MAX_PROCESSES = 4
"""
A text takes about a millisecond, so one is enough for most servers. While a rule runs away with one client's text, the
others serve the other clients.
"""

START_TIMEOUT_S = 30.0
"""Starting one takes a tenth of a second, or seconds on a machine that is busy with other things."""


class RuleTask(msgspec.Struct, frozen=True, kw_only=True):
    """
    A text, and what to do with it.

    Attributes:
        rules: each a pattern, what takes its place, and whether letters' case is ignored.
    """

    text: str
    rules: Sequence[tuple[str, str, bool]]
    skip_code: bool
    max_chars: int


class RuleResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a task: the text and the edits of each rule, or an error."""

    text: str = ""
    edits: list[list[Edit]] = []
    error: str | None = None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(RuleResult)
_EMPTY_TASK = _encoder.encode(RuleTask(text="", rules=(), skip_code=False, max_chars=0)) + b"\n"


class RulePool:
    """
    A few processes, started when they are needed. A call that takes too long is cancelled by its caller, and its process is
    killed, as nothing else stops it.
    """

    def __init__(self, max_processes: int = MAX_PROCESSES) -> None:
        self._free_slots = asyncio.Semaphore(max_processes)
        self._idle_processes: list[_RuleProcess] = []
        self._start_lock = asyncio.Lock()
        self._holder_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._is_stopped = False

    async def prepare(self) -> None:
        """
        Start a process, if none is idle and there may be another one: what `apply` starts itself counts as its time.

        Raises:
            RewriteFailed: it does not start.
        """
        async with self._start_lock:
            # Where all are busy, nothing is started: `apply` waits for one of them in any case.
            if not self._idle_processes and not self._free_slots.locked():
                async with self._free_slots:
                    await self._give_back(await self._start_process())

    async def apply(self, task: RuleTask, holder: str = "") -> RuleResult:
        """
        The result of a task.

        Args:
            holder: whose text it is; each has one process at a time.

        Raises:
            RewriteFailed: the process died, or the text can't be processed, or became too long.
        """
        try:
            line = _encoder.encode(task) + b"\n"
        except UnicodeEncodeError:
            raise RewriteFailed("it has characters that are no Unicode text") from None
        # In this order: a client that waits for its own process must not take up a place of the others.
        async with self._holder_lock(holder), self._free_slots:
            process = await self._take_process()
            try:
                result = await process.ask(line)
            except BaseException:
                await asyncio.shield(process.stop())
                raise
            await self._give_back(process)
        if result.error is not None:
            raise RewriteFailed(result.error)
        return result

    async def _give_back(self, process: "_RuleProcess") -> None:
        if self._is_stopped:
            await process.stop()
        else:
            self._idle_processes.append(process)

    async def stop(self) -> None:
        """End the processes; idempotent."""
        self._is_stopped = True
        processes, self._idle_processes = self._idle_processes, []
        for process in processes:
            await process.stop()

    def _holder_lock(self, holder: str) -> asyncio.Lock:
        lock = self._holder_locks.get(holder)
        if lock is None:
            lock = self._holder_locks[holder] = asyncio.Lock()
        return lock

    async def _take_process(self) -> "_RuleProcess":
        while self._idle_processes:
            process = self._idle_processes.pop()
            if not process.is_over:
                return process
            await process.stop()
        return await self._start_process()

    async def _start_process(self) -> "_RuleProcess":
        process = _RuleProcess()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await process.start()
        except TimeoutError:
            await process.stop()
            raise RewriteFailed(f"the process of the rules did not start within {START_TIMEOUT_S:g} s") from None
        except BaseException:
            await asyncio.shield(process.stop())
            raise
        return process


class _RuleProcess(asyncio.Protocol):
    """One process, and our end of its socket."""

    def __init__(self) -> None:
        self.is_over = False
        self._process: asyncio.subprocess.Process | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._answer: asyncio.Future[RuleResult] | None = None
        self._buffer = bytearray()

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        try:
            # `-P`: no module in the current folder takes the place of one of Python's.
            self._process = await spawn((sys.executable, "-P", *PROCESS_MODULE), lambda: self)
        except OSError as error:
            raise RewriteFailed(f"the process of the rules could not be started: {error.strerror}") from None
        # An empty task: its answer shows that Python and the modules are loaded.
        await self.ask(_EMPTY_TASK)

    async def ask(self, line: bytes) -> RuleResult:
        if self.is_over or self._transport is None:
            raise RewriteFailed("the process of the rules died")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(line)
        return await self._answer

    async def stop(self) -> None:
        self.is_over = True
        if self._transport is not None:
            self._transport.close()
        if self._process is not None:
            await reap(self._process, 0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's class is not a subclass of it.

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._buffer.endswith(b"\n") and self._answer is not None and not self._answer.done():
            self._answer.set_result(_decoder.decode(self._buffer))
            self._buffer.clear()

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_over = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(RewriteFailed("the process of the rules died"))
            # Marks it as retrieved: its caller may have left.
            self._answer.exception()
