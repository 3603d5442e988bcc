"""
What does a streamed event cost in front of a chat server, translated to Responses, passed on as it is ("relaying"), and read and written as
Chat Completions ("translating"), beside nginx as a byte proxy, bare Python, and LiteLLM's proxy?

All stand before the same scripted upstream, in one run. CPU is read from the scheduler's own account of each server's processes, in
nanoseconds, and divided by the tokens that went through; load comes from a process of its own. Medians of several rounds.

    python bench/stream_cost.py

nginx is looked for on the PATH; LiteLLM where LITELLM says (`python -m venv x; x/bin/pip install 'litellm[proxy]'; LITELLM=x/bin/litellm`).
What is not there is left out, and said.
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import contextlib
import itertools
import json
import os
import shutil
import statistics
import tempfile
import urllib.request
from pathlib import Path

import uvloop

from measuring import (
    CHAT,
    RESPONSES,
    UPSTREAM_PORT,
    antiphon,
    body,
    cpu_ns,
    free_port,
    http,
    load,
    memory_mb,
    print_head,
    print_row,
    running,
    upstream,
)

ROUNDS = 5
LOADS = ((20, 300), (100, 150))  # streams, tokens each; 5 ms between tokens
WHOLE = 300


def measured(pid, port, path, streams, tokens):
    """Nanoseconds of CPU a token, the times to the first token, and those until the upstream was asked, in order."""
    request = http(path, body(path, tokens, True), port)
    began_at = []
    asked_at()  # those before
    before = cpu_ns(pid)
    times = uvloop.run(load(port, request, streams, 1, b" token", b"\r\n0\r\n\r\n", began_at.append))
    return (cpu_ns(pid) - before) / (streams * tokens), times, [at - began_at[0] for at in asked_at()]


def asked_at():
    with urllib.request.urlopen(f"http://127.0.0.1:{UPSTREAM_PORT}/asked") as reply:
        return json.load(reply)


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
def relaying(folder):
    """Chat Completions, which are passed on as they are."""
    with antiphon(folder) as (pid, port, _):
        yield pid, port, CHAT


@contextlib.contextmanager
def translating(folder):
    """Chat Completions from a server that is sent no request as it came."""
    with antiphon(folder, options="abilities = { relays = [] }") as (pid, port, _):
        yield pid, port, CHAT


@contextlib.contextmanager
def litellm(folder):
    port = free_port()
    served = {"model": "hosted_vllm/mock-1", "api_base": f"http://127.0.0.1:{UPSTREAM_PORT}/v1", "api_key": "none"}
    served["use_chat_completions_api"] = True  # else it asks the upstream for Responses
    config = {"model_list": [{"model_name": "mock-1", "litellm_params": served}]}
    (folder / "litellm.yaml").write_text(json.dumps(config))
    command = [os.environ["LITELLM"], "--config", str(folder / "litellm.yaml"), "--port", str(port), "--host", "127.0.0.1"]
    environ = os.environ | {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}  # it listens here only, and serves no one else
    with running(command, port, "/health/liveliness", env=environ) as pid:
        yield pid, port, RESPONSES


@contextlib.contextmanager
def bare(_folder):
    port = free_port()
    with running([sys.executable, str(Path(__file__).parent / "references" / "bare.py"), str(port), str(UPSTREAM_PORT)], port) as pid:
        yield pid, port, RESPONSES


def candidates():
    if not os.environ.get("SKIP"):
        yield "antiphon", antiphon
        yield "relaying", relaying
        yield "translating", translating
    if shutil.which("nginx"):
        yield "nginx", nginx
    else:
        print("nginx is not on the PATH: left out")
    yield "bare", bare
    if os.environ.get("LITELLM"):
        yield "LiteLLM", litellm
    else:
        print("LITELLM names no program: left out")


def quantile(times, share):
    return sorted(times)[min(len(times) - 1, int(len(times) * share))] * 1000


def rows(servers):
    """
    Each server's name, costs, costs of a whole response, delays and memory.

    All take turns in each round: the machine's pace changes within minutes, and the first to be measured is dear.
    """
    runs = {name: {each: [] for each in LOADS} for name in servers}
    whole = {name: [] for name in servers}
    for where in servers.values():
        measured(*where, 10, 50)
    for streams_and_tokens, _ in itertools.product(LOADS, range(ROUNDS)):
        for name, where in servers.items():
            runs[name][streams_and_tokens].append(measured(*where, *streams_and_tokens))
    for _, (name, where) in itertools.product(range(3), servers.items()):
        if name != "bare":
            whole[name].append(whole_ns(*where))
    for name, (pid, *_) in servers.items():
        costs = [statistics.median(cost for cost, *_ in runs[name][load]) for load in LOADS]
        first = runs[name][LOADS[0]]
        times = [each for _, one, _ in first for each in one]
        delays = [statistics.median(nth) * 1000 for nth in zip(*(asked for *_, asked in first), strict=True)]
        yield name, costs, statistics.median(whole[name]) if whole[name] else None, delays, times, memory_mb(pid)


def main():
    with contextlib.ExitStack() as running, tempfile.TemporaryDirectory() as folder:
        running.enter_context(upstream())
        request = http(CHAT, body(CHAT, 300, True), UPSTREAM_PORT)
        direct = [each for _ in range(ROUNDS) for each in uvloop.run(load(UPSTREAM_PORT, request, 20, 1, b" token", b"\r\n0\r\n\r\n"))]
        servers = {}
        for name, setting in candidates():
            home = Path(folder, name)
            home.mkdir()
            servers[name] = running.enter_context(setting(home))
        found = [*rows(servers)]
    base = next((costs for name, costs, *_ in found if name == "nginx"), None)
    print_head(
        "",
        *(f"{streams} streams, µs a token" for streams, _ in LOADS),
        "whole, µs",
        "asked after: first, median, last",
        "first token, p50 / p99",
        "memory",
    )
    for name, costs, whole, delays, times, memory in found:
        ratios = [f"{cost / 1000:.2f}" + (f" ({cost / of:.2f}x)" if base else "") for cost, of in zip(costs, base or costs, strict=True)]
        added = f"{quantile(times, 0.5) - quantile(direct, 0.5):.1f} / {quantile(times, 0.99) - quantile(direct, 0.99):.1f} ms"
        asked = f"{delays[0]:.1f}, {delays[len(delays) // 2]:.1f}, {delays[-1]:.1f} ms"
        print_row(name, *ratios, "-" if whole is None else f"{whole / 1000:.0f}", asked, added, f"{memory:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
