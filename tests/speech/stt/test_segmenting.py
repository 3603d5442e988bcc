"""How loud sound is, and where it is cut."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from antiphon.speech.stt.segmenting import MIN_DBFS, collect_evidence, cut_at_silence, float_samples, split_at_silences

RATE_HZ = 16_000


def noise(seconds, dbfs, seed=0):
    return (np.random.default_rng(seed).standard_normal(int(seconds * RATE_HZ)) * 10 ** (dbfs / 20)).astype(np.float32)


def level(samples):
    return collect_evidence(samples).level_dbfs


@pytest.mark.parametrize("dbfs", [-70, -20])
def test_the_level_is_that_of_the_noise(dbfs):
    assert abs(level(noise(1, dbfs)) - dbfs) < 1


def test_a_word_in_a_minute_of_silence_is_as_loud_as_alone():
    word = noise(0.3, -20)
    assert abs(level(np.concatenate([np.zeros(30 * RATE_HZ), word, np.zeros(30 * RATE_HZ)])) - level(word)) < 1


@pytest.mark.parametrize("pcm", [b"", bytes(2), bytes(32_000)], ids=["nothing", "a sample", "a second"])
def test_silence_is_as_quiet_as_can_be(pcm):
    assert level(float_samples(pcm)) == MIN_DBFS


def test_a_click_is_as_quiet_as_what_is_around_it():
    assert level(float_samples(bytes(32_000) + b"\xff\x7f" * 200 + bytes(32_000))) == MIN_DBFS


def test_a_steady_noise_varies_less_than_a_voice(recording):
    voice = float_samples(recording("lv_0870"))
    assert collect_evidence(noise(3, -30)).range_db < 1.5
    assert collect_evidence(voice).range_db > 15
    assert collect_evidence(voice + noise(len(voice) / RATE_HZ, -28)[: len(voice)]).range_db > 6


def test_samples_are_from_minus_one_to_one():
    assert float_samples(np.array([-32_768, 0, 16_384], "<i2").tobytes()).tolist() == [-1, 0, 0.5]


def test_what_is_short_enough_is_not_cut(recording):
    samples = float_samples(recording("lv_0870"))
    assert [len(each) for each in split_at_silences(samples)] == [len(samples)]


def test_a_long_sound_is_cut_in_its_pauses():
    spoken = [noise(seconds, -20, seed) for seed, seconds in enumerate((7, 6, 8, 5))]
    pause = noise(0.4, -60)
    cut = split_at_silences(np.concatenate([each for part in spoken for each in (part, pause)]), 10)
    assert [len(each) / RATE_HZ for each in cut[:-1]] == pytest.approx([7.2, 6.4, 8.4], abs=0.15)


def test_sound_without_a_pause_is_cut_all_the_same():
    cut = split_at_silences(noise(65, -20))
    assert all(10 <= len(each) / RATE_HZ <= 20 for each in cut[:-1])


@given(st.floats(1, 40), st.floats(0, 10), st.integers(0, 9))
def test_the_first_stretch_is_the_same_whatever_follows(seconds, more, seed):
    sound = noise(seconds + more, -20, seed)
    longest_s = min(seconds, 5) * 0.99
    assert cut_at_silence(sound, longest_s) == cut_at_silence(sound[: int(seconds * RATE_HZ)], longest_s)


@given(st.floats(0, 12), st.integers(0, 9))
def test_nothing_is_lost_by_cutting(seconds, seed):
    sound = noise(seconds, -20, seed)
    assert np.array_equal(np.concatenate([np.zeros(0, np.float32), *split_at_silences(sound, 2)]), sound)
