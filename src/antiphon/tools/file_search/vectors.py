"""
Finds the nearest of many vectors: by the signs of their numbers first, then exactly among the best.

One bit for each number makes 48 bytes of a MiniLM vector; among 100,000 of them the 400 that differ in the fewest bits
are found in milliseconds, and then compared by their half floats. Nothing needs to be trained, so vectors come and go
as files do. Source of the method: Charikar, Similarity estimation techniques from rounding algorithms, 2002.
"""

import numpy as np
from numpy.typing import NDArray

CANDIDATES = 400
"""The fewest vectors that are compared exactly."""

_SMALLEST_CAPACITY = 256

Floats32 = NDArray[np.float32]
Rows = NDArray[np.int64]


class VectorTable:
    """
    Vectors of unit length, each with an owner, such as the chunk of which it is one. Not for several threads at once.

    Args:
        dimensions: of a vector.
    """

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self._code_words = -(-dimensions // 64)
        self._size = 0
        self._owners = np.empty(0, np.int64)
        self._codes = np.empty((0, self._code_words), np.uint64)
        self._vectors = np.empty((0, dimensions), np.float16)

    def __len__(self) -> int:
        return self._size

    def add(self, owners: Rows, vectors: NDArray[np.float16]) -> None:
        """Add vectors, (vectors, dimensions), each with its owner."""
        end = self._size + len(owners)
        if end > len(self._owners):
            # Doubled, so that adding many files copies each vector a constant number of times.
            self._resize(max(end, 2 * self._size, _SMALLEST_CAPACITY))
        self._owners[self._size : end] = owners
        self._codes[self._size : end] = self._signs(vectors)
        self._vectors[self._size : end] = vectors
        self._size = end

    def remove(self, owners: Rows) -> None:
        """Remove all vectors of these owners."""
        rows = np.flatnonzero(~np.isin(self._owners[: self._size], owners))
        if len(rows) == self._size:
            return
        for table in (self._owners, self._codes, self._vectors):
            table[: len(rows)] = table[rows]
        self._size = len(rows)
        if self._size < len(self._owners) // 4:
            self._resize(max(2 * self._size, _SMALLEST_CAPACITY))

    def nearest(self, query: Floats32, limit: int, allowed_owners: Rows | None) -> tuple[Rows, Floats32]:
        """
        The owners of the vectors that are most similar to `query`, each once with its most similar one, and these cosines.

        Args:
            query: of unit length.
            limit: how many vectors are looked at; there may be fewer owners.
            allowed_owners: sorted; None for all.
        """
        owners = self._owners[: self._size]
        rows = np.arange(self._size) if allowed_owners is None else np.flatnonzero(_contains(allowed_owners, owners))
        count = max(CANDIDATES, limit)
        if len(rows) > count:
            codes = self._codes[: self._size] if len(rows) == self._size else self._codes[rows]
            differences = np.bitwise_count(codes ^ self._signs(query[None])).sum(axis=1, dtype=np.uint16)
            rows = np.sort(rows[np.argpartition(differences, count - 1)[:count]])
        similarities: Floats32 = self._vectors[rows].astype(np.float32) @ query
        order = np.argsort(-similarities, kind="stable")[:limit]
        best, similarities = owners[rows[order]], similarities[order]
        # `unique` sorts by owner; the positions bring back the order of similarity.
        _, first = np.unique(best, return_index=True)
        first.sort()
        return best[first], similarities[first]

    def _signs(self, vectors: NDArray[np.float16] | Floats32) -> NDArray[np.uint64]:
        bits = np.zeros((len(vectors), self._code_words * 64), np.bool_)
        bits[:, : self._dimensions] = vectors > 0
        return np.packbits(bits, axis=1).view(np.uint64)

    def _resize(self, capacity: int) -> None:
        def copy(table: NDArray[np.generic]) -> NDArray[np.generic]:
            larger = np.empty((capacity, *table.shape[1:]), table.dtype)
            larger[: self._size] = table[: self._size]
            return larger

        self._owners, self._codes, self._vectors = copy(self._owners), copy(self._codes), copy(self._vectors)  # type: ignore[assignment]  # each keeps its type


def _contains(sorted_values: Rows, values: Rows) -> NDArray[np.bool_]:
    if not len(sorted_values):
        return np.zeros(len(values), np.bool_)
    places = np.minimum(np.searchsorted(sorted_values, values), len(sorted_values) - 1)
    return np.asarray(sorted_values[places] == values)
