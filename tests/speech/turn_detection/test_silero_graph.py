"""The other graph of Silero's model computes what the one in the file does."""

import numpy as np
import pytest

from antiphon.speech import onnx
from antiphon.speech.onnx_graph import find_constants
from antiphon.speech.turn_detection import silero_graph
from antiphon.speech.turn_detection.silero_graph import CONTEXT_SAMPLES, FRAME_SAMPLES, ROW_SAMPLES, STATE_SIZE
from support.speech.onnx_models import model, node

SAMPLES = CONTEXT_SAMPLES + FRAME_SAMPLES
RECORDINGS = ("cards_001", "cards_005", "lv_0870", "lv_0890")


@pytest.fixture(scope="module")
def file(weights):
    return (weights / "silero-vad" / "silero_vad.onnx").read_bytes()


@pytest.fixture(scope="module")
def graphs(file):
    """Runs of both: from rows of samples and states to probabilities and the next states."""
    ours, original = onnx.load(silero_graph.build(file)), onnx.load(file)

    def run_ours(samples, states):
        rows = np.full((len(samples), ROW_SAMPLES), 7, np.float32)
        rows[:, :SAMPLES] = samples
        probabilities, states = ours.run(None, silero_graph.fold(rows) | {"state": states})
        return probabilities.reshape(-1), states

    def run_original(samples, states):
        probabilities, states = original.run(None, {"input": samples, "state": states, "sr": np.array(16_000, np.int64)})
        return probabilities.reshape(-1), states

    return run_ours, run_original


def talk(recording, hiss_db):
    """All recordings at once, by frame and speaker, at six levels each; each row begins with the end of the one before."""
    generator, streams = np.random.default_rng(3), []
    for name in RECORDINGS:
        sound = np.frombuffer(recording(name), "<i2")[: 16_000 * 4] / np.float32(32_768)
        for by_db in (0, 10, 20, 30, 40, 60):
            hiss = generator.standard_normal(len(sound)) * 10 ** (hiss_db / 20)
            streams.append((sound * 10 ** (-by_db / 20) + hiss).astype(np.float32))
    length = min(map(len, streams)) // FRAME_SAMPLES * FRAME_SAMPLES
    padded = np.pad(np.stack([stream[:length] for stream in streams]), ((0, 0), (CONTEXT_SAMPLES, 0)))
    return [np.ascontiguousarray(padded[:, at : at + SAMPLES]) for at in range(0, length, FRAME_SAMPLES)]


@pytest.mark.weights
@pytest.mark.parametrize("hiss_db", [-90, -60, -40, -25])
def test_probabilities_are_those_of_the_file(graphs, recording, hiss_db):
    told, states = [[], []], [np.zeros((2, 24, STATE_SIZE), np.float32)] * 2
    for samples in talk(recording, hiss_db):
        for which, run in enumerate(graphs):  # each goes on from its own state, so that differences could add up
            probabilities, states[which] = run(samples, states[which])
            told[which].append(probabilities)
    ours, original = np.array(told)
    assert original.max() > 0.9 and original.min() < 0.1
    assert np.abs(ours - original).max() < 1e-4
    assert np.abs(states[0] - states[1]).max() < 1e-3


@pytest.mark.weights
@pytest.mark.parametrize("count", [1, 2, 31, 32, 33])
def test_a_batch_of_any_size_is_computed(graphs, count):
    generator = np.random.default_rng(count)
    samples = generator.uniform(-1, 1, (count, SAMPLES)).astype(np.float32)
    states = generator.standard_normal((2, count, STATE_SIZE)).astype(np.float32)
    for ours, original in zip(*(run(samples, states) for run in graphs), strict=True):
        assert ours.shape == original.shape
        assert ours == pytest.approx(original, abs=1e-5)


@pytest.mark.weights
def test_a_transform_that_is_not_symmetric_is_refused(file):
    basis = next(numbers for name, numbers in find_constants(file).items() if "then" in name and name.endswith("basis_buffer"))
    numbers = bytes(basis)
    asymmetric = numbers[:4] + numbers[8:12] + numbers[8:]
    with pytest.raises(ValueError, match="not symmetric"):
        silero_graph.build(file.replace(numbers, asymmetric))


@pytest.mark.weights
def test_a_file_that_lacks_a_weight_is_refused(file):
    with pytest.raises(ValueError, match="has not the weights"):
        silero_graph.build(file.replace(b"decoder.rnn.bias_hh", b"decoder.rnn.bias_xx"))


@pytest.mark.parametrize("content", [b"no model at all", model(node("Neg", ["a"], "b"))])
def test_another_file_is_refused(content):
    with pytest.raises(ValueError, match=r"not an ONNX model|has not the weights"):
        silero_graph.build(content)
