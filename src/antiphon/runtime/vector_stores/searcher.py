"""Searches vector stores: embeds the queries, and finds the nearest chunks in the indexes."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from antiphon.config.tools.vector_stores import VectorStoreSettings
from antiphon.errors import ApiError, ServerError, overloaded_error
from antiphon.runtime.vector_stores.index_cache import IndexCache, OpenIndex
from antiphon.runtime.vector_stores.library import VectorStoreLibrary
from antiphon.tools.file_search.base import QueryEmbedder, Ranking, SearchResult
from antiphon.tools.file_search.filters import allowed_files
from antiphon.tools.file_search.index import Match, Query, search
from antiphon.tools.file_search.vectors import Floats32
from antiphon.wire.responses.tools import Filter

MAX_WAITING = 64
"""The most searches that wait; further ones are refused."""

WAIT_S = 30.0
"""How long a search waits for a place."""


class Searcher:
    """
    Args:
        embedder: makes the vectors of queries, with the model that indexed the files.
        cache: has the indexes.
        threads: do what blocks.
    """

    def __init__(
        self,
        library: VectorStoreLibrary,
        embedder: QueryEmbedder,
        cache: IndexCache,
        settings: VectorStoreSettings,
        threads: ThreadPoolExecutor,
    ) -> None:
        self._library = library
        self._embedder = embedder
        self._cache = cache
        self._threads = threads
        self._limit_name = f"`tools.vector_stores.searches`, {settings.searches}"
        self._places = asyncio.Semaphore(settings.searches)
        self._waiting = 0

    async def search(
        self,
        tenant: str,
        store_ids: Sequence[str],
        queries: Sequence[str],
        *,
        filters: Filter | None,
        max_results: int,
        ranking: Ranking,
    ) -> Sequence[SearchResult]:
        """As `tools.file_search.base.VectorStores`."""
        stores = [await self._library.find_active(tenant, store_id) for store_id in dict.fromkeys(store_ids)]
        if not any(store.counts.completed for store in stores):
            return []
        # Before a place is taken: the embedder has a queue of its own.
        vectors = await self._embed(queries)
        async with contextlib.AsyncExitStack() as stack:
            open_indexes = [await stack.enter_async_context(self._cache.use(store)) for store in stores]
            # After the indexes, which may take a minute to be read: others would wait for it.
            await stack.enter_async_context(self._place())
            texts = [Query(text, vector) for text, vector in zip(queries, vectors, strict=True)]
            work = functools.partial(_search, open_indexes, texts, filters, max_results, ranking)
            matches = await asyncio.get_running_loop().run_in_executor(self._threads, work)
            results = [_result(open_indexes[match.source], match) for match in matches]
        for store in stores:
            await self._library.touch(store)
        return [result for result in results if result is not None]

    async def _embed(self, queries: Sequence[str]) -> Floats32:
        try:
            return await self._embedder.embed(queries)
        except ApiError as error:
            if error.status == 503:
                raise
            # Not passed on: its message is for the operator, and has the folder of the model in it.
            raise ServerError("The server can't search vector stores: it has no model for embeddings.", status=503) from error

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        if self._waiting >= MAX_WAITING:
            raise overloaded_error(f"Too many searches wait already ({self._limit_name} at once). Please try again later.")
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_S):
                await self._places.acquire()
        except TimeoutError:
            raise overloaded_error(f"The server has too many searches to make ({self._limit_name} at once). Please try again.") from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._places.release()


def _search(
    open_indexes: Sequence[OpenIndex], queries: Sequence[Query], filters: Filter | None, limit: int, ranking: Ranking
) -> list[Match]:
    """Search in a thread: with many files or chunks it takes longer than the event loop may be held."""
    sources = []
    for entry in open_indexes:
        files = ((id, file.filename, file.attributes) for id, file in entry.files.items())
        sources.append((entry.index, allowed_files(filters, files)))
    return search(sources, queries, ranking, limit)


def _result(entry: OpenIndex, match: Match) -> SearchResult | None:
    file = entry.files.get(match.file_id)
    if file is None:  # Removed from the store meanwhile.
        return None
    return SearchResult(file_id=match.file_id, filename=file.filename, score=match.score, text=match.text, attributes=file.attributes)
