"""A WebSocket as bytes: it can send frames that no client library sends, and sends none by itself."""

import json
import os
import socket
import struct
from urllib.parse import urlsplit

from support.server.raw_http import connect, request, until

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10

HANDSHAKE = {
    "connection": "keep-alive, Upgrade",
    "upgrade": "websocket",
    "sec_websocket_version": "13",
    "sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def handshake(path="/echo", **headers):
    """A request for a WebSocket; None leaves a header out."""
    return request(path=path, **(HANDSHAKE | headers))


def frame(kind, payload=b"", *, is_last=True, is_masked=True, reserved=0, size_bytes=None):
    """A frame; `size_bytes` is a false length in its header."""
    size_bytes = len(payload) if size_bytes is None else size_bytes
    first, mask_bit = is_last << 7 | reserved << 4 | kind, is_masked << 7
    if size_bytes < 126:
        head = bytes((first, mask_bit | size_bytes))
    elif size_bytes < 1 << 16:
        head = bytes((first, mask_bit | 126)) + struct.pack("!H", size_bytes)
    else:
        head = bytes((first, mask_bit | 127)) + struct.pack("!Q", size_bytes)
    if not is_masked:
        return head + payload
    mask = os.urandom(4)
    key = int.from_bytes((mask * (len(payload) // 4 + 1))[: len(payload)], "big")
    return head + mask + (int.from_bytes(payload, "big") ^ key).to_bytes(len(payload), "big")


class Client:
    """A client whose handshake was answered with 101; `head` is that answer."""

    def __init__(self, base_url, path="/echo", *, behind_head=b"", receive_buffer_bytes=None, **headers):
        if receive_buffer_bytes is None:
            self.socket = connect(base_url)
        else:  # before it connects, or it is of no effect
            parts = urlsplit(base_url)
            self.socket = socket.socket()
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            self.socket.connect((parts.hostname, parts.port))
        self.socket.sendall(handshake(path, **headers) + behind_head)
        self.head, _, self._rest = until(self.socket, b"\r\n\r\n").partition(b"\r\n\r\n")
        assert self.head.startswith(b"HTTP/1.1 101 "), self.head

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.socket.close()

    def send(self, *frames):
        self.socket.sendall(b"".join(frames))

    def say(self, text):
        self.send(frame(TEXT, text))

    def _take(self, count):
        while len(self._rest) < count:
            piece = self.socket.recv(1 << 16)
            if not piece:
                raise EOFError
            self._rest += piece
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken

    def next(self):
        """The next frame: its opcode and payload. Raises EOFError when the server has closed."""
        first, second = self._take(2)
        assert first & 0x80, "the server splits no message"
        assert not first & 0x70 and not second & 0x80
        wide = {126: (2, "!H"), 127: (8, "!Q")}.get(second)
        size_bytes = struct.unpack(wide[1], self._take(wide[0]))[0] if wide else second
        return first & 0xF, self._take(size_bytes)

    def closed(self):
        """The code and reason of the next frame, which must be a Close and the last."""
        kind, payload = self.next()
        assert kind == CLOSE, (kind, payload)
        return int.from_bytes(payload[:2], "big"), payload[2:].decode()

    def is_at_end(self):
        try:
            return self.socket.recv(1) == b"" and not self._rest
        except ConnectionResetError:
            return False

    def close(self, code=1000):
        """Close properly, and wait until the server closes the connection."""
        self.send(frame(CLOSE, struct.pack("!H", code)))
        while self.next()[0] != CLOSE:
            pass
        assert self.is_at_end()


def error_in(answer):
    return json.loads(answer.rpartition(b"\r\n\r\n")[2])["error"]
