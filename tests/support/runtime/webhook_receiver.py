"""A webhook endpoint that accepts, fails, redirects, hangs, or closes early, as the test wants."""

import contextlib
import http.server
import threading
from collections.abc import Iterator
from typing import NamedTuple

PATIENCE_S = 20


class Received(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """
    The requests received, and the answers to give.

    Attributes:
        answers: the next ones, in order: a status, a status with headers, `close`, `hang` or `flood`; 204 after them.
    """

    def __init__(self):
        self.requests: list[Received] = []
        self.answers: list[object] = []
        self.url = ""
        self._changed = threading.Condition()
        self.release = threading.Event()

    def note(self, request):
        with self._changed:
            self.requests.append(request)
            answer = self.answers.pop(0) if self.answers else 204
            self._changed.notify_all()
            return answer

    def wait_for(self, count):
        """The requests, once there are so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.requests) >= count, PATIENCE_S), self.requests
            return [*self.requests]


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a port of this machine."""
    receiver = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            answer = receiver.note(Received(self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            match answer:
                case "close":
                    self.close_connection = True
                case "hang":
                    receiver.release.wait(PATIENCE_S)
                    self.close_connection = True
                case "flood":
                    self.send_response(200)
                    self.end_headers()
                    with contextlib.suppress(OSError):
                        while not receiver.release.is_set():
                            self.wfile.write(bytes(1 << 16))
                    self.close_connection = True
                case (status, headers):
                    self.answer(status, headers)
                case status:
                    self.answer(status, {})

        do_GET = do_POST

        def answer(self, status, headers):
            self.send_response(status)
            for name, value in {"content-length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        receiver.url = f"http://127.0.0.1:{server.server_address[1]}/webhooks"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            receiver.release.set()
            server.shutdown()
            thread.join()
