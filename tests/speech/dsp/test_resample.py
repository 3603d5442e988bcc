"""Resampling: as long as before, sounding as before, whatever the pieces."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from antiphon.speech.dsp.resample import Resampler, resample

RATES_HZ = (8_000, 16_000, 22_050, 24_000, 44_100, 48_000)
PAIRS = list(itertools.permutations(RATES_HZ, 2))


def tone(rate_hz, seconds=1.0, pitch_hz=1_000):
    return (np.sin(2 * np.pi * pitch_hz * np.arange(int(rate_hz * seconds)) / rate_hz) * 10_000).astype("<i2").tobytes()


def through(resampler, pcm, piece_bytes):
    pieces = [pcm[at : at + piece_bytes] for at in range(0, len(pcm), piece_bytes)]
    return b"".join(resampler.process(piece) for piece in pieces) + resampler.flush()


def noise_db(pcm, rate_hz, pitch_hz=1_000):
    """What is not the tone, against the tone."""
    heard = np.frombuffer(pcm, "<i2").astype(float)[rate_hz // 10 : -rate_hz // 10]
    at = 2 * np.pi * pitch_hz * np.arange(len(heard)) / rate_hz
    basis = np.stack([np.sin(at), np.cos(at)], axis=1)
    rest = heard - basis @ np.linalg.lstsq(basis, heard, rcond=None)[0]
    return 20 * np.log10(rest.std() / heard.std())


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(("from_hz", "to_hz"), PAIRS)
def test_a_tone_stays_the_tone_and_as_long(from_hz, to_hz, live):
    pcm = through(Resampler(from_hz, to_hz, live=live), tone(from_hz), 2 * (from_hz // 50))
    assert abs(len(pcm) // 2 - to_hz) <= 1
    assert noise_db(pcm, to_hz) < -70


@pytest.mark.parametrize(("from_hz", "to_hz"), [(24_000, 16_000), (48_000, 16_000), (24_000, 8_000)])
def test_what_the_other_rate_can_not_carry_is_left_out(from_hz, to_hz):
    pcm = resample(tone(from_hz, pitch_hz=int(to_hz * 0.58)), from_hz, to_hz)
    # At the edges the tone begins and ends, which is heard at any rate.
    assert np.abs(np.frombuffer(pcm, "<i2")[to_hz // 10 : -to_hz // 10]).max() <= 2


@pytest.mark.parametrize("live", [False, True])
@given(pieces=st.lists(st.integers(0, 700), max_size=20))
@settings(max_examples=settings.default.max_examples // 2)
def test_pieces_of_any_size_give_what_the_whole_gives(live, pieces):
    pcm = tone(24_000, 0.3)
    streamed, at = Resampler(24_000, 16_000, live=live), 0
    heard = b""
    for samples in pieces:
        heard += streamed.process(pcm[at : at + 2 * samples])
        at += 2 * samples
    heard += streamed.process(pcm[at:]) + streamed.flush()
    whole = Resampler(24_000, 16_000, live=live)
    expected = whole.process(pcm) + whole.flush()
    assert len(heard) == len(expected)
    # The last bit is dithered.
    assert np.abs(np.frombuffer(heard, "<i2").astype(int) - np.frombuffer(expected, "<i2")).max(initial=0) <= 2


@pytest.mark.parametrize(("from_hz", "to_hz", "live"), [(22_050, 24_000, False), (44_100, 16_000, True)])
@pytest.mark.parametrize("minutes", [2, pytest.param(10, marks=pytest.mark.long)])
def test_a_long_stream_does_not_drift(from_hz, to_hz, live, minutes):
    resampler, minute = Resampler(from_hz, to_hz, live=live), bytes(2 * from_hz * 60)
    given_samples = sum(len(resampler.process(minute)) for _ in range(minutes)) // 2
    assert abs(given_samples + len(resampler.flush()) // 2 - 60 * minutes * to_hz) <= 1


@pytest.mark.parametrize(
    ("from_hz", "to_hz", "most_ms"), [(24_000, 16_000, 11), (48_000, 16_000, 13), (8_000, 16_000, 31), (24_000, 8_000, 26)]
)
def test_a_live_stream_is_never_far_behind(from_hz, to_hz, most_ms):
    resampler, lags = Resampler(from_hz, to_hz, live=True), []
    for _ in range(100):
        resampler.process(bytes(2 * (from_hz // 50)))
        lags.append(resampler.lag_ms)
    assert max(lags[10:]) <= most_ms


def test_where_the_rates_are_equal_nothing_is_touched():
    resampler, pcm = Resampler(16_000, 16_000, live=True), tone(16_000, 0.1)
    assert resampler.process(pcm) is pcm
    assert resampler.flush() == b"" and resampler.lag_ms == 0
    assert resample(pcm, 16_000, 16_000) is pcm


def test_after_a_flush_another_sound_begins():
    resampler = Resampler(24_000, 16_000, live=True)
    first = through(resampler, tone(24_000, 0.2), 960)
    assert resampler.flush() == b""
    assert len(through(resampler, tone(24_000, 0.2), 960)) == len(first)


def test_nothing_and_next_to_nothing_can_be_resampled():
    assert resample(b"", 24_000, 16_000) == b""
    assert len(resample(b"\x01\x00", 24_000, 48_000)) in (2, 4)


def test_what_is_too_loud_is_cut_off_and_does_not_wrap_around():
    loud = np.where(np.arange(24_000) // 20 % 2, 32_767, -32_768).astype("<i2")
    heard = np.frombuffer(resample(loud.tobytes(), 24_000, 16_000), "<i2").astype(int)
    assert np.abs(np.diff(np.sign(heard[100:-100]))).sum() // 2 == pytest.approx(1200, abs=20)


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("from_hz", [8_000, 24_000, 44_100, 48_000])
def test_a_microphone_that_is_switched_off_and_on_loses_no_time(from_hz, live):
    dice = np.random.default_rng(2)
    resampler, taken, given_bytes = Resampler(from_hz, 16_000, live=live), 0, 0
    for number in range(400):
        size = int(dice.integers(1, from_hz // 10))
        sound = dice.integers(-9_000, 9_000, size) if number // 20 % 2 else np.zeros(size)
        taken += size
        given_bytes += len(resampler.process(sound.astype("<i2").tobytes()))
    given_bytes += len(resampler.flush())
    assert abs(given_bytes / 2 - taken * 16_000 / from_hz) <= 1


def test_what_was_said_before_a_microphone_is_switched_off_and_after_it_is_where_it_was():
    said, off = tone(24_000, 0.5), bytes(24_000 * 4)
    heard = np.abs(np.frombuffer(through(Resampler(24_000, 16_000, live=True), said + off + said, 960), "<i2").astype(int))
    assert abs(len(heard) - 48_000) <= 1
    assert heard[7_900:7_990].max() > 5_000
    assert heard[8_800:39_900].max() <= 1
    assert heard[40_050:47_900].max() > 5_000
