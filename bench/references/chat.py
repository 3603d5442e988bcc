"""
A scripted chat-completions server for benchmarks: so many tokens, one every so many milliseconds, at next to no cost of its own.

    python bench/references/chat.py PORT

`GET /asked` tells when it was asked since the last such question, by the machine's monotonic clock, in seconds.

A request's `max_tokens` says how many tokens are sent; the model's name may end in the pace, as in `mock-50ms` (default 5). One timer
serves all streams of a pace, so that what a stream costs here does not grow with their number.
"""

import asyncio
import json
import re
import sys
import time

import httptools
import uvloop

PACE = re.compile(r"-([\d.]+)ms$")

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(payload):
    body = b"data: " + (payload if isinstance(payload, bytes) else json.dumps(payload).encode()) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(body), body)


def chunk(choices, **more):
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "mock", "choices": choices, **more}


FIRST = event(chunk([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]))
TOKEN = event(chunk([{"index": 0, "delta": {"content": " token"}, "finish_reason": None}]))


def plain(body):
    text = json.dumps(body).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text)


MODELS = plain({"object": "list", "data": [{"id": "mock-1", "object": "model", "created": 1, "owned_by": "bench"}]})


def last(tokens):
    usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}
    stop = chunk([{"index": 0, "delta": {}, "finish_reason": "stop"}])
    return event(stop) + event(chunk([], usage=usage)) + event(b"[DONE]") + b"0\r\n\r\n"


def whole(tokens):
    message = {"role": "assistant", "content": " token" * tokens}
    usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "mock", "usage": usage}
    return plain(body | {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


class Pace:
    """Everyone who is sent a token at the same beat."""

    def __init__(self, interval_s):
        self.interval_s, self.streams, self.running = interval_s, {}, False

    def add(self, transport, tokens):
        self.streams[transport] = [tokens, tokens]
        if not self.running:
            self.running = True
            asyncio.get_running_loop().call_later(self.interval_s, self.beat)

    def beat(self):
        for transport, left in list(self.streams.items()):
            if transport.is_closing():
                del self.streams[transport]
            elif left[0]:
                left[0] -= 1
                transport.write(TOKEN)
            else:
                del self.streams[transport]
                transport.write(last(left[1]))
        self.running = bool(self.streams)
        if self.running:
            asyncio.get_running_loop().call_later(self.interval_s, self.beat)


PACES = {}
ASKED_AT = []


class Upstream(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.parser, self.body, self.url = transport, httptools.HttpRequestParser(self), b"", b""

    def on_url(self, url):
        self.url = url

    def data_received(self, received):
        self.parser.feed_data(received)

    def on_body(self, body):
        self.body += body

    def on_message_complete(self):
        if self.url == b"/asked":
            self.transport.write(plain(ASKED_AT))
            ASKED_AT.clear()
            return
        if not self.body:
            self.transport.write(MODELS)
            return
        ASKED_AT.append(time.perf_counter())
        asked = json.loads(self.body)
        self.body = b""
        tokens = asked.get("max_tokens") or asked.get("max_completion_tokens") or 100
        named = PACE.search(asked.get("model", ""))
        pace_ms = float(named[1]) if named else 5
        if not asked.get("stream"):
            self.transport.write(whole(tokens))
            return
        self.transport.write(HEAD + FIRST)
        if pace_ms == 0:
            self.transport.write(TOKEN * tokens + last(tokens))
            return
        PACES.setdefault(pace_ms, Pace(pace_ms / 1000)).add(self.transport, tokens)


async def main(port):
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=2048)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
