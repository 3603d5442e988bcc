"""
Cascades with predictable parts.

Audio is at 16 kHz. Each word is 160 ms of a level of its own, by which the transcriber recognizes it; silence is zeros.
"""

import asyncio
import contextlib
import struct
from collections import deque
from itertools import groupby

from antiphon.audio import peak
from antiphon.engine_api import commands, events, history as engine_history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import ConversationSettings, Transcription, TurnDetection, Voice
from antiphon.engines.cascade.engine import Cascade
from antiphon.engines.cascade.parts import SpeechStack
from antiphon.speech.base import WHOLE_SENTENCE, AudioChunk, TimedText, Transcript
from support.engines.hearings import Told

RATE_HZ = 16_000
WORD_MS = 160
FRAME_BYTES = 1024
FRAME_MS = 32
WORDS = "zero one two three four five six seven eight nine".split()
SILENCE_MS = 480
LISTEN = commands.Configure(rate_hz=RATE_HZ, turn_detection=TurnDetection(silence_duration_ms=SILENCE_MS), transcription=Transcription())
UNREAD = commands.Configure(rate_hz=RATE_HZ, turn_detection=TurnDetection(silence_duration_ms=SILENCE_MS))
BY_HAND = commands.Configure(rate_hz=RATE_HZ, transcription=Transcription())
VOICE = Voice(rate_hz=RATE_HZ)


def level(word):
    return 1000 * (1 + WORDS.index(word))


def said(*words):
    """Audio of the words."""
    return b"".join(struct.pack("<h", level(word)) * (RATE_HZ * WORD_MS // 1000) for word in words)


def quiet(ms):
    return bytes(RATE_HZ * ms // 1000 * 2)


class Ear:
    """
    Hears words by their levels.

    Attributes:
        asked: how many milliseconds each sound had that it was given.
        faults: raised, one each time.
        is_held: whether it takes until `let_go`.
        is_free: whether it says that nobody waits for it.
        mishears: whether it takes the last word for another where less than 160 ms of silence follow it.
        stopped: how much of its work was stopped.
    """

    languages = ()
    takes_prompt = True

    def __init__(self, has_times=False):
        self.has_times = has_times
        self.is_free = True
        self.mishears = False
        self.asked = []
        self.faults = []
        self.is_held = False
        self.stopped = 0
        self._may_go_on = asyncio.Event()

    async def start(self):
        pass

    async def stop(self):
        pass

    def check_options(self, options):
        pass

    def hold(self):
        self.is_held = True
        self._may_go_on.clear()

    def let_go(self):
        self.is_held = False
        self._may_go_on.set()

    async def transcribe(self, pcm, options):
        self.asked.append(len(pcm) * 1000 // (2 * RATE_HZ))
        if self.faults:
            raise self.faults.pop(0)
        try:
            await (self._may_go_on.wait() if self.is_held else asyncio.sleep(0))
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        levels = [(sample, sum(1 for _ in run)) for (sample,), run in groupby(struct.iter_unpack("<h", pcm))]
        words = [WORDS[sample // 1000 - 1] for sample, count in levels if sample and count > RATE_HZ // 20]
        silence_ms = (len(pcm) - len(pcm.rstrip(b"\0"))) * 1000 // (2 * RATE_HZ)
        if self.mishears and words and FRAME_MS < silence_ms < 150:
            words[-1] = "zero"
        times = tuple(TimedText(word, at / 10, at / 10 + 0.1) for at, word in enumerate(words)) if self.has_times else ()
        return Transcript(text=" ".join(words), segments=times, language="en", tokens=len(words))


class Synthesizer:
    """
    Says a word in a tenth of a second.

    Attributes:
        said: what it was given.
        contexts: in which context.
        told: how many words of it were taken.
        fault: raised at the word that is in it.
        is_held: whether it waits before each word until it is stopped.
    """

    voices = ("low", "high")
    rate_hz = RATE_HZ

    def __init__(self, joins_parts=False):
        self.joins_parts = joins_parts
        self.said = []
        self.contexts = []
        self.told = 0
        self.fault = None
        self.is_held = False
        self.stopped = 0

    async def start(self):
        pass

    async def stop(self):
        pass

    async def synthesize(self, text, voice=None, speed=1.0, context=WHOLE_SENTENCE):
        self.said.append(text)
        self.contexts.append(context)
        for word in text.split():
            if self.fault is not None and self.fault[0] in word:
                raise self.fault[1]
            try:
                await (asyncio.Event().wait() if self.is_held else asyncio.sleep(0))
            except asyncio.CancelledError:
                self.stopped += 1
                raise
            self.told += 1
            yield AudioChunk(b"\1\0" * (RATE_HZ // 10), word + " ")


class Activity:
    """Detects speech, one frame per iteration of the event loop, like the real one when it has much audio to process."""

    def __init__(self):
        self.open_stream_count = 0

    async def start(self):
        pass

    def stop(self):
        pass

    def open(self, on_frame, rate_hz=RATE_HZ):
        assert rate_hz == RATE_HZ
        self.open_stream_count += 1
        return _Stream(self, on_frame)


class _Stream:
    def __init__(self, activity, deliver):
        self._activity = activity
        self._deliver = deliver
        self._rest = b""
        self._frames = deque()
        self._told = 0
        self._is_open = True

    def append_audio(self, pcm):
        sound = self._rest + pcm
        whole = len(sound) // FRAME_BYTES * FRAME_BYTES
        if whole and not self._frames:
            asyncio.get_running_loop().call_soon(self._run)
        self._frames.extend(sound[at : at + FRAME_BYTES] for at in range(0, whole, FRAME_BYTES))
        self._rest = sound[whole:]

    def set_rate(self, rate_hz):
        assert rate_hz == RATE_HZ

    def drop_frames(self):
        self._told += len(self._frames)
        self._frames.clear()

    def close(self):
        if self._is_open:
            self._is_open = False
            self._frames.clear()
            self._activity.open_stream_count -= 1

    def _run(self):
        if not self._frames:
            return
        frame = self._frames.popleft()
        start_ms, self._told = self._told * FRAME_MS, self._told + 1
        if self._frames:
            asyncio.get_running_loop().call_soon(self._run)
        self._deliver(start_ms, 1.0 if peak(frame) > 500 else 0.0)


class Puppet:
    """
    An engine that the test controls.

    Attributes:
        told: all commands that it got.
        overrun: raised by a request.
    """

    capabilities = Capabilities(tools=True)

    def __init__(self):
        self.told = []
        self.overrun = None
        self.paused = 0
        self.deliver = None

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

    @property
    def asks(self):
        return [word for word in self.told if isinstance(word, commands.Respond)]

    def say(self, *words):
        """Deliver these events with the id of the last request."""
        self.deliver([word(self.asks[-1].id) for word in words])


def text(words):
    return lambda id: events.TextDelta(id, words)


def used(id):
    return events.Usage(id=id, input_tokens=10, output_tokens=5)


class Session:
    """
    A minimal session with a cascade.

    Attributes:
        told: all events of the cascade; if `answers`, every turn gets a spoken response.
        history: what the user said, without the answers.
        asked: how many responses it requested.
        counted: the outcomes of early responses.
    """

    def __init__(
        self, inner, *, transcriber=None, synthesizer=None, smart_turn=None, speculates=True, answers=True, voice=VOICE, loader=None
    ):
        self.inner = inner
        self.transcriber = transcriber or Ear()
        self.synthesizer = synthesizer or Synthesizer()
        self.activity = Activity()
        self.told = Told()
        self.history = ()
        self.counted = []
        self.answers = answers
        self.voice = voice
        self.pcm = {}
        self.asked = 0
        parts = SpeechStack(
            vad=self.activity,
            smart_turn=smart_turn,
            transcriber=self.transcriber,
            synthesizer=self.synthesizer,
            voices=self.synthesizer.voices,
        )
        self.cascade = Cascade(inner, parts, loader=loader, speculates=speculates, count_speculation=self.counted.append)

    def __call__(self, words):
        self.told(words)
        for word in words:
            if isinstance(word, events.SpeechStarted) and self.answers:
                self.send(commands.Prepare(self.ask(word.id, b"")))
            elif isinstance(word, events.SpeechStopped):
                ask = self.ask(word.id, b"\1\0" * RATE_HZ)
                self.history = ask.history
                if self.answers:
                    self.asked += 1
                    self.send(ask)

    def ask(self, turn_id, pcm, **more):
        part = engine_history.SpeechPart(pcm, RATE_HZ, turn_id)
        history = (*self.history, engine_history.Message("user", (part,)))
        return commands.Respond(id=f"resp_{self.asked + 1}", history=history, voice=self.voice, **more)

    def send(self, *words):
        for word in words:
            self.told.conversation.send(word)

    async def until(self, condition):
        """Wait for a thread's work."""
        while not condition():  # noqa: ASYNC110 - nothing tells when it has
            await asyncio.sleep(0.001)

    async def hear(self, *sounds):
        """Send the audio, a tenth of a second at a time."""
        for sound in sounds:
            for at in range(0, len(sound), 3200):
                self.send(commands.AppendAudio(sound[at : at + 3200]))
                for _ in range(8):
                    await asyncio.sleep(0)
        await self.settle()

    async def settle(self):
        for _ in range(60):
            await asyncio.sleep(0)

    def words(self, *kinds):
        return [word for word in self.told.words if isinstance(word, kinds)]

    def spoken_text(self, id="resp_1"):
        return "".join(word.text for word in self.words(events.AudioTranscriptDelta, events.TextDelta) if word.id == id)

    def ends(self, id="resp_1"):
        return [word for word in self.words(events.ResponseEnded, events.ResponseFailed) if word.id == id]

    def edges(self):
        return self.told.edges()

    def transcripts(self):
        return self.told.transcripts()


def talked(scenario, inner, *first, **options):
    """Play a scenario with a session; returns the session."""

    async def play():
        session = Session(inner, **options)
        async with asyncio.timeout(60), session.cascade.open(ConversationSettings(model="parrot"), session) as session.told.conversation:
            for word in first:
                session.send(word)
            await scenario(session)
        assert session.activity.open_stream_count == 0
        return session

    return asyncio.run(play())
