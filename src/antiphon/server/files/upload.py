"""`POST /v1/files`: an upload, stored while it arrives."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import PurePosixPath

from msgspec import UNSET
from python_multipart.multipart import parse_options_header
from starlette.requests import Request
from starlette.responses import Response

from antiphon.errors import ClientError, file_too_large, missing_parameter, shorten
from antiphon.records import FileRecord
from antiphon.runtime.access.body_budget import BodyLease
from antiphon.runtime.files.library import UPLOAD_TIMEOUT_S, Upload
from antiphon.runtime.service import Service
from antiphon.server.files.multipart import FormEvent, MultipartScanner, PartEnd, PartHead, malformed_form
from antiphon.server.http.auth import EndpointFunction, request_caller
from antiphon.server.http.body import BODY_LEASE_SCOPE_KEY, check_content_encoding
from antiphon.server.http.errors import json_response
from antiphon.wire.codec.types import encode
from antiphon.wire.http.files import FileObject, read_file_options

FIELD_LIMIT_BYTES = 4 << 10
"""The most bytes of a field that is no file."""

FORM_OVERHEAD_BYTES = 256 << 10
"""How much larger than its file a form may be."""

MAX_FILENAME_CHARACTERS = 255
_UNSAFE_CHARACTERS = re.compile(r"[\x00-\x1f\x7f\u0080-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that change the direction of what is shown."""


def create_file(service: Service) -> EndpointFunction:
    """The endpoint of `POST /v1/files`."""

    async def create(request: Request) -> Response:
        service.live_sessions.check_admission()
        lease: BodyLease = request.scope[BODY_LEASE_SCOPE_KEY]
        expected_bytes = int(request.headers.get("content-length", 0))
        try:
            async with (
                asyncio.timeout(UPLOAD_TIMEOUT_S),
                service.files.upload(request_caller(request.scope), lease, expected_bytes) as upload,
                contextlib.aclosing(form_events(request, service.files.upload_limit_bytes, "files.upload_mib")) as events,
            ):
                record = await _receive(events, upload)
        except TimeoutError:
            raise ClientError("The upload took too long.", status=408, code="request_timeout") from None
        return json_response(encode(to_wire(record)))

    return create


def to_wire(record: FileRecord) -> FileObject:
    """A file as clients see it."""
    return FileObject(
        id=record.id,
        bytes=record.bytes,
        created_at=record.created_at,
        expires_at=record.expires_at,
        filename=record.filename,
        purpose=record.purpose,
    )


async def _receive(events: AsyncIterator[FormEvent], upload: Upload) -> FileRecord:
    """Read the form, and store its file."""
    fields: list[tuple[str, str]] = []
    filename = ""
    async for event in events:
        assert isinstance(event, PartHead)  # a part is read to its end below
        if event.filename is None:
            fields.append((event.name, await read_field(event.name, events)))
            continue
        if event.name != "file" or upload.size_bytes is not None:
            raise ClientError(f"There must be one file, named 'file'; got another one named '{shorten(event.name)}'.", param="file")
        # What came before the file is checked before it, so that a wrong field doesn't cost an upload.
        read_file_options(fields, is_complete=False)
        filename = safe_filename(event.filename)
        await upload.write(part_content(events))
    if upload.size_bytes is None:
        raise missing_parameter("file")
    options = read_file_options(fields, is_complete=True)
    if not upload.size_bytes:
        raise ClientError("The file is empty.", code="invalid_value", param="file")
    expires_in_s = None if options.expires_after is UNSET else options.expires_after.seconds
    assert options.purpose is not UNSET
    return await upload.finish(filename, options.purpose, expires_in_s)


async def form_events(request: Request, file_limit_bytes: int, setting: str) -> AsyncGenerator[FormEvent]:
    """
    The request's form as it arrives.

    Args:
        file_limit_bytes: of its file; `setting` is the operator's name for that limit.

    Raises:
        ClientError: it is no form, or larger than the limit of a file allows.
    """
    check_content_encoding(request.headers.get("content-encoding"))
    limit_bytes = file_limit_bytes + FORM_OVERHEAD_BYTES
    if int(request.headers.get("content-length", 0)) > limit_bytes:
        raise file_too_large("file", file_limit_bytes, setting)
    scanner = MultipartScanner(_boundary(request.headers.get("content-type", "")))
    received_bytes = 0
    async for chunk in request.stream():
        received_bytes += len(chunk)
        # A chunked body has no declared length (RFC 9112, 7.1).
        if received_bytes > limit_bytes:
            raise file_too_large("file", file_limit_bytes, setting)
        for event in scanner.feed(chunk):
            yield event
    scanner.end()


def _boundary(content_type: str) -> bytes:
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        raise ClientError(
            f"Unsupported content type: '{shorten(content_type)}'. This API method only accepts 'multipart/form-data' requests.",
            code="unsupported_content_type",
        )
    boundary = options.get(b"boundary", b"")
    # RFC 2046, 5.1.1, allows 70 characters; some clients take more.
    if not 0 < len(boundary) <= 200:
        raise malformed_form("The content type has no boundary")
    return boundary


async def part_content(events: AsyncIterator[FormEvent]) -> AsyncIterator[bytes]:
    """The content of the part that has just begun."""
    async for event in events:
        if isinstance(event, PartEnd):
            return
        assert isinstance(event, bytes)
        yield event


async def read_field(name: str, events: AsyncIterator[FormEvent]) -> str:
    """
    The text of the part that has just begun, which is no file.

    Raises:
        ClientError: it is too long.
    """
    content = b""
    async for chunk in part_content(events):
        content += chunk
        if len(content) > FIELD_LIMIT_BYTES:
            raise malformed_form(f"The field '{shorten(name)}' is larger than {FIELD_LIMIT_BYTES} bytes")
    return content.decode("utf-8", "replace")


def safe_filename(name: str) -> str:
    """A file's name without folders and control characters, at most `MAX_FILENAME_CHARACTERS` long."""
    last = PurePosixPath(_UNSAFE_CHARACTERS.sub("", name).replace("\\", "/")).name.strip()
    stem, dot, extension = last.rpartition(".")
    if len(last) > MAX_FILENAME_CHARACTERS and dot and len(extension) < 20:
        return f"{stem[: MAX_FILENAME_CHARACTERS - len(extension) - 1]}.{extension}"
    return "file" if last in ("", ".", "..") else last[:MAX_FILENAME_CHARACTERS]
