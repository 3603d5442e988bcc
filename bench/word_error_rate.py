"""
How many words do the ears get wrong, how long do they take, and how many words are told before the end that turn out otherwise?

Of people's recordings as they are, with white noise and with other people's voices over them at 20, 10 and 5 dB, and as the telephone
brings them: 8 kHz, mu-law. A word error rate is the words that must be put in, left out or replaced, of all that were said; of noises
there are three of each kind. Seconds of processor time are of all threads, latencies are medians; the machine's load shows in both.

    python bench/word_error_rate.py [folder ...]

Without a folder: the recordings of the tests. A folder has WAV files, 16 kHz mono, and says what is in them in a table of its README.md, or
in a `*transcription` like those of Debian's `pocketsphinx-testdata`. Weights are looked for where `antiphon models pull` puts them, or in
ANTIPHON_MODELS; an ear whose weights or extra are not there is left out.
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


# What is said


def words(text):
    """The words of a text, however they are written."""
    text = re.sub(r"\bmr\b\.?", "mister", text.lower())
    text = re.sub(r"\d+", lambda number: NUMBERS.get(int(number.group()), number.group()), text)
    return re.findall(r"[a-z0-9']+", text)


def said(folder):
    """What is in each of the folder's recordings, by its name."""
    table = folder / "README.md"
    found = dict(re.findall(r"^\| `(\w+)\.wav` \|[^|]*\| ([^|]+) \|$", table.read_text(), re.MULTILINE)) if table.is_file() else {}
    for file in folder.glob("*transcription"):
        found |= {name: text for text, name in re.findall(r"^<s> (.+?) +</s> \((\S+)\)$", file.read_text(), re.MULTILINE)}
    return found


def clips(folder):
    for name, text in sorted(said(folder).items()):
        with wave.open(str(folder / f"{name}.wav")) as file:
            assert (file.getframerate(), file.getnchannels()) == (RATE_HZ, 1), name
            yield Clip(name, np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32_768, words(text))


# What it is heard through


def pcm(samples):
    return (samples.clip(-1, 32_767 / 32_768) * 32_768).astype("<i2").tobytes()


def at(samples, noise, snr_db):
    """Both, the noise so much quieter."""
    scale = np.sqrt(np.mean(samples**2) / np.mean(noise**2)) * 10 ** (-snr_db / 20)
    return samples + scale * noise


def white(rng, clip, _others):
    return rng.standard_normal(len(clip.samples))


def babble(rng, clip, others):
    """Some others, who speak all the time."""
    everyone = np.concatenate([other.samples / np.std(other.samples) for other in others if other is not clip])
    return sum(np.resize(np.roll(everyone, rng.integers(len(everyone))), len(clip.samples)) for _ in range(VOICES))


def telephone(clip):
    narrow = resample(pcm(clip.samples), RATE_HZ, 8_000)
    return resample(decode_ulaw(encode_ulaw(narrow)), 8_000, RATE_HZ)


def heard(everyone):
    """By what it is heard through: what is heard, and what was said."""
    yield "as it is", [(pcm(clip.samples), clip.words) for clip in everyone]
    for name, noise in (("white noise", white), ("voices", babble)):
        for snr_db in SNR_DB:
            rng = np.random.default_rng(snr_db)
            noisy = [(pcm(at(clip.samples, noise(rng, clip, everyone), snr_db)), clip.words) for clip in everyone for _ in range(TAKES)]
            yield f"{name}, {snr_db} dB", noisy
    yield "telephone", [(telephone(clip), clip.words) for clip in everyone]


# What is measured


def errors(expected, got):
    costs = list(range(len(got) + 1))
    for row, word in enumerate(expected, 1):
        before, costs = costs, [row]
        for column, other in enumerate(got, 1):
            costs.append(min(before[column] + 1, costs[-1] + 1, before[column - 1] + (word != other)))
    return costs[-1]


async def rate(ear, sounds):
    wrong = sum([errors(expected, words((await ear.transcribe(sound, ENGLISH)).text)) for sound, expected in sounds])
    return wrong / sum(len(expected) for _, expected in sounds)


async def timed(ear, sound):
    walls, processors = [], []
    for _ in range(ROUNDS):
        wall, processor = time.perf_counter(), time.process_time()
        await ear.transcribe(sound, ENGLISH)
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    return statistics.median(walls), statistics.median(processors)


async def made_up(ear):
    """Of stretches of noise alone, at different levels, those in which it heard something."""
    rng = np.random.default_rng(1)
    noises = [pcm(rng.standard_normal(seconds * RATE_HZ) * 10 ** (dbfs / 20)) for seconds in (1, 3, 8) for dbfs in range(-80, -10, 10)]
    return sum([bool((await ear.transcribe(noise, ENGLISH)).text) for noise in noises]), len(noises)


async def told(ear, delay, everyone):
    """Of all words: the share told before the end, and of the turns, that in which what was told is how the transcript begins."""
    early = total = right = 0
    first_ms = []
    for clip in everyone:
        sound, more = pcm(clip.samples), []
        partials = PartialTranscriber(ear, Transcription(languages=("en",), delay=delay), more.append)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(partials.run())
            for start in range(0, len(sound), 640):
                partials.append_audio(sound[start : start + 640])
                # The time that rounds take is left out: what is counted is what was told of so much sound.
                while await idle(ear):
                    pass
                if more and len(first_ms) < everyone.index(clip) + 1:
                    first_ms.append(partials.audio_ms)
            running.cancel()
        transcript = (await partials.transcript()).text
        early += len(words(partials.confirmed_text))
        total += len(words(transcript))
        right += transcript.startswith(partials.confirmed_text)
    return statistics.median(first_ms), early / total, right / len(everyone)


async def idle(ear):
    for _ in range(3):
        await asyncio.sleep(0)
    if ear.is_at_work:
        await asyncio.sleep(0.001)
    return ear.is_at_work


class Counted:
    """An ear of which it is known whether it is at work."""

    def __init__(self, ear):
        self.ear = ear
        self.is_at_work = False

    async def transcribe(self, sound, wish):
        self.is_at_work = True
        try:
            return await self.ear.transcribe(sound, wish)
        finally:
            self.is_at_work = False


async def ears():
    for kind, name in ((MoonshineTranscriber, "moonshine-tiny-en"), (WhisperTranscriber, "whisper-base")):
        ear = kind(MODELS / name)
        try:
            await ear.start()
        except ApiError as fault:
            print(f"{name} is left out: {fault.message}", file=sys.stderr)
        else:
            yield name, ear
        await ear.stop()


def table(*rows):
    head, *rest = rows
    for row in (head, ["---"] * len(head), *rest):
        print(f"| {' | '.join(map(str, row))} |")
    print()


async def main():
    everyone = [clip for folder in map(Path, sys.argv[1:] or [RECORDINGS]) for clip in clips(folder)]
    print(f"{len(everyone)} recordings, {sum(len(clip.words) for clip in everyone)} words\n")
    sounds = dict(heard(everyone))
    rates, times, noises, tellings = [], [], [], []
    async for name, ear in ears():
        rates.append([name, *[f"{100 * await rate(ear, each):.1f} %" for each in sounds.values()]])
        for clip in everyone if len(everyone) <= 5 else sorted(everyone, key=lambda each: len(each.samples))[:: len(everyone) // 4]:
            seconds = len(clip.samples) / RATE_HZ
            wall, processor = await timed(ear, pcm(clip.samples))
            times.append([name, f"{seconds:.1f} s", f"{wall * 1000:.0f} ms", f"{processor * 1000:.0f} ms", f"{processor / seconds:.3f}"])
        noises.append([name, "{} of {}".format(*await made_up(ear))])
        for delay in POLICIES_BY_DELAY if isinstance(ear, MoonshineTranscriber) else ("medium",):
            first_ms, early, right = await told(Counted(ear), delay, everyone)
            tellings.append([name, delay, f"{first_ms / 1000:.1f} s", f"{100 * early:.0f} %", f"{100 * right:.0f} %"])
    table(["word error rate", *sounds], *rates)
    table(["", "recording", "latency", "processor time", "of the sound's length"], *times)
    table(["", "noises alone in which something is heard"], *noises)
    table(["", "delay", "first word after", "words told before the end", "turns in which they stayed"], *tellings)


asyncio.run(main())
