"""
How soon is a person who speaks answered, and how soon is it quiet when they interrupt?

A server with the embedded models hears speech recordings at the pace of speech, and noise at -60 dBFS where nobody speaks. Some turns
contain a pause that is shorter than the silence that ends a turn (500 ms). Times count from `input_audio_buffer.speech_stopped`, as the
client gets it: to the transcript, to the first text of a text response, and to the first audio of a spoken one; the last also from the
end of the last word. Two servers take turns in one run: one begins an answer while the silence is still being counted, the other waits.
With `--against TREE` the second is the server of another source tree instead, so that both meet the same minutes of the machine.

Everything is measured twice: on the machine as it is, and beside a process that keeps one core busy (`--load`).

The second table has the stages of spoken answers, again from `speech_stopped`, so that most are negative: when the transcript that the
answer rests on was begun (the pause was seen), when it was done, when the model was asked, its first text, when a first clause was
complete, and its first audio. Gaps are pauses in the playback of an answer because audio came too late. Two more
columns count answers that were begun during a pause, and the share of them that was thrown away.

An interruption counts from `speech_started`, and from where the recording gets loud, to the last audio of the interrupted answer. A
scripted chat server writes that answer, and so much of it that the voice is at work all the time.

    python bench/voice_latency.py [--model NAME ...] [--turns 24] [--interruptions 50] [--load quiet busy] [--against TREE]
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import re
import subprocess
import tempfile
import time
import urllib.request
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import uvloop

from measuring import UPSTREAM_PORT, print_head, print_row, upstream
from talker import RATE_HZ, SILENCE_MS, Others, loud_ms, middle, part, recording, room, speaking_server, talking, trimmed

EMBEDDED = ("qwen2.5-coder-1.5b-instruct", "smollm2-135m-instruct")
TURNS = {
    "a line": ["lv_0890"],
    "a short one": ["cards_001"],
    "a hand": ["cards_005"],
    "a long one": ["lv_0870"],
    "one with a pause": ["cards_001", 300, "cards_005"],
    "one with a longer pause": ["lv_0890", 400, "cards_001"],
}
BRIEFLY = "You are talking with somebody on the telephone. Answer in one or two short sentences."
TALKATIVE, TOKENS = "mock-5ms", 2000
STAGED_SERVER = Path(__file__).parent / "common" / "staged_server.py"
STAGES = ("pause seen", "transcript done", "model asked", "first text", "first clause", "first audio")
BYTES_PER_S, MIN_GAP_S = 2 * RATE_HZ, 0.05
AUDIO_HOLD_S, AUDIO_AIM_S, QUIET_HOLD_S, QUIET_AIM_S = 0.7, 0.2, 0.05, 0.02


def sound(turn):
    return b"".join(room(each) if isinstance(each, int) else trimmed(recording(each)) for each in TURNS[turn])


class Server(NamedTuple):
    """A server under test: a source tree, or None for the one that runs this program, and whether it begins answers early."""

    name: str
    port: int
    notes: Path


class Timing(NamedTuple):
    """
    Seconds from the end of a turn.

    Attributes:
        word_s: to the first of the answer, from the end of the last word.
        stages: to each of `STAGES`; empty if the answer is text.
        gaps_s: pauses in the playback of the answer.
    """

    transcript_s: float
    first_s: float
    word_s: float
    stages: list[float]
    gaps_s: list[float]


# Turns


async def answered(talker, server, said, modality):
    """Say it, and hear the answer out; None if there was nothing to answer. Without a server, its stages stay untold."""
    begun = time.perf_counter()
    talker.say(said)
    await asyncio.sleep(len(said) / 2 / RATE_HZ)

    def over():
        stopped = talker.last("input_audio_buffer.speech_stopped", since=begun)
        done = talker.last("response.done", since=stopped[0]) if stopped and not talker.saying else None
        started = talker.last("input_audio_buffer.speech_started", since=begun)
        is_last = stopped and started and started[0] < stopped[0]
        return (stopped, done) if done and is_last else None

    (stopped_at, stopped), (_, done) = await talker.until(over)
    response = done["response"]
    assert response["status"] in ("completed", "incomplete"), done
    kind = "audio.delta" if modality == "audio" else "text.delta"
    transcript = await talker.until(lambda: talker.first("transcription.completed", since=stopped_at))
    first = talker.first(kind, since=stopped_at)
    if first is None:
        return None
    word_at = talker.sent_ms(stopped["audio_end_ms"] - SILENCE_MS)
    stages = [at - stopped_at for at in stages_of(server, response["id"])] if server and modality == "audio" else []
    gaps = gaps_of(talker, response["id"], stopped_at) if modality == "audio" else []
    return Timing(transcript[0] - stopped_at, first[0] - stopped_at, first[0] - word_at, stages, gaps)


def stages_of(server, response_id):
    """When the server reached each stage of an answer; nothing if one can't be told."""
    notes = [json.loads(line) for line in server.notes.read_text().splitlines()]
    asked = [note for note in notes if note["stage"] == "asked" and re.fullmatch(rf"{re.escape(response_id)}(\.\d+)?", note["id"])]
    if not asked:
        return []
    asked = asked[-1]  # those before were thrown away
    transcripts = [note for note in notes if note["stage"] == "transcript" and note["at"] <= asked["at"]]
    text = first_note(notes, "text", asked["at"], id=asked["id"])
    clause = text and first_note(notes, "clause", text["at"])
    sound = clause and first_note(notes, "sound", clause["at"])
    if not transcripts or not sound:
        return []
    return [transcripts[-1]["began_at"], transcripts[-1]["at"], asked["at"], text["at"], clause["at"], sound["at"]]


def first_note(notes, stage, since, **fields):
    """The first note of a stage since then."""
    found = (note for note in notes if note["stage"] == stage and note["at"] >= since)
    return next((note for note in found if all(note[name] == value for name, value in fields.items())), None)


def gaps_of(talker, response_id, since):
    """How long playback stood still each time that it had reached the end of what had come."""
    gaps, ends_at = [], None
    for at, event in talker.heard:
        if at >= since and event["type"].endswith("audio.delta") and event["response_id"] == response_id:
            if ends_at is not None and at > ends_at:
                gaps.append(at - ends_at)
            ends_at = max(at, ends_at or at) + event["delta"] * 3 / 4 / BYTES_PER_S
    return gaps


async def conversation(server, model, modality, turns):
    async with talking(server.port, model, BRIEFLY, modality) as talker:
        await asyncio.sleep(0.3)
        timings = []
        for turn in turns:
            timings.append(await answered(talker, server, sound(turn), modality))
            await asyncio.sleep(0.5)
        return [timing for timing in timings if timing is not None]


# Interruptions


async def interrupted(talker, said, onset):
    """Say something while an answer is under way: when the person, the event and the last sound of the answer came; None if it was over."""
    begun = time.perf_counter()
    frame = talker.say(said)
    started_at, _ = await talker.until(lambda: talker.last("input_audio_buffer.speech_started", since=begun))
    ended = await talker.until(lambda: talker.first("response.done", since=begun))
    if ended[1]["response"]["status"] != "cancelled":
        return None
    id = ended[1]["response"]["id"]
    await talker.until(lambda: talker.first("audio.delta", since=ended[0]))  # of the next answer: until then more of this one could come
    last_at, _ = talker.last("response.output_audio.delta", response_id=id) or (begun, None)
    return talker.sent_at[frame + onset // 20], started_at, last_at


async def interruptions(port, count):
    said = recording("cards_001")
    onset, _ = loud_ms(said)
    found = []
    for _ in range(-(-count // 10)):
        async with talking(port, TALKATIVE, BRIEFLY, tokens=TOKENS) as talker:
            begun = time.perf_counter()
            talker.say(said)
            await talker.until(lambda talker=talker, begun=begun: talker.first("audio.delta", since=begun))
            for number in range(10):
                await asyncio.sleep(0.1 + 0.05 * number)
                found.append(await interrupted(talker, said, onset))
    return [each for each in found if each is not None]


# Speculation


SPECULATIONS = re.compile(r'^antiphon_speculations_total\{outcome="(\w+)"\} (\S+)$', re.MULTILINE)


def speculations(port):
    """What became of the answers that were begun before the end of the turn, as the server has counted them."""
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    return Counter({outcome: int(float(count)) for outcome, count in SPECULATIONS.findall(metrics)})


# What it came to


def shown(values):
    return f"{middle(values) * 1000:,.0f} / {part(values, 0.9) * 1000:,.0f}"


async def latency(servers, models, turns, load):
    """The median times to the first audio, by model and server."""
    print()
    print_head(f"{load}: ms, p50 / p90", "server", "turns", "transcript", "first text", "first audio", "from the last word")
    middles, spoken = {}, {}
    for model in models:
        timings = defaultdict(list)
        before = {server.name: await asyncio.to_thread(speculations, server.port) for server in servers}
        for number, server in itertools.product(range(-(-turns // len(TURNS))), servers):
            timings[server.name, "audio"] += await conversation(server, model, "audio", TURNS)
            if number % 2 == 0:
                timings[server.name, "text"] += await conversation(server, model, "text", TURNS)
        for server in servers:
            aloud, written = timings[server.name, "audio"], timings[server.name, "text"]
            columns = [[each.transcript_s for each in aloud], [each.first_s for each in written], [each.first_s for each in aloud]]
            print_row(model, server.name, len(aloud), *(shown(column) for column in [*columns, [each.word_s for each in aloud]]))
            middles[model, server.name] = middle(columns[-1])
            counts = await asyncio.to_thread(speculations, server.port)
            counts.subtract(before[server.name])
            spoken[model, server.name] = aloud, counts
    show_stages(spoken)
    return middles


def show_stages(spoken):
    """Where the time of spoken answers goes, how many were thrown away, and how many had gaps."""
    print()
    print_head("stages: ms, p50", "server", *STAGES, "begun", "thrown away", "with gaps", "worst gap")
    for (model, name), (timings, counts) in spoken.items():
        stages = list(zip(*(each.stages for each in timings if each.stages), strict=True))
        told = [f"{middle(column) * 1000:,.0f}" for column in stages] or ["-"] * len(STAGES)
        thrown = f"{counts['dropped'] / counts['begun']:.0%}" if counts["begun"] else "-"
        gaps = [max(each.gaps_s, default=0.0) for each in timings]
        late = sum(gap > MIN_GAP_S for gap in gaps)
        print_row(model, name, *told, counts["begun"], thrown, late, f"{max(gaps) * 1000:,.0f}")


async def silencing(port, count):
    """The worst of a hundred times from `speech_started` to the last sound."""
    found = await interruptions(port, count)
    columns = {
        "from speech_started to the last sound": [max(0.0, last_at - started_at) for _, started_at, last_at in found],
        "from the speech to speech_started": [started_at - onset_at for onset_at, started_at, _ in found],
        "from the speech to the last sound": [last_at - onset_at for onset_at, _, last_at in found],
    }
    print()
    print_head(f"{len(found)} answers interrupted", "ms, p50 / p99")
    for name, column in columns.items():
        print_row(name, f"{middle(column) * 1000:.1f} / {part(column, 0.99) * 1000:.1f}")
    return part(columns["from speech_started to the last sound"], 0.99)


@contextlib.contextmanager
def busy(load):
    """A process that keeps one core busy, if the load says so."""
    if load != "busy":
        yield
        return
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


async def measure(servers, args):
    middles, worst = {}, 0.0
    for load in args.load:
        others = Others()
        with busy(load):
            found = await latency(servers, args.model, args.turns, load)
            print(f"other processes took {others.cores():.1f} of {os.cpu_count()} cores meanwhile")
        middles |= {(load, *key): value for key, value in found.items()}
    if args.interruptions:
        worst = await silencing(servers[0].port, args.interruptions)
    return middles, worst


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", nargs="+", default=list(EMBEDDED))
    parser.add_argument("--turns", type=int, default=24)
    parser.add_argument("--interruptions", type=int, default=50)
    parser.add_argument("--load", nargs="+", choices=("quiet", "busy"), default=["quiet", "busy"])
    parser.add_argument("--against", type=Path, metavar="TREE", help="compare with the source tree in this folder")
    return parser.parse_args()


def main():
    args = arguments()
    models = [{"name": name, "engine": "local"} for name in args.model]
    models.append({"name": TALKATIVE, "engine": "chat", "base_url": f"http://127.0.0.1:{UPSTREAM_PORT}/v1"})
    variants = {"this": (True, None), "no speculation": (False, None)}
    if args.against:
        variants = {"this": (True, None), "against": (True, args.against.resolve())}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        running.enter_context(upstream())
        servers = []
        for name, (speculation, tree) in variants.items():
            notes = Path(folder) / f"{name}.notes"
            server = speaking_server(Path(folder) / name, models, speculation, (str(STAGED_SERVER), str(notes)), tree)
            _, port = running.enter_context(server)
            servers.append(Server(name, port, notes))
        middles, worst = uvloop.run(measure(servers, args))
    first, second = servers
    for load in args.load:
        ours, other = middles[load, args.model[0], first.name], middles[load, args.model[0], second.name]
        print(f"{load}: first audio p50 {ours:.2f} s (hold {AUDIO_HOLD_S}, aim {AUDIO_AIM_S}), {ours / other:.2f} of '{second.name}'")
    print(f"quiet after an interruption, p99: {worst * 1000:.1f} ms (hold {QUIET_HOLD_S * 1000:.0f}, aim {QUIET_AIM_S * 1000:.0f})")
    return middles[args.load[0], args.model[0], first.name] > AUDIO_HOLD_S or worst > QUIET_HOLD_S


if __name__ == "__main__":
    sys.exit(main())
