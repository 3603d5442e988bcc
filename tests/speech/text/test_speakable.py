"""Text as it is spoken, and as it was written."""

from contextlib import aclosing

import pytest
from hypothesis import given, strategies as st

from antiphon.speech.text.speakable import TextNormalizer, synthesize_clause
from antiphon.speech.tts.alignment import split_words
from support.speech.running import run, started
from support.speech.synthesizers import tone_synthesizer


def spoken(text, language="en"):
    return TextNormalizer(language).normalize(text).spoken_text


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("**Bold** and *it* and `code_x` and __b__, ~~gone~~.", "Bold and it and code x and b, gone."),
        ("See [the *docs*](https://a.b/c_(d)) now.", "See the docs now."),
        ("![A cat](cat.png) and [this][1] [2].", "A cat and this ."),
        ("<https://example.com> <br> done", "example dot com  done"),
        ("Great 😀!", "Great !"),
        ("# Title\n", "Title\n"),
        ("- one\n* two\n> three\n- [ ] four\n", "one\ntwo\nthree\nfour\n"),
        ("1. one\n12) twelve\n", "one: one\ntwelve: twelve\n"),
        ("| A | B |\n|---|:-:|\n| x y | 2 |\n", "A, B\nx y, two\n"),
        ("Title\n=====\ntext\n---\n", "Title\ntext\n"),
        (r"5 \* 3", "five * three"),
        ("2 * 3", "two times three"),
    ],
)
def test_markup_is_not_read_aloud(written, said):
    assert spoken(written) == said


def test_a_block_of_code_is_named_and_passed_over():
    speakable = TextNormalizer()
    pieces = ["So:\n", "```python\n", "x = [1, 2]\n", "# - *\n", "```\n", "Done."]
    said = [speakable.normalize(piece).spoken_text for piece in pieces]
    assert said == ["So:\n", "Python code, which I won't read aloud. ", "", "", "", "Done."]


def test_a_fence_within_a_longer_fence_is_code():
    speakable = TextNormalizer()
    assert [speakable.normalize(piece).spoken_text for piece in ("````\n", "```\n", "````\n", "After.")][1:] == ["", "", "After."]


def test_only_what_begins_a_line_is_a_marker():
    speakable = TextNormalizer()
    assert speakable.normalize("It is, ").spoken_text == "It is, "
    assert speakable.normalize("1. of ").spoken_text == "one. of "
    assert speakable.normalize("all\n").spoken_text == "all\n"
    assert speakable.normalize("1. of").spoken_text == "one: of"


def test_the_rest_of_a_tables_row_is_in_the_row_too():
    speakable = TextNormalizer()
    assert [speakable.normalize(piece).spoken_text for piece in ("| Well, ", "yes | no |\n")] == ["Well, ", "yes, no\n"]


def test_other_languages_are_left_to_the_voice():
    assert spoken("**Hallo**, 5 km bis [Köln](http://x.y) 😀", "de") == "Hallo, 5 km bis Köln "


def test_what_has_no_word_in_it_is_not_said():
    assert spoken("...") == spoken("😀\n") == spoken("---\n") == ""


def test_what_was_written_comes_with_the_first_word_that_is_said_for_it():
    saying = TextNormalizer().normalize("It is **$5.20** now 😀.")
    assert saying.spoken_text == "It is five dollars and twenty cents now ."
    taken = [saying.consume(word) for word in split_words(saying.spoken_text)]
    assert taken == ["It ", "is ", "**$5.20", "", "", "", "** ", "now ", "😀."]
    assert saying.drain() == ""


def test_what_was_cut_off_is_not_given():
    saying = TextNormalizer().normalize("One two [three](http://x.y) four.")
    assert saying.consume("One ") == "One "
    assert saying.consume("two ") == "two "
    assert saying.drain() == "[three](http://x.y) four."
    assert saying.drain() == ""


MARKUP = st.text(alphabet=st.sampled_from("ab 1.,*_`[]()|#>-~!\\<\n😀$%"), max_size=80)


@given(st.lists(MARKUP, max_size=4), st.sampled_from(["en", "de"]))
def test_whatever_is_said_nothing_that_was_written_is_lost(pieces, language):
    speakable = TextNormalizer(language)
    for piece in pieces:
        saying = speakable.normalize(piece)
        heard = [saying.consume(word) for word in split_words(saying.spoken_text)]
        assert "".join(heard) + saying.drain() == piece


@pytest.mark.parametrize("text", ["[" * 5000, "*" * 5000, "](" * 3000, "| " * 3000, "<a" * 3000, "`" * 5000, "[a](" * 2000])
def test_no_markup_takes_long(text):
    saying = TextNormalizer().normalize(text)
    assert saying.consume(saying.spoken_text) + saying.drain() == text


def test_what_is_heard_is_shown_as_it_was_written(tmp_path):
    async def scenario():
        async with started(tone_synthesizer(tmp_path)) as mouth:
            speakable = TextNormalizer()
            texts = ("It is **$5**.\n", "```\n", "x = 1\n", "```\n")
            pieces = [[piece async for piece in synthesize_clause(mouth, text, speakable)] for text in texts]
            assert [piece.text for piece in pieces[0]] == ["It ", "is ", "**$5", "**.\n"]
            assert ["".join(piece.text for piece in each) for each in pieces[1:]] == list(texts[1:])
            assert [any(piece.pcm for piece in each) for each in pieces] == [True, True, False, False]

    run(scenario())


def test_closing_it_stops_the_work(tmp_path):
    async def scenario():
        async with started(tone_synthesizer(tmp_path)) as mouth:
            async with aclosing(synthesize_clause(mouth, "One two.", TextNormalizer())) as reading:
                assert (await anext(reading)).text == "One "
            assert [piece.text async for piece in synthesize_clause(mouth, "Three.", TextNormalizer())] == ["Three."]

    run(scenario())
