"""Full duplex with real speech models: people's recordings, sent as fast as they are accepted."""

import asyncio
import os
import wave
from pathlib import Path

import pytest

from antiphon.config.settings import SpeechSettings
from antiphon.engine_api import commands, events
from antiphon.engine_api.engine import BuildContext
from antiphon.engine_api.options import ConversationSettings, Transcription
from antiphon.engines.duplex.engine import DuplexAdapter
from antiphon.engines.scripted.engine import build
from antiphon.runtime.speech.service import SpeechService
from antiphon.speech.dsp.resample import resample
from antiphon.speech.stt.moonshine import MoonshineTranscriber
from support.engines.duplexes import RATE_HZ, VOICE_HZ, Duet
from support.engines.hearings import quiet

pytestmark = pytest.mark.weights

WEIGHTS = Path(
    os.environ.get("ANTIPHON_MODELS") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon" / "models"
)
WORDS = {"cards_001": "ten of clubs", "cards_005": "eight of spades four of clubs seven of hearts"}
DEAF = {"audio_in": False, "audio_out": False, "listens": False}


def recording(name):
    with wave.open(str(Path(__file__).parents[2] / "speech" / "recordings" / f"{name}.wav")) as file:
        assert file.getframerate() == RATE_HZ
        return file.readframes(file.getnframes())


def plain(text):
    return "".join(letter for letter in text.lower() if letter.isalnum() or letter == " ").split()


async def send(duet, pcm, ms):
    size = RATE_HZ * ms // 1000 * 2
    for at in range(0, len(pcm), size):
        duet.send(commands.AppendAudio(pcm[at : at + size]))
        await asyncio.sleep(0)


async def silent_until(duet, condition, ms=100):
    """Send silence, ten times as fast as it lasts, until that holds."""
    async with asyncio.timeout(60):
        while not condition():
            await send(duet, quiet(ms, RATE_HZ), ms)
            await asyncio.sleep(ms / 10_000)


def ended(duet):
    return [word for word in duet.words if isinstance(word, events.ResponseEnded | events.ResponseFailed)]


@pytest.fixture(scope="module")
def talked():
    """Plays a scenario with the speech models that the module's tests share."""
    with asyncio.Runner() as runner:
        speech = SpeechService(SpeechSettings(), WEIGHTS, {})

        def play(scenario, answer="You said: {input}."):
            runner.run(talk_it_over(speech, scenario, answer))

        yield play
        runner.run(speech.stop())


async def talk_it_over(speech, scenario, answer):
    build_context = BuildContext(weights_folder=WEIGHTS, base_folder=Path())
    engine = DuplexAdapter(speech.with_speech(build("parrot", {"answers": [{"say": answer}], "abilities": DEAF}, build_context)))
    duet = Duet()
    async with engine.open(ConversationSettings(model="parrot"), duet) as duet.conversation:
        duet.send(commands.StartDuplex())
        await duet.until(lambda: duet.words)
        await scenario(duet)


async def heard_in(pcm):
    ear = MoonshineTranscriber(WEIGHTS / "moonshine-tiny-en")
    await ear.start()
    try:
        return plain((await ear.transcribe(resample(pcm, VOICE_HZ, RATE_HZ), Transcription())).text)
    finally:
        await ear.stop()


@pytest.mark.parametrize("ms", [100, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ["cards_001", pytest.param("cards_005", marks=pytest.mark.long)])
def test_what_a_person_says_is_answered_in_words_and_in_sound(talked, name, ms):
    async def scenario(duet):
        await send(duet, quiet(500, RATE_HZ) + recording(name), ms)
        await silent_until(duet, lambda: ended(duet), ms)
        (end,) = ended(duet)
        assert end == events.ResponseEnded(end.id)
        said = plain("".join(word.text for word in duet.words if isinstance(word, events.AudioTranscriptDelta)))
        assert said[:2] == ["you", "said"]
        assert len(set(said[2:]) & set(WORDS[name].split())) >= len(set(WORDS[name].split())) - 1
        sounds = b"".join(word.pcm for word in duet.words if isinstance(word, events.AudioDelta))
        assert len(set(await heard_in(sounds)) & set(said)) >= len(set(said)) * 2 // 3

    talked(scenario)


@pytest.mark.parametrize(("ms", "pieces"), [(100, 10), (1000, 2)])
def test_an_answer_falls_silent_within_a_second_of_speech(talked, ms, pieces):
    async def scenario(duet):
        await send(duet, recording("cards_001"), ms)
        await silent_until(duet, lambda: duet.sound_ms() > 0, ms)
        pcm = recording("lv_0870")
        size = RATE_HZ * ms // 1000 * 2
        told = 0
        while not ended(duet):
            duet.send(commands.AppendAudio(pcm[told * size : (told + 1) * size]))
            told += 1
            await asyncio.sleep(ms / 10_000)
        assert ended(duet) == [events.ResponseEnded("duplex_1", "cancelled")]
        assert told <= pieces

    talked(scenario, "There was an old man with a beard, who said it is just as I feared. " * 5)
