"""Answers that are sent while they are read."""

from collections.abc import AsyncIterator
from typing import TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


class ContentResponse(StreamingResponse):
    """Content that is read as it is sent; for HEAD, nothing more than the chunk that `begin_reading` may have read."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body"})
        else:
            await super().__call__(scope, receive, send)


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
