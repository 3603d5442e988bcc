"""
What does 20 ms of speech cost a Realtime session, beside a bare echo with the same frame parser, and does that grow with the sessions?

Every session sends what a microphone does: 20 ms of 24 kHz PCM in base64 and JSON, fifty times a second, with turn detection off. Each
tenth frame asks for an answer (`input_audio_buffer.clear`), and how late that comes is the lateness. CPU is the scheduler's own
account of the server's process. Idle memory is what many open sessions add to the process, for each of them.

    python bench/realtime_sessions.py [--seconds 8] [--idle 1000] [--sessions 10 100 1000] [--model parrot --port 8642 --pid 4711]

With `--port` and `--pid` an antiphon that runs already is measured.
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
from collections import defaultdict
from pathlib import Path

import uvloop

from measuring import cpu_ns, free_port, memory_mb, print_head, print_row, running

FRAME_S = 0.02
ASK_EVERY = 10
PCM = bytes(range(256)) * 4
ROUNDS = 3
RATIO_HOLD, IDLE_HOLD_KB = 5.0, 60.0
WANTED = "ratio: hold 5.0, aim 2.5; idle memory: hold 60 KB, aim 40 KB"


def frame(event):
    """An event as a client's frame; masked with zeros, which costs the client nothing and the server what any mask does."""
    text = json.dumps(event).encode()
    size = struct.pack("!BBH", 0x81, 0xFE, len(text)) if len(text) > 125 else struct.pack("!BB", 0x81, 0x80 | len(text))
    return size + bytes(4) + text


APPEND = frame({"type": "input_audio_buffer.append", "audio": base64.b64encode(PCM[:960]).decode()})
CLEAR = frame({"type": "input_audio_buffer.clear"})
NO_TURNS = frame({"type": "session.update", "session": {"type": "realtime", "audio": {"input": {"turn_detection": None}}}})
CLOSE = b"\x88\x82" + bytes(4) + b"\x03\xe8"
HANDSHAKE = (
    "GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class Microphone(asyncio.Protocol):
    """One session's client: it takes whatever comes after a question for its answer."""

    def __init__(self, path):
        self.path, self.lateness, self.asked_at, self.heard, self.sent = path, [], None, b"", 0
        self.ready = asyncio.get_running_loop().create_future()
        self.gone = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport
        transport.write(HANDSHAKE.format(path=self.path).encode() + NO_TURNS)

    def data_received(self, received):
        if not self.ready.done():
            self.heard += received
            if (b'"session.updated"' if "realtime" in self.path else b"\r\n\r\n") in self.heard:
                assert self.heard.startswith(b"HTTP/1.1 101 "), self.heard
                self.heard = b""
                self.ready.set_result(None)
        elif self.asked_at is not None:
            self.lateness.append(time.perf_counter() - self.asked_at)
            self.asked_at = None

    def speak(self):
        self.sent += 1
        if self.sent % ASK_EVERY:
            self.transport.write(APPEND)
        else:
            self.asked_at = time.perf_counter()
            self.transport.write(CLEAR)

    def connection_lost(self, error):
        if not self.ready.done():
            self.ready.set_exception(error or ConnectionError("the server closed the connection"))
        if not self.gone.done():
            self.gone.set_result(None)


@contextlib.asynccontextmanager
async def connected(port, path, count):
    """So many clients, each in its session."""
    loop = asyncio.get_running_loop()
    made = []
    for _ in range(count):
        _, client = await loop.create_connection(lambda: Microphone(path), "127.0.0.1", port)
        await asyncio.wait_for(client.ready, 10)
        made.append(client)
    try:
        yield made
    finally:
        for client in made:
            client.transport.write(CLOSE)
        for client in made:
            await asyncio.wait_for(client.gone, 10)


async def speak(clients, seconds):
    """
    All of them at the pace of speech, spread over the 20 ms, as clients are that know nothing of each other.

    Returns:
        How much of that pace this program could keep.
    """
    slots = 20
    groups = [clients[number::slots] for number in range(slots)]
    begun_at = time.perf_counter()
    for tick in itertools.count():
        due_at = begun_at + tick * FRAME_S / slots
        if due_at > begun_at + seconds:
            return seconds / (time.perf_counter() - begun_at)
        await asyncio.sleep(max(0, due_at - time.perf_counter()))  # nothing leaves or comes before this program sleeps
        for client in groups[tick % slots]:
            client.speak()


async def cost(pid, port, path, sessions, seconds):
    """Microseconds of CPU a frame, seconds of lateness, and how much of the pace was kept."""
    async with connected(port, path, sessions) as clients:
        await speak(clients, 1)
        sent = sum(client.sent for client in clients)
        for client in clients:
            client.lateness.clear()
        before = cpu_ns(pid)
        pace = await speak(clients, seconds)
        for _ in range(100):
            await asyncio.sleep(0.05)
            if all(client.asked_at is None for client in clients):
                break
        spent = cpu_ns(pid) - before
        sent = sum(client.sent for client in clients) - sent
        lateness = sorted(itertools.chain(*(client.lateness for client in clients)))
        assert not any(client.gone.done() for client in clients), "the server closed a session"
        assert all(client.asked_at is None for client in clients), "a question was not answered"
    return spent / sent / 1000, lateness, pace


async def idle_kb(pid, port, path, count):
    """Kilobytes that an open session takes which says nothing."""
    async with connected(port, path, 20):  # whatever the first ones load
        pass
    before = memory_mb(pid)
    async with connected(port, path, count):
        await asyncio.sleep(0.5)
        return (memory_mb(pid) - before) * 1000 / count


@contextlib.contextmanager
def antiphon(folder, model):
    port = free_port()
    (folder / "antiphon.toml").write_text(
        f'[server]\n[store]\nurl = "memory"\n[logging]\nlevel = "warning"\n[[models]]\nname = "{model}"\nengine = "scripted"\n'
    )
    command = [sys.executable, "-m", "antiphon", "serve", "--port", str(port)]
    with running(command, port, "/readyz?wait_for=speech", cwd=folder, env=os.environ | {"ANTIPHON_HOME": str(folder)}) as pid:
        yield pid, port


@contextlib.contextmanager
def echo():
    port = free_port()
    with running([sys.executable, str(Path(__file__).parent / "references" / "picows_echo.py"), str(port)], port) as pid:
        yield pid, port


def millis(lateness, part):
    return lateness[min(len(lateness) - 1, int(len(lateness) * part))] * 1000


async def measure(servers, args):
    """The table; the ratio of costs with as many sessions as in its middle row, and the memory of an idle one."""
    ratios = {}
    memory = {name: await idle_kb(*where, args.idle) for name, where in servers.items()}  # first: what is freed later is not given back
    print_head("sessions", "server", "µs a frame", "to picows", "delay, p50 / p99", "longest delay", "pace")
    for sessions in args.sessions:
        runs = defaultdict(list)
        for _, (name, where) in itertools.product(range(ROUNDS), servers.items()):
            runs[name].append(await cost(*where, sessions, args.seconds))
        base = statistics.median(spent for spent, *_ in runs["picows"])
        for name, measured in runs.items():
            spent = statistics.median(each for each, *_ in measured)
            late = sorted(itertools.chain(*(lateness for _, lateness, _ in measured)))
            pace = min(kept for *_, kept in measured)
            ratios[name, sessions] = spent / base
            p50, p99, longest = (millis(late, part) for part in (0.5, 0.99, 1))
            row = f"{spent:.1f}", f"{spent / base:.2f}x", f"{p50:.1f} / {p99:.1f} ms", f"{longest:.0f} ms", f"{pace:.0%}"
            print_row(f"{sessions:,}", name, *row)
    for name, kilobytes in memory.items():
        print(f"an idle session of {name}: {kilobytes:.1f} KB")
    return ratios["antiphon", args.sessions[len(args.sessions) // 2]], memory["antiphon"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--sessions", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--model", default="parrot")
    parser.add_argument("--port", type=int)
    parser.add_argument("--pid", type=int)
    return parser.parse_args()


def main():
    args = arguments()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    path = f"/v1/realtime?model={args.model}"
    given = contextlib.nullcontext((args.pid, args.port))
    with tempfile.TemporaryDirectory() as folder, echo() as bare, given if args.port else antiphon(Path(folder), args.model) as ours:
        servers = {"picows": (*bare, "/"), "antiphon": (*ours, path)}
        ratio, memory_kb = uvloop.run(measure(servers, args))
    print(f"ratio: {ratio:.2f} ({WANTED})")
    return ratio > RATIO_HOLD or memory_kb > IDLE_HOLD_KB


if __name__ == "__main__":
    sys.exit(main())
