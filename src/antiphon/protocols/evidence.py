"""
Which excerpt a sentence of an answer comes from, by its words: for models that write no marks of their own.

A sentence is cited only where the evidence is clear: nearly all that it says stands in one or two neighbouring sentences
of an excerpt, with all its numbers and names, and in no other excerpt nearly as well. A wrong citation is worse than none.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise

from msgspec import Struct

MAX_EVIDENCE_CHARS = 12_000
"""Of the excerpts that have the most of the answer's words; they are read on the event loop, in some 10 ms."""

MAX_SENTENCES = 100
"""Of an answer; more are not cited."""

MAX_TEXT_CHARS = 20_000
"""Of an answer; a longer one is not cited."""

MAX_COMPARISONS = 20_000
"""Of a word of the answer with one of an excerpt."""

_MIN_WORDS = 3
"""That a sentence and its excerpt have in common; a number counts for two of them."""

_MIN_SHARE = 0.7
"""Of the words of a sentence that its excerpt has."""

_LEAD = 0.2
"""By which the share is larger than with any other excerpt."""

_STEM_LETTERS = 5
"""Longer words are the same if they begin so: `hunts`, `hunting`."""

_COMMON_WORDS = frozenset(
    """
    a about according after all also an and any are as at be because been before being both but by can could did do does during each
    for from had has have he her here his how if in into is it its just like made make many may more most much must my of on one only
    or other our out over own said same says she should so some such than that the their them then there these they this those through
    to up us was we were what when where which while who whom whose will with within would you your
    answer based context document documents excerpt file files following information mentioned page provided question result results
    search source sources text therefore thus
    """.split()
)
_NEGATIONS = frozenset("cannot neither never no nobody none nor not nothing without".split())
_NUMBERS = {
    word: str(number)
    for words, start, step in (
        ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen", 0, 1),
        ("nineteen twenty", 19, 1),
        ("thirty forty fifty sixty seventy eighty ninety", 30, 10),
    )
    for number, word in enumerate(words.split())
    for number in (start + step * number,)
    if number != 1
} | {"hundred": "100", "thousand": "1000", "million": "1000000"}
"""English numbers as words; `one` stands for other things, too."""

_CLOSERS = "\"'”’)]*_"
# Each run of stops is tried once, so that a text of nothing else takes no longer than others.
_SENTENCE_END = re.compile(rf"(?<![.!?…])[.!?…]++[{re.escape(_CLOSERS)}]*+(?=\s|\Z)|\n|[。！？]++")
_STOPS = f".!?…。！？{_CLOSERS} \t\r\n"
_TOKEN = re.compile(r"\d+(?:[.,:]\d+)*|[^\W\d_]+(?:['’][^\W\d_]+)?")


class Excerpt(Struct, frozen=True):
    """What the model has read; `source` is the same for all that is of one file or page."""

    source: str
    text: str


class SentenceSource(Struct, frozen=True):
    """A sentence at `start` up to `end` of a text, without its full stop, and the position of the excerpt that it comes from."""

    start: int
    end: int
    excerpt: int


class _Sentence(Struct, frozen=True):
    """One, or two neighbouring ones; `negative_words` are those that only one with a negation has, where the other has none."""

    words: frozenset[str]
    numbers: frozenset[str]
    names: frozenset[str]
    is_negative: bool
    negative_words: frozenset[str] | None = None


class _Window(Struct, frozen=True):
    source: str
    excerpt: int
    sentence: _Sentence


class _Index:
    """Every sentence of the excerpts, and every two that follow each other, by their words and numbers."""

    def __init__(self, excerpts: Sequence[Excerpt], positions: Iterable[int]) -> None:
        self.windows: list[_Window] = []
        self.places: dict[str, list[int]] = {}
        self.sources_by_word: dict[str, set[str]] = {}
        for position in positions:
            self._add(position, excerpts[position])

    def _add(self, position: int, excerpt: Excerpt) -> None:
        sentences = [_read(excerpt.text[start:end]) for start, end in _split(excerpt.text)]
        for sentence in sentences:
            for word in sentence.words:
                self.sources_by_word.setdefault(word, set()).add(excerpt.source)
        for sentence in (*sentences, *(_join(one, other) for one, other in pairwise(sentences))):
            for word in (*sentence.words, *sentence.numbers):
                self.places.setdefault(word, []).append(len(self.windows))
            self.windows.append(_Window(excerpt.source, position, sentence))


def find_evidence(text: str, excerpts: Sequence[Excerpt]) -> list[SentenceSource]:
    """
    The sentences of an answer that clearly come from one source.

    Args:
        excerpts: the newest first; of those with the same text, the first is cited.
    """
    sources: list[SentenceSource] = []
    if len(text) > MAX_TEXT_CHARS:
        return sources
    index = _Index(excerpts, _nearest(text, excerpts))
    is_code, comparisons = False, 0
    for start, end in islice(_split(text), MAX_SENTENCES):
        line = text[start:end]
        if line.startswith("```"):
            is_code = not is_code
        elif not is_code:
            sentence = _read(line)
            comparisons += sum(len(index.places.get(word, ())) for word in (*sentence.words, *sentence.numbers))
            if comparisons > MAX_COMPARISONS:
                break
            if (excerpt := _find_excerpt(sentence, index)) is not None:
                sources.append(SentenceSource(start, start + len(line.rstrip(_STOPS)), excerpt))
    return sources


def _nearest(text: str, excerpts: Sequence[Excerpt]) -> list[int]:
    """The positions of the excerpts that have the most words of a text, each text once, in their order."""
    stems = {_stem(token.lower()) for token in islice((match[0] for match in _TOKEN.finditer(text)), 1000)} - _COMMON_WORDS
    first_by_text: dict[str, int] = {}
    for position, excerpt in enumerate(excerpts):
        first_by_text.setdefault(excerpt.text.lower(), position)
    scores = {position: sum(stem in text for stem in stems) for text, position in first_by_text.items()}
    positions: list[int] = []
    room = MAX_EVIDENCE_CHARS
    for position in sorted(scores, key=lambda position: -scores[position]):
        if (room := room - len(excerpts[position].text)) < 0:
            break
        positions.append(position)
    return sorted(positions)


def _split(text: str) -> Iterator[tuple[int, int]]:
    """Where the sentences of a text begin and end; a line ends one, too."""
    start = 0
    for match in _SENTENCE_END.finditer(text):
        yield start + _indent(text[start : match.end()]), match.end()
        start = match.end()
    if start < len(text):
        yield start + _indent(text[start:]), len(text)


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def _find_excerpt(sentence: _Sentence, index: _Index) -> int | None:
    size = len(sentence.words) + len(sentence.numbers)
    counts = Counter(chain.from_iterable(index.places.get(word, ()) for word in (*sentence.words, *sentence.numbers)))
    best: tuple[int, _Window] | None = None
    most: dict[str, int] = {}  # by source, of the window that has the most
    for place, count in counts.items():
        window = index.windows[place]
        most[window.source] = max(most.get(window.source, 0), count)
        numbers = len(sentence.numbers & window.sentence.numbers)
        is_enough = count >= _MIN_SHARE * size and count + numbers >= _MIN_WORDS and count > numbers
        if is_enough and (best is None or count > best[0]) and _fits(sentence, window.sentence):
            best = count, window
    if best is None:
        return None
    count, window = best
    if any(count < other + _LEAD * size for source, other in most.items() if source != window.source):
        return None
    # A word that only another source has, such as a name at the beginning: the sentence may mix them up.
    word_sources = [index.sources_by_word.get(word) for word in sentence.words]
    return window.excerpt if all(each is None or window.source in each for each in word_sources) else None


def _fits(sentence: _Sentence, window: _Sentence) -> bool:
    """Whether nothing in the sentence speaks against the window."""
    if not (sentence.numbers <= window.numbers and sentence.names <= window.words):
        return False
    if window.negative_words is None:
        return sentence.is_negative == window.is_negative
    return sentence.is_negative and not sentence.words.isdisjoint(window.negative_words)


def _join(one: _Sentence, other: _Sentence) -> _Sentence:
    positive, negative = (other, one) if one.is_negative else (one, other)
    negative_words = None if one.is_negative == other.is_negative else negative.words - positive.words
    return _Sentence(one.words | other.words, one.numbers | other.numbers, one.names | other.names, one.is_negative, negative_words)


def _read(text: str) -> _Sentence:
    words: set[str] = set()
    numbers: set[str] = set()
    names: set[str] = set()
    is_negative = False
    for place, match in enumerate(_TOKEN.finditer(text)):
        token = match[0]
        word = token.lower().replace("’", "'").removesuffix("'s")
        if token[0].isdigit():
            numbers.add(token.replace(",", ""))
        elif word in _NUMBERS:
            numbers.add(_NUMBERS[word])
        elif word in _NEGATIONS or word.endswith("n't"):
            is_negative = True
        elif word not in _COMMON_WORDS and len(word) > 1:
            stem = _stem(word)
            words.add(stem)
            if place and token[0].isupper():
                names.add(stem)
    return _Sentence(frozenset(words), frozenset(numbers), frozenset(names), is_negative)


def _stem(word: str) -> str:
    if word.isascii() and len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    return word[:_STEM_LETTERS]
