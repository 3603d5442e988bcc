"""
How many sessions with voice-activity detection does a core hold, what does their sound cost by part, and how many can talk at once?

Sessions send 20 ms of noise fifty times a second, without speech, so nothing is transcribed or spoken. The cost of a part is what a
server takes more for sessions that have it than for those that don't, in CPU time according to the scheduler: the WebSocket, JSON and
the session; then resampling for a transcriber, without turn detection; then turn detection, with noise below its gate (-75 dBFS),
where the model is not asked, and with noise above it (-60 dBFS), where it is asked about every frame. Beside them, in this process:
the bare model, one frame and 32 frames at a time, and the JSON and the session's state machine without a socket. Every fiftieth frame
is followed by a request (`response.cancel`); the delay of its reply is measured.

Then several people talk to the embedded models at once. Each says a recording and listens to the whole answer. More and more do so,
until the time from `speech_stopped` to the first audio is twice that of one person.

    python bench/voice_sessions.py [--sessions 100 250 500] [--seconds 8] [--model NAME ...] [--talkers 1 2 3 4 6 8]
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import argparse
import asyncio
import itertools
import json
import os
import statistics
import struct
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import uvloop

from antiphon.engine_api.capabilities import Capabilities
from antiphon.protocols.realtime.session import RealtimeSession
from antiphon.protocols.realtime.settings import RealtimeSessionConfig
from antiphon.protocols.session import FromClient
from antiphon.runtime.core.ids import new_id
from antiphon.speech import onnx
from antiphon.wire.realtime.dialects import DIALECTS
from measuring import cpu_ns, print_head, print_row
from talker import FRAME_S, Others, frames, middle, noise, part, speaking_server, talking

sys.path.append(str(Path(__file__).parent))
from voice_latency import BRIEFLY, EMBEDDED, TURNS, answered, sound

MODELS = Path(os.environ.get("ANTIPHON_MODELS") or Path.home() / ".cache" / "antiphon" / "models")
ROUNDS = 3
SLOTS = 20
ASK_EVERY = 50
IDLE_NS, POLL_S = 5_000_000, 0.1
VAD_FRAMES_A_SECOND = 16_000 / 512
SESSIONS_HOLD, SESSIONS_AIM = 250, 600
QUIET_DBFS, NOISY_DBFS = -75.0, -60.0
DEAF, HEARING = "parrot", "hearing"


def frame(text):
    """A text as a client's frame; masked with zeros, which costs the client nothing and the server what any mask does."""
    body = text.encode()
    size = struct.pack("!BBH", 0x81, 0xFE, len(body)) if len(body) > 125 else struct.pack("!BB", 0x81, 0x80 | len(body))
    return size + bytes(4) + body


def heard_as(turn_detection):
    session = {"type": "realtime", "audio": {"input": {"turn_detection": turn_detection}}}
    return frame(json.dumps({"type": "session.update", "session": session}))


ASK = frame(json.dumps({"type": "response.cancel"}))
CLOSE = b"\x88\x82" + bytes(4) + b"\x03\xe8"
HANDSHAKE = (
    "GET /v1/realtime?model={model} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
NO_TURNS, TURNS_DETECTED = heard_as(None), heard_as({"type": "server_vad"})
QUIET, NOISY = ([frame(text) for text in frames(noise(1, level))] for level in (QUIET_DBFS, NOISY_DBFS))
IN_NOISE = f"turn detection, noise ({NOISY_DBFS:.0f} dBFS)"
KINDS = {
    "no transcription, no turn detection": (DEAF, NO_TURNS, NOISY),
    "transcription, no turn detection": (HEARING, NO_TURNS, NOISY),
    f"turn detection, quiet ({QUIET_DBFS:.0f} dBFS)": (HEARING, TURNS_DETECTED, QUIET),
    IN_NOISE: (HEARING, TURNS_DETECTED, NOISY),
}
"""By what its sessions have: the model, their settings, and the sound."""

PARTS = ("the WebSocket, JSON and the session", "resampling", "the noise gate and turn detection", "the model")
"""What each of those has more than the one before."""


class Run(NamedTuple):
    """
    What sessions came to.

    Attributes:
        spent_us: CPU for a second of sound.
        lateness: seconds until something asked was answered.
        pace: how much of the pace of speech this program could keep.
        behind_s: how long the server took with what was left to do.
    """

    spent_us: float
    lateness: Sequence[float] = ()
    pace: float = 1.0
    behind_s: float = 0.0


# Sessions in which nobody speaks


class Microphone(asyncio.Protocol):
    """One session's client; what comes after a question is its answer."""

    def __init__(self, kind, number):
        model, self.settings, self.sound = KINDS[kind]
        self.head = HANDSHAKE.format(model=model).encode()
        self.sent, self.lateness, self.asked_at, self.begun = number, [], None, b""
        self.ready, self.gone = (asyncio.get_running_loop().create_future() for _ in range(2))

    def connection_made(self, transport):
        self.transport = transport
        transport.write(self.head + self.settings)

    def data_received(self, received):
        assert b"speech_started" not in received, "noise was taken for speech"
        if not self.ready.done():
            self.begun += received
            if b'"session.updated"' in self.begun:
                self.ready.set_result(None)
        elif self.asked_at is not None:
            self.lateness.append(time.perf_counter() - self.asked_at)
            self.asked_at = None

    def speak(self):
        self.sent += 1
        self.transport.write(self.sound[self.sent % len(self.sound)])
        if self.sent % ASK_EVERY == 0 and self.asked_at is None:
            self.asked_at = time.perf_counter()
            self.transport.write(ASK)

    def connection_lost(self, error):
        if not self.ready.done():
            self.ready.set_exception(error or ConnectionError(f"the server closed the connection: {self.begun}"))
        self.gone.set_result(None)


async def speak(clients, seconds):
    """All of them at the pace of speech, spread over the 20 ms; returns how much of that pace this program could keep."""
    groups = [clients[number::SLOTS] for number in range(SLOTS)]
    begun_at = time.perf_counter()
    for tick in itertools.count():
        due_at = begun_at + tick * FRAME_S / SLOTS
        if due_at > begun_at + seconds:
            return seconds / (time.perf_counter() - begun_at)
        await asyncio.sleep(max(0, due_at - time.perf_counter()))
        for client in groups[tick % SLOTS]:
            client.speak()


async def caught_up(pid):
    """Seconds until the server has done with all that was sent: turns may be detected long after the last event was read."""
    begun_at, spent = time.perf_counter(), -IDLE_NS
    async with asyncio.timeout(60):
        while (now := cpu_ns(pid)) - spent >= IDLE_NS:
            spent = now
            await asyncio.sleep(POLL_S)
    return max(0.0, time.perf_counter() - begun_at - 2 * POLL_S)


async def cost(pid, port, kind, count, seconds):
    loop = asyncio.get_running_loop()
    clients = []
    for number in range(count):
        _, client = await loop.create_connection(lambda number=number: Microphone(kind, number), "127.0.0.1", port)
        await asyncio.wait_for(client.ready, 60)  # the first of all loads the speech models
        clients.append(client)
    await speak(clients, 2)
    await caught_up(pid)
    sent = sum(client.sent for client in clients)
    for client in clients:
        client.lateness.clear()
    before = cpu_ns(pid)
    pace = await speak(clients, seconds)
    behind_s = await caught_up(pid)
    spent = cpu_ns(pid) - before
    sent = sum(client.sent for client in clients) - sent
    assert not any(client.gone.done() for client in clients), "the server closed a session"
    for client in clients:
        client.transport.write(CLOSE)
    for client in clients:
        await asyncio.wait_for(client.gone, 60)
    return Run(spent / 1000 / (sent * FRAME_S), list(itertools.chain(*(client.lateness for client in clients))), pace, behind_s)


# Parts by themselves


def bare_vad(together, runs=300):
    """Microseconds of CPU for a second of sound that the model alone takes."""
    model = onnx.load(MODELS / "silero-vad" / "silero_vad.onnx")
    fed = {
        "input": np.random.default_rng(7).standard_normal((together, 576)).astype(np.float32) / 1000,
        "state": np.zeros((2, together, 128), np.float32),
        "sr": np.array(16_000, np.int64),
    }
    return _spent_us(lambda: model.run(None, fed), runs) / together * VAD_FRAMES_A_SECOND


def bare_decoding():
    texts, decode = itertools.cycle(text.encode() for text in frames(noise(1, NOISY_DBFS))), DIALECTS["ga"].decode_client
    return _spent_us(lambda: decode(next(texts)), 5000) / FRAME_S


def bare_session():
    session = RealtimeSession(
        RealtimeSessionConfig(model=HEARING, capabilities=Capabilities(audio_in=True, listens=True, turn_detection=("server_vad",))), new_id
    )
    session.handle(FromClient(session._config, 0.0))
    decode = DIALECTS["ga"].decode_client
    events = itertools.cycle([FromClient(decode(text.encode()), 1.0) for text in frames(noise(1, NOISY_DBFS))])
    return _spent_us(lambda: session.handle(next(events)), 5000) / FRAME_S


def _spent_us(work, runs):
    for _ in range(runs // 10):
        work()
    before = time.process_time_ns()
    for _ in range(runs):
        work()
    return (time.process_time_ns() - before) / runs / 1000


TOGETHER = "the bare model, 32 frames at once"
BARE = {
    "the bare model, one frame at a time": lambda: bare_vad(1),
    TOGETHER: lambda: bare_vad(32),
    "JSON and base64, alone": bare_decoding,
    "the session's state machine, alone": bare_session,
}


async def idle(server, counts, seconds):
    """The tables; sessions a core with the middle one of the counts, in noise."""
    held = {}
    for count in counts:
        runs = defaultdict(list)
        for _ in range(ROUNDS):
            for kind in KINDS:
                runs[kind].append(await cost(*server, kind, count, seconds))
            for name, measure in BARE.items():
                runs[name].append(Run(measure()))
        spent = {name: middle([run.spent_us for run in each]) for name, each in runs.items()}
        print()
        print_head(
            f"{count} sessions", "µs a second", "to the bare model", "sessions a core", "delay, p50 / p99", "behind at the end", "pace"
        )
        for name, each in runs.items():
            load = _load_cells(each) if name in KINDS else [""] * 4
            print_row(name, f"{spent[name]:,.0f}", f"{spent[name] / spent[TOGETHER]:.2f}x", *load)
        steps = itertools.pairwise([0.0, *(spent[kind] for kind in KINDS)])
        print("   by part: " + ", ".join(f"{name} {after - before:.0f}" for name, (before, after) in zip(PARTS, steps, strict=True)))
        held[count] = 1e6 / spent[IN_NOISE]
    return held[counts[len(counts) // 2]]


def _load_cells(runs):
    late = list(itertools.chain(*(run.lateness for run in runs)))
    lateness = " / ".join(f"{part(late, share) * 1000:.1f}" for share in (0.5, 0.99))
    a_core = 1e6 / middle([run.spent_us for run in runs])
    return f"{a_core:.0f}", f"{lateness} ms", f"{max(run.behind_s for run in runs):.1f} s", f"{min(run.pace for run in runs):.0%}"


# Conversations at once


async def converse(port, model, number, seconds):
    """One person's times to the first sound."""
    async with talking(port, model, BRIEFLY) as talker:
        await asyncio.sleep(0.7 * number)
        until, timings = time.perf_counter() + seconds, []
        for turn in itertools.islice(itertools.cycle(TURNS), number, None):
            timings.append(await answered(talker, None, sound(turn), "audio"))
            if time.perf_counter() > until:
                return [timing.first_s for timing in timings if timing is not None]
            await asyncio.sleep(0.5)


async def together(port, model, count, seconds):
    async with asyncio.TaskGroup() as tasks:
        people = [tasks.create_task(converse(port, model, number, seconds)) for number in range(count)]
    return list(itertools.chain(*(person.result() for person in people)))


async def conversations(port, models, counts, seconds):
    if not models:
        return
    print()
    print_head("model", "at once", "answers", "first audio, p50 / p90", "to one")
    for model in models:
        alone = None
        for count in counts:
            times = await together(port, model, count, seconds)
            alone = alone or statistics.median(times)
            ratio = statistics.median(times) / alone
            print_row(model, count, len(times), f"{middle(times) * 1000:,.0f} / {part(times, 0.9) * 1000:,.0f} ms", f"{ratio:.1f}x")
            if ratio > 2:
                break


async def measure(server, args):
    others = Others()
    held = await idle(server, args.sessions, args.seconds)
    await conversations(server[1], args.model, args.talkers, args.talk_seconds)
    print(f"other processes took {others.cores():.1f} of {os.cpu_count()} cores meanwhile")
    return held


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--sessions", type=int, nargs="+", default=[100, 250, 500])
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--model", nargs="*", default=list(EMBEDDED))
    parser.add_argument("--talkers", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8])
    parser.add_argument("--talk-seconds", type=float, default=40)
    return parser.parse_args()


def main():
    args = arguments()
    models = [
        {"name": DEAF, "engine": "scripted"},
        {"name": HEARING, "engine": "chat", "base_url": "http://127.0.0.1:9/v1"},  # nobody there: it is never asked
        *({"name": name, "engine": "local"} for name in args.model),
    ]
    with tempfile.TemporaryDirectory() as folder, speaking_server(Path(folder), models) as server:
        held = uvloop.run(measure(server, args))
    print(f"sessions a core: {held:.0f} (hold {SESSIONS_HOLD}, aim {SESSIONS_AIM})")
    return held < SESSIONS_HOLD


if __name__ == "__main__":
    sys.exit(main())
