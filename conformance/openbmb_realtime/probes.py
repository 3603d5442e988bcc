"""
Probe clients of the MiniCPM-o protocol, one for each mode, made from its description alone.

    python probes.py chat --url ws://127.0.0.1:8642 --say "Reply with exactly: test" [--whole] [--aloud answer.pcm]
    python probes.py audio --url ws://127.0.0.1:8642 --sound question.f32 [--seconds 10]
    python probes.py video --url ws://127.0.0.1:8642 --sound question.f32 --pictures one.jpg two.jpg [--seconds 10]

Sound is raw float32, 16 kHz to the server and 24 kHz from it. Every event is printed, with how long its sound is in place of the sound.
"""

import argparse
import asyncio
import base64
import json
import sys
import time
from pathlib import Path
from urllib.parse import urlencode

from websockets.asyncio.client import connect

DEADLINE_S = 30
CHUNK_BYTES = 16_000 * 4


class Probe:
    """One session; everything that the server says is kept in `events`."""

    def __init__(self, socket):
        self.socket, self.events, self.closed = socket, [], None

    async def send(self, kind, **fields):
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def read(self):
        async with asyncio.timeout(DEADLINE_S):
            event = json.loads(await self.socket.recv())
        self.events.append(event)
        return event

    async def until(self, *kinds, where=lambda _event: True):
        """Everything up to the first event of one of these types, or kinds of delta."""
        events = [await self.read()]
        while not ({events[-1]["type"], events[-1].get("kind")} & set(kinds) and where(events[-1])):
            events.append(await self.read())
        return events

    async def begin(self, **payload):
        """Wait for a place, and begin; what the server says of the session."""
        await self.until("session.queue_done")
        await self.send("session.init", payload=payload)
        return (await self.until("session.created"))[-1]

    async def ask(self, *messages, **options):
        """A turn in chat; its events."""
        await self.send("input.append", input={"messages": list(messages), **options})
        return await self.until("response.done")

    async def hear(self, floats, **more):
        """More sound, and what goes with it."""
        await self.send("input.append", input={"audio": encoded(floats), **more})

    async def end(self, **fields):
        """Say goodbye, and hear it; what the server says then."""
        await self.send("session.close", **fields)
        return (await self.until("session.closed"))[-1]


def probing(url, mode=None, headers=None, **query):
    """A WebSocket of that mode."""
    pairs = ({} if mode is None else {"mode": mode}) | query
    address = url.replace("http", "ws", 1).removesuffix("/v1") + "/v1/realtime"
    return connect(f"{address}?{urlencode(pairs)}" if pairs else address, additional_headers=headers, max_size=1 << 27)


def user(*parts):
    return {"role": "user", "content": parts[0] if parts and isinstance(parts[0], str) else list(parts)}


def encoded(content):
    return base64.b64encode(content).decode()


def text_of(events):
    return "".join(event["text"] for event in events if event.get("kind") == "text")


def sound_of(events):
    return b"".join(base64.b64decode(event["audio"]) for event in events if event.get("kind") == "audio")


def told(event):
    """An event for a person."""
    audio = event.get("audio")
    return json.dumps(event | ({"audio": f"{len(base64.b64decode(audio)) / 96_000:.2f} s"} if isinstance(audio, str) else {}))


async def chat(arguments):
    """One question, and its answer."""
    async with probing(arguments.url, "chat") as socket:
        probe = Probe(socket)
        await probe.begin()
        aloud = {"tts": {"enabled": arguments.aloud is not None}}
        events = await probe.ask(user(arguments.say), streaming=not arguments.whole, generation={"max_new_tokens": 64}, **aloud)
        await probe.end(reason="user_stop")
    return probe.events, base64.b64decode(events[-1]["audio"] or "") or sound_of(events)


async def duplex(arguments, sound, pictures):
    """A recording at the pace of speech, a second at a time, with a picture for each, and then silence."""
    async with probing(arguments.url, arguments.mode) as socket:
        probe = Probe(socket)
        await probe.begin(system_prompt="You are a helpful assistant.")
        began = time.monotonic()
        for second in range(arguments.seconds):
            piece = sound[second * CHUNK_BYTES : (second + 1) * CHUNK_BYTES]
            frames = {"video_frames": [encoded(pictures[second % len(pictures)])]} if pictures else {}
            await probe.hear(piece.ljust(CHUNK_BYTES, b"\0"), **frames)
            while (rest_s := began + (second + 1) * arguments.pace - time.monotonic()) > 0:
                try:
                    async with asyncio.timeout(rest_s):
                        await probe.read()
                except TimeoutError:
                    break
        await probe.end(reason="user_stop")
    return probe.events, sound_of(probe.events)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    modes = parser.add_subparsers(dest="mode", required=True)
    for mode in ("chat", "audio", "video"):
        modes.add_parser(mode).add_argument("--url", default="ws://127.0.0.1:8642")
        modes.choices[mode].add_argument("--aloud", type=Path, help="where the answer's sound goes")
    asking = modes.choices["chat"]
    asking.add_argument("--say", default="Reply with exactly: test")
    asking.add_argument("--whole", action="store_true", help="all of the answer at once")
    for mode in ("audio", "video"):
        modes.choices[mode].add_argument("--sound", type=Path, required=True)
        modes.choices[mode].add_argument("--seconds", type=int, default=10)
        modes.choices[mode].add_argument("--pace", type=float, default=1.0, help="seconds in which a second of sound is sent")
    modes.choices["video"].add_argument("--pictures", type=Path, nargs="+", required=True)
    arguments = parser.parse_args()
    if arguments.mode == "chat":
        events, sound = asyncio.run(chat(arguments))
    else:
        pictures = [path.read_bytes() for path in getattr(arguments, "pictures", ())]
        events, sound = asyncio.run(duplex(arguments, arguments.sound.read_bytes(), pictures))
    for event in events:
        print(told(event))
    if arguments.aloud is not None:
        arguments.aloud.write_bytes(sound)


if __name__ == "__main__":
    sys.exit(main())
