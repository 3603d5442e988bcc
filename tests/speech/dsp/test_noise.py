"""Noise reduction, where its library is installed and where it isn't."""

import importlib.util

import numpy as np
import pytest

from antiphon.engine_api.options import NoiseReduction
from antiphon.errors import ClientError, ServerError
from antiphon.speech.dsp.noise import LEVELS_DB, NoiseReducer, available_kinds

needs_library = pytest.mark.skipif(importlib.util.find_spec("pywebrtc_audio") is None, reason="pywebrtc-audio is not installed")
HISS = (np.random.default_rng(1).standard_normal(3 * 16_000) * 300).astype("<i2").tobytes()


def level_db(pcm):
    return 20 * np.log10(np.frombuffer(pcm, "<i2").astype(float).std())


def through(reducer, pcm, piece_bytes):
    return b"".join(reducer.process(pcm[at : at + piece_bytes]) for at in range(0, len(pcm), piece_bytes))


@needs_library
@pytest.mark.parametrize(
    ("kind", "strength", "less_db"), [("near_field", 1.0, 12), ("near_field", 0.5, 6), ("far_field", 1.0, 18), ("far_field", 0.7, 12)]
)
def test_hiss_becomes_fainter_by_what_is_asked(kind, strength, less_db):
    assert less_db in LEVELS_DB
    quieter = through(NoiseReducer(NoiseReduction(kind, strength)), HISS, 640)
    assert level_db(HISS) - level_db(quieter[32_000:]) == pytest.approx(less_db, abs=2)


@needs_library
def test_a_voice_in_hiss_stays_as_loud(recording):
    voice = np.frombuffer(recording("lv_0890"), "<i2")
    noisy = (voice + np.random.default_rng(1).standard_normal(len(voice)) * 100).astype("<i2").tobytes()
    quieter = through(NoiseReducer(NoiseReduction("near_field")), noisy, 640)
    assert level_db(quieter) == pytest.approx(level_db(voice.tobytes()), abs=1)


@needs_library
@pytest.mark.parametrize("piece_bytes", [2, 318, 960, 100_000])
def test_how_the_sound_is_cut_makes_no_difference(piece_bytes):
    pieces = through(NoiseReducer(NoiseReduction("near_field")), HISS, piece_bytes)
    assert pieces == NoiseReducer(NoiseReduction("near_field")).process(HISS)


@needs_library
def test_what_can_be_done_is_told():
    assert available_kinds() == ("near_field", "far_field")


@pytest.mark.skipif(importlib.util.find_spec("pywebrtc_audio") is not None, reason="pywebrtc-audio is installed")
def test_without_its_library_nothing_can_be_done():
    assert available_kinds() == ()
    with pytest.raises(ServerError, match="pywebrtc-audio"):
        NoiseReducer(NoiseReduction("near_field"))


def test_no_strength_is_no_reduction():
    assert NoiseReducer(NoiseReduction("far_field", 0.0)).process(HISS) is HISS


def test_a_kind_that_there_is_none_of_is_refused_by_name():
    with pytest.raises(ClientError, match=r"'middle_field'.*'near_field' and 'far_field'"):
        NoiseReducer(NoiseReduction("middle_field"))
