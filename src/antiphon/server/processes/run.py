"""Serving: the socket, the process's signals, and the order in which things start and stop."""

import asyncio
import contextlib
import functools
import gc
import queue
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import uvicorn
import uvloop

from antiphon.config.load import Config
from antiphon.runtime.multiprocess.peer import PeerProcesses
from antiphon.runtime.service import Service
from antiphon.server.app import build
from antiphon.server.transport import logs
from antiphon.server.transport.connection import ServerConnection
from antiphon.server.transport.limits import ConnectionLimiter, raise_file_limit
from antiphon.server.transport.listener import base_url, open_listener

GRACEFUL_SHUTDOWN_S = 1
"""How long answers that were cut off at the deadline get to say so."""

POLL_S = 0.05

GC_THRESHOLDS = (10_000, 20, 20)
"""How many more objects there are before each of the collector's rounds; answers leave hardly any garbage behind that needs one."""


class HttpServer(uvicorn.Server):
    """The HTTP server, saying when it accepts, and finishing what is under way at a signal."""

    def __init__(self, service: Service, on_ready: Callable[[], None]) -> None:
        settings = service.config.server
        limiter = ConnectionLimiter(settings, service.metrics, raise_file_limit(settings.connections))
        super().__init__(
            uvicorn.Config(
                build(service),
                http=functools.partial(ServerConnection, limiter),  # type: ignore[arg-type]  # called like the class that is asked for
                ws="none",
                loop="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S,
                timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]  # only ever given to `call_later`
                backlog=2048,
            )
        )
        self.service = service
        self._on_ready = on_ready
        self._drain_s = settings.drain_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept, and say so."""
        await super().startup(sockets)
        self._on_ready()

    def handle_exit(self, sig: int, frame: object) -> None:
        """A signal: finish what is under way; at the second one, don't."""
        self.service.live_sessions.is_draining = True
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    def stop_now(self) -> None:
        """Wait for nothing that is under way; it is still told."""
        self._drain_s = 0
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """
        Stop when the last answer is finished, or the time for it is over.

        Until then the server still accepts, so that it can say that it takes no new work, and that another should be asked.
        """
        self.service.live_sessions.is_draining = True
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
        """Whether an answer is under way, here or in another process of the server, so that others are still to be told to go elsewhere."""
        peers = self.service.peers
        if self.service.metrics.active or peers is None:
            return self.service.metrics.active > 0
        peers.mark_idle()
        return not peers.are_idle


def serve(config: Config, *, on_ready: Callable[[str, bool], None], notice: Callable[[str], None] = lambda _line: None) -> None:
    """
    Serve until a signal; what is under way is finished first.

    Args:
        ready: called with the base address, and whether no key is needed, once requests are answered.
        notice: takes lines for the operator.

    Raises:
        ApiError: the address is taken or not allowed, the store can't be used, or an engine can't start.
    """
    logs.configure(config.logging)
    with open_listener(config.server.host, config.server.port) as listener:

        def report_ready(server: HttpServer) -> None:
            tune_gc()
            on_ready(base_url(listener), server.service.keyring.is_open)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_on(listener, config, report_ready, notice))


def tune_gc() -> None:
    """
    Leave what is loaded now out of the garbage collector's rounds; for a process that does nothing but serve.

    The modules alone are some hundred thousand objects, and looking through them again and again was a tenth of what a request cost.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


@contextlib.contextmanager
def background_server(config: Config, *, is_persistent: bool = False) -> Iterator[str]:
    """
    The same server in a thread, on a free loopback port.

    Args:
        is_lasting: whether it has the store and the keys that are configured; else it forgets everything at the end, and needs none.

    Yields:
        Its base address.

    Raises:
        ApiError: as `serve`.
    """
    logs.configure(config.logging)
    outcome: queue.SimpleQueue[HttpServer | BaseException] = queue.SimpleQueue()
    server_settings = {"host": "127.0.0.1"} | ({} if is_persistent else {"require_keys": None})
    store_settings = config.store if is_persistent else config.store.model_copy(update={"url": "memory"})
    local_config = config.model_copy(update={"store": store_settings, "server": config.server.model_copy(update=server_settings)})

    def run(listener: socket.socket) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve_on(listener, local_config, outcome.put, lambda _line: None))
        except BaseException as error:
            outcome.put(error)

    with open_listener("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=run, args=(listener,), name="antiphon", daemon=True)
        thread.start()
        server = outcome.get()
        if isinstance(server, BaseException):
            raise server
        try:
            yield base_url(listener)
        finally:
            server.should_exit = True
            thread.join()


async def serve_on(
    listener: socket.socket,
    config: Config,
    on_ready: Callable[[HttpServer], None],
    notice: Callable[[str], None],
    peers: PeerProcesses | None = None,
) -> None:
    """Serve on a socket until a signal; see `serve`."""
    async with _open_service(Service(config, notice, peers)) as service:
        server = HttpServer(service, lambda: on_ready(server))
        await server.serve(sockets=[listener])


@contextlib.asynccontextmanager
async def _open_service(service: Service) -> AsyncIterator[Service]:
    try:
        await service.open()
        yield service
    finally:
        await service.close()
