"""Vector stores, their files and batches, and what their endpoints take and return."""

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta

from antiphon.errors import ClientError, pattern_mismatch
from antiphon.wire.codec.fields import is_set, value_or
from antiphon.wire.codec.types import Maybe, Tagged, Typed, Wire
from antiphon.wire.responses.request import Metadata, ShortKey
from antiphon.wire.responses.tools import Filter

MAX_FILES = 2000
"""The most files in one request. Source: `openai`'s `FileBatchCreateParams.file_ids`."""

MAX_RESULTS, DEFAULT_RESULTS = 50, 10
"""Of a search. The first is the reference's, the second what the original returns."""

Name = Annotated[str, Meta(max_length=512)]
FileIds = Annotated[list[str], Meta(max_length=MAX_FILES, title="an array of file IDs")]
# The reference: a string of at most 512 characters, a number or a boolean.
AttributeValue: TypeAlias = Annotated[str, Meta(max_length=512)] | int | float | bool
Attributes = Annotated[dict[ShortKey, AttributeValue], Meta(max_length=16)]
FileStatus = Literal["in_progress", "completed", "cancelled", "failed"]


# Requests


class StoreExpiry(Wire, kw_only=True):
    """When a vector store expires: so many days after its last activity."""

    anchor: Literal["last_active_at"]
    days: Annotated[int, Meta(ge=1, le=365)]


class AutoChunking(Tagged, kw_only=True, tag="auto"):
    """Chunks of 800 tokens, each of which begins with the last 400 of the one before."""


class StaticChunkingSizes(Wire, kw_only=True):
    """The size of chunks, in tokens; the overlap is at most half of it."""

    max_chunk_size_tokens: Annotated[int, Meta(ge=100, le=4096)]
    chunk_overlap_tokens: Annotated[int, Meta(ge=0, le=2048)]


class StaticChunking(Tagged, kw_only=True, tag="static"):
    """Chunks of a chosen size."""

    static: StaticChunkingSizes


ChunkingStrategy = AutoChunking | StaticChunking


class CreateVectorStoreRequest(Wire, kw_only=True):
    """A vector store, and its first files."""

    name: Maybe[Name] = UNSET
    description: Maybe[Name] = UNSET
    file_ids: Maybe[FileIds] = UNSET
    chunking_strategy: Maybe[ChunkingStrategy] = UNSET
    expires_after: Maybe[StoreExpiry] = UNSET
    metadata: Maybe[Metadata] = UNSET


class UpdateVectorStoreRequest(Wire, kw_only=True):
    """Changes of a vector store; null clears a field."""

    name: Maybe[Name] = UNSET
    expires_after: Maybe[StoreExpiry] = UNSET
    metadata: Maybe[Metadata] = UNSET


class AddFileRequest(Wire, kw_only=True):
    """A file to be indexed."""

    file_id: str
    attributes: Maybe[Attributes] = UNSET
    chunking_strategy: Maybe[ChunkingStrategy] = UNSET


class UpdateFileRequest(Wire, kw_only=True):
    """The attributes that replace a file's; null for none."""

    attributes: Attributes | None


class CreateFileBatchRequest(Wire, kw_only=True):
    """Files to be indexed: all alike by `file_ids`, or each in its own way by `files`."""

    file_ids: Maybe[FileIds] = UNSET
    files: Maybe[Annotated[list[AddFileRequest], Meta(max_length=MAX_FILES, title="an array of files")]] = UNSET
    attributes: Maybe[Attributes] = UNSET
    chunking_strategy: Maybe[ChunkingStrategy] = UNSET


class FusionWeights(Wire, kw_only=True):
    """The weights of vectors and of words; one is above 0."""

    embedding_weight: Annotated[float, Meta(ge=0, le=1000)]
    text_weight: Annotated[float, Meta(ge=0, le=1000)]


class SearchRanking(Wire, kw_only=True):
    """How results are ranked; `none` is by their vectors alone."""

    ranker: Maybe[Literal["none", "auto", "default-2024-11-15"]] = UNSET
    score_threshold: Maybe[Annotated[float, Meta(ge=0, le=1)]] = UNSET
    hybrid_search: Maybe[FusionWeights] = UNSET


SearchText = Annotated[str, Meta(min_length=1, max_length=4096)]


class SearchVectorStoreRequest(Wire, kw_only=True):
    """A search in a vector store, by one text or by several; `rewrite_query` is accepted and changes nothing."""

    query: SearchText | Annotated[list[SearchText], Meta(min_length=1, max_length=16)]
    filters: Maybe[Filter] = UNSET
    max_num_results: Maybe[Annotated[int, Meta(ge=1, le=MAX_RESULTS)]] = UNSET
    ranking_options: Maybe[SearchRanking] = UNSET
    rewrite_query: Maybe[bool] = UNSET


class FileStatusQuery(Wire, kw_only=True):
    """Which files a list has."""

    filter: Maybe[FileStatus] = UNSET


# Answers


class FileCountsObject(Wire, kw_only=True):
    """How many files have each status."""

    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


class VectorStoreObject(Wire, kw_only=True):
    """A vector store, `in_progress` while some of its files are. It has no `description`, as the official client's type has none."""

    id: str
    object: Literal["vector_store"] = "vector_store"
    created_at: int
    name: str
    usage_bytes: int
    file_counts: FileCountsObject
    status: Literal["expired", "in_progress", "completed"]
    expires_after: StoreExpiry | None
    expires_at: int | None
    last_active_at: int
    metadata: dict[str, str]


class VectorStoreList(Wire, kw_only=True):
    """A page of vector stores; the next one follows `last_id`."""

    object: Literal["list"] = "list"
    data: list[VectorStoreObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class VectorStoreDeleted(Wire, kw_only=True):
    """A vector store was deleted."""

    id: str
    object: Literal["vector_store.deleted"] = "vector_store.deleted"
    deleted: bool = True


class FileFailure(Wire, kw_only=True):
    """Why a file could not be indexed."""

    code: Literal["server_error", "unsupported_file", "invalid_file"]
    message: str


class VectorStoreFileObject(Wire, kw_only=True):
    """A file in a vector store; its id is that of the file."""

    id: str
    object: Literal["vector_store.file"] = "vector_store.file"
    usage_bytes: int
    created_at: int
    vector_store_id: str
    status: FileStatus
    last_error: FileFailure | None
    chunking_strategy: Typed[StaticChunking]
    attributes: dict[str, str | int | float | bool]


class VectorStoreFileList(Wire, kw_only=True):
    """A page of files in a vector store; the next one follows `last_id`."""

    object: Literal["list"] = "list"
    data: list[VectorStoreFileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class VectorStoreFileDeleted(Wire, kw_only=True):
    """A file was taken out of a vector store; it is still in `/v1/files`."""

    id: str
    object: Literal["vector_store.file.deleted"] = "vector_store.file.deleted"
    deleted: bool = True


class TextContent(Tagged, kw_only=True, tag="text"):
    """A piece of a file's text."""

    text: str


class FileContentPage(Wire, kw_only=True):
    """The text of a file, as it was read; the pieces follow each other without a gap."""

    object: Literal["vector_store.file_content.page"] = "vector_store.file_content.page"
    data: list[Typed[TextContent]]
    has_more: bool = False
    next_page: str | None = None


class FileBatchObject(Wire, kw_only=True):
    """Files that were added together."""

    id: str
    object: Literal["vector_store.files_batch"] = "vector_store.files_batch"
    created_at: int
    vector_store_id: str
    status: FileStatus
    file_counts: FileCountsObject


class SearchResultObject(Wire, kw_only=True):
    """A part of a file that was found; the score is 0 to 1."""

    file_id: str
    filename: str
    score: float
    attributes: dict[str, str | int | float | bool]
    content: list[Typed[TextContent]]


class SearchResultsPage(Wire, kw_only=True):
    """What was found, the best first, and what was searched for."""

    object: Literal["vector_store.search_results.page"] = "vector_store.search_results.page"
    search_query: list[str]
    data: list[SearchResultObject]
    has_more: bool = False
    next_page: str | None = None


# What annotations can't say


def check_names(request: CreateVectorStoreRequest | UpdateVectorStoreRequest) -> None:
    """
    Check a store's texts.

    Raises:
        ClientError: one has a NUL, which PostgreSQL can't store.
    """
    texts = {"name": request.name}
    if isinstance(request, CreateVectorStoreRequest):
        texts["description"] = request.description
    for param, text in texts.items():
        if "\0" in value_or(text, ""):
            raise pattern_mismatch(param, r"^[^\x00]*$")


def check_chunking(strategy: Maybe[ChunkingStrategy], param: str) -> None:
    """
    Check a chunking strategy; `param` is its path.

    Raises:
        ClientError: the overlap is more than half of a chunk.
    """
    if is_set(strategy) and isinstance(strategy, StaticChunking):
        sizes = strategy.static
        if 2 * sizes.chunk_overlap_tokens > sizes.max_chunk_size_tokens:
            raise ClientError(
                f"Invalid '{param}.static.chunk_overlap_tokens': it must be at most half of 'max_chunk_size_tokens', "
                f"{sizes.max_chunk_size_tokens // 2}, but got {sizes.chunk_overlap_tokens} instead.",
                code="invalid_value",
                param=f"{param}.static.chunk_overlap_tokens",
            )


def check_weights(ranking: Maybe[SearchRanking]) -> None:
    """
    Check the weights of a search.

    Raises:
        ClientError: both are 0.
    """
    if is_set(ranking) and is_set(weights := ranking.hybrid_search) and not weights.embedding_weight + weights.text_weight:
        raise ClientError(
            "Invalid 'ranking_options.hybrid_search': 'embedding_weight' or 'text_weight' must be above 0.",
            code="invalid_value",
            param="ranking_options.hybrid_search",
        )
