"""A voice that is decoded in pieces: each has the samples of the whole."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from antiphon.speech.tts.child import SynthesisJob, SynthesisStopped
from antiphon.speech.tts.messages import Synthesize
from antiphon.speech.tts.piper_model import FIRST_PIECE_FRAMES, MAX_DIFFERENCE, MAX_PIECE_FRAMES, PiperModel
from support.speech.onnx_models import voice


def new_job():
    return SynthesisJob(Synthesize(1, "", "", 1.0))


def feeds(ids):
    return {"input": np.array([ids], np.int64)}


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    def loaded(ids=(9, 40, 30, 50, 7), **kind):
        path = tmp_path_factory.mktemp("voice") / "a.onnx"
        path.write_bytes(voice(**kind))
        model = PiperModel(path, {})
        assert model.calibrate(feeds(ids), new_job()).size == sum(ids)
        return model

    return loaded


@pytest.fixture(scope="module")
def model(load):
    return load()


@given(ids=st.lists(st.integers(1, 60), min_size=1, max_size=12), data=st.data())
def test_pieces_joined_are_the_whole(model, ids, data):
    latents, durations = model.encode(feeds(ids), new_job())
    assert durations.tolist() == ids
    (whole,) = model.decode(latents, 0, None, new_job())
    end = data.draw(st.integers(1, sum(ids)))
    start = data.draw(st.integers(0, end - 1))
    pieces = [*model.decode(latents, start, end, new_job())]
    assert np.abs(np.concatenate(pieces) - whole[start:end]).max() <= MAX_DIFFERENCE
    assert pieces[0].size == min(FIRST_PIECE_FRAMES, end - start)
    assert max(piece.size for piece in pieces) <= MAX_PIECE_FRAMES


@pytest.mark.parametrize(
    "kind", [{"kernel": 201}, {"weight_name": "other"}, {"hears_input": True}], ids=["far", "unknown", "reads the text"]
)
def test_a_voice_that_can_not_be_decoded_in_pieces_is_decoded_whole(load, kind):
    model = load(**kind)
    latents, durations = model.encode(feeds([60, 80]), new_job())
    assert durations.tolist() == [60, 80]
    (sound,) = model.decode(latents, 20, 130, new_job())
    assert sound.size == 110


def test_a_voice_that_needs_more_around_a_piece_gets_it(load):
    model = load(kernel=41)
    latents, _ = model.encode(feeds([90, 90]), new_job())
    assert len([*model.decode(latents, 0, 180, new_job())]) > 1


@pytest.mark.weights
def test_a_real_voice_is_decoded_in_pieces(weights):
    def spoken(text):
        ids = np.array([[1, *(id for letter in text for id in (ord(letter) - ord("a") + 14, 0)), 2]], np.int64)
        return {"input": ids, "input_lengths": np.array([ids.size], np.int64), "scales": np.array([0.667, 1, 0.8], np.float32)}

    model = PiperModel(weights / "piper-en-us-joe-medium" / "en_US-joe-medium.onnx", {})
    model.calibrate(spoken("sixfoldmelody"), new_job())
    assert model.hop == 256
    for text in ("a", "blindmanbuff", "mandolinabuilding" * 3):
        latents, durations = model.encode(spoken(text), new_job())
        (whole,) = model.decode(latents, 0, None, new_job())
        pieces = [*model.decode(latents, 0, durations.sum(), new_job())]
        assert pieces[0].size <= FIRST_PIECE_FRAMES * 256
        assert np.abs(np.concatenate(pieces) - whole).max() <= MAX_DIFFERENCE


def test_a_job_stops_between_two_pieces(model):
    job = new_job()
    latents, _ = model.encode(feeds([90, 90]), job)
    pieces = model.decode(latents, 0, 180, job)
    assert next(pieces).size
    job.is_stopped = True
    with pytest.raises(SynthesisStopped):
        next(pieces)
