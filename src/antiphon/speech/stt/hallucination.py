"""
Removes text that a speech model made up.

Speech models always write something: "thanks for watching" in silence, the same words over and over in noise. The text
is compared with what is known of the audio, and cut or dropped if the two don't fit. No rule may drop real speech: each
states its margin.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

SILENT_DBFS = -60.0
"""If the loudest tenth of a second is below this, it is silence: a whisper into a poor microphone is 10 dB louder."""

FAINT_DBFS = -46.0
"""Below this, common hallucinations are taken for made up."""

HISS_DB, HISS_S = 1.5, 0.5
"""
Audio that varies less, for longer, is only hiss or hum: these vary by 1 dB, a voice in hiss twice as loud by 3 dB.
"""

STEADY_DB = 3.0
"""
Audio that varies less is noise, in which common hallucinations are made up: a voice falls by 10 dB between syllables.
"""

MIN_SPEECH_S = 0.09
"""No word takes less."""

LITTLE_SPEECH_S = 0.25
"""In less, common hallucinations are made up: a hurried "thank you" takes 0.3 s."""

MAX_LETTERS_PER_S = 36
EXTRA_LETTERS, EXTRA_LETTERS_RAMP_S = 30, 0.5
"""Fast talkers say 20 letters a second, auctioneers 30. The extra letters allow for audio that is cut close; audio as
short as a word gets fewer."""

LETTERS_PER_IDEOGRAM = 4

MAX_LOOP_WORDS = 8
MAX_REPEATS = {1: 8}
MAX_PHRASE_REPEATS = 4
"""
A word may repeat eight times, a phrase four times; more is a loop. People say "no" five times, a digit rarely eight
times.
"""

_LETTERS = re.compile(r"[^\W_]")
_IDEOGRAM = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_WORD = re.compile(r"\S+")
_NON_LETTERS = re.compile(r"[\W_]+")
_CHARACTER_LOOP = re.compile(r"(.{1,12}?)\1{11,}", re.DOTALL)
_MARK = re.compile(r"[♪♫♬�]+|\[[^\]]{1,40}\]|\([^)]{1,40}\)|\*[A-Za-z ]{1,40}\*")

SUBTITLE_PHRASES = re.compile(
    r"amara ?org"  # "Subtitles by the Amara.org community", in every language
    r"|(?:subtitles|captions?|transcription) by"
    r"|(?:like|please) (?:and )?subscribe|subscribe to (?:the|my|our) channel|thanks? (?:you )?for watching"
    r"|sous titr(?:es|age)|untertitel(?:ung)?|ondertitel|napisy (?:stworzone|by)|sottotitoli|legendas|subtitulado|teksting av|altyazı"
    r"|субтитры|редактор субтитров|dimatorzok|продолжение следует"
    r"|ご視聴ありがとうございました|チャンネル登録|字幕|請不吝點贊|请不吝点赞|明镜与点点|시청해 주셔서 감사합니다|mbc 뉴스"
)
"""Phrases that occur only in subtitles."""

COMMON_HALLUCINATIONS = frozenset(
    (
        "you|thank you|thank you very much|thank you so much|thanks|bye|bye bye|goodbye|okay|ok|oh|uh|um|hmm|mm|so|the|i|yeah|yes|hello"
        "|the same thing is the same thing|merci|gracias|danke|vielen dank|obrigado|grazie|спасибо|谢谢|ありがとうございました|감사합니다"
    ).split("|")
)
"""Phrases that people do say, but that models make up when there is next to no speech."""


class Evidence(Struct, frozen=True, kw_only=True):
    """
    What is known of the audio.

    Attributes:
        level_dbfs: of its loudest tenth of a second, root mean square.
        range_db: how much louder that is than its quiet parts; None if unknown.
        speech_s: how long someone speaks in it; None if unknown.
        no_speech_probability: that there is no speech, as the speech model itself puts it.
    """

    duration_s: float
    level_dbfs: float
    range_db: float | None = None
    speech_s: float | None = None
    no_speech_probability: float = 0.0

    @property
    def is_silence(self) -> bool:
        """Whether there can be no speech in it."""
        is_hiss = self.range_db is not None and self.range_db < HISS_DB and self.duration_s > HISS_S
        return is_hiss or self.level_dbfs < SILENT_DBFS or (self.speech_s is not None and self.speech_s < MIN_SPEECH_S)

    @property
    def is_weak(self) -> bool:
        """Whether there can be next to no speech in it."""
        if self.speech_s is not None:
            return self.speech_s < LITTLE_SPEECH_S
        is_steady = self.range_db is not None and self.range_db < STEADY_DB
        return is_steady or self.level_dbfs < FAINT_DBFS or self.no_speech_probability > 0.6


def remove_hallucinations(text: str, evidence: Evidence) -> str:
    """The text without what can't have been said; may be empty."""
    if evidence.is_silence:
        return ""
    text = _MARK.sub(" ", text)
    text = _remove_loops(text)
    words = _normalize(text)
    seconds = evidence.duration_s if evidence.speech_s is None else min(evidence.duration_s, evidence.speech_s + 1)
    # A longer text says more than such a phrase, so it was said.
    is_phantom = SUBTITLE_PHRASES.search(words) and len(words) < 90
    is_made_up = evidence.is_weak and words in COMMON_HALLUCINATIONS
    max_letters = MAX_LETTERS_PER_S * seconds + EXTRA_LETTERS * min(1.0, seconds / EXTRA_LETTERS_RAMP_S)
    if not words or is_phantom or is_made_up or count_letters(text) > max_letters:
        return ""
    return " ".join(text.split())


def count_letters(text: str) -> int:
    """The letters in a text; an ideogram takes as long to say as several."""
    return len(_LETTERS.findall(text)) + (LETTERS_PER_IDEOGRAM - 1) * len(_IDEOGRAM.findall(text))


def is_looping(tokens: Sequence[int]) -> bool:
    """Whether the tokens end in a loop of a few of them, so that the rest would be the same."""
    for size in range(1, 2 * MAX_LOOP_WORDS + 1):
        repeats = 12 if size < 4 else 6
        tail = tokens[-size * repeats :]
        if len(tail) == size * repeats and tail[size:] == tail[:-size]:
            return True
    return False


def _remove_loops(text: str) -> str:
    """The text with each loop once; empty if loops are most of it."""
    spans = [match.span() for match in _WORD.finditer(text)]
    words = [_normalize(text[start:end]) for start, end in spans]
    result: list[str] = []
    index = loop_words = 0
    while index < len(words):
        size, repeats = _find_loop(words, index)
        result.extend(text[start:end] for start, end in spans[index : index + size])
        index += size * repeats
        loop_words += size * repeats if repeats > 1 else 0
    if 2 * loop_words > len(words):
        return ""
    once = _CHARACTER_LOOP.sub(r"\1", " ".join(result))
    return once if 2 * len(once) > len(" ".join(result)) else ""


def _find_loop(words: Sequence[str], start: int) -> tuple[int, int]:
    """The number of words in a loop that starts there, and how often it repeats; 1 and 1 if none does."""
    for size in range(1, MAX_LOOP_WORDS + 1):
        first = words[start : start + size]
        repeats = 1
        while words[start + repeats * size : start + (repeats + 1) * size] == first:
            repeats += 1
        if repeats > MAX_REPEATS.get(size, MAX_PHRASE_REPEATS):
            return size, repeats
    return 1, 1


def _normalize(text: str) -> str:
    return _NON_LETTERS.sub(" ", text.lower()).strip()
