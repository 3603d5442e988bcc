"""
What does a turn of an agent's tool loop cost over HTTP and over a WebSocket, without the engine?

    python bench/websocket_mode.py [--turns 30] [--loops 10] [--output-kib 4]

A scripted engine calls a tool at once in every turn; the client sends a result of some KiB and the id of the previous response. The server
runs in a process of its own, with a store in SQLite. The table shows the milliseconds from sending a request to the end of its response,
as the median of all turns and of the first and the last five turns of the loops, which shows the growth with the conversation, and the
server's CPU time per turn.
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

PROGRAM = """
import json, pathlib, sys
from antiphon.config.load import load
from antiphon.server.processes.run import serve
home = pathlib.Path(sys.argv[1])
flags = {"server.port": 0, "logging.level": "error", "models": json.loads(sys.argv[2])}
config = load(flags, None, {"HOME": str(home)}, home, system_file=home / "none.toml").config
serve(config, on_ready=lambda url, _access: print(url, flush=True))
"""
MODELS = [{"name": "m", "engine": "scripted", "answers": [{"lines": [{"call": "read_file", "arguments": {"path": "a.py"}}]}]}]
TOOLS = [{"type": "function", "name": "read_file", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}]
PARTS = (slice(None), slice(5), slice(-5, None))
LAST = ("response.completed", "response.failed", "response.incomplete")

Ask = Callable[[dict[str, object]], Awaitable[dict]]


@asynccontextmanager
async def http(url: str) -> AsyncIterator[Ask]:
    """Each turn is a streamed request over one persistent connection."""
    async with aiohttp.ClientSession(read_bufsize=1 << 20) as session:

        async def ask(body: dict[str, object]) -> dict:
            async with session.post(f"{url}/v1/responses", json={**body, "stream": True}) as reply:
                async for line in reply.content:
                    if line.startswith(b"data: ") and (event := json.loads(line[6:]))["type"] in LAST:
                        last = event["response"]
                return last

        yield ask


@asynccontextmanager
async def websocket(url: str) -> AsyncIterator[Ask]:
    """All turns go over one WebSocket."""
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{url}/v1/responses", max_msg_size=0) as socket:

        async def ask(body: dict[str, object]) -> dict:
            await socket.send_str(json.dumps({"type": "response.create", **body}))
            while (event := json.loads((await socket.receive()).data))["type"] not in LAST:
                assert event["type"] != "error", event
            return event["response"]

        yield ask


async def loop(ask: Ask, turns: int, result: str, *, store: bool) -> list[float]:
    """The milliseconds of each turn of a tool loop."""
    body: dict[str, object] = {"model": "m", "store": store, "tools": TOOLS, "input": "Read all files."}
    times = []
    for _ in range(turns):
        started_at = time.perf_counter()
        response = await ask(body)
        times.append((time.perf_counter() - started_at) * 1000)
        (call,) = response["output"]
        output = [{"type": "function_call_output", "call_id": call["call_id"], "output": result}]
        body = {**body, "input": output, "previous_response_id": response["id"]}
    return times


def cpu_s(pid: int) -> float:
    """The seconds of CPU that a process has used."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def measure(arguments: argparse.Namespace, home: str) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, home, json.dumps(MODELS), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    result = "x = 1\n" * (arguments.output_kib * 1024 // 6)
    modes = [("HTTP, stored", http, True), ("WebSocket, stored", websocket, True), ("WebSocket, not stored", websocket, False)]
    print(f"{arguments.loops} loops of {arguments.turns} turns, results of {arguments.output_kib} KiB; milliseconds a turn\n")
    print(f"{'':24}{'median':>9}{'first 5':>9}{'last 5':>9}{'CPU':>9}")
    try:
        loops: dict[str, list[list[float]]] = {name: [] for name, _, _ in modes}
        used_s = dict.fromkeys(loops, 0.0)
        for _ in range(arguments.loops):  # alternating, so that a busy moment of the machine affects all of them
            for name, connect, store in modes:
                before_s = cpu_s(process.pid)
                async with connect(url) as ask:
                    loops[name].append(await loop(ask, arguments.turns, result, store=store))
                used_s[name] += cpu_s(process.pid) - before_s
        for name, runs in loops.items():
            columns = [statistics.median(each for times in runs for each in times[part]) for part in PARTS]
            cpu_ms = used_s[name] * 1000 / (arguments.loops * arguments.turns)
            print(f"{name:24}" + "".join(f"{value:9.2f}" for value in [*columns, cpu_ms]))
    finally:
        process.terminate()
        await process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--loops", type=int, default=10)
    parser.add_argument("--output-kib", type=int, default=4)
    with tempfile.TemporaryDirectory() as home:
        asyncio.run(measure(parser.parse_args(), home))


if __name__ == "__main__":
    main()
