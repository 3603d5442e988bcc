"""Forms with a file: `multipart/form-data`, within limits, read by python-multipart through Starlette."""

import asyncio
from collections.abc import AsyncGenerator
from typing import NamedTuple

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from antiphon.errors import ClientMistake, missing_parameter, shown
from antiphon.server.http.body import whole_body

FILE_LIMIT_BYTES = 25 << 20
"""As upstream."""

FORM_LIMIT_BYTES = FILE_LIMIT_BYTES + (256 << 10)
FIELD_LIMIT_BYTES = 64 << 10
FIELDS_MOST = 128

_PIECE_BYTES = 256 << 10
"""Of a form that is read before the loop has its turn."""


class Form(NamedTuple):
    """
    A form.

    Attributes:
        fields: names and values, in their order.
        file: what came as `file`.
    """

    fields: list[tuple[str, str]]
    file: bytes


class _InMemory(MultiPartParser):
    spool_max_size = 2 * FILE_LIMIT_BYTES  # never reached: what is uploaded is read once, and leaves no trace on a disk


async def form_of(request: Request) -> Form:
    """
    The form that is a request's body.

    Raises:
        ClientMistake: it is none, has no file, or is too large.
    """
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        raise ClientMistake(
            f"Unsupported content type: '{shown(content_type)}'. This API method only accepts 'multipart/form-data' requests.",
            code="unsupported_content_type",
        )
    body = await whole_body(request, FORM_LIMIT_BYTES)
    parser = _InMemory(request.headers, _pieces(body), max_files=1, max_fields=FIELDS_MOST, max_part_size=FIELD_LIMIT_BYTES)
    try:
        parts = await parser.parse()
    except MultiPartException as error:
        raise ClientMistake(f"We could not parse the multipart form of your request: {error.message}") from None
    fields = [(name, value) for name, value in parts.multi_items() if isinstance(value, str)]
    upload = parts.get("file")
    file = await upload.read() if isinstance(upload, UploadFile) else None
    await parts.close()
    if file is None:
        raise missing_parameter("file")
    if len(file) > FILE_LIMIT_BYTES:
        raise ClientMistake(
            f"Maximum content size limit ({FILE_LIMIT_BYTES}) exceeded ({len(file)} bytes read).",
            status=413,
            code="request_too_large",
            param="file",
        )
    return Form(fields, file)


async def _pieces(body: bytes) -> AsyncGenerator[bytes, None]:
    for at in range(0, len(body), _PIECE_BYTES):
        yield body[at : at + _PIECE_BYTES]
        await asyncio.sleep(0)
