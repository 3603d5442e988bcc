"""
What a cascade hears of one conversation: a client's sound as turns, and turns as words.

What is found in the sound is told a moment later, as some of it is found while the session is in the middle of saying something. What the
session says in that moment, it says without knowing: turns that were found and not told are then taken back.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from antiphon.engine_api import commands, events as talk_events
from antiphon.engine_api.engine import Deliver
from antiphon.engine_api.options import Transcription
from antiphon.engines.cascade.input_audio import Sound
from antiphon.engines.cascade.parts import Parts
from antiphon.engines.cascade.turn import MOST_MS, Listening, Turn
from antiphon.errors import Fault
from antiphon.speech.base import Ear, Transcript
from antiphon.speech.turn_detection import endpoint
from antiphon.speech.turn_detection.smart_turn import SECONDS
from antiphon.speech.turn_detection.vad import FRAME_MS, Stream

LOOKBACK_MS = 4_000
"""How much sound is kept while nobody speaks: a turn is told a little after it began, and begins with its padding."""

MOST_WAITING_MS = 15 * 60_000
"""The most sound in which it waits to be found where someone speaks; of more, nothing is found."""

TURNS_KEPT = 512
"""How many turns back the words are known."""

TAIL_MS = 160
"""How much of the silence after speech is transcribed with it; less cuts off soft endings."""


class _Deaf:
    """An ear that hears nothing, for turns that nobody reads."""

    languages: tuple[str, ...] = ()
    takes_prompt = False
    has_times = False

    async def start(self) -> None:
        """Nothing to load."""

    async def stop(self) -> None:
        """Nothing to let go of."""

    def check(self, wish: Transcription) -> None:
        """Nothing is wished of it."""

    async def transcribe(self, pcm: bytes, wish: Transcription) -> Transcript:
        """Nothing."""
        return Transcript(text="")


DEAF = _Deaf()


class Watcher(Protocol):
    """Who wants to know that a turn may be over before it is."""

    def paused(self, turn_id: str, words: Listening) -> None:
        """Nobody speaks any more, though the turn is still open; `words` are being made of it."""

    def resumed(self, turn_id: str) -> None:
        """The turn goes on: what was made of it so far is not all."""

    def stopped(self, turn_id: str) -> None:
        """The session was told that the turn is over, and has done about it what it does at once."""


class Hearing:
    """
    One conversation's ears.

    Args:
        deliver: takes words; never called from within what a client's word calls here.
        tasks: owns the work; it outlives this.
        is_read: whether the words of turns are needed also where the client doesn't want them.
    """

    def __init__(
        self, parts: Parts, ear: Ear, deliver: Deliver, watcher: Watcher, tasks: asyncio.TaskGroup, *, is_read: bool = True
    ) -> None:
        self._parts = parts
        self._ear = ear
        self._deliver = deliver
        self._watcher = watcher
        self._tasks = tasks
        self._is_read = is_read
        self._asked = commands.Configure()
        self._sound = Sound()
        self._floor_ms = 0.0  # where the last turn, or what was forgotten, ended
        self._stream: Stream | None = None
        self._stream_from_ms = 0
        self._judged_ms = 0.0  # up to there it is known whether someone spoke
        self._endpoint: endpoint.Endpoint | None = None
        self._turn: Turn | None = None
        self._turns = 0
        self._said: dict[str, asyncio.Task[str | Fault]] = {}
        self._last: asyncio.Task[str | Fault] | None = None
        self._untold: list[talk_events.FromEngine] = []
        self._found: dict[str, Turn] = {}  # turns that began or ended, and the session was not told
        self._working: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    @property
    def pause(self) -> tuple[str, Listening] | None:
        """The turn that may be over, and its words; None where there is none."""
        turn = self._turn
        return (turn.id, turn.words) if turn is not None and turn.words is not None else None

    # What the session says

    def configure(self, word: commands.Configure) -> None:
        """Hear otherwise from here on; without turn detection a turn that is open is none."""
        self._asked = word
        self._listen(self._sound.configure(word.rate_hz, word.noise_reduction))
        wanted = word.turn_detection
        if wanted is None or self._parts.activity is None:
            self._drop(*self._take_back())
            self._close_stream()
            self._endpoint = None
        elif self._endpoint is None:
            now_ms = int(self._sound.now_ms)
            self._endpoint = endpoint.Endpoint(wanted)
            self._endpoint.forget(now_ms)
            self._stream_from_ms = now_ms
            self._judged_ms = now_ms
            self._stream = self._parts.activity.open(self._frame)
        else:
            self._endpoint.configure(wanted)

    def hear(self, pcm: bytes) -> None:
        """The sound goes on."""
        self._listen(self._sound.take(pcm))

    def _listen(self, sound: bytes) -> None:
        if not sound:
            return
        if self._stream is None:
            self._sound.let_go(self._sound.now_ms - MOST_MS)
            return
        self._stream.hear(sound)
        if self._sound.now_ms - self._judged_ms > MOST_WAITING_MS:
            self._stream.drop()
            self._judged_ms = self._sound.now_ms
            self._tell(
                talk_events.Trouble(message="More sound came than can be listened to; some of it was passed over.", code="audio_too_fast")
            )
        self._sound.let_go(self._judged_ms - LOOKBACK_MS)

    def commit(self, id: str) -> None:
        """What was heard since the last turn is one, the one that is open where one is."""
        found = self._take_back(but=id)
        turn = found[0] if found else self._new_turn(id, int(max(self._floor_ms, self._sound.from_ms)))
        self._drop(*found)  # what was made of them so far is not all
        turn.id = id
        turn.speech_ms = None  # nobody may have looked at the end of it
        self._feed(turn, self._sound.now_ms)
        turn.write()
        self._write_down(turn)
        self._start_over()

    def forget(self) -> None:
        """What was heard since the last turn is nothing."""
        self._drop(*self._take_back())
        self._start_over()

    def close(self) -> None:
        """Hear no more, and tell no more."""
        self._is_closed = True
        self._close_stream()
        for task in tuple(self._working):
            task.cancel()

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
        at_ms = self._stream_from_ms + start_ms
        self._judged_ms = max(self._judged_ms, at_ms + FRAME_MS)
        if self._endpoint is None:
            return
        self._happen(self._endpoint.hear(at_ms, probability))
        if (turn := self._turn) is not None:
            if self._endpoint.state is endpoint.State.SPEAKING:
                turn.speech_ms = (turn.speech_ms or 0) + FRAME_MS
            self._feed_heard(turn)

    def _happen(self, happenings: Sequence[endpoint.Happening]) -> None:
        for happening in happenings:
            match happening:
                case endpoint.Started(at_ms):
                    self._start(at_ms)
                case endpoint.Pausing(at_ms):
                    if self._turn is not None:
                        self._turn.paused_ms = at_ms
                case endpoint.Asking(at_ms):
                    self._begin(self._judge(at_ms))
                case endpoint.Resumed():
                    self._resume()
                case endpoint.Stopped(at_ms):
                    self._stop(at_ms)

    def _start(self, at_ms: int) -> None:
        self._turns += 1
        turn = self._turn = self._new_turn(f"turn_{self._turns}", at_ms)
        turn.speech_ms = float(endpoint.MIN_SPEECH_MS - FRAME_MS)  # the frame that makes it a turn is yet to be counted
        self._found[turn.id] = turn
        self._tell(talk_events.SpeechStarted(turn.id, at_ms))

    def _new_turn(self, id: str, start_ms: int) -> Turn:
        wish = self._asked.transcription

        def tell(words: str) -> None:
            self._tell(talk_events.Heard(id, words))

        ear = self._ear if self._is_read or wish is not None else DEAF
        return Turn(id, start_ms, ear, wish or Transcription(), self._begin, tell if wish is not None else None)

    def _feed_heard(self, turn: Turn) -> None:
        """Let a turn hear what is known to be of it; make words of one that has paused, as if it were over: most often it is."""
        if turn.paused_ms is None:
            self._feed(turn, self._judged_ms)
        elif turn.words is None and self._judged_ms >= turn.paused_ms + TAIL_MS:
            self._feed(turn, turn.paused_ms + TAIL_MS)
            self._watcher.paused(turn.id, turn.write())

    def _feed(self, turn: Turn, until_ms: float) -> None:
        if until_ms > turn.end_ms and (pcm := self._sound.between(turn.end_ms, until_ms)):
            turn.hear(pcm)
            turn.end_ms = until_ms

    def _resume(self) -> None:
        turn = self._turn
        if turn is None:
            return
        was_written = turn.words is not None
        turn.go_on()
        if was_written:
            self._watcher.resumed(turn.id)

    def _stop(self, at_ms: int) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        if turn.words is None or _has_failed(turn.words):
            self._feed(turn, at_ms)
            turn.write()
        turn.end_ms = at_ms
        self._floor_ms = at_ms
        self._found[turn.id] = turn
        self._write_down(turn)
        self._tell(talk_events.SpeechStopped(turn.id, at_ms))

    async def _judge(self, paused_at_ms: int) -> None:
        """Ask how complete the turn sounds that pauses there."""
        turn, likelihood, until_ms = self._turn, None, self._judged_ms
        if turn is not None and self._parts.smart_turn is not None:
            start_ms = max(turn.start_ms, until_ms - SECONDS * 1000)
            likelihood = await self._parts.smart_turn.likelihood(self._sound.between(start_ms, until_ms))
        if self._endpoint is not None and not self._is_closed:
            self._happen(self._endpoint.judge(paused_at_ms, likelihood))

    # Words of a turn

    def _write_down(self, turn: Turn) -> None:
        """Tell the words of a turn that is over, when they are there and those of the turns before it have been told."""
        assert turn.words is not None
        self._said[turn.id] = self._last = self._begin(self._tell_words(turn, turn.words, self._last))
        while len(self._said) > TURNS_KEPT:
            del self._said[next(iter(self._said))]

    async def _tell_words(self, turn: Turn, words: Listening, before: "asyncio.Task[str | Fault] | None") -> str | Fault:
        transcript = await words
        if before is not None:
            await asyncio.wait([before])
        if self._asked.transcription is not None:
            for word in _told(turn, transcript, has_times=self._ear.has_times):
                self._tell(word)
        return transcript if isinstance(transcript, Fault) else transcript.text

    # What is taken back

    def _take_back(self, but: str = "") -> tuple[Turn, ...]:
        """
        Let no turn be open, nor any have been found that the session was not told of.

        Args:
            but: what is told of that turn's words holds.

        Returns:
            Those turns, in order.
        """
        found, self._found = self._found, {}
        if self._turn is not None:
            found[self._turn.id] = self._turn
            self._turn = None
        self._untold = [word for word in self._untold if word.id not in found or (word.id == but and isinstance(word, talk_events.Heard))]
        for id in found:
            if id in self._said:
                self._said.pop(id).cancel()
        return tuple(found.values())

    def _drop(self, *dropped: Turn) -> None:
        for turn in dropped:
            turn.go_on()
            self._watcher.resumed(turn.id)

    def _start_over(self) -> None:
        now_ms = self._sound.now_ms
        self._sound.clear()
        self._floor_ms = now_ms
        if self._stream is not None:
            self._stream.drop()
            self._judged_ms = now_ms
        if self._endpoint is not None:
            self._endpoint.forget(int(now_ms))

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    # How it is told, and done

    def _tell(self, word: talk_events.FromEngine) -> None:
        if not self._untold:
            asyncio.get_running_loop().call_soon(self._deliver_all)
        self._untold.append(word)

    def _deliver_all(self) -> None:
        words, self._untold = self._untold, []
        self._found.clear()
        if not words or self._is_closed:
            return
        self._deliver(words)
        for word in words:
            if isinstance(word, talk_events.SpeechStopped):
                self._watcher.stopped(word.id)

    def _begin(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = self._tasks.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return task


def _has_failed(words: Listening) -> bool:
    return words.done() and not words.cancelled() and isinstance(words.result(), Fault)


def _told(turn: Turn, transcript: Transcript | Fault, *, has_times: bool) -> Sequence[talk_events.FromEngine]:
    """What is told of a turn's words at its end."""
    if isinstance(transcript, Fault):
        return [talk_events.NotHeard(id=turn.id, message=transcript.message, code=transcript.code, type=transcript.type)]
    told: list[talk_events.FromEngine] = []
    if rest := turn.rest(transcript):
        told.append(talk_events.Heard(turn.id, rest))
    if has_times:
        for part in transcript.segments:
            told.append(talk_events.HeardSegment(id=turn.id, text=part.text, start_s=round(part.start_s, 3), end_s=round(part.end_s, 3)))
    languages = (transcript.language,) if transcript.language else ()
    return [*told, talk_events.HeardAll(id=turn.id, transcript=transcript.text, seconds=round(turn.seconds, 3), languages=languages)]
