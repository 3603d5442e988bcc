"""The routes of files in vector stores, and of batches of them."""

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response

from antiphon.offload import offload
from antiphon.runtime.service import Service
from antiphon.server.http.auth import Access, EndpointFunction, request_caller
from antiphon.server.http.body import read_json_body
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import BODY_ERRORS, JSON_MEDIA_TYPE, Header, Operation, Parameter
from antiphon.server.http.paging import before_parameter, end_ids, page_cursor, page_parameters
from antiphon.server.http.streaming import ContentResponse, begin_reading
from antiphon.server.vector_stores.objects import batch_files, batch_object, file_object, new_file
from antiphon.stores.vector_stores import IndexedFilePage
from antiphon.wire.codec.reading import Reader, read_query
from antiphon.wire.codec.structure import check_structure
from antiphon.wire.codec.types import encode
from antiphon.wire.http.vector_stores import (
    AddFileRequest,
    CreateFileBatchRequest,
    FileBatchObject,
    FileContentPage,
    FileStatus,
    FileStatusQuery,
    TextContent,
    UpdateFileRequest,
    VectorStoreFileDeleted,
    VectorStoreFileList,
    VectorStoreFileObject,
)

POLL_MS = 300
"""How long a client should wait before it asks again; without the header the official one waits a second."""

_POLL_HEADERS = {"openai-poll-after-ms": str(POLL_MS)}

_NOT_FOUND = {404: "There is no such vector store, or it has no such file."}
_BATCH_NOT_FOUND = {404: "There is no such vector store, or it has no such batch."}
_INVALID = "The request is invalid, the vector store has expired, or there is no room in it; `param` names the field."
_LIST_ERROR = {400: "A parameter is invalid, or `after` or `before` is not the id of one of the files; `param` says which."}
_LIST_QUERY = [
    *page_parameters("file"),
    before_parameter("file"),
    Parameter("filter", "Only files with this status.", {"type": "string", "enum": ["in_progress", "completed", "failed", "cancelled"]}),
]
_POLL_HEADER = {"openai-poll-after-ms": Header("Milliseconds to wait before asking again, while it is in progress.", {"type": "integer"})}

_ADD = Operation(
    "createVectorStoreFile",
    "Vector stores",
    "Add a file to a vector store",
    VectorStoreFileObject,
    AddFileRequest,
    errors=BODY_ERRORS | {400: _INVALID, 404: "There is no such vector store, or no such file."},
    description="It is indexed in the background. One that is in the store already is indexed again.",
)
_LIST = Operation(
    "listVectorStoreFiles",
    "Vector stores",
    "List the files of a vector store",
    VectorStoreFileList,
    errors=_LIST_ERROR | {404: "There is no such vector store."},
    query=_LIST_QUERY,
)
_RETRIEVE = Operation(
    "getVectorStoreFile",
    "Vector stores",
    "Retrieve a file of a vector store",
    VectorStoreFileObject,
    errors=_NOT_FOUND,
    headers=_POLL_HEADER,
)
_UPDATE = Operation(
    "updateVectorStoreFileAttributes",
    "Vector stores",
    "Replace the attributes of a file in a vector store",
    VectorStoreFileObject,
    UpdateFileRequest,
    errors=BODY_ERRORS | _NOT_FOUND | {400: "The request is invalid; `param` names the field."},
)
_DELETE = Operation(
    "deleteVectorStoreFile",
    "Vector stores",
    "Take a file out of a vector store",
    VectorStoreFileDeleted,
    errors=_NOT_FOUND,
    description="The file stays in `/v1/files`.",
)
_CONTENT = Operation(
    "retrieveVectorStoreFileContent",
    "Vector stores",
    "Retrieve the text of a file in a vector store",
    FileContentPage,
    errors=_NOT_FOUND | {400: "The file is not indexed."},
)
_CREATE_BATCH = Operation(
    "createVectorStoreFileBatch",
    "Vector stores",
    "Add several files to a vector store",
    FileBatchObject,
    CreateFileBatchRequest,
    errors=BODY_ERRORS | {400: _INVALID, 404: "There is no such vector store, or no such file."},
)
_RETRIEVE_BATCH = Operation(
    "getVectorStoreFileBatch",
    "Vector stores",
    "Retrieve a batch of files",
    FileBatchObject,
    errors=_BATCH_NOT_FOUND,
    headers=_POLL_HEADER,
)
_CANCEL_BATCH = Operation(
    "cancelVectorStoreFileBatch",
    "Vector stores",
    "Cancel a batch of files",
    FileBatchObject,
    errors=_BATCH_NOT_FOUND,
    description="What is indexed already stays.",
)
_LIST_BATCH = Operation(
    "listFilesInVectorStoreBatch",
    "Vector stores",
    "List the files of a batch",
    VectorStoreFileList,
    errors=_LIST_ERROR | _BATCH_NOT_FOUND,
    query=_LIST_QUERY,
)

_add_reader: Reader[AddFileRequest] = Reader(AddFileRequest)
_update_reader: Reader[UpdateFileRequest] = Reader(UpdateFileRequest)
_batch_reader: Reader[CreateFileBatchRequest] = Reader(CreateFileBatchRequest)


def file_rows(service: Service, store_path: str) -> list[tuple[str, str, EndpointFunction, Access, Operation]]:
    """The routes below that of one store, as rows for `guarded_routes`."""
    files, batches = f"{store_path}/files", f"{store_path}/file_batches"
    file, batch = f"{files}/{{file_id}}", f"{batches}/{{batch_id}}"
    return [
        ("POST", files, _add(service), "responses:write", _ADD),
        ("GET", files, _list(service), "responses:read", _LIST),
        ("GET", file, _retrieve(service), "responses:read", _RETRIEVE),
        ("POST", file, _update(service), "responses:write", _UPDATE),
        ("DELETE", file, _delete(service), "responses:write", _DELETE),
        ("GET", f"{file}/content", _content(service), "responses:read", _CONTENT),
        ("POST", batches, _create_batch(service), "responses:write", _CREATE_BATCH),
        ("GET", batch, _retrieve_batch(service), "responses:read", _RETRIEVE_BATCH),
        ("POST", f"{batch}/cancel", _cancel_batch(service), "responses:write", _CANCEL_BATCH),
        ("GET", f"{batch}/files", _list_batch(service), "responses:read", _LIST_BATCH),
    ]


def _add(service: Service) -> EndpointFunction:
    async def add(request: Request) -> Response:
        body = await read_json_body(request)
        check_structure(body)
        file = await service.vector_stores.library.add(*_store(request), new_file(_add_reader.read(body)))
        return json_response(encode(file_object(file)))

    return add


def _list(service: Service) -> EndpointFunction:
    async def list_files(request: Request) -> Response:
        status = _status(request)
        page = await service.vector_stores.library.files(*_store(request), page_cursor(request.query_params), status=status)
        return _page_response(page)

    return list_files


def _retrieve(service: Service) -> EndpointFunction:
    async def retrieve(request: Request) -> Response:
        file = await service.vector_stores.library.file(*_store(request), request.path_params["file_id"])
        return json_response(encode(file_object(file)), headers=_POLL_HEADERS if file.status == "in_progress" else None)

    return retrieve


def _update(service: Service) -> EndpointFunction:
    async def update(request: Request) -> Response:
        body = await read_json_body(request)
        check_structure(body)
        attributes = encode(_update_reader.read(body).attributes or {})
        file = await service.vector_stores.library.set_attributes(*_store(request), request.path_params["file_id"], attributes)
        return json_response(encode(file_object(file)))

    return update


def _delete(service: Service) -> EndpointFunction:
    async def delete(request: Request) -> Response:
        file_id = request.path_params["file_id"]
        await service.vector_stores.library.remove(*_store(request), file_id)
        return json_response(encode(VectorStoreFileDeleted(id=file_id)))

    return delete


def _content(service: Service) -> EndpointFunction:
    async def content(request: Request) -> Response:
        file = await service.vector_stores.library.file(*_store(request), request.path_params["file_id"])
        pieces = await begin_reading(service.vector_stores.text_pieces(file))
        return ContentResponse(_encode_content(pieces), media_type=JSON_MEDIA_TYPE)

    return content


async def _encode_content(pieces: AsyncIterator[str]) -> AsyncIterator[bytes]:
    """A `FileContentPage`, written piece by piece: a file may have 20 MB of text."""
    before, after = encode(FileContentPage(data=[])).split(b"[]")
    yield before + b"["
    separator = b""
    async for piece in pieces:
        yield separator + encode(TextContent(text=piece))
        separator = b","
    yield b"]" + after


def _create_batch(service: Service) -> EndpointFunction:
    async def create_batch(request: Request) -> Response:
        body = await read_json_body(request)
        check_structure(body)
        # Up to 2000 files, each with attributes of its own: large enough to hold up the event loop.
        files = batch_files(await offload(len(body), _batch_reader.read, body))
        return json_response(encode(batch_object(await service.vector_stores.library.add_batch(*_store(request), files))))

    return create_batch


def _retrieve_batch(service: Service) -> EndpointFunction:
    async def retrieve_batch(request: Request) -> Response:
        answer = batch_object(await service.vector_stores.library.batch(*_store(request), request.path_params["batch_id"]))
        return json_response(encode(answer), headers=_POLL_HEADERS if answer.status == "in_progress" else None)

    return retrieve_batch


def _cancel_batch(service: Service) -> EndpointFunction:
    async def cancel_batch(request: Request) -> Response:
        batch = await service.vector_stores.library.cancel_batch(*_store(request), request.path_params["batch_id"])
        return json_response(encode(batch_object(batch)))

    return cancel_batch


def _list_batch(service: Service) -> EndpointFunction:
    async def list_batch(request: Request) -> Response:
        status = _status(request)
        cursor, batch_id = page_cursor(request.query_params), request.path_params["batch_id"]
        return _page_response(await service.vector_stores.library.files(*_store(request), cursor, status=status, batch_id=batch_id))

    return list_batch


def _page_response(page: IndexedFilePage) -> Response:
    files = [file_object(file) for file in page.files]
    first_id, last_id = end_ids(files)
    return json_response(encode(VectorStoreFileList(data=files, first_id=first_id, last_id=last_id, has_more=page.has_more)))


def _status(request: Request) -> FileStatus | None:
    return read_query(FileStatusQuery, request.query_params.multi_items()).filter or None


def _store(request: Request) -> tuple[str, str]:
    return request_caller(request.scope).tenant, request.path_params["vector_store_id"]
