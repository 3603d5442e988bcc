"""Chunks and windows of texts."""

import itertools

import pytest
from hypothesis import given, strategies as st

from antiphon.embeddings.minilm import MAX_TOKENS as ENCODER_TOKENS, TOKENIZER_FILE
from antiphon.embeddings.wordpiece import WordPiece
from antiphon.tools.file_search import chunking as module
from antiphon.tools.file_search.base import UnreadableFileError
from antiphon.tools.file_search.chunking import Chunking, chunk, cut_windows

AUTO = Chunking()
SMALL = Chunking(max_tokens=100, overlap_tokens=50)

words = st.text("abcdefgh", min_size=1, max_size=12) | st.sampled_from(
    ["don't", "été", "cafe\u0301", "Straße", "北京大学", "हिन्दी", "x_y", "3.14", "👩\u200d🔬", "🇫🇷"]
)
prose = st.lists(st.tuples(words, st.sampled_from([" ", ". ", "\n", "\n\n", ", ", "  "])), max_size=400).map(
    lambda parts: "".join(word + gap for word, gap in parts)
)
chunkings = st.integers(100, 300).flatmap(
    lambda size: st.integers(0, size // 2).map(lambda overlap: Chunking(max_tokens=size, overlap_tokens=overlap))
)


def sentences(count):
    return " ".join(f"Sentence {number} says something about the matter at hand." for number in range(count))


def is_inside_word(text, place):
    return 0 < place < len(text) and all(char.isascii() and (char.isalnum() or char in "'_") for char in text[place - 1 : place + 1])


def test_a_short_text_is_one_chunk():
    assert [each.text for each in chunk("  Hello, world.\n", AUTO)] == ["Hello, world."]


@pytest.mark.parametrize("text", ["", " \n\t "])
def test_blanks_have_no_chunk(text):
    assert chunk(text, AUTO) == []


def test_neighbours_share_about_half():
    text = sentences(400)
    chunks = chunk(text, AUTO)
    assert len(chunks) > 4
    for first, second in itertools.pairwise(chunks):
        shared = first.end - second.begin
        assert 0.4 < shared / len(first.text) < 0.6


@given(prose, chunkings)
def test_chunks_cover_the_text_in_order_and_cut_no_word(text, chunking):
    chunks = chunk(text, chunking)
    covered = 0
    for each in chunks:
        assert each.text == text[each.begin : each.end] == each.text.strip()
        assert not text[covered : each.begin].strip()
        assert not is_inside_word(text, each.begin)
        assert not is_inside_word(text, each.end)
        assert each.end > covered
        covered = each.end
    assert not text[covered:].strip()


@given(prose, chunkings)
def test_windows_cover_the_text_once_each_inside_its_chunk(text, chunking):
    chunks = chunk(text, chunking)
    windows = cut_windows(text, chunks)
    assert "".join("".join(window.text.split()) for window in windows) == "".join(text.split())
    assert [window.parent for window in windows] == sorted(window.parent for window in windows)
    assert all(window.text in chunks[window.parent].text for window in windows)
    assert {window.parent for window in windows} <= set(range(len(chunks)))


@given(st.text(max_size=3000))
def test_any_text_can_be_cut(text):
    chunks = chunk(text, SMALL)
    cut_windows(text, chunks)
    assert all(each.text for each in chunks)


@pytest.mark.parametrize("mark", ["a", "\u0301", "9", "北", "!", "\u200d"])
def test_a_text_of_one_endless_word_is_cut_all_the_same(mark):
    chunks = chunk(mark * 20_000 + "x", SMALL)
    assert len(chunks) > 1
    assert max(len(each.text) for each in chunks) <= 20 * SMALL.max_tokens


def test_no_overlap_means_that_each_word_is_in_one_chunk():
    text = sentences(200)
    chunks = chunk(text, Chunking(max_tokens=100, overlap_tokens=0))
    assert " ".join(each.text for each in chunks) == text


def test_windows_end_with_sentences_where_they_can():
    text = sentences(300)
    windows = cut_windows(text, chunk(text, AUTO))
    assert all(window.text.startswith("Sentence") and window.text.endswith(".") for window in windows)


def test_a_text_beyond_the_limit_is_refused():
    with pytest.raises(UnreadableFileError, match="tokens, and the limit is 5000000") as caught:
        chunk("a" * (2 * module.MAX_TOKENS + 2), AUTO)
    assert caught.value.code == "invalid_file"


@pytest.mark.weights
@pytest.mark.parametrize(
    "text",
    [
        sentences(300),
        "Съешь же ещё этих мягких французских булок, да выпей чаю. " * 100,
        "北京大学是中国的一所著名大学，位于北京市海淀区。" * 100,
        "def get_item(self, key: str) -> Item | None:\n    return self._items.get(key, {}).setdefault('x_1', [])\n" * 60,
        "| 0x1F | 3.14159 | a-b-c | https://example.com/a/b?c=d |\n" * 60,
    ],
)
def test_the_encoder_reads_every_window_whole(text, real_folder):
    tokenizer = WordPiece.from_file(real_folder / TOKENIZER_FILE)
    windows = cut_windows(text, chunk(text, AUTO))
    assert max(len(tokenizer.encode(window.text, 10_000)) for window in windows) <= ENCODER_TOKENS
