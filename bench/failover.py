"""
What do clients see of a model with three upstreams while one of them crashes, stalls and refuses at random?

Each request has a number, which the answer repeats with the name of the upstream. This shows streams that were started twice or mix two
upstreams. The two other upstreams always answer, so every error that reaches a client is one that a failover could have avoided.

    python bench/failover.py [REQUESTS] [SEED]
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import uvloop

CLIENTS = 24
WORDS = 6
PACE_S = 0.002
PHASE_S = (0.2, 1.2)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
PHASES = ("dead", "stalled", "refusing", "breaking", "garbled")
REFUSALS = ("429 Too Many Requests", "500 Internal Server Error", "503 Service Unavailable", "502 Bad Gateway")


def event(delta, finish=None):
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).encode() + b"\n\n"


class Upstream:
    """A chat server that answers each request with its number, except in its bad phases."""

    def __init__(self, name):
        self.name = name
        self.phase = "healthy"
        self.finished, self.requests = Counter(), Counter()
        self.writers = set()
        self.server = None
        self.port = 0

    async def listen(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def die(self):
        """Break every connection, and accept none."""
        self.server.close()
        for writer in tuple(self.writers):
            writer.transport.abort()

    async def serve(self, reader, writer):
        self.writers.add(writer)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
            request = json.loads(await reader.readexactly(length) or b"{}")
            await self.answer(request, writer)
            await writer.drain()
        except (ConnectionError, RuntimeError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client disconnected, or the benchmark is over
        finally:
            self.writers.discard(writer)
            writer.close()

    async def answer(self, request, writer):
        if "messages" not in request:
            writer.write(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            return
        number = request["messages"][-1]["content"].split()[-1]
        self.requests[self.phase] += 1
        words = [f"{self.name} answers {number}:", *(f" word{index}" for index in range(WORDS))]
        match self.phase:
            case "stalled":
                writer.write(random.choice([b"", HEAD]))
                await asyncio.sleep(60)
            case "refusing":
                after = b"retry-after-ms: 300\r\n" if random.random() < 0.5 else b""
                status = random.choice(REFUSALS).encode()
                writer.write(b"HTTP/1.1 " + status + b"\r\n" + after + b"content-length: 2\r\nconnection: close\r\n\r\n{}")
            case "breaking" if random.random() < 0.5:
                writer.write(random.choice([b"", HEAD, HEAD + event({"role": "assistant", "content": ""})]))
            case "garbled":
                writer.write(HEAD + random.choice([b'data: {"error": {"message": "Oh.", "code": 500}}\n\n', b"data: {]\n\n"]))
            case _:
                await self.stream(words, writer)
                self.finished[number] += self.phase != "breaking" and not writer.is_closing()

    async def stream(self, words, writer):
        writer.write(HEAD)
        last = random.randrange(1, WORDS) if self.phase == "breaking" else None
        for index, word in enumerate(words):
            if index == last:
                return
            writer.write(event({"content": word}))
            await asyncio.sleep(PACE_S)
        writer.write(event({}, "stop") + b"data: [DONE]\n\n")


async def misbehave(upstream):
    """Alternate between healthy and a random bad phase, for ever."""
    for is_healthy in itertools.cycle((True, False)):
        phase = "healthy" if is_healthy else random.choice(PHASES)
        if upstream.phase == "dead" and phase != "dead":
            await upstream.listen()
        if phase == "dead" and upstream.phase != "dead":
            await upstream.die()
        upstream.phase = phase
        await asyncio.sleep(random.uniform(*PHASE_S))


class Client:
    """Sends one request after the other on one connection."""

    def __init__(self, port, numbers, table, times):
        self.port, self.numbers, self.table, self.times = port, numbers, table, times

    async def run(self):
        reader = writer = None
        for number in self.numbers:
            if writer is None or writer.is_closing():
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            is_streamed = int(number) % 3 != 0
            body = json.dumps({"model": "m", "stream": is_streamed, "store": False, "input": f"This is {number}"}).encode()
            head = (
                f"POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            started_at = time.perf_counter()
            writer.write(head.encode() + body)
            status, headers, content = await asyncio.wait_for(_read(reader), 60)
            self.times.append(time.perf_counter() - started_at)
            self.note(number, status, headers, content, is_streamed)
        writer.close()

    def note(self, number, status, headers, content, is_streamed):
        text, end = _text(content, is_streamed) if status == 200 else ("", f"status {status}")
        attempts = int(headers.get("antiphon-attempts", "1"))
        self.table["answered after a failover"] += attempts > 1 and end == "completed"
        whole = re.fullmatch(rf"u\d answers {number}:((?: word\d)*)", text)
        self.table["answered twice"] += text.count(" answers ") > 1
        if text and (whole is None or [int(word[-1]) for word in whole[1].split()] != list(range(len(whole[1].split())))):
            self.table["STREAM CHANGED AFTER ITS FIRST TOKEN"] += 1
        elif end == "completed" and text.count(" word") == WORDS:
            self.table["answered"] += 1
        elif text and end == "failed":
            self.table["failed after its first token, and reported it"] += 1
        else:
            self.table["ERROR THAT ANOTHER UPSTREAM COULD HAVE ANSWERED"] += 1
            self.table[f"  {end}: {content[:100]!r}"] += 1


async def _read(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if ": " in line)
    if "content-length" in headers:
        content = await reader.readexactly(int(headers["content-length"]))
    else:
        chunks = []
        while size := int(await reader.readline(), 16):
            chunks.append((await reader.readexactly(size + 2))[:-2])
        await reader.readline()
        content = b"".join(chunks)
    return int(head[0].split()[1]), headers, content


def _text(content, is_streamed):
    """The text of an answer, and how it ended."""
    if not is_streamed:
        response = json.loads(content)
        return "".join(part["text"] for item in response["output"] for part in item["content"]), response["status"]
    events = [json.loads(line[6:]) for line in content.decode().splitlines() if line.startswith("data: {")]
    return "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta"), events[-1]["type"].split(".")[1]


def options(upstreams):
    tables = [{"name": upstream.name, "base_url": f"http://127.0.0.1:{upstream.port}/v1"} for upstream in upstreams]
    model = {"name": "m", "engine": "chat", "quirks": "generic", "upstreams": tables, "failover_after_s": 2.0, "rest_s": 0.5}
    model |= {"slow_start_s": 2}
    return {"server.port": 0, "store.url": "memory", "logging.level": "error", "models": [model]}


@contextlib.contextmanager
def serving(upstreams):
    with tempfile.TemporaryDirectory() as home:
        program = str(Path(__file__).parent / "common" / "serve.py")
        process = subprocess.Popen([sys.executable, program, home, json.dumps(options(upstreams))], stdout=subprocess.PIPE, env=os.environ)
        try:
            yield int(process.stdout.readline().decode().strip().rsplit(":", 1)[1])
        finally:
            process.terminate()
            process.wait()


async def run(count):
    upstreams = [Upstream(f"u{index}") for index in range(3)]
    for upstream in upstreams:
        await upstream.listen()
    table, times = Counter(), []
    with serving(upstreams) as port:
        numbers = iter(range(1, count + 1))
        async with asyncio.TaskGroup() as tasks:
            misbehaving = tasks.create_task(misbehave(upstreams[0]))
            async with asyncio.TaskGroup() as clients:
                for _ in range(CLIENTS):
                    clients.create_task(Client(port, map(str, numbers), table, times).run())
            misbehaving.cancel()
        views = json.loads(await _get(port, "/status"))["upstreams"]
    for upstream in upstreams:
        await upstream.die()
    finished = upstreams[0].finished + upstreams[1].finished + upstreams[2].finished
    table["computed by two upstreams, by one of them too late"] = sum(completions > 1 for completions in finished.values())
    return upstreams, table, sorted(times), views


async def _get(port, path):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
    content = (await _read(reader))[2]
    writer.close()
    return content


def main():
    arguments = [int(each) for each in sys.argv[1:] if each.isdigit()]
    count, seed = [*arguments, *(10_000, 7)[len(arguments) :]]
    random.seed(seed)
    upstreams, table, times, views = uvloop.run(run(count))
    print(f"{count} requests of {CLIENTS} clients, two of three streamed; u0 is healthy, dead, stalled, refusing, breaking or garbled\n")
    for name in ("ERROR THAT ANOTHER UPSTREAM COULD HAVE ANSWERED", "answered twice", "STREAM CHANGED AFTER ITS FIRST TOKEN"):
        print(f"| {name.lower()} | {table.pop(name, 0)} |")
    for name, times_seen in sorted(table.items(), key=lambda pair: -pair[1]):
        print(f"| {name} | {times_seen} |")
    quantiles = {f"p{share * 100:g}": times[int(share * (len(times) - 1))] for share in (0.5, 0.9, 0.99, 0.999)}
    print("\nseconds to the end: " + ", ".join(f"{name} {value:.3f}" for name, value in quantiles.items()))
    print("requests to u0 by phase: " + ", ".join(f"{phase} {number}" for phase, number in upstreams[0].requests.most_common()))
    for view in views:
        print(f"{view['name']}: {view['requests']} requests, {view['answered']} answered, {view['affine']} by affinity")


if __name__ == "__main__":
    main()
