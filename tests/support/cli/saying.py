"""Servers that say what they are told."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextlib.contextmanager
def server(status: int, body: bytes) -> Iterator[tuple[str, list[tuple[str, str | None, bytes]]]]:
    """Answers everything alike; yields its address, and the (path, authorization, body) that it is sent."""
    seen: list[tuple[str, str | None, bytes]] = []

    class Reply(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append((self.path, self.headers["Authorization"], self.rfile.read(int(self.headers["Content-Length"] or 0))))
            self.send_response(status)
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
