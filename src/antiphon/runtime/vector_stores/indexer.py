"""
Indexes a file: reads it, cuts it into parts, embeds them, and stores part by part.

A part is a few pages. A server that takes over a file that another has left goes on after the last part that is stored.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

import structlog

from antiphon.config.tools.vector_stores import VectorStoreSettings
from antiphon.errors import ApiError, ClientError
from antiphon.records import IndexedFileRecord, IndexingError, IndexingJob, IndexPart
from antiphon.runtime.files.library import FileLibrary
from antiphon.runtime.vector_stores.part_text import StoredText, encode_text
from antiphon.runtime.vector_stores.part_vectors import encode_vectors
from antiphon.stores.base import Store
from antiphon.subprocesses import Backoff
from antiphon.tools.file_search.base import QueryEmbedder, UnreadableFileError
from antiphon.tools.file_search.chunking import Chunking, chunk
from antiphon.tools.file_search.index import make_entry

PART_CHUNKS = 16
"""The chunks of a part: 12,800 tokens by default, some seconds of work, which is the most that is lost."""

RETRIES = Backoff((1.0, 2.0, 5.0, 10.0, 30.0), jitter=0.2)
MAX_RETRIES = 20
"""How often a file is tried again while the store of files, or the embedding model, is not there: for eight minutes."""

_log = structlog.get_logger(__name__)


class FileParser(Protocol):
    """Reads files, as `tools.file_search.parsing.Parsers` does."""

    async def parse(self, content: bytes, filename: str, /) -> str:
        """
        The text of a file.

        Raises:
            UnreadableFileError: it has none that can be read.
        """


class LostFileError(Exception):
    """The claim on the file is lost: it was removed or cancelled, or another server has it."""


class FileIndexer:
    """
    Args:
        files: the uploaded files.
        embedding: the name of the model that `embedder` has.
        retries: pauses before another try after an error that may pass.
    """

    def __init__(
        self,
        store: Store,
        files: FileLibrary,
        parser: FileParser,
        embedder: QueryEmbedder,
        embedding: str,
        settings: VectorStoreSettings,
        retries: Backoff = RETRIES,
    ) -> None:
        self._retries = retries
        self._store = store
        self._files = files
        self._parser = parser
        self._embedder = embedder
        self._embedding = embedding
        self._settings = settings

    async def index(self, job: IndexingJob) -> None:
        """Index a file, and end it in the store: completed, or failed with a reason for the client."""
        tries, error = 0, None
        while True:
            try:
                # With an error, only the end could not be stored: the file is not read a second time.
                if error is None:
                    error = await self._try(job, is_last=tries >= MAX_RETRIES)
                await self._store.indexes.finish(job.file.number, "completed" if error is None else "failed", error)
            except LostFileError:
                return
            except ApiError as failure:  # Of the store, or one that may pass.
                _log.warning("indexing_delayed", file_id=job.file.file_id, message=failure.operator_message)
                await asyncio.sleep(self._retries.delay_s(tries))
                tries += 1
            else:
                return

    async def _try(self, job: IndexingJob, *, is_last: bool) -> IndexingError | None:
        """
        Index a file; returns why it can't be, or None.

        Raises:
            ApiError: it is not possible now, and may be later.
            LostFileError: it was taken away.
        """
        try:
            await self._store_parts(job)
        except UnreadableFileError as error:
            return IndexingError(error.code, error.message)
        except ApiError as error:
            if error.status == 503 and not is_last:
                raise
            _log.error("indexing_failed", file_id=job.file.file_id, message=error.operator_message)
        except LostFileError:
            raise
        except Exception:  # A defect met by one file fails that file alone.
            _log.exception("Indexing a file failed.", file_id=job.file.file_id)
        else:
            return None
        return IndexingError("server_error", "The server could not index this file. Please try again later.")

    async def _store_parts(self, job: IndexingJob) -> None:
        file = job.file
        await self._check_quota(job.tenant)
        text = await self._read(job)
        chunking = Chunking(max_tokens=file.max_chunk_tokens, overlap_tokens=file.overlap_tokens)
        spans = await asyncio.to_thread(cut_parts, text, chunking)
        if not spans:
            raise UnreadableFileError("invalid_file", "The file has no text.")
        first = await self._store.indexes.begin_indexing(file.number, self._embedding)
        if first is None:
            raise LostFileError
        for position in range(first, len(spans)):
            # For each part, as several files of the tenant are indexed at once.
            await self._check_quota(job.tenant)
            begin, end = spans[position]
            part = await self._make_part(file, position, begin, text[begin:end], chunking)
            if not await self._store.indexes.add_part(file.number, part):
                raise LostFileError

    async def _make_part(self, file: IndexedFileRecord, position: int, begin: int, text: str, chunking: Chunking) -> IndexPart:
        entry = await make_entry(file.file_id, text, chunking, self._embedder)
        chunks = await asyncio.to_thread(chunk, text, chunking)
        part_text = StoredText(begin, text, [(each.begin, each.end) for each in chunks])
        assert part_text.chunks == [*entry.chunks], "the same text is cut the same way"
        return IndexPart(position, len(chunks), encode_text(part_text), encode_vectors(entry))

    async def _read(self, job: IndexingJob) -> str:
        settings, file_id = self._settings, job.file.file_id
        try:
            record = await self._files.find(job.tenant, file_id)
        except ClientError:
            raise UnreadableFileError("invalid_file", "The file was deleted before it was indexed.") from None
        if record.bytes > settings.file_mib << 20:
            limit = f"the limit is {settings.file_mib} MiB (`tools.vector_stores.file_mib`)"
            raise UnreadableFileError("invalid_file", f"The file is too large to be indexed: {limit}.")
        content = b"".join([each async for each in self._files.chunks(record)])
        text = await self._parser.parse(content, record.filename)
        if len(text) > settings.file_chars:
            limit = f"the limit is {settings.file_chars:,} characters (`tools.vector_stores.file_chars`)"
            raise UnreadableFileError("invalid_file", f"The text of the file is too long to be indexed: {limit}.")
        return text

    async def _check_quota(self, tenant: str) -> None:
        limit_gb = self._settings.tenant_gb
        if limit_gb and (await self._store.vector_stores.usage(tenant)).bytes >= limit_gb * 1e9:
            limit = f"the limit is {limit_gb:g} GB (`tools.vector_stores.tenant_gb`)"
            raise UnreadableFileError("invalid_file", f"Your vector stores are too large: {limit}. Delete some of them.")


def cut_parts(text: str, chunking: Chunking) -> Sequence[tuple[int, int]]:
    """The parts of a text: the first character of each, and the one after its last; they overlap as their chunks do."""
    chunks = chunk(text, chunking)
    groups = [chunks[start : start + PART_CHUNKS] for start in range(0, len(chunks), PART_CHUNKS)]
    return [(group[0].begin, group[-1].end) for group in groups]
