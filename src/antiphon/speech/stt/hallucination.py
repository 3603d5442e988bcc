"""
What was written down though nobody said it.

Models of speech always write something: in silence the thanks of a video's end, in noise the same words over and over. What they wrote is
compared with what is known of the sound, and is cut, or is nothing, where the two don't go together. A rule here must not cost anybody
their words: each says by which margin speech passes.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

SILENT_DBFS = -60.0
"""A loudest tenth of a second below that is silence: a whisper into a poor microphone is louder by 10 dB."""

FAINT_DBFS = -46.0
"""Below that, words that are often made up were."""

HISS_DB, HISS_S = 1.5, 0.5
"""What varies less, and lasts, is hiss or hum and nothing else: theirs is 1 dB, that of a voice in a hiss twice as loud 3 dB."""

STEADY_DB = 3.0
"""What varies less is a noise, in which words that are often made up were: between syllables a voice falls by 10 dB."""

MIN_SPEECH_S = 0.09
"""Nobody says a word in less."""

LITTLE_SPEECH_S = 0.25
"""In less, words that are often made up were: "thank you" takes 0.3 s when it is hurried."""

MAX_LETTERS_PER_S = 36
EXTRA_LETTERS, EXTRA_LETTERS_RAMP_S = 30, 0.5
"""Fast talkers say 20 letters a second; those at an auction 30. So many more pass, as a clip may be cut close; in proportion where it is so
short that it is no more than a word."""

LETTERS_PER_IDEOGRAM = 4

MAX_LOOP_WORDS = 8
MAX_REPEATS = {1: 8}
MAX_PHRASE_REPEATS = 4
"""A word may be said eight times in a row, several words four times; more is a loop. People say "no" five times, digits rarely eight."""

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
"""What only subtitles say."""

COMMON_HALLUCINATIONS = frozenset(
    (
        "you|thank you|thank you very much|thank you so much|thanks|bye|bye bye|goodbye|okay|ok|oh|uh|um|hmm|mm|so|the|i|yeah|yes|hello"
        "|the same thing is the same thing|merci|gracias|danke|vielen dank|obrigado|grazie|спасибо|谢谢|ありがとうございました|감사합니다"
    ).split("|")
)
"""What is said often enough, and more often made up where next to nothing is."""


class Evidence(Struct, frozen=True, kw_only=True):
    """
    What is known of the sound.

    Attributes:
        seconds: how long it is.
        level_dbfs: how loud its loudest tenth of a second is, root mean square.
        range_db: how much louder that is than its quiet places; None where nobody looked.
        speech_s: for how long somebody speaks in it; None where nobody looked.
        no_speech: how likely nobody speaks at all, by the model itself.
    """

    duration_s: float
    level_dbfs: float
    range_db: float | None = None
    speech_s: float | None = None
    no_speech_probability: float = 0.0

    @property
    def is_silence(self) -> bool:
        """Whether nothing can have been said."""
        is_hiss = self.range_db is not None and self.range_db < HISS_DB and self.duration_s > HISS_S
        return is_hiss or self.level_dbfs < SILENT_DBFS or (self.speech_s is not None and self.speech_s < MIN_SPEECH_S)

    @property
    def is_weak(self) -> bool:
        """Whether next to nothing can have been said."""
        if self.speech_s is not None:
            return self.speech_s < LITTLE_SPEECH_S
        is_steady = self.range_db is not None and self.range_db < STEADY_DB
        return is_steady or self.level_dbfs < FAINT_DBFS or self.no_speech_probability > 0.6


def remove_hallucinations(text: str, evidence: Evidence) -> str:
    """The text without what nobody can have said; empty where nothing is left."""
    if evidence.is_silence:
        return ""
    text = _MARK.sub(" ", text)
    kept = _remove_loops(text)
    words = _normalize(kept)
    seconds = evidence.duration_s if evidence.speech_s is None else min(evidence.duration_s, evidence.speech_s + 1)
    is_phantom = SUBTITLE_PHRASES.search(words) and len(words) < 90
    is_made_up = evidence.is_weak and words in COMMON_HALLUCINATIONS
    most = MAX_LETTERS_PER_S * seconds + EXTRA_LETTERS * min(1.0, seconds / EXTRA_LETTERS_RAMP_S)
    if not words or is_phantom or is_made_up or count_letters(kept) > most:
        return ""
    return " ".join(kept.split())


def count_letters(text: str) -> int:
    """How many letters a text has; an ideogram is as long to say as several."""
    return len(_LETTERS.findall(text)) + (LETTERS_PER_IDEOGRAM - 1) * len(_IDEOGRAM.findall(text))


def is_looping(tokens: Sequence[int]) -> bool:
    """Whether the end of the tokens is the same few of them over and over, so that more of them would be as well."""
    for size in range(1, 2 * MAX_LOOP_WORDS + 1):
        turns = 12 if size < 4 else 6
        tail = tokens[-size * turns :]
        if len(tail) == size * turns and tail[size:] == tail[:-size]:
            return True
    return False


def _remove_loops(text: str) -> str:
    """The text with what is said over and over said once; nothing of it, where that is most of it."""
    spans = [match.span() for match in _WORD.finditer(text)]
    words = [_normalize(text[start:end]) for start, end in spans]
    kept: list[str] = []
    at = looped = 0
    while at < len(words):
        size, turns = _find_loop(words, at)
        kept.extend(text[start:end] for start, end in spans[at : at + size])
        at += size * turns
        looped += size * turns if turns > 1 else 0
    if 2 * looped > len(words):
        return ""
    once = _CHARACTER_LOOP.sub(r"\1", " ".join(kept))
    return once if 2 * len(once) > len(" ".join(kept)) else ""


def _find_loop(words: Sequence[str], start: int) -> tuple[int, int]:
    """Of how many words a loop is that starts there, and how often it goes round; one word, once, where none does."""
    for size in range(1, MAX_LOOP_WORDS + 1):
        first = words[start : start + size]
        turns = 1
        while words[start + turns * size : start + (turns + 1) * size] == first:
            turns += 1
        if turns > MAX_REPEATS.get(size, MAX_PHRASE_REPEATS):
            return size, turns
    return 1, 1


def _normalize(text: str) -> str:
    return _NON_LETTERS.sub(" ", text.lower()).strip()
