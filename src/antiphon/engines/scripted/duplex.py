"""
Full duplex of a scripted engine: every piece of sound is answered in its turn, so that a script tells what comes when to the piece.

What is said aloud takes as long as it sounds, and a pause as long as it lasts, of the time that the pieces are: a piece of a second
gives the next second of an answer. What is written takes none, and the end comes when all that time has passed.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence

from msgspec import Struct

from antiphon.audio import bytes_of, ms_of
from antiphon.engine_api import commands, events as talk_events, history as turns
from antiphon.engine_api.engine import Deliver
from antiphon.engine_api.options import TurnDetection
from antiphon.engines.scripted.answers import performance
from antiphon.engines.scripted.listening import Ears, Recite
from antiphon.engines.scripted.script import Answer, Script
from antiphon.engines.scripted.voice import Recordings

_LAST = (talk_events.Used, talk_events.Ended, talk_events.Broke)


_NOTHING_MS = 0.01
"""Less than a sample, and more than what is lost by reckoning."""


class _Piece(Struct, frozen=True):
    """
    What came at once.

    Attributes:
        must_listen: whether nothing may be said to it.
        pictures: how many were seen with it.
    """

    sound: commands.Hear
    must_listen: bool
    pictures: int


class _Saying(Struct):
    """
    An answer that is being given.

    Attributes:
        steps: its words, and pauses in seconds, that are yet to come; `next` is the first of them.
        owes_ms: how much longer what was said lasts than the time there was.
    """

    id: str
    rate_hz: int
    steps: Iterator[talk_events.FromEngine | float]
    next: talk_events.FromEngine | float | None = None
    owes_ms: float = 0.0
    has_begun: bool = False

    def words(self, ms: float) -> Iterator[talk_events.FromEngine]:
        """What is said in so much time."""
        self.owes_ms -= ms
        self.next = next(self.steps) if self.next is None else self.next
        while self.next is not None and self._may_go(self.next):
            step, self.next = self.next, next(self.steps, None)
            if isinstance(step, float):
                self.owes_ms += step * 1000
                continue
            if isinstance(step, talk_events.Sound):
                self.owes_ms += ms_of(len(step.pcm), self.rate_hz)
            self.has_begun = True
            yield step

    def _may_go(self, step: talk_events.FromEngine | float) -> bool:
        return self.owes_ms < -_NOTHING_MS or (self.owes_ms <= _NOTHING_MS and isinstance(step, _LAST))


class Performer:
    """
    One conversation in full duplex.

    Args:
        recite: where the ears say what nobody reads.
    """

    def __init__(self, script: Script, recordings: Recordings, asked: commands.Converse, deliver: Deliver, recite: Recite) -> None:
        self._script = script
        self._recordings = recordings
        self._asked = asked
        self._deliver = deliver
        self._ears = Ears(script, self._notice, recite)
        self._ears.take(commands.Configure(rate_hz=asked.rate_hz, turn_detection=TurnDetection()))
        self._loop = asyncio.get_running_loop()
        self._pieces: deque[_Piece] = deque()
        self._work: asyncio.Handle | None = self._loop.call_later(script.duplex.ready_ms / 1000, self._be_ready)
        self._is_paused = self._is_over = False
        self._must_listen = False
        self._pictures = self._shown = 0
        self._worked = 0
        self._saying: _Saying | None = None
        self._answers = 0
        self._speaks = False
        self._started_ms = 0
        self._turn: turns.SpeechPart | None = None  # that is over, and was not answered

    # What the client says

    def tell(self, word: commands.See | commands.Listen | commands.Hear) -> None:
        """The client's side of it."""
        match word:
            case commands.See():
                self._pictures += 1
            case commands.Listen():
                self._must_listen = True
            case commands.Hear():
                self._pieces.append(_Piece(word, self._must_listen, self._pictures))
                self._must_listen, self._pictures = False, 0
                self._go_on()

    def pause(self) -> None:
        """The client is behind."""
        self._is_paused = True

    def resume(self) -> None:
        """The client has caught up."""
        self._is_paused = False
        self._go_on()

    def hush(self) -> None:
        """Say nothing more."""
        self._is_over = True
        self._ears.shut()
        if self._work is not None:
            self._work.cancel()

    # Work

    def _be_ready(self) -> None:
        self._work = None
        loss = self._script.duplex.lost
        if loss is not None and loss.at == 0:
            self._lose()
            return
        self._say([talk_events.Ready(self._script.duplex.metrics)])
        self._go_on()

    def _go_on(self) -> None:
        """Work on the next piece, if nothing else is being worked on."""
        if self._work is None and self._pieces and not self._is_paused and not self._is_over:
            self._work = self._loop.call_later(self._script.duplex.piece_ms / 1000, self._hear)

    def _hear(self) -> None:
        piece = self._pieces.popleft()
        self._ears.take(piece.sound)
        self._work = self._loop.call_soon(self._answer, piece)  # once the ears have found what is in it

    def _notice(self, words: Sequence[talk_events.FromEngine]) -> None:
        for word in words:
            if isinstance(word, talk_events.SpeechStarted):
                self._speaks, self._started_ms = True, word.at_ms
                self._say(self._cut())
            elif isinstance(word, talk_events.SpeechStopped):
                self._speaks = False
                length = bytes_of(word.at_ms - self._started_ms, self._asked.rate_hz)
                self._turn = turns.SpeechPart(bytes(length), self._asked.rate_hz, word.id)

    def _answer(self, piece: _Piece) -> None:
        self._work = None
        self._worked += 1
        self._shown += piece.pictures
        loss = self._script.duplex.lost
        if loss is not None and self._worked == loss.at:
            self._lose()
            return
        words = self._cut() if piece.must_listen else []
        if not piece.must_listen:
            self._begin()
        saying = self._saying
        if saying is not None:
            words += saying.words(ms_of(len(piece.sound.pcm), self._asked.rate_hz))
        if words and isinstance(words[-1], talk_events.Ended | talk_events.Broke):
            self._saying = None
        if self._saying is None or not self._saying.has_begun:
            words.append(talk_events.Listening())
        self._say(words)
        self._go_on()

    # Answers

    def _begin(self) -> None:
        """Say what the script says is to be said now."""
        unasked = next((said for said in self._script.duplex.says if said.at == self._worked), None)
        if self._saying is not None or self._speaks or (unasked is None and self._turn is None):
            return
        self._answers += 1
        part, self._turn = self._turn, None
        said = (turns.Message("user", (part,)),) if part is not None else ()
        ask = commands.Respond(id=f"duplex_{self._answers}", history=said, voice=self._asked.voice)
        answer = Answer(lines=unasked.lines) if unasked is not None else None
        rate_hz = ask.voice.rate_hz if ask.voice is not None else self._asked.rate_hz
        steps = performance(self._script, self._recordings, ask, self._ears.heard, answer)
        first = talk_events.Measured(ask.id, {"vision_slices": self._shown}) if self._shown else None
        self._saying, self._shown = _Saying(ask.id, rate_hz, steps, first), 0

    def _cut(self) -> list[talk_events.FromEngine]:
        """Fall silent."""
        saying, self._saying = self._saying, None
        return [talk_events.Ended(saying.id, "cancelled")] if saying is not None and saying.has_begun else []

    def _lose(self) -> None:
        loss, saying = self._script.duplex.lost, self._saying
        assert loss is not None
        broke = [talk_events.Broke(id=saying.id, message=loss.message)] if saying is not None and saying.has_begun else []
        self._say([*broke, talk_events.Lost(code=loss.code, message=loss.message)])
        self.hush()

    def _say(self, words: Sequence[talk_events.FromEngine]) -> None:
        if words and not self._is_over:
            self._deliver(words)
