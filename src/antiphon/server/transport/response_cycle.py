"""One request of a connection with its response, as uvicorn has it, with a shorter way to write the response's head."""

from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HEADER_RE, HEADER_VALUE_RE, STATUS_LINE, RequestResponseCycle

MAX_NAMES = 1000

BODY_KEY = "antiphon.body"
"""Where the message that begins a response has the whole body, in place of another message that would take the same way."""

_line_starts: dict[bytes, bytes] = {}
"""Names of headers that were checked, each as its line begins."""


class ResponseCycle(RequestResponseCycle):
    """
    A cycle that checks the name of a header once, and the values of all together.

    uvicorn's own takes eight calls for each header, which was a twentieth of a request.

    Attributes:
        ends_with_connection: whether the body has no frame: a client of HTTP/1.0 knows neither its length nor chunks.
    """

    ends_with_connection = False

    async def send(self, message: Any) -> None:
        is_paused = self.flow.write_paused and self.scope.get("http_version") != "1.0"
        if message["type"] != "http.response.start" or self.response_started or self.disconnected or is_paused:
            if self.ends_with_connection:
                self.expected_content_length = len(message.get("body", b""))  # the parent compares it with what it sends
            await super().send(message)
        else:
            head = self._head(message["status"], [*self.default_headers, *message.get("headers", ())])
            self.response_started, self.waiting_for_100_continue = True, False
            self.transport.write(head)
        if (body := message.get(BODY_KEY)) is not None:
            await self.send({"type": "http.response.body", "body": body})

    def _head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """
        The head of the response.

        Raises:
            RuntimeError: a header is not valid.
        """
        lines = [STATUS_LINE[status]]
        values: list[bytes] = []
        closes = False
        for name, value in headers:
            start = _line_starts.get(name) or _line_start(name)
            if start == b"content-length: " and self.chunked_encoding is None:
                self.expected_content_length, self.chunked_encoding = int(value), False
            elif start == b"transfer-encoding: " and value.lower() == b"chunked":
                self.expected_content_length, self.chunked_encoding = 0, True
            elif start == b"connection: " and b"close" in [token.lower().strip() for token in value.split(b",")]:
                self.keep_alive, closes = False, True
            lines += (start, value, b"\r\n")
            values.append(value)
        if HEADER_VALUE_RE.search(b"".join(values)):
            raise RuntimeError("Invalid HTTP header value.")
        if not self.keep_alive and not closes:
            lines.append(b"connection: close\r\n")
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in (204, 304):
            # RFC 9112 6.1: no transfer coding for HTTP/1.0; 6.3, rule 8: the body ends with the connection then.
            self.ends_with_connection = is_old = self.scope.get("http_version") == "1.0"
            self.chunked_encoding = not is_old
            if not is_old:
                lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)


def _line_start(name: bytes) -> bytes:
    """
    How the line of a header begins.

    Raises:
        RuntimeError: no header can have that name.
    """
    if HEADER_RE.search(name):
        raise RuntimeError("Invalid HTTP header name.")
    start = name.lower() + b": "
    if len(_line_starts) < MAX_NAMES:  # most come from this code, but an engine's answer may bring some
        _line_starts[name] = start
    return start
