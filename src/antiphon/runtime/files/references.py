"""The files that a request refers to: found, and read before it is translated for its engine."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from antiphon.engine_api.documents import MAX_DOCUMENT_BYTES, FileContent, new_document
from antiphon.engine_api.engine import Fetch
from antiphon.errors import ClientError, file_too_large, wrong_id_prefix
from antiphon.offload import offload
from antiphon.protocols.responses.compaction import items_beside_summary
from antiphon.records import FileRecord
from antiphon.runtime.access.body_budget import BodyLease
from antiphon.runtime.files.library import ID_PREFIX, FileLibrary
from antiphon.wire.responses import items
from antiphon.wire.responses.hosted_calls import ComputerCallOutput
from antiphon.wire.responses.parts import ComputerScreenshot, InputFile, InputImage

MAX_FILES = 500
"""The most files in one request, with those of the conversation before it."""

MAX_TOTAL_BYTES = 64 << 20
"""The most bytes of all files together, each counted as often as it is named."""


MAX_FETCHES = 32
FETCH_TIMEOUT_S = 30.0


class FileReference(NamedTuple):
    """A file's id or URL, and where it stands in the request."""

    name: str
    path: str

    @property
    def is_url(self) -> bool:
        """Whether `name` is a URL and not an id; the field that it stands in tells."""
        return self.path.endswith((".file_url", ".source.url"))


def file_references(conversation: Sequence[items.Item], path: str, start: int = 0) -> Iterator[FileReference]:
    """The files that items from `start` on name in their content; `path` is that of the items."""
    for index, item in enumerate(conversation[start:], start):
        match item:
            case items.Message(content=list(parts)):
                field = "content"
            case items.FunctionCallOutput(output=list(parts)) | items.CustomToolCallOutput(output=list(parts)):
                field = "output"
            case ComputerCallOutput(output=ComputerScreenshot(file_id=str(file_id))) if file_id:
                yield FileReference(file_id, f"{path}[{index}].output.file_id")
                continue
            case _:
                continue
        for position, part in enumerate(parts):
            if isinstance(part, InputImage | InputFile) and part.file_id:
                yield FileReference(part.file_id, f"{path}[{index}].{field}[{position}].file_id")
            elif isinstance(part, InputFile) and part.file_url and not part.file_data:
                yield FileReference(part.file_url, f"{path}[{index}].{field}[{position}].file_url")


async def check_references(files: FileLibrary, tenant: str, new_items: Sequence[items.Item], path: str) -> None:
    """
    Check that the files exist that items name; `path` is that of the items.

    Raises:
        ClientError: one doesn't, or there are more than `MAX_FILES`.
    """
    await _find_all(files, tenant, file_references(new_items, path), path)


async def load_documents(
    files: FileLibrary,
    fetch: Fetch | None,
    tenant: str,
    given_items: Sequence[tuple[str, Sequence[items.Item]]],
    previous_items: Sequence[items.Item],
    decrypted_texts: Mapping[str, str],
    lease: BodyLease,
) -> Mapping[str, FileContent]:
    """
    The content of the files that a conversation names from its newest compaction on, by file id or URL.

    Args:
        fetch: fetches documents by URL; None where the engine does that.
        given_items: those in the request itself, by their path. A file of earlier items may be gone.
        decrypted_texts: of the compactions, by their encrypted content; items that they kept are earlier ones.
        lease: counts the memory that the files take.

    Raises:
        ClientError: a file in the request doesn't exist, or can't be fetched; or the files are too many or too large.
        ServerError: a file can't be read now.
    """
    references: list[FileReference] = []
    compactions: list[items.Item] = []
    for path, conversation in given_items:
        start = items.newest_compaction(conversation)
        references += file_references(conversation, path, start)
        compactions += conversation[start : start + 1]
    is_compacted = any(isinstance(item, items.Compaction) for _, conversation in given_items for item in conversation)
    # A compaction in the request stands for all that came before it, so no earlier file is read.
    start = len(previous_items) if is_compacted else items.newest_compaction(previous_items)
    others = await _items_beside_summaries([*compactions, *previous_items[start : start + 1]], decrypted_texts)
    previous = [*file_references(previous_items, "input", start), *file_references(others, "input")]
    return await load_references(files, fetch, tenant, references, previous, lease, "input")


async def load_references(
    files: FileLibrary,
    fetch: Fetch | None,
    tenant: str,
    references: Sequence[FileReference],
    previous: Sequence[FileReference],
    lease: BodyLease,
    path: str,
) -> Mapping[str, FileContent]:
    """
    The content of the files that references name, by file id or URL; other arguments and the errors are those of
    `load_documents`.

    Args:
        references: those in the request itself.
        previous: those of earlier items, which may be gone.
        path: of what names them, for errors that are about all of them.
    """
    if not references and not previous:
        return {}
    records = await _find_all(files, tenant, references, path)
    # An error is only for what the client can correct: it can't take an item out of a chain (docs/decisions/0029).
    for file_id in {reference.name for reference in previous if not reference.is_url} - records.keys():
        try:
            records[file_id] = await files.find(tenant, file_id)
        except ClientError:
            continue  # Deleted since, or expired.
    counts = Counter(reference.name for reference in (*references, *previous))
    _check_size(records, counts, {reference.name: reference.path for reference in references}, path)
    documents = {file_id: await _read(files, record, counts[file_id], lease) for file_id, record in records.items()}
    if fetch is not None:
        urls = dict.fromkeys(reference.name for reference in (*references, *previous) if reference.is_url)
        total_bytes = sum(record.bytes * counts[file_id] for file_id, record in records.items())
        # Of an earlier item the request has no path.
        unknown_path = "file_url" if path == "input" else "url"
        paths = dict.fromkeys(urls, unknown_path) | {reference.name: reference.path for reference in references if reference.is_url}
        documents |= await _fetch_all(fetch, paths, counts, total_bytes, lease, path)
    return documents


async def load_files(
    files: FileLibrary, tenant: str, references: Sequence[FileReference], lease: BodyLease, path: str
) -> Mapping[str, FileContent]:
    """
    The content of uploaded files, by id; `path` is that of what names them.

    Raises:
        ClientError: one doesn't exist, or they are too many or too large.
        ServerError: one can't be read now.
    """
    records = await _find_all(files, tenant, references, path)
    counts = Counter(reference.name for reference in references)
    _check_size(records, counts, {reference.name: reference.path for reference in references}, path)
    return {file_id: await _read(files, record, counts[file_id], lease) for file_id, record in records.items()}


async def _items_beside_summaries(compactions: Sequence[items.Item], texts: Mapping[str, str]) -> Sequence[items.Item]:
    size_bytes = sum(len(texts.get(item.encrypted_content, "")) for item in compactions if isinstance(item, items.Compaction))
    return await offload(size_bytes, lambda: [other for item in compactions for other in items_beside_summary(item, texts)])


async def _fetch_all(
    fetch: Fetch, paths: Mapping[str, str], counts: Mapping[str, int], total_bytes: int, lease: BodyLease, path: str
) -> Mapping[str, FileContent]:
    """The documents at URLs with these paths, each of which is named so many times; `total_bytes` is what the other files come to."""
    if len(paths) > MAX_FETCHES:
        raise ClientError(f"The input names {len(paths)} URLs; at most {MAX_FETCHES} are fetched.", code="invalid_url", param=path)
    documents: dict[str, FileContent] = {}
    try:
        # One limit for all, as they are fetched one after another while the client waits.
        async with asyncio.timeout(FETCH_TIMEOUT_S):
            for url, param in paths.items():
                count = counts[url]
                content, content_type = await fetch(url, param, ("application/", "text/"))
                total_bytes += count * len(content)
                if total_bytes > MAX_TOTAL_BYTES:
                    raise _too_large(path)
                lease.extend(lease.size_bytes + count * 4 * len(content) // 3)
                filename = unquote(PurePosixPath(urlsplit(url).path).name)
                declared_type = content_type.partition(";")[0].strip().lower()
                documents[url] = await offload(len(content), new_document, content, filename or None, declared_type)
    except TimeoutError:
        raise ClientError(
            f"Failed to download the input's URLs: it took longer than {FETCH_TIMEOUT_S:g} seconds.", code="invalid_url", param=path
        ) from None
    return documents


async def _find_all(files: FileLibrary, tenant: str, references: Iterable[FileReference], path: str) -> dict[str, FileRecord]:
    records: dict[str, FileRecord] = {}
    for reference in references:
        file_id, param = reference
        if reference.is_url or file_id in records:
            continue
        if not file_id.startswith(ID_PREFIX):
            raise wrong_id_prefix(param, file_id, ID_PREFIX)
        if len(records) == MAX_FILES:
            raise ClientError(f"There are too many files: the limit is {MAX_FILES}.", code="too_many_files", param=path)
        records[file_id] = await files.find(tenant, file_id, param)
    return records


def _check_size(records: Mapping[str, FileRecord], counts: Mapping[str, int], paths: Mapping[str, str], path: str = "input") -> None:
    """`counts` says how many times each is named: the engine gets it as often."""
    for file_id, record in records.items():
        if record.bytes > MAX_DOCUMENT_BYTES:
            raise file_too_large(paths.get(file_id, path), MAX_DOCUMENT_BYTES)
    if len(records) > MAX_FILES or sum(record.bytes * counts[file_id] for file_id, record in records.items()) > MAX_TOTAL_BYTES:
        raise _too_large(path)


def _too_large(path: str = "input") -> ClientError:
    return ClientError(
        f"The files of the conversation are too large together: the limit is {MAX_TOTAL_BYTES >> 20} MiB in {MAX_FILES} files, each "
        "counted as often as it is named.",
        code="file_too_large",
        param=path,
    )


async def _read(files: FileLibrary, record: FileRecord, count: int, lease: BodyLease) -> FileContent:
    lease.extend(lease.size_bytes + count * 4 * record.bytes // 3)  # In base64, wherever it is named.
    content = b"".join([chunk async for chunk in files.chunks(record)])
    return await offload(len(content), new_document, content, record.filename)
