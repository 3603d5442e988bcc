"""
How soon is each voice heard, and how much faster than its audio does it speak? `python bench/voice_parts.py [FOLDER OF MODELS]`.

The first audio is what counts in a conversation. Piper sends it in pieces, Kokoro a whole clause at once. Each figure is the best of five
tries; CPU time is that of the voice's process, per second of audio.
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import asyncio
import time
from pathlib import Path

from antiphon.errors import ApiError
from antiphon.speech.tts.voices import kokoro_synthesizer, piper_synthesizer
from measuring import cpu_ns, memory_mb

TRIES = 5
TEXTS = {
    "a word": "Sure.",
    "a clause": "Well, that depends,",
    "a sentence": "The capital of France is Paris.",
    "a long one": "The capital of France is Paris, and one thing you should definitely see there is the Eiffel Tower at night.",
}


async def once(mouth, text):
    began, first, size = time.perf_counter(), None, 0
    async for piece in mouth.synthesize(text):
        first = first or time.perf_counter() - began
        size += len(piece.pcm)
    return first, time.perf_counter() - began, size / 2 / mouth.rate_hz


async def measured(name, mouth):
    began = time.perf_counter()
    try:
        await mouth.start()
    except ApiError as fault:
        print(f"{name}: {fault.message}")
        return
    ready = time.perf_counter() - began
    for kind, text in TEXTS.items():
        spent = cpu_ns(mouth.process.pid)
        runs = [await once(mouth, text) for _ in range(TRIES)]
        cpu_s = (cpu_ns(mouth.process.pid) - spent) / 1e9 / sum(sound for *_, sound in runs)
        first = min(first for first, *_ in runs)
        factor = min(whole / sound for _, whole, sound in runs)
        print(f"| {name} | {kind} | {runs[0][2]:.1f} s | {first * 1000:.0f} ms | {factor:.3f} | {cpu_s * 1000:.0f} ms |")
    print(f"\n{name}: ready in {ready:.1f} s, {memory_mb(mouth.process.pid):.0f} MB.\n")
    await mouth.stop()


async def main(folder):
    print("| voice | text | audio | first audio after | real-time factor | CPU per second of audio |\n| - | - | - | - | - | - |")
    makers = {
        "Piper": lambda: piper_synthesizer(sorted(folder.glob("piper-*"))),
        "Kokoro": lambda: kokoro_synthesizer(folder / "kokoro-82m-int8"),
    }
    for name, maker in makers.items():
        try:
            mouth = maker()
        except ApiError as fault:
            print(f"{name}: {fault.message}")
            continue
        await measured(name, mouth)


asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path.home() / ".cache" / "antiphon" / "models")))
