"""The encoder: known values with the real weights, and what holds of any weights."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from antiphon.embeddings.minilm import MAX_TOKENS, MiniLM
from antiphon.errors import ServerError
from support.embeddings.tiny_model import write_tiny_model

SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]

# What sentence-transformers' own documentation prints for these sentences and this model (sbert.net, "Quickstart").
SIMILARITIES = [[1.0000, 0.6660, 0.1046], [0.6660, 1.0000, 0.1411], [0.1046, 0.1411, 1.0000]]


@pytest.fixture(scope="module")
def real(real_folder):
    return MiniLM(real_folder)


@pytest.mark.weights
def test_sentences_are_as_similar_as_the_makers_say(real):
    vectors = real.embed(SENTENCES)
    assert vectors.shape == (3, 384) and vectors.dtype == np.float32
    assert np.allclose(vectors @ vectors.T, SIMILARITIES, atol=5.1e-5)
    assert np.allclose(vectors[0, :3], [0.019196, 0.120085, 0.159598], atol=1e-5)


@pytest.mark.weights
def test_256_tokens_of_a_text_are_read(real):
    words = ["river"] * 254
    inside, beyond, before = real.embed([" ".join(words), " ".join([*words, "tax"]), " ".join([*words[:-1], "tax"])])
    assert np.allclose(inside, beyond, atol=1e-6)
    assert not np.allclose(inside, before, atol=1e-4)
    assert len(real.tokenize(" ".join(words * 2))) == MAX_TOKENS == 256


def test_vectors_have_unit_length(tiny):
    vectors = tiny.embed(["hello world", "", "abc " * 400])
    assert vectors.shape == (3, 64) and vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_no_texts_have_no_vectors(tiny):
    assert tiny.embed([]).shape == (0, 64)


@settings(max_examples=20)
@given(texts=st.lists(st.text("abc hello!", max_size=40), min_size=1, max_size=6), data=st.data())
def test_a_vector_is_of_its_text_alone(tiny, texts, data):
    order = data.draw(st.permutations(range(len(texts))))
    together = tiny.embed(texts)
    assert np.allclose(tiny.embed([texts[index] for index in order]), together[list(order)], atol=1e-6)
    for text, vector in zip(texts, together, strict=True):
        assert np.allclose(tiny.embed([text])[0], vector, atol=1e-6)


@pytest.mark.parametrize("layers", [2, 12])
def test_the_layers_do_one_after_another_what_the_paper_says(tmp_path, layers):
    # The same in 64-bit floats and plain words: one text, padded by nothing, with the error function of the library.
    model = MiniLM(write_tiny_model(tmp_path, layers))
    weights = {name: tensor.astype(np.float64) for name, tensor in model._weights.items()}
    ids = model.tokenize("hello world! abc")

    def norm(x, name):
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(variance + 1e-12) * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def dense(x, name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    gelu = np.vectorize(lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2))))
    x = weights["embeddings.word_embeddings.weight"][ids] + weights["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for layer in (f"encoder.layer.{number}" for number in range(layers)):
        query, key, value = (dense(x, f"{layer}.attention.self.{name}") for name in ("query", "key", "value"))
        heads = []
        for head in (slice(0, 32), slice(32, 64)):
            scores = np.exp(query[:, head] @ key[:, head].T / math.sqrt(32))
            heads.append(scores / scores.sum(-1, keepdims=True) @ value[:, head])
        x = norm(dense(np.concatenate(heads, -1), f"{layer}.attention.output.dense") + x, f"{layer}.attention.output.LayerNorm")
        x = norm(dense(gelu(dense(x, f"{layer}.intermediate.dense")), f"{layer}.output.dense") + x, f"{layer}.output.LayerNorm")
    mean = x.mean(0)
    assert np.allclose(model.embed(["hello world! abc"])[0], mean / np.linalg.norm(mean), atol=2e-6)


def test_files_that_are_missing_or_of_another_model_are_refused_with_what_to_do(tmp_path, tiny_folder):
    with pytest.raises(ServerError, match="antiphon models pull"):
        MiniLM(tmp_path)
    for name in ("tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_bytes((tiny_folder / name).read_bytes())
    content = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content.replace(b"word_embeddings", b"word_embodyings"))
    with pytest.raises(ServerError, match="can't be loaded"):
        MiniLM(tmp_path)
