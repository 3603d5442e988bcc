"""
What does a second of a MiniCPM-o session cost, beside bare servers that take the same frames?

One answers each frame with as many bytes as an event has that says that the model listens, the other with as many as a session gets for
a frame on average, its audio included.

So many sessions in full duplex send silence at the pace of speech, as float32 in base64 and JSON, in chunks of a second or a tenth of
one. A scripted engine answers every chunk in its turn, and every ten seconds has three seconds to say. How late the first event after a
chunk comes is the lateness. CPU is the scheduler's own account of the server's process, memory what the sessions add to it: once they
have begun and say nothing, and while they talk.

    python bench/duplex_sessions.py [--sessions 200] [--seconds 20] [--chunks 1000 100]
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import argparse
import asyncio
import base64
import contextlib
import itertools
import json
import os
import resource
import statistics
import struct
import tempfile
import time
from pathlib import Path

import uvloop

from measuring import cpu_ns, free_port, memory_mb, print_head, print_row, running

RATE_HZ, SAMPLE_BYTES = 16_000, 4
SPEAKS_EVERY_S, SPEAKS_S = 10, 3
SLOTS = 100
PATIENCE_S = 20
LISTEN_BYTES = 330
"""Of the event that says that the model listens."""

SPOKEN_BYTES_PER_S = 24_000 * SAMPLE_BYTES * 4 // 3
"""Of what the model says: float32 in base64."""
BARE, AS_MUCH, OURS = "bare", "bare, as many bytes", "antiphon"

HANDSHAKE = (
    "GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
CLOSE = b"\x88\x82" + bytes(4) + b"\x03\xe8"


def frame(event):
    """An event as a client's frame; masked with zeros, which costs the client nothing and the server what any mask does."""
    text = json.dumps(event).encode()
    sizes = ((125, "!BB", 0x80 | len(text)), (65_535, "!BBH", 0xFE), (sys.maxsize, "!BBQ", 0xFF))
    _, form, mark = next(row for row in sizes if len(text) <= row[0])
    return struct.pack(form, 0x81, mark, *([len(text)] if len(form) > 3 else [])) + bytes(4) + text


def append(chunk_ms):
    return frame({"type": "input.append", "input": {"audio": base64.b64encode(bytes(RATE_HZ * chunk_ms // 1000 * SAMPLE_BYTES)).decode()}})


BEGIN = frame({"type": "session.init", "payload": {}})
GOODBYE = frame({"type": "session.close", "reason": "user_stop"})


class Person(asyncio.Protocol):
    """One session's client: it takes whatever comes first after a chunk for what is said to it."""

    def __init__(self, path):
        self.path, self.heard, self.lateness, self.sent_at, self.received = path, b"", [], None, 0
        self.ready = asyncio.get_running_loop().create_future()
        self.gone = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport
        transport.write(HANDSHAKE.format(path=self.path).encode())

    def data_received(self, received):
        self.received += len(received)
        if self.ready.done():
            if self.sent_at is not None:
                self.lateness.append(time.perf_counter() - self.sent_at)
                self.sent_at = None
            return
        before, self.heard = self.heard, self.heard + received
        if b'"session.queue_done"' in self.heard and b'"session.queue_done"' not in before:
            self.transport.write(BEGIN)
        if (b'"session.created"' if "realtime" in self.path else b"\r\n\r\n") in self.heard:
            assert self.heard.startswith(b"HTTP/1.1 101 "), self.heard
            self.ready.set_result(None)

    def say(self, chunk):
        self.sent_at = time.perf_counter()
        self.transport.write(chunk)

    def connection_lost(self, error):
        if not self.ready.done():
            self.ready.set_exception(error or ConnectionError(f"the server closed the connection: {self.heard[-500:]}"))
        if not self.gone.done():
            self.gone.set_result(None)


@contextlib.asynccontextmanager
async def connected(port, path, count):
    """So many clients, each in its session."""
    loop = asyncio.get_running_loop()
    made = []
    for _ in range(count):
        _, client = await loop.create_connection(lambda: Person(path), "127.0.0.1", port)
        await asyncio.wait_for(client.ready, PATIENCE_S)
        made.append(client)
    try:
        yield made
    finally:
        for client in made:
            client.transport.write((GOODBYE if "realtime" in path else b"") + CLOSE)
        for client in made:
            await asyncio.wait_for(client.gone, PATIENCE_S)


async def talk(clients, chunk, chunk_s, seconds):
    """
    All of them at the pace of speech, spread over a chunk's time, as clients are that know nothing of each other.

    Returns:
        How much of that pace this program could keep.
    """
    groups = [clients[number::SLOTS] for number in range(SLOTS)]
    begun_at = time.perf_counter()
    for tick in itertools.count():
        due_at = begun_at + tick * chunk_s / SLOTS
        if due_at >= begun_at + seconds:
            return seconds / (time.perf_counter() - begun_at)
        await asyncio.sleep(max(0, due_at - time.perf_counter()))  # nothing leaves or comes before this program sleeps
        for client in groups[tick % SLOTS]:
            client.say(chunk)


async def cost(pid, port, path, args, chunk_ms):
    """What the table has of a server."""
    before_mb, chunk = memory_mb(pid), append(chunk_ms)
    async with connected(port, path, args.sessions) as clients:
        await asyncio.sleep(0.5)
        idle_mb = memory_mb(pid)
        await talk(clients, chunk, chunk_ms / 1000, 2)
        for client in clients:
            client.lateness.clear()
        spent = cpu_ns(pid)
        pace = await talk(clients, chunk, chunk_ms / 1000, args.seconds)
        spent, busy_mb = cpu_ns(pid) - spent, memory_mb(pid)
        await asyncio.sleep(0.5)
        assert not any(client.gone.done() for client in clients), "the server closed a session"
        lateness = sorted(itertools.chain(*(client.lateness for client in clients)))
    return {
        "ms_a_second": spent / 1e6 / (args.sessions * args.seconds),
        "idle_kb": (idle_mb - before_mb) * 1000 / args.sessions,
        "busy_kb": (busy_mb - before_mb) * 1000 / args.sessions,
        "lateness": lateness,
        "answered": len(lateness) / (args.sessions * args.seconds * 1000 / chunk_ms),
        "pace": pace,
    }


def script(chunk_ms):
    """A model that has something to say every so many chunks, whatever it hears."""
    every = SPEAKS_EVERY_S * 1000 // chunk_ms
    line = f"{{ text = 'word' }}, {{ aloud_ms = {chunk_ms}, repeat = {SPEAKS_S * 1000 // chunk_ms} }}"
    says = ", ".join(f"{{ at = {at}, lines = [{line}] }}" for at in range(every // 2, every * 30, every))
    deaf = "speech = [{ at_ms = 1_000_000_000, until_ms = 1_000_000_001 }]"  # to look for speech would cost more than all else
    return f'[[models]]\nname = "chunks-{chunk_ms}"\nengine = "scripted"\n{deaf}\nduplex = {{ says = [{says}] }}\n'


@contextlib.contextmanager
def antiphon(folder, chunk_ms):
    port = free_port()
    top = '[store]\nurl = "memory"\n[logging]\nlevel = "warning"\n[speech]\nenabled = false\n'
    (folder / "antiphon.toml").write_text(top + script(chunk_ms))
    command = [sys.executable, "-m", "antiphon", "serve", "--port", str(port)]
    with running(command, port, "/readyz?wait_for=speech", cwd=folder, env=os.environ | {"ANTIPHON_HOME": str(folder)}) as pid:
        yield pid, port


@contextlib.contextmanager
def bare(size_bytes):
    port = free_port()
    with running([sys.executable, str(Path(__file__).parent / "references" / "picows_echo.py"), str(port), str(size_bytes)], port) as pid:
        yield pid, port


def millis(lateness, part):
    return lateness[min(len(lateness) - 1, int(len(lateness) * part))] * 1000


def told(chunk, name, measured, base):
    """A row of the table."""
    spent = statistics.median(each["ms_a_second"] for each in measured)
    late = sorted(itertools.chain(*(each["lateness"] for each in measured)))
    first = measured[0]  # memory that was freed is not given back, so that only the first round tells what was taken
    p50, p99, longest = (millis(late, part) for part in (0.5, 0.99, 1))
    cells = [chunk, name, f"{spent:.3f} ms", f"{spent / base:.2f}x", f"{p50:.2f} / {p99:.2f} ms", f"{longest:.0f} ms"]
    cells += [f"{first['idle_kb']:.0f} KB", f"{first['busy_kb']:.0f} KB"]
    print_row(*cells, f"{first['answered']:.0%}", f"{min(each['pace'] for each in measured):.0%}")


async def measure(servers, args, chunk_ms):
    """The rows of a length of chunk; the ratio of costs to each of the bare servers."""
    runs = {name: [] for name in servers}
    for _, (name, (pid, port)) in itertools.product(range(args.rounds), servers.items()):
        path = f"/v1/realtime?mode=audio&model=chunks-{chunk_ms}" if name == OURS else "/"
        runs[name].append(await cost(pid, port, path, args, chunk_ms))
    spent = {name: statistics.median(each["ms_a_second"] for each in measured) for name, measured in runs.items()}
    for name, measured in runs.items():
        told(f"{chunk_ms} ms", name, measured, spent[BARE])
    return [spent[OURS] / spent[name] for name in (BARE, AS_MUCH)]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunks", type=int, nargs="+", default=[1000, 100])
    return parser.parse_args()


def main():
    args = arguments()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    print(f"{args.sessions} sessions, {args.seconds:g} s, {args.rounds} rounds")
    print_head("chunks of", "server", "CPU", "to bare", "delay, p50 / p99", "longest delay", "idle", "busy", "answered", "pace")
    ratios = {}
    for chunk_ms in args.chunks:  # each on servers of its own: memory that was taken is not given back
        as_many_bytes = LISTEN_BYTES + SPOKEN_BYTES_PER_S * SPEAKS_S // SPEAKS_EVERY_S * chunk_ms // 1000
        with (
            tempfile.TemporaryDirectory() as folder,
            bare(LISTEN_BYTES) as brief,
            bare(as_many_bytes) as wordy,
            antiphon(Path(folder), chunk_ms) as ours,
        ):
            ratios[chunk_ms] = uvloop.run(measure({BARE: brief, AS_MUCH: wordy, OURS: ours}, args, chunk_ms))
    for chunk_ms, (brief_ratio, wordy_ratio) in ratios.items():
        print(f"ratio with chunks of {chunk_ms} ms: {brief_ratio:.2f}, and {wordy_ratio:.2f} to one that answers as much")
    return 0


if __name__ == "__main__":
    sys.exit(main())
