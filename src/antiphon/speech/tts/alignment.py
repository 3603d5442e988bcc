"""
Which samples of a stretch of speech each word takes.

A word is what stands between white space, with the white space behind it. Where a voice reports the duration of each
phoneme, words are aligned with the groups of phonemes that they became; else they share the samples by their weight.
"""

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise, product
from math import inf

from msgspec import Struct

MAX_WORDS_PER_GROUP = 4
"""Words that may run into one group, as `out of the` does."""

MAX_GROUPS_PER_WORD = 8
"""Groups that one word may become, as a number in digits does."""

DEFAULT_S_PER_WEIGHT = 0.055
"""The duration of one letter in a typical voice; the pause at a full stop is worth seven letters."""

LEARNING_RATE = 0.3
"""The weight of the latest sentence in the moving average of a voice's rate."""

_PAUSE_WEIGHTS = {",": 4.0, ";": 5.0, ":": 5.0, "—": 4.0, "–": 4.0, ".": 7.0, "!": 7.0, "?": 7.0, "…": 7.0}
"""The pause behind a word that ends in this mark, in letters."""


class PhonemeGroup(Struct, frozen=True):
    """Phonemes between two gaps: their count, and their samples including the pause behind them."""

    phonemes: int
    samples: int


def split_words(text: str) -> list[str]:
    """The words; joined they are the text. White space before the first word is part of it."""
    return re.findall(r"\s*\S+\s*", text) or ([text] if text else [])


def word_weight(word: str) -> float:
    """How long a word takes to say, in letters; a digit counts as a word of its own."""
    bare = word.rstrip()
    letters = sum(4.0 if character.isdigit() else 1.0 for character in bare if character.isalnum())
    return max(letters, 1.0) + _PAUSE_WEIGHTS.get(bare[-1:].strip("\"')”’") or bare[-2:-1], 0.0) + 1.0


def share_samples(words: Sequence[str], samples: int) -> list[int]:
    """The samples of each word, by weight."""
    return scale_counts([round(100 * word_weight(word)) for word in words], samples)


def scale_counts(counts: Sequence[int], samples: int) -> list[int]:
    """The same shares of another total, which they add up to exactly."""
    total = sum(counts) or 1
    ends = [round(samples * end / total) for end in accumulate(counts)]
    return [end - start for start, end in pairwise((0, *ends))]


def group_phonemes(phonemes: Sequence[str], samples: Sequence[int]) -> list[PhonemeGroup]:
    """Phonemes with the samples of each, as groups; a gap belongs to the group before it."""
    groups: list[list[int]] = [[0, 0]]
    is_gap = False
    for phoneme, length in zip(phonemes, samples, strict=True):
        if phoneme != " " and is_gap and groups[-1][0]:
            groups.append([0, 0])
        is_gap = phoneme == " "
        groups[-1][0] += phoneme.isalpha()
        groups[-1][1] += length
    if len(groups) > 1 and not groups[-1][0]:  # only a mark or a pause
        pause = groups.pop()[1]
        groups[-1][1] += pause
    return [PhonemeGroup(count, length) for count, length in groups]


def align_words(words: Sequence[str], groups: Sequence[PhonemeGroup]) -> list[int]:
    """
    The samples of each word, given the groups of phonemes that the words became, in order.

    Of all ways to pair one word with several groups, or several words with one group, this takes the one whose lengths
    differ least.
    """
    if len(words) == len(groups):
        return [group.samples for group in groups]
    total = sum(group.samples for group in groups)
    pairs = _pair_words([_letter_weight(word) for word in words], [float(group.phonemes) for group in groups])
    if pairs is None:
        return share_samples(words, total)
    result: list[int] = []
    word_index = group_index = 0
    for word_count, group_count in pairs:
        samples = sum(group.samples for group in groups[group_index : group_index + group_count])
        result += share_samples(words[word_index : word_index + word_count], samples)
        word_index, group_index = word_index + word_count, group_index + group_count
    return result


def _letter_weight(word: str) -> float:
    return max(1.0, sum(4.0 if character.isdigit() else 1.0 for character in word if character.isalnum()))


_STEPS = (
    (1, 1),
    *((1, count) for count in range(2, MAX_GROUPS_PER_WORD + 1)),
    *((count, 1) for count in range(2, MAX_WORDS_PER_GROUP + 1)),
)


def _pair_words(words: Sequence[float], groups: Sequence[float]) -> list[tuple[int, int]] | None:
    """
    Pairs of (words, groups), from the first on, by dynamic programming over their lengths; None if there is no pairing.
    """
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
            # Of equal ways, the one with the most single words for single groups.
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
    The rate of a voice that doesn't report word times, learnt from its speech so far.

    Attributes:
        samples_per_weight: samples for each unit of `word_weight`.
    """

    def __init__(self, rate_hz: int) -> None:
        self.samples_per_weight = rate_hz * DEFAULT_S_PER_WEIGHT

    def word_ends(self, words: Sequence[str], speed: float) -> list[int]:
        """The expected end of each word, in samples."""
        return [round(end * self.samples_per_weight / speed) for end in accumulate(word_weight(word) for word in words)]

    def learn(self, words: Sequence[str], speed: float, samples: int) -> None:
        """Adjust to the samples that these words took."""
        new_rate = samples * speed / max(1.0, sum(word_weight(word) for word in words))
        self.samples_per_weight += (new_rate - self.samples_per_weight) * LEARNING_RATE
