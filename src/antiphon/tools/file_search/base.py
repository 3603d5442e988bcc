"""The interfaces between the tool `file_search`, the vector stores, and the library that both use."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct

from antiphon.tools.file_search.formats import UnreadableFileError as UnreadableFileError
from antiphon.wire.responses.tools import Filter

if TYPE_CHECKING:  # numpy takes 100 ms to load, which would delay the start of servers that search no files.
    from antiphon.tools.file_search.vectors import Floats32

Attributes = Mapping[str, str | int | float | bool]
"""A file's metadata, as its client set it."""


class QueryEmbedder(Protocol):
    """Makes vectors of texts, as `embeddings.embedder.Embedder` does."""

    async def dimensions(self) -> int:
        """How many numbers a vector has."""

    async def embed(self, texts: Sequence[str]) -> "Floats32":
        """The vectors of texts, of unit length: (texts, dimensions). What is longer than the model reads is cut off."""


class Ranking(Struct, frozen=True, kw_only=True):
    """
    How what was found is ranked.

    Attributes:
        ranker: `none` ranks by the vectors' similarity alone, which then is the score; all others by reciprocal rank
            fusion of what was found by vectors and by words.
        embedding_weight: of the vectors in the fusion; none is below 0, and one is above.
        text_weight: of the words.
        score_threshold: results with a lower score are left out; 0 to 1.
    """

    ranker: Literal["auto", "default-2024-11-15", "none"] = "auto"
    embedding_weight: float = 1.0
    text_weight: float = 1.0
    score_threshold: float = 0.0


class SearchResult(Struct, frozen=True, kw_only=True):
    """A chunk of a file that was found; `score` is 0 to 1, the best is first."""

    file_id: str
    filename: str
    score: float
    text: str
    attributes: Attributes = {}


class VectorStores(Protocol):
    """The vector stores of all tenants, as the tool asks them."""

    async def check(self, tenant: str, store_ids: Sequence[str]) -> None:
        """
        Make sure that the stores can be searched.

        Raises:
            ApiError: a store isn't there, isn't the tenant's, or has expired.
        """

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
        """
        What fits any of the queries best in these stores together.

        Raises:
            ApiError: as `check`; or the search is not possible now.
        """
