"""
Runs several processes as one server: starts, watches, replaces and stops them.

Each is a fresh interpreter that accepts on the same address. State that they must share lives here, and they request it
over a link each: how much of its limits a key has used, and metrics. The supervisor also locks the home folder.
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

from msgspec import structs

from antiphon.config import load as configuration
from antiphon.config.changes import compare
from antiphon.config.load import Config
from antiphon.errors import ApiError, ClientError, ServerError, quote_list
from antiphon.link import FIRST_MESSAGE_S, StreamLinkTransport
from antiphon.runtime.access.keys import KeyAccess
from antiphon.runtime.core.home_lock import home_lock
from antiphon.runtime.multiprocess.ledger import UsageLedger
from antiphon.runtime.multiprocess.link import (
    RELOAD_TIMEOUT_S,
    AddTokens,
    AllProcessesIdle,
    AskOthers,
    AskProcess,
    BeginRequest,
    BeginStream,
    EndStream,
    FinalConfiguration,
    GetLimits,
    GetSnapshot,
    GetTotals,
    NewConfiguration,
    OperatorNotice,
    OtherAnswers,
    ProcessAlive,
    ProcessAnswer,
    ProcessFailed,
    ProcessIdle,
    ProcessNumbers,
    ProcessReady,
    ProcessSetup,
    ProcessSnapshot,
    ReloadResult,
    RequestReload,
    SendReply,
    ServerTotals,
    StopAtOnce,
    StopResponse,
    SupervisorLink,
    SupervisorMessage,
    WeightsReport,
)
from antiphon.runtime.reload import LoadConfig, invalid_configuration, load_again
from antiphon.runtime.scheduling.base import POOLED_ENGINES
from antiphon.server.processes.weights import Prepare, fetch_weights
from antiphon.server.transport import logs
from antiphon.server.transport.listener import base_url, open_listeners
from antiphon.stop_signals import StopSignals, has_terminal, stop_signals
from antiphon.subprocesses import RestartPolicy, exit_reason, reap, spawn
from antiphon.weights.watch import FetchWatch
from antiphon.wire.http.reload import ReloadReport
from antiphon.wire.internal.failure import Failure

PROGRAM = "from antiphon.server.processes.child_main import main; main()"

RESTART_DELAYS_S = (0.0, 0.25, 0.5, 1.0, 2.0)
"""How long to wait before a process is replaced, after no early exit, one, two and more in a row; then the server ends."""

MIN_UPTIME_S = 5.0
"""A process that served for less exited early."""

BACKLOG = 2048
"""The most connections that wait to be accepted, for each process."""

REPORT_S = 0.5
"""How often processes get a report of how much of the weights is there."""

COUNT_TIMEOUT_S = 2.0
"""How long a process may take to send its metrics."""

KILL_DELAY_S = 5.0
"""How much longer than the drain time a process may take to end."""

HURRY_S = 10.0
"""How long a process may take to end without a drain time: to tell its clients, and to store the ends of their responses."""


class ServerChild:
    """
    A server process.

    Attributes:
        number: identifies it in the store.
        process: set by its owner, which starts it.
        link: to it.
        ready_event: set once it accepts, or its link is lost.
        ready_at: when it accepted, by the loop's clock.
        lost_event: set once its link is lost.
        failure_message: its own explanation of why it ended.
        is_idle: whether it is stopping and has nothing under way.
    """

    process: asyncio.subprocess.Process

    def __init__(self, number: int, receive: Callable[["ServerChild", SupervisorMessage, SendReply], None]) -> None:
        self.number = number
        self.link = SupervisorLink(partial(receive, self), self._on_link_lost)
        self.ready_event = asyncio.Event()
        self.ready_at: float | None = None
        self.lost_event = asyncio.Event()
        self.failure_message: str | None = None
        self.is_idle = False

    def mark_ready(self) -> None:
        self.ready_at = asyncio.get_running_loop().time()
        self.ready_event.set()

    def uptime_s(self) -> float:
        """Seconds since it accepted; 0 before that."""
        return 0 if self.ready_at is None else asyncio.get_running_loop().time() - self.ready_at

    def exit_message(self) -> str:
        """How it ended, for people."""
        if self.link.endpoint.is_silent:
            return f"Process {self.process.pid} of the server stopped answering, and was killed."
        return f"Process {self.process.pid} of the server {exit_reason(self.process)}."

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def _on_link_lost(self) -> None:
        self.ready_event.set()
        self.lost_event.set()


class Supervisor:
    """
    Starts, watches and stops the processes of a server.

    Args:
        listeners: one socket for each process.
        locks: file descriptors that every process keeps open.
        on_ready: called once all of them accept, with what requests need.
        notice: takes lines for the operator.
        load: reads the configuration again; None where it can't be.
        prepare: fetches the weights of the models while the processes already accept; None where they are there.
        watch: how far the weights are.
    """

    def __init__(
        self,
        config: Config,
        listeners: Sequence[socket.socket],
        locks: Sequence[int],
        on_ready: Callable[[KeyAccess], None],
        notice: Callable[[str], None],
        load: LoadConfig | None = None,
        prepare: Prepare | None = None,
        watch: FetchWatch | None = None,
    ) -> None:
        self._prepare = prepare
        self._watch = watch or FetchWatch()
        self._config = config
        self._load = load
        self._reload_lock = asyncio.Lock()
        self._listeners = listeners
        self._locks = locks
        self._on_ready = on_ready
        self._notice = notice
        self._ledger = UsageLedger()
        self._numbers = [_new_process_number() for _ in listeners]
        self._children: dict[int, ServerChild] = {}
        self._start_lock = asyncio.Lock()
        self._stop_event = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        self._is_serving = False
        self._settled_event = asyncio.Event()  # it serves, or will not
        self._error: Exception | None = None
        self._reported_notices: set[str] = set()

    async def run(self) -> None:
        """
        Serve until a signal.

        Raises:
            ApiError: a process can't start, or keeps dying.
        """
        signals = StopSignals()

        def on_signal(number: int) -> None:
            if number == signal.SIGHUP and self._load is not None and not has_terminal() and not self._stop_event.is_set():
                self._tasks.create_task(self._reload_for(lambda _result: None))
            elif signals.next_step(number) is not None:
                self.stop()

        for number in stop_signals():
            asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
        async with self._tasks:
            for slot in range(len(self._listeners)):
                self._tasks.create_task(self._keep_running(slot))
            if self._prepare is not None:
                await self._fetch_weights(self._prepare)
        if self._error is not None:
            raise self._error

    async def _fetch_weights(self, prepare: Prepare) -> None:
        """Have the weights fetched, tell the processes how far they are, and then what they are to serve."""
        fetching = self._tasks.create_task(self._final_config(prepare))
        stopping = self._tasks.create_task(self._stop_event.wait())
        while not fetching.done() and not stopping.done():
            await asyncio.wait((fetching, stopping), timeout=REPORT_S, return_when=asyncio.FIRST_COMPLETED)
            report = WeightsReport(tuple(self._watch.views()), self._watch.failure)
            for child in self._children.values():
                child.link.send(report)
        stopping.cancel()
        if not fetching.done():
            fetching.cancel()
        elif (config := fetching.result()) is not None:
            self._config, self._prepare = config, None
            for child in self._children.values():
                child.link.send(FinalConfiguration(configuration.pack(config)))

    async def _final_config(self, prepare: Prepare) -> Config | None:
        """The configuration with the models whose weights are there; None where they can't be fetched, which ends the server."""
        try:
            return await fetch_weights(self._config, prepare, self._watch, self._notice)
        except Exception as error:
            self._error = self._error or error
            self.stop()
            return None

    def stop(self) -> None:
        """Have every process finish what is under way; when called again, stop at once."""
        is_first = not self._stop_event.is_set()
        deadline_s = self._config.server.drain_s + KILL_DELAY_S if is_first else HURRY_S
        asyncio.get_running_loop().call_later(deadline_s, self._signal_all, signal.SIGKILL)
        self._stop_event.set()
        self._settled_event.set()
        if is_first:
            self._signal_all(signal.SIGTERM)
        else:
            for child in self._children.values():
                child.link.send(StopAtOnce())

    def _signal_all(self, number: int) -> None:
        for child in self._children.values():
            child.send_signal(number)

    def _fail(self, message: str) -> None:
        self._error = self._error or ServerError(message)
        self.stop()

    # Keeping one process running

    async def _keep_running(self, slot: int) -> None:
        restarts = RestartPolicy(RESTART_DELAYS_S, MIN_UPTIME_S)
        while not self._stop_event.is_set():
            child = await self._run_child(slot)
            if self._stop_event.is_set():
                return
            pause_s = restarts.delay_s(child.uptime_s())
            if not self._is_serving:
                self._fail(child.failure_message or f"{child.exit_message()} It never began to serve.")
            elif restarts.is_exhausted:
                self._fail(f"{child.failure_message or child.exit_message()} Replacing it {len(RESTART_DELAYS_S) - 1} times did not help.")
            else:
                logs.get().error(
                    "process_died", pid=child.process.pid, message=child.failure_message or child.exit_message(), restart_in_s=pause_s
                )
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop_event.wait(), pause_s)

    async def _run_child(self, slot: int) -> ServerChild:
        """Start a process, and wait until it ends."""
        # One replacement at a time: the new process asks the store which responses belong to dead processes, so the
        # process numbers it gets must stay valid until it has. At first all start together; if one dies then, the
        # server doesn't start.
        async with self._start_lock if self._is_serving else contextlib.nullcontext():
            if self._is_serving:
                self._numbers[slot] = _new_process_number()
                for other, running in self._children.items():
                    running.link.send(ProcessNumbers(self._numbers_for(other)))
            child = await self._start(slot)
            await child.ready_event.wait()
        await child.lost_event.wait()
        # One that hangs does not end by itself; any other closes the link as it ends.
        await reap(child.process, 0 if child.link.endpoint.is_silent else KILL_DELAY_S)
        del self._children[slot]
        self._ledger.remove_process(child.number)
        self._release_idle()
        return child

    def _numbers_for(self, slot: int) -> tuple[int, ...]:
        """The numbers of all processes in the store, that of this slot first."""
        return (*self._numbers[slot:], *self._numbers[:slot])

    async def _start(self, slot: int) -> ServerChild:
        listener = self._listeners[slot].fileno()
        number, *others = self._numbers_for(slot)
        child = ServerChild(number, self._receive)
        # `-P`: with `-c`, Python would look for modules in the current folder first.
        child.process = await spawn(
            (sys.executable, "-P", "-c", PROGRAM), lambda: StreamLinkTransport(child.link.endpoint), (listener, *self._locks)
        )
        self._children[slot] = child
        self._ledger.add_process(number)
        is_final = self._prepare is None
        child.link.send(ProcessSetup(configuration.pack(self._config), listener, (number, *others), is_final))
        # Its first heartbeat comes when it has its settings. One that never comes so far is silent from here on.
        asyncio.get_running_loop().call_later(FIRST_MESSAGE_S, child.link.endpoint.start_heartbeat)
        # The signal to all may have gone out while this one was being started.
        if self._stop_event.is_set():
            child.send_signal(signal.SIGTERM)
        return child

    # Messages from the processes

    def _receive(self, child: ServerChild, message: SupervisorMessage, reply: SendReply) -> None:
        match message:
            case BeginRequest() | BeginStream() | GetLimits():
                reply(self._ledger.judge(child.number, message))
            case EndStream() | AddTokens():
                self._count(child, message)
            case GetTotals() | RequestReload() | AskOthers():
                self._answer(child, message, reply)
            case ProcessAlive():
                child.link.endpoint.start_heartbeat()
            case ProcessReady(access):
                child.mark_ready()
                self._report_ready(access)
            case ProcessFailed(message=text):
                child.failure_message = text
            case OperatorNotice(line) if line not in self._reported_notices:  # once, not once for each process
                self._reported_notices.add(line)
                self._notice(line)
            case StopResponse():
                self._tell_others(child, message)
            case ProcessIdle():
                child.is_idle = True
                self._release_idle()
            case _:
                pass

    def _answer(self, child: ServerChild, message: GetTotals | RequestReload | AskOthers, reply: SendReply) -> None:
        if isinstance(message, RequestReload):
            self._tasks.create_task(self._reload_for(reply))
        elif isinstance(message, AskOthers):
            self._tasks.create_task(self._ask_others(child, message, reply))
        else:
            self._ledger.set_snapshot(child.number, message.mine)
            self._tasks.create_task(self._sum_counts(child, reply))

    async def _reload_for(self, reply: SendReply) -> None:
        """Read the configuration again, and have all processes take it over; the first failure of any is the answer."""
        # A process that starts has the old configuration, and the one with the models that are being fetched comes after it.
        await self._settled_event.wait()
        async with self._reload_lock, self._start_lock:  # nor does a process start with the old one meanwhile
            try:
                config = await load_again(self._load)
                # The number of processes and the store stay until a restart, so the new models must fit these.
                check_shareable(config.model_copy(update={"server": self._config.server, "store": self._config.store}))
                results = await self._configure_children(config)
            except ApiError as error:
                reply(ReloadResult(None, Failure.from_error(error if isinstance(error, ClientError) else invalid_configuration(error))))
                return
            if failure := next((result.failure for result in results if result.failure is not None), None):
                reply(ReloadResult(None, failure))
                return
            self._config = compare(self._config, config).config  # for processes that are started from now on
            reply(ReloadResult(_join_reports([result.report for result in results if result.report is not None])))

    async def _configure_children(self, config: Config) -> list[ReloadResult]:
        message = NewConfiguration(configuration.pack(config))
        children = [child for child in self._children.values() if child.ready_at is not None]
        async with asyncio.TaskGroup() as tasks:
            requests = [tasks.create_task(_configure_child(child, message)) for child in children]
        return [result for request in requests if (result := request.result()) is not None]

    def _count(self, child: ServerChild, message: EndStream | AddTokens) -> None:
        if isinstance(message, EndStream):
            self._ledger.end_stream(child.number, message)
        else:
            self._ledger.add_tokens(message)

    def _tell_others(self, child: ServerChild, message: StopResponse) -> None:
        for other in self._children.values():
            if other is not child:
                other.link.send(message)

    def _report_ready(self, access: KeyAccess) -> None:
        living = self._children.values()
        if not self._is_serving and len(living) == len(self._listeners) and all(child.ready_at is not None for child in living):
            self._is_serving = True
            self._settled_event.set()
            self._on_ready(access)

    def _release_idle(self) -> None:
        """Let idle processes end: all together, or one that was stopped alone."""
        idle = [child for child in self._children.values() if child.is_idle]
        # An idle one goes on refusing new work until all are idle: otherwise its share of new connections would get no answer.
        if not self._stop_event.is_set() or len(idle) == len(self._children):
            for child in idle:
                child.link.send(AllProcessesIdle())

    async def _sum_counts(self, requester: ServerChild, reply: SendReply) -> None:
        async with asyncio.TaskGroup() as tasks:
            for child in self._children.values():
                if child is not requester and child.ready_at is not None:
                    tasks.create_task(self._update_count(child))
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        pids = (os.getpid(), *(child.process.pid for child in self._children.values()))
        reply(ServerTotals(self._ledger.total(), pids, usage.ru_utime + usage.ru_stime))

    async def _ask_others(self, requester: ServerChild, message: AskOthers, reply: SendReply) -> None:
        others = [child for child in self._children.values() if child is not requester and child.ready_at is not None]
        question = AskProcess(message.subject, message.question)
        async with asyncio.TaskGroup() as tasks:
            requests = [tasks.create_task(_ask_child(child, question)) for child in others]
        reply(OtherAnswers([answer for request in requests if (answer := request.result()) is not None]))

    async def _update_count(self, child: ServerChild) -> None:
        with contextlib.suppress(ApiError):  # its previous metrics will do
            answer = await child.link.request(GetSnapshot(), COUNT_TIMEOUT_S)
            assert isinstance(answer, ProcessSnapshot)
            self._ledger.set_snapshot(child.number, answer.snapshot)


async def _configure_child(child: ServerChild, message: NewConfiguration) -> ReloadResult | None:
    """What a process made of a new configuration; None for one that died meanwhile, as its successor gets the new one."""
    with contextlib.suppress(ServerError):
        result = await child.link.request(message, RELOAD_TIMEOUT_S)
        return result if isinstance(result, ReloadResult) else None
    return None


async def _ask_child(child: ServerChild, question: AskProcess) -> bytes | None:
    """What a process answers; None for one that died meanwhile, or hangs."""
    with contextlib.suppress(ServerError):
        reply = await child.link.request(question, COUNT_TIMEOUT_S)
        return reply.answer if isinstance(reply, ProcessAnswer) else None
    return None


def _join_reports(reports: Sequence[ReloadReport]) -> ReloadReport:
    """What all processes report: the same, but for models that only some of them could start."""
    first = reports[0] if reports else ReloadReport(added=[], changed=[], removed=[], problems=[], settings=[], restart=[])
    problems = {problem.name: problem for report in reports for problem in report.problems}
    return structs.replace(first, problems=[*problems.values()])


def serve(
    config: Config,
    *,
    on_ready: Callable[[str, KeyAccess], None],
    notice: Callable[[str], None] = lambda _line: None,
    load: LoadConfig | None = None,
    prepare: Prepare | None = None,
    on_open: Callable[[str], None] = lambda _url: None,
) -> None:
    """
    Serve from several processes until a signal; requests under way are finished first.

    Args:
        on_ready: called with the base URL, and what requests need, once all processes accept.
        notice: takes lines for the operator.
        load: reads the configuration again.
        prepare: fetches the weights of the models; called in a thread, while the address already answers.
        on_open: called with the base URL before the first weights are fetched.

    Raises:
        ApiError: the address is taken or not allowed, the store can't be used or shared, an engine can't start, or a
            process keeps dying.
    """
    check_shareable(config)
    processes = config.server.processes
    for model in config.models:
        if model.engine == "local":
            notice(f"Each of the {processes} processes loads its own copy of '{model.name}'.")
    logs.configure(config.logging)
    with contextlib.ExitStack() as stack:
        listeners = stack.enter_context(open_listeners(processes, config.server.host, config.server.port))
        # Each process inherits the lock: while one of them lives, no other server can start here, even if this program
        # was killed. Servers that share a database may share the folder.
        locks = [] if config.has_shared_store else [stack.enter_context(home_lock(config.home))]
        address = base_url(listeners[0], config.server.scheme)
        for listener in listeners:
            listener.listen(BACKLOG)  # connections that come before the processes accept wait for them
        watch = FetchWatch(lambda: on_open(address))
        asyncio.run(Supervisor(config, listeners, locks, lambda access: on_ready(address, access), notice, load, prepare, watch).run())


def check_shareable(config: Config) -> None:
    """
    Check that several processes can share this configuration.

    Raises:
        ServerError: they can't.
    """
    processes = config.server.processes
    if config.database_url is None:
        raise ServerError(
            f"{processes} processes can't share a store in memory: set `store.url` to `sqlite` or a database, or `server.processes` to 1."
        )
    if pooled_models := [model.name for model in config.models if model.engine in POOLED_ENGINES]:
        raise ServerError(
            f"{processes} processes can't share the workers of {quote_list(pooled_models)}, as each would have a queue of its own: "
            "set `server.processes` to 1."
        )


def _new_process_number() -> int:
    """A random number for a process in the store, which no earlier one had; a signed 64-bit column holds it."""
    return secrets.randbits(62)
