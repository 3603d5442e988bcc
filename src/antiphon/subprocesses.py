"""Child processes, each with a socket to us as its standard input: started, stopped, and replaced when they die."""

import asyncio
import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from antiphon.errors import ApiError

T = TypeVar("T")

RESTART_DELAYS_S = (0.0, 0.0, 0.25, 1.0, 5.0, 15.0)
"""How long to wait before a process is replaced, after no early exit, one, two and more in a row."""

MIN_UPTIME_S = 10.0
"""A process that ran for less exited early."""

TERMINATE_GRACE_S = 2.0
"""How long a process that was told to end may take before it is killed."""

EXIT_GRACE_S = 0.5
"""How long a process that closed its link, or did not answer, may take to end."""

_PR_SET_PDEATHSIG = 1


class Backoff(NamedTuple):
    """
    Delays between tries, growing with each failure.

    Attributes:
        delays_s: after no failure, one, two and so on; the last is used for all further failures.
        jitter: part of each delay, from 0 to 1, that is random, so that many clients don't come back at the same
            moment.
    """

    delays_s: Sequence[float]
    jitter: float = 0.0

    def delay_s(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        return self.delays_s[min(failures, len(self.delays_s) - 1)] * random.uniform(1 - self.jitter, 1)


class RestartPolicy:
    """
    Decides how long to wait before a dead process is replaced.

    Args:
        delays_s: after no early exit, one, two and so on in a row; the last is used for all further ones.
        min_uptime_s: a process that ran for less exited early.
    """

    def __init__(self, delays_s: Sequence[float] = RESTART_DELAYS_S, min_uptime_s: float = MIN_UPTIME_S) -> None:
        self._backoff = Backoff(delays_s)
        self._min_uptime_s = min_uptime_s
        self._early_exits = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether there were more early exits in a row than there are delays for."""
        return self._early_exits >= len(self._backoff.delays_s)

    def delay_s(self, uptime_s: float) -> float:
        """How long to wait after a process that ran for `uptime_s`: 0 for one that could not be started."""
        self._early_exits = self._early_exits + 1 if uptime_s < self._min_uptime_s else 0
        return self._backoff.delay_s(self._early_exits)


async def spawn(
    command: Sequence[str],
    protocol: Callable[[], asyncio.BaseProtocol],
    pass_fds: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
) -> asyncio.subprocess.Process:
    """
    Start a process, with `protocol` at our end of its socket; its standard output goes nowhere, as libraries print to it.

    Args:
        environment: its variables; None for those of this process, which may have secrets among them.
    """
    ours, theirs = socket.socketpair()
    process = None
    try:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                pass_fds=pass_fds,
                env=environment,
                start_new_session=True,  # Ctrl-C is for this process alone, which may have responses to finish
            )
        await asyncio.get_running_loop().create_connection(protocol, sock=ours)
    except BaseException:
        ours.close()
        if process is not None:
            # Shielded, as a second cancellation would leave a process that nobody knows of.
            await asyncio.shield(reap(process, 0))
        raise
    return process


def take_parent_socket() -> socket.socket:
    """In a process that `spawn` started: its socket, moved from standard input, so that nothing else reads it there."""
    parent_socket = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    return parent_socket


def end_with_parent() -> None:
    """
    End with the thread that started this process, even in native code, which notices no closed socket; not on Ctrl-C.

    Source: prctl(2).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the parent, which may have responses to finish
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


async def reap(process: asyncio.subprocess.Process, grace_s: float) -> None:
    """Wait for a process to end, as it does when its socket is closed, or kill it after `grace_s`."""
    try:
        async with asyncio.timeout(grace_s):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def resolve(future: "asyncio.Future[T]", result: T | ApiError) -> None:
    """Give a future its result or its error, unless it already has one or was cancelled."""
    if future.done():
        return
    if isinstance(result, ApiError):
        future.set_exception(result)
        future.exception()  # marks it as retrieved: nobody may await it any more, and asyncio would log that
    else:
        future.set_result(result)


def _reason(error: Exception) -> str:
    """An error, as a sentence."""
    return error.operator_message if isinstance(error, ApiError) else f"{str(error) or type(error).__name__}."


def exit_reason(process: asyncio.subprocess.Process) -> str:
    """How a process ended, as a verb phrase to put behind its name in a message."""
    code = process.returncode or 0
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


class ChildProcess(Protocol):
    """
    One process, and our end of its socket.

    Attributes:
        process: None before it is started.
        exit_event: set once the process is of no more use, even if it still runs.
    """

    process: asyncio.subprocess.Process | None
    exit_event: asyncio.Event

    async def start(self) -> None:
        """Start it; returns when it answers requests, or raises `ApiError`."""

    async def stop(self, grace_s: float) -> None:
        """End it, by force after `grace_s`; idempotent."""


C = TypeVar("C", bound=ChildProcess)


class SupervisedProcess(Generic[C]):
    """
    A process that is replaced whenever it dies.

    Args:
        name: of the process, such as `process of the voice`.
        make: makes one that is not started yet; it calls its argument once it is lost.
        notice: takes lines for the operator.
        restart_delays_s: as of `RestartPolicy`.

    Attributes:
        child: the latest; None before `start` and after `stop`.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[Callable[[], None]], C],
        notice: Callable[[str], None] = lambda _line: None,
        restart_delays_s: Sequence[float] = RESTART_DELAYS_S,
    ) -> None:
        self.child: C | None = None
        self._name = name
        self._make = make
        self._notice = notice
        self._restarts = RestartPolicy(restart_delays_s)
        self._is_ready = asyncio.Event()
        self._supervisor_task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None while there is no process."""
        return self.child.process.pid if self.child is not None and self.child.process is not None else None

    @property
    def is_started(self) -> bool:
        """Whether it was started and not stopped since."""
        return self._supervisor_task is not None

    async def start(self) -> None:
        """
        Start the process and its supervision; returns when it answers requests.

        Raises:
            ApiError: it could not be started.
        """
        child = await self._start_child()
        self._supervisor_task = asyncio.create_task(self._supervise(child), name=f"supervisor of the {self._name}")  # noqa: TID251 - owned here, ended by `stop`

    async def stop(self) -> None:
        """End the process; idempotent."""
        supervisor, self._supervisor_task = self._supervisor_task, None
        if supervisor is not None:
            supervisor.cancel()
            await asyncio.wait((supervisor,))
        child, self.child = self.child, None
        if child is not None:
            self._is_ready.clear()
            await asyncio.shield(child.stop(TERMINATE_GRACE_S))

    async def wait_ready(self, timeout_s: float) -> C | None:
        """The running process; None if none is ready in that time, or this is stopped."""
        if not self._is_ready.is_set() and self.is_started:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._is_ready.wait()
        return self.child if self._is_ready.is_set() else None

    async def _supervise(self, child: C) -> None:
        loop = asyncio.get_running_loop()
        while True:
            ready_at = loop.time()
            await child.exit_event.wait()
            await asyncio.shield(child.stop(EXIT_GRACE_S))
            assert child.process is not None
            self._notice(f"The {self._name}, {child.process.pid}, {exit_reason(child.process)}; it is being replaced.")
            child = await self._replace(loop.time() - ready_at)

    async def _replace(self, uptime_s: float) -> C:
        while True:
            await asyncio.sleep(self._restarts.delay_s(uptime_s))
            try:
                return await self._start_child()
            # Whatever failed, such as a fork without memory: nobody else would ever start it again.
            except Exception as error:
                self._notice(f"The {self._name} could not be replaced: {_reason(error)}")
                uptime_s = 0.0

    async def _start_child(self) -> C:
        child = self._make(self._is_ready.clear)
        try:
            await child.start()
        except BaseException:
            # It may run, although it has not answered.
            await asyncio.shield(child.stop(EXIT_GRACE_S))
            raise
        self.child = child
        # It may have died since it answered.
        if not child.exit_event.is_set():
            self._is_ready.set()
        return child
