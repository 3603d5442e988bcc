"""The tokenizer: what it makes of texts, compared with the library `tokenizers` where the real vocabulary is there."""

import pytest
from hypothesis import given, strategies as st

from antiphon.embeddings.minilm import TOKENIZER_FILE
from antiphon.embeddings.wordpiece import WordPiece
from support.embeddings.tiny_model import VOCABULARY

PIECES = {id: piece for piece, id in VOCABULARY.items()}

# `tokenizers` 0.22 with the tokenizer.json of sentence-transformers/all-MiniLM-L6-v2.
KNOWN = {
    "": [101, 102],
    " \n ": [101, 102],
    "Hello, world!": [101, 7592, 1010, 2088, 999, 102],
    "naïve café — déjà vu": [101, 15743, 7668, 1517, 2139, 3900, 24728, 102],
    "東京 is 2,000 km away": [101, 1879, 1755, 2003, 1016, 1010, 2199, 2463, 2185, 102],
    "unbelievably tokenization": [101, 4895, 8671, 2666, 3567, 6321, 19204, 3989, 102],
    "£5 + $3 = €8": [101, 27813, 1009, 1002, 1017, 1027, 1574, 2620, 102],
    "a\u200bb\x00c\ufffdd\tE": [101, 5925, 2094, 1041, 102],
    "İstanbul STRASSE Straße": [101, 9960, 2358, 8180, 3366, 2358, 27807, 102],
    "don't re-enter __init__": [101, 2123, 1005, 1056, 2128, 1011, 4607, 1035, 1035, 1999, 4183, 1035, 1035, 102],
    "🙂 emoji": [101, 100, 7861, 29147, 2072, 102],
    "a^b`c~d|e": [101, 1037, 1034, 1038, 1036, 1039, 1066, 1040, 1064, 1041, 102],
    "x" * 101: [101, 100, 102],
    "\u3097": [101, 100, 102],
}


@pytest.fixture(scope="module")
def tiny_pieces():
    tokenizer = WordPiece(VOCABULARY)
    return lambda text, max_tokens=256: [PIECES[id] for id in tokenizer.encode(text, max_tokens)]


@pytest.mark.weights
@pytest.mark.parametrize(("text", "ids"), KNOWN.items())
def test_the_real_vocabulary_gives_the_tokens_of_the_original(real_folder, text, ids):
    assert WordPiece.from_file(real_folder / TOKENIZER_FILE).encode(text, 256) == ids


def test_words_are_split_into_their_longest_pieces(tiny_pieces):
    assert tiny_pieces("Hello wörld! ab") == ["[CLS]", "hello", "world", "!", "a", "##b", "[SEP]"]


def test_what_looks_like_a_special_token_is_text(tiny_pieces):
    assert tiny_pieces("[SEP]") == ["[CLS]", "[UNK]", "s", "##e", "##p", "[UNK]", "[SEP]"]


def test_a_long_text_is_cut_and_still_ends_as_texts_do(tiny_pieces):
    assert tiny_pieces("hello " * 300, 8) == ["[CLS]", *["hello"] * 6, "[SEP]"]
    assert tiny_pieces("abcdefghij", 4) == ["[CLS]", "a", "##b", "[SEP]"]


def test_a_word_without_end_is_one_unknown_token(tiny_pieces):
    assert tiny_pieces("a" * 10_000_000) == ["[CLS]", "[UNK]", "[SEP]"]


@given(text=st.text(), max_tokens=st.integers(2, 40))
def test_any_text_has_tokens_within_the_limit(text, max_tokens):
    ids = WordPiece(VOCABULARY).encode(text, max_tokens)
    assert 2 <= len(ids) <= max_tokens
    assert ids[0] == VOCABULARY["[CLS]"] and ids[-1] == VOCABULARY["[SEP]"]


def test_a_tokenizer_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text('{"normalizer": {"lowercase": true}, "model": {"type": "BPE", "vocab": {}}}')
    with pytest.raises(ValueError, match="no uncased WordPiece"):
        WordPiece.from_file(path)
