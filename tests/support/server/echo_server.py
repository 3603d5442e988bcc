"""A server whose only route is a WebSocket that echoes messages."""

import asyncio
import contextlib

from starlette.applications import Starlette

from antiphon.errors import ApiError
from antiphon.server.admin import metrics
from antiphon.server.http.access_log import AccessLogMiddleware
from antiphon.server.http.auth import GuardedRoute
from antiphon.server.http.errors import on_api_error
from antiphon.server.http.operation import Operation
from antiphon.server.transport import connection
from antiphon.server.transport.limits import TokenBucket
from support.server.scripted_server import configured
from support.server.threaded_server import serving

ECHO = Operation("echo", "Server", "Say back what was said")


class Echo:
    """The application behind a WebSocket: `heard` has its messages, `gone` counts the reports that the client is gone."""

    def __init__(self):
        self.socket = None
        self.is_closed_when_behind = False
        self.heard, self.gone, self.pauses, self.resumes = [], 0, 0, 0

    def on_text(self, text):
        self.heard.append(text)
        match text:
            case b"close me":
                self.socket.close(4000, "as you wish")
            case b"close me when I am behind":
                self.is_closed_when_behind = True
            case b"fail":
                raise RuntimeError("as you wish")
            case b"hold":
                self.socket.pause_reading()
            case b"sing":
                for _ in range(4000):
                    self.socket.send(b"la" * 512)
                    self.socket.flush()
            case b"chant":  # later and unrequested, like an engine's output
                asyncio.get_running_loop().call_soon(self.chant)
            case b"mute":
                pass
            case _:
                self.socket.send(text)
                self.socket.flush()

    def chant(self):
        while not self.pauses:
            self.socket.send(b"la" * 512)
            self.socket.flush()

    def on_binary(self, content):
        self.socket.send_binary(content)
        self.socket.flush()

    def on_disconnect(self):
        self.gone += 1

    def pause(self):
        self.pauses += 1
        if self.is_closed_when_behind:
            asyncio.get_running_loop().call_soon(self.socket.close, 4000, "as you wish")

    def resume(self):
        self.resumes += 1


class Served:
    """The server under test."""

    def __init__(self, server, url, echoes):
        self.server, self.url, self.echoes = server, url, echoes
        self.metrics = server.service.metrics


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
    limits = {f"server.{name}": value for name, value in {"port": 0, "drain_s": 0.2, **settings}.items()}
    config = configured(home, {}, **{"store.url": "memory", **limits})
    echoes = []

    def build(service):
        routes = [
            GuardedRoute("/echo", _Route(echoes, pace, subprotocol), service=service, access="responses:write", operation=ECHO),
            *metrics.routes(service),
        ]
        return AccessLogMiddleware(Starlette(routes=routes, exception_handlers={ApiError: on_api_error}), service)

    with serving(config, build) as (server, url):
        yield Served(server, url, echoes)
