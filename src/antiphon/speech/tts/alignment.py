"""
Which words are heard where in a stretch of speech.

A word is what stands between white space, with the white space behind it. Where a voice says how long each of its phonemes sounds, words
are matched with the groups of phonemes that they became; else they share the sound by what there is to say in them.
"""

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise, product
from math import inf

from msgspec import Struct

MAX_WORDS_PER_GROUP = 4
"""That run into one group, as those of `out of the` may."""

MAX_GROUPS_PER_WORD = 8
"""That one word may be, as a number written in digits is."""

DEFAULT_S_PER_WEIGHT = 0.055
"""What a letter takes, as voices go; the pause at a full stop is worth seven."""

LEARNING_RATE = 0.3
"""The weight of the last sentence in what is known of a voice's pace."""

_PAUSE_WEIGHTS = {",": 4.0, ";": 5.0, ":": 5.0, "—": 4.0, "–": 4.0, ".": 7.0, "!": 7.0, "?": 7.0, "…": 7.0}
"""How long the pause after a word lasts that ends so, in letters."""


class PhonemeGroup(Struct, frozen=True):
    """Phonemes between two gaps: how many there are, and for how many samples they sound, the pause behind them included."""

    phonemes: int
    samples: int


def split_words(text: str) -> list[str]:
    """The words; joined they are the text. White space before the first is part of that."""
    return re.findall(r"\s*\S+\s*", text) or ([text] if text else [])


def word_weight(word: str) -> float:
    """What there is to say in a word, in letters; a digit is a word of its own."""
    bare = word.rstrip()
    spoken = sum(4.0 if character.isdigit() else 1.0 for character in bare if character.isalnum())
    return max(spoken, 1.0) + _PAUSE_WEIGHTS.get(bare[-1:].strip("\"')”’") or bare[-2:-1], 0.0) + 1.0


def share_samples(words: Sequence[str], samples: int) -> list[int]:
    """How many of the samples each word gets, by its weight."""
    return scale_counts([round(100 * word_weight(word)) for word in words], samples)


def scale_counts(counts: Sequence[int], samples: int) -> list[int]:
    """The same shares of another length."""
    total = sum(counts) or 1
    ends = [round(samples * end / total) for end in accumulate(counts)]
    return [end - start for start, end in pairwise((0, *ends))]


def group_phonemes(phonemes: Sequence[str], samples: Sequence[int]) -> list[PhonemeGroup]:
    """Phonemes, and the samples of each, as groups; a gap counts to the group before it."""
    groups: list[list[int]] = [[0, 0]]
    is_gap = False
    for phoneme, length in zip(phonemes, samples, strict=True):
        if phoneme != " " and is_gap and groups[-1][0]:
            groups.append([0, 0])
        is_gap = phoneme == " "
        groups[-1][0] += phoneme.isalpha()
        groups[-1][1] += length
    if len(groups) > 1 and not groups[-1][0]:  # nothing but a mark or a pause
        pause = groups.pop()[1]
        groups[-1][1] += pause
    return [PhonemeGroup(count, length) for count, length in groups]


def align_words(words: Sequence[str], groups: Sequence[PhonemeGroup]) -> list[int]:
    """
    How many samples each word gets, where `groups` are what the words became, in order.

    Of all ways to pair one word with several groups, or several words with one, that is taken in which lengths differ least.
    """
    if len(words) == len(groups):
        return [group.samples for group in groups]
    total = sum(group.samples for group in groups)
    pairs = _pair_words([_letter_weight(word) for word in words], [float(group.phonemes) for group in groups])
    if pairs is None:
        return share_samples(words, total)
    result: list[int] = []
    word_at = group_at = 0
    for word_count, group_count in pairs:
        sound = sum(group.samples for group in groups[group_at : group_at + group_count])
        result += share_samples(words[word_at : word_at + word_count], sound)
        word_at, group_at = word_at + word_count, group_at + group_count
    return result


def _letter_weight(word: str) -> float:
    return max(1.0, sum(4.0 if character.isdigit() else 1.0 for character in word if character.isalnum()))


_STEPS = (
    (1, 1),
    *((1, count) for count in range(2, MAX_GROUPS_PER_WORD + 1)),
    *((count, 1) for count in range(2, MAX_WORDS_PER_GROUP + 1)),
)


def _pair_words(words: Sequence[float], groups: Sequence[float]) -> list[tuple[int, int]] | None:
    """How many words go with how many groups, from the first on, by their lengths; None where there is no way."""
    if not words or not groups:
        return None
    per_letter = sum(groups) / sum(words)
    word_ends = [0.0, *accumulate(length * per_letter for length in words)]
    group_ends = [0.0, *accumulate(groups)]
    costs: dict[tuple[int, int], float] = {(0, 0): 0.0}
    steps: dict[tuple[int, int], tuple[int, int]] = {}
    for i, j in product(range(1, len(words) + 1), range(1, len(groups) + 1)):
        for step in _STEPS:
            before = (i - step[0], j - step[1])
            if before not in costs:
                continue
            difference = (word_ends[i] - word_ends[before[0]]) - (group_ends[j] - group_ends[before[1]])
            cost = costs[before] + difference**2 + (step != (1, 1))
            if cost < costs.get((i, j), inf):
                costs[i, j], steps[i, j] = cost, step
    return _trace_back(steps, (len(words), len(groups)))


def _trace_back(steps: dict[tuple[int, int], tuple[int, int]], end: tuple[int, int]) -> list[tuple[int, int]] | None:
    path: list[tuple[int, int]] = []
    while end != (0, 0):
        if (step := steps.get(end)) is None:
            return None
        path.append(step)
        end = (end[0] - step[0], end[1] - step[1])
    return path[::-1]


class SpeakingRate:
    """
    How fast a voice speaks that says nothing of where its words are, learnt from what it has said.

    Attributes:
        samples_per_weight: of sound, for each unit of a word's `weight`.
    """

    def __init__(self, rate_hz: int) -> None:
        self.samples_per_weight = rate_hz * DEFAULT_S_PER_WEIGHT

    def word_ends(self, words: Sequence[str], speed: float) -> list[int]:
        """Where each of the words should end, in samples, at that speed."""
        return [round(end * self.samples_per_weight / speed) for end in accumulate(word_weight(word) for word in words)]

    def learn(self, words: Sequence[str], speed: float, samples: int) -> None:
        """So long the words took."""
        seen = samples * speed / max(1.0, sum(word_weight(word) for word in words))
        self.samples_per_weight += (seen - self.samples_per_weight) * LEARNING_RATE
