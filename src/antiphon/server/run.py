"""Serving: the socket, the process's signals, and the order in which things start and stop."""

import asyncio
import contextlib
import ipaddress
import queue
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import uvicorn
import uvloop
from starlette.types import ASGIApp

from antiphon.config import Config
from antiphon.errors import OurFault
from antiphon.runtime.service import Service
from antiphon.server import logs
from antiphon.server.app import build
from antiphon.server.connection import Connection

DRAIN_S = 30


class _Server(uvicorn.Server):
    """The HTTP server, saying when it accepts, and ending quietly at a signal."""

    def __init__(self, app: ASGIApp, ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                loop="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=DRAIN_S,
                timeout_keep_alive=75,  # longer than the idle time of the SDKs' connection pools, so that none meets a closed socket
                backlog=2048,
            )
        )
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept, and say so."""
        await super().startup(sockets)
        self._ready()

    def handle_exit(self, sig: int, frame: object) -> None:
        """A signal: finish what is under way; at the second one, don't."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True


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
def background(config: Config) -> Iterator[str]:
    """
    The same server in a thread, on a free loopback port, forgetting everything at the end.

    Yields:
        Its base address.

    Raises:
        Fault: as `serve`.
    """
    logs.configure(config.logging)
    started: queue.SimpleQueue[_Server | BaseException] = queue.SimpleQueue()
    forgetful = config.model_copy(update={"store": config.store.model_copy(update={"url": "memory"})})

    def work(listener: socket.socket) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_serve(forgetful, listener, started.put, lambda _line: None))
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
        server = _Server(build(service), lambda: ready(server))
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
    _refuse_open_door(host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise OurFault(
                f"Can't listen on {host}:{port}: {error.strerror or error}. "
                f"Stop what uses the port, or choose another with --port or ANTIPHON_PORT."
            ) from None
        listener.setblocking(False)
        yield listener


def _refuse_open_door(host: str) -> None:
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    if host != "localhost":
        raise OurFault(
            f"Refusing to listen on {host}: without API keys anyone who reaches that address could use this server. "
            "Listen on 127.0.0.1, and put a reverse proxy that authenticates in front."
        )


def _base_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
