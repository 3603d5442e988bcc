"""
The words of a turn while it is still being said.

The sound so far is written down again and again. What several rounds in a row agree on is told, a word at a time, and never taken back;
the transcript of the whole turn may differ from it all the same, as a model may change its mind about a word it had agreed with itself on.
A word counts once it is whole, and the mark behind it once there is a word behind that.

A turn longer than a stretch is settled stretch by stretch: what was written down of those stays, and only what follows is heard again.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate, takewhile

from msgspec import Struct, structs

from antiphon.audio import SAMPLE_BYTES, bytes_of, ms_of
from antiphon.engine_api.options import Transcription
from antiphon.errors import Fault
from antiphon.speech.base import HEARING_RATE_HZ, Ear, Segment, Transcript
from antiphon.speech.stt.hallucination import Evidence, sensible
from antiphon.speech.stt.segmenting import LONGEST_S, first_stretch, samples_of


class Pace(Struct, frozen=True):
    """
    How soon words are told.

    Attributes:
        every_ms: new sound after which all of it is written down again.
        agreeing: rounds that must agree on a word.
    """

    every_ms: int = 300
    agreeing: int = 2


PACES = {"minimal": Pace(200), "low": Pace(300), "medium": Pace(400), "high": Pace(400, 3), "xhigh": Pace(500, 4)}
"""By what a client says of the delay that it accepts."""

_WORD = re.compile(r"[\w'’]+")
_NOT_SPACED = re.compile(r"[\u0e00-\u0e7f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
_MOST_ALIGNED = 100
_LONGEST_BYTES = bytes_of(1000 * LONGEST_S, HEARING_RATE_HZ)
_MARKS = " \t\n.,;:!?…-–—\"'”’)]}。、,!?"


class Agreement:
    """
    What rounds agree on.

    Attributes:
        told: all that was told so far.
    """

    def __init__(self, agreeing: int = 2) -> None:
        self.told = ""
        self._rounds: deque[str] = deque(maxlen=agreeing)

    def take(self, text: str) -> str:
        """What can be told more, now that another round says `text`."""
        self._rounds.append(text)
        return self._tell(_agreed(self._rounds)) if len(self._rounds) == self._rounds.maxlen else ""

    def finish(self, text: str) -> str:
        """What is still to be told of the transcript."""
        return self._tell(text)

    def _tell(self, text: str) -> str:
        more = text[_told_in(text, self.told) :]
        self.told += more
        return more


def _agreed(rounds: Sequence[str]) -> str:
    """What all of them begin with: whole words, without the marks behind the last of them."""
    common = reduce(lambda text, other: text[: _alike(text, other)], rounds)
    while common and any(_is_inside_word(text, len(common)) for text in rounds):
        common = common[:-1]
    return common.rstrip(_MARKS)


def _alike(one: Sequence[str], other: Sequence[str]) -> int:
    """How much of both is the same, from the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _is_inside_word(text: str, at: int) -> bool:
    """Whether the letters before and behind that place are of one word; in writing without spaces every letter counts as a word."""
    both = text[at - 1 : at + 1]
    return len(both) == 2 and all(_WORD.match(letter) for letter in both) and not _NOT_SPACED.search(both)


def _told_in(text: str, told: str) -> int:
    """How much of `text` is told by `told`, which may have some words in it otherwise."""
    if text.startswith(told):
        return len(told)
    matches = list(_WORD.finditer(text))
    words = [match.group().lower() for match in matches]
    count = _aligned(_WORD.findall(told.lower()), words)
    return matches[count - 1].end() if count else 0


def _aligned(known: Sequence[str], words: Sequence[str]) -> int:
    """The number of `words` that are likest to all of those that are known."""
    same = _alike(known, words)
    known, words = known[same:], words[same:]
    if len(known) > _MOST_ALIGNED or len(words) > _MOST_ALIGNED:
        return same + min(len(known), len(words))
    costs = [float(count) for count in range(len(words) + 1)]
    for row, word in enumerate(known):
        replaced = [before + _unlike(word, other) for before, other in zip(costs, words, strict=False)]
        added = [cost + 1 for cost in costs[1:]]
        costs = list(accumulate(map(min, replaced, added), lambda left, best: min(left + 1, best), initial=row + 1.0))
    return same + min(range(len(costs)), key=lambda count: (costs[count], abs(count - len(known)), -count))


def _unlike(word: str, other: str) -> float:
    """What it costs to take one word for the other, where to leave one out costs 1: what is misheard mostly begins as what was said."""
    return 0.0 if word == other else 0.8 if word[0] == other[0] else 1.2


class Partials:
    """
    The transcript of one turn.

    Args:
        tell: takes words as soon as they are certain, from within `run`.
        pace: None for what the wish says of the delay.
    """

    def __init__(self, ear: Ear, wish: Transcription, tell: Callable[[str], None], pace: Pace | None = None) -> None:
        self._ear = ear
        self._wish = wish
        self._tell = tell
        self._pace = pace or PACES.get(wish.delay or "low", Pace())
        self._agreement = Agreement(self._pace.agreeing)
        self._settled: list[Transcript] = []
        self._settled_ms = 0.0
        self._sound = bytearray()
        self._written_ms = 0.0
        self._grew = asyncio.Event()

    @property
    def heard_ms(self) -> float:
        """How much was heard."""
        return self._settled_ms + ms_of(len(self._sound), HEARING_RATE_HZ)

    @property
    def told(self) -> str:
        """All words that were told."""
        return self._agreement.told

    @property
    def is_long(self) -> bool:
        """Whether there is enough that a stretch of it can be settled."""
        return len(self._sound) > _LONGEST_BYTES

    def hear(self, pcm: bytes) -> None:
        """
        The turn goes on.

        Args:
            pcm: s16le mono at `HEARING_RATE_HZ`, whole samples.
        """
        self._sound += pcm
        self._grew.set()

    async def run(self) -> None:
        """
        Tell words while the turn goes on; does not return, and is cancelled when the turn is over, or may be.

        A round that fails is left out. Rounds that take long are fewer, so that they keep the ear busy for half of the time at most.
        """
        loop = asyncio.get_running_loop()
        due_ms = self._pace.every_ms
        while True:
            await self._until(self._written_ms + due_ms)
            began_s, self._written_ms = loop.time(), self.heard_ms
            try:
                text = (await self.transcript()).text
            except Fault as fault:
                due_ms = int(1000 * (fault.retry_after_s or 1))
                continue
            if more := self._agreement.take(text):
                self._tell(more)
            due_ms = max(self._pace.every_ms, int(2000 * (loop.time() - began_s)))

    async def transcript(self, speech_s: float | None = None) -> Transcript:
        """
        What was said so far, all of it; not while `run` runs. More may be heard afterwards.

        Args:
            speech_s: for how long somebody spoke; nothing is left of what can't have been said in that.

        Raises:
            errors.Fault: it could not be written down.
        """
        await self.settle()
        last = await self._ear.transcribe(bytes(self._sound), self._wish)
        whole = _joined([*self._settled, _later(last, self._settled_ms / 1000)])
        if speech_s is None:
            return whole
        evidence = Evidence(seconds=self.heard_ms / 1000, level_dbfs=0, speech_s=speech_s)
        return whole if sensible(whole.text, evidence) else Transcript(text="", tokens=whole.tokens)

    async def settle(self) -> None:
        """
        Write down for good what is too long to be written down again, so that less is left for the end; not while `run` runs.

        Raises:
            errors.Fault: it could not be written down.
        """
        while self.is_long:
            await self._settle()

    def finish(self, text: str) -> str:
        """What is still to be told of the turn's transcript; `told` is then the transcript, where it was told right."""
        return self._agreement.finish(text)

    async def _settle(self) -> None:
        size = first_stretch(samples_of(bytes(self._sound[: _LONGEST_BYTES + SAMPLE_BYTES]))) * SAMPLE_BYTES
        stretch = await self._ear.transcribe(bytes(self._sound[:size]), self._wish)
        self._settled.append(_later(stretch, self._settled_ms / 1000))
        self._settled_ms += ms_of(size, HEARING_RATE_HZ)
        del self._sound[:size]

    async def _until(self, heard_ms: float) -> None:
        while self.heard_ms < heard_ms:
            self._grew.clear()
            await self._grew.wait()


def _later(transcript: Transcript, by_s: float) -> Transcript:
    """The same, where the sound begins so much later."""

    def moved(parts: Sequence[Segment]) -> tuple[Segment, ...]:
        return tuple(Segment(part.text, part.start_s + by_s, part.end_s + by_s) for part in parts)

    return structs.replace(transcript, segments=moved(transcript.segments), words=moved(transcript.words)) if by_s else transcript


def _joined(transcripts: Sequence[Transcript]) -> Transcript:
    return Transcript(
        text=" ".join(filter(None, (each.text for each in transcripts))),
        segments=tuple(part for each in transcripts for part in each.segments),
        words=tuple(part for each in transcripts for part in each.words),
        language=next((each.language for each in transcripts if each.language), None),
        tokens=sum(each.tokens for each in transcripts),
    )
