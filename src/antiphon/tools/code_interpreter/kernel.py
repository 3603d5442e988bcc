"""A container's process: started behind its walls, given code, watched while it runs, stopped at its limits."""

import asyncio
import base64
import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from antiphon.errors import ServerError
from antiphon.subprocesses import exit_reason
from antiphon.tools.code_interpreter.folder import remove_tree, scan
from antiphon.tools.code_interpreter.sandbox import OUTER_FILTER_FD, Launch, ProcessLimits, Sandbox, scratch_folder
from antiphon.tools.code_interpreter.watch import descendants, freeze, measure, thaw

START_TIMEOUT_S = 30.0
"""How long a process may take to be ready: it takes a twentieth of a second on a machine that is not busy."""

INTERRUPT_GRACE_S = 2.0
"""How long interrupted code may go on; it may catch `KeyboardInterrupt`."""

END_TIMEOUT_S = 10.0
"""How long killed processes may take to be gone before bubblewrap is killed, with which they die too, but later."""

WATCH_INTERVAL_S = 0.1

TASKS_PER_PROCESS = 8
"""Threads that there may be for each process that there may be."""

_PNG_START = b"\x89PNG\r\n\x1a\n"
_PIPE_BYTES = 1 << 16
_MAX_TURN_BYTES = 1 << 20
"""The most that is read at once: code may fill a pipe as fast as it is emptied."""

_BWRAP_PROCESSES = 2
"""Bubblewrap itself, and its first process in the new namespace."""

_EXCESS_IMAGES = 10
"""Code that shows this many times the pictures that are kept is stopped."""

_FLOOD_FACTOR = 64
"""Code that writes this many times the output that is kept is stopped."""


class KernelLimits(Struct, frozen=True, kw_only=True):
    """
    The limits of running code.

    Attributes:
        run_s: of one call.
        processes: at once.
        output_bytes: of text of one call that is kept.
        image_bytes: of one picture.
        images: of one call.
        files: in all folders that code may write to.
    """

    run_s: float = 60.0
    processes: int = 16
    output_bytes: int = 256 << 10
    image_bytes: int = 2 << 20
    images: int = 10
    files: int = 1000


class RunOutcome(Struct, frozen=True, kw_only=True):
    """
    The result of a call.

    Attributes:
        logs: what code printed, with tracebacks and the echo of its last expression.
        images: PNG files.
        problem: a sentence on the limit at which it was stopped, or why the process ended; None if it came to its end.
        is_alive: whether the process, and so the variables, are still there.
        went_over_disk: whether what it wrote is to be removed.
    """

    logs: str
    images: tuple[bytes, ...] = ()
    problem: str | None = None
    is_alive: bool = True
    went_over_disk: bool = False


class _Ready(Struct, tag="ready"):
    landlock: int


class _StartFailed(Struct, tag="failed"):
    reason: str


class _Image(Struct, tag="image"):
    png: str


class _RunDone(Struct, tag="done"):
    run: str


_reply_decoder = msgspec.json.Decoder(_Ready | _StartFailed | _Image | _RunDone)


class _Violation(Exception):
    """Code went beyond a limit; the message is a sentence."""

    def __init__(self, message: str, *, of_disk: bool = False) -> None:
        super().__init__(message)
        self.of_disk = of_disk


class Kernel:
    """
    A Python process that keeps its variables from run to run; nothing of it uses a processor between them.

    Args:
        data_folder: the container's files.
        scratch_folder: where the process gets a folder for all else that it writes.
        memory_bytes: of all of its processes together.
        disk_bytes: the most that its folders may hold together.
    """

    def __init__(
        self, sandbox: Sandbox, limits: KernelLimits, data_folder: Path, scratch_folder: Path, *, memory_bytes: int, disk_bytes: int
    ) -> None:
        self._sandbox = sandbox
        self._limits = limits
        self._data_folder = data_folder
        self._run_folder = scratch_folder / f"run-{secrets.token_hex(8)}"
        self._memory_bytes = memory_bytes
        self._disk_bytes = disk_bytes
        self._process: asyncio.subprocess.Process | None = None
        self._guest_pid = 0
        self._names_by_path: Mapping[str, str] = {}
        self._top_pid = 0  # Of the first process in the namespace, or of the guest where there is none.
        self._output: _Pipe | None = None
        self._replies: _Pipe | None = None

    @property
    def is_alive(self) -> bool:
        """Whether it has been started and has not ended since."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """
        Start the process; returns when it is behind its walls and waits for code.

        Raises:
            ServerError: it can't be started.
        """
        limits = ProcessLimits(
            memory_bytes=self._memory_bytes,
            file_bytes=self._disk_bytes,
            tasks=self._limits.processes * TASKS_PER_PROCESS,
            image_bytes=self._limits.image_bytes,
        )
        await asyncio.to_thread(self._run_folder.mkdir, 0o700, parents=True)
        try:
            launch = await asyncio.to_thread(self._sandbox.launch, self._data_folder, self._run_folder, limits)
            self._names_by_path = launch.names_by_path
            await self._spawn(launch)
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._become_ready(launch)
        except TimeoutError:
            await self.stop()
            raise ServerError("The code interpreter could not be started in time.", code="code_interpreter_failed") from None
        except BaseException:
            # Shielded: a second cancellation must not leave processes behind.
            await asyncio.shield(self.stop())
            raise

    async def run(self, code: str, disk_bytes: int) -> RunOutcome:
        """
        Run code. It is stopped at its limits; cancelling this stops it too, as far as it can without losing variables.

        Args:
            disk_bytes: the most that its folders may hold together now.
        """
        # Can't be guessed: what earlier code left behind could otherwise announce the end of this run.
        run_id = secrets.token_hex(8)
        assert self._process is not None
        assert self._output is not None
        assert self._replies is not None
        await asyncio.to_thread(thaw, self._process.pid)
        run = _Run(self._limits, run_id)
        watching = asyncio.ensure_future(self._watch(disk_bytes))  # noqa: TID251 - ended below
        try:
            with self._output.reading(run.add_output), self._replies.reading(run.add_reply):
                await self._send(msgspec.json.encode({"run": run_id, "code": code}) + b"\n", run)
                problem = await self._finish(run, watching)
                self._output.drain(run.add_output)
            if self.is_alive:
                await asyncio.to_thread(freeze, self._process.pid)
            if not (isinstance(problem, _Violation) and problem.of_disk):
                # Quick code writes much before the watcher looks, and all later calls would pay for it.
                violation = await asyncio.to_thread(self._check_disk, disk_bytes)
                if violation is not None:
                    problem = violation
                    await self.stop()
        except asyncio.CancelledError:
            await asyncio.shield(self._settle(run, watching))
            raise
        finally:
            watching.cancel()
        of_disk = isinstance(problem, _Violation) and problem.of_disk
        logs = self._hide_paths(run.logs)
        return RunOutcome(
            logs=logs,
            images=tuple(run.images),
            problem=None if problem is None else str(problem),
            is_alive=self.is_alive,
            went_over_disk=of_disk,
        )

    async def stop(self) -> None:
        """End the process and all that came from it; idempotent."""
        process = self._process
        if process is not None and process.returncode is None:
            # The first process of a PID namespace is gone only when all others in it are, and bubblewrap waits for it.
            # Not by `process.kill`, which may take the exit status away from asyncio.
            _signal(self._top_pid or process.pid, signal.SIGKILL)
            _signal(process.pid, signal.SIGCONT)  # It may be frozen.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_TIMEOUT_S):
                    await process.wait()
            if process.returncode is None:
                _signal(process.pid, signal.SIGKILL)
            await process.wait()
        for pipe in (self._output, self._replies):
            if pipe is not None:
                pipe.close()
        if self._run_folder.exists():
            await asyncio.to_thread(remove_tree, self._run_folder)

    async def _spawn(self, launch: Launch) -> None:
        output_end, output = os.pipe()
        replies_end, replies = os.pipe()
        self._output, self._replies = _Pipe(output_end), _Pipe(replies_end)
        descriptors, command = [replies], [*launch.command, str(replies)]
        if launch.outer_filter is not None:
            filter_end, filter_fd = os.pipe()
            os.write(filter_fd, launch.outer_filter)  # Some kilobytes, which fit into a pipe.
            os.close(filter_fd)
            descriptors.append(filter_end)
            command = [str(filter_end) if part == OUTER_FILTER_FD else part for part in command]
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                # All of its environment: the server's own has keys in it.
                env=dict(launch.environment),
                stdin=subprocess.PIPE,
                stdout=output,
                # One pipe for both, so that errors stand where they were printed.
                stderr=output,
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C is meant for the server alone.
                cwd="/",
            )
        except OSError as error:
            raise ServerError("The code interpreter could not be started.", code="code_interpreter_failed") from error
        finally:
            for descriptor in (*descriptors, output):
                os.close(descriptor)

    async def _become_ready(self, launch: Launch) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._output is not None
        assert self._replies is not None
        run = _Run(self._limits, "")
        with self._output.reading(run.add_output), self._replies.reading(run.add_reply):
            with contextlib.suppress(ConnectionError):
                self._process.stdin.write(launch.setup_line(self._process.pid))
                await self._process.stdin.drain()
            await run.end.wait()
        if not run.is_ready:
            await self.stop()
            reason = run.failure or run.logs.strip().rpartition("\n")[2] or exit_reason(self._process)
            error = ServerError("The code interpreter could not be started.", code="code_interpreter_failed")
            error.operator_message = f"The sandbox could not be started: {reason}"
            raise error
        pids = await asyncio.to_thread(descendants, self._process.pid)
        # Bubblewrap, its first process in the namespace, the guest; without bubblewrap, the guest alone.
        self._top_pid, self._guest_pid = pids[min(1, len(pids) - 1)], pids[-1]

    async def _send(self, line: bytes, run: "_Run") -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(line)
            # More than the pipe holds is taken only while the guest reads, which code of an earlier call may prevent.
            if len(line) > _PIPE_BYTES:
                draining = asyncio.ensure_future(self._process.stdin.drain())  # noqa: TID251 - ended here
                ending = asyncio.ensure_future(run.end.wait())  # noqa: TID251 - ended here
                try:
                    await asyncio.wait((draining, ending), timeout=self._limits.run_s, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    draining.cancel()
                    ending.cancel()

    async def _finish(self, run: "_Run", watching: "asyncio.Future[_Violation]") -> Exception | None:
        """Wait until code ends or is to be stopped, and stop it; returns why."""
        ending = asyncio.ensure_future(run.end.wait())  # noqa: TID251 - ended here
        try:
            await asyncio.wait((ending, watching), timeout=self._limits.run_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
        if watching.done():
            await self._end(run)
            return watching.result()
        if run.is_done:
            return None
        if run.is_flooding:
            return await self._interrupt(run, "It wrote too much output, and was stopped.")
        if not run.end.is_set():
            reason = f"It took longer than {self._limits.run_s:g} seconds (tools.code_interpreter.run_s), and was stopped."
            return await self._interrupt(run, reason)
        await self._end(run)
        assert self._process is not None
        if run.failure is not None:
            return _Violation(run.failure)
        return _Violation(f"The Python process {exit_reason(self._process)}.")

    async def _interrupt(self, run: "_Run", reason: str) -> Exception:
        """Interrupt the code; if it does not end in time, end its process."""
        # Too much output has set it already; what counts from here on is the end of the run.
        run.end.clear()
        _signal(self._guest_pid, signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(INTERRUPT_GRACE_S):
                await run.end.wait()
        if not run.is_done:
            await self._end(run)
        return _Violation(reason)

    async def _end(self, run: "_Run") -> None:
        """Stop the process, with what it has printed so far."""
        assert self._output is not None
        self._output.drain(run.add_output)
        await self.stop()

    async def _settle(self, run: "_Run", watching: "asyncio.Future[_Violation]") -> None:
        assert self._process is not None
        assert self._output is not None
        assert self._replies is not None
        if self.is_alive and not run.is_done:
            with self._output.reading(run.add_output), self._replies.reading(run.add_reply):
                await self._interrupt(run, "")
        watching.cancel()
        if self.is_alive:
            await asyncio.to_thread(freeze, self._process.pid)

    async def _watch(self, disk_bytes: int) -> _Violation:
        """Returns once the processes have gone beyond a limit."""
        assert self._process is not None
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            violation = await asyncio.to_thread(self._check, self._process.pid, disk_bytes)
            if violation is not None:
                return violation

    def _check(self, pid: int, disk_bytes: int) -> _Violation | None:
        max_pids = self._limits.processes + _BWRAP_PROCESSES
        pids = descendants(pid, max_pids)
        own = pids.index(self._guest_pid) if self._guest_pid in pids else 0
        guest_pids = pids[own:]
        if len(guest_pids) > self._limits.processes:  # First, as measuring thousands would take long.
            return _Violation(f"It had more than {self._limits.processes} processes (tools.code_interpreter.processes), and was stopped.")
        usage = measure(guest_pids, disk_bytes)
        if usage.memory_bytes > self._memory_bytes:
            return _Violation(
                f"It took more than {self._memory_bytes >> 20} MiB of memory (the container's memory_limit), and was stopped."
            )
        return self._check_disk(disk_bytes, usage.unlinked_bytes)

    def _check_disk(self, disk_bytes: int, unlinked_bytes: int = 0) -> _Violation | None:
        total_bytes, entries = unlinked_bytes, 0
        for folder in (self._data_folder, scratch_folder(self._run_folder)):
            holding = scan(folder, self._limits.files)
            total_bytes += holding.bytes
            entries += holding.entries
            if holding.is_over or entries > self._limits.files:
                reason = f"It made more than {self._limits.files} files (tools.code_interpreter.files), or folders too deep"
                return _Violation(f"{reason}, and was stopped; what it wrote was removed.", of_disk=True)
        if total_bytes > disk_bytes:
            reason = f"It wrote more than the {disk_bytes >> 20} MiB that it may have on the disk (tools.code_interpreter.disk_mib)"
            return _Violation(f"{reason}, and was stopped; what it wrote was removed.", of_disk=True)
        return None

    def _hide_paths(self, text: str) -> str:
        """Replace this machine's paths, which code sees where no mount namespace hides them."""
        for path, name in self._names_by_path.items():
            text = text.replace(path, name)
        return text


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class _Run:
    """What comes from the pipes during one run, and how it ended."""

    def __init__(self, limits: KernelLimits, run_id: str) -> None:
        self._limits = limits
        self._run_id = run_id
        self._head, self._tail = bytearray(), bytearray()
        self._written_bytes = 0
        self._line = bytearray()
        self._images_received = 0
        self.images: list[bytes] = []
        self.end = asyncio.Event()
        self.is_done = self.is_ready = self.is_flooding = False
        self.failure: str | None = None

    @property
    def logs(self) -> str:
        """What was printed: its beginning and its end, which has the error, and between them a word about what is missing."""
        half = self._limits.output_bytes // 2
        head, tail = self._head, self._tail[-half:]
        missing_bytes = self._written_bytes - len(head) - len(tail)
        note = f"\n[{missing_bytes} bytes are left out here (tools.code_interpreter.output_kib).]\n" if missing_bytes else ""
        # Without a gap the halves are decoded together: they may meet in the middle of a character.
        return head.decode(errors="replace") + note + tail.decode(errors="replace") if note else (head + tail).decode(errors="replace")

    def add_output(self, chunk: bytes) -> None:
        self._written_bytes += len(chunk)
        half = self._limits.output_bytes // 2
        room = max(0, half - len(self._head))
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > half + _PIPE_BYTES:
            del self._tail[:-half]
        if self._written_bytes > self._limits.output_bytes * _FLOOD_FACTOR and not self.is_flooding:
            self.is_flooding = True
            self.end.set()

    def add_reply(self, chunk: bytes) -> None:
        if not chunk:
            self.end.set()
            return
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            self._take(bytes(self._line) + line)
            self._line.clear()
        self._line += rest
        if len(self._line) > self._limits.image_bytes * 4 // 3 + 100:
            self._fail("It sent a picture that is too large.")

    def _take(self, line: bytes) -> None:
        try:
            reply = _reply_decoder.decode(line)
        except (msgspec.DecodeError, UnicodeError):
            self._fail("The Python process broke the protocol with the server.")
            return
        match reply:
            # Only while it starts: code could send these in a later run.
            case _Ready() if not self._run_id:
                self.is_ready = True
                self.end.set()
            case _StartFailed() if not self._run_id:
                self._fail(reply.reason)
            case _Image():
                self._add_image(reply.png)
            case _RunDone() if reply.run == self._run_id:
                self.is_done = True
                self.end.set()
            case _:
                self._fail("The Python process broke the protocol with the server.")

    def _add_image(self, text: str) -> None:
        self._images_received += 1
        if self._images_received > self._limits.images * _EXCESS_IMAGES:
            self._fail(f"It showed more than {self._limits.images * _EXCESS_IMAGES} pictures.")
        if len(self.images) == self._limits.images:
            return
        with contextlib.suppress(ValueError):
            png = base64.b64decode(text, validate=True)
            # Clients show it as a PNG, whatever code claimed it to be.
            if png.startswith(_PNG_START) and len(png) <= self._limits.image_bytes:
                self.images.append(png)

    def _fail(self, reason: str) -> None:
        self.failure = self.failure or reason[:1000]
        self.end.set()


class _Pipe:
    """The reading end of a pipe, read only during a run: whatever writes to it between runs fills it and then blocks."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_open = True
        os.set_blocking(descriptor, False)

    @contextlib.contextmanager
    def reading(self, take: Callable[[bytes], None]) -> Iterator[None]:
        """Read while in the context; `take` gets an empty chunk at the end."""
        if not self._is_open:  # Its number may be another file's by now.
            take(b"")
            yield
            return
        loop = asyncio.get_running_loop()

        def read() -> None:
            if self._read_once(take) is None:
                loop.remove_reader(self._descriptor)

        loop.add_reader(self._descriptor, read)
        try:
            yield
        finally:
            if self._is_open:
                loop.remove_reader(self._descriptor)

    def drain(self, take: Callable[[bytes], None]) -> None:
        """Read what is in the pipe already, up to `_MAX_TURN_BYTES`."""
        total = 0
        while self._is_open and total < _MAX_TURN_BYTES and (size := self._read_once(take)):
            total += size

    def close(self) -> None:
        """Close it; idempotent."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)

    def _read_once(self, take: Callable[[bytes], None]) -> int | None:
        try:
            chunk = os.read(self._descriptor, _PIPE_BYTES)
        except BlockingIOError:
            return 0
        take(chunk)
        return len(chunk) or None
