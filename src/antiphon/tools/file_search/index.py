"""
The index of a vector store: the chunks of its files, found by the vectors of their text and by its words.

It is made of what the stores keep (`IndexEntry`), so it can be lost: a vector store reads its entries again, and adds
them to a new one.
"""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from antiphon.tools.file_search.base import Floats32, QueryEmbedder, Ranking
from antiphon.tools.file_search.chunking import Chunking


class IndexEntry(Struct, frozen=True, kw_only=True, eq=False):
    """
    A file, ready to be searched.

    Attributes:
        file_id: of the file.
        version: anything that changes with the file's chunks; for who compares what is indexed with what should be.
        chunks: its text, cut.
        vectors: of unit length, of windows of the text: (windows, dimensions), half floats.
        parents: for each window the position of its chunk.
    """

    file_id: str
    chunks: Sequence[str]
    vectors: NDArray[np.float16]
    parents: NDArray[np.uint32]
    version: str = ""


async def make_entry(file_id: str, text: str, chunking: Chunking, embedder: QueryEmbedder) -> IndexEntry:
    """
    Cut a file's text and embed it; a page takes about a second.

    Raises:
        ApiError: the embedder failed.
    """
    raise NotImplementedError


class Query(Struct, frozen=True, eq=False):
    """What is looked for: the words, and the vector of the text."""

    text: str
    vector: Floats32


class Match(Struct, frozen=True, kw_only=True):
    """
    A chunk that fits.

    Attributes:
        source: the position of its index among those that were searched.
        file_id: of its file.
        position: of the chunk in the file, from 0.
        text: of the chunk.
        score: 0 to 1.
    """

    source: int
    file_id: str
    position: int
    text: str
    score: float


class Index:
    """
    The index of one vector store.

    Its methods block, for milliseconds to a second with 100,000 chunks; any thread may call them.

    Args:
        dimensions: of the vectors.
        path: of a file that keeps the index; None for one that goes away with this object. A file that can't be read is
            begun anew.
    """

    def __init__(self, dimensions: int, path: Path | None = None) -> None:
        raise NotImplementedError

    @property
    def versions(self) -> Mapping[str, str]:
        """The version of each file by its id."""
        raise NotImplementedError

    def add(self, entry: IndexEntry) -> None:
        """Add a file, or replace it."""
        raise NotImplementedError

    def remove(self, file_id: str) -> bool:
        """Forget a file; whether it was there."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back memory and files; idempotent."""
        raise NotImplementedError


def search(sources: Sequence[tuple[Index, Set[str] | None]], queries: Sequence[Query], ranking: Ranking, limit: int) -> list[Match]:
    """
    What fits any of the queries best, in all of these indexes together; the best is first.

    Args:
        sources: each with the ids of the files that may be found; None for all. See `filters.allows` for a request's filter.
    """
    raise NotImplementedError
