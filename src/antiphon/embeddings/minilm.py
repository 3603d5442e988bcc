"""
The sentence encoder MiniLM-L6 (Wang et al. 2020; Reimers and Gurevych 2019) in numpy: six layers of BERT, whose outputs
are averaged over the tokens of a text and scaled to unit length.

The texts of a batch are not padded: they stand one after another, and only attention looks at each alone. So a vector
depends on its own text, not on the others of the batch, but for rounding.
"""

import ctypes
import importlib
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from antiphon.embeddings import tensors
from antiphon.embeddings.tensors import Floats
from antiphon.embeddings.wordpiece import WordPiece
from antiphon.errors import ServerError, shorten

WEIGHTS_FILE = "model.safetensors"
TOKENIZER_FILE = "tokenizer.json"

MAX_TOKENS = 256
"""Of a text, its two special tokens included: what the model was trained on (its `sentence_bert_config.json`)."""

HEAD_SIZE = 32
"""The dimensions of each attention head; a constant of this family of models."""

_LAYER_MARK = ".attention.self.query.weight"
"""Ends the name of one weight of each layer; before it stands the layer's, such as `encoder.layer.10`."""
_EPSILON = np.float32(1e-12)
_THREAD_SETTERS = ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads", "openblas_set_num_threads")


class MiniLM:
    """
    The model; its methods take long, and may be called by one thread at a time.

    Args:
        folder: of its weights and its tokenizer.

    Attributes:
        dimensions: of a vector.

    Raises:
        ServerError: `weights_unavailable`; the files are missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        use_one_thread()
        try:
            self._tokenizer = WordPiece.from_file(folder / TOKENIZER_FILE)
            self._weights = tensors.load(folder / WEIGHTS_FILE)
            self.dimensions: int = self._weights["embeddings.word_embeddings.weight"].shape[1]
            names = [name.removesuffix(_LAYER_MARK) for name in self._weights if name.endswith(_LAYER_MARK)]
            names.sort(key=lambda name: int(name.rpartition(".")[2]))
            self._layers = [_Layer(self._weights, name) for name in names]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ServerError(
                f"The embedding model in {folder} can't be loaded: {shorten(error, 300)}. "
                f"Get it with `antiphon models pull {folder.name}`.",
                code="weights_unavailable",
            ) from None

    def tokenize(self, text: str) -> list[int]:
        """The ids of a text's tokens, at most `MAX_TOKENS`: what is longer is cut off."""
        return self._tokenizer.encode(text, MAX_TOKENS)

    def embed(self, texts: Sequence[str]) -> Floats:
        """The vectors of texts, of unit length: (texts, dimensions)."""
        return self.embed_tokens([self.tokenize(text) for text in texts])

    def embed_tokens(self, token_ids: Sequence[Sequence[int]]) -> Floats:
        """The vectors of texts that `tokenize` has split: (texts, dimensions)."""
        if not token_ids:
            return np.empty((0, self.dimensions), np.float32)
        ends = np.cumsum([len(ids) for ids in token_ids]).tolist()
        spans = [slice(end - len(ids), end) for end, ids in zip(ends, token_ids, strict=True)]
        states = self._input(token_ids)
        for layer in self._layers:
            states = layer(states, spans)
        means = np.stack([states[span].mean(axis=0) for span in spans])
        vectors: Floats = means / np.linalg.norm(means, axis=1, keepdims=True)
        return vectors

    def _input(self, token_ids: Sequence[Sequence[int]]) -> Floats:
        weights = self._weights
        ids = np.concatenate([np.asarray(each, np.int64) for each in token_ids])
        positions = np.concatenate([np.arange(len(each)) for each in token_ids])
        # A text alone is the first of the two segments that BERT knows.
        states = (
            weights["embeddings.word_embeddings.weight"][ids]
            + weights["embeddings.position_embeddings.weight"][positions]
            + weights["embeddings.token_type_embeddings.weight"][0]
        )
        return _normalize(states, weights["embeddings.LayerNorm.weight"], weights["embeddings.LayerNorm.bias"])


class _Layer:
    """One layer: attention within each text, then two dense layers over all tokens; after each a residual and a norm."""

    def __init__(self, weights: dict[str, Floats], name: str) -> None:
        def dense(part: str) -> tuple[Floats, Floats]:
            return weights[f"{name}.{part}.weight"], weights[f"{name}.{part}.bias"]

        self._query, self._key, self._value = (dense(f"attention.self.{part}") for part in ("query", "key", "value"))
        self._attention_output = dense("attention.output.dense")
        self._attention_norm = dense("attention.output.LayerNorm")
        self._intermediate = dense("intermediate.dense")
        self._output = dense("output.dense")
        self._output_norm = dense("output.LayerNorm")

    def __call__(self, states: Floats, spans: Sequence[slice]) -> Floats:
        """The states after this layer: (tokens, dimensions); `spans` are the tokens of each text."""
        query, key, value = (_dense(states, part) for part in (self._query, self._key, self._value))
        context = np.empty_like(states)
        for span in spans:
            context[span] = _attention(query[span], key[span], value[span])
        states = _normalize(_dense(context, self._attention_output) + states, *self._attention_norm)
        return _normalize(_dense(_gelu(_dense(states, self._intermediate)), self._output) + states, *self._output_norm)


def _dense(states: Floats, part: tuple[Floats, Floats]) -> Floats:
    weight, bias = part
    result: Floats = states @ weight.T
    result += bias
    return result


def _attention(query: Floats, key: Floats, value: Floats) -> Floats:
    """Each token's mean of all values of its text, weighted by how well its query fits their keys; head by head."""
    tokens, dimensions = query.shape
    query, key, value = (each.reshape(tokens, -1, HEAD_SIZE).transpose(1, 0, 2) for each in (query, key, value))
    scores: Floats = query @ key.transpose(0, 2, 1)
    scores *= np.float32(1 / math.sqrt(HEAD_SIZE))
    # The same result, and `exp` can't overflow.
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    np.divide(scores, scores.sum(axis=-1, keepdims=True), out=scores)
    result: Floats = (scores @ value).transpose(1, 0, 2).reshape(tokens, dimensions)
    return result


def _normalize(states: Floats, weight: Floats, bias: Floats) -> Floats:
    means: Floats = states.mean(axis=-1, keepdims=True)
    states = states - means
    variance = np.einsum("ij,ij->i", states, states)[:, None] / np.float32(states.shape[-1])
    np.multiply(states, weight / np.sqrt(variance + _EPSILON), out=states)
    states += bias
    return states


def _gelu(x: Floats) -> Floats:
    """x/2 (1 + erf(x/√2)); erf by Abramowitz and Stegun 7.1.26, whose error, 1.5e-7, is that of a 32-bit float."""
    magnitude: Floats = np.abs(x) * np.float32(math.sqrt(0.5))
    t: Floats = np.reciprocal(np.float32(1) + np.float32(0.3275911) * magnitude)
    polynomial = np.full_like(t, 1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        polynomial *= t
        polynomial += np.float32(coefficient)
    polynomial *= t
    np.multiply(magnitude, -magnitude, out=magnitude)
    erf = 1 - polynomial * np.exp(magnitude, out=magnitude)
    result: Floats = np.float32(0.5) * x * (1 + np.copysign(erf, x))
    return result


def use_one_thread() -> None:
    """
    Have numpy's OpenBLAS compute in the thread that calls it.

    On two cores that others use too, a second thread made the median slower by half and the slowest embeddings eight
    times as slow (measured 2026-11-22). Other BLAS libraries, such as macOS's, have no such function, and stay as they
    are.
    """
    # dlsym(3): a search in numpy's extension module also covers the libraries that it depends on, such as OpenBLAS.
    library = ctypes.CDLL(importlib.import_module("numpy._core._multiarray_umath").__file__)
    for name in _THREAD_SETTERS:
        if (setter := getattr(library, name, None)) is not None:
            setter.argtypes = [ctypes.c_int]
            setter.restype = None
            setter(1)
            return
