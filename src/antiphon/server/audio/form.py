"""Forms with a file: `multipart/form-data`, within limits, read by python-multipart through Starlette."""

import asyncio
from collections.abc import AsyncGenerator
from typing import NamedTuple

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from antiphon.errors import ClientError, missing_parameter, shorten
from antiphon.server.http.body import read_body

FILE_LIMIT_BYTES = 25 << 20
"""The same as OpenAI's."""

FORM_LIMIT_BYTES = FILE_LIMIT_BYTES + (256 << 10)
"""With the fields and the boundaries around the file."""

FIELD_LIMIT_BYTES = 64 << 10
MAX_FIELDS = 128

_CHUNK_BYTES = 256 << 10
"""How much of a form is parsed before other tasks get a turn."""


class UploadForm(NamedTuple):
    """
    A parsed form.

    Attributes:
        fields: names and values, in order.
        file: content of the part named `file`.
    """

    fields: list[tuple[str, str]]
    file: bytes


class _InMemoryParser(MultiPartParser):
    # Never reached: Starlette would write more than this to disk, and recordings stay nowhere but in memory.
    spool_max_size = 2 * FILE_LIMIT_BYTES


async def read_form(request: Request) -> UploadForm:
    """
    The request's body as a form.

    Raises:
        ClientError: it is not a form, is compressed, has no file, or is too large.
    """
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        raise ClientError(
            f"Unsupported content type: '{shorten(content_type)}'. This API method only accepts 'multipart/form-data' requests.",
            code="unsupported_content_type",
        )
    # Only `_chunks` keeps the body, and gives it up when it is parsed: the file is read from the parser as a further copy.
    chunks = _chunks(await read_body(request, FORM_LIMIT_BYTES))
    parser = _InMemoryParser(request.headers, chunks, max_files=1, max_fields=MAX_FIELDS, max_part_size=FIELD_LIMIT_BYTES)
    try:
        parts = await parser.parse()
    except MultiPartException as error:
        raise ClientError(f"We could not parse the multipart form of your request: {error.message}") from None
    fields = [(name, value) for name, value in parts.multi_items() if isinstance(value, str)]
    upload = parts.get("file")
    # A part named `file` without a filename is a field, and its text no file.
    file = await upload.read() if isinstance(upload, UploadFile) else None
    await parts.close()
    if file is None:
        raise missing_parameter("file")
    if len(file) > FILE_LIMIT_BYTES:
        raise ClientError(
            f"Maximum content size limit ({FILE_LIMIT_BYTES}) exceeded ({len(file)} bytes read).",
            status=413,
            code="request_too_large",
            param="file",
        )
    return UploadForm(fields, file)


async def _chunks(body: bytes) -> AsyncGenerator[bytes, None]:
    for offset in range(0, len(body), _CHUNK_BYTES):
        yield body[offset : offset + _CHUNK_BYTES]
        # The parser itself waits for nothing while the file stays in memory.
        await asyncio.sleep(0)
