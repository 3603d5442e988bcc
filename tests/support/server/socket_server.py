"""A server whose only route becomes a WebSocket and says back what it hears."""

import asyncio
import contextlib
import queue
import threading

import uvloop
from starlette.applications import Starlette

from antiphon.errors import ApiError
from antiphon.runtime.service import Service
from antiphon.server.admin import metrics
from antiphon.server.http.access_log import AccessLogMiddleware
from antiphon.server.http.auth import GuardedRoute
from antiphon.server.http.errors import on_api_error
from antiphon.server.http.operation import Operation
from antiphon.server.processes.run import HttpServer
from antiphon.server.transport import connection, logs
from antiphon.server.transport.limits import TokenBucket
from antiphon.server.transport.listener import base_url, open_listener
from support.server.scripted_server import configured

ECHO = Operation("echo", "Server", "Say back what was said")


class Echo:
    """The far side of a WebSocket; what it hears is `heard`, and `gone` counts how often it was told that nobody is there."""

    def __init__(self):
        self.socket = None
        self.heard, self.gone, self.pauses, self.resumes = [], 0, 0, 0

    def on_text(self, text):
        self.heard.append(text)
        match text:
            case b"close me":
                self.socket.close(4000, "as you wish")
            case b"fail":
                raise RuntimeError("as you wish")
            case b"hold":
                self.socket.pause_reading()
            case b"sing":
                for _ in range(4000):
                    self.socket.send(b"la" * 512)
                    self.socket.flush()
            case b"mute":
                pass
            case _:
                self.socket.send(text)
                self.socket.flush()

    def on_binary(self, content):
        self.socket.send_binary(content)
        self.socket.flush()

    def on_disconnect(self):
        self.gone += 1

    def pause(self):
        self.pauses += 1

    def resume(self):
        self.resumes += 1


class Served:
    """The server under test."""

    def __init__(self, server, url):
        self.server, self.url = server, url
        self.metrics = server.service.metrics
        self.echoes = []


class _Route:
    def __init__(self, echoes, pace, subprotocol):
        self.echoes, self.pace, self.subprotocol = echoes, pace, subprotocol

    async def __call__(self, scope, receive, send):
        echo = Echo()
        query = scope["query_string"]
        on_binary = None if b"text" in query else echo.on_binary
        pace = TokenBucket(self.pace) if self.pace else None
        echo.socket = await connection.from_scope(scope).upgrade(
            send, echo, subprotocol=self.subprotocol, headers=[(b"x-more", b"yes")], on_binary=on_binary, bucket=pace
        )
        self.echoes.append(echo)
        if b"unread" not in query:
            echo.socket.resume_reading()
        await echo.socket.wait_closed()


@contextlib.contextmanager
def echoing(home, *, pace=None, subprotocol=None, **settings):
    """The server, in a thread of its own."""
    config = configured(home, {}, **{f"server.{name}": value for name, value in {"port": 0, "drain_s": 0.2, **settings}.items()})
    logs.configure(config.logging)
    started = queue.SimpleQueue()

    async def serve(listener):
        service = Service(config, lambda _line: None)
        await service.open()
        server = HttpServer(service, lambda: started.put(served))
        served = Served(server, base_url(listener))
        routes = [
            GuardedRoute(
                "/echo",
                _Route(served.echoes, pace, subprotocol),
                service=service,
                access="responses:write",
                operation=ECHO,
            ),
            *metrics.routes(service),
        ]
        server.config.app = AccessLogMiddleware(Starlette(routes=routes, exception_handlers={ApiError: on_api_error}), service)
        try:
            await server.serve(sockets=[listener])
        finally:
            await service.close()

    def work(listener):
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve(listener))
        except BaseException as error:
            started.put(error)

    with open_listener("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=work, args=(listener,), daemon=True)
        thread.start()
        served = started.get()
        if isinstance(served, BaseException):
            raise served
        try:
            yield served
        finally:
            served.server.should_exit = True
            thread.join()
