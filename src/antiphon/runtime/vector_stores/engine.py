"""The parts that index and search files, with the model that both need; imported when it is first needed."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from msgspec.structs import replace

from antiphon.config.tools.file_search import FileSearchSettings
from antiphon.config.tools.vector_stores import VectorStoreSettings
from antiphon.runtime.files.library import FileLibrary
from antiphon.runtime.vector_stores.index_cache import IndexCache
from antiphon.runtime.vector_stores.index_files import IndexFiles
from antiphon.runtime.vector_stores.indexer import FileIndexer
from antiphon.runtime.vector_stores.library import VectorStoreLibrary
from antiphon.runtime.vector_stores.searcher import Searcher
from antiphon.stores.base import Store
from antiphon.tools.file_search.base import QueryEmbedder, Ranking, SearchResult
from antiphon.tools.file_search.filters import check_filter
from antiphon.tools.file_search.parsing import ParseLimits, Parsers
from antiphon.wire.codec.fields import value_or
from antiphon.wire.http.vector_stores import DEFAULT_RESULTS, SearchRanking, SearchVectorStoreRequest
from antiphon.wire.responses.tools import Filter


class EmbeddingModel(QueryEmbedder, Protocol):
    """Makes vectors of texts, as `embeddings.embedder.Embedder` does."""

    async def stop(self) -> None:
        """Release the model's memory and threads; idempotent."""


class VectorEngine:
    """
    Args:
        model: is stopped with the engine.
        embedding: its name.
        index_files: of indexes, for their next use.

    Attributes:
        indexer: indexes files.
        searcher: searches vector stores.
        on_outdated: called when files are to be indexed again.
    """

    def __init__(
        self,
        store: Store,
        files: FileLibrary,
        library: VectorStoreLibrary,
        settings: VectorStoreSettings,
        parse_settings: FileSearchSettings,
        model: EmbeddingModel,
        embedding: str,
        index_files: IndexFiles,
    ) -> None:
        self.on_outdated: Callable[[], None] = lambda: None
        self._model = model
        # Threads of its own: reading large indexes would otherwise take all of the event loop's default ones.
        self._threads = ThreadPoolExecutor(settings.searches, thread_name_prefix="antiphon-vector-stores")
        self._cache = IndexCache(
            store.indexes, model.dimensions, embedding, settings, self._threads, lambda: self.on_outdated(), index_files
        )
        limits = ParseLimits(
            file_bytes=settings.file_mib << 20,
            memory_bytes=parse_settings.parse_mib << 20,
            cpu_s=parse_settings.parse_cpu_s,
            wall_s=parse_settings.parse_s,
            processes=parse_settings.parsers,
        )
        self.indexer = FileIndexer(store, files, Parsers(limits), model, embedding, settings)
        self.searcher = Searcher(library, model, self._cache, settings, self._threads)

    async def answer(self, tenant: str, store_id: str, request: SearchVectorStoreRequest) -> Sequence[SearchResult]:
        """
        What a client's search finds in one store.

        Raises:
            ClientError: the store can't be searched, or the filters are wrong.
            ServerError: a search is not possible now.
        """
        filters: Filter | None = request.filters or None
        if filters is not None:
            check_filter(filters, "filters")
        queries = [request.query] if isinstance(request.query, str) else request.query
        ranking = to_ranking(value_or(request.ranking_options, SearchRanking()))
        max_results = value_or(request.max_num_results, DEFAULT_RESULTS)
        return await self.searcher.search(tenant, [store_id], queries, filters=filters, max_results=max_results, ranking=ranking)

    async def drop_idle(self) -> None:
        """Release the memory of idle indexes."""
        await self._cache.drop_idle()

    async def forget(self, store_id: str) -> None:
        """Release the memory of a deleted store's index."""
        await self._cache.forget(store_id)

    async def close(self) -> None:
        """Release indexes, threads and the model; idempotent."""
        await self._cache.close()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        await self._model.stop()


def to_ranking(options: SearchRanking) -> Ranking:
    """The ranking that a client's options ask for, with defaults for the rest."""
    weights = value_or(options.hybrid_search, None)
    ranking = Ranking(ranker=value_or(options.ranker, "auto"), score_threshold=value_or(options.score_threshold, 0.0))
    if weights is None:
        return ranking
    return replace(ranking, embedding_weight=weights.embedding_weight, text_weight=weights.text_weight)
