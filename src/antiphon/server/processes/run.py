"""Serving in one process: the socket, signals, start and shutdown."""

import asyncio
import contextlib
import functools
import gc
import queue
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import uvicorn
import uvloop

from antiphon.config.load import Config
from antiphon.errors import ApiError
from antiphon.offload import SWITCH_INTERVAL_S
from antiphon.runtime.access.keys import KeyAccess
from antiphon.runtime.multiprocess.peer import PeerProcesses
from antiphon.runtime.reload import LoadConfig
from antiphon.runtime.service import Service
from antiphon.server.app import build
from antiphon.server.processes.start import Start, StartupApp, StartupServer, WeightsProgress, early_access
from antiphon.server.processes.weights import Prepare, fetch_weights
from antiphon.server.tls.start import server_tls
from antiphon.server.transport import logs
from antiphon.server.transport.connection import uvicorn_config
from antiphon.server.transport.listener import base_url, open_listener
from antiphon.stop_signals import StopSignals, has_terminal, stop_signals
from antiphon.weights.watch import FetchWatch

GRACEFUL_SHUTDOWN_S = 3
"""How long responses that are cut off at the deadline get to send their error."""

POLL_S = 0.05

GC_THRESHOLDS = (10_000, 20, 20)
"""Less frequent than the defaults: responses leave hardly any garbage that needs the collector."""


class HttpServer(uvicorn.Server):
    """uvicorn, with a callback when it accepts, and with our rules for shutdown."""

    def __init__(self, service: Service, on_ready: Callable[[], None]) -> None:
        settings = service.config.server
        self.app = build(service)
        super().__init__(uvicorn_config(self.app, settings, service.metrics, GRACEFUL_SHUTDOWN_S, server_tls(service.config)))
        self.service = service
        self._on_ready = on_ready
        self._drain_s = settings.drain_s
        self._is_hurried = False
        self._stop_signals = StopSignals()
        self._reloads_on_hangup = service.can_reload and service.peers is None and not has_terminal()
        self._reload_tasks: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle more signals than uvicorn does, in the main thread; see `antiphon.stop_signals`."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._loop = asyncio.get_running_loop()  # a signal may come before `startup`
        former_handlers = {number: signal.signal(number, self.handle_exit) for number in stop_signals()}
        try:
            yield
        finally:
            for number, handler in former_handlers.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: object) -> None:
        """
        First signal: finish requests under way. Second signal: tell their clients, and stop. Third: stop at once.

        Under a supervisor the first counts, and the supervisor says when to hurry: of two signals of a kind the kernel
        may deliver one, and systemd sends its own to every process (`KillMode=control-group`).
        """
        if sig == signal.SIGHUP and self._reloads_on_hangup and not self.should_exit:
            self._loop.call_soon_threadsafe(self._begin_reload)
            return
        step = self._stop_signals.next_step(sig)
        is_hurry = step == "at_once" or (step == "finish" and self.should_exit)
        # Here, and not in `shutdown`: uvicorn looks at `should_exit` ten times a second only.
        self.service.live_sessions.is_draining = True
        self.should_exit = True
        if is_hurry and self.service.peers is None:
            self.hurry()

    def _begin_reload(self) -> None:
        # It belongs to the server, which waits for it when it stops.
        task = asyncio.create_task(self._reload(), name="reload")  # noqa: TID251
        self._reload_tasks.add(task)
        task.add_done_callback(self._reload_tasks.discard)

    async def _reload(self) -> None:
        with contextlib.suppress(ApiError):  # it was logged
            await self.service.reload()

    def hurry(self) -> None:
        """Stop without waiting for requests under way; their clients are told, unless it is called again."""
        self.force_exit = self._is_hurried
        self._is_hurried = True
        self.stop_now()

    def stop_now(self) -> None:
        """Stop without waiting for requests under way; their clients still get an error."""
        self.service.live_sessions.is_draining = True
        self._drain_s = 0
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """
        Stop when the last request has finished, or the drain time is over.

        Until then the server still accepts connections, to answer that it takes no new work, so that load balancers
        move on. Clients in the queue get an error at once, as the time that is left is for those being served.
        """
        self.service.live_sessions.begin_drain()
        self.service.coordinator.close_queue()
        # New models would only be stopped again.
        for task in self._reload_tasks:
            task.cancel()
        await self._wait_until_idle()
        if not self.force_exit:
            self.service.live_sessions.shut_down()
        await super().shutdown(sockets)

    async def _wait_until_idle(self) -> None:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        if active := self.service.metrics.active:
            logs.get().info("draining", requests=active, deadline_s=self._drain_s)
        while self._is_busy() and not self.force_exit and loop.time() < started_at + self._drain_s:  # noqa: ASYNC110 - a signal sets no event
            await asyncio.sleep(POLL_S)

    def _is_busy(self) -> bool:
        """Whether a request is under way, here or in another process of this server."""
        peers = self.service.peers
        active = self.service.metrics.active + self.service.background.count
        if active or peers is None:
            return active > 0
        peers.mark_idle()
        return not peers.are_idle


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
    Serve until a signal; requests under way are finished first.

    Args:
        on_ready: called with the base URL, and what requests need, once the server is ready.
        notice: takes lines for the operator.
        load: reads the configuration again; None where it can't be.
        prepare: fetches the weights of the models; called in a thread, while the address already answers.
        on_open: called with the base URL before the first weights are fetched.

    Raises:
        ApiError: the address is taken or not allowed, the store can't be used, or an engine can't start.
    """
    logs.configure(config.logging)
    with open_listener(config.server.host, config.server.port) as listener:
        address = base_url(listener, config.server.scheme)

        def report_ready(server: HttpServer) -> None:
            tune_interpreter()
            on_ready(address, server.service.keyring.access)

        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                if prepare is None:
                    runner.run(serve_on(listener, config, report_ready, notice, load=load))
                else:
                    watch = FetchWatch(lambda: on_open(address))
                    fetch = functools.partial(fetch_weights, config, prepare, watch, notice)
                    runner.run(serve_early(listener, config, report_ready, notice, load, fetch, watch))
        except _SignalReceived as stop:  # its sender sees the process end by it all the same
            signal.raise_signal(stop.number)


class _SignalReceived(BaseException):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def _ending_on_signals() -> Iterator[None]:
    """
    Let the signals that would end this process at once first end what is done within, as a download leaves files and a
    child process behind. In the main thread; SIGINT is asyncio's.

    Raises:
        _SignalReceived: one came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, task, numbers_so_far = asyncio.get_running_loop(), asyncio.current_task(), list[int]()
    assert task is not None

    def end(number: int) -> None:
        numbers_so_far.append(number)
        task.cancel()

    numbers = [number for number in stop_signals() if number != signal.SIGINT]
    for number in numbers:
        loop.add_signal_handler(number, end, number)
    try:
        yield
    except asyncio.CancelledError:
        if numbers_so_far:
            raise _SignalReceived(numbers_so_far[0]) from None
        raise
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def tune_interpreter() -> None:
    """
    For a process that only serves: exclude everything loaded so far from garbage collection, and let the event loop
    have the interpreter soon while a thread works on a large request.

    The modules alone are some hundred thousand objects, and scanning them repeatedly took a tenth of the cost of a
    request.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


@contextlib.contextmanager
def background_server(config: Config, *, is_persistent: bool = False, load: LoadConfig | None = None) -> Iterator[str]:
    """
    The same server in a thread, on a free loopback port.

    Args:
        is_persistent: whether it uses the configured store and keys; else its store is in memory, and it needs no key.
        load: reads the configuration again.

    Yields:
        Its base URL.

    Raises:
        ApiError: as `serve`.
    """
    logs.configure(config.logging)
    outcome: queue.SimpleQueue[HttpServer | BaseException] = queue.SimpleQueue()
    local_config = _local_config(config, is_persistent)
    load_local = None if load is None else lambda: _local_config(load(), is_persistent)

    def run(listener: socket.socket) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve_on(listener, local_config, outcome.put, lambda _line: None, load=load_local))
        except BaseException as error:
            outcome.put(error)

    with open_listener("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=run, args=(listener,), name="antiphon", daemon=True)
        thread.start()
        server = outcome.get()
        if isinstance(server, BaseException):
            raise server
        try:
            yield base_url(listener, local_config.server.scheme)
        finally:
            server.should_exit = True
            thread.join()


def _local_config(config: Config, is_persistent: bool) -> Config:
    server_settings = {"host": "127.0.0.1"} | ({} if is_persistent else {"require_keys": None, "tls": "off"})
    store_settings = config.store if is_persistent else config.store.model_copy(update={"url": "memory"})
    updates = {"store": store_settings, "server": config.server.model_copy(update=server_settings)}
    if not is_persistent:  # it serves one command, which may need no speech
        updates["speech"] = config.speech.model_copy(update={"warm_up": False})
    return config.model_copy(update=updates)


async def serve_on(
    listener: socket.socket,
    config: Config,
    on_ready: Callable[[HttpServer], None],
    notice: Callable[[str], None],
    peers: PeerProcesses | None = None,
    load: LoadConfig | None = None,
) -> None:
    """Serve on a socket until a signal; see `serve`."""
    async with _open_service(Service(config, notice, peers, load)) as service:
        server = HttpServer(service, lambda: on_ready(server))
        await server.serve(sockets=[listener])


async def serve_early(
    listener: socket.socket,
    config: Config,
    on_ready: Callable[[HttpServer], None],
    notice: Callable[[str], None],
    load: LoadConfig | None,
    fetch: Callable[[], Awaitable[Config]],
    watch: WeightsProgress,
    peers: PeerProcesses | None = None,
) -> None:
    """
    The same as `serve_on`, with an address that answers while the models are being fetched and loaded.

    Args:
        config: of which the models may still change.
        fetch: waits until the weights are there; returns the final configuration.
        watch: how far they are.
    """
    start = Start(watch, await early_access(config))
    app = StartupApp(config, start)
    start_server = StartupServer(config, app)
    # It ends here, below: after the server that it stands in for, whose last requests it may have.
    # On a duplicate of the socket, as a server closes those that it was given when it ends.
    task = asyncio.create_task(start_server.serve(sockets=[listener.dup()]), name="start")  # noqa: TID251
    try:
        await start_server.wait_open()
        with _ending_on_signals():
            final_config = await fetch()
        start.begin_loading()
        async with _open_service(Service(final_config, notice, peers, load)) as service:

            def report_ready() -> None:
                app.hand_over(server.app)
                start_server.leave_to_successor()
                on_ready(server)

            server = HttpServer(service, report_ready)
            await server.serve(sockets=[listener])
            start_server.end()
            await task
    finally:
        app.close()
        start_server.end()
        await task


@contextlib.asynccontextmanager
async def _open_service(service: Service) -> AsyncIterator[Service]:
    try:
        await service.open()
        yield service
    finally:
        await service.close()
