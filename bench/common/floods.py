"""
A model server that floods its clients, in a process of its own, for `bench/hostile.py --upstream`.

The path of the request names the flood: `/comments/chat/completions`, `/fragments/realtime`. It prints its port once it
accepts connections.
"""

import asyncio
import base64
import contextlib
import hashlib
import json

BLOCK_BYTES = 256 << 10
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
WEBSOCKET_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3


def delta(text):
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}).encode() + b"\n\n"


def frame(payload, opcode=1, *, is_last=True):
    length = len(payload)
    size = bytes([length]) if length < 126 else b"\x7e" + length.to_bytes(2, "big")
    return bytes([(0x80 if is_last else 0) | opcode]) + size + payload


def block(unit):
    return unit * max(1, BLOCK_BYTES // len(unit))


def chunk(body):
    return b"%x\r\n%b\r\n" % (len(body), body)


STREAMS = {
    "comments": chunk(block(b":\n\n")),
    "keep-alives": chunk(block(b": keep-alive\n\n")),
    "empty lines": chunk(block(b"\n")),
    "empty events": chunk(block(b"data: {}\n\n")),
    "chunks of a byte": block(chunk(b":") + chunk(b"\n") + chunk(b"\n")),
    "one line without end": chunk(block(b"a")),
    "short words": chunk(block(delta("a"))),
    "long words": chunk(block(delta("word " * 2000))),
    "many lines without an event": chunk(block(b"data: a\n")),
}
"""What each stream repeats endlessly."""

CREATED = frame(b'{"type":"session.created","event_id":"e1","session":{"type":"realtime","id":"sess_1","object":"realtime.session"}}')
FRAGMENTS = frame(b'{"type":"', is_last=False) + frame(b"a", 0, is_last=False) * 20_000 + frame(b'"}', 0)
SOCKETS = {
    "fragments": FRAGMENTS,
    "empty fragments": frame(b"", 0, is_last=False) * 100_000,
    "short messages": block(frame(b'{"type":"a"}')),
    "pings": block(frame(bytes(125), 9)),
}
"""What each WebSocket repeats endlessly, after `session.created`."""


async def serve(reader, writer):
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        head = await reader.readuntil(b"\r\n\r\n")
        name = head.split(b" ")[1].decode().split("/")[1].replace("%20", " ").replace("-", " ")
        name = {each.replace("-", " "): each for each in (*STREAMS, *SOCKETS)}[name]
        if name in SOCKETS:
            key = next(line.split(b": ")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
            accept = base64.b64encode(hashlib.sha1(key + WEBSOCKET_GUID).digest())
            writer.write(
                b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: %b\r\n\r\n"
                % accept
            )
            writer.write(CREATED + (frame(b"x", is_last=False) if name == "empty fragments" else b""))
            await reader.read(1)  # until the first request
        else:
            writer.write(STREAM_HEAD)
        data = SOCKETS.get(name) or STREAMS[name]
        while True:
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


async def main():
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
