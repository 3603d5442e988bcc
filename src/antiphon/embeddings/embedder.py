"""Embeds the texts of several callers in one thread of its own, a little of each caller's at a time."""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec import Struct

from antiphon.embeddings.minilm import MiniLM
from antiphon.embeddings.tensors import Floats
from antiphon.errors import overloaded_error, shutting_down

T = TypeVar("T")

BATCH_TOKENS = 256
"""How much is computed in one step; no text is divided. About 100 ms of one core, for which the next caller waits."""

TOKENIZE_CHARS = 65_536
"""How much is split into tokens in one step: about 50 ms."""

MAX_CALLERS = 64
"""The most callers at once; further ones are refused."""


class EmbeddedTexts(Struct, frozen=True, eq=False):
    """
    The vectors of some texts.

    Attributes:
        vectors: of unit length, one per text: (texts, dimensions).
        tokens: how many of the texts' tokens were read, the two special ones of each text included.
    """

    vectors: Floats
    tokens: int


class Embedder:
    """
    MiniLM, for callers on an event loop; the model is loaded by the first of them, or by `start`.

    Args:
        folder: of its weights and its tokenizer.
        max_callers: how many may wait at once.
    """

    def __init__(self, folder: Path, max_callers: int = MAX_CALLERS) -> None:
        self._folder = folder
        self._max_callers = max_callers
        self._callers = 0
        self._model: MiniLM | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="antiphon-embeddings")
        self._is_open = True

    async def start(self) -> None:
        """
        Load the model.

        Raises:
            ServerError: `weights_unavailable`; the files are missing or damaged.
        """
        await self._loaded_model()

    async def dimensions(self) -> int:
        """
        How many numbers a vector has.

        Raises:
            ServerError: as `start`.
        """
        return (await self._loaded_model()).dimensions

    async def embed(self, texts: Sequence[str]) -> Floats:
        """
        The vectors of texts, of unit length: (texts, dimensions). A text is cut after 256 tokens.

        Raises:
            ApiError: too many callers wait, the weights are not there, or the server stops.
        """
        return (await self.embed_counted(texts)).vectors

    async def embed_counted(self, texts: Sequence[str]) -> EmbeddedTexts:
        """As `embed`, with the number of tokens."""
        with self._place():
            model = await self._loaded_model()
            token_ids: list[list[int]] = []
            for chars in _batches([len(text) for text in texts], TOKENIZE_CHARS):
                token_ids += await self._run(functools.partial(_tokenize, model, texts[chars]))
            vectors = [np.empty((0, model.dimensions), np.float32)]
            for span in _batches([len(ids) for ids in token_ids], BATCH_TOKENS):
                vectors.append(await self._run(functools.partial(model.embed_tokens, token_ids[span])))
        return EmbeddedTexts(np.concatenate(vectors), sum(map(len, token_ids)))

    async def stop(self) -> None:
        """Refuse new and waiting callers, and wait for the thread to end; idempotent."""
        self._is_open = False
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        if self._callers >= self._max_callers:
            raise overloaded_error(f"The server has {self._callers} requests for embeddings to answer, its limit. Please try again later.")
        self._callers += 1
        try:
            yield
        finally:
            self._callers -= 1

    async def _run(self, work: Callable[[], T]) -> T:
        # The thread takes one step of each caller in turn, as each caller queues its next step when one is done.
        self._check_is_open()
        try:
            return await asyncio.wrap_future(self._thread.submit(work))
        except asyncio.CancelledError:
            # Not the task but the step was cancelled, by `stop`: the caller gets an error.
            if (task := asyncio.current_task()) is None or not task.cancelling():
                self._check_is_open()
            raise

    def _check_is_open(self) -> None:
        if not self._is_open:
            raise shutting_down() from None

    async def _loaded_model(self) -> MiniLM:
        return await self._run(self._load) if self._model is None else self._model

    def _load(self) -> MiniLM:
        # Asked again in the thread: several callers may have found no model.
        if self._model is None:
            self._model = MiniLM(self._folder)
        return self._model


def _tokenize(model: MiniLM, texts: Sequence[str]) -> list[list[int]]:
    return [model.tokenize(text) for text in texts]


def _batches(sizes: Sequence[int], limit: int) -> Iterator[slice]:
    """Slices of consecutive entries whose sizes add up to the limit at most; what alone is larger has one of its own."""
    begin = total = 0
    for index, size in enumerate(sizes):
        if total + size > limit and index > begin:
            yield slice(begin, index)
            begin, total = index, 0
        total += size
    if begin < len(sizes):
        yield slice(begin, len(sizes))
