"""All routes under `/v1/files`."""

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from antiphon.offload import offload
from antiphon.runtime.service import Service
from antiphon.server.files.upload import create_file, to_wire
from antiphon.server.http.auth import EndpointFunction, GuardedRoute, guarded_routes, request_caller
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import COMPRESSED_BODY, UNAVAILABLE, Operation, Parameter
from antiphon.server.http.paging import end_ids, page_limit, page_order, page_parameters
from antiphon.server.http.streaming import ContentResponse, begin_reading
from antiphon.wire.codec.types import encode
from antiphon.wire.http.files import CreateFileForm, FileDeleted, FileList, FileObject

PATH = "/v1/files"

MAX_LIMIT = 10_000
"""Of the files in a page, and the default, as in the original."""

_OBJECT_BYTES = 300
"""The usual size of a file object's JSON."""

_NOT_FOUND = {404: "There is no such file."}
_STORAGE_ERRORS = {503: "The place where files are stored can't be used now. `retry-after` says when to try again."}

_CREATE = Operation(
    "createFile",
    "Files",
    "Upload a file",
    FileObject,
    CreateFileForm,
    errors=COMPRESSED_BODY
    | {
        400: "The form is invalid, or there is no room for the file; `param` names the field.",
        408: "The upload took too long.",
        413: "The file is too large.",
        503: UNAVAILABLE,
    },
    description="`input_file` and `input_image` refer to it by its id. It stays until it is deleted, or expires.",
    links=dict.fromkeys(("retrieveFile", "downloadFile", "deleteFile"), "file_id"),
    request_media_types=("multipart/form-data",),
)
_LIST = Operation(
    "listFiles",
    "Files",
    "List the files",
    FileList,
    errors={400: "A parameter is invalid, or `after` is not the id of one of the files; `param` says which."},
    query=[
        *page_parameters("file", MAX_LIMIT, MAX_LIMIT),
        Parameter("purpose", "Only files with this purpose.", {"type": "string"}),
    ],
)
_RETRIEVE = Operation("retrieveFile", "Files", "Retrieve what is known of a file", FileObject, errors=_NOT_FOUND)
_DOWNLOAD = Operation(
    "downloadFile",
    "Files",
    "Download a file",
    errors=_NOT_FOUND | _STORAGE_ERRORS,
    media_types=("application/octet-stream",),
)
_DELETE = Operation("deleteFile", "Files", "Delete a file", FileDeleted, errors=_NOT_FOUND)


def routes(service: Service) -> list[GuardedRoute]:
    """All routes under `/v1/files`."""
    one = f"{PATH}/{{file_id}}"
    return guarded_routes(
        service,
        [
            ("POST", PATH, create_file(service), "responses:write", _CREATE),
            ("GET", PATH, _list(service), "responses:read", _LIST),
            ("GET", one, _retrieve(service), "responses:read", _RETRIEVE),
            ("GET", f"{one}/content", _download(service), "responses:read", _DOWNLOAD),
            ("DELETE", one, _delete(service), "responses:write", _DELETE),
        ],
    )


def _list(service: Service) -> EndpointFunction:
    async def list_files(request: Request) -> Response:
        query = request.query_params
        page = await service.files.page(
            request_caller(request.scope).tenant,
            purpose=query.get("purpose") or None,
            after=query.get("after"),
            limit=page_limit(query, MAX_LIMIT, MAX_LIMIT),
            order=page_order(query),
        )
        first_id, last_id = end_ids(page.files)

        def encode_page() -> bytes:
            files = [to_wire(record) for record in page.files]
            return encode(FileList(data=files, first_id=first_id, last_id=last_id, has_more=page.has_more))

        return json_response(await offload(len(page.files) * _OBJECT_BYTES, encode_page))

    return list_files


def _retrieve(service: Service) -> EndpointFunction:
    async def retrieve(request: Request) -> Response:
        record = await service.files.find(*_owner_and_id(request))
        return json_response(encode(to_wire(record)))

    return retrieve


def _download(service: Service) -> EndpointFunction:
    async def download(request: Request) -> Response:
        record = await service.files.find(*_owner_and_id(request))
        chunks = await begin_reading(service.files.chunks(record))
        headers = {
            # The client that uploaded it chose its type, so no browser may show it here or guess another. RFC 8187 has the
            # form of the name.
            "content-disposition": f"attachment; filename*=UTF-8''{quote(record.filename, safe='')}",
            "content-length": str(record.bytes),
            "x-content-type-options": "nosniff",
            "cache-control": "private, no-store",
        }
        return ContentResponse(chunks, headers=headers, media_type="application/octet-stream")

    return download


def _delete(service: Service) -> EndpointFunction:
    async def delete(request: Request) -> Response:
        tenant, file_id = _owner_and_id(request)
        await service.files.delete(tenant, file_id)
        return json_response(encode(FileDeleted(id=file_id)))

    return delete


def _owner_and_id(request: Request) -> tuple[str, str]:
    return request_caller(request.scope).tenant, request.path_params["file_id"]
