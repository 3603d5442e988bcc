"""
How much do one client's largest requests delay the other clients?

A server in a process of its own gets one body of 32 MiB after another, each of a different shape: millions of tiny
messages, one huge string, deep schemas, escapes, numbers, whitespace. Meanwhile a second client, in a process of its own,
requests `/livez` and small responses. For each shape the table shows the status of the large request, its duration, the
server's CPU time, the growth of its memory in multiples of the body, and the 99th percentile and the maximum of the
second client's waits. The waits depend on what else the machine does: the first row is without any large request.

    python bench/hostile.py [--mib 32] [--only SHAPE ...] [--at-once 4]

With `--upstream` the model server is the hostile one: it answers one request with an endless flood of comments, empty
lines, words or fragments. The flood is measured until antiphon ends it, for at most 30 s.

    python bench/hostile.py --upstream [--seconds 30] [--only FLOOD ...]
"""

import os
import sys

sys.path[0] = os.path.join(os.path.dirname(__file__), "common")  # not this folder: its `types.py` and `queue.py` are not the library's

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import pathlib
import signal
import subprocess
import tempfile
import time

import aiohttp

import floods

SERVER = pathlib.Path(__file__).parent / "common" / "serve.py"
MODELS = [{"name": "parrot", "engine": "scripted", "answers": [{"lines": [{"text": "Yes."}]}]}]
SMALL_EVERY_S = 0.02
REST_S = 0.5


def repeated(before, unit, after, size, between=b","):
    """`before`, as many units as fit into `size` bytes, `after`."""
    count = max(1, (size - len(before) - len(after)) // (len(unit) + len(between)))
    return before + between.join([unit] * count) + after


def request_body(fields, size, unit, close=b"]}", between=b","):
    return repeated(b'{"model":"parrot",' + fields, unit, close, size, between)


def nested(size):
    """A tool whose schema is nested 60 levels deep, many times over."""
    schema = b'{"type":"object","properties":{"a":' * 27 + b'{"type":"string"}' + b"}}" * 27
    return request_body(b'"input":"hi","tools":[', size, b'{"type":"function","name":"f","parameters":' + schema + b"}")


MESSAGE = b'{"role":"user","content":"'
SHAPES = {
    "tiny messages": lambda size: request_body(b'"input":[', size, b'{"role":"user","content":"a"}'),
    "tiny messages, store false": lambda size: request_body(b'"store":false,"input":[', size, b'{"role":"user","content":"a"}'),
    "tiny messages, wrong at the end": lambda size: request_body(b'"input":[', size, b'{"role":"user","content":"a"}', b',{"role":7}]}'),
    "tiny parts": lambda size: request_body(b'"input":[{"role":"user","content":[', size, b'{"type":"input_text","text":"a"}', b"]}]}"),
    "tiny calls": lambda size: request_body(
        b'"input":[',
        size,
        b'{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"x"}',
    ),
    "tiny reasoning": lambda size: request_body(b'"input":[', size, b'{"type":"reasoning","summary":[]}'),
    "unknown items": lambda size: request_body(b'"input":[', size, b'{"type":"x"}'),
    "items that are numbers": lambda size: request_body(b'"input":[', size, b"1"),
    "items that are empty": lambda size: request_body(b'"input":[', size, b"{}"),
    "item references": lambda size: request_body(b'"input":[', size, b'{"type":"item_reference","id":"msg_1"}'),
    "tools": lambda size: request_body(b'"input":"hi","tools":[', size, b'{"type":"function","name":"f","parameters":{}}'),
    "deep tools": nested,
    "one wide tool": lambda size: request_body(
        b'"input":"hi","tools":[{"type":"function","name":"f","parameters":{"enum":[', size, b'"a"', b"]}}]}"
    ),
    "one schema": lambda size: request_body(
        b'"input":"hi","text":{"format":{"type":"json_schema","name":"f","schema":{"enum":[', size, b'"a"', b"]}}}}"
    ),
    "metadata": lambda size: request_body(b'"input":"hi","metadata":{', size, b'"a":"b"', b"}}"),
    "unknown field, array": lambda size: request_body(b'"input":"hi","x":[', size, b"[]", b"]}"),
    "unknown field, numbers": lambda size: request_body(b'"input":"hi","x":[', size, b"1.5e3", b"]}"),
    "unknown fields": lambda size: (
        b'{"model":"parrot","input":"hi"' + b"".join(b',"x%d":1' % number for number in range(size // 12)) + b"}"
    ),
    "the same field": lambda size: request_body(b'"input":"hi",', size, b'"user":"a"', b"}"),
    "one long word": lambda size: request_body(b'"input":"', size, b"a" * 1000, b'"}', b""),
    "long items": lambda size: request_body(b'"input":[', size, MESSAGE + b"a" * 1_000_000 + b'"}'),
    "commas in text": lambda size: request_body(b'"input":[', size, MESSAGE + b"{,}[,]" * 160_000 + b'"}'),
    "escapes": lambda size: request_body(b'"input":[', size, MESSAGE + b"\\u0041" * 160_000 + b'"}'),
    "quotes": lambda size: request_body(b'"input":[', size, MESSAGE + b'\\"' * 500_000 + b'"}'),
    "one emoji": lambda size: request_body(b'"input":[', size, MESSAGE + "😀".encode() + b"a" * 5_000_000 + b'"}'),
    "text of other scripts": lambda size: request_body(b'"input":[', size, MESSAGE + "語".encode() * 330_000 + b'"}'),
    "2,000 messages": lambda size: request_body(b'"input":[', size, MESSAGE + b"word " * (size // 10_000 - 10) + b'"}'),
    "picture": lambda size: request_body(
        b'"input":[{"role":"user","content":[',
        size,
        b'{"type":"input_image","image_url":"data:image/png;base64,' + b"iVBORw0KGgoAAAAN" * 60_000 + b'"}',
        b"]}]}",
    ),
    "outputs of tools": lambda size: request_body(
        b'"input":[',
        size,
        b'{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},'
        b'{"type":"function_call_output","call_id":"c","output":"' + b"line\\n" * 20_000 + b'"}',
    ),
    "instructions": lambda size: request_body(b'"input":"hi","instructions":"', size, b"a" * 1000, b'"}', b""),
    "white space": lambda size: request_body(b'"input":"hi"', size, b" " * 1000, b"}", b""),
    "brackets": lambda size: b"[" * size,
    "no JSON": lambda size: b'"' * size,
    "no end": lambda size: request_body(b'"input":[', size, b'{"role":"user","content":"a"}', b""),
    "not UTF-8": lambda size: request_body(b'"input":"', size, b"\xff" * 1000, b'"}', b""),
}

# As many values as the server accepts, in as little text as possible.
VALUES_LIMIT = 100_000


def at_limit(build):
    """The largest body of a shape that the server accepts."""
    low, high = 1000, 8 << 20
    while high - low > 200:
        middle = (low + high) // 2
        body = build(middle)
        if body.count(b",") + body.count(b"[") + body.count(b"{") < VALUES_LIMIT:
            low = middle
        else:
            high = middle
    return build(low)


for name in ("tiny messages", "tiny parts", "tiny calls", "tiny reasoning", "unknown items", "tools", "deep tools", "one wide tool"):
    SHAPES[f"{name}, at the limit"] = lambda _size, build=SHAPES[name]: at_limit(build)


class Watched:
    """The server's process, seen from outside."""

    def __init__(self, process):
        self.pid = process.pid
        self.address = process.stdout.readline().decode().strip().removeprefix("http://").split(":")

    def _status_mib(self, field):
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split(field + ":")[1].split()[0]) / 1024

    def memory_mib(self):
        return self._status_mib("VmRSS")

    def peak_mib(self):
        return self._status_mib("VmHWM")

    def reset_peak(self):
        pathlib.Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def cpu_s(self):
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def read_answer(reader):
    """The status and the body of one answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head:
        body = await reader.readuntil(b"\r\n0\r\n\r\n")
    else:
        body = await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
    return int(head.split()[1]), body


async def observe(address, request_bytes, waits_ms, stop):
    """Send a request again and again, and note how long each response takes."""
    reader, writer = await asyncio.open_connection(*address)
    while not stop.is_set():
        started_at = time.monotonic()
        writer.write(request_bytes)
        await read_answer(reader)
        waits_ms.append((time.monotonic() - started_at) * 1000)
        await asyncio.sleep(SMALL_EVERY_S)
    writer.close()


def observer(address, pipe):
    """The second client: `True` from the pipe starts it, `False` makes it send its waits, until the pipe closes."""
    small = b'{"model":"parrot","input":"hi","store":false}'
    requests = {
        "livez": b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "small": b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(small) + small,
    }

    async def round():
        stop = asyncio.Event()
        waits = {name: [] for name in requests}
        async with asyncio.TaskGroup() as tasks:
            for name, request_bytes in requests.items():
                tasks.create_task(observe(address, request_bytes, waits[name], stop))
            await asyncio.to_thread(pipe.recv)
            stop.set()
        return waits

    with contextlib.suppress(EOFError):
        while pipe.recv():
            pipe.send(asyncio.run(round()))


async def send_large(address, path, body):
    reader, writer = await asyncio.open_connection(*address, limit=1 << 30)
    writer.write(b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(body)))
    started_at = time.monotonic()
    writer.write(body)
    try:
        status, answer = await read_answer(reader)
    except (ConnectionError, asyncio.IncompleteReadError):
        status, answer = 0, b""
    writer.transport.abort()
    return status, answer, time.monotonic() - started_at


async def attack(address, path, body, at_once):
    async with asyncio.TaskGroup() as tasks:
        sent = [tasks.create_task(send_large(address, path, body)) for _ in range(at_once)]
    return [task.result() for task in sent]


def code_of(status, answer):
    if status == 200:
        return "200"
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return f"{status} {json.loads(answer)['error']['code']}"
    return str(status)


def p99(values):
    return sorted(values)[int(0.99 * (len(values) - 1))] if values else 0.0


def measure(server, pipe, path, body, at_once):
    """One row: the server's answer and costs, and how long the second client waited."""
    server.reset_peak()
    memory_mib, cpu_s = server.memory_mib(), server.cpu_s()
    pipe.send(True)
    time.sleep(REST_S)
    results = asyncio.run(attack(server.address, path, body, at_once)) if body else []
    time.sleep(REST_S)
    pipe.send(False)
    waits = pipe.recv()
    growth = (server.peak_mib() - memory_mib) / (len(body) * at_once / (1 << 20)) if body else 0.0
    statuses = ", ".join(sorted({code_of(status, answer) for status, answer, _ in results})) or "-"
    took_s = max((took_s for *_, took_s in results), default=0.0)
    columns = [statuses, f"{took_s:.2f}", f"{server.cpu_s() - cpu_s:.2f}", f"{growth:.1f}"]
    columns += [f"{figure:.0f}" for name in ("livez", "small") for figure in (p99(waits[name]), max(waits[name]))]
    return columns


async def ask_flood(address, name, seconds):
    """How a response from the hostile model server ends, and how long the flood lasts."""
    url = f"http://{':'.join(address)}/v1"
    started_at = time.monotonic()
    try:
        async with asyncio.timeout(seconds), aiohttp.ClientSession() as session:
            status = await (ask_socket if name in floods.SOCKETS else ask_stream)(session, url, name)
    except TimeoutError:
        status = "no end"
    return status, time.monotonic() - started_at


async def ask_stream(session, url, name):
    body = {"model": name, "input": "hi", "stream": True, "store": False}
    async with session.post(f"{url}/responses", json=body, read_bufsize=1 << 20) as reply:
        if reply.status != 200:
            return code_of(reply.status, await reply.read())
        end, tail = "no end", b""
        async for piece in reply.content.iter_any():
            for status in ("failed", "incomplete"):
                end = status if f"event: response.{status}\n".encode() in tail + piece else end
            tail = piece[-64:]
    return end


async def ask_socket(session, url, name):
    async with session.ws_connect(f"{url}/realtime?model={name}") as socket:
        await socket.send_json({"type": "response.create"})
        async for message in socket:
            event = json.loads(message.data)
            if event["type"] == "response.done":
                return f"{event['response']['status']}"
            if event["type"] == "error":
                return f"error {event['error']['code']}"
    return "closed"


def measure_flood(server, pipe, name, seconds):
    """One row: how a flood ended, its costs, and how long the second client waited."""
    server.reset_peak()
    memory_mib, cpu_s = server.memory_mib(), server.cpu_s()
    pipe.send(True)
    time.sleep(REST_S)
    end, took_s = asyncio.run(ask_flood(server.address, name, seconds)) if name else ("-", 0.0)
    time.sleep(REST_S)
    pipe.send(False)
    waits = pipe.recv()
    columns = [end, f"{took_s:.1f}", f"{server.cpu_s() - cpu_s:.1f}", f"{server.peak_mib() - memory_mib:.0f}"]
    return columns + [f"{figure:.0f}" for waiter in ("livez", "small") for figure in (p99(waits[waiter]), max(waits[waiter], default=0.0))]


def upstream_models(port):
    """The models behind the hostile server, one for each flood."""
    streams = [{"name": name, "engine": "chat", "quirks": "generic"} for name in floods.STREAMS]
    sockets = [{"name": name, "engine": "realtime"} for name in floods.SOCKETS]
    return [
        {**model, "base_url": f"http://127.0.0.1:{port}/{model['name'].replace(' ', '-')}", "retries": 0} for model in streams + sockets
    ]


def print_floods(server, pipe, options):
    print("| flood | ends as | s | CPU s | memory, MiB | livez p99 ms | worst | small p99 ms | worst |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|")
    for name in ["", *floods.STREAMS, *floods.SOCKETS]:
        if not name or not options.only or name in options.only:
            print(f"| {name or 'none'} | " + " | ".join(measure_flood(server, pipe, name, options.seconds)) + " |", flush=True)


def print_shapes(server, pipe, options):
    print("| shape | status | s | CPU s | memory, x body | livez p99 ms | worst | small p99 ms | worst |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|")
    for shape, build in {"none": None, **SHAPES}.items():
        if shape == "none" or not options.only or shape in options.only:
            body = build(options.mib << 20)[: options.mib << 20] if build else b""
            row = measure(server, pipe, options.path, body, options.at_once)
            print(f"| {shape} | " + " | ".join(row) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=32)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--path", default="/v1/responses")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--upstream", action="store_true")
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    flags = {"server.port": 0, "logging.level": "error", "models": MODELS}
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory())
        if options.upstream:
            upstream = stack.enter_context(subprocess.Popen([sys.executable, floods.__file__], stdout=subprocess.PIPE))
            stack.callback(upstream.kill)
            flags["models"] = MODELS + upstream_models(int(upstream.stdout.readline()))
        process = subprocess.Popen([sys.executable, SERVER, home, json.dumps(flags)], stdout=subprocess.PIPE)
        server = Watched(process)
        ours, theirs = multiprocessing.Pipe()
        other = multiprocessing.get_context("spawn").Process(target=observer, args=(server.address, theirs), daemon=True)
        other.start()
        try:
            (print_floods if options.upstream else print_shapes)(server, ours, options)
            stored = sum(file.stat().st_size for file in pathlib.Path(home).rglob("*") if file.is_file())
            print(f"\nAt the end: {server.memory_mib():.0f} MiB in memory, {stored / (1 << 20):.0f} MiB in the home folder.")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


if __name__ == "__main__":
    main()
