"""
The transcript of a turn while the person still speaks.

The audio so far is transcribed again and again. Text that several rounds in a row agree on is confirmed, word by word,
and never taken back; the final transcript may still differ, as a model may change its mind later. A word is confirmed
once it is complete, and the punctuation after it once another word follows.

A turn longer than a segment is finalized segment by segment: their transcripts stay, and only the rest is transcribed
again.
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
    How soon text is confirmed.

    Attributes:
        interval_ms: how much new audio starts another round.
        agreement_rounds: how many rounds must agree on a word.
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
"""By the `delay` that a client requests."""

HYPOTHESIS_POLICY = PartialsPolicy(500)
"""
Where no client reads confirmed text. Of the words of 14 recordings the last hypothesis had 100 of 108, for 14 % of a core
during speech; every 300 ms it had 103, for 25 %.
"""

_WORD = re.compile(r"[\w'’]+")
_UNSPACED_SCRIPT = re.compile(r"[\u0e00-\u0e7f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
_MAX_ALIGNED_WORDS = 100
_MAX_SEGMENT_BYTES = size_bytes(1000 * MAX_SEGMENT_S, INPUT_RATE_HZ)
_PUNCTUATION = " \t\n.,;:!?…-–—\"'”’)]}。、,!?"


class LocalAgreement:
    """
    The text that rounds agree on.

    Attributes:
        confirmed_text: all of it so far.

    Source: Liu, Spanakis and Niehues, "Low-Latency Sequence-to-Sequence Speech Recognition and Translation by Partial
    Hypothesis Selection" (Interspeech 2020), for the policy; Macháček, Dabre and Bojar, "Turning Whisper into Real-Time
    Transcription System" (2023), for its use with Whisper.
    """

    def __init__(self, rounds: int = 2) -> None:
        self.confirmed_text = ""
        self._hypotheses: deque[str] = deque(maxlen=rounds)

    def add_hypothesis(self, text: str) -> str:
        """Add the result of another round; returns the text that is newly confirmed."""
        self._hypotheses.append(text)
        return self._confirm(_common_prefix(self._hypotheses)) if len(self._hypotheses) == self._hypotheses.maxlen else ""

    def finish(self, text: str) -> str:
        """Confirm the final transcript; returns the part that is new."""
        return self._confirm(text)

    def _confirm(self, text: str) -> str:
        more = text[_confirmed_length(text, self.confirmed_text) :]
        self.confirmed_text += more
        return more


def _common_prefix(hypotheses: Sequence[str]) -> str:
    """The whole words that all of them begin with, without the punctuation after the last."""
    common = reduce(lambda text, other: text[: _common_length(text, other)], hypotheses)
    while common and any(_is_inside_word(text, len(common)) for text in hypotheses):
        common = common[:-1]
    return common.rstrip(_PUNCTUATION)


def _common_length(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _is_inside_word(text: str, index: int) -> bool:
    """Whether a word goes on across an index; in scripts without spaces every letter counts as a word."""
    both = text[index - 1 : index + 1]
    return len(both) == 2 and all(_WORD.match(letter) for letter in both) and not _UNSPACED_SCRIPT.search(both)


def _confirmed_length(text: str, confirmed_text: str) -> int:
    """The length of the part of `text` that corresponds to `confirmed_text`, in which some words may differ."""
    if text.startswith(confirmed_text):
        return len(confirmed_text)
    matches = list(_WORD.finditer(text))
    words = [match.group().lower() for match in matches]
    count = _aligned_length(_WORD.findall(confirmed_text.lower()), words)
    return matches[count - 1].end() if count else 0


def _aligned_length(confirmed_words: Sequence[str], words: Sequence[str]) -> int:
    """How many of `words` fit the confirmed ones best: the prefix with the least edit distance."""
    # Only what differs is aligned, as the time for that grows with the square.
    same = _common_length(confirmed_words, words)
    confirmed_words, words = confirmed_words[same:], words[same:]
    if len(confirmed_words) > _MAX_ALIGNED_WORDS or len(words) > _MAX_ALIGNED_WORDS:
        # Too many to align while the person speaks: then the counts must do.
        return same + min(len(confirmed_words), len(words))
    costs = [float(count) for count in range(len(words) + 1)]
    for row, word in enumerate(confirmed_words):
        substitutions = [before + _substitution_cost(word, other) for before, other in zip(costs, words, strict=False)]
        insertions = [cost + 1 for cost in costs[1:]]
        costs = list(accumulate(map(min, substitutions, insertions), lambda previous, best: min(previous + 1, best), initial=row + 1.0))
    return same + min(range(len(costs)), key=lambda count: (costs[count], abs(count - len(confirmed_words)), -count))


def _substitution_cost(word: str, other: str) -> float:
    """The cost of a substitution, where an omission costs 1: a misheard word mostly begins with the same letter."""
    return 0.0 if word == other else 0.8 if word[0] == other[0] else 1.2


class PartialTranscriber:
    """
    The transcript of one turn.

    Args:
        on_text: takes newly confirmed text, from within `run`; None if nobody reads it. Then a round is left out while
            others need the transcriber.
        policy: None for that of `options.delay`, or `HYPOTHESIS_POLICY` without `on_text`.
        on_hypothesis: takes the text of each round, which the next may change, without the marks at its end: those are
            the likeliest to change.
    """

    def __init__(
        self,
        transcriber: Transcriber,
        options: Transcription,
        on_text: Callable[[str], None] | None,
        policy: PartialsPolicy | None = None,
        on_hypothesis: Callable[[str], None] | None = None,
    ) -> None:
        self._transcriber = transcriber
        self._options = options
        self._on_text = on_text
        self._on_hypothesis = on_hypothesis
        by_options = POLICIES_BY_DELAY.get(options.delay or "low", PartialsPolicy()) if on_text is not None else HYPOTHESIS_POLICY
        self._policy = policy or by_options
        self._agreement = LocalAgreement(self._policy.agreement_rounds)
        self._final_transcripts: list[Transcript] = []
        self._final_ms = 0.0
        self._audio = bytearray()
        self._transcribed_ms = 0.0
        self._audio_arrived = asyncio.Event()

    @property
    def audio_ms(self) -> float:
        """How much audio was appended."""
        return self._final_ms + duration_ms(len(self._audio), INPUT_RATE_HZ)

    @property
    def confirmed_text(self) -> str:
        """All text that was confirmed."""
        return self._agreement.confirmed_text

    @property
    def has_full_segment(self) -> bool:
        """Whether there is enough audio to finalize a segment."""
        return len(self._audio) > _MAX_SEGMENT_BYTES

    def append_audio(self, pcm: bytes) -> None:
        """
        Append audio of the turn.

        Args:
            pcm: s16le mono at `INPUT_RATE_HZ`, whole samples.
        """
        self._audio += pcm
        self._audio_arrived.set()

    async def run(self) -> None:
        """
        Confirm text while the turn goes on; never returns, and is cancelled when the turn is over, or may be.

        A round that fails is skipped. Slow rounds run less often, so that they take the transcriber's time for half of
        the time at most.
        """
        loop = asyncio.get_running_loop()
        due_ms = self._policy.interval_ms
        while True:
            await self._wait_for_audio(self._transcribed_ms + due_ms)
            started_at, self._transcribed_ms = loop.time(), self.audio_ms
            if self._on_text is None and not self._transcriber.is_free and not self.has_full_segment:
                continue
            try:
                text = (await self.transcript()).text
            except ApiError as error:
                due_ms = int(1000 * (error.retry_after_s or 1))
                continue
            if self._on_text is not None and (more := self._agreement.add_hypothesis(text)):
                self._on_text(more)
            if self._on_hypothesis is not None:
                self._on_hypothesis(text.rstrip(_PUNCTUATION))
            due_ms = max(self._policy.interval_ms, int(2000 * (loop.time() - started_at)))

    async def transcript(self, speech_s: float | None = None) -> Transcript:
        """
        The transcript of all audio so far; not while `run` runs. More audio may be appended afterwards.

        Args:
            speech_s: how long someone spoke; text that can't have been said in that time is dropped.

        Raises:
            ApiError: it could not be transcribed.
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
        Transcribe full segments for good, so that less is left for the end; not while `run` runs.

        Raises:
            ApiError: one could not be transcribed.
        """
        while self.has_full_segment:
            await self._finalize_segment()

    def finish(self, text: str) -> str:
        """Confirm the final transcript; returns the part that is new."""
        return self._agreement.finish(text)

    async def _finalize_segment(self) -> None:
        # One sample more than the maximum, so that `cut_at_silence` cuts.
        size = cut_at_silence(float_samples(bytes(self._audio[: _MAX_SEGMENT_BYTES + SAMPLE_BYTES]))) * SAMPLE_BYTES
        segment = await self._transcriber.transcribe(bytes(self._audio[:size]), self._options)
        self._final_transcripts.append(_shift(segment, self._final_ms / 1000))
        self._final_ms += duration_ms(size, INPUT_RATE_HZ)
        del self._audio[:size]

    async def _wait_for_audio(self, audio_ms: float) -> None:
        while self.audio_ms < audio_ms:
            self._audio_arrived.clear()
            await self._audio_arrived.wait()


def _shift(transcript: Transcript, by_s: float) -> Transcript:
    """The transcript with its times later."""

    def shift_parts(parts: Sequence[TimedText]) -> tuple[TimedText, ...]:
        return tuple(TimedText(part.text, part.start_s + by_s, part.end_s + by_s) for part in parts)

    return (
        structs.replace(transcript, segments=shift_parts(transcript.segments), words=shift_parts(transcript.words)) if by_s else transcript
    )


def _join(transcripts: Sequence[Transcript]) -> Transcript:
    return Transcript(
        text=" ".join(filter(None, (each.text for each in transcripts))),
        segments=tuple(part for each in transcripts for part in each.segments),
        words=tuple(part for each in transcripts for part in each.words),
        language=next((each.language for each in transcripts if each.language), None),
        tokens=sum(each.tokens for each in transcripts),
    )
