"""
Does the server's memory grow with the requests it has answered, and what do clients cost that never read?

A server in a process of its own gets 20,000 requests on persistent connections: whole and streamed, answered, refused, and cancelled by
disconnecting. Then 200 clients request an endless stream and never read it, and 500 open a connection and stall. The table shows the
process's resident memory and its open file descriptors.

    python bench/leak.py [--requests 20000]
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import tempfile
import time

SERVER = pathlib.Path(__file__).parent / "common" / "serve.py"
MODELS = [
    {
        "name": "parrot",
        "engine": "scripted",
        "answers": [
            {"when": "break", "lines": [{"text": "So far"}, {"wait_ms": 1}, {"failure": {"message": "The model broke."}}]},
            {"when": "sing", "lines": [{"text": "la ", "repeat": 10_000_000}]},
        ],
    }
]
CONNECTIONS = 8
SAMPLES = 20
SILENT = 200
STALLED = 500
SLOW_READER_S = 10
HEAD_TIMEOUT_S = 5
BODY_TIMEOUT_S = 8


def request(**fields):
    body = json.dumps({"model": "parrot", **fields}).encode()
    return b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body


KINDS = [
    request(input="Hello there, how are you?", store=False),
    request(input="Hello there, how are you?", store=False, stream=True),
    request(input="Hello there, how are you?"),
    request(input="Hello there, how are you?", stream=True),
    request(input="break", store=False, stream=True),
    request(input="Hello", model="none"),
    b"GET /v1/responses/resp_none HTTP/1.1\r\nhost: localhost\r\n\r\n",
]


class Watched:
    """The server's process, seen from outside."""

    def __init__(self, process):
        self.process = process
        self.address = process.stdout.readline().decode().strip().removeprefix("http://").split(":")

    def memory_mib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def connect(self):
        return asyncio.open_connection(*self.address)


async def answer(reader):
    """Read one response to its end."""
    head = await reader.readuntil(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head:
        await reader.readuntil(b"\r\n0\r\n\r\n")
    else:
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))


async def ask(server, count):
    """Send `count` requests on one connection, then one more that is cut off midway."""
    reader, writer = await server.connect()
    for number in range(count):
        writer.write(KINDS[number % len(KINDS)])
        await answer(reader)
    writer.write(request(input="sing", store=False, stream=True))
    await reader.readuntil(b"output_text.delta")
    writer.transport.abort()


async def grow(server, requests):
    """How fast memory grows over the second half of the requests, in MiB per 10,000."""
    each = requests // SAMPLES // CONNECTIONS
    samples = []
    for _ in range(SAMPLES):
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONNECTIONS):
                tasks.create_task(ask(server, each))
        samples.append(server.memory_mib())
    half = SAMPLES // 2
    steps = [(number + 1) * each * CONNECTIONS / 10_000 for number in range(SAMPLES)]
    return statistics.linear_regression(steps[half:], samples[half:]).slope


async def silent(server):
    """The most memory that clients take that never read, and the seconds until the last is dropped."""
    before = server.memory_mib()
    opened = []
    for _ in range(SILENT):
        _, writer = await server.connect()
        writer.transport.pause_reading()
        writer.write(request(input="sing", stream=True, store=False))
        opened.append(writer)
    started_at, most = time.monotonic(), before
    while server.descriptors() < SILENT:  # noqa: ASYNC110 - another process sets no event
        await asyncio.sleep(0.01)
    while server.descriptors() > SILENT // 2 and time.monotonic() - started_at < 3 * SLOW_READER_S:
        most = max(most, server.memory_mib())
        await asyncio.sleep(0.1)
    took_s = time.monotonic() - started_at
    for writer in opened:
        writer.transport.abort()
    return most - before, took_s


async def stalled(server, first_bytes):
    """Seconds until 95 % and all of the stalled connections are closed, and the longest wait of other clients meanwhile."""
    started_at = time.monotonic()
    closed_s, others_ms = [], []

    async def stall():
        reader, writer = await server.connect()
        writer.write(first_bytes)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        closed_s.append(time.monotonic() - started_at)
        writer.transport.abort()

    async def others():
        reader, writer = await server.connect()
        while len(closed_s) < STALLED:
            sent_at = time.monotonic()
            writer.write(KINDS[0])
            await answer(reader)
            others_ms.append((time.monotonic() - sent_at) * 1000)
            await asyncio.sleep(0.05)
        writer.transport.abort()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(STALLED):
            tasks.create_task(stall())
        tasks.create_task(others())
    closed_s.sort()
    return closed_s[int(0.95 * STALLED)], closed_s[-1], max(others_ms)


async def measure(server, requests):
    await grow(server, 4000)
    await asyncio.sleep(1)
    first = server.memory_mib(), server.descriptors()
    slope = await grow(server, requests)
    await asyncio.sleep(1)
    last = server.memory_mib(), server.descriptors()
    print(f"| requests | {requests:,} |")
    print(f"| memory before and after | {first[0]:.1f} MiB, {last[0]:.1f} MiB |")
    print(f"| slope over the second half | {slope:+.2f} MiB per 10,000 requests |")
    print(f"| descriptors before and after | {first[1]}, {last[1]} |")
    cost, took_s = await silent(server)
    print(f"| {SILENT} clients that never read | at most {cost:.1f} MiB more, all dropped after {took_s:.1f} s (limit {SLOW_READER_S} s) |")
    for name, limit_s, first_bytes in (
        ("heads", HEAD_TIMEOUT_S, b"GET / HTTP/1.1\r\nx: y\r\n"),
        ("bodies", BODY_TIMEOUT_S, b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"),
    ):
        most_s, all_s, slowest_ms = await stalled(server, first_bytes)
        print(
            f"| {STALLED} stalled {name} | 95 % closed after {most_s:.1f} s, all after {all_s:.1f} s (limit {limit_s} s); "
            f"other clients answered within {slowest_ms:.0f} ms |"
        )
    await asyncio.sleep(2)
    print(f"| at the end | {server.memory_mib():.1f} MiB, {server.descriptors()} descriptors |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=20_000)
    flags = {
        "server.port": 0,
        "server.slow_reader_s": SLOW_READER_S,
        "server.head_timeout_s": HEAD_TIMEOUT_S,
        "server.body_timeout_s": BODY_TIMEOUT_S,
        "logging.level": "error",
        "models": MODELS,
    }
    print("| what | how much |\n|---|---|")
    with tempfile.TemporaryDirectory() as home:
        process = subprocess.Popen([sys.executable, SERVER, home, json.dumps(flags)], stdout=subprocess.PIPE)
        try:
            asyncio.run(measure(Watched(process), parser.parse_args().requests))
        finally:
            process.send_signal(signal.SIGTERM)
            print(f"| exit code | {process.wait(40)} |")


if __name__ == "__main__":
    main()
