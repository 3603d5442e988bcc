"""
Reads files as text, each in a process of its own with limits of memory, time and size; small files that are text already
are read here.

Large ones are not: a regular expression that goes through megabytes holds the interpreter all the while, and so the loop.
"""

import asyncio
import os
import signal
import sys
from typing import cast

import msgspec
import structlog
from msgspec import Struct

from antiphon.installation import install_hint, missing_modules
from antiphon.offload import LARGE_BYTES
from antiphon.subprocesses import exit_reason, reap, spawn
from antiphon.tools.file_search.formats import MAX_TEXT_CHARS, Format, UnreadableFileError, file_format, text_of, tidy
from antiphon.tools.file_search.parse_process import ParseAnswer, ParseTask

PROCESS_MODULE = ("-m", "antiphon.tools.file_search.parse_process")

MAX_ANSWER_BYTES = 4 * MAX_TEXT_CHARS + 4096
"""The most that a process may answer: a character is four bytes at most in UTF-8."""

_ENVIRONMENT = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "TZ")
"""The variables that a process gets: others may be secrets, which a file that takes over a parser could read."""

_WRITE_BYTES = 256 << 10
_LIBRARIES: dict[Format, str] = {"pdf": "pypdfium2", "html": "selectolax"}

_log = structlog.get_logger(__name__)


class ParseLimits(Struct, frozen=True, kw_only=True):
    """
    The limits of each file.

    Attributes:
        file_bytes: of the file.
        memory_bytes: of the process that reads it, without the file itself, of which it may hold some copies.
        cpu_s: seconds of a processor.
        wall_s: seconds in all; the process is killed when they are over.
        processes: how many files are read at once.
    """

    file_bytes: int = 512 << 20
    memory_bytes: int = 768 << 20
    cpu_s: int = 30
    wall_s: float = 120.0
    processes: int = 2


class Parsers:
    """The processes that read files; each is started for a file, and ends with it."""

    def __init__(self, limits: ParseLimits | None = None) -> None:
        self._limits = limits or ParseLimits()
        self._slots = asyncio.Semaphore(self._limits.processes)

    async def parse(self, content: bytes, filename: str) -> str:
        """
        The text of a file.

        Args:
            filename: whose ending says what the file is; where it doesn't, the first bytes do.

        Raises:
            UnreadableFileError: the file has no text that can be read.
        """
        if len(content) > self._limits.file_bytes:
            message = f"The file has {len(content)} bytes, and the limit is {self._limits.file_bytes}."
            raise UnreadableFileError("invalid_file", message)
        format = file_format(content, filename)
        if format == "text" and len(content) < LARGE_BYTES:
            return tidy(text_of(content))
        if (library := _LIBRARIES.get(format)) and missing_modules((library,)):
            _log.warning("A file can't be read.", format=format, hint=install_hint("tools"))
            raise UnreadableFileError("server_error", f"This server has no reader for the format '{format}'.")
        async with self._slots:
            return await self._read_in_process(format, content)

    async def _read_in_process(self, format: Format, content: bytes) -> str:
        limits = self._limits
        memory_bytes = limits.memory_bytes + 3 * len(content)
        task = ParseTask(format=format, size_bytes=len(content), memory_bytes=memory_bytes, cpu_s=limits.cpu_s)
        process = _ParseProcess()
        try:
            async with asyncio.timeout(limits.wall_s):
                return await process.read(task, content)
        except TimeoutError:
            raise UnreadableFileError("invalid_file", f"The file takes more than {limits.wall_s:g} seconds to be read.") from None
        finally:
            # Shielded: also where the task is cancelled the process must not outlive the file.
            await asyncio.shield(process.stop())


class _ParseProcess(asyncio.Protocol):
    """One process, and our end of its socket."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._process: asyncio.subprocess.Process | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._answer = bytearray()
        self._is_over = loop.create_future()
        self._may_write = asyncio.Event()

    async def read(self, task: ParseTask, content: bytes) -> str:
        try:
            environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
            self._process = await spawn((sys.executable, "-P", *PROCESS_MODULE), lambda: self, environment=environment)
        except OSError:
            _log.exception("No process could be started to read a file.")
            raise UnreadableFileError("server_error", "The server can't read files now.") from None
        await self._send(msgspec.json.encode(task) + b"\n")
        for begin in range(0, len(content), _WRITE_BYTES):
            await self._send(content[begin : begin + _WRITE_BYTES])
        await self._is_over
        header, is_complete, text = self._answer.partition(b"\n")
        if not is_complete:
            raise await self._death()
        try:
            answer = msgspec.json.decode(header, type=ParseAnswer)
            if answer.code is not None:
                raise UnreadableFileError(answer.code, answer.message)
            if answer.size_bytes == len(text):
                return text.decode()
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        raise await self._death()

    async def stop(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        if self._process is not None:
            await reap(self._process, 0)

    async def _send(self, chunk: bytes) -> None:
        if self._transport is not None and not self._is_over.done():
            self._transport.write(chunk)
            await self._may_write.wait()

    async def _death(self) -> UnreadableFileError:
        """Why there is no answer: the file made the reader end, whose exit code tells how."""
        assert self._process is not None
        await self._process.wait()
        _log.warning("A process that read a file died.", reason=exit_reason(self._process))
        if self._process.returncode == -signal.SIGXCPU:
            return UnreadableFileError("invalid_file", "The file takes too much time to be read.")
        if self._process.returncode == -signal.SIGKILL:  # What Linux sends when memory is short.
            return UnreadableFileError("server_error", "The server has not enough memory to read the file now.")
        return UnreadableFileError("invalid_file", "The file can't be read: it is damaged, or too large.")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's class is not a subclass of it.
        self._may_write.set()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        # A parser that was taken over could send without end.
        if len(self._answer) > MAX_ANSWER_BYTES and self._transport is not None:
            self._transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        self._may_write.set()
        if not self._is_over.done():
            self._is_over.set_result(None)
