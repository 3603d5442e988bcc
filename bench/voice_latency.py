"""
How soon is somebody answered who speaks, and how soon is it quiet when somebody interrupts?

A server with the embedded models hears recordings of people at the pace of speech, and noise at -60 dBFS where nobody speaks. Some turns
have a pause in them that is shorter than the silence which ends a turn (500 ms). Times count from `input_audio_buffer.speech_stopped`,
as the client gets it: to the transcript, to the first text of an answer in writing, and to the first sound of one aloud; the last
also from the end of the last word. Two servers take turns, one that begins with an answer while the silence is still being counted, and
one that waits.

An interruption counts from `speech_started`, and from where the recording gets loud, to the last sound that comes of the answer that was
under way: one of a scripted chat server, which says so much that the voice is at work all the time. How many answers that were begun
too early are thrown away is the server's own count, over the turns and not the interruptions.

    python bench/voice_latency.py [--model NAME ...] [--turns 24] [--interruptions 50]
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import argparse
import asyncio
import contextlib
import itertools
import os
import re
import tempfile
import time
import urllib.request
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import uvloop

from measuring import UPSTREAM_PORT, upstream
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
AUDIO_HOLD_S, AUDIO_AIM_S, QUIET_HOLD_S, QUIET_AIM_S = 0.7, 0.2, 0.05, 0.02


def sound(turn):
    return b"".join(room(each) if isinstance(each, int) else trimmed(recording(each)) for each in TURNS[turn])


class Timing(NamedTuple):
    """Seconds from the end of the turn to its transcript and to the first of the answer, and to that from the end of its last word."""

    transcript_s: float
    first_s: float
    word_s: float


# Turns


async def answered(talker, said, modality):
    """Say it, and hear the answer out."""
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
    assert done["response"]["status"] in ("completed", "incomplete"), done
    kind = "audio.delta" if modality == "audio" else "text.delta"
    transcript = await talker.until(lambda: talker.first("transcription.completed", since=stopped_at))
    first = talker.first(kind, since=stopped_at)
    if first is None:  # it had nothing to say, as where nothing was heard
        return None
    word_at = talker.sent_ms(stopped["audio_end_ms"] - SILENCE_MS)
    return Timing(transcript[0] - stopped_at, first[0] - stopped_at, first[0] - word_at)


async def conversation(port, model, modality, turns):
    async with talking(port, model, BRIEFLY, modality) as talker:
        await asyncio.sleep(0.3)
        timings = []
        for turn in turns:
            timings.append(await answered(talker, sound(turn), modality))
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
    return f"{middle(values) * 1000:>5.0f} / {part(values, 0.9) * 1000:<5.0f}"


async def latency(servers, models, turns):
    """The middle of the times to the first sound, by model and whether there is speculation."""
    heads = "".join(f" {name:>14}" for name in ("transcript", "first text", "first audio", "from last word"))
    print(f"{'model':>28} {'speculation':>11} {'turns':>5}{heads}  ms, p50 / p90")
    middles = {}
    for model in models:
        timings = defaultdict(list)
        for number, (is_ahead, port) in itertools.product(range(-(-turns // len(TURNS))), servers.items()):
            timings[is_ahead, "audio"] += await conversation(port, model, "audio", TURNS)
            if number % 2 == 0:
                timings[is_ahead, "text"] += await conversation(port, model, "text", TURNS)
        for is_ahead in servers:
            aloud, written = timings[is_ahead, "audio"], timings[is_ahead, "text"]
            columns = [[each.transcript_s for each in aloud], [each.first_s for each in written], [each.first_s for each in aloud]]
            told = " ".join(f"{shown(column):>14}" for column in [*columns, [each.word_s for each in aloud]])
            print(f"{model:>28} {'yes' if is_ahead else 'no':>11} {len(aloud):>5} {told}", flush=True)
            middles[model, is_ahead] = middle(columns[-1])
    return middles


async def silencing(port, count):
    """The worst of a hundred times from `speech_started` to the last sound."""
    found = await interruptions(port, count)
    columns = {
        "from speech_started to the last sound": [max(0.0, last_at - started_at) for _, started_at, last_at in found],
        "from the speech to speech_started": [started_at - onset_at for onset_at, started_at, _ in found],
        "from the speech to the last sound": [last_at - onset_at for onset_at, _, last_at in found],
    }
    print(f"\n{len(found)} answers interrupted: ms, p50 / p99")
    for name, column in columns.items():
        print(f"{name:>40}: {middle(column) * 1000:.1f} / {part(column, 0.99) * 1000:.1f}", flush=True)
    return part(columns["from speech_started to the last sound"], 0.99)


async def measure(servers, args):
    others = Others()
    middles = await latency(servers, args.model, args.turns)
    counts = await asyncio.to_thread(speculations, servers[True])
    thrown = counts["dropped"] / counts["begun"] if counts["begun"] else 0.0
    print(f"answers begun before the end of a turn: {counts['begun']}; thrown away: {thrown:.0%}")
    worst = await silencing(servers[True], args.interruptions) if args.interruptions else 0.0
    print(f"other processes took {others.cores():.1f} of {os.cpu_count()} cores meanwhile")
    return middles, worst


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", nargs="+", default=list(EMBEDDED))
    parser.add_argument("--turns", type=int, default=24)
    parser.add_argument("--interruptions", type=int, default=50)
    return parser.parse_args()


def main():
    args = arguments()
    models = [{"name": name, "engine": "local"} for name in args.model]
    models.append({"name": TALKATIVE, "engine": "chat", "base_url": f"http://127.0.0.1:{UPSTREAM_PORT}/v1"})
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        running.enter_context(upstream())
        servers = {}
        for is_ahead in (True, False):
            _, port = running.enter_context(speaking_server(Path(folder) / str(is_ahead), models, is_ahead))
            servers[is_ahead] = port
        middles, worst = uvloop.run(measure(servers, args))
    ahead = middles[args.model[0], True]
    waiting = middles[args.model[0], False]
    print(f"first audio p50: {ahead:.2f} s (hold {AUDIO_HOLD_S}, aim {AUDIO_AIM_S}), {ahead / waiting:.2f} of that without speculation")
    print(f"quiet p99: {worst * 1000:.1f} ms (hold {QUIET_HOLD_S * 1000:.0f}, aim {QUIET_AIM_S * 1000:.0f})")
    return ahead > AUDIO_HOLD_S or worst > QUIET_HOLD_S


if __name__ == "__main__":
    sys.exit(main())
