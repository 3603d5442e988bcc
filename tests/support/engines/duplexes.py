"""Full-duplex engines: one that the test controls, and the scripted one."""

import asyncio
import contextlib

from msgspec import structs

from antiphon.engine_api import commands, events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.duplex.engine import DuplexAdapter
from support.engines.hearings import Told, engine, noise, quiet

RATE_HZ = 16_000
VOICE_HZ = 24_000
PLAIN = Capabilities(listens=True, turn_detection=("server_vad",), audio_in=True, audio_out=True, truncation=True)
TURN_END = noise(300, rate_hz=RATE_HZ) + quiet(700, RATE_HZ)
"""A second of audio in which a turn begins and ends."""


def piece(ms=1000):
    return commands.AppendAudio(quiet(ms, RATE_HZ))


def sound(id, ms):
    return events.AudioDelta(id, b"\1\0" * (VOICE_HZ * ms // 1000))


def silent_parrot(**options):
    """A scripted engine without full duplex."""
    return engine(abilities={"full_duplex": False, "sees": False}, **options)


class Puppet:
    """
    An engine that listens, and that the test controls.

    Attributes:
        told: all commands that it got.
        overrun: raised by a request.
    """

    def __init__(self, **abilities):
        self.capabilities = structs.replace(PLAIN, **abilities)
        self.told = []
        self.overrun = None
        self.paused = 0

    async def start(self):
        pass

    async def stop(self):
        pass

    @contextlib.asynccontextmanager
    async def open(self, settings, deliver):
        self.deliver = deliver
        yield self

    def send(self, word):
        if self.overrun is not None and isinstance(word, commands.Respond):
            raise self.overrun
        self.told.append(word)

    def pause(self):
        self.paused += 1

    def resume(self):
        self.paused -= 1

    def of(self, kind):
        return [word for word in self.told if isinstance(word, kind)]

    @property
    def request(self):
        return self.of(commands.Respond)[-1]

    def say(self, *words):
        """Deliver these events with the id of the last request."""
        self.deliver([word if not callable(word) else word(self.request.id) for word in words])

    def turn(self, id="turn_1", start_ms=0, end_ms=1000):
        self.deliver([events.SpeechStarted(id, start_ms)])
        self.deliver([events.SpeechStopped(id, end_ms)])


class Skipping(asyncio.SelectorEventLoop):
    """An event loop whose clock only advances when the test moves it."""

    skipped_s = 0.0

    def time(self):
        return self.skipped_s


class Duet(Told):
    """A conversation in full duplex."""

    async def skip(self, seconds):
        """Move the clock forward in one step."""
        asyncio.get_running_loop().skipped_s += seconds
        await self.settle()

    async def pieces(self, count, ms=1000):
        """Send chunks of silence, each after its duration, as a microphone does."""
        loop = asyncio.get_running_loop()
        for _ in range(count):
            if isinstance(loop, Skipping):
                loop.skipped_s += ms / 1000
            await self.hear(quiet(ms, RATE_HZ))

    def take(self):
        """All events since the last call."""
        words = self.words
        self.deliveries.clear()
        return words

    def sound_ms(self, id="duplex_1"):
        return sum(len(word.pcm) for word in self.words if isinstance(word, events.AudioDelta) and word.id == id) * 1000 / (2 * VOICE_HZ)

    def kinds(self):
        return [type(word).__name__ for word in self.words]


def conversed(within, scenario, converse=None, *, reader=None):
    """Play a scenario in full duplex with a turn-based engine; returns the events after `Ready`."""

    async def play():
        duet = Duet()
        async with DuplexAdapter(within, reader).open(ConversationSettings(model="m"), duet) as duet.conversation:
            duet.send(converse or commands.StartDuplex(instructions="Be brief."))
            await duet.settle()
            duet.ready = duet.take()
            await scenario(duet)
            await duet.settle()
            duet.last = duet.words
        return duet

    with asyncio.Runner(loop_factory=Skipping) as runner:
        return runner.run(play())


def performed(scripted, scenario, converse=None):
    """Play a scenario with an engine that has full duplex itself."""

    async def play():
        duet = Duet()
        async with asyncio.timeout(60), scripted.open(ConversationSettings(model="m"), duet) as duet.conversation:
            duet.send(converse or commands.StartDuplex())
            await scenario(duet)
            await duet.settle()
        return duet

    return asyncio.run(play())
