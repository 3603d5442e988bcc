"""
Recorded sessions over HTTP: list, show, read their files, download all of them, delete.

Whoever has a key of the tenant's with the scope `sessions` reaches them; a key that has the scope `admin` too reaches those of all tenants.
"""

import re
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from antiphon.errors import ClientMistake
from antiphon.records import SessionRecord
from antiphon.runtime.recording.library import Recordings
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, caller_of
from antiphon.server.http.errors import fault_reply, json_reply
from antiphon.server.http.paging import page_limit, page_order
from antiphon.stores.blobs import Blob
from antiphon.wire.codec.types import encode
from antiphon.wire.http.recordings import RecordedSession, RecordedSessionList, SessionDeleted, SessionFile

PATH = "/v1/sessions"

EVENTS_TYPE = "application/x-ndjson"
_TYPES = {"json": "application/json", "jsonl": EVENTS_TYPE, "wav": "audio/wav", "jpg": "image/jpeg"}

_PRIVATE = {"x-content-type-options": "nosniff", "cache-control": "private, no-store"}
"""What people said stays in no cache, and is shown as nothing but what it is."""

Serve = Callable[[Request], Awaitable[Response]]


def routes(service: Service) -> list[Route]:
    """Everything under `/v1/sessions`."""
    recordings = service.recordings
    served: Sequence[tuple[str, str, Serve]] = (
        (PATH, "GET", _list(recordings)),
        (f"{PATH}/{{id}}", "GET", _show(recordings)),
        (f"{PATH}/{{id}}", "DELETE", _delete(recordings)),
        (f"{PATH}/{{id}}/events", "GET", _events(recordings)),
        (f"{PATH}/{{id}}/files/{{name:path}}", "GET", _file(recordings)),
        (f"{PATH}/{{id}}/download", "GET", _download(recordings)),
    )
    return [GuardedRoute(path, serve, service=service, access="sessions", methods=[method]) for path, method, serve in served]


def _reach(request: Request) -> str | None:
    """Whose sessions whoever asks may see; None for everybody's."""
    caller = caller_of(request.scope)
    return None if caller.key is not None and "admin" in caller.key.scopes else caller.tenant


def _list(recordings: Recordings) -> Serve:
    async def list_sessions(request: Request) -> Response:
        query = request.query_params
        page = await recordings.page(_reach(request), after=query.get("after"), limit=page_limit(query), order=page_order(query))
        shown = [_shown(session) for session in page.sessions]
        first_id, last_id = (shown[0].id, shown[-1].id) if shown else (None, None)
        return json_reply(encode(RecordedSessionList(data=shown, first_id=first_id, last_id=last_id, has_more=page.has_more)))

    return list_sessions


def _show(recordings: Recordings) -> Serve:
    async def show(request: Request) -> Response:
        session = await _asked(recordings, request)
        files = () if session.state == "live" else await recordings.files(session)
        return json_reply(encode(_shown(session, files)))

    return show


def _delete(recordings: Recordings) -> Serve:
    async def delete(request: Request) -> Response:
        await recordings.delete(_reach(request), request.path_params["id"])
        return json_reply(encode(SessionDeleted(id=request.path_params["id"])))

    return delete


def _events(recordings: Recordings) -> Serve:
    async def events(request: Request) -> Response:
        session = await _asked(recordings, request)
        return _sent(recordings, session, await recordings.events(session), request)

    return events


def _file(recordings: Recordings) -> Serve:
    async def file(request: Request) -> Response:
        session = await _asked(recordings, request)
        return _sent(recordings, session, await recordings.file(session, request.path_params["name"]), request)

    return file


def _download(recordings: Recordings) -> Serve:
    async def download(request: Request) -> Response:
        session = await _asked(recordings, request)
        files = await recordings.files(session)
        headers = _PRIVATE | {"content-disposition": f'attachment; filename="{session.id}.zip"'}
        return StreamingResponse(_zipped(recordings, session, files), headers=headers, media_type="application/zip")

    return download


async def _asked(recordings: Recordings, request: Request) -> SessionRecord:
    return await recordings.find(_reach(request), request.path_params["id"])


def _shown(session: SessionRecord, files: Sequence[Blob] = ()) -> RecordedSession:
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


def _sent(recordings: Recordings, session: SessionRecord, file: Blob, request: Request) -> Response:
    """A file, or the part of it that is asked for."""
    span = range_of(request.headers.get("range"), file.bytes)
    headers = _PRIVATE | {"accept-ranges": "bytes"}
    if span is None:
        start, end, status = 0, file.bytes, 200
    elif not span:
        reply = fault_reply(ClientMistake(f"The file has {file.bytes} bytes, and none of those asked for.", status=416))
        reply.headers["content-range"] = f"bytes */{file.bytes}"
        return reply
    else:
        start, end, status = span.start, span.stop, 206
        headers["content-range"] = f"bytes {start}-{end - 1}/{file.bytes}"
    headers["content-length"] = str(end - start)
    media_type = _TYPES.get(file.name.rpartition(".")[2], "application/octet-stream")
    return StreamingResponse(recordings.pieces(session, file, start, end), status, headers, media_type)


def range_of(header: str | None, size_bytes: int) -> range | None:
    """
    What a `Range` header asks for: empty where there is nothing of it; None for all, as where it asks for what we don't do.

    Source: RFC 9110 section 14.2, by which a server may pass over the header.
    """
    match = re.fullmatch(r"bytes=(\d{0,15})-(\d{0,15})", header or "", re.ASCII)
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:  # so many of the last
        return range(max(0, size_bytes - int(last)), size_bytes)
    if last and int(last) < int(first):
        return None
    return range(int(first), min(size_bytes, int(last) + 1 if last else size_bytes))


class _Out:
    """Takes what a zip file is made of, until it is sent."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def write(self, piece: bytes) -> int:
        """Take a piece."""
        self._waiting += piece
        return len(piece)

    def flush(self) -> None:
        """Nothing is held back."""

    def take(self) -> bytes:
        """All since the last time."""
        taken, self._waiting = bytes(self._waiting), bytearray()
        return taken


async def _zipped(recordings: Recordings, session: SessionRecord, files: Sequence[Blob]) -> AsyncIterator[bytes]:
    """A zip file of all of them, made while it is sent; nothing is compressed, as that would keep the others waiting."""
    out: Any = _Out()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for file in files:
            with archive.open(zipfile.ZipInfo(f"{session.id}/{file.name}"), "w", force_zip64=True) as entry:
                async for piece in recordings.pieces(session, file):
                    entry.write(piece)
                    yield out.take()
    yield out.take()
