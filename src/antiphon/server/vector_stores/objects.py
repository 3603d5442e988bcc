"""Vector stores as clients see them, and what clients ask for as the library takes it."""

from collections.abc import Sequence

import msgspec

from antiphon.errors import ClientError, missing_parameter
from antiphon.records import FileBatchRecord, FileCounts, IndexedFileRecord, VectorStoreRecord
from antiphon.runtime.vector_stores.library import AUTO_CHUNK_TOKENS, AUTO_OVERLAP_TOKENS, NewFile
from antiphon.wire.codec.fields import is_set, value_or
from antiphon.wire.codec.types import Maybe
from antiphon.wire.http.vector_stores import (
    AddFileRequest,
    Attributes,
    ChunkingStrategy,
    CreateFileBatchRequest,
    CreateVectorStoreRequest,
    FileBatchObject,
    FileCountsObject,
    FileFailure,
    FileStatus,
    StaticChunking,
    StaticChunkingSizes,
    StoreExpiry,
    VectorStoreFileObject,
    VectorStoreObject,
    check_chunking,
)


def store_object(store: VectorStoreRecord, now: int) -> VectorStoreObject:
    """A vector store as clients see it; `now`, in Unix seconds, decides whether it has expired."""
    days = store.expires_after_days
    is_busy = store.counts.in_progress > 0
    return VectorStoreObject(
        id=store.id,
        created_at=store.created_at,
        name=store.name,
        usage_bytes=store.usage_bytes,
        file_counts=_counts(store.counts),
        status="expired" if store.is_expired(now) else "in_progress" if is_busy else "completed",
        expires_after=None if days is None else StoreExpiry(anchor="last_active_at", days=days),
        expires_at=store.expires_at,
        last_active_at=store.last_active_at,
        metadata=msgspec.json.decode(store.metadata),
    )


def file_object(file: IndexedFileRecord) -> VectorStoreFileObject:
    """A file in a vector store as clients see it. Its chunking is always `static`, with the sizes that `auto` stands for."""
    sizes = StaticChunkingSizes(max_chunk_size_tokens=file.max_chunk_tokens, chunk_overlap_tokens=file.overlap_tokens)
    return VectorStoreFileObject(
        id=file.file_id,
        usage_bytes=file.usage_bytes,
        created_at=file.created_at,
        vector_store_id=file.store_id,
        status=file.status,
        last_error=None if file.error is None else FileFailure(code=file.error.code, message=file.error.message),
        chunking_strategy=StaticChunking(static=sizes),
        attributes=msgspec.json.decode(file.attributes),
    )


def batch_object(batch: FileBatchRecord) -> FileBatchObject:
    """A batch, files that were added together, as clients see it."""
    return FileBatchObject(
        id=batch.id,
        created_at=batch.created_at,
        vector_store_id=batch.store_id,
        status=_batch_status(batch),
        file_counts=_counts(batch.counts),
    )


def _batch_status(batch: FileBatchRecord) -> FileStatus:
    if batch.is_cancelled:
        return "cancelled"
    if batch.counts.in_progress:
        return "in_progress"
    # One good file is enough: `file_counts` says what became of the others. An empty batch, whose files are gone, is complete.
    return "failed" if batch.counts.failed and batch.counts.failed == batch.counts.total else "completed"


def _counts(counts: FileCounts) -> FileCountsObject:
    return FileCountsObject(
        in_progress=counts.in_progress,
        completed=counts.completed,
        failed=counts.failed,
        cancelled=counts.cancelled,
        total=counts.total,
    )


def first_files(request: CreateVectorStoreRequest) -> list[NewFile]:
    """
    The files that a new store begins with.

    Raises:
        ClientError: the chunking strategy is wrong.
    """
    check_chunking(request.chunking_strategy, "chunking_strategy")
    return _alike(value_or(request.file_ids, []), {}, request.chunking_strategy)


def new_file(request: AddFileRequest, path: str = "") -> NewFile:
    """
    A file to be added; `path` is that of the request within a larger one, with a dot.

    Raises:
        ClientError: its chunking strategy is wrong.
    """
    check_chunking(request.chunking_strategy, f"{path}chunking_strategy")
    return _new_file(request.file_id, f"{path}file_id", value_or(request.attributes, {}), request.chunking_strategy)


def batch_files(request: CreateFileBatchRequest) -> list[NewFile]:
    """
    The files of a batch.

    Raises:
        ClientError: there are none, or they are given in both ways.
    """
    if is_set(request.files) and is_set(request.file_ids):
        raise ClientError("'file_ids' and 'files' can't be used together.", code="invalid_value", param="files")
    # Vector stores, "Create vector store file batch": with `files`, the batch's own attributes and chunking strategy are ignored.
    files = [new_file(file, f"files[{index}].") for index, file in enumerate(value_or(request.files, []))]
    if not files:
        check_chunking(request.chunking_strategy, "chunking_strategy")
        files = _alike(value_or(request.file_ids, []), value_or(request.attributes, {}), request.chunking_strategy)
    if not files:
        raise missing_parameter("file_ids")
    return files


def _alike(file_ids: Sequence[str], attributes: Attributes, strategy: Maybe[ChunkingStrategy]) -> list[NewFile]:
    return [_new_file(file_id, f"file_ids[{index}]", attributes, strategy) for index, file_id in enumerate(file_ids)]


def _new_file(file_id: str, param: str, attributes: Attributes, strategy: Maybe[ChunkingStrategy]) -> NewFile:
    sizes = strategy.static if is_set(strategy) and isinstance(strategy, StaticChunking) else None
    return NewFile(
        file_id=file_id,
        param=param,
        attributes=msgspec.json.encode(attributes),
        max_chunk_tokens=AUTO_CHUNK_TOKENS if sizes is None else sizes.max_chunk_size_tokens,
        overlap_tokens=AUTO_OVERLAP_TOKENS if sizes is None else sizes.chunk_overlap_tokens,
    )
