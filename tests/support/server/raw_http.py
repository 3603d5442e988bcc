"""HTTP as bytes on a socket, for what no client would send."""

import json
import re
import socket
from urllib.parse import urlsplit

PATIENCE_S = 20
"""A server that neither answers nor closes makes a test fail, not hang."""

POLL_S = 0.01
"""Between two checks of a condition, so that the check doesn't take the CPU from what it waits for."""


def connect(base_url):
    parts = urlsplit(base_url)
    return socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE_S)


def rest_of(connection):
    """All bytes until the server closes or breaks the connection."""
    got = b""
    try:
        while piece := connection.recv(1 << 16):
            got += piece
    except ConnectionResetError:
        pass
    return got


def until(connection, mark):
    """The bytes up to and including `mark`; those behind it are left for the next to read."""
    got = b""
    while mark not in got:
        piece = connection.recv(1 << 16, socket.MSG_PEEK)
        assert piece, f"closed after {got!r}"
        end = (got + piece).find(mark)
        got += connection.recv(len(piece) if end < 0 else end + len(mark) - len(got))
    return got


def exchange(base_url, *pieces):
    """All that the server sends after these bytes until it closes."""
    with connect(base_url) as connection:
        for piece in pieces:
            connection.sendall(piece)
        return rest_of(connection)


def statuses(answer):
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


def error_of(answer):
    """The error in the last response."""
    return json.loads(answer.rpartition(b"\r\n\r\n")[2])["error"]


def request(method="GET", path="/livez", body=None, **headers):
    """A valid request; headers have `_` for `-`, and None leaves a header out."""
    fields = {"host": "localhost"} | {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        fields.setdefault("content-length", str(len(body)))
    lines = [f"{name}: {value}\r\n" for name, value in fields.items() if value is not None]
    return f"{method} {path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode() + (body or b"")


def ask(model="parrot", text="Hi", **fields):
    """A request for a response."""
    return request("POST", "/v1/responses", json.dumps({"model": model, "input": text, **fields}).encode())
