"""
Does a streamed event cost more with more streams, or with more processes?

antiphon's engine `chat` runs in front of a scripted chat server. CPU is the time of all server processes according to the scheduler, over a
few seconds in the middle of the streams, minus that of an idle server, per token that arrived; so the start and the end of a request are
not included. Medians of several rounds.

    python bench/scale.py

Waking up the process is expensive, and tokens that arrive together share that cost. So numbers of streams are compared at the same pace,
and a second, faster pace is shown as well.
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import uvloop

from measuring import RESPONSES, antiphon, cpu_ns, http, own_ns, tree, upstream

ROUNDS = 3
WINDOW_S = 3.0
RUNS = (  # processes, milliseconds between tokens, numbers of streams
    (1, 50, (1, 10, 100, 1_000)),
    (2, 50, (100, 1_000)),
    (1, 5, (1, 10, 100)),
    (2, 5, (100,)),
)
TOKEN = b'"delta":" token"'


class Endless(asyncio.Protocol):
    """A stream that is read until it is cut off; counts its tokens."""

    def __init__(self, request, counts):
        self.request, self.counts, self.tail = request, counts, b""

    def connection_made(self, transport):
        self.transport = transport
        transport.write(self.request)

    def data_received(self, received):
        seen = self.tail + received
        self.counts[self] = self.counts.get(self, 0) + seen.count(TOKEN)
        cut = seen.rfind(b"\n") + 1
        self.tail = seen[cut:]


def request(port, pace_ms):
    body = {"model": f"mock-{pace_ms}ms", "stream": True, "max_output_tokens": 10_000_000, "input": "Count.", "store": False}
    return http(RESPONSES, body | {"stream_options": {"include_obfuscation": False}}, port)


async def measure_window(pid, port, pace_ms, streams):
    """CPU nanoseconds a second with `streams` streams, tokens a second, and the share of the busiest process."""
    counts, loop = {}, asyncio.get_running_loop()
    request_bytes = request(port, pace_ms)
    connections = [(await loop.create_connection(lambda: Endless(request_bytes, counts), "127.0.0.1", port))[1] for _ in range(streams)]
    while len(counts) < streams or not all(counts.values()):  # noqa: ASYNC110 - nothing sets an event
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    pids = tree(pid)
    before, tokens, started_at = [own_ns(each) for each in pids], sum(counts.values()), time.perf_counter()
    await asyncio.sleep(WINDOW_S)
    spent = [own_ns(each) - then for each, then in zip(pids, before, strict=True)]
    took_s = time.perf_counter() - started_at
    arrived = sum(counts.values()) - tokens
    for connection in connections:
        connection.transport.abort()
    await asyncio.sleep(0.2)
    return sum(spent) / took_s, arrived / took_s, max(spent) / max(1, sum(spent))


def measure(pid, port, idle_ns, pace_ms, streams):
    rounds = [uvloop.run(measure_window(pid, port, pace_ms, streams)) for _ in range(ROUNDS)]
    costs = [(spent_ns - idle_ns) / tokens for spent_ns, tokens, _ in rounds]
    return statistics.median(costs), *(statistics.median(column) for column in list(zip(*rounds, strict=True))[1:])


def idle(pid):
    before = cpu_ns(pid)
    time.sleep(WINDOW_S)
    return (cpu_ns(pid) - before) / WINDOW_S


COLUMNS = (
    ("processes", 9),
    ("ms apart", 8),
    ("streams", 8),
    ("tokens/s", 9),
    ("of expected", 12),
    ("us a token", 11),
    ("to the row above", 17),
    ("busiest", 8),
)


def row(cells):
    print(" ".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True)), flush=True)


def run(processes, pace_ms, counts):
    with tempfile.TemporaryDirectory() as folder, antiphon(Path(folder), processes) as (pid, port, _):
        uvloop.run(measure_window(pid, port, 5, 20))
        idle_ns, above = idle(pid), None
        for streams in counts:
            cost, rate, busiest = measure(pid, port, idle_ns, pace_ms, streams)
            ratio = f"{cost / above:.2f}x" if above else ""
            share = rate * pace_ms / 1000 / streams
            row((processes, pace_ms, streams, f"{rate:.0f}", f"{share:.0%}", f"{cost / 1000:.2f}", ratio, f"{busiest:.0%}"))
            above = cost


def main():
    row([name for name, _ in COLUMNS])
    with upstream():
        for each in RUNS:
            run(*each)
    return 0


if __name__ == "__main__":
    sys.exit(main())
