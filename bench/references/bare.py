"""
The least that Python can do between a chat server and a Responses client: parsers, JSON, and the events of one text, nothing else.

It has no sessions, errors, limits, store or back-pressure, and is no server to use: it is what `stream_cost.py` measures beside the real
one, to tell what the language costs from what the product does.

    python bench/references/bare.py PORT UPSTREAM_PORT
"""

import asyncio
import sys

import httptools
import msgspec
import uvloop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
encoder = msgspec.json.Encoder()
idle = []


class Delta(msgspec.Struct):
    content: str | None = None


class Choice(msgspec.Struct):
    delta: Delta


class Chunk(msgspec.Struct):
    choices: list[Choice]


class Asked(msgspec.Struct):
    model: str
    input: str
    max_output_tokens: int


class TextDelta(msgspec.Struct, tag_field="type", tag="response.output_text.delta"):
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: list


read_chunk = msgspec.json.Decoder(Chunk).decode
read_request = msgspec.json.Decoder(Asked).decode


class Upstream(asyncio.Protocol):
    """A connection to the chat server; what one read brings goes to the client in one call."""

    def connection_made(self, transport):
        self.transport = transport

    def ask(self, client, asked):
        self.client, self.parser, self.over = client, httptools.HttpResponseParser(self), False
        messages = [{"role": "user", "content": asked.input}]
        body = encoder.encode({"model": asked.model, "max_tokens": asked.max_output_tokens, "stream": True, "messages": messages})
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: bare\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(head % len(body) + body)

    def data_received(self, received):
        self.texts = []
        self.parser.feed_data(received)
        if self.texts:
            self.client.say(self.texts)
        if self.over:
            idle.append(self)
            self.client.end()

    def on_body(self, body):
        for event in body.split(b"\n\n"):  # the scripted upstream cuts no event in two
            if event.startswith(b"data: {"):
                chunk = read_chunk(event[6:])
                if chunk.choices and (text := chunk.choices[0].delta.content):
                    self.texts.append(text)

    def on_message_complete(self):
        self.over = True


class Client(asyncio.Protocol):
    """A client's connection."""

    def connection_made(self, transport):
        self.transport, self.parser, self.body = transport, httptools.HttpRequestParser(self), b""

    def data_received(self, received):
        self.parser.feed_data(received)

    def on_body(self, body):
        self.body += body

    def on_message_complete(self):
        if self.body:
            asked, self.body = read_request(self.body), b""
            self.task = asyncio.ensure_future(self.begin(asked))  # noqa: TID251 - the least there can be has no group of tasks either
        else:
            self.transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")

    async def begin(self, asked):
        upstream = idle.pop() if idle else (await asyncio.get_running_loop().create_connection(Upstream, "127.0.0.1", UPSTREAM_PORT))[1]
        self.number, self.text = 0, []
        self.response = {"id": "resp_1", "object": "response", "created_at": 1, "model": asked.model, "status": "in_progress", "output": []}
        message = {"id": "msg_1", "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        opening = b"".join(
            (
                self.event("response.created", response=self.response),
                self.event("response.in_progress", response=self.response),
                self.event("response.output_item.added", output_index=0, item=message),
                self.event("response.content_part.added", **place, part=part),
            )
        )
        self.transport.write(HEAD + b"%x\r\n%b\r\n" % (len(opening), opening))
        upstream.ask(self, asked)

    def event(self, kind, **fields):
        self.number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), encoder.encode({"type": kind, "sequence_number": self.number - 1, **fields}))

    def say(self, texts):
        out = bytearray()
        for text in texts:
            self.text.append(text)
            out += b"event: response.output_text.delta\ndata: "
            encoder.encode_into(TextDelta(self.number, "msg_1", 0, 0, text, []), out, -1)
            out += b"\n\n"
            self.number += 1
        self.transport.write(b"%x\r\n%b\r\n" % (len(out), out))

    def end(self):
        text = "".join(self.text)
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        message = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [part]}
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        closing = b"".join(
            (
                self.event("response.output_text.done", **place, text=text, logprobs=[]),
                self.event("response.content_part.done", **place, part=part),
                self.event("response.output_item.done", output_index=0, item=message),
                self.event("response.completed", response=self.response | {"status": "completed", "output": [message]}),
            )
        )
        self.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(closing), closing))


async def main():
    server = await asyncio.get_running_loop().create_server(Client, "127.0.0.1", PORT, backlog=2048)
    await server.serve_forever()


PORT, UPSTREAM_PORT = map(int, sys.argv[1:3])
uvloop.run(main())
