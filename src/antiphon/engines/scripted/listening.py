"""
The ears of a scripted engine: the clock of what is heard, the turns in it, and what they are heard as.

Turns are looked for on the loop's next iteration, not within `tell`, so that a turn is found and told in one go: by what is committed or
forgotten before that, the sound that waits is ended or dropped with the rest, as whoever says so knows of no turn in it.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from msgspec import structs

from antiphon.audio import SAMPLE_BYTES
from antiphon.engine_api import commands, events as talk_events
from antiphon.engine_api.engine import Deliver
from antiphon.engines.scripted.answers import pieces, wordless
from antiphon.engines.scripted.script import Hearing, Script
from antiphon.engines.scripted.turn_detection import Gate, LevelGate, ScheduledGate

Recite = Callable[[Iterable[talk_events.FromEngine | float]], None]
"""Says words, with pauses in seconds between them, at the script's pace and not at once."""

AS_IT_IS = Hearing()


class Ears:
    """
    What one conversation hears.

    Attributes:
        heard: what was said in the turns that are over, by their ids.
    """

    def __init__(self, script: Script, deliver: Deliver, recite: Recite) -> None:
        self.heard: dict[str, str] = {}
        self._script = script
        self._deliver = deliver
        self._recite = recite
        self._configured = commands.Configure()
        self._gate: Gate | None = None
        self._waiting: list[commands.Hear | commands.Configure] = []
        # Places on the clock are counted in samples: now, where the last turn or what was forgotten ended, where the open turn began.
        self._now = 0
        self._floor = 0
        self._start = 0
        self._open = ""
        self._opened = 0
        self._over = 0

    def take(self, word: commands.Hear | commands.Configure) -> None:
        """More sound, or how what follows is to be taken."""
        if self._gate is None:
            self._skip(word)
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._listen)
        self._waiting.append(word)

    def commit(self, id: str) -> None:
        """What was heard since the last turn is one; if it had started, from there."""
        self._skip_waiting()
        self._end(id, self._start if self._open else self._floor, self._now)
        self._drop()

    def forget(self) -> None:
        """What was heard since the last turn is none."""
        self._skip_waiting()
        self._drop()

    def shut(self) -> None:
        """Hear nothing more, what waits included."""
        self._waiting = []

    def _listen(self) -> None:
        waiting, self._waiting = self._waiting, []
        words: list[talk_events.FromEngine] = []
        for word in waiting:
            if isinstance(word, commands.Hear) and self._gate is not None:
                words += self._turns(self._gate, word.pcm)
            self._skip(word)
        if words:
            self._deliver(words)

    def _turns(self, gate: Gate, pcm: bytes) -> Iterator[talk_events.FromEngine]:
        for edge in gate.hear(pcm, self._now):
            if edge.starts:
                self._opened += 1
                self._open, self._start = f"turn_{self._opened}", max(edge.at, self._floor)
                yield talk_events.SpeechStarted(self._open, self._ms(self._start))
            else:
                yield talk_events.SpeechStopped(self._open, self._ms(edge.at))
                self._end(self._open, self._start, edge.at)
                self._open, self._floor = "", edge.at

    def _skip_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for word in waiting:
            self._skip(word)

    def _skip(self, word: commands.Hear | commands.Configure) -> None:
        """Let it go by, looking for nothing in it."""
        if isinstance(word, commands.Hear):
            self._now += len(word.pcm) // SAMPLE_BYTES
        else:
            self._configure(word)

    def _drop(self) -> None:
        self._open, self._floor = "", self._now
        if self._gate is not None:
            self._gate.drop()

    def _configure(self, word: commands.Configure) -> None:
        before, self._configured = self._configured.rate_hz, word
        self._now, self._floor, self._start = (place * word.rate_hz // before for place in (self._now, self._floor, self._start))
        if word.turn_detection is None:
            self._gate, self._open = None, ""
            return
        if self._gate is None:
            self._gate = LevelGate() if self._script.speech is None else ScheduledGate(self._script.speech)
        self._gate.configure(word.rate_hz, word.turn_detection)

    def _end(self, id: str, start: int, end: int) -> None:
        self._over += 1
        length_ms = self._ms(end - start)
        hearing = next((one for one in self._script.hears if one.turn in (None, self._over)), AS_IT_IS)
        said = self.heard[id] = wordless(length_ms) if hearing.says is None else hearing.says
        if (wanted := self._configured.transcription) is not None:
            self._recite(_transcript(id, said, hearing, length_ms / 1000, wanted.logprobs))

    def _ms(self, samples: int) -> int:
        return samples * 1000 // self._configured.rate_hz


def _transcript(id: str, said: str, hearing: Hearing, seconds: float, logprobs: bool) -> Iterator[talk_events.FromEngine | float]:
    if hearing.delay_ms:
        yield hearing.delay_ms / 1000
    if hearing.fails is not None:
        yield talk_events.NotHeard(id=id, **structs.asdict(hearing.fails))
        return
    tokens = [talk_events.TokenLogprob(talk_events.Likelihood(piece, 0.0, tuple(piece.encode()))) for piece in pieces(said)]
    for token in tokens:
        yield talk_events.Heard(id, token.chosen.token, (token,) if logprobs else ())
    for segment in hearing.segments:
        yield talk_events.HeardSegment(id=id, **structs.asdict(segment))
    yield talk_events.HeardAll(
        id=id, transcript=said, seconds=seconds, languages=hearing.languages, logprobs=tuple(tokens) if logprobs else ()
    )
