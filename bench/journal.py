"""
How much more does an event of a background stream cost than one of a plain stream, and how many background streams fit on a core?

Clients read the same scripted responses, first as plain streams, then as background streams, of which every event is stored. The table
compares the server's CPU time, which includes the scripted engine's in both cases. The number of streams per core follows from the CPU time
of a stream at the given pace.

    python bench/journal.py [--streams 40] [--tokens 500] [--pace-ms 20] [--store postgres]
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

from measuring import RESPONSES, cpu_ns, http

sys.path.append(str(Path(__file__).parent))  # after the standard library
import crash


async def read(server, **fields):
    """Stream one response; returns the number of its events, and whether it was completed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(http(RESPONSES, {"model": "song", "input": "Sing.", "stream": True, **fields}, server.port))
    count, last = 0, "{}"
    while line := await reader.readline():
        if line.startswith(b"data: "):
            count, last = count + 1, line[6:]
            if line.startswith(b'data: {"type":"response.completed"'):
                break
    writer.close()
    return count, json.loads(last).get("type") == "response.completed"


async def measure(server, streams, **fields):
    """CPU microseconds per event, the share of a core, and the number of events of all streams."""
    before_ns, started_at = cpu_ns(server.process.pid), time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        reads = [tasks.create_task(read(server, **fields)) for _ in range(streams)]
    used_ns, elapsed_s = cpu_ns(server.process.pid) - before_ns, time.monotonic() - started_at
    if not all(is_complete for _, is_complete in (each.result() for each in reads)):
        raise SystemExit("a stream was not completed")
    events = sum(each.result()[0] for each in reads)
    return used_ns / 1000 / events, used_ns / 1e9 / elapsed_s, events


async def trial(options, store):
    with tempfile.TemporaryDirectory() as folder:
        server = crash.Server(Path(folder), store, 1)
        settings = Path(folder) / "antiphon.toml"
        answers = f'answers = [{{ lines = [{{ text = "la ", repeat = {options.tokens} }}] }}]'
        song = f'[[models]]\nname = "song"\nengine = "scripted"\npace_ms = {options.pace_ms}\n{answers}\n'
        settings.write_text(settings.read_text() + f"[background]\nrunning = {options.streams}\n" + song)
        await server.start()
        await measure(server, 2, background=True)  # without what is done only once
        plain = await measure(server, options.streams)
        background = await measure(server, options.streams, background=True)
        await server.stop()
    return plain, background


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--pace-ms", type=float, default=20)
    parser.add_argument("--store", default="sqlite")
    options = parser.parse_args()
    with crash.store_url(options.store) as url:
        plain, background = asyncio.run(trial(options, url))
    print(f"| {options.store}, {options.streams} streams, a token every {options.pace_ms:g} ms | plain | background |\n| --- | --- | --- |")
    print(f"| events | {plain[2]} | {background[2]} |")
    print(f"| CPU time per event | {plain[0]:.1f} us | {background[0]:.1f} us |")
    print(f"| share of a core | {100 * plain[1]:.0f} % | {100 * background[1]:.0f} % |")
    print(f"| streams per core, from that | {options.streams / plain[1]:.0f} | {options.streams / background[1]:.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
