"""
What a cascade hears of one conversation: a client's sound as turns, and turns as words.

The sound is kept at 16 kHz from the start of the turn that is open, or a few seconds back while nobody speaks. Its clock is the client's:
milliseconds of all the sound that came.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from antiphon import talk
from antiphon.audio import bytes_of, ms_of
from antiphon.engines.base import Deliver
from antiphon.engines.cascade_parts import Parts
from antiphon.errors import Fault
from antiphon.speech import endpoint
from antiphon.speech.base import HEARING_RATE_HZ, Transcript
from antiphon.speech.noise import NoiseReducer
from antiphon.speech.resample import Resampler
from antiphon.speech.vad import Stream

LOOKBACK_MS = 4_000
"""How much sound is kept while nobody speaks: a turn is told a little after it began, and begins with its padding."""

MOST_MS = 30 * 60_000
"""The most sound of one turn that is kept; of a longer one, the end."""

TURNS_KEPT = 64
"""How many turns back the words are known."""

TAIL_MS = 160
"""How much of the silence after speech is transcribed with it; less cuts off soft endings."""


Listening = asyncio.Task[Transcript | Fault]
"""Words being made of sound; a fault where they can't be had."""


class Watcher(Protocol):
    """Who wants to know that a turn may be over before it is."""

    def paused(self, turn_id: str, words: Listening) -> None:
        """Nobody speaks any more, though the turn is still open; `words` are being made of it."""

    def resumed(self, turn_id: str) -> None:
        """The turn goes on: what was made of it so far is not all."""


class _Turn:
    """
    A turn that is open.

    Attributes:
        paused_ms: where nobody spoke any more; None while someone does.
        words: being made of it up to there.
    """

    def __init__(self, id: str, start_ms: int) -> None:
        self.id = id
        self.start_ms = start_ms
        self.paused_ms: int | None = None
        self.words: Listening | None = None


class Hearing:
    """
    One conversation's ears.

    Args:
        deliver: takes words; never called from within what a client's word calls here.
        tasks: owns the work; it outlives this.
    """

    def __init__(self, parts: Parts, deliver: Deliver, watcher: Watcher, tasks: asyncio.TaskGroup) -> None:
        self._parts = parts
        self._deliver = deliver
        self._watcher = watcher
        self._tasks = tasks
        self._asked = talk.Configure()
        self._resampler = Resampler(24_000, HEARING_RATE_HZ, live=True)
        self._reducer: NoiseReducer | None = None
        self._sound = bytearray()
        self._now_ms = 0.0  # the end of the sound
        self._stream: Stream | None = None
        self._stream_from_ms = 0
        self._endpoint: endpoint.Endpoint | None = None
        self._turn: _Turn | None = None
        self._turns = 0
        self._said: OrderedDict[str, asyncio.Task[str | Fault]] = OrderedDict()
        self._untold: list[talk.FromEngine] = []
        self._is_closed = False

    # What the session says

    def configure(self, word: talk.Configure) -> None:
        """Hear otherwise from here on; without turn detection a turn that is open is none."""
        before, self._asked = self._asked, word
        if word.rate_hz != self._resampler.from_hz:
            self._resampler = Resampler(word.rate_hz, HEARING_RATE_HZ, live=True)
        if word.noise_reduction != before.noise_reduction:
            self._reducer = NoiseReducer(word.noise_reduction) if word.noise_reduction else None
        self._detect(word.turn_detection)

    def _detect(self, wanted: talk.TurnDetection | None) -> None:
        if wanted is None or self._parts.activity is None:
            self._close_stream()
            self._drop_turn()
            self._endpoint = None
        elif self._endpoint is None:
            self._endpoint = endpoint.Endpoint(wanted)
            self._endpoint.forget(int(self._now_ms))
            self._stream_from_ms = int(self._now_ms)
            self._stream = self._parts.activity.open(self._frame)
        else:
            self._endpoint.configure(wanted)

    def hear(self, pcm: bytes) -> None:
        """The sound goes on."""
        sound = self._resampler.take(pcm)
        if self._reducer is not None:
            sound = self._reducer.take(sound)
        if not sound:
            return
        self._sound += sound
        self._now_ms += ms_of(len(sound), HEARING_RATE_HZ)
        if self._stream is not None:
            self._stream.hear(sound)
            if self._turn is None:
                self._let_go(LOOKBACK_MS)
            else:
                self._begin_words(self._turn)
        self._let_go(MOST_MS)

    def commit(self, id: str) -> None:
        """What was heard since the last turn is one, the one that is open where one is."""
        turn = self._turn
        start_ms = turn.start_ms if turn is not None else 0
        self._drop_turn()
        sound = self._cut(start_ms, int(self._now_ms))
        if id not in self._said:  # else it had ended by itself, and the session will hear of that in a moment
            self._transcribe(id, sound)
        self._start_over()

    def forget(self) -> None:
        """What was heard since the last turn is nothing."""
        self._drop_turn()
        self._start_over()

    def close(self) -> None:
        """Hear no more, and tell no more."""
        self._is_closed = True
        self._close_stream()
        for task in self._said.values():
            task.cancel()
        if self._turn is not None and self._turn.words is not None:
            self._turn.words.cancel()

    async def words_of(self, turn_id: str) -> str | None:
        """
        What was said in a turn, as soon as that is known; None for one that is not known, or of long ago.

        Raises:
            Fault: nobody could make it out.
        """
        task = self._said.get(turn_id)
        if task is None:
            return None
        words = await asyncio.shield(task)
        if isinstance(words, Fault):
            raise words
        return words

    # What the sound tells

    def _frame(self, start_ms: int, probability: float) -> None:
        if self._endpoint is not None:
            self._happen(self._endpoint.hear(self._stream_from_ms + start_ms, probability))

    def _happen(self, happenings: Sequence[endpoint.Happening]) -> None:
        for happening in happenings:
            match happening:
                case endpoint.Started(at_ms):
                    self._turns += 1
                    self._turn = _Turn(f"turn_{self._turns}", at_ms)
                    self._tell(talk.SpeechStarted(self._turn.id, at_ms))
                case endpoint.Pausing(at_ms):
                    self._pause(at_ms)
                case endpoint.Asking(at_ms):
                    self._tasks.create_task(self._judge(at_ms))
                case endpoint.Resumed():
                    self._resume()
                case endpoint.Stopped(at_ms):
                    self._stop(at_ms)

    def _pause(self, at_ms: int) -> None:
        if self._turn is not None:
            self._turn.paused_ms = at_ms
            self._begin_words(self._turn)

    def _begin_words(self, turn: _Turn) -> None:
        """Make words of a turn that has paused for a moment, as if it were over: most often it is."""
        if turn.paused_ms is None or turn.words is not None or self._parts.ear is None or self._now_ms < turn.paused_ms + TAIL_MS:
            return
        turn.words = self._tasks.create_task(self._listen(self._between(turn.start_ms, turn.paused_ms + TAIL_MS)))
        self._watcher.paused(turn.id, turn.words)

    def _resume(self) -> None:
        turn = self._turn
        if turn is None:
            return
        turn.paused_ms = None
        if turn.words is not None:
            turn.words.cancel()
            turn.words = None
            self._watcher.resumed(turn.id)

    def _stop(self, at_ms: int) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        sound = self._cut(turn.start_ms, at_ms)
        self._transcribe(turn.id, sound, turn.words)
        self._tell(talk.SpeechStopped(turn.id, at_ms))

    async def _judge(self, paused_at_ms: int) -> None:
        """Ask how complete the turn sounds that pauses there."""
        turn, likelihood = self._turn, None
        if turn is not None and self._parts.smart_turn is not None:
            likelihood = await self._parts.smart_turn.likelihood(self._between(turn.start_ms, int(self._now_ms)))
        if self._endpoint is not None and not self._is_closed:
            self._happen(self._endpoint.judge(paused_at_ms, likelihood))

    # Words of a turn

    def _transcribe(self, id: str, sound: bytes, begun: Listening | None = None) -> None:
        """Make words of a turn that is over, or take those that were begun when it paused for the last time."""
        if self._parts.ear is None:
            return
        listening = begun or self._tasks.create_task(self._listen(sound))
        self._said[id] = self._tasks.create_task(self._write_down(id, listening, ms_of(len(sound), HEARING_RATE_HZ) / 1000))
        while len(self._said) > TURNS_KEPT:
            self._said.popitem(last=False)

    async def _listen(self, sound: bytes) -> Transcript | Fault:
        assert self._parts.ear is not None
        try:
            return await self._parts.ear.transcribe(sound, self._asked.transcription or talk.Transcription())
        except Fault as fault:
            return fault

    async def _write_down(self, id: str, listening: Listening, seconds: float) -> str | Fault:
        transcript = await listening
        is_wanted = self._asked.transcription is not None
        if isinstance(transcript, Fault):
            if is_wanted:
                self._tell(talk.NotHeard(id=id, message=transcript.message, code=transcript.code, type=transcript.type))
            return transcript
        if is_wanted:
            if transcript.text:
                self._tell(talk.Heard(id, transcript.text))
            languages = (transcript.language,) if transcript.language else ()
            self._tell(talk.HeardAll(id=id, transcript=transcript.text, seconds=round(seconds, 3), languages=languages))
        return transcript.text

    # The sound

    @property
    def _from_ms(self) -> float:
        return self._now_ms - ms_of(len(self._sound), HEARING_RATE_HZ)

    def _between(self, start_ms: int, end_ms: int) -> bytes:
        first, last = (bytes_of(max(0.0, at_ms - self._from_ms), HEARING_RATE_HZ) for at_ms in (start_ms, end_ms))
        return bytes(self._sound[first:last])

    def _cut(self, start_ms: int, end_ms: int) -> bytes:
        """The sound between two times; all up to its end is let go."""
        sound = self._between(start_ms, end_ms)
        del self._sound[: bytes_of(max(0.0, end_ms - self._from_ms), HEARING_RATE_HZ)]
        return sound

    def _let_go(self, most_ms: int) -> None:
        most = bytes_of(most_ms, HEARING_RATE_HZ)
        if len(self._sound) > 2 * most:
            del self._sound[: len(self._sound) - most]

    def _start_over(self) -> None:
        self._sound.clear()
        if self._stream is not None:
            self._stream.drop()
        if self._endpoint is not None:
            self._endpoint.forget(int(self._now_ms))

    def _drop_turn(self) -> None:
        self._resume()
        self._turn = None

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _tell(self, word: talk.FromEngine) -> None:
        # Not at once: some of it is found while the client's sound is being told, and the session is in the middle of deciding.
        if not self._untold:
            asyncio.get_running_loop().call_soon(self._deliver_all)
        self._untold.append(word)

    def _deliver_all(self) -> None:
        words, self._untold = self._untold, []
        if not self._is_closed:
            self._deliver(words)
