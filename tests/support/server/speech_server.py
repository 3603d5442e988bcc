"""A real server with a predictable transcriber and synthesizer."""

import asyncio
import contextlib
import math
import threading
from struct import pack

from antiphon.engines.cascade.parts import SpeechStack
from antiphon.errors import ServerError, invalid_value
from antiphon.runtime.speech.service import SpeechService
from antiphon.server.app import build
from antiphon.speech.base import INPUT_RATE_HZ, WHOLE_SENTENCE, AudioChunk, TimedText, Transcript, check_options
from support.server.scripted_server import SCRIPT, configured
from support.server.threaded_server import serving

WORD_MS = 250


class ScriptedTranscriber:
    """
    A transcriber whose transcript is the length of the audio, as in `[2.0 s]`, and nothing for silence.

    Attributes:
        stopped: how many transcriptions were cancelled.
    """

    def __init__(self, has_times=False):
        self.languages = ("en", "fr")
        self.takes_prompt = has_times
        self.has_times = has_times
        self.is_free = True
        self.stopped = 0
        self.wishes = []
        self.waits = threading.Event()
        self.is_slow = False

    async def start(self):
        pass

    async def stop(self):
        pass

    def check_options(self, wish):
        check_options(wish, "beep", languages=self.languages, has_word_times=self.has_times)

    async def transcribe(self, pcm, wish):
        self.wishes.append(wish)
        if self.is_slow:
            self.waits.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.stopped += 1
                raise
        if not any(pcm):
            return Transcript(text="")
        seconds = len(pcm) / 2 / INPUT_RATE_HZ
        text = f"[{seconds:.1f} s]"
        segments = (TimedText(text, 0.5, seconds),) if self.has_times else ()
        words = (TimedText(text, 0.5, 1.0),) if wish.word_times else ()
        return Transcript(text=text, segments=segments, words=words, language=(wish.languages or ("en",))[0], tokens=3)


class ToneSynthesizer:
    """
    A synthesizer that plays a tone of a quarter of a second per word.

    Attributes:
        said: each text, with its voice and speed.
        closed: how many were cancelled.
    """

    voices = ("low", "high")
    joins_parts = False
    rate_hz = 22_050

    def __init__(self):
        self.said, self.closed = [], 0
        self.waits = threading.Event()

    async def start(self):
        pass

    async def stop(self):
        pass

    async def synthesize(self, text, voice=None, speed=1.0, context=WHOLE_SENTENCE):
        self.said.append((text, voice, speed))
        if voice not in (None, "alloy", *self.voices):
            raise invalid_value("voice", voice, self.voices)
        for word in text.split():
            if "break" in word:
                raise ServerError("The voice broke.")
            if "endless" in word:
                self.waits.set()
                try:
                    while True:
                        yield AudioChunk(tone(1000, self.rate_hz), "la ")
                        await asyncio.sleep(0)
                finally:
                    self.closed += 1
            yield AudioChunk(tone(WORD_MS / speed, self.rate_hz), word + " ")


def tone(ms, rate_hz, hz=220):
    count = int(ms * rate_hz / 1000)
    return pack(f"<{count}h", *(round(8000 * math.sin(2 * math.pi * hz * number / rate_hz)) for number in range(count)))


class Served:
    """The server under test, with its parts."""

    def __init__(self, url, service, transcriber, synthesizer):
        self.url, self.service, self.transcriber, self.synthesizer = url, service, transcriber, synthesizer


@contextlib.contextmanager
def speaking(home, *, transcriber=None, synthesizer=None, models=None, **settings):
    """The server, in a thread of its own."""
    models = models or {"parrot": {"engine": "scripted", **SCRIPT}}
    config = configured(home, models, **{"server.port": 0, "server.drain_s": 0.2, "store.url": "memory", **settings})
    transcriber, synthesizer = transcriber or ScriptedTranscriber(), synthesizer or ToneSynthesizer()

    def prepare(service):
        parts = SpeechStack(transcriber=transcriber, synthesizer=synthesizer, voices=(*ToneSynthesizer.voices, "alloy"))
        service.speech = SpeechService(config.speech, config.models_dir, {}, stack=parts)

    with serving(config, build, prepare=prepare) as (server, url):
        yield Served(url, server.service, transcriber, synthesizer)
