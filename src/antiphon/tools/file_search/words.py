"""
Words of texts and of queries, as SQLite's full-text index gets them.

The index separates words at blanks and signs, lowers them, drops accents and, in English, endings (`porter`). Scripts
without blanks between words would be one long word: they are indexed by pairs of neighbouring letters, which finds
words of two letters too, of which Chinese mostly consists (a trigram index finds none of them). A query is never syntax:
each of its words stands in quotes.
"""

import math
import re

from antiphon.tools.file_search.chunking import UNSPACED

TOKENIZER = "porter unicode61 remove_diacritics 2"

MAX_QUERY_WORDS = 32
"""Of a query; more words cost time, and the first ones say what it is about."""

COMMON_WORDS = frozenset(
    """
    a about an and any are as at be been but by can could did do does for from had has have how i if in into is it its me my of
    on or our please shall should tell than that the their them there these they this those to us was we were what when where
    which who whom whose why will with would you your
    """.split()
)
"""English words that say nothing about what is looked for; a query of nothing else is searched with them."""

_RUN = re.compile(f"[{UNSPACED}]+")
_WORD = re.compile(rf"[^\W_{UNSPACED}]+|[{UNSPACED}]+")


def indexable(text: str) -> str:
    """A text as the index gets it: with pairs of letters where words have no blanks between them."""
    return _RUN.sub(lambda run: f" {' '.join(_pairs(run[0]))} ", text)


def query_terms(query: str) -> list[str]:
    """The words of a query, each as an expression of the index's language; texts with any of them match `" OR ".join`."""
    words = list(dict.fromkeys(word.lower() for word in _WORD.findall(query)))
    words = [word for word in words if word not in COMMON_WORDS] or words
    return list(dict.fromkeys(term for word in words for term in _terms(word)))[:MAX_QUERY_WORDS]


def weight(texts: int, matches: int) -> float:
    """The weight of a word that `matches` of `texts` have, as in FTS5's bm25, which has the same lower bound."""
    return max(1e-6, math.log((texts - matches + 0.5) / (matches + 0.5)))


def _terms(word: str) -> list[str]:
    if not _RUN.fullmatch(word):
        return [f'"{word}"']
    return [f'"{pair}"' for pair in _pairs(word)] if len(word) > 1 else [f'"{word}" *']


def _pairs(run: str) -> list[str]:
    return [run[place : place + 2] for place in range(len(run) - 1)] or [run]
