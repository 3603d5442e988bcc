"""
What does the server add to a tool's turn when it runs the tool itself, beside a loop in the client over the same engine?

    python bench/agent_loop.py [--loops 200] [--calls 3] [--together 100]

A scripted engine asks for a call at once in each of three turns, and answers in the fourth. In the client's loop the call is a function of
the client's, which answers at once and sends the result with `previous_response_id`: over HTTP and over a WebSocket. On the server the same
call is one of an MCP server on this machine, made with the library `mcp`, or of an operator's function in its process. The server runs in a
process of its own, with a store in SQLite; so does the MCP server, whose CPU time is not counted.

The table shows the milliseconds and the server's CPU time for each call, as the median of all loops, one after another; and for so many
loops at once, the milliseconds until all are answered, divided by their calls, and whether each response had all its calls.
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import tempfile
import textwrap
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp

from measuring import cpu_ns, free_port, print_head, print_row

PROGRAM = """
import json, pathlib, sys
from antiphon.config.load import load
from antiphon.server.processes.run import serve
home = pathlib.Path(sys.argv[1])
flags = {"server.port": 0, "logging.level": "error", **json.loads(sys.argv[2])}
config = load(flags, None, {"HOME": str(home)}, home, system_file=home / "none.toml").config
serve(config, on_ready=lambda url, _access: print(url, flush=True))
"""

MCP_PROGRAM = """
import sys
import uvicorn
from mcp.server.mcpserver import MCPServer

server = MCPServer("bench")

@server.tool()
def read_file(path: str) -> str:
    return "x" * 200

uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_config=None)
"""

FUNCTIONS = '''
def read_file(path: str) -> str:
    """Reads a file."""
    return "x" * 200
'''

LAST = ("response.completed", "response.failed", "response.incomplete")
CLIENT_TOOL = {"type": "function", "name": "read_file", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}


@asynccontextmanager
async def http(url):
    """Streamed requests over connections that are kept."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(read_bufsize=1 << 20, connector=connector) as session:

        async def ask(body):
            async with session.post(f"{url}/v1/responses", json={**body, "stream": True}) as reply:
                async for line in reply.content:
                    if line.startswith(b"data: ") and (event := json.loads(line[6:]))["type"] in LAST:
                        last = event["response"]
                return last

        yield ask


@asynccontextmanager
async def websocket(url):
    """All turns go over one WebSocket."""
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{url}/v1/responses", max_msg_size=0) as socket:

        async def ask(body):
            await socket.send_str(json.dumps({"type": "response.create", **body}))
            while (event := json.loads((await socket.receive()).data))["type"] not in LAST:
                assert event["type"] != "error", event
            return event["response"]

        yield ask


async def client_loop(ask, calls):
    """A loop in the client: it runs the call and asks again."""
    body = {"model": "m", "tools": [CLIENT_TOOL], "input": "Read all files."}
    for turn in range(calls):
        response = await ask(body)
        [call] = [item for item in response["output"] if item["type"] == "function_call"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "x" * 200}
        choice = {"tool_choice": "none"} if turn == calls - 1 else {}
        body = {"model": "m", "tools": [CLIENT_TOOL], "input": [result], "previous_response_id": response["id"], **choice}
    await ask({**body, "model": "end"})
    return calls


def server_loop(label):
    """A loop on the server, of one request; returns how many calls it made."""

    async def loop(ask, calls):
        tool = {"type": "mcp", "server_label": label, "require_approval": "never"}
        response = await ask({"model": label, "tools": [tool], "input": "Read all files.", "max_tool_calls": calls})
        return sum(item["type"] == "mcp_call" and item["status"] == "completed" for item in response["output"])

    return loop


LOOPS = {
    "client, HTTP": (http, client_loop),
    "client, WebSocket": (websocket, client_loop),
    "server, MCP, HTTP": (http, server_loop("remote")),
    "server, MCP, WebSocket": (websocket, server_loop("remote")),
    "server, function, HTTP": (http, server_loop("local")),
}


async def one_after_another(connect, loop, url, calls, loops, pid):
    """The milliseconds and the CPU microseconds for each call."""
    async with connect(url) as ask:
        for _ in range(5):
            await loop(ask, calls)
        times, before = [], cpu_ns(pid)
        for _ in range(loops):
            began_at = time.perf_counter()
            made = await loop(ask, calls)
            assert made == calls, made
            times.append((time.perf_counter() - began_at) * 1000 / calls)
        return statistics.median(times), (cpu_ns(pid) - before) / 1000 / loops / calls


async def together(connect, loop, url, calls, count):
    """The milliseconds for each call of so many loops at once, and how many of them had all their calls."""
    async with connect(url) as ask:
        began_at = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            made = [tasks.create_task(loop(ask, calls)) for _ in range(count)]
        return (time.perf_counter() - began_at) * 1000 / calls / count, sum(task.result() == calls for task in made)


@contextmanager
def servers(folder):
    """The addresses of the server and its pid, beside an MCP server."""
    port = free_port()
    (folder / "mine.py").write_text(textwrap.dedent(FUNCTIONS))
    call = {"call": "read_file", "arguments": {"path": "a.py"}}
    say = {"engine": "scripted", "answers": [{"lines": [{"text": "Done."}]}]}
    models = [
        {"name": "m", "engine": "scripted", "answers": [{"lines": [call]}]},
        {"name": "end", **say},
        *(
            {
                "name": label,
                "engine": "scripted",
                "answers": [{"when": "skipped", "to": "result", "say": "Done."}, {"lines": [{**call, "namespace": label}]}],
            }
            for label in ("remote", "local")
        ),
    ]
    settings = {
        "models": models,
        "tools.mcp": [{"label": "remote", "url": f"http://127.0.0.1:{port}/mcp"}],
        "tools.functions": [{"label": "local", "file": str(folder / "mine.py")}],
        "tools.code_interpreter.sandbox": "off",
        "speech.enabled": False,
    }
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path[1:])}
    mcp = subprocess.Popen([sys.executable, "-c", MCP_PROGRAM, str(port)], env=environment, stderr=subprocess.DEVNULL)
    server = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), json.dumps(settings)], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip(), server.pid
    finally:
        for process in (server, mcp):
            process.terminate()
            process.wait(20)


async def measure(url, pid, arguments):
    """Print the table."""
    print_head("loop", "ms a call", "server's CPU, us a call", f"{arguments.together} at once, ms a call", "with all calls")
    for name, (connect, loop) in LOOPS.items():
        ms, cpu_us = await one_after_another(connect, loop, url, arguments.calls, arguments.loops, pid)
        at_once, complete = "", ""
        if connect is http:  # a WebSocket makes one response at a time
            at_once_ms, made = await together(connect, loop, url, arguments.calls, arguments.together)
            at_once, complete = f"{at_once_ms:.2f}", f"{made} of {arguments.together}"
        print_row(name, f"{ms:.2f}", f"{cpu_us:.0f}", at_once, complete)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", type=int, default=200)
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--together", type=int, default=100)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as (url, pid):
        asyncio.run(measure(url, pid, arguments))


if __name__ == "__main__":
    main()
