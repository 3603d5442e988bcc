"""Shared by several benchmarks: processes and their CPU time and memory, and HTTP load."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


UPSTREAM_PORT = free_port()


# Processes, their CPU time and memory


def tree(pid):
    """A process and all its descendants."""
    children = []
    with contextlib.suppress(OSError):  # it has just ended
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in tree(int(child)))]


def own_ns(pid):
    """CPU time of a process in nanoseconds, without its children."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total


def cpu_ns(pid):
    """CPU time of a process and its descendants in nanoseconds."""
    return sum(own_ns(each) for each in tree(pid))


def busy_s():
    """Seconds of all cores that any program has used since the machine started."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid):
    pages = sum(int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in tree(pid))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def answers(port, path):
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}{path}").read()
    except urllib.error.HTTPError as error:
        return error.code != 503  # any other status shows that it is running
    except OSError:
        return False
    return True


@contextlib.contextmanager
def running(command, port, path="/", **more):
    """Run a program; yields its process id once it answers at its port."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)
    try:
        for _ in range(1200):
            if process.poll() is not None:
                raise SystemExit(f"{command[0]} ended before it answered")
            if answers(port, path):
                break
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def upstream():
    """The scripted chat server behind everything that is measured."""
    return running([sys.executable, str(Path(__file__).parents[1] / "references" / "chat.py"), str(UPSTREAM_PORT)], UPSTREAM_PORT)


@contextlib.contextmanager
def antiphon(folder, processes=1, options=""):
    """The server before the scripted upstream, whose model has these options too: its process, its port, and where to ask."""
    port = free_port()
    store = "memory" if processes == 1 else "sqlite"
    (folder / "antiphon.toml").write_text(
        f'[server]\nprocesses = {processes}\n[store]\nurl = "{store}"\n[logging]\nlevel = "warning"\n'
        f'[[models]]\nname = "mock-*"\nengine = "chat"\nbase_url = "http://127.0.0.1:{UPSTREAM_PORT}/v1"\nconcurrency = 2000\n{options}\n'
    )
    command = [sys.executable, "-m", "antiphon", "serve", "--port", str(port)]
    with running(command, port, "/readyz?wait_for=speech", cwd=folder, env=os.environ | {"ANTIPHON_HOME": str(folder)}) as pid:
        yield pid, port, RESPONSES


# The load


class Stream(asyncio.Protocol):
    """Sends one request after the other on one connection; notes the times of the first word and of the end."""

    def __init__(self, request, first, end):
        self.request, self.first, self.end = request, first, end

    def connection_made(self, transport):
        self.transport = transport
        self.loop = asyncio.get_running_loop()

    def ask(self):
        self.done = self.loop.create_future()
        self.tail, self.began_at, self.first_s = b"", time.perf_counter(), None
        self.transport.write(self.request)
        return self.done

    def data_received(self, received):
        seen = self.tail + received
        if self.first_s is None and self.first in seen:
            self.first_s = time.perf_counter() - self.began_at
        if seen.endswith(self.end):
            self.done.set_result(self.first_s)
        self.tail = seen[-64:] if self.first_s is not None else seen

    def connection_lost(self, _error):
        if not self.done.done():
            self.done.set_exception(ConnectionError("the server closed the connection"))


def http(path, body, port):
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\nauthorization: Bearer none\r\n"
    return f"{head}content-length: {len(payload)}\r\n\r\n".encode() + payload


async def load(port, request, streams, each, first, end, on_begin=lambda _at: None):
    loop = asyncio.get_running_loop()
    made = [(await loop.create_connection(lambda: Stream(request, first, end), "127.0.0.1", port))[1] for _ in range(streams)]
    times = []
    for _ in range(each):
        on_begin(time.perf_counter())
        times += await asyncio.wait_for(_all([one.ask() for one in made]), 120)
    for one in made:
        one.transport.close()
    return times


async def _all(futures):
    return [await future for future in futures]


def body(path, tokens, stream):
    if path == CHAT:
        return {"model": "mock-1", "stream": stream, "max_tokens": tokens, "messages": [{"role": "user", "content": "Count."}]}
    return {"model": "mock-1", "stream": stream, "max_output_tokens": tokens, "input": "Count.", "store": False}


# What is printed: tables in Markdown, which `tables.py` writes into the page of the benchmarks


def print_row(*cells):
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def print_head(*names):
    print_row(*names)
    print("|" + "---|" * len(names), flush=True)
