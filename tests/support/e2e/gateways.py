"""A gateway and a worker in processes of their own, and MiniCPM-o clients that note how their sessions go."""

import asyncio
import base64
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import aiohttp

from support.programs import forks

PATIENCE_S = 120
"""A worker waits for half a minute after a few failed attempts to connect."""

KEY = "a key of workers"

NO_CODE = {"ANTIPHON_TOOLS__CODE_INTERPRETER__SANDBOX": "off"}
"""The walls around code are tried in the home folder, whose files are read here while it changes."""

SILENCE = base64.b64encode(bytes(6400)).decode()
TONE = base64.b64encode(struct.pack("<1600f", *(0.5 if n // 80 % 2 else -0.5 for n in range(1600)))).decode()


class Program:
    """The server, which can be killed and started again at the same address."""

    def __init__(self, home: Path, settings: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.home = home
        self.url = f"http://127.0.0.1:{self.port}"
        (home / "antiphon.toml").write_text(f"{settings}[speech]\nwarm_up = false\n")

    @contextlib.contextmanager
    def running(self):
        """The process, once it serves."""
        command = [sys.executable, "-m", "antiphon", "serve", "--port", str(self.port)]
        environ = os.environ | {"ANTIPHON_HOME": str(self.home / "data"), "ANTIPHON_WORKER_KEY": KEY} | NO_CODE
        pipe = subprocess.PIPE
        with forks.Popen(command, cwd=self.home, env=environ, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                while f":{self.port}" not in (line := process.stdout.readline()):
                    assert line, "the server did not start"
                yield process
            finally:
                end(process)

    @contextlib.contextmanager
    def worker(self):
        """A process that joins as a worker with one slot."""
        command = [sys.executable, "-m", "antiphon", "worker", "--join", f"ws://127.0.0.1:{self.port}", "--engine", "scripted"]
        command += ["--model", "far", "--slots", "1"]
        environ = os.environ | {"ANTIPHON_HOME": str(self.home / "worker"), "ANTIPHON_WORKER_KEY": KEY} | NO_CODE
        with forks.Popen(command, cwd=self.home, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                yield process
            finally:
                end(process)

    def get(self, path: str):
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE_S) as reply:
            return json.load(reply)

    async def settled(self, path: str, looked):
        """The first true result of `looked` on the answer."""
        answer = None
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    with contextlib.suppress(urllib.error.HTTPError):
                        answer = await asyncio.to_thread(self.get, path)
                        if result := looked(answer):
                            return result
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"{path} stays {answer}") from None

    async def wrote_sound(self):
        """
        Return when some of a client's recording is on the disk: its sound, and the line that refers to it.

        The writer appends the sound first: a gateway that is killed right after that has no `events.jsonl` yet.
        """
        async with asyncio.timeout(PATIENCE_S):
            while not any(b'"in.wav"' in path.read_bytes() for path in (self.home / "data").rglob("events.jsonl")):  # noqa: ASYNC110 - a disk sets no event
                await asyncio.sleep(0.01)


def end(process):
    """Terminate a process, and kill it if it has not ended after 15 seconds."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=15)
    process.kill()


class Peer:
    """A client's side of one session; it keeps all events that it receives."""

    def __init__(self, ws):
        self.ws, self.events = ws, []

    async def say(self, kind, **fields):
        await self.ws.send_str(json.dumps({"type": kind, **fields}))

    async def hear(self):
        """The next event; None after the last."""
        async with asyncio.timeout(PATIENCE_S):
            message = await self.ws.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            return None
        self.events.append(json.loads(message.data))
        return self.events[-1]

    async def until(self, *kinds):
        """The first event of one of these types, or kinds of delta."""
        while (event := await self.hear()) is not None:
            if {event["type"], event.get("kind")} & set(kinds):
                return event
        raise AssertionError(f"{kinds} never came: {self.events[-3:]}, {self.ws.close_code}")

    async def begin(self):
        await self.until("session.queue_done")
        await self.say("session.init", payload={})
        return await self.until("session.created")

    async def speak(self):
        """Make an answer begin."""
        for _ in range(4):
            await self.say("input.append", input={"audio": TONE})
        while True:
            await self.say("input.append", input={"audio": SILENCE})
            if (await self.hear())["kind"] in ("text", "audio"):
                return

    async def fate(self):
        """The last event and how the connection ends; `listen`s and text before that are skipped."""
        told = []
        while (event := await self.hear()) is not None:
            if event["type"] == "session.closed":
                told.append(f"`session.closed` `{event['reason']}`")
            elif event["type"] == "error":
                told.append(f"`error` `{event['error']['code']}`")
            elif event.get("end_of_turn"):
                told.append("the answer's end")
        code = self.ws.close_code
        told.append("connection lost" if code in (None, 1006) else f"{code}")
        return ", ".join(told)

    def vanish(self):
        """Break the connection without a Close."""
        self.ws._response.connection.transport.abort()


@contextlib.asynccontextmanager
async def peer(gateway, model="far", mode="audio", **query):
    async with aiohttp.ClientSession() as http:
        address = f"{gateway.url}/v1/realtime"
        async with http.ws_connect(address, params={"mode": mode, "model": model, **query}, max_msg_size=0, heartbeat=None) as ws:
            yield Peer(ws)
