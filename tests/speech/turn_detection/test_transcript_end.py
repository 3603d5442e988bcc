"""What the end of a transcript says about whether the turn goes on."""

import pytest
from hypothesis import given, strategies as st

from antiphon.speech.turn_detection.transcript_end import MARK_LIMIT, WORD_LIMIT, ends_in_mark, likelihood_limit


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("Ten of clubs.", 1.0),
        ("Where are you from?", 1.0),
        ("Turn it on.", 1.0),
        ("Tell me more.", 1.0),
        ("He said \u201cstop.\u201d", 1.0),
        ("\u5929\u6c17\u3002", 1.0),
        ("", 1.0),
        ("Had he married a more amiable woman,", MARK_LIMIT),
        ("Well...", MARK_LIMIT),
        ("I think \u2014", MARK_LIMIT),
        ("Go forward 10 meters", MARK_LIMIT),
        ("Had he married a more?", WORD_LIMIT),
        ("It is a very.", WORD_LIMIT),
        ("Eight of spades, four of.", WORD_LIMIT),
        ("I would like to go to", WORD_LIMIT),
        ("Remind me to buy milk and,", WORD_LIMIT),
        ("I was wondering WHETHER", WORD_LIMIT),
    ],
)
def test_what_something_follows_is_less_likely_to_be_complete(text, limit):
    assert likelihood_limit(text, "en", has_end_marks=True) == limit
    assert likelihood_limit(text, has_end_marks=True) == limit


def test_only_english_words_are_known():
    assert likelihood_limit("Fang an.", "de", has_end_marks=True) == 1.0
    assert likelihood_limit("Fang an", "de", has_end_marks=True) == MARK_LIMIT


def test_no_mark_is_missed_of_a_transcriber_that_sets_none():
    assert likelihood_limit("ten of clubs", has_end_marks=False) == 1.0
    assert likelihood_limit("ten of clubs,", has_end_marks=False) == MARK_LIMIT
    assert likelihood_limit("ten of", has_end_marks=False) == WORD_LIMIT


@given(st.text(max_size=60), st.booleans())
def test_any_text_has_a_limit(text, has_end_marks):
    assert likelihood_limit(text, has_end_marks=has_end_marks) in (1.0, MARK_LIMIT, WORD_LIMIT)
    assert not ends_in_mark(text + ",")
