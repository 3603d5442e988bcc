"""Serving: the socket, the process's signals, and the order in which things start and stop."""

import asyncio
import contextlib
import functools
import queue
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import uvicorn
import uvloop

from antiphon.config import Config
from antiphon.errors import OurFault
from antiphon.runtime.service import Service
from antiphon.server import logs
from antiphon.server.app import build
from antiphon.server.connection import Connection
from antiphon.server.limits import UNSENT_LIMIT_BYTES, Door, raise_file_limit

FAREWELL_S = 1
"""How long answers that were cut off at the deadline get to say so."""

POLL_S = 0.05


class _Server(uvicorn.Server):
    """The HTTP server, saying when it accepts, and finishing what is under way at a signal."""

    def __init__(self, service: Service, ready: Callable[[], None]) -> None:
        settings = service.config.server
        door = Door(settings, service.metrics, raise_file_limit(settings.connections))
        super().__init__(
            uvicorn.Config(
                build(service),
                http=functools.partial(Connection, door),  # type: ignore[arg-type]  # called like the class that is asked for
                ws="none",
                loop="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=FAREWELL_S,
                timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]  # only ever given to `call_later`
                backlog=2048,
            )
        )
        self._service = service
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept, and say so."""
        await super().startup(sockets)
        self._ready()

    def handle_exit(self, sig: int, frame: object) -> None:
        """A signal: finish what is under way; at the second one, don't."""
        self._service.live.is_draining = True
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """
        Stop when the last answer is finished, or the time for it is over.

        Until then the server still accepts, so that it can say that it takes no new work, and that another should be asked.
        """
        self._service.live.is_draining = True
        await self._idle()
        if not self.force_exit:
            self._service.live.halt()
        await super().shutdown(sockets)

    async def _idle(self) -> None:
        loop = asyncio.get_running_loop()
        deadline_at = loop.time() + self._service.config.server.drain_s
        if active := self._service.metrics.active:
            logs.get().info("draining", requests=active, deadline_s=self._service.config.server.drain_s)
        while self._service.metrics.active and not self.force_exit and loop.time() < deadline_at:  # noqa: ASYNC110 - a signal sets no event
            await asyncio.sleep(POLL_S)


def serve(config: Config, *, ready: Callable[[str], None], notice: Callable[[str], None] = lambda _line: None) -> None:
    """
    Serve until a signal; what is under way is finished first.

    Args:
        ready: called with the base address once requests are answered.
        notice: takes lines for the operator.

    Raises:
        Fault: the address is taken or not allowed, the store can't be used, or an engine can't start.
    """
    logs.configure(config.logging)
    with _bound(config.server.host, config.server.port) as listener:
        base_url = _base_url(listener)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config, listener, lambda _server: ready(base_url), notice))


@contextlib.contextmanager
def background(config: Config, *, is_lasting: bool = False) -> Iterator[str]:
    """
    The same server in a thread, on a free loopback port.

    Args:
        is_lasting: whether it has the store and the keys that are configured; else it forgets everything at the end, and needs none.

    Yields:
        Its base address.

    Raises:
        Fault: as `serve`.
    """
    logs.configure(config.logging)
    started: queue.SimpleQueue[_Server | BaseException] = queue.SimpleQueue()
    here = {"host": "127.0.0.1"} | ({} if is_lasting else {"require_keys": None})
    place = config.store if is_lasting else config.store.model_copy(update={"url": "memory"})
    near = config.model_copy(update={"store": place, "server": config.server.model_copy(update=here)})

    def work(listener: socket.socket) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_serve(near, listener, started.put, lambda _line: None))
        except BaseException as error:
            started.put(error)

    with _bound("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=work, args=(listener,), name="antiphon", daemon=True)
        thread.start()
        server = started.get()
        if isinstance(server, BaseException):
            raise server
        try:
            yield _base_url(listener)
        finally:
            server.should_exit = True
            thread.join()


async def _serve(config: Config, listener: socket.socket, ready: Callable[[_Server], None], notice: Callable[[str], None]) -> None:
    async with _opened(Service(config, notice)) as service:
        server = _Server(service, lambda: ready(server))
        await server.serve(sockets=[listener])


@contextlib.asynccontextmanager
async def _opened(service: Service) -> AsyncIterator[Service]:
    try:
        await service.open()
        yield service
    finally:
        await service.close()


@contextlib.contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # accepted sockets inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_LIMIT_BYTES)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise OurFault(
                f"Can't listen on {host}:{port}: {error.strerror or error}. "
                f"Stop what uses the port, or choose another with --port or ANTIPHON_PORT."
            ) from None
        listener.setblocking(False)
        yield listener


def _base_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
