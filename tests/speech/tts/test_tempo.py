"""Speech made faster and slower."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from antiphon.speech.tts.tempo import change_tempo, change_tempo_of_pieces, size_at_tempo

RATE_HZ = 22_050
TONE = np.sin(2 * np.pi * 200 * np.arange(RATE_HZ) / RATE_HZ).astype(np.float32)


def pitch_hz(sound):
    return np.abs(np.fft.rfft(sound * np.hanning(len(sound)))).argmax() * RATE_HZ / len(sound)


@pytest.mark.parametrize("tempo", [0.25, 0.5, 1.25, 1.5, 2, 4])
def test_it_lasts_as_long_as_is_asked_at_the_same_pitch_and_level(tempo):
    sound = change_tempo(TONE, tempo, RATE_HZ)
    assert len(sound) == round(len(TONE) / tempo)
    assert pitch_hz(sound) == pytest.approx(200, abs=2)
    assert np.sqrt(np.mean(np.square(sound))) == pytest.approx(np.sqrt(0.5), rel=0.02)


@pytest.mark.parametrize("tempo", [0.25, 0.5, 1.25, 1.5, 2, 4])
def test_nothing_clicks(tempo):
    steps = np.abs(np.diff(change_tempo(TONE, tempo, RATE_HZ)))
    assert steps.max() < 1.5 * np.abs(np.diff(TONE)).max()


def test_what_is_said_stays_in_its_place():
    sound = np.concatenate([np.zeros(RATE_HZ, np.float32), TONE, np.zeros(RATE_HZ, np.float32)])
    loud = np.flatnonzero(np.abs(change_tempo(sound, 2, RATE_HZ)) > 0.1)
    assert [loud[0] / RATE_HZ, loud[-1] / RATE_HZ] == pytest.approx([0.5, 1], abs=0.02)


def test_the_beginning_and_the_end_are_as_loud_as_the_rest():
    sound = change_tempo(TONE, 1.5, RATE_HZ)
    assert np.abs(sound[:120]).max() > 0.9
    assert np.abs(sound[-120:]).max() > 0.9


@pytest.mark.parametrize("size", [0, 1, 100, 1000])
def test_any_length_will_do(size):
    assert len(change_tempo(np.ones(size, np.float32), 4, RATE_HZ)) == round(size / 4)


def test_what_nobody_would_hear_is_left():
    assert change_tempo(TONE, 1, RATE_HZ) is TONE


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=6), st.sampled_from([0.25, 0.8, 1.0, 1.005, 1.5, 4.0]))
def test_pieces_joined_are_what_the_whole_becomes(sizes, tempo):
    sound = np.sin(np.arange(sum(sizes)) ** 1.2).astype(np.float32)
    pieces = [*change_tempo_of_pieces(np.split(sound, np.cumsum(sizes)[:-1]), sound.size, tempo, 22_050)]
    joined = np.concatenate([sound[:0], *pieces])
    assert np.array_equal(joined, change_tempo(sound, tempo, 22_050))
    assert joined.size == size_at_tempo(sound.size, tempo)
