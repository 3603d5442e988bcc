"""The index: what is found by vectors and by words, in what order, and what is not."""

import asyncio
import threading

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from antiphon.tools.file_search.base import Ranking
from antiphon.tools.file_search.chunking import Chunking
from antiphon.tools.file_search.index import Index, IndexEntry, Query, make_entry, search
from antiphon.tools.file_search.ranking import QueryMatches, rank
from antiphon.tools.file_search.vectors import VectorTable
from antiphon.tools.file_search.words import query_terms

DIMENSIONS = 72
WORDS_ALONE = Ranking(embedding_weight=0)
VECTORS_ALONE = Ranking(text_weight=0)


def unit(rows):
    rows = np.asarray(rows, np.float32)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def vector(seed):
    return unit(np.random.default_rng(seed).normal(size=DIMENSIONS))


def entry(file_id, chunks, seeds=None, version=""):
    vectors = np.array([vector(seed) for seed in seeds or range(len(chunks))], np.float16).reshape(-1, DIMENSIONS)
    return IndexEntry(file_id=file_id, chunks=chunks, vectors=vectors, parents=np.arange(len(chunks), dtype=np.uint32), version=version)


def texts(index, query, ranking=WORDS_ALONE, limit=10, allowed=None, seed=999):
    return [match.text for match in search([(index, allowed)], [Query(query, vector(seed))], ranking, limit)]


@pytest.fixture
def index():
    index = Index(DIMENSIONS)
    index.add(entry("file_a", ["The cat sat on the mat.", "Dogs bark at night."]))
    index.add(entry("file_b", ["Das Café öffnet früh.", "北京大学位于海淀区", "한국어를 배웁니다", "ภาษาไทย"], seeds=[10, 11, 12, 13]))
    yield index
    index.close()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("Where did the CAT sit?", "The cat sat on the mat."),
        ("barking dog", "Dogs bark at night."),
        ("cafe", "Das Café öffnet früh."),
        ("海淀", "北京大学位于海淀区"),
        ("京", "北京大学位于海淀区"),
        ("한국어", "한국어를 배웁니다"),
        ("ไทย", "ภาษาไทย"),
    ],
)
def test_words_are_found_in_any_script(index, query, expected):
    assert texts(index, query) == [expected]


@pytest.mark.parametrize("query", ['"', "*", "NEAR(a b)", "a AND NOT", "words:cat*", "'; DROP TABLE words; --", "", "the", "\0", "\ud800"])
def test_a_query_is_never_syntax(index, query):
    assert isinstance(texts(index, query), list)


@given(st.text(max_size=60))
def test_every_expression_is_valid(query):
    index = Index(DIMENSIONS)
    try:
        for term in query_terms(query):
            index._database.execute("SELECT rowid FROM words WHERE words MATCH ?", (term,)).fetchall()
    finally:
        index.close()


def test_the_nearest_vectors_are_found_first(index):
    assert texts(index, "", VECTORS_ALONE, limit=1, seed=12) == ["한국어를 배웁니다"]


def test_what_words_and_vectors_agree_on_is_first(index):
    matches = search([(index, None)], [Query("dogs", vector(1))], Ranking(), 10)
    assert (matches[0].file_id, matches[0].position) == ("file_a", 1)
    assert matches[0].score > 0.95
    assert all(match.score <= 0.5 for match in matches[1:])


def test_a_text_with_a_few_of_the_words_counts_little(index):
    few, all_words = (
        search([(index, None)], [Query(text, vector(999))], WORDS_ALONE, 1)[0].score for text in ("bark bread butter jam", "dogs bark")
    )
    assert few < 0.3 < 0.9 < all_words


def test_words_that_most_texts_have_are_searched_only_if_there_are_no_others():
    index = Index(DIMENSIONS)
    index.add(entry("file_a", [f"report {number}" for number in range(9)] + ["report whale"]))
    assert texts(index, "report whale") == ["report whale"]
    assert len(texts(index, "report", limit=50)) == 10
    index.close()


def test_scores_below_the_threshold_are_left_out(index):
    assert len(search([(index, None)], [Query("dogs", vector(1))], Ranking(score_threshold=0.6), 10)) == 1


def test_without_fusion_the_score_is_the_similarity(index):
    match = search([(index, None)], [Query("dogs", vector(1))], Ranking(ranker="none"), 1)[0]
    assert match.score == pytest.approx(1, abs=0.01)


def test_only_allowed_files_are_found(index):
    assert texts(index, "cat", Ranking(), allowed={"file_b"}, limit=50).count("The cat sat on the mat.") == 0
    assert texts(index, "cat", allowed={"file_b"}) == []
    assert texts(index, "cat", Ranking(), allowed=set()) == []


def test_a_file_is_replaced_and_removed(index):
    index.add(entry("file_a", ["A whale sings."], version="2"))
    assert index.versions == {"file_a": "2", "file_b": ""}
    assert (texts(index, "cat"), texts(index, "whale")) == ([], ["A whale sings."])
    assert index.remove("file_a")
    assert not index.remove("file_a")
    assert texts(index, "whale", Ranking(), limit=50) == texts(index, "", Ranking(), limit=50)


def test_several_queries_each_put_their_best_first(index):
    queries = [Query("cat", vector(0)), Query("dogs", vector(1))]
    assert {match.text for match in search([(index, None)], queries, Ranking(), 2)} == {"The cat sat on the mat.", "Dogs bark at night."}


def test_several_indexes_are_searched_as_one(index):
    other = Index(DIMENSIONS)
    other.add(entry("file_c", ["A cat sleeps."], seeds=[50]))
    other.add(entry("file_a", ["The cat sat on the mat."]))
    matches = search([(index, None), (other, None)], [Query("cat", vector(50))], Ranking(), 10)
    assert (matches[0].source, matches[0].file_id) == (1, "file_c")
    assert [match.text for match in matches].count("The cat sat on the mat.") == 1
    other.close()


def test_an_index_in_a_file_comes_back(tmp_path):
    path = tmp_path / "vs_1.index"
    first = Index(DIMENSIONS, path)
    first.add(entry("file_a", ["The cat sat.", "Dogs bark."], version="7"))
    first.close()
    second = Index(DIMENSIONS, path)
    assert second.versions == {"file_a": "7"}
    assert texts(second, "cat") == ["The cat sat."]
    assert texts(second, "", VECTORS_ALONE, limit=1, seed=1) == ["Dogs bark."]
    second.close()


@pytest.mark.parametrize("damage", ["noise", "dimensions", "unfinished", "chunks"])
def test_an_index_that_cannot_be_read_is_begun_anew(tmp_path, damage):
    path = tmp_path / "vs_1.index"
    first = Index(DIMENSIONS, path)
    first.add(entry("file_a", ["The cat sat."]))
    if damage == "unfinished":
        with first._database:
            first._database.execute("DELETE FROM file")
    if damage == "chunks":
        with first._database:
            first._database.execute("DELETE FROM chunk")
    first.close()
    if damage == "noise":
        path.write_bytes(b"no database at all" * 500)
    second = Index(64 if damage == "dimensions" else DIMENSIONS, path)
    assert second.versions == {}
    second.close()


def test_an_entry_that_fits_nothing_is_refused(index):
    with pytest.raises(ValueError, match="don't fit"):
        index.add(IndexEntry(file_id="x", chunks=["a"], vectors=np.zeros((1, 3), np.float16), parents=np.zeros(1, np.uint32)))


def test_threads_may_search_while_files_come_and_go(index):
    failures = []

    def write():
        for number in range(30):
            index.add(entry("file_x", [f"cat {number} {each}" for each in range(100)]))

    def read():
        try:
            for _ in range(60):
                found = [text for text in texts(index, "cat", Ranking(), limit=50) if text.startswith("cat")]
                assert len({text.split()[1] for text in found}) <= 1, found
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=target) for target in (write, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


class LetterEmbedder:
    """Counts letters; quick, and alike for texts that are."""

    async def dimensions(self):
        return DIMENSIONS

    async def embed(self, texts):
        counts = np.ones((len(texts), DIMENSIONS), np.float32)
        for row, text in enumerate(texts):
            np.add.at(counts[row], [ord(char) % DIMENSIONS for char in text], 10)
        return unit(counts)


def test_a_file_becomes_an_entry_whose_windows_find_their_chunk():
    paragraphs = [f"{letter * 5} " * 150 for letter in "abcdefghijkl"]
    made = asyncio.run(make_entry("file_1", "\n\n".join(paragraphs), Chunking(max_tokens=200, overlap_tokens=0), LetterEmbedder()))
    assert len(made.parents) == len(made.vectors) >= len(made.chunks) > 5
    index = Index(DIMENSIONS)
    index.add(made)
    query = asyncio.run(LetterEmbedder().embed(["ggggg " * 150]))[0]
    assert "ggggg" in search([(index, None)], [Query("", query)], Ranking(), 1)[0].text
    index.close()


# The parts alone


@settings(max_examples=30)
@given(st.integers(1, 700), st.integers(0, 2**32), st.integers(1, 12))
def test_the_table_finds_what_comparing_all_finds(count, seed, limit):
    dice = np.random.default_rng(seed)
    centers = dice.normal(size=(20, DIMENSIONS))
    vectors = unit(centers[dice.integers(0, 20, count)] + 0.6 * dice.normal(size=(count, DIMENSIONS))).astype(np.float16)
    owners = dice.integers(0, max(1, count // 2), count)
    table = VectorTable(DIMENSIONS)
    for begin in range(0, count, 97):
        table.add(owners[begin : begin + 97], vectors[begin : begin + 97])
    gone = np.unique(owners)[::3]
    table.remove(gone)
    allowed = np.unique(owners)[::2]
    query = unit(vectors[0].astype(np.float32) + 0.1 * dice.normal(size=DIMENSIONS).astype(np.float32))
    found, similarities = table.nearest(query, 400, allowed)
    mask = np.isin(owners, allowed) & ~np.isin(owners, gone)
    best = {}
    for owner, similarity in zip(owners[mask].tolist(), (vectors[mask].astype(np.float32) @ query).tolist(), strict=True):
        best[owner] = max(best.get(owner, -1), similarity)
    expected = sorted(best.values(), reverse=True)
    assert similarities[:limit].tolist() == pytest.approx(expected[:limit], abs=1e-5)
    assert [best[owner] for owner in found.tolist()][:limit] == pytest.approx(expected[:limit], abs=1e-5)


parts = st.lists(st.floats(0, 1), min_size=10, max_size=10).map(lambda values: sorted(values, reverse=True))
ranks = st.tuples(st.lists(st.integers(0, 9), unique=True), parts).map(lambda pair: list(zip(*pair, strict=False)))
weights = st.floats(0, 5).map(lambda weight: 0.0 if weight < 0.01 else weight)


@given(st.lists(st.tuples(ranks, ranks), min_size=1, max_size=4), weights, weights.filter(bool), st.floats(0, 1), st.integers(0, 12))
def test_scores_are_within_bounds_and_in_order(lists, embedding, text, threshold, limit):
    found = [QueryMatches(*pair) for pair in lists]
    ranking = Ranking(embedding_weight=embedding, text_weight=text, score_threshold=threshold)
    result = rank(found, ranking, limit)
    scores = [score for _, score in result]
    assert scores == sorted(scores, reverse=True)
    assert all(threshold <= score <= 1 for score in scores)
    assert len({key for key, _ in result}) == len(result) <= limit


@given(ranks.filter(bool), ranks, st.integers(0, 9))
def test_a_better_place_is_never_worth_less(by_vector, by_words, key):
    def score(words):
        return dict(rank([QueryMatches(by_vector, words)], Ranking(), 100)).get(key, 0)

    moved = [(key, 1.0), *(match for match in by_words if match[0] != key)]
    assert score(moved) >= score(by_words)


def test_what_is_first_everywhere_scores_one():
    assert rank([QueryMatches([("a", 0.9)], [("a", 1.0)])], Ranking(), 5) == [("a", 1.0)]
