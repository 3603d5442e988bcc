"""Processes of our own, each at the other end of a socket that is its standard input: started, ended, and replaced when they die."""

import asyncio
import contextlib
import itertools
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from antiphon.errors import ApiError

T = TypeVar("T")

RESTART_DELAYS_S = (0.0, 0.25, 1.0, 5.0, 15.0)
"""How long to wait before a process is replaced, after one, two and more that died soon."""

EARLY_EXIT_S = 10.0
"""A process that was there for less died soon."""

TERMINATE_GRACE_S = 2.0
"""How long a process may take to end that was told to, before it is killed."""

EXIT_GRACE_S = 0.5
"""How long one may take to end that has closed its link, or been silent."""


async def spawn(command: Sequence[str], protocol: Callable[[], asyncio.BaseProtocol]) -> asyncio.subprocess.Process:
    """A process, and `protocol` at this end of its socket."""
    ours, theirs = socket.socketpair()
    process = None
    try:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us alone, who may have answers to finish
            )
        ours.setblocking(False)
        await asyncio.get_running_loop().create_connection(protocol, sock=ours)
    except BaseException:
        ours.close()
        if process is not None:
            await asyncio.shield(reap(process, 0))
        raise
    return process


async def reap(process: asyncio.subprocess.Process, grace_s: float) -> None:
    """See a process end: of itself, as it does when its socket is closed, or by force."""
    try:
        async with asyncio.timeout(grace_s):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def start_replacement(
    start: Callable[[], Awaitable[T]], deaths: int, on_error: Callable[[ApiError], None], delays_s: Sequence[float] = RESTART_DELAYS_S
) -> T:
    """
    The next process that can be started, however long that takes.

    Args:
        deaths: how many have died soon, one after the other.
        failed: is told of each that could not be started.
    """
    for number in itertools.count(max(0, deaths - 1)):
        await asyncio.sleep(delays_s[min(number, len(delays_s) - 1)])
        try:
            return await start()
        except ApiError as fault:
            on_error(fault)
    raise AssertionError("counting has no end")


def resolve(future: "asyncio.Future[T]", result: T | ApiError) -> None:
    """Give a future its outcome, or the fault that is its, unless it has one or nobody waits for it any more."""
    if future.done():
        return
    if isinstance(result, ApiError):
        future.set_exception(result)
        future.exception()  # it is known, whether or not someone asks
    else:
        future.set_result(result)


def exit_reason(process: asyncio.subprocess.Process) -> str:
    """What has become of a process that is no more, for people, behind its name."""
    code = process.returncode or 0
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


class ChildProcess(Protocol):
    """
    One process, and what is at our end of its socket.

    Attributes:
        process: None before it is started.
        gone: set once it is of no more use.
    """

    process: asyncio.subprocess.Process | None
    exit_event: asyncio.Event

    async def start(self) -> None:
        """Start it; returns when it can be asked, or raises a `ApiError`."""

    async def stop(self, grace_s: float) -> None:
        """See it end, of itself or by force; idempotent."""


C = TypeVar("C", bound=ChildProcess)


class SupervisedProcess(Generic[C]):
    """
    A process that is always there: when it dies, the next is started.

    Args:
        name: of the process, such as `process of the voice`.
        make: makes one that is not begun yet, and calls what it is given once it is gone.
        notice: takes lines for the operator.
        pauses_s: before a process is replaced, after one, two and more that died soon.

    Attributes:
        child: the latest; None before `start` and behind `stop`.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[Callable[[], None]], C],
        notice: Callable[[str], None] = lambda _line: None,
        delays_s: Sequence[float] = RESTART_DELAYS_S,
    ) -> None:
        self.child: C | None = None
        self._name = name
        self._make = make
        self._notice = notice
        self._delays_s = delays_s
        self._is_ready = asyncio.Event()
        self._supervisor_task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return self.child.process.pid if self.child is not None and self.child.process is not None else None

    @property
    def is_started(self) -> bool:
        """Whether it has been started, and not been stopped."""
        return self._supervisor_task is not None

    async def start(self) -> None:
        """
        Start the process, and see that there is one from here on; returns when it can be asked.

        Raises:
            ApiError: it can't.
        """
        child = await self._start_child()
        self._supervisor_task = asyncio.create_task(self._supervise(child), name=f"keeper of the {self._name}")  # noqa: TID251 - ours, ended by `stop`

    async def stop(self) -> None:
        """End the process; idempotent."""
        keeper, self._supervisor_task = self._supervisor_task, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait((keeper,))
        child, self.child = self.child, None
        if child is not None:
            self._is_ready.clear()
            await asyncio.shield(child.stop(TERMINATE_GRACE_S))

    async def wait_ready(self, timeout_s: float) -> C | None:
        """The process that there is; None where there is none in that time, or none is kept."""
        if not self._is_ready.is_set() and self.is_started:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._is_ready.wait()
        return self.child if self._is_ready.is_set() else None

    async def _supervise(self, child: C) -> None:
        """One process after the other, until this is cancelled."""
        loop = asyncio.get_running_loop()
        deaths = 0
        while True:
            up_at = loop.time()
            await child.exit_event.wait()
            await asyncio.shield(child.stop(EXIT_GRACE_S))
            assert child.process is not None
            deaths = deaths + 1 if loop.time() - up_at < EARLY_EXIT_S else 0
            self._notice(f"The {self._name}, {child.process.pid}, {exit_reason(child.process)} and is replaced.")
            child = await start_replacement(self._start_child, deaths, self._on_restart_error, self._delays_s)

    def _on_restart_error(self, fault: ApiError) -> None:
        self._notice(f"The {self._name} could not be replaced: {fault.message}")

    async def _start_child(self) -> C:
        child = self._make(self._is_ready.clear)
        try:
            await child.start()
        except BaseException:
            await asyncio.shield(child.stop(EXIT_GRACE_S))
            raise
        self.child = child
        if not child.exit_event.is_set():
            self._is_ready.set()
        return child
