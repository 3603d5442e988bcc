"""The position of each word in the audio."""

from hypothesis import given, strategies as st

from antiphon.speech.tts.alignment import PhonemeGroup, SpeakingRate, align_words, group_phonemes, scale_counts, share_samples, split_words

WORDS = st.lists(st.text(alphabet=st.sampled_from("abc1,."), min_size=1, max_size=8), min_size=1, max_size=12)
GROUPS = st.lists(st.builds(PhonemeGroup, st.integers(0, 9), st.integers(0, 5000)), min_size=1, max_size=12)


def test_words_keep_the_white_space_behind_them():
    assert split_words(" Hello there,\n you ") == [" Hello ", "there,\n ", "you "]
    assert split_words("") == []
    assert split_words("  ") == ["  "]


def test_phonemes_are_grouped_at_gaps():
    assert group_phonemes("ab c.", [1, 2, 3, 4, 5]) == [PhonemeGroup(2, 6), PhonemeGroup(1, 9)]
    assert group_phonemes(" a ,", [1, 2, 3, 4]) == [PhonemeGroup(1, 10)]


def test_as_many_groups_as_words_are_their_own():
    assert align_words(["a ", "b"], [PhonemeGroup(1, 10), PhonemeGroup(1, 20)]) == [10, 20]


def test_words_that_run_into_one_share_its_sound():
    words = ["one ", "of ", "the ", "best"]
    groups = [PhonemeGroup(3, 300), PhonemeGroup(4, 400), PhonemeGroup(4, 500)]
    assert align_words(words, groups)[0] == 300
    assert align_words(words, groups)[3] == 500
    assert sum(align_words(words, groups)[1:3]) == 400


def test_a_word_that_became_several_has_the_sound_of_all():
    assert align_words(["say ", "42 ", "now"], [PhonemeGroup(3, 30), PhonemeGroup(5, 50), PhonemeGroup(3, 40), PhonemeGroup(3, 60)]) == [
        30,
        90,
        60,
    ]


def test_a_pause_belongs_to_the_word_before_it():
    first, second = share_samples(["well, ", "well"], 1000)
    assert first > second


@given(WORDS, GROUPS)
def test_all_of_the_sound_is_given_to_words(words, groups):
    counts = align_words([f"{word} " for word in words], groups)
    assert len(counts) == len(words)
    assert sum(counts) == sum(group.samples for group in groups)
    assert all(count >= 0 for count in counts)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20).filter(any), st.integers(0, 100_000))
def test_shares_of_another_length_add_up_to_it(counts, samples):
    assert sum(scale_counts(counts, samples)) == samples


def test_a_pace_is_learnt():
    pace, words = SpeakingRate(24_000), ["hello ", "there."]
    assert pace.word_ends(words, 1.0) == sorted(pace.word_ends(words, 1.0))
    for _ in range(30):
        pace.learn(words, 1.0, 48_000)
    assert abs(pace.word_ends(words, 1.0)[-1] - 48_000) < 100
    assert abs(pace.word_ends(words, 2.0)[-1] - 24_000) < 100
