"""
How fast does a background stream resume at another process?

Clients read background streams, disconnect after some events, and continue with `starting_after` at a process that does not generate the
response: at the other of two servers that share a PostgreSQL database, or at the other process of one server. The time runs from opening
the connection to the first event. A repeated or missing sequence number counts as wrong, a stream without its last event or without all of
its text as incomplete.

    python bench/background_resume.py [--cuts 1000] [--clients 8] [--store postgres]

With SQLite one server has two processes, and the kernel chooses between them; `/proc` shows which one answered. Exit code 1 when anything
is wrong or incomplete.
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import tempfile
import time
from pathlib import Path

from measuring import RESPONSES, http, tree

sys.path.append(str(Path(__file__).parent))  # after the standard library
import crash

WORDS, PACE_MS = 200, 10
LONGEST_READ = 60
"""The most events that a client reads before it disconnects."""

SONG = f"""
[[models]]
name = "song"
engine = "scripted"
pace_ms = {PACE_MS}
answers = [{{ lines = [{{ text = "la ", repeat = {WORDS} }}] }}]
"""
TERMINAL = ("response.completed", "response.failed", "response.incomplete")


def process_at(port, pids):
    """The process at the other end of the connection from this local port; None if it is gone."""
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[2].rpartition(":")[2], 16) == port and fields[3] == "01":
            inodes.add(f"socket:[{fields[9]}]")
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(file) in inodes:
                    return pid
    return None


class Reading:
    """What a client received of one response, over all its connections."""

    def __init__(self):
        self.id, self.next, self.wrong, self.is_over, self.text, self.process = None, 0, 0, False, "", None

    def take(self, event):
        self.wrong += event["sequence_number"] != self.next
        self.next = event["sequence_number"] + 1
        self.is_over = event["type"] in TERMINAL
        if event["type"] == "response.created":
            self.id = event["response"]["id"]
        if event["type"] == "response.output_text.delta":
            self.text += event["delta"]


class Servers:
    """Two servers with one process each, or one with two."""

    def __init__(self, folder, store):
        count = 1 if store == "sqlite" else 2
        self.all = [crash.Server(folder / str(number), store, 3 - count) for number in range(count)]
        for server in self.all:
            settings = server.folder / "antiphon.toml"
            settings.write_text(settings.read_text() + SONG)

    async def process(self, server, port):
        """The process at the other end of the connection from this local port."""
        if server.processes == 1:
            return server.process.pid
        return await asyncio.to_thread(process_at, port, tree(server.process.pid))

    def other(self, server):
        """The server to continue at."""
        return next((each for each in self.all if each is not server), server)


async def read(servers, server, request, reading, count):
    """Read up to `count` events; returns the milliseconds to the first one and the process that answered."""
    started_at = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    first_ms = process = None
    try:
        while count and not reading.is_over:
            line = await asyncio.wait_for(reader.readline(), crash.PATIENCE_S)
            if not line:
                break
            if not line.startswith(b"data: {"):
                continue
            if first_ms is None:
                first_ms = 1000 * (time.perf_counter() - started_at)
                process = await servers.process(server, writer.get_extra_info("sockname")[1])
            reading.take(json.loads(line[6:]))
            count -= 1
    finally:
        writer.transport.abort()
    return first_ms, process


async def client(servers, times, cuts, results):
    """Read streams with random cuts, until enough of them were resumed at another process."""
    while len(times) < cuts:
        reading, server = Reading(), random.choice(servers.all)
        body = {"model": "song", "input": "Sing.", "stream": True, "background": True}
        request = http(RESPONSES, body, server.port)
        _, generator = await read(servers, server, request, reading, random.randrange(1, LONGEST_READ))
        while not reading.is_over:
            server = servers.other(server)
            target = f"{RESPONSES}/{reading.id}?stream=true&starting_after={reading.next - 1}"
            request = f"GET {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()
            first_ms, process = await read(servers, server, request, reading, random.randrange(1, LONGEST_READ))
            if first_ms is None:
                break
            if process != generator:
                times.append(first_ms)
        results.append(reading)


async def trial(options, store):
    with tempfile.TemporaryDirectory() as folder:
        servers = Servers(Path(folder), store)
        for server in servers.all:
            await server.start()
        times, results = [], []
        async with asyncio.TaskGroup() as tasks:
            for _ in range(options.clients):
                tasks.create_task(client(servers, times, options.cuts, results))
        for server in servers.all:
            await server.stop()
    return times, results


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuts", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--store", default="sqlite")
    options = parser.parse_args()
    with crash.store_url(options.store) as url:
        times, results = asyncio.run(trial(options, url))
    times.sort()
    wrong = sum(reading.wrong for reading in results)
    incomplete = sum(not re.fullmatch(f"(la ){{{WORDS}}}", reading.text) or not reading.is_over for reading in results)
    print(f"| {options.store} | {'two servers' if options.store != 'sqlite' else 'two processes'} |\n| --- | --- |")
    print(f"| streams | {len(results)} |")
    print(f"| cut, and resumed at another process | {len(times)} |")
    print(f"| repeated or missing numbers | {wrong} |")
    print(f"| streams without their end or all of their text | {incomplete} |")
    print(f"| first event after a reconnect, median | {times[len(times) // 2]:.0f} ms |")
    print(f"| 99th percentile | {times[len(times) * 99 // 100]:.0f} ms |")
    print(f"| longest | {times[-1]:.0f} ms |")
    return 1 if wrong or incomplete else 0


if __name__ == "__main__":
    sys.exit(main())
