"""
Which category of examples a text is closest to, by vectors of the texts' meaning.

It loads numpy, and is loaded where examples are configured.
"""

import asyncio
import contextlib
import hashlib
import os
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antiphon.embeddings.embedder import Embedder
from antiphon.errors import ServerError

Vectors: TypeAlias = NDArray[np.float32]
"""Rows of unit length, one for each text; or a single one."""

NEAREST = 3
"""A category's score is the mean similarity of so many of its examples: a single one may be close by chance."""

MIN_LEARNT_EXAMPLES = 20
"""From so many examples of every category on, a logistic regression tells categories apart better than the nearest ones."""

_SCALE = 4.0  # Rows of unit length differ by too little for a quick fit.
_STEPS, _MOMENTUM, _DECAY = 300, 0.9, 1e-3
_RATE = 2 / (_SCALE**2 + 1)  # The loss bends by half the square of a row's length at most.

Method: TypeAlias = Literal["similarity", "probability"]

# Chosen with `bench/routing.py`: higher ones send more requests to the default model, and are right a little more often.
THRESHOLDS: Mapping[Method, float] = {"similarity": 0.15, "probability": 0.3}
MARGINS: Mapping[Method, float] = {"similarity": 0.02, "probability": 0.05}


MAX_WAITING_TEXTS = 8
"""A request that comes while so many texts wait for their vectors goes to the default model at once."""

MAX_CACHED_TEXTS = 4096
"""Vectors of texts that are remembered, of 1.5 kB each."""


class Score(NamedTuple):
    """How close a text is to a category: a mean cosine, or a probability."""

    category: str
    score: float


class ExampleClassifier:
    """
    Compares texts with examples.

    Args:
        vectors: of the examples, by category; at least one each.
        threshold: the least score that counts; None for that of the method.
        margin: how much better than the second best it must be; None for that of the method.

    Attributes:
        method: how scores are made.
    """

    def __init__(self, vectors: Mapping[str, Vectors], threshold: float | None = None, margin: float | None = None) -> None:
        self._categories = tuple(vectors)
        self._examples = tuple(vectors.values())
        is_learnt = len(vectors) > 1 and min(map(len, self._examples)) >= MIN_LEARNT_EXAMPLES
        self.method: Method = "probability" if is_learnt else "similarity"
        self.threshold = THRESHOLDS[self.method] if threshold is None else threshold
        self.margin = MARGINS[self.method] if margin is None else margin
        self._weights = _fit(self._examples) if is_learnt else None

    def scores(self, vector: Vectors) -> list[Score]:
        """Of every category, the best first."""
        if self._weights is not None:
            values = _softmax(_with_bias(vector[None, :]) @ self._weights)[0]
        else:
            values = np.array([_nearest_mean(examples @ vector) for examples in self._examples])
        return sorted(
            (Score(name, float(value)) for name, value in zip(self._categories, values, strict=True)), key=lambda each: -each.score
        )

    def choose(self, scores: Sequence[Score]) -> Score | None:
        """The best category; None where it is not good enough, or too close to the second."""
        best = scores[0]
        if best.score < self.threshold or (len(scores) > 1 and best.score - scores[1].score < self.margin):
            return None
        return best


def _nearest_mean(similarities: Vectors) -> float:
    return float(np.mean(np.sort(similarities)[-NEAREST:]))


def _with_bias(rows: Vectors) -> NDArray[np.float64]:
    return np.concatenate([rows.astype(np.float64) * _SCALE, np.ones((len(rows), 1))], axis=1)


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    # Less the largest: the shares stay the same, and no power overflows.
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return shares


def _fit(examples: Sequence[Vectors]) -> NDArray[np.float64]:
    """
    Weights of a multinomial logistic regression with weight decay, by accelerated gradient descent from zero: the same
    for the same examples. Categories count alike, however many examples they have.
    """
    rows = _with_bias(np.concatenate(examples))
    labels = np.repeat(np.arange(len(examples)), [len(each) for each in examples])
    targets = np.eye(len(examples))[labels]
    shares = np.array([1 / (len(examples) * len(each)) for each in examples])[labels][:, None]
    weights = np.zeros((rows.shape[1], len(examples)))
    velocity = np.zeros_like(weights)
    for _ in range(_STEPS):
        ahead = weights + _MOMENTUM * velocity
        gradient = rows.T @ ((_softmax(rows @ ahead) - targets) * shares) + _DECAY * ahead
        velocity = _MOMENTUM * velocity - _RATE * gradient
        weights += velocity
    return weights


class TextEmbedder(Protocol):
    """Makes vectors of texts, as `embeddings.embedder.Embedder` does."""

    async def start(self) -> None: ...

    async def embed(self, texts: Sequence[str]) -> Vectors: ...

    async def stop(self) -> None: ...


def stack(vectors: Sequence[Vectors]) -> Vectors:
    """Vectors as the rows of one array."""
    return np.stack(vectors)


def new_embedder(folder: Path) -> TextEmbedder:
    """An embedder for requests alone, with a thread of its own: what others embed keeps none of them waiting."""
    return Embedder(folder, MAX_WAITING_TEXTS)


class TextVectors:
    """
    Vectors of texts: those of examples are kept in a file, those of requests in memory.

    Args:
        file: of the examples' vectors; other servers may write it, too.
        notice: takes a line for the operator.
    """

    def __init__(self, embedder: TextEmbedder, file: Path, notice: Callable[[str], None] = lambda _line: None) -> None:
        self._embedder = embedder
        self._file = file
        self._notice = notice
        self._cache: OrderedDict[bytes, Vectors] = OrderedDict()
        self._tasks: dict[bytes, asyncio.Task[Vectors]] = {}

    async def start(self) -> None:
        """
        Load the model, and run it once: the first text would take several times as long.

        Raises:
            ApiError: its files are missing or damaged.
        """
        await self._embedder.start()
        await self._embedder.embed(["Hello."])

    async def stop(self) -> None:
        """Stop all work; idempotent."""
        for task in (tasks := [*self._tasks.values()]):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._embedder.stop()

    async def of_examples(self, texts: Iterable[str]) -> dict[str, Vectors]:
        """
        The vectors of examples, by text.

        Raises:
            ApiError: they can't be made.
        """
        texts = tuple(dict.fromkeys(texts))
        vectors = await asyncio.to_thread(_read_vectors, self._file)
        missing = [text for text in texts if _key(text) not in vectors]
        if missing:
            vectors |= {_key(text): vector for text, vector in zip(missing, await self._embedder.embed(missing), strict=True)}
            try:
                # Only those of the present examples: vectors of earlier ones would pile up.
                await asyncio.to_thread(_write_vectors, self._file, {_key(text): vectors[_key(text)] for text in texts})
            except OSError as error:
                self._notice(f"The vectors of the routing examples could not be stored, and are made again next time: {error.strerror}.")
        return {text: vectors[_key(text)] for text in texts}

    async def of_request(self, text: str, timeout_s: float) -> Vectors:
        """
        The vector of a request's text. What is not ready in time is remembered once it is.

        Raises:
            TimeoutError: it takes longer.
            ApiError: too many texts wait, or the vector can't be made.
        """
        key = _key(text)
        if (vector := self._cache.get(key)) is not None:
            self._cache.move_to_end(key)
            return vector
        if (task := self._tasks.get(key)) is None:
            # It may outlive the request, and ends with this object.
            task = self._tasks[key] = asyncio.ensure_future(self._embed(key, text))  # noqa: TID251
            task.add_done_callback(lambda task: self._forget(key, task))
        # Not `wait_for`, which would cancel the task: other requests may wait for it, or ask for the text again.
        await asyncio.wait((task,), timeout=timeout_s)
        if not task.done():
            raise TimeoutError
        if task.cancelled():
            raise ServerError("The server stops.")
        return task.result()

    def _forget(self, key: bytes, task: "asyncio.Task[Vectors]") -> None:
        self._tasks.pop(key, None)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: who asked may not wait any more, and asyncio would log that

    async def _embed(self, key: bytes, text: str) -> Vectors:
        vector: Vectors = (await self._embedder.embed([text]))[0]
        self._cache[key] = vector
        if len(self._cache) > MAX_CACHED_TEXTS:
            self._cache.popitem(last=False)
        return vector


def _key(text: str) -> bytes:
    # Text from JSON may have lone surrogates, such as `\ud800`, which UTF-8 alone refuses.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _read_vectors(file: Path) -> dict[bytes, Vectors]:
    """The vectors in a file, by the hash of their text; none if it is not there or damaged."""
    try:
        # No pickles: to be able to write the file must not mean to be able to run code here.
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
            keys, vectors = content["keys"], content["vectors"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return {}
    if keys.dtype != np.uint8 or keys.shape != (len(vectors), 32) or vectors.dtype != np.float32 or vectors.ndim != 2:
        return {}
    return {key.tobytes(): vector for key, vector in zip(keys, vectors, strict=True)}


def _write_vectors(file: Path, vectors: Mapping[bytes, Vectors]) -> None:
    """Write them at once or not at all, as another server may read or write them now."""
    file.parent.mkdir(parents=True, exist_ok=True)
    keys = np.stack([np.frombuffer(key, np.uint8) for key in vectors])
    # Beside the file: `os.replace` is atomic within one file system only.
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f"{file.stem}-", suffix=".part", delete=False) as part:
        try:
            np.savez(part, keys=keys, vectors=np.stack([*vectors.values()]))
            part.close()
            os.replace(part.name, file)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part.name)
            raise
