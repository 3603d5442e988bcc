"""Shared by benchmarks of speech: a server that listens and speaks, recordings, and a client that sends them in real time."""

import asyncio
import base64
import contextlib
import itertools
import json
import os
import statistics
import sys
import time
import wave
from pathlib import Path

import aiohttp
import numpy as np

from antiphon.speech.dsp.resample import resample
from measuring import busy_s, cpu_ns, free_port, running

RECORDINGS = Path(__file__).parents[2] / "tests" / "speech" / "recordings"
RATE_HZ, FRAME_S, FRAME_BYTES = 24_000, 0.02, 960
ROOM_DBFS = -60.0
SILENCE_MS = 500
PATIENCE_S = 120


# The server


@contextlib.contextmanager
def speaking_server(folder, models, speculation=True, program=("-m", "antiphon"), tree=None):
    """
    A server of those models, given by their tables in the configuration, that listens and speaks; its process and its port.

    Args:
        program: what Python runs as the server.
        tree: the source tree to run; None for the one that is installed.
    """
    folder.mkdir(exist_ok=True)
    port = free_port()
    (folder / "antiphon.toml").write_text(
        f'[server]\n[store]\nurl = "memory"\n[logging]\nlevel = "warning"\n[speech]\nspeculation = {str(speculation).lower()}\n'
        + "".join("[[models]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in model.items()) for model in models)
    )
    command = [sys.executable, *program, "serve", "--port", str(port)]
    path = {"PYTHONPATH": str(tree / "src")} if tree is not None else {}
    with running(command, port, "/readyz?wait_for=speech", cwd=folder, env=os.environ | {"ANTIPHON_HOME": str(folder)} | path) as pid:
        yield pid, port


class Others:
    """How busy programs other than the benchmark keep the machine."""

    def __init__(self):
        self.began = self._now()

    def _now(self):
        return time.perf_counter(), busy_s() - cpu_ns(os.getpid()) / 1e9

    def cores(self):
        """The cores that they used, on average. Our processes that ended meanwhile count as theirs."""
        (began, before), (now, after) = self.began, self._now()
        return max(0.0, (after - before) / (now - began))


# Audio


def noise(seconds, dbfs):
    samples = np.random.default_rng(7).standard_normal(int(seconds * RATE_HZ)) * 32_768 * 10 ** (dbfs / 20)
    return samples.round().astype("<i2").tobytes()


def room(ms):
    """A silent room; a microphone never records zeros."""
    return noise(ms / 1000, ROOM_DBFS)


def recording(name):
    with wave.open(str(RECORDINGS / f"{name}.wav")) as file:
        return resample(file.readframes(file.getnframes()), file.getframerate(), RATE_HZ)


def loud_ms(pcm, below_peak_db=30):
    """When the loud part begins and ends."""
    samples = np.frombuffer(pcm, "<i2").astype(np.float64)
    power = np.mean(samples[: len(samples) // 240 * 240].reshape(-1, 240) ** 2, axis=1)
    loud = np.flatnonzero(power > power.max() * 10 ** (-below_peak_db / 10))
    return 10 * int(loud[0]), 10 * int(loud[-1]) + 10


def trimmed(pcm):
    """Without the quiet at both ends, so that pauses between recordings have the intended length."""
    return pcm[slice(*(at_ms * RATE_HZ // 1000 * 2 for at_ms in loud_ms(pcm)))]


def frames(pcm):
    """The events that append the audio, 20 ms each."""
    pieces = (pcm[at : at + FRAME_BYTES] for at in range(0, len(pcm), FRAME_BYTES))
    return [json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(piece).decode()}) for piece in pieces]


# The client


class Talker:
    """
    A user in a conversation, whose microphone never stops.

    Attributes:
        heard: the arrival time of each event, and the event, without its audio.
    """

    def __init__(self, socket):
        self.socket, self.heard, self.news = socket, [], asyncio.Event()
        self.saying, self.sent_at, self.pace = [], [], 1.0
        self.room = itertools.cycle(frames(room(1000)))

    async def listen(self):
        async for message in self.socket:
            at = time.perf_counter()
            event = json.loads(message.data)
            if event["type"] == "error":
                raise SystemExit(f"the server reports: {event['error']['message']}")
            if event["type"].endswith("audio.delta"):
                event["delta"] = len(event["delta"])
            self.heard.append((at, event))
            self.news.set()
        raise SystemExit("the server closed the connection")

    async def speak(self):
        begun_at = time.perf_counter()
        for number in itertools.count():
            due_at = begun_at + number * FRAME_S
            await asyncio.sleep(max(0.0, due_at - time.perf_counter()))
            self.sent_at.append(time.perf_counter())
            await self.socket.send_str(self.saying.pop(0) if self.saying else next(self.room))

    def say(self, sound):
        """Start to play a recording; returns the number of its first frame."""
        assert not self.saying
        self.saying = frames(sound)
        return len(self.sent_at)

    def sent_ms(self, at_ms):
        """When the audio at that time of the conversation was sent."""
        return self.sent_at[min(len(self.sent_at) - 1, int(at_ms / 1000 / FRAME_S))]

    async def until(self, looked):
        """The first result of `looked` that is not None."""
        async with asyncio.timeout(PATIENCE_S):
            while (found := looked()) is None:
                self.news.clear()
                await self.news.wait()
        return found

    def last(self, kind, since=0.0, **fields):
        """The last event of a type, and when it arrived; None if there was none since."""
        for at, event in reversed(self.heard):
            if at < since:
                return None
            if event["type"] == kind and all(event.get(name) == value for name, value in fields.items()):
                return at, event
        return None

    def first(self, kind, since=0.0, **fields):
        found = None
        for at, event in reversed(self.heard):
            if at < since:
                break
            if event["type"].endswith(kind) and all(event.get(name) == value for name, value in fields.items()):
                found = at, event
        return found


@contextlib.asynccontextmanager
async def talking(port, model, instructions, modality="audio", tokens=40):
    """A user in a new conversation with a model."""
    heard = {
        "turn_detection": {"type": "server_vad", "silence_duration_ms": SILENCE_MS},
        "transcription": {"model": "whisper-1", "language": "en"},
    }
    session = {
        "type": "realtime",
        "instructions": instructions,
        "output_modalities": [modality],
        "max_output_tokens": tokens,
        "audio": {"input": heard},
    }
    url = f"http://127.0.0.1:{port}/v1/realtime?model={model}"
    async with aiohttp.ClientSession() as client, client.ws_connect(url, max_msg_size=0) as socket, asyncio.TaskGroup() as tasks:
        talker = Talker(socket)
        listening = tasks.create_task(talker.listen())
        await socket.send_str(json.dumps({"type": "session.update", "session": session}))
        await talker.until(lambda: talker.last("session.updated"))
        speaking = tasks.create_task(talker.speak())
        try:
            yield talker
        finally:
            speaking.cancel()
            listening.cancel()


# Results


def part(values, share):
    """A quantile; of few values the next higher one, as a mean of two would hide the worst."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def middle(values):
    return statistics.median(values)
