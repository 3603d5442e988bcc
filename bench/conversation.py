"""
What does a turn of a long conversation cost?

One client takes 2,000 turns in one conversation, first with `conversation`, then with `previous_response_id`. A scripted model answers at
once, and each turn reads all earlier ones. The table shows the server's CPU time, averaged over the ten turns up to each mark, in all and
per item read, and the peak memory of its process.

    python bench/conversation.py [--turns 2000]

The time of a turn may grow with the items that the model must read, so the time per item must stay the same or fall.
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import argparse
import contextlib
import json
import os
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

from measuring import free_port

MARKS = (1, 100, 500, 1000, 2000)
AVERAGED_TURNS = 10
"""The number of turns that a mark's figures are the mean of."""

CONFIG = """
[logging]
level = "error"

[speech]
warm_up = false

[[models]]
name = "parrot"
engine = "scripted"
answers = [{ say = "Fine." }]
"""


@contextlib.contextmanager
def serving():
    """A server with a new store: its address and process id."""
    with tempfile.TemporaryDirectory() as folder:
        home, port = Path(folder), free_port()
        (home / "antiphon.toml").write_text(CONFIG)
        command = [sys.executable, "-m", "antiphon", "serve", "--port", str(port)]
        environ = os.environ | {"ANTIPHON_HOME": str(home / "data"), "XDG_CONFIG_HOME": str(home / "config")}
        with subprocess.Popen(command, cwd=home, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                while f":{port}" not in (line := process.stdout.readline()):
                    assert line, "the server did not start"
                yield f"http://127.0.0.1:{port}/v1", process.pid
            finally:
                process.terminate()


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.loads(reply.read())


def cpu_s(pid):
    """The CPU time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mb(pid):
    """The peak memory of a process."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def measure(uses_conversation, turns):
    """CPU and wall-clock milliseconds of a turn, and peak memory, at each mark."""
    figures = {}
    with serving() as (url, pid):
        link = {"conversation": post(f"{url}/conversations", {})["id"]} if uses_conversation else {}
        for turn in range(1, turns + 1):
            mark = next((mark for mark in MARKS if mark - AVERAGED_TURNS < turn <= mark), None)
            if mark is not None and (turn == mark - AVERAGED_TURNS + 1 or turn == 1):
                used_s, started_s, first = cpu_s(pid), time.perf_counter(), turn
            response = post(f"{url}/responses", {"model": "parrot", "input": f"How is turn {turn}?", **link})
            if not uses_conversation:
                link = {"previous_response_id": response["id"]}
            if turn == mark:
                count = turn - first + 1
                figures[mark] = ((cpu_s(pid) - used_s) / count * 1e3, (time.perf_counter() - started_s) / count * 1e3, peak_mb(pid))
    return figures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=MARKS[-1])
    turns = parser.parse_args().turns
    print("| | turn | CPU ms | ms | CPU µs per item read | peak MB |\n|---|---|---|---|---|---|")
    for name, uses_conversation in (("`conversation`", True), ("`previous_response_id`", False)):
        for mark, (cpu_ms, clock_ms, memory_mb) in measure(uses_conversation, turns).items():
            items = 2 * mark - 1
            per_item = f"{cpu_ms * 1e3 / items:.0f}" if mark >= 100 else ""
            print(f"| {name} | {mark:,} | {cpu_ms:.1f} | {clock_ms:.1f} | {per_item} | {memory_mb:.0f} |", flush=True)


if __name__ == "__main__":
    main()
