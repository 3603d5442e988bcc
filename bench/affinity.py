"""
How often do upstreams find a conversation in their cache, with and without affinity?

    python bench/affinity.py [REQUESTS] [SEED]

Four upstreams with eight slots each cache the forty conversations that they answered last. The first token takes 75 ms for a conversation
in the cache and 450 ms for any other; the rest of the answer takes 375 ms on average. Turns of 120 conversations arrive at random, some
conversations much more often than others (Zipf, 1.1), and every policy gets the same sequence. The upstreams are four times as fast as real
servers, so 50 requests a second stand for 12.5.

The upstreams are scripted, so the figures belong to a model of servers; the balancing is the real one.
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import asyncio
import json
import os
import random
import tempfile
import time
from collections import OrderedDict
from itertools import accumulate
from pathlib import Path

UPSTREAMS, SLOTS, CACHE_SIZE = 4, 8, 40
CONVERSATIONS, ZIPF = 120, 1.1
HIT_S, MISS_S, ANSWER_S = 0.075, 0.45, 0.375
RATES = (24, 50)
POLICIES = ("least_outstanding", "affinity")
SERVE = Path(__file__).parent / "common" / "serve.py"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def event(delta, finish=None):
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).encode() + b"\n\n"


class Upstream:
    """A chat server with slots, and a cache of the conversations that it answered last."""

    def __init__(self):
        self.slots = asyncio.Semaphore(SLOTS)
        self.cache = OrderedDict()
        self.hits = self.requests = 0
        self.port = 0

    async def listen(self):
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def serve(self, reader, writer):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
            request = json.loads(await reader.readexactly(length) or b"{}")
            if "messages" not in request:
                writer.write(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            else:
                await self.answer(request["messages"], writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the benchmark is over
        finally:
            writer.close()

    async def answer(self, messages, writer):
        conversation, answer_s = messages[0]["content"], float(messages[-1]["content"].split()[-1])
        async with self.slots:
            is_hit = conversation in self.cache
            self.hits += is_hit
            self.requests += 1
            self.cache[conversation] = True
            self.cache.move_to_end(conversation)
            if len(self.cache) > CACHE_SIZE:
                self.cache.popitem(last=False)
            await asyncio.sleep(HIT_S if is_hit else MISS_S)
            writer.write(HEAD + event({"content": "Well,"}))
            await asyncio.sleep(answer_s)
            writer.write(event({"content": " yes."}) + event({}, "stop") + b"data: [DONE]\n\n")


def random_turns(requests, rate, seed):
    """For each turn: when it arrives, its conversation, and how long its answer takes."""
    source = random.Random(seed)
    weights = [*accumulate(1 / (rank + 1) ** ZIPF for rank in range(CONVERSATIONS))]
    times = accumulate(source.expovariate(rate) for _ in range(requests))
    return [(at, source.choices(range(CONVERSATIONS), cum_weights=weights)[0], source.expovariate(1 / ANSWER_S)) for at in times]


def percentile(times, percent):
    return times[min(len(times) * percent // 100, len(times) - 1)]


async def take_turn(port, conversation, answer_s):
    """Seconds to the first token of a turn."""
    turns = [
        {"role": "user", "content": f"Conversation {conversation}"},
        {"role": "assistant", "content": "Well, yes."},
        {"role": "user", "content": f"Take {answer_s:.4f}"},
    ]
    body = json.dumps({"model": "m", "stream": True, "store": False, "input": turns}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    started_at = time.perf_counter()
    writer.write(b"POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nconnection: close\r\n")
    writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
    await reader.readuntil(b"response.output_text.delta")
    first_s = time.perf_counter() - started_at
    await reader.read()
    writer.close()
    return first_s


async def replay(policy, turns, home):
    """The cache hit rate of a policy, and its sorted times to the first token."""
    upstreams = [Upstream() for _ in range(UPSTREAMS)]
    servers = [await upstream.listen() for upstream in upstreams]
    tables = [{"base_url": f"http://127.0.0.1:{each.port}/v1", "concurrency": 4 * SLOTS, "affinity_floor": SLOTS} for each in upstreams]
    model = {"name": "m", "engine": "chat", "upstreams": tables, "balance": policy}
    flags = {"models": [model], "server.port": 0, "store.url": "memory", "logging.level": "error", "speech.enabled": False}
    program = (sys.executable, str(SERVE), str(home), json.dumps(flags))
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path[1:])}
    server = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE, env=paths)
    try:
        port = int((await server.stdout.readline()).decode().strip().rpartition(":")[2])
        started_at = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            replies = []
            for at, conversation, answer_s in turns:
                await asyncio.sleep(max(0, started_at + at - time.perf_counter()))
                replies.append(tasks.create_task(take_turn(port, conversation, answer_s)))
    finally:
        server.terminate()
        await server.wait()
    for each in servers:
        each.close()
    return sum(each.hits for each in upstreams) / sum(each.requests for each in upstreams), sorted(reply.result() for reply in replies)


async def main():
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    print(f"{requests} turns of {CONVERSATIONS} conversations, {UPSTREAMS} upstreams that cache {CACHE_SIZE} each\n")
    print(f"{'turns a second':<20}{'balance':<20}{'hits':>8}{'first token: p50':>18}{'p99':>10}")
    for rate in RATES:
        turns = random_turns(requests, rate, seed)
        for policy in POLICIES:
            with tempfile.TemporaryDirectory() as home:
                hits, times = await replay(policy, turns, Path(home))
            print(f"{rate:<20}{policy:<20}{hits:>8.1%}{percentile(times, 50):>16.2f} s{percentile(times, 99):>8.2f} s")


if __name__ == "__main__":
    asyncio.run(main())
