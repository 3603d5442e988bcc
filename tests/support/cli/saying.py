"""Servers with fixed answers."""

import contextlib
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from aiohttp import web


@contextlib.contextmanager
def server(status: int, body: bytes, **headers: str) -> Iterator[tuple[str, list[tuple[str, str | None, bytes]]]]:
    """A server with one answer for all requests; yields its address and the (path, authorization, body) of each request."""
    seen: list[tuple[str, str | None, bytes]] = []

    class Reply(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append((self.path, self.headers["Authorization"], self.rfile.read(int(self.headers["Content-Length"] or 0))))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST

        def log_message(self, *_arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Reply) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}", seen
        finally:
            http.shutdown()
            thread.join()


@contextlib.asynccontextmanager
async def websocket_server(path: str, messages: Sequence[str]) -> AsyncIterator[str]:
    """Sends every client these messages, and closes with code 4000; yields its address."""

    async def talk(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        for message in messages:
            await socket.send_str(message)
        await socket.close(code=4000, message=b"Enough.")
        return socket

    app = web.Application()
    app.router.add_get(path, talk)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
