"""Shared by tests with real speech models: people's recordings, sounds other than speech, and ways to speak and to listen."""

import array
import base64
import math
import os
import random
import wave
from pathlib import Path

from antiphon.audio import encode_ulaw
from antiphon.speech.dsp.resample import resample
from support.server.realtime_peer import kinds

RATE_HZ = 24_000
RECORDINGS = Path(__file__).parents[2] / "speech" / "recordings"
WEIGHTS = Path(
    os.environ.get("ANTIPHON_MODELS") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon" / "models"
)
WORDS = {"cards_001": "ten of clubs", "cards_005": "eight of spades four of clubs seven of hearts"}
DEAF = {"abilities": {"audio_in": False, "audio_out": False, "listens": False}}
"""Options of a scripted text engine, which gets speech models around it."""

TRANSCRIBED = {"type": "realtime", "audio": {"input": {"transcription": {"model": "whisper-1"}}}}
BY_HAND = {"type": "realtime", "audio": {"input": {"turn_detection": None, "transcription": {"model": "whisper-1"}}}}


def recording(name, rate_hz=RATE_HZ):
    """A person's voice."""
    with wave.open(str(RECORDINGS / f"{name}.wav")) as file:
        return resample(file.readframes(file.getnframes()), file.getframerate(), rate_hz)


def silence(seconds, rate_hz=RATE_HZ):
    return bytes(int(seconds * rate_hz) * 2)


def mixed(*sounds):
    """Sounds mixed, as long as the longest."""
    samples = [array.array("h", sound) for sound in sounds]
    longest = max(map(len, samples))
    padded = [each + array.array("h", bytes(2 * (longest - len(each)))) for each in samples]
    return array.array("h", (max(-32_768, min(32_767, sum(at))) for at in zip(*padded, strict=True))).tobytes()


def music(seconds, rate_hz=RATE_HZ):
    """Chords of a plucked instrument, with a beat."""
    dice, samples, beat = random.Random(7), array.array("h"), rate_hz // 2
    for _ in range(int(seconds * 2)):
        notes = [220 * 2 ** (step / 12) for step in dice.sample((0, 3, 5, 7, 10, 12, 15), 3)]
        for number in range(beat):
            loud = 3000 * math.exp(-4 * number / beat)
            samples.append(int(sum(loud * math.sin(math.tau * note * number / rate_hz) for note in notes)))
    return samples.tobytes()


async def append(peer, pcm, piece=RATE_HZ // 5):
    """Send audio, a tenth of a second at a time."""
    for at in range(0, len(pcm), piece):
        await peer.say("input_audio_buffer.append", audio=base64.b64encode(pcm[at : at + piece]).decode())


async def append_ulaw(peer, pcm):
    """Send audio at 8 kHz, as a telephone does."""
    await append(peer, encode_ulaw(pcm), 800)


async def heard_as(peer):
    """The transcript of the next turn."""
    return (await peer.until("conversation.item.input_audio_transcription.completed"))[-1]["transcript"]


def sound_of(events, kind="response.output_audio.delta"):
    return b"".join(base64.b64decode(event["delta"]) for event in events if event["type"] == kind)


def words_of(events):
    """The transcript of an answer."""
    return "".join(event["delta"] for event in events if event["type"] == "response.output_audio_transcript.delta")


def plain(text):
    """The words of a text, without punctuation."""
    return "".join(letter for letter in text.lower() if letter.isalnum() or letter == " ").split()


def errors_between(text, other):
    """The number of words to insert, delete or replace."""
    row = list(range(len(other) + 1))
    for at, word in enumerate(text, 1):
        before, row[0] = row[0], at
        for place, wanted in enumerate(other, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (word != wanted))
    return row[-1]


def check_whole(events):
    """Every created response is done exactly once, and no error was sent."""
    assert "error" not in kinds(events)
    created = [event["response"]["id"] for event in events if event["type"] == "response.created"]
    done = [event["response"]["id"] for event in events if event["type"] == "response.done"]
    assert len(set(done)) == len(done)
    assert set(done) <= set(created)
