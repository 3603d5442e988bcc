"""
Ranks what was found by vectors and by words: by reciprocal rank fusion, which needs no common measure of the two.

Source: Cormack, Clarke and Buettcher, Reciprocal rank fusion outperforms Condorcet and individual rank learning methods,
2009; K is theirs. A score is divided by the best that there could be, so it is 0 to 1.

A place in the list of the words counts as much as the square of the part of the query that the text has. Some text is
always the first that has any word of a question that is asked in other words; with its full weight, recall at 5 fell
from 94 % to 81 % in `bench/file_search.py`, and with this one it stays.
"""

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from antiphon.tools.file_search.base import Ranking

K = 60

Key = TypeVar("Key", bound=Hashable)


class QueryMatches(Struct, Generic[Key], frozen=True):
    """
    What was found for one query, the best first.

    Attributes:
        by_vector: with the cosines.
        by_words: with the part of the query that the text has, 0 to 1.
    """

    by_vector: Sequence[tuple[Key, float]]
    by_words: Sequence[tuple[Key, float]]


def merge(parts: Sequence[QueryMatches[Key]]) -> QueryMatches[Key]:
    """What was found for a query in several indexes, as if it were one."""
    by_vector = sorted((match for part in parts for match in part.by_vector), key=lambda match: -match[1])
    by_words = sorted((match for part in parts for match in part.by_words), key=lambda match: -match[1])
    return QueryMatches(by_vector, by_words)


def rank(queries: Sequence[QueryMatches[Key]], ranking: Ranking, limit: int) -> list[tuple[Key, float]]:
    """
    The best of what was found for all queries, with their scores.

    A match has the score of the query that it fits best: what answers one of several different questions is not worse
    than what belongs to all of them a little. Among equals, the sum over the queries decides.
    """
    best: dict[Key, float] = {}
    sums: dict[Key, float] = {}
    for matches in queries:
        for key, score in _scores(matches, ranking).items():
            best[key] = max(best.get(key, 0.0), score)
            sums[key] = sums.get(key, 0.0) + score
    order = sorted((key for key, score in best.items() if score >= ranking.score_threshold), key=lambda key: (-best[key], -sums[key]))
    return [(key, best[key]) for key in order[:limit]]


def _scores(matches: QueryMatches[Key], ranking: Ranking) -> dict[Key, float]:
    # A cosine may be negative or, by rounding, above 1; the score is 0 to 1.
    if ranking.ranker == "none":
        return {key: min(max(similarity, 0.0), 1.0) for key, similarity in matches.by_vector}
    total = ranking.embedding_weight + ranking.text_weight
    scores: dict[Key, float] = {}
    if ranking.embedding_weight > 0:
        for place, (key, _) in enumerate(matches.by_vector):
            scores[key] = ranking.embedding_weight / total * _place_score(place)
    if ranking.text_weight > 0:
        for place, (key, part) in enumerate(matches.by_words):
            scores[key] = scores.get(key, 0.0) + ranking.text_weight / total * _place_score(place) * part**2
    return {key: min(score, 1.0) for key, score in scores.items()}


def _place_score(place: int) -> float:
    return (K + 1) / (K + 1 + place)
