"""What makes sound into messages."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from antiphon.speech.tts.onnx_voice import MAX_GAIN, encode_speech, normalization_gain


def made(text, sound, phonemes, samples, **more):
    options = {"size": sound.size, "gain": 1.0, "rates_hz": (16_000, 16_000), "speed": 1.0} | more
    ((pcm, words),) = encode_speech(text, [sound], phonemes, samples, **options)
    return pcm, list(words)


def test_words_and_the_pause_behind_them_are_all_of_the_sound():
    pcm, words = made("Say it.", np.full(1600, 0.5, np.float32), "ab cd.", [200, 200, 100, 300, 300, 500])
    assert words == [("Say ", 500), ("it.", 1100 + 16 * 240)]
    assert len(pcm) == 2 * sum(count for _, count in words)
    assert pcm.endswith(bytes(2 * 16 * 240))


def test_sound_is_made_louder_but_never_more_than_full_scale():
    pcm, _ = made("a", np.array([0.5, -0.9, 0.1], np.float32), "a", [3], gain=2.0)
    assert np.frombuffer(pcm, "<i2").tolist() == [32767, -32768, 6553]


def test_another_rate_keeps_the_words_in_place():
    pcm, words = made("a b", np.zeros(22_050, np.float32), "a b", [11_025, 0, 11_025], rates_hz=(22_050, 24_000))
    assert [count for _, count in words] == [12_000, 12_000]
    assert len(pcm) == 48_000


def test_words_share_sound_whose_phonemes_tell_nothing():
    _, words = made("a bbbbbbbb", np.zeros(1000, np.float32), "a bbbbbbbb", None)
    assert [count > 500 for _, count in words] == [False, True]


def test_text_of_which_nothing_sounds_has_its_words_all_the_same():
    assert made("...", np.zeros(0, np.float32), "", None)[1] == [("...", 16 * 240)]


@given(st.lists(st.integers(1, 700), min_size=1, max_size=6), st.sampled_from([16_000, 22_050]), st.booleans())
def test_sound_in_pieces_has_the_samples_and_words_of_the_whole(sizes, output_hz, continues):
    text, options = "Say it now.", {"rates_hz": (16_000, output_hz), "continues": continues}
    sound = np.sin(np.arange(sum(sizes)) ** 1.1).astype(np.float32) / 2
    samples = [len(sound) // 3, 0, len(sound) // 4, 0, len(sound) - len(sound) // 3 - len(sound) // 4]
    pcm, words = made(text, sound, "a b c", samples, **options)
    options |= {"size": sound.size, "gain": 1.0, "speed": 1.0}
    pieces = [*encode_speech(text, np.split(sound, np.cumsum(sizes)[:-1]), "a b c", samples, **options)]
    joined, whole = (np.frombuffer(each, "<i2").astype(int) for each in (b"".join(piece for piece, _ in pieces), pcm))
    assert joined.shape == whole.shape
    assert np.abs(joined - whole).max() <= 2, "the resampler adds noise of one step"
    assert [len(piece) // 2 for piece, _ in pieces] == [sum(count for _, count in timed) for _, timed in pieces]
    counts = {}
    for word, count in (each for _, timed in pieces for each in timed):
        counts[word or [*counts][-1]] = counts.get(word or [*counts][-1], 0) + count
    assert [*counts.items()] == words


def test_a_part_of_a_sentence_has_no_pause_behind_it():
    assert made("Say, ", np.full(90, 0.5, np.float32), "ab,", [30, 30, 30], continues=True)[1] == [("Say, ", 90)]


@pytest.mark.parametrize(
    ("sound", "gain"), [(np.full(100, 0.085), 1.0), (np.zeros(100), 1.0), (np.zeros(0), 1.0), (np.full(9, 1e-6), MAX_GAIN)]
)
def test_voices_are_equally_loud(sound, gain):
    assert normalization_gain(sound) == pytest.approx(gain)
