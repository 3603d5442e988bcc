"""Answers that are sent while they are read."""

from collections.abc import AsyncIterator
from typing import TypeVar

T = TypeVar("T")


async def begin_reading(chunks: AsyncIterator[T]) -> AsyncIterator[T]:
    """
    The same chunks, of which the first has been read: an error before the head is sent can still be an HTTP error.

    Raises:
        ApiError: the first chunk can't be read.
    """
    try:
        first_chunk = await anext(chunks)
    except StopAsyncIteration:
        return chunks
    return _with_first(first_chunk, chunks)


async def _with_first(first_chunk: T, chunks: AsyncIterator[T]) -> AsyncIterator[T]:
    yield first_chunk
    async for chunk in chunks:
        yield chunk
