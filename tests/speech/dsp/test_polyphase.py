"""Polyphase filters: they pass what 16 kHz can carry, hold back the rest, and any part is a part of the whole."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from antiphon.speech.dsp.polyphase import DETECTION, RATES_HZ, TRANSCRIPTION, polyphase_filter, resample_part
from antiphon.speech.dsp.resample import resample

QUALITIES = {"detection": DETECTION, "transcription": TRANSCRIPTION}


@pytest.fixture(params=QUALITIES.values(), ids=QUALITIES)
def quality(request):
    return request.param


def sine(rate_hz, pitch_hz, samples):
    return np.sin(2 * np.pi * pitch_hz * np.arange(samples) / rate_hz).astype(np.float32)


def level_db(samples):
    return 10 * np.log10(2 * np.mean(np.square(samples, dtype=np.float64)) + 1e-20)


def gain_db(rate_hz, quality, pitch_hz):
    resampler = polyphase_filter(rate_hz, quality)
    return level_db(resampler.process(sine(rate_hz, pitch_hz, 98 * resampler.block)[np.newaxis]))


@pytest.mark.parametrize("rate_hz", RATES_HZ)
def test_a_swept_sine_is_passed_as_far_as_both_rates_carry_it(rate_hz, quality):
    band_hz = min(rate_hz, 16_000) / 2
    for pitch_hz in np.linspace(50, 0.87 * band_hz, 60):
        assert abs(gain_db(rate_hz, quality, pitch_hz)) < 0.1, pitch_hz


def test_of_a_swept_sine_that_16_khz_can_not_carry_nothing_is_left(quality):
    for pitch_hz in np.linspace(8_250, 11_950, 75):
        assert gain_db(24_000, quality, pitch_hz) < 5 - quality.stopband_db, pitch_hz


def test_a_telephones_sound_has_no_mirror_image(quality):
    resampler = polyphase_filter(8_000, quality)
    for pitch_hz in np.linspace(100, 3_300, 40):
        output = resampler.process(sine(8_000, pitch_hz, 98 * resampler.block)[np.newaxis])[0]
        spectrum = np.abs(np.fft.rfft(output * np.blackman(len(output)) ** 2))
        pitches_hz = np.fft.rfftfreq(len(output), 1 / 16_000)
        assert 20 * np.log10(spectrum[pitches_hz > 4_500].max() / spectrum.max()) < 5 - quality.stopband_db, pitch_hz


@pytest.mark.parametrize("rate_hz", RATES_HZ)
def test_a_tone_is_where_the_resampler_of_streams_has_it(rate_hz):
    pcm = (sine(rate_hz, 1_000, rate_hz) * 20_000).astype("<i2").tobytes()
    expected, found = (
        np.frombuffer(each, "<i2").astype(int) for each in (resample(pcm, rate_hz, 16_000), resample_part(pcm, rate_hz, 0, 16_000))
    )
    assert np.abs(expected - found)[200:-200].max() <= 2


SOUND = {rate_hz: np.random.default_rng(5).integers(-30_000, 30_000, rate_hz // 4, "<i2").tobytes() for rate_hz in RATES_HZ}


@pytest.mark.parametrize("rate_hz", RATES_HZ)
@given(cuts=st.lists(st.integers(0, 4_000), max_size=5))
def test_parts_give_what_the_whole_gives(rate_hz, cuts):
    bounds = [0, *sorted(cuts), 4_000]
    whole = np.frombuffer(resample_part(SOUND[rate_hz], rate_hz, 0, 4_000), "<i2").astype(int)
    parts = [resample_part(SOUND[rate_hz], rate_hz, first, last) for first, last in pairwise(bounds)]
    found = np.frombuffer(b"".join(parts), "<i2").astype(int)
    assert len(found) == len(whole) == 4_000
    assert np.abs(found - whole).max() <= 1  # sums of floats in another order


def test_parts_of_many_are_resampled_each_by_itself(quality):
    resampler = polyphase_filter(24_000, quality)
    parts = np.random.default_rng(3).standard_normal((40, 10 * resampler.block)).astype(np.float32)
    together = resampler.process(parts)
    assert together.shape == (40, 8 * resampler.output_block)
    for part, found in zip(parts, together, strict=True):
        assert np.allclose(resampler.process(part[np.newaxis]), found, atol=1e-5)


def test_what_is_too_loud_is_cut_off_and_does_not_wrap_around():
    pcm = np.where(np.arange(24_000) // 60 % 2, 32_767, -32_768).astype("<i2").tobytes()
    found = np.frombuffer(resample_part(pcm, 24_000, 0, 16_000), "<i2")
    assert found.max() == 32_767 and found.min() == -32_768


def test_outside_of_the_sound_there_is_silence():
    assert resample_part(b"", 24_000, 0, 100) == bytes(200)
    assert resample_part(SOUND[24_000], 24_000, 4_200, 5_000) == bytes(1_600)
    assert resample_part(SOUND[24_000], 24_000, 10, 10) == b""
