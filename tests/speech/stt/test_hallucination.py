"""Words that models hallucinate are removed."""

import pytest
from hypothesis import given, strategies as st

from antiphon.speech.stt.hallucination import Evidence, count_letters, is_looping, remove_hallucinations

SPOKEN = Evidence(duration_s=6, level_dbfs=-20)
FAINT = Evidence(duration_s=3, level_dbfs=-50)
SILENT = Evidence(duration_s=3, level_dbfs=-80)
NOISE = Evidence(duration_s=3, level_dbfs=-20, speech_s=0.0)
STEADY = Evidence(duration_s=3, level_dbfs=-20, range_db=2.5)
HISS = Evidence(duration_s=3, level_dbfs=-20, range_db=0.9)
UNSURE = Evidence(duration_s=3, level_dbfs=-20, no_speech_probability=0.9)
CLICK = Evidence(duration_s=3, level_dbfs=-20, speech_s=0.15)


@pytest.mark.parametrize(
    "said",
    [
        "And Mr. John Dashwood had then leisure to consider how much there might be.",
        "No, no, no, no, no!",
        "Five five five five, zero zero, nine.",
        "Ten of clubs, ten of clubs, ten of clubs.",
        "Thank you.",
        "You",
        "Bye bye.",
        "Ça va ? Très bien, merci.",
        "今天天气很好，我们去公园吧。",
        "10:30, 3.5 % (of it) costs $5.",
    ],
)
def test_what_was_said_aloud_is_left_as_it_is(said):
    left_out = said.replace("(of it) ", "")  # nobody can tell a parenthesis by ear, so it is the model's own
    assert remove_hallucinations(said, SPOKEN) == left_out


@pytest.mark.parametrize("evidence", [SILENT, HISS, NOISE], ids=["silence", "hiss", "nobody in the noise"])
def test_nothing_is_said_where_nobody_speaks(evidence):
    assert remove_hallucinations("Ten of clubs.", evidence) == ""


@pytest.mark.parametrize("evidence", [FAINT, CLICK, STEADY, UNSURE], ids=["faint", "click", "steady", "unsure"])
@pytest.mark.parametrize("phantom", ["You", "Thank you.", "Thank you very much!", "Okay.", "谢谢。"])
def test_what_is_often_made_up_was_where_next_to_nothing_is_heard(phantom, evidence):
    assert remove_hallucinations(phantom, evidence) == ""
    assert remove_hallucinations("Ten of clubs.", evidence) == "Ten of clubs."


@pytest.mark.parametrize(
    "phantom",
    [
        "Thanks for watching!",
        "Thank you for watching, and please subscribe.",
        "Subtitles by the Amara.org community",
        "Sous-titres réalisés para la communauté d'Amara.org",
        "Untertitel der Amara.org-Community",
        "Субтитры сделал DimaTorzok",
        "ご視聴ありがとうございました",
        "♪♪♪♪♪�",
        "[Music]",
        "(upbeat music) ♪ ♪",
        "*sighs*",
    ],
)
def test_what_only_subtitles_say_is_nothing_however_loud(phantom):
    assert remove_hallucinations(phantom, SPOKEN) == ""


def test_what_is_said_over_and_over_is_said_once():
    told = "It was the best of times, it was the worst of times, it was the age of wisdom, "
    assert (
        remove_hallucinations(f"{told}{'so it goes, ' * 5}it was.", Evidence(duration_s=20, level_dbfs=-20)) == f"{told}so it goes, it was."
    )


@pytest.mark.parametrize(
    "loop",
    ["The first is " + "the first is " * 20, "Oh, " * 34, "hello" * 30, "あ" * 20, "1, 2, 3, 4, 5, 6, " * 9],
)
def test_a_text_that_is_mostly_a_loop_is_nothing(loop):
    assert remove_hallucinations(loop, Evidence(duration_s=60, level_dbfs=-20)) == ""


def test_more_than_can_be_said_in_the_time_was_not_said():
    said = "and mister john dashwood had then leisure to consider how much there might be prudently in his power"
    assert remove_hallucinations(said, Evidence(duration_s=3, level_dbfs=-20)) == said
    assert remove_hallucinations(said, Evidence(duration_s=1, level_dbfs=-20)) == ""
    assert remove_hallucinations(said, Evidence(duration_s=30, level_dbfs=-20, speech_s=0.4)) == ""


def test_less_passes_in_a_clip_that_is_no_more_than_a_word():
    assert remove_hallucinations("I'm going to try to do it", Evidence(duration_s=0.1, level_dbfs=-20)) == ""
    assert remove_hallucinations("And then,", Evidence(duration_s=0.1, level_dbfs=-20)) == "And then,"
    assert remove_hallucinations("Ten of clubs, please.", Evidence(duration_s=0.3, level_dbfs=-20)) == "Ten of clubs, please."


def test_an_ideogram_takes_as_long_as_several_letters():
    assert count_letters("天气 ok 9") == 11


@given(st.text(), st.floats(0, 100), st.floats(-120, 0), st.none() | st.floats(0, 100), st.floats(0, 1))
def test_any_text_of_any_sound_is_judged_and_once_is_enough(text, seconds, level_dbfs, speech_s, no_speech):
    evidence = Evidence(duration_s=seconds, level_dbfs=level_dbfs, speech_s=speech_s, no_speech_probability=no_speech)
    once = remove_hallucinations(text, evidence)
    assert len(once) <= len(text)


def test_tokens_that_go_round_are_noticed_soon():
    said = [5, 9, 2, 7, 7, 7, 8, 9, 2, 7]
    assert not is_looping(said)
    assert is_looping(said + [4, 11, 6] * 12)
    assert is_looping(said + [4] * 12)
    assert is_looping(said + list(range(100, 110)) * 6)
    assert not is_looping([])
    assert not is_looping([4] * 11)
