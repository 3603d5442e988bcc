"""
How many words do the speech-to-text models get wrong, how long do they take, and how many words of partial transcripts change later?

People's recordings are transcribed unchanged, with white noise and with other voices at 20, 10 and 5 dB, and as on the telephone: 8 kHz,
mu-law. The word error rate is the number of words that must be inserted, deleted or replaced, divided by the words spoken; there are three
samples of every noise. CPU time is that of all threads, latencies are medians; both depend on the load of the machine.

    python bench/word_error_rate.py [folder ...]

Without a folder, the recordings of the tests are used. A folder has WAV files, 16 kHz mono, and their texts in a table of its README.md or
in a `*transcription` file like those of Debian's `pocketsphinx-testdata`. Weights are loaded from ANTIPHON_MODELS, or from where
`antiphon models pull` stores them; a model whose weights or Python packages are missing is skipped.
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import asyncio
import os
import re
import statistics
import time
import wave
from pathlib import Path
from typing import NamedTuple

import numpy as np

from antiphon.audio import decode_ulaw, encode_ulaw
from antiphon.engine_api.options import Transcription
from antiphon.errors import ApiError
from antiphon.speech.dsp.resample import resample
from antiphon.speech.stt.moonshine import MoonshineTranscriber
from antiphon.speech.stt.partials import POLICIES_BY_DELAY, PartialTranscriber
from antiphon.speech.stt.whisper import WhisperTranscriber

RECORDINGS = Path(__file__).parent.parent / "tests" / "speech" / "recordings"
MODELS = Path(os.environ.get("ANTIPHON_MODELS") or Path.home() / ".cache" / "antiphon" / "models")
RATE_HZ = 16_000
ENGLISH = Transcription(languages=("en",))
SNR_DB = (20, 10, 5)
TAKES = 3
ROUNDS = 5
VOICES = 4
NUMBERS = dict(enumerate("zero one two three four five six seven eight nine ten".split()))


class Clip(NamedTuple):
    name: str
    samples: np.ndarray
    words: list[str]


# Texts


def words(text):
    """The words of a text, in one spelling."""
    text = re.sub(r"\bmr\b\.?", "mister", text.lower())
    text = re.sub(r"\d+", lambda number: NUMBERS.get(int(number.group()), number.group()), text)
    return re.findall(r"[a-z0-9']+", text)


def texts_by_name(folder):
    """The text of each of a folder's recordings, by the recording's name."""
    table = folder / "README.md"
    found = dict(re.findall(r"^\| `(\w+)\.wav` \|[^|]*\| ([^|]+) \|$", table.read_text(), re.MULTILINE)) if table.is_file() else {}
    for file in folder.glob("*transcription"):
        found |= {name: text for text, name in re.findall(r"^<s> (.+?) +</s> \((\S+)\)$", file.read_text(), re.MULTILINE)}
    return found


def clips(folder):
    for name, text in sorted(texts_by_name(folder).items()):
        with wave.open(str(folder / f"{name}.wav")) as file:
            assert (file.getframerate(), file.getnchannels()) == (RATE_HZ, 1), name
            yield Clip(name, np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32_768, words(text))


# Noise


def pcm(samples):
    return (samples.clip(-1, 32_767 / 32_768) * 32_768).astype("<i2").tobytes()


def mix(samples, noise, snr_db):
    """Both, with the noise quieter by `snr_db`."""
    scale = np.sqrt(np.mean(samples**2) / np.mean(noise**2)) * 10 ** (-snr_db / 20)
    return samples + scale * noise


def white(rng, clip, _others):
    return rng.standard_normal(len(clip.samples))


def babble(rng, clip, others):
    """Other voices that speak all the time."""
    recordings = np.concatenate([other.samples / np.std(other.samples) for other in others if other is not clip])
    return sum(np.resize(np.roll(recordings, rng.integers(len(recordings))), len(clip.samples)) for _ in range(VOICES))


def telephone(clip):
    narrow = resample(pcm(clip.samples), RATE_HZ, 8_000)
    return resample(decode_ulaw(encode_ulaw(narrow)), 8_000, RATE_HZ)


def conditions(recordings):
    """Names of the conditions, each with its sounds and their words."""
    yield "unchanged", [(pcm(clip.samples), clip.words) for clip in recordings]
    for name, noise in (("white noise", white), ("voices", babble)):
        for snr_db in SNR_DB:
            rng = np.random.default_rng(snr_db)
            noisy = [
                (pcm(mix(clip.samples, noise(rng, clip, recordings), snr_db)), clip.words) for clip in recordings for _ in range(TAKES)
            ]
            yield f"{name}, {snr_db} dB", noisy
    yield "telephone", [(telephone(clip), clip.words) for clip in recordings]


# Measurements


def errors(expected, got):
    costs = list(range(len(got) + 1))
    for row, word in enumerate(expected, 1):
        before, costs = costs, [row]
        for column, other in enumerate(got, 1):
            costs.append(min(before[column] + 1, costs[-1] + 1, before[column - 1] + (word != other)))
    return costs[-1]


async def error_rate(transcriber, sounds):
    wrong = sum([errors(expected, words((await transcriber.transcribe(sound, ENGLISH)).text)) for sound, expected in sounds])
    return wrong / sum(len(expected) for _, expected in sounds)


async def measure_latency(transcriber, sound):
    walls, processors = [], []
    for _ in range(ROUNDS):
        wall, processor = time.perf_counter(), time.process_time()
        await transcriber.transcribe(sound, ENGLISH)
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    return statistics.median(walls), statistics.median(processors)


async def hallucinations(transcriber):
    """In how many samples of noise alone, at different levels, words are transcribed, and the number of samples."""
    rng = np.random.default_rng(1)
    noises = [pcm(rng.standard_normal(seconds * RATE_HZ) * 10 ** (dbfs / 20)) for seconds in (1, 3, 8) for dbfs in range(-80, -10, 10)]
    return sum([bool((await transcriber.transcribe(noise, ENGLISH)).text) for noise in noises]), len(noises)


async def measure_partials(transcriber, delay, recordings):
    """
    The partial transcripts of all recordings.

    Returns:
        The median time of the first word in ms of audio, the share of words sent before the end of their turn, and the
        share of turns whose transcript begins with the words sent before its end.
    """
    early = total = right = 0
    first_ms = []
    for clip in recordings:
        sound, deltas = pcm(clip.samples), []
        partials = PartialTranscriber(transcriber, Transcription(languages=("en",), delay=delay), deltas.append)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(partials.run())
            for start in range(0, len(sound), 640):
                partials.append_audio(sound[start : start + 640])
                # The model's own time doesn't count, only the audio that it needs.
                while await is_transcribing(transcriber):
                    pass
                if deltas and len(first_ms) < recordings.index(clip) + 1:
                    first_ms.append(partials.audio_ms)
            running.cancel()
        transcript = (await partials.transcript()).text
        early += len(words(partials.confirmed_text))
        total += len(words(transcript))
        right += transcript.startswith(partials.confirmed_text)
    return statistics.median(first_ms), early / total, right / len(recordings)


async def is_transcribing(transcriber):
    for _ in range(3):
        await asyncio.sleep(0)
    if transcriber.is_busy:
        await asyncio.sleep(0.001)
    return transcriber.is_busy


class BusyTranscriber:
    """A transcriber that knows whether it is transcribing."""

    def __init__(self, transcriber):
        self.transcriber = transcriber
        self.is_busy = False

    async def transcribe(self, sound, options):
        self.is_busy = True
        try:
            return await self.transcriber.transcribe(sound, options)
        finally:
            self.is_busy = False


async def transcribers():
    for kind, name in ((MoonshineTranscriber, "moonshine-tiny-en"), (WhisperTranscriber, "whisper-base")):
        transcriber = kind(MODELS / name)
        try:
            await transcriber.start()
        except ApiError as error:
            print(f"{name} is skipped: {error.message}", file=sys.stderr)
        else:
            yield name, transcriber
        await transcriber.stop()


def table(*rows):
    head, *rest = rows
    for row in (head, ["---"] * len(head), *rest):
        print(f"| {' | '.join(map(str, row))} |")
    print()


async def main():
    recordings = [clip for folder in map(Path, sys.argv[1:] or [RECORDINGS]) for clip in clips(folder)]
    print(f"{len(recordings)} recordings, {sum(len(clip.words) for clip in recordings)} words\n")
    sounds = dict(conditions(recordings))
    rates, times, noises, partials = [], [], [], []
    async for name, transcriber in transcribers():
        rates.append([name, *[f"{100 * await error_rate(transcriber, each):.1f} %" for each in sounds.values()]])
        for clip in recordings if len(recordings) <= 5 else sorted(recordings, key=lambda each: len(each.samples))[:: len(recordings) // 4]:
            seconds = len(clip.samples) / RATE_HZ
            wall, processor = await measure_latency(transcriber, pcm(clip.samples))
            times.append([name, f"{seconds:.1f} s", f"{wall * 1000:.0f} ms", f"{processor * 1000:.0f} ms", f"{processor / seconds:.3f}"])
        noises.append([name, "{} of {}".format(*await hallucinations(transcriber))])
        for delay in POLICIES_BY_DELAY if isinstance(transcriber, MoonshineTranscriber) else ("medium",):
            first_ms, early, right = await measure_partials(BusyTranscriber(transcriber), delay, recordings)
            partials.append([name, delay, f"{first_ms / 1000:.1f} s", f"{100 * early:.0f} %", f"{100 * right:.0f} %"])
    table(["word error rate", *sounds], *rates)
    table(["", "recording", "latency", "CPU time", "of the audio's length"], *times)
    table(["", "samples of noise with words in their transcript"], *noises)
    table(["", "delay", "first word after", "words sent before the end", "turns whose words did not change"], *partials)


asyncio.run(main())
