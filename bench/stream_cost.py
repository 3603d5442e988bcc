"""
What does a streamed event cost in front of a chat server, beside nginx as a byte proxy and LiteLLM's proxy?

All stand before the same scripted upstream, in one run. CPU is read from the scheduler's own account of each server's processes, in
nanoseconds, and divided by the tokens that went through; load comes from a process of its own. Medians of several rounds.

    python bench/stream_cost.py

nginx is looked for on the PATH; LiteLLM where LITELLM says (`python -m venv x; x/bin/pip install 'litellm[proxy]'; LITELLM=x/bin/litellm`).
What is not there is left out, and said.
"""

import sys

HERE = sys.path[0]
del sys.path[0]  # this folder: its `types.py` is not the standard library's

import asyncio
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import uvloop

ROUNDS = 5
LOADS = ((20, 300), (100, 150))  # streams, tokens each; 5 ms between tokens
WHOLE = 300
UPSTREAM_PORT = 9100
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# Processes, and what they have cost


def tree(pid):
    """A process and all that came of it."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [pid, *(each for child in children.read_text().split() for each in tree(int(child)))]


def cpu_ns(pid):
    """Nanoseconds of processor time that the process and its children have had."""
    total = 0
    for each in tree(pid):
        for task in Path(f"/proc/{each}/task").iterdir():
            with contextlib.suppress(OSError):
                total += int((task / "schedstat").read_text().split()[0])
    return total


def memory_mb(pid):
    pages = sum(int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in tree(pid))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def answers(port, path):
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}{path}").read()
    except urllib.error.HTTPError:
        return True  # whatever it says, it is there
    except OSError:
        return False
    return True


@contextlib.contextmanager
def running(command, port, path="/", **more):
    """The process, once something answers at its port."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)
    try:
        for _ in range(1200):
            if answers(port, path):
                break
            if process.poll() is not None:
                raise SystemExit(f"{command[0]} ended before it answered")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


# The load


class Stream(asyncio.Protocol):
    """One request after the other on one connection; notes when the first word and the end came."""

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


async def load(port, request, streams, each, first, end):
    loop = asyncio.get_running_loop()
    made = [(await loop.create_connection(lambda: Stream(request, first, end), "127.0.0.1", port))[1] for _ in range(streams)]
    times = []
    for _ in range(each):
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


def measured(pid, port, path, streams, tokens):
    """Nanoseconds of CPU a token, and the times to the first token."""
    request = http(path, body(path, tokens, True), port)
    before = cpu_ns(pid)
    times = uvloop.run(load(port, request, streams, 1, b" token", b"\r\n0\r\n\r\n"))
    return (cpu_ns(pid) - before) / (streams * tokens), times


def whole_ns(pid, port, path):
    request = http(path, body(path, 20, False), port)
    before = cpu_ns(pid)
    uvloop.run(load(port, request, 4, WHOLE // 4, b"token", b"}"))
    return (cpu_ns(pid) - before) / WHOLE


# Who is measured


@contextlib.contextmanager
def nginx(folder):
    port = free_port()
    (folder / "nginx.conf").write_text(
        f"""daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log /dev/null;
        events {{ worker_connections 4096; }}
        http {{ access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
          uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
          upstream mock {{ server 127.0.0.1:{UPSTREAM_PORT}; keepalive 256; }}
          server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://mock; proxy_http_version 1.1;
            proxy_set_header Connection ""; proxy_buffering off; }} }} }}"""
    )
    with running([shutil.which("nginx"), "-c", str(folder / "nginx.conf"), "-e", "/dev/null"], port) as pid:
        yield pid, port, CHAT


@contextlib.contextmanager
def antiphon(folder):
    port = free_port()
    (folder / "antiphon.toml").write_text(
        f'[store]\nurl = "memory"\n[logging]\nlevel = "warning"\n'
        f'[[models]]\nname = "mock-*"\nengine = "chat"\nbase_url = "http://127.0.0.1:{UPSTREAM_PORT}/v1"\nconcurrency = 2000\n'
    )
    command = [sys.executable, "-m", "antiphon", "serve", "--port", str(port)]
    with running(command, port, "/readyz", cwd=folder, env=os.environ | {"ANTIPHON_HOME": str(folder)}) as pid:
        yield pid, port, RESPONSES


@contextlib.contextmanager
def litellm(folder):
    port = free_port()
    upstream = {"model": "hosted_vllm/mock-1", "api_base": f"http://127.0.0.1:{UPSTREAM_PORT}/v1", "api_key": "none"}
    upstream["use_chat_completions_api"] = True  # else it asks the upstream for Responses
    config = {"model_list": [{"model_name": "mock-1", "litellm_params": upstream}]}
    (folder / "litellm.yaml").write_text(json.dumps(config))
    command = [os.environ["LITELLM"], "--config", str(folder / "litellm.yaml"), "--port", str(port), "--host", "127.0.0.1"]
    environ = os.environ | {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}  # it listens here only, and serves no one else
    with running(command, port, "/health/liveliness", env=environ) as pid:
        yield pid, port, RESPONSES


@contextlib.contextmanager
def directly(_folder):
    yield None, UPSTREAM_PORT, CHAT


def candidates():
    if not os.environ.get("SKIP"):
        yield "antiphon", antiphon
    if shutil.which("nginx"):
        yield "nginx", nginx
    else:
        print("nginx is not on the PATH: left out")
    if os.environ.get("LITELLM"):
        yield "LiteLLM", litellm
    else:
        print("LITELLM names no program: left out")


def quantile(times, share):
    return sorted(times)[min(len(times) - 1, int(len(times) * share))] * 1000


def row(name, setting):
    with tempfile.TemporaryDirectory() as folder, setting(Path(folder)) as (pid, port, path):
        measured(pid, port, path, 10, 50)
        costs, times = [], []
        for streams, tokens in LOADS:
            rounds = [measured(pid, port, path, streams, tokens) for _ in range(ROUNDS)]
            costs.append(statistics.median(cost for cost, _ in rounds))
            times += [each for _, one in rounds for each in one] if streams == LOADS[0][0] else []
        return name, costs, statistics.median(whole_ns(pid, port, path) for _ in range(3)), times, memory_mb(pid)


def main():
    upstream = [sys.executable, str(Path(HERE) / "upstreams" / "chat.py"), str(UPSTREAM_PORT)]
    with running(upstream, UPSTREAM_PORT, env=os.environ):
        request = http(CHAT, body(CHAT, 300, True), UPSTREAM_PORT)
        direct = [each for _ in range(ROUNDS) for each in uvloop.run(load(UPSTREAM_PORT, request, 20, 1, b" token", b"\r\n0\r\n\r\n"))]
        rows = [row(name, setting) for name, setting in candidates()]
    base = next((costs for name, costs, *_ in rows if name == "nginx"), None)
    loads = [f"{streams} streams" for streams, _ in LOADS]
    print(
        f"{'':10}"
        + "".join(f"{each + ', us a token':>26}" for each in loads)
        + f"{'whole, us':>12}{'first token +ms p50/p99':>26}{'MB':>7}"
    )
    for name, costs, whole, times, memory in rows:
        ratios = [f"{cost / 1000:.2f}" + (f" ({cost / of:.2f}x)" if base else "") for cost, of in zip(costs, base or costs, strict=True)]
        added = f"{quantile(times, 0.5) - quantile(direct, 0.5):.1f} / {quantile(times, 0.99) - quantile(direct, 0.99):.1f}"
        print(f"{name:10}" + "".join(f"{each:>26}" for each in ratios) + f"{whole / 1000:>12.0f}{added:>26}{memory:>7.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
