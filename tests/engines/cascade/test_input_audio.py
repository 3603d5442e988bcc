"""The audio of a conversation: kept as it came, and resampled when it is asked for; no sample is lost or told twice."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api.options import NoiseReduction
from antiphon.engines.cascade.input_audio import ConversationAudio

RATES_HZ = (8_000, 16_000, 24_000)


def tone(rate_hz, ms, pitch_hz=500, from_ms=0):
    times_s = np.arange(from_ms * rate_hz // 1000, (from_ms + ms) * rate_hz // 1000) / rate_hz
    return (np.sin(2 * np.pi * pitch_hz * times_s) * 10_000).round().astype("<i2").tobytes()


def difference(found, expected):
    assert len(found) == len(expected)
    return np.abs(np.frombuffer(found, "<i2").astype(int) - np.frombuffer(expected, "<i2").astype(int)).max()


def likeness(found, expected):
    """Of a sound that was resampled as it came, which shifts it by a part of a sample: 1 for the same."""
    return np.corrcoef(np.frombuffer(found, "<i2"), np.frombuffer(expected, "<i2"))[0, 1]


def audio_of(rate_hz, reduction=None):
    audio = ConversationAudio()
    audio.configure(rate_hz, reduction)
    return audio


@pytest.mark.parametrize("rate_hz", RATES_HZ)
def test_audio_comes_out_at_once_as_it_came_and_is_resampled_when_asked_for(rate_hz):
    audio, pcm = audio_of(rate_hz), tone(rate_hz, 400)
    pieces = [audio.process(pcm[at : at + 322]) for at in range(0, len(pcm), 322)]
    assert b"".join(pieces) == pcm and audio.rate_hz == rate_hz and audio.end_ms == 400
    found = audio.between(100, 300)
    assert difference(found, tone(16_000, 200, from_ms=100)) <= 2


@pytest.mark.parametrize("rate_hz", RATES_HZ)
@given(times=st.lists(st.integers(0, 500), max_size=8))
def test_parts_in_any_order_are_parts_of_the_same_sound(rate_hz, times):
    audio = audio_of(rate_hz)
    audio.process(tone(rate_hz, 500))
    whole = audio.between(0, 500)
    for first, last in pairwise(times):
        expected = whole[first * 32 : max(first, last) * 32]
        assert not expected or difference(audio.between(first, last), expected) <= 1


def test_what_comes_later_is_where_it_belongs_after_the_front_was_dropped():
    audio = audio_of(24_000)
    for at_ms in range(0, 20_000, 20):
        audio.process(tone(24_000, 20, from_ms=at_ms))
        audio.discard_before(audio.end_ms - 1_000)
    assert audio.end_ms == 20_000 and 15_000 < audio.start_ms <= 19_000
    assert difference(audio.between(19_000, 19_900), tone(16_000, 900, from_ms=19_000)) <= 2
    assert difference(audio.between(0, audio.start_ms + 100), audio.between(audio.start_ms, audio.start_ms + 100)) == 0


def test_a_long_sound_that_nobody_asks_for_is_resampled_on_the_way():
    audio = audio_of(24_000)
    for at_ms in range(0, 30_000, 500):
        audio.process(tone(24_000, 500, from_ms=at_ms))
    assert difference(audio.between(1_000, 29_900), tone(16_000, 28_900, from_ms=1_000)) <= 2


@pytest.mark.parametrize("samples", [24_000, 24_001, 24_002])
def test_the_clock_goes_on_after_all_was_cleared(samples):
    audio = audio_of(24_000)
    audio.process(tone(24_000, 2_000)[: samples * 2])
    audio.clear()
    assert audio.end_ms == samples / 24 and audio.end_ms - audio.start_ms < 10
    audio.process(tone(24_000, 2_000)[samples * 2 :])
    assert difference(audio.between(1_010, 1_900), tone(16_000, 890, from_ms=1_010)) <= 2


@pytest.mark.parametrize("rate_hz", RATES_HZ)
def test_another_rate_in_the_middle_loses_nothing(rate_hz):
    audio = audio_of(rate_hz)
    audio.process(tone(rate_hz, 1_000))
    other_hz = 8_000 if rate_hz != 8_000 else 24_000
    rest = audio.configure(other_hz, None)
    assert audio.rate_hz == 16_000 and rest == b""
    ready = audio.process(tone(other_hz, 1_000, from_ms=1_000))
    assert 900 < len(ready) / 32 <= 1_000 and audio.end_ms == pytest.approx(1_000 + len(ready) / 32)
    assert difference(audio.between(100, 900), tone(16_000, 800, from_ms=100)) <= 2
    assert likeness(audio.between(1_050, 1_900), tone(16_000, 850, from_ms=1_050)) > 0.9


def test_noise_reduction_takes_audio_at_16_khz():
    audio = audio_of(24_000, NoiseReduction("near_field", 0.0))
    ready = audio.process(tone(24_000, 400))
    assert audio.rate_hz == 16_000 and 350 < len(ready) / 32 <= 400
    assert likeness(audio.between(50, 350), tone(16_000, 300, from_ms=50)) > 0.9
