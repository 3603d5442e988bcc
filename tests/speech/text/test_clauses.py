"""A stream of text, cut into what can be spoken."""

import time

import pytest
from hypothesis import given, strategies as st

from antiphon.speech.text.clauses import MAX_SENTENCE_CHARS, MIN_FIRST_CLAUSE_CHARS, ClauseSplitter, ends_melody, split_sentences


def cut(text, size=1):
    clauses = ClauseSplitter()
    pieces = [piece for at in range(0, len(text), size) for piece in clauses.feed(text[at : at + size])]
    return pieces + clauses.flush()


@pytest.mark.parametrize(
    "pieces",
    [
        ["Well, my friend, ", "it is late, you know. ", "Go!"],
        ["Sure! ", "I can, of course, help. ", "Ask."],
        ["Dr. Smith (e.g. J. R. Smith) paid $3.14 at 5 p.m. for it. ", "Good."],
        ["He said \"Stop.\" ", "Then he left."],
        ["Wait… what? ", "Yes."],
        ["See [a, b](http://x.y/z, q) and `c, d; e` there. ", "Fine."],
        ["1. First thing\n", "2. Second. ", "Third."],
        ["It was in 2024. ", "Then it ended."],
        ["# Title\n", "\n", "Text here."],
        ["这是一个很长的句子用来测试，", "然后结束。", "好。"],
        ["a b c " * 39 + "a b ", "c a b c"],
    ],
)  # fmt: skip
def test_a_first_clause_then_sentences(pieces):
    assert cut("".join(pieces)) == pieces


def test_a_piece_is_given_as_soon_as_it_is_known_to_be_whole():
    clauses = ClauseSplitter()
    assert clauses.feed("Well, my friend,") == []
    assert clauses.feed(" it") == ["Well, my friend, "]
    assert clauses.feed(" is late.") == []
    assert clauses.feed(" Go") == ["it is late. "]
    assert clauses.feed("!\n") == ["Go!\n"]
    assert clauses.flush() == []


def test_a_sentence_that_is_too_long_is_cut_at_its_last_comma():
    start = "Word " * 30 + "word, "
    assert cut("Go. " + start + "word " * 40)[1] == start


def test_a_word_that_is_too_long_is_cut_at_last():
    assert len(cut("x" * 5 * MAX_SENTENCE_CHARS, 7)[0]) == MAX_SENTENCE_CHARS


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("unit", [".", "!?…", ".)", " ", "\t", ", ", "`, ", "a", "and ", "[a", "。", "\n"])
@pytest.mark.parametrize("size", [4, 4_000])
def test_no_text_takes_the_square_of_its_length_to_cut(unit, size, is_late):
    """ReDoS: rows of dots, as in a table of contents, came to seconds for a few hundred."""
    text = (unit * 4_000)[:4_000]
    clauses = ClauseSplitter(joins_parts=True)
    begun_s = time.process_time()
    pieces = [piece for at in range(0, len(text), size) for piece in clauses.feed(text[at : at + size], is_late=is_late)] + clauses.flush()
    assert time.process_time() - begun_s < 0.5, "0.5 ms for each four characters; it is some 0.05"
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 4 * MAX_SENTENCE_CHARS


def test_whole_sentences_are_cut_without_a_first_clause():
    assert split_sentences("Well, my friend, it is late. Go!") == ["Well, my friend, it is late. ", "Go!"]


def test_who_is_late_begins_with_the_phrases_that_are_there():
    clauses = ClauseSplitter()
    assert clauses.feed("Mr. Dashwood had time to ") == []
    assert clauses.feed("contemplate", is_late=True) == ["Mr. Dashwood had time "]
    assert clauses.feed(" his duties and the means that", is_late=True) == ["to contemplate his duties "]
    assert clauses.feed(" he had") == [], "nobody waits"
    assert clauses.flush() == ["and the means that he had"]


@pytest.mark.parametrize("text", ["A deck to", "Yes and no and ", "See [the page of the house", "Straightforwardly"])
def test_who_is_late_does_not_begin_with_less_than_a_phrase(text):
    assert ClauseSplitter().feed(text, is_late=True) == []


@pytest.mark.parametrize(
    ("text", "clause"),
    [
        ("The capital of", "The capital "),
        ("The capital of France is the", "The capital of France "),
        ("I think y", "I think "),
        ("Surely, it", "Surely, "),
        ("It's raining cats", "It's raining "),
        ("My cat sat here qu", "My cat sat here "),
    ],
)
def test_a_voice_that_joins_parts_begins_with_two_words_or_a_phrase(text, clause):
    clauses = ClauseSplitter(joins_parts=True)
    assert [piece for character in text for piece in clauses.feed(character, is_late=False)] == []
    assert clauses.feed("", is_late=True) == [clause]


@pytest.mark.parametrize(
    "text",
    ["Straightforwardly", "Straightforwardly ", "Of the ", "I am a ci", "It is the ci", "Or to 20 mi", "See [the page of", "Go out "],
)
def test_nobody_pauses_behind_a_word_that_is_bound_to_the_next(text):
    assert ClauseSplitter(joins_parts=True).feed(text, is_late=True) == []


@pytest.mark.parametrize(
    ("clause", "ends"),
    [
        ("Yes. ", True),
        ("(Yes.) ", True),
        ("Title\n", True),
        ("好。", True),
        ("Yes, ", False),
        ("Of France ", False),
        ("Why?” ", True),
        ("You said: ", True),
    ],
)
def test_a_clause_tells_whether_its_sentence_goes_on(clause, ends):
    assert ends_melody(clause) == ends


TEXT = st.text(alphabet=st.sampled_from("ab A1.,;:!?—…\"')([]`\n 。，"), max_size=400)


@given(TEXT, st.integers(1, 50))
def test_the_pieces_joined_are_the_text(text, size):
    assert "".join(cut(text, size)) == text


@given(TEXT, st.integers(2, 50))
def test_how_the_text_came_makes_no_difference(text, size):
    assert cut(text, size) == cut(text)


@given(TEXT)
def test_no_piece_is_much_too_long(text):
    assert all(
        len(piece.strip()) <= MAX_SENTENCE_CHARS or not piece[:MAX_SENTENCE_CHARS].strip() or " " not in piece[:MAX_SENTENCE_CHARS].strip()
        for piece in cut(text)
    )


def test_the_first_clause_is_not_too_short():
    assert len(cut("No, no, no, no, not at all.")[0].strip()) >= MIN_FIRST_CLAUSE_CHARS


@given(st.text(alphabet=st.sampled_from("ab to and of [`. "), max_size=200), st.integers(1, 50), st.booleans())
def test_the_pieces_joined_are_the_text_also_for_who_is_late(text, size, joins_parts):
    clauses = ClauseSplitter(joins_parts=joins_parts)
    pieces = [piece for at in range(0, len(text), size) for piece in clauses.feed(text[at : at + size], is_late=True)]
    assert "".join(pieces + clauses.flush()) == text
