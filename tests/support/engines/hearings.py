"""Conversations with a scripted engine, and audio for it."""

import asyncio
import contextlib
import struct
from pathlib import Path

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.engine import BuildContext
from antiphon.engine_api.options import ConversationSettings, Transcription, TurnDetection
from antiphon.engines.scripted.engine import build

RATE_HZ = 24_000
LISTEN = commands.Configure(turn_detection=TurnDetection(), transcription=Transcription())


def engine(base=Path(), **options):
    return build("parrot", options, BuildContext(weights_folder=Path("unused"), base_folder=base))


def noise(ms, level=8000, rate_hz=RATE_HZ):
    """Audio of which every sample is at `level`."""
    count = ms * rate_hz // 1000
    return struct.pack(f"<{count}h", *(level if number % 2 else -level for number in range(count)))


def quiet(ms, rate_hz=RATE_HZ):
    return bytes(ms * rate_hz // 1000 * 2)


def ask(*parts, id="resp_1", **more):
    said = tuple(history.TextPart(part) if isinstance(part, str) else part for part in parts)
    return commands.Respond(id=id, history=(history.Message("user", said),), **more)


class Told:
    """
    A conversation and its events.

    Attributes:
        words: all events of the engine.
        deliveries: the same, in the batches in which they were delivered.
    """

    def __init__(self):
        self.deliveries = []
        self.conversation = None
        self._changed = asyncio.Event()

    def __call__(self, words):
        self.deliveries.append(tuple(words))
        self._changed.set()

    @property
    def words(self):
        return [word for words in self.deliveries for word in words]

    def send(self, *words):
        before = len(self.deliveries)
        for word in words:
            self.conversation.send(word)
        assert len(self.deliveries) == before, "nothing may be said from within `send`"

    async def hear(self, *sounds):
        """Send chunks of audio, each in an iteration of its own, and wait for the immediate events."""
        for pcm in sounds:
            self.send(commands.AppendAudio(pcm))
            await asyncio.sleep(0)
        await self.settle()

    async def settle(self):
        """Wait until only timed events are left."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def until(self, condition):
        async with asyncio.timeout(10):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def ended(self, id="resp_1"):
        """All events with an id, once it has ended."""
        await self.until(
            lambda: any(isinstance(word, events.ResponseEnded | events.ResponseFailed) and word.id == id for word in self.words)
        )
        return [word for word in self.words if word.id == id]

    def edges(self):
        """Where speech started and stopped."""
        return [
            (type(word).__name__, word.id, word.at_ms)
            for word in self.words
            if isinstance(word, events.SpeechStarted | events.SpeechStopped)
        ]

    def transcripts(self):
        return [(word.id, word.transcript) for word in self.words if isinstance(word, events.InputTranscriptDone)]


@contextlib.asynccontextmanager
async def telling(scripted, *words):
    told = Told()
    async with scripted.open(ConversationSettings(model="parrot"), told) as told.conversation:
        told.send(*words)
        yield told
