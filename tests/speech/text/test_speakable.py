"""Text as it is said, and as it was written."""

import pytest
from hypothesis import given, strategies as st

from antiphon.speech.text.speakable import Speakable
from antiphon.speech.tts.alignment import words_of


def spoken(text, language="en"):
    return Speakable(language).take(text).spoken


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
    speakable = Speakable()
    pieces = ["So:\n", "```python\n", "x = [1, 2]\n", "# - *\n", "```\n", "Done."]
    said = [speakable.take(piece).spoken for piece in pieces]
    assert said == ["So:\n", "Python code, which I won't read aloud. ", "", "", "", "Done."]


def test_a_fence_within_a_longer_fence_is_code():
    speakable = Speakable()
    assert [speakable.take(piece).spoken for piece in ("````\n", "```\n", "````\n", "After.")][1:] == ["", "", "After."]


def test_only_what_begins_a_line_is_a_marker():
    speakable = Speakable()
    assert speakable.take("It is, ").spoken == "It is, "
    assert speakable.take("1. of ").spoken == "one. of "
    assert speakable.take("all\n").spoken == "all\n"
    assert speakable.take("1. of").spoken == "one: of"


def test_the_rest_of_a_tables_row_is_in_the_row_too():
    speakable = Speakable()
    assert [speakable.take(piece).spoken for piece in ("| Well, ", "yes | no |\n")] == ["Well, ", "yes, no\n"]


def test_other_languages_are_left_to_the_voice():
    assert spoken("**Hallo**, 5 km bis [Köln](http://x.y) 😀", "de") == "Hallo, 5 km bis Köln "


def test_what_has_no_word_in_it_is_not_said():
    assert spoken("...") == spoken("😀\n") == spoken("---\n") == ""


def test_what_was_written_comes_with_the_first_word_that_is_said_for_it():
    saying = Speakable().take("It is **$5.20** now 😀.")
    assert saying.spoken == "It is five dollars and twenty cents now ."
    taken = [saying.take(word) for word in words_of(saying.spoken)]
    assert taken == ["It ", "is ", "**$5.20", "", "", "", "** ", "now ", "😀."]
    assert saying.rest() == ""


def test_what_was_cut_off_is_not_given():
    saying = Speakable().take("One two [three](http://x.y) four.")
    assert saying.take("One ") == "One "
    assert saying.take("two ") == "two "
    assert saying.rest() == "[three](http://x.y) four."
    assert saying.rest() == ""


MARKUP = st.text(alphabet=st.sampled_from("ab 1.,*_`[]()|#>-~!\\<\n😀$%"), max_size=80)


@given(st.lists(MARKUP, max_size=4), st.sampled_from(["en", "de"]))
def test_whatever_is_said_nothing_that_was_written_is_lost(pieces, language):
    speakable = Speakable(language)
    for piece in pieces:
        saying = speakable.take(piece)
        heard = [saying.take(word) for word in words_of(saying.spoken)]
        assert "".join(heard) + saying.rest() == piece


@pytest.mark.parametrize("text", ["[" * 5000, "*" * 5000, "](" * 3000, "| " * 3000, "<a" * 3000, "`" * 5000, "[a](" * 2000])
def test_no_markup_takes_long(text):
    saying = Speakable().take(text)
    assert saying.take(saying.spoken) + saying.rest() == text
