"""
Several processes that are one server: they are started, watched, replaced when they die, and stopped together.

Each is a fresh interpreter that accepts on the same address. What must be one for all of them is kept here, and asked for over a link to
each: how much of its limits a key has used, and what was counted. The home folder is held here too.
"""

import asyncio
import contextlib
import os
import resource
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial

from antiphon.config import load as configuration
from antiphon.config.load import Config
from antiphon.errors import Fault, OurFault, listed
from antiphon.runtime.core.home_lock import occupied
from antiphon.runtime.multiprocess.ledger import Ledger
from antiphon.runtime.multiprocess.link import (
    AllIdle,
    Answer,
    BeginRequest,
    BeginStream,
    Count,
    Counted,
    EndStream,
    Failed,
    Idle,
    Link,
    Look,
    Message,
    Noticed,
    Ready,
    Setup,
    Spend,
    Sum,
    Summed,
)
from antiphon.runtime.scheduling.base import SCARCE
from antiphon.server.transport import logs
from antiphon.server.transport.listener import base_url, bound_for

PROGRAM = "from antiphon.server.processes.child_main import main; main()"

PAUSES_S = (0.0, 0.25, 0.5, 1.0, 2.0)
"""How long to wait before a process is replaced that died at once, after one, two and more such deaths in a row."""

AT_ONCE_S = 5.0
"""A process that has served for less died at once."""

COUNT_S = 2.0
"""How long a process may take to say what it has counted."""

LAST_WORDS_S = 5.0
"""How much longer than the drain a process may take to end."""


class Restarts:
    """When a process that died is replaced."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def pause_s(self, lived_s: float) -> float | None:
        """How long to wait after one that served for `lived_s`; None: there is no use in more."""
        self._in_a_row = self._in_a_row + 1 if lived_s < AT_ONCE_S else 0
        return PAUSES_S[self._in_a_row] if self._in_a_row < len(PAUSES_S) else None


class Child:
    """
    A process that serves.

    Attributes:
        number: its own in the store.
        link: to it.
        begun: set once it accepts, or is gone.
        begun_at: when it accepted, by the loop's clock; None before.
        gone: set once nothing more comes from it.
        complaint: what it said was wrong before it ended.
        is_idle: whether it has nothing under way, and takes no more.
    """

    def __init__(self, process: asyncio.subprocess.Process, number: int, receive: Callable[["Child", Message, Answer], None]) -> None:
        self.process = process
        self.number = number
        self.link = Link(partial(receive, self), self._lost)
        self.begun = asyncio.Event()
        self.begun_at: float | None = None
        self.gone = asyncio.Event()
        self.complaint: str | None = None
        self.is_idle = False

    def begin(self) -> None:
        """It accepts."""
        self.begun_at = asyncio.get_running_loop().time()
        self.begun.set()

    def lived_s(self) -> float:
        """How long it has served."""
        return 0 if self.begun_at is None else asyncio.get_running_loop().time() - self.begun_at

    def end(self) -> str:
        """How it ended, for people."""
        code = self.process.returncode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return f"Process {self.process.pid} of the server {how}."

    def signal(self, number: int) -> None:
        """Send it a signal, if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def _lost(self) -> None:
        self.begun.set()
        self.gone.set()


class Supervisor:
    """
    Starts, watches and stops the processes of a server.

    Args:
        listeners: what each of them accepts on.
        locks: file descriptors that each of them keeps open for as long as it lives.
        ready: called once all of them accept, with whether they need no key.
        notice: takes lines for the operator.
    """

    def __init__(
        self,
        config: Config,
        listeners: Sequence[socket.socket],
        locks: Sequence[int],
        ready: Callable[[bool], None],
        notice: Callable[[str], None],
    ) -> None:
        self._config = config
        self._listeners = listeners
        self._locks = locks
        self._ready = ready
        self._notice = notice
        self._ledger = Ledger()
        self._numbers = [_number() for _ in listeners]
        self._children: dict[int, Child] = {}
        self._starting = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        self._has_begun = False
        self._fault: Fault | None = None
        self._noticed: set[str] = set()

    async def run(self) -> None:
        """
        Serve until a signal.

        Raises:
            Fault: a process can't start, or dies whenever it is started.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.stop)
        async with self._tasks:
            for slot in range(len(self._listeners)):
                self._tasks.create_task(self._tend(slot))
        if self._fault is not None:
            raise self._fault

    def stop(self) -> None:
        """Have every process finish what is under way; at the second call, not even that."""
        if not self._stopping.is_set():
            asyncio.get_running_loop().call_later(self._config.server.drain_s + LAST_WORDS_S, self._signal, signal.SIGKILL)
        self._stopping.set()
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        for child in self._children.values():
            child.signal(number)

    def _give_up(self, message: str) -> None:
        self._fault = self._fault or OurFault(message)
        self.stop()

    # One process after the other

    async def _tend(self, slot: int) -> None:
        """Keep a process running."""
        restarts = Restarts()
        while not self._stopping.is_set():
            child = await self._live(slot)
            if self._stopping.is_set():
                return
            if not self._has_begun:
                self._give_up(child.complaint or f"{child.end()} It had not begun to serve.")
            elif (pause_s := restarts.pause_s(child.lived_s())) is None:
                self._give_up(f"{child.complaint or child.end()} It was replaced {len(PAUSES_S) - 1} times, each time in vain.")
            else:
                logs.get().error("process_died", pid=child.process.pid, message=child.complaint or child.end(), restart_in_s=pause_s)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), pause_s)

    async def _live(self, slot: int) -> Child:
        """Start a process, and see it end."""
        # While one is being replaced no other is, so that the numbers it is told stay those of the living until it has asked the store
        # whose process died. At first all start together: should one of them die then, the server doesn't start.
        async with self._starting if self._has_begun else contextlib.nullcontext():
            if self._has_begun:
                self._numbers[slot] = _number()
            child = await self._start(slot)
            await child.begun.wait()
        await child.process.wait()
        await child.gone.wait()
        del self._children[slot]
        self._ledger.leave(child.number)
        self._tell_idle()
        return child

    async def _start(self, slot: int) -> Child:
        ours, theirs = socket.socketpair()
        listener = self._listeners[slot].fileno()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-c", PROGRAM),
                stdin=theirs.fileno(),
                pass_fds=(listener, *self._locks),
                process_group=0,  # Ctrl-C is for us alone, who pass it on
            )
        number, *others = self._numbers[slot:] + self._numbers[:slot]
        child = self._children[slot] = Child(process, number, self._receive)
        self._ledger.enter(number)
        ours.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: child.link, sock=ours)
        child.link.tell(Setup(configuration.pack(self._config), listener, (number, *others)))
        if self._stopping.is_set():
            child.signal(signal.SIGTERM)
        return child

    # What they say

    def _receive(self, child: Child, message: Message, answer: Answer) -> None:
        match message:
            case BeginRequest() | BeginStream() | Look():
                answer(self._ledger.judge(child.number, message))
            case EndStream():
                self._ledger.end_stream(child.number, message)
            case Spend():
                self._ledger.spend(message)
            case Sum(mine):
                self._ledger.count(child.number, mine)
                self._tasks.create_task(self._sum(child, answer))
            case Ready(is_open):
                child.begin()
                self._tell_ready(is_open)
            case Failed(message=complaint):
                child.complaint = complaint
            case Noticed(line) if line not in self._noticed:  # once, not once a process
                self._noticed.add(line)
                self._notice(line)
            case Idle():
                child.is_idle = True
                self._tell_idle()
            case _:
                pass

    def _tell_ready(self, is_open: bool) -> None:
        living = self._children.values()
        if not self._has_begun and len(living) == len(self._listeners) and all(child.begun_at is not None for child in living):
            self._has_begun = True
            self._ready(is_open)

    def _tell_idle(self) -> None:
        """Let processes end that have nothing to do: all together, or one that was told to end by someone else."""
        idle = [child for child in self._children.values() if child.is_idle]
        if not self._stopping.is_set() or len(idle) == len(self._children):
            for child in idle:
                child.link.tell(AllIdle())

    async def _sum(self, asking: Child, answer: Answer) -> None:
        async with asyncio.TaskGroup() as tasks:
            for child in self._children.values():
                if child is not asking and child.begun_at is not None:
                    tasks.create_task(self._count(child))
        gone = resource.getrusage(resource.RUSAGE_CHILDREN)
        pids = (os.getpid(), *(child.process.pid for child in self._children.values()))
        answer(Summed(self._ledger.total(), pids, gone.ru_utime + gone.ru_stime))

    async def _count(self, child: Child) -> None:
        with contextlib.suppress(Fault):  # what it told the last time will do
            counted = await child.link.ask(Count(), COUNT_S)
            assert isinstance(counted, Counted)
            self._ledger.count(child.number, counted.snapshot)


def serve(config: Config, *, ready: Callable[[str, bool], None], notice: Callable[[str], None] = lambda _line: None) -> None:
    """
    Serve from as many processes as are configured, until a signal; what is under way is finished first.

    Args:
        ready: called with the base address, and whether no key is needed, once all of them answer.
        notice: takes lines for the operator.

    Raises:
        Fault: the address is taken or not allowed, the store can't be used or shared, or an engine can't start; or a process died
            whenever it was started.
    """
    refuse_unshareable(config)
    processes = config.server.processes
    for model in config.models:
        if model.engine == "local":
            notice(f"Each of the {processes} processes loads its own copy of '{model.name}'.")
    logs.configure(config.logging)
    with contextlib.ExitStack() as held:
        listeners = held.enter_context(bound_for(processes, config.server.host, config.server.port))
        locks = [] if config.store_is_shared else [held.enter_context(occupied(config.home))]
        address = base_url(listeners[0])
        asyncio.run(_supervised(config, listeners, locks, lambda is_open: ready(address, is_open), notice))


def refuse_unshareable(config: Config) -> None:
    """
    See whether several processes can be one server with this configuration.

    Raises:
        OurFault: they can't, with what each would have to itself.
    """
    processes = config.server.processes
    if config.database_url is None:
        raise OurFault(
            f"{processes} processes can't share a store in memory: set `store.url` to `sqlite` or a database, or `server.processes` to 1."
        )
    if scarce := [model.name for model in config.models if model.engine in SCARCE]:
        raise OurFault(
            f"{processes} processes can't share the workers of {listed(scarce)}, as each would have a queue of its own: "
            "set `server.processes` to 1."
        )


async def _supervised(
    config: Config, listeners: Sequence[socket.socket], locks: Sequence[int], ready: Callable[[bool], None], notice: Callable[[str], None]
) -> None:
    await Supervisor(config, listeners, locks, ready, notice).run()


def _number() -> int:
    """A number for a process in the store, unlike those of all before it."""
    return secrets.randbits(62)
