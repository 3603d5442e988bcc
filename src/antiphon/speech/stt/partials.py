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

from antiphon.audio import SAMPLE_BYTES, duration_ms, size_bytes
from antiphon.engine_api.options import Transcription
from antiphon.errors import ApiError
from antiphon.speech.base import INPUT_RATE_HZ, TimedText, Transcriber, Transcript
from antiphon.speech.stt.hallucination import Evidence, remove_hallucinations
from antiphon.speech.stt.segmenting import MAX_SEGMENT_S, cut_at_silence, float_samples


class PartialsPolicy(Struct, frozen=True):
    """
    How soon words are told.

    Attributes:
        every_ms: new sound after which all of it is written down again.
        agreeing: rounds that must agree on a word.
    """

    interval_ms: int = 300
    agreement_rounds: int = 2


POLICIES_BY_DELAY = {
    "minimal": PartialsPolicy(200),
    "low": PartialsPolicy(300),
    "medium": PartialsPolicy(400),
    "high": PartialsPolicy(400, 3),
    "xhigh": PartialsPolicy(500, 4),
}
"""By what a client says of the delay that it accepts."""

_WORD = re.compile(r"[\w'’]+")
_UNSPACED_SCRIPT = re.compile(r"[\u0e00-\u0e7f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
_MAX_ALIGNED_WORDS = 100
_MAX_SEGMENT_BYTES = size_bytes(1000 * MAX_SEGMENT_S, INPUT_RATE_HZ)
_PUNCTUATION = " \t\n.,;:!?…-–—\"'”’)]}。、,!?"


class LocalAgreement:
    """
    What rounds agree on.

    Attributes:
        told: all that was told so far.
    """

    def __init__(self, rounds: int = 2) -> None:
        self.confirmed_text = ""
        self._hypotheses: deque[str] = deque(maxlen=rounds)

    def add_hypothesis(self, text: str) -> str:
        """What can be told more, now that another round says `text`."""
        self._hypotheses.append(text)
        return self._confirm(_common_prefix(self._hypotheses)) if len(self._hypotheses) == self._hypotheses.maxlen else ""

    def finish(self, text: str) -> str:
        """What is still to be told of the transcript."""
        return self._confirm(text)

    def _confirm(self, text: str) -> str:
        more = text[_confirmed_length(text, self.confirmed_text) :]
        self.confirmed_text += more
        return more


def _common_prefix(hypotheses: Sequence[str]) -> str:
    """What all of them begin with: whole words, without the marks behind the last of them."""
    common = reduce(lambda text, other: text[: _common_length(text, other)], hypotheses)
    while common and any(_is_inside_word(text, len(common)) for text in hypotheses):
        common = common[:-1]
    return common.rstrip(_PUNCTUATION)


def _common_length(one: Sequence[str], other: Sequence[str]) -> int:
    """How much of both is the same, from the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _is_inside_word(text: str, at: int) -> bool:
    """Whether the letters before and behind that place are of one word; in writing without spaces every letter counts as a word."""
    both = text[at - 1 : at + 1]
    return len(both) == 2 and all(_WORD.match(letter) for letter in both) and not _UNSPACED_SCRIPT.search(both)


def _confirmed_length(text: str, confirmed_text: str) -> int:
    """How much of `text` is told by `told`, which may have some words in it otherwise."""
    if text.startswith(confirmed_text):
        return len(confirmed_text)
    matches = list(_WORD.finditer(text))
    words = [match.group().lower() for match in matches]
    count = _aligned_length(_WORD.findall(confirmed_text.lower()), words)
    return matches[count - 1].end() if count else 0


def _aligned_length(confirmed_words: Sequence[str], words: Sequence[str]) -> int:
    """The number of `words` that are likest to all of those that are known."""
    same = _common_length(confirmed_words, words)
    confirmed_words, words = confirmed_words[same:], words[same:]
    if len(confirmed_words) > _MAX_ALIGNED_WORDS or len(words) > _MAX_ALIGNED_WORDS:
        return same + min(len(confirmed_words), len(words))
    costs = [float(count) for count in range(len(words) + 1)]
    for row, word in enumerate(confirmed_words):
        replaced = [before + _substitution_cost(word, other) for before, other in zip(costs, words, strict=False)]
        added = [cost + 1 for cost in costs[1:]]
        costs = list(accumulate(map(min, replaced, added), lambda left, best: min(left + 1, best), initial=row + 1.0))
    return same + min(range(len(costs)), key=lambda count: (costs[count], abs(count - len(confirmed_words)), -count))


def _substitution_cost(word: str, other: str) -> float:
    """What it costs to take one word for the other, where to leave one out costs 1: what is misheard mostly begins as what was said."""
    return 0.0 if word == other else 0.8 if word[0] == other[0] else 1.2


class PartialTranscriber:
    """
    The transcript of one turn.

    Args:
        tell: takes words as soon as they are certain, from within `run`.
        pace: None for what the wish says of the delay.
    """

    def __init__(
        self, transcriber: Transcriber, options: Transcription, on_text: Callable[[str], None], policy: PartialsPolicy | None = None
    ) -> None:
        self._transcriber = transcriber
        self._options = options
        self._on_text = on_text
        self._policy = policy or POLICIES_BY_DELAY.get(options.delay or "low", PartialsPolicy())
        self._agreement = LocalAgreement(self._policy.agreement_rounds)
        self._final_transcripts: list[Transcript] = []
        self._final_ms = 0.0
        self._audio = bytearray()
        self._transcribed_ms = 0.0
        self._audio_arrived = asyncio.Event()

    @property
    def audio_ms(self) -> float:
        """How much was heard."""
        return self._final_ms + duration_ms(len(self._audio), INPUT_RATE_HZ)

    @property
    def confirmed_text(self) -> str:
        """All words that were told."""
        return self._agreement.confirmed_text

    @property
    def has_full_segment(self) -> bool:
        """Whether there is enough that a stretch of it can be settled."""
        return len(self._audio) > _MAX_SEGMENT_BYTES

    def append_audio(self, pcm: bytes) -> None:
        """
        The turn goes on.

        Args:
            pcm: s16le mono at `INPUT_RATE_HZ`, whole samples.
        """
        self._audio += pcm
        self._audio_arrived.set()

    async def run(self) -> None:
        """
        Tell words while the turn goes on; does not return, and is cancelled when the turn is over, or may be.

        A round that fails is left out. Rounds that take long are fewer, so that they keep the ear busy for half of the time at most.
        """
        loop = asyncio.get_running_loop()
        due_ms = self._policy.interval_ms
        while True:
            await self._wait_for_audio(self._transcribed_ms + due_ms)
            began_s, self._transcribed_ms = loop.time(), self.audio_ms
            try:
                text = (await self.transcript()).text
            except ApiError as fault:
                due_ms = int(1000 * (fault.retry_after_s or 1))
                continue
            if more := self._agreement.add_hypothesis(text):
                self._on_text(more)
            due_ms = max(self._policy.interval_ms, int(2000 * (loop.time() - began_s)))

    async def transcript(self, speech_s: float | None = None) -> Transcript:
        """
        What was said so far, all of it; not while `run` runs. More may be heard afterwards.

        Args:
            speech_s: for how long somebody spoke; nothing is left of what can't have been said in that.

        Raises:
            ApiError: it could not be written down.
        """
        await self.finalize_segments()
        last = await self._transcriber.transcribe(bytes(self._audio), self._options)
        whole = _join([*self._final_transcripts, _shift(last, self._final_ms / 1000)])
        if speech_s is None:
            return whole
        evidence = Evidence(duration_s=self.audio_ms / 1000, level_dbfs=0, speech_s=speech_s)
        return whole if remove_hallucinations(whole.text, evidence) else Transcript(text="", tokens=whole.tokens)

    async def finalize_segments(self) -> None:
        """
        Write down for good what is too long to be written down again, so that less is left for the end; not while `run` runs.

        Raises:
            ApiError: it could not be written down.
        """
        while self.has_full_segment:
            await self._finalize_segment()

    def finish(self, text: str) -> str:
        """What is still to be told of the turn's transcript; `told` is then the transcript, where it was told right."""
        return self._agreement.finish(text)

    async def _finalize_segment(self) -> None:
        size = cut_at_silence(float_samples(bytes(self._audio[: _MAX_SEGMENT_BYTES + SAMPLE_BYTES]))) * SAMPLE_BYTES
        stretch = await self._transcriber.transcribe(bytes(self._audio[:size]), self._options)
        self._final_transcripts.append(_shift(stretch, self._final_ms / 1000))
        self._final_ms += duration_ms(size, INPUT_RATE_HZ)
        del self._audio[:size]

    async def _wait_for_audio(self, audio_ms: float) -> None:
        while self.audio_ms < audio_ms:
            self._audio_arrived.clear()
            await self._audio_arrived.wait()


def _shift(transcript: Transcript, by_s: float) -> Transcript:
    """The same, where the sound begins so much later."""

    def moved(parts: Sequence[TimedText]) -> tuple[TimedText, ...]:
        return tuple(TimedText(part.text, part.start_s + by_s, part.end_s + by_s) for part in parts)

    return structs.replace(transcript, segments=moved(transcript.segments), words=moved(transcript.words)) if by_s else transcript


def _join(transcripts: Sequence[Transcript]) -> Transcript:
    return Transcript(
        text=" ".join(filter(None, (each.text for each in transcripts))),
        segments=tuple(part for each in transcripts for part in each.segments),
        words=tuple(part for each in transcripts for part in each.words),
        language=next((each.language for each in transcripts if each.language), None),
        tokens=sum(each.tokens for each in transcripts),
    )
