"""
Recorded sessions over HTTP: list, show, read files, download as zip, delete.

A key with the scope `sessions` sees its tenant's sessions. With the scope `admin` as well, it sees those of all
tenants.
"""

import re
import zipfile
from collections.abc import AsyncIterator, Sequence
from typing import IO, cast

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from antiphon.errors import ClientError
from antiphon.records import SessionRecord
from antiphon.runtime.recording.events import IMAGE_SUFFIXES
from antiphon.runtime.recording.library import RecordingLibrary
from antiphon.runtime.service import Service
from antiphon.server.http.auth import EndpointFunction, GuardedRoute, guarded_routes, request_caller
from antiphon.server.http.errors import error_response, json_response
from antiphon.server.http.operation import Operation
from antiphon.server.http.paging import end_ids, page_limit, page_order, page_parameters
from antiphon.server.http.streaming import ContentResponse, begin_reading
from antiphon.stores.blobs import Blob
from antiphon.wire.codec.types import encode
from antiphon.wire.http.recordings import RecordedSession, RecordedSessionList, SessionDeleted, SessionFile

PATH = "/v1/sessions"

EVENTS_TYPE = "application/x-ndjson"
_IMAGE_TYPES = {suffix: f"image/{form}" for form, suffix in IMAGE_SUFFIXES.items()}
_MEDIA_TYPES = {"json": "application/json", "jsonl": EVENTS_TYPE, "wav": "audio/wav", **_IMAGE_TYPES}

_PRIVATE_HEADERS = {"x-content-type-options": "nosniff", "cache-control": "private, no-store"}
"""Recordings are private: no cache keeps them, and no browser guesses another type for them."""


_NOT_FOUND = {404: "There is no such session, or no such file of it."}
_ERRORS = _NOT_FOUND | {409: "The session has not ended.", 503: "The store of recordings does not answer."}
_FILE_ERRORS = _ERRORS | {416: "The file has none of the bytes that `range` asks for."}

_LIST = Operation(
    "listSessions",
    "Sessions",
    "List the recorded sessions",
    RecordedSessionList,
    errors={400: "A parameter is invalid, or `after` is not the id of one of the sessions; `param` says which."},
    query=page_parameters("session"),
)
_SHOW = Operation("getSession", "Sessions", "Retrieve a recorded session", RecordedSession, errors=_NOT_FOUND | {503: _ERRORS[503]})
_DELETE = Operation("deleteSession", "Sessions", "Delete a recording", SessionDeleted, errors=_ERRORS)
_EVENTS = Operation("getSessionEvents", "Sessions", "Download the events of a session", errors=_FILE_ERRORS, media_types=(EVENTS_TYPE,))
_FILE = Operation(
    "getSessionFile",
    "Sessions",
    "Download one of its files, such as `in.wav`",
    errors=_FILE_ERRORS,
    description="With `range`, a part of it, with the status 206.",
    media_types=("audio/*",),
)
_DOWNLOAD = Operation(
    "downloadSession", "Sessions", "Download all of its files in a zip file", errors=_ERRORS, media_types=("application/zip",)
)


def routes(service: Service) -> list[GuardedRoute]:
    """All routes under `/v1/sessions`."""
    recordings = service.recordings
    return guarded_routes(
        service,
        [
            ("GET", PATH, _list(recordings), "sessions", _LIST),
            ("GET", f"{PATH}/{{id}}", _show(recordings), "sessions", _SHOW),
            ("DELETE", f"{PATH}/{{id}}", _delete(recordings), "sessions", _DELETE),
            ("GET", f"{PATH}/{{id}}/events", _events(recordings), "sessions", _EVENTS),
            ("GET", f"{PATH}/{{id}}/files/{{name:path}}", _file(recordings), "sessions", _FILE),
            ("GET", f"{PATH}/{{id}}/download", _download(recordings), "sessions", _DOWNLOAD),
        ],
    )


def _visible_tenant(request: Request) -> str | None:
    """The tenant whose sessions the caller may see; None for all tenants."""
    caller = request_caller(request.scope)
    return None if caller.key is not None and "admin" in caller.key.scopes else caller.tenant


def _list(recordings: RecordingLibrary) -> EndpointFunction:
    async def list_sessions(request: Request) -> Response:
        query = request.query_params
        page = await recordings.page(_visible_tenant(request), after=query.get("after"), limit=page_limit(query), order=page_order(query))
        sessions = [_to_wire(session) for session in page.sessions]
        first_id, last_id = end_ids(sessions)
        return json_response(encode(RecordedSessionList(data=sessions, first_id=first_id, last_id=last_id, has_more=page.has_more)))

    return list_sessions


def _show(recordings: RecordingLibrary) -> EndpointFunction:
    async def show(request: Request) -> Response:
        session = await _find_session(recordings, request)
        # A live session has no files to list yet: `files` would refuse.
        files = () if session.state == "live" else await recordings.files(session)
        return json_response(encode(_to_wire(session, files)))

    return show


def _delete(recordings: RecordingLibrary) -> EndpointFunction:
    async def delete(request: Request) -> Response:
        await recordings.delete(_visible_tenant(request), request.path_params["id"])
        return json_response(encode(SessionDeleted(id=request.path_params["id"])))

    return delete


def _events(recordings: RecordingLibrary) -> EndpointFunction:
    async def events(request: Request) -> Response:
        session = await _find_session(recordings, request)
        return await _file_response(recordings, session, await recordings.events(session), request)

    return events


def _file(recordings: RecordingLibrary) -> EndpointFunction:
    async def file(request: Request) -> Response:
        session = await _find_session(recordings, request)
        return await _file_response(recordings, session, await recordings.file(session, request.path_params["name"]), request)

    return file


def _download(recordings: RecordingLibrary) -> EndpointFunction:
    async def download(request: Request) -> Response:
        session = await _find_session(recordings, request)
        files = await recordings.files(session)
        headers = _PRIVATE_HEADERS | {"content-disposition": f'attachment; filename="{session.id}.zip"'}
        chunks = await begin_reading(_zip_stream(recordings, session, files))
        return ContentResponse(chunks, headers=headers, media_type="application/zip")

    return download


async def _find_session(recordings: RecordingLibrary, request: Request) -> SessionRecord:
    return await recordings.find(_visible_tenant(request), request.path_params["id"])


def _to_wire(session: SessionRecord, files: Sequence[Blob] = ()) -> RecordedSession:
    return RecordedSession(
        id=session.id,
        protocol=session.protocol,
        mode=session.mode,
        model=session.model,
        status=session.state,
        created_at=session.created_at,
        ended_at=session.ended_at,
        duration_ms=session.duration_ms,
        reason=session.reason,
        bytes=session.bytes,
        truncated=session.truncated,
        tenant=session.tenant,
        key_id=session.key_id,
        files=[SessionFile(name=file.name, bytes=file.bytes) for file in files] or UNSET,
    )


# Files


async def _file_response(recordings: RecordingLibrary, session: SessionRecord, file: Blob, request: Request) -> Response:
    """The file, or the byte range that the request asks for."""
    span = parse_range(request.headers.get("range"), file.bytes)
    headers = _PRIVATE_HEADERS | {"accept-ranges": "bytes"}
    if span is None:
        start, end, status = 0, file.bytes, 200
    elif not span:
        # RFC 9110, 15.5.17: a 416 says how long the file is, in a header that a raised error would lack.
        reply = error_response(ClientError(f"The file has {file.bytes} bytes, and none of those asked for.", status=416))
        reply.headers["content-range"] = f"bytes */{file.bytes}"
        return reply
    else:
        start, end, status = span.start, span.stop, 206
        headers["content-range"] = f"bytes {start}-{end - 1}/{file.bytes}"
    headers["content-length"] = str(end - start)
    media_type = _MEDIA_TYPES.get(file.name.rpartition(".")[2], "application/octet-stream")
    chunks = await begin_reading(recordings.chunks(session, file, start, end))
    return ContentResponse(chunks, status, headers, media_type)


def parse_range(header: str | None, size_bytes: int) -> range | None:
    """
    The byte range of a `Range` header.

    Returns:
        An empty range where the file has none of the bytes; None to send the whole file, also for forms that we don't
        support.

    Source: RFC 9110 section 14.2, by which a server may ignore the header.
    """
    # 15 digits at most: `int` raises an error for thousands of them.
    match = re.fullmatch(r"bytes=(\d{0,15})-(\d{0,15})", header or "", re.ASCII)
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:  # a suffix range: the last bytes
        return range(max(0, size_bytes - int(last)), size_bytes)
    # RFC 9110, 14.1.1: such a range is invalid.
    if last and int(last) < int(first):
        return None
    return range(int(first), min(size_bytes, int(last) + 1 if last else size_bytes))


class _ZipBuffer:
    """Collects the zip writer's output until it is sent. It can't seek, so zipfile writes sizes and checksums behind the files."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def write(self, chunk: bytes) -> int:
        self._pending += chunk
        return len(chunk)

    def flush(self) -> None:
        """Nothing to do; zipfile calls it."""

    def take(self) -> bytes:
        """Everything written since the last call."""
        pending, self._pending = bytes(self._pending), bytearray()
        return pending


async def _zip_stream(recordings: RecordingLibrary, session: SessionRecord, files: Sequence[Blob]) -> AsyncIterator[bytes]:
    """A zip file, written while it is sent. Nothing is compressed: that would block the event loop."""
    buffer = _ZipBuffer()
    with zipfile.ZipFile(cast(IO[bytes], buffer), "w", zipfile.ZIP_STORED) as archive:
        for file in files:
            # Zip64 from the start: zipfile is told no size, and would fail at 2 GiB.
            with archive.open(zipfile.ZipInfo(f"{session.id}/{file.name}"), "w", force_zip64=True) as entry:
                async for chunk in recordings.chunks(session, file):
                    entry.write(chunk)
                    yield buffer.take()
    yield buffer.take()
