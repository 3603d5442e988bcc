"""The routes of vector stores: the stores themselves, and searches in them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from antiphon.offload import offload
from antiphon.records import VectorStoreRecord
from antiphon.runtime.service import Service
from antiphon.server.http.auth import EndpointFunction, GuardedRoute, guarded_routes, request_caller
from antiphon.server.http.body import read_json_body
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import BODY_ERRORS, UNAVAILABLE, Operation
from antiphon.server.http.paging import before_parameter, end_ids, page_cursor, page_parameters
from antiphon.server.vector_stores.files import file_rows
from antiphon.server.vector_stores.objects import first_files, store_object
from antiphon.stores.vector_stores import VectorStoreChanges
from antiphon.wire.codec.fields import value_or
from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.structure import check_structure
from antiphon.wire.codec.types import encode
from antiphon.wire.http.vector_stores import (
    CreateVectorStoreRequest,
    SearchResultObject,
    SearchResultsPage,
    SearchVectorStoreRequest,
    TextContent,
    UpdateVectorStoreRequest,
    VectorStoreDeleted,
    VectorStoreList,
    VectorStoreObject,
    check_names,
    check_weights,
)

if TYPE_CHECKING:
    from antiphon.tools.file_search.base import SearchResult

PATH = "/v1/vector_stores"

_NOT_FOUND = {404: "There is no such vector store."}
_INVALID = {400: "The request is invalid, or the vector store has expired; `param` names the field."}

_LINKS = dict.fromkeys(
    (
        "getVectorStore",
        "modifyVectorStore",
        "deleteVectorStore",
        "searchVectorStore",
        "createVectorStoreFile",
        "listVectorStoreFiles",
        "createVectorStoreFileBatch",
    ),
    "vector_store_id",
)
_CREATE = Operation(
    "createVectorStore",
    "Vector stores",
    "Create a vector store",
    VectorStoreObject,
    CreateVectorStoreRequest,
    errors=BODY_ERRORS
    | {400: "The request is invalid, or you have too many vector stores; `param` names the field.", 404: "There is no such file."},
    description="Its files are indexed in the background: `file_counts` says how far that is.",
    links=_LINKS,
)
_LIST = Operation(
    "listVectorStores",
    "Vector stores",
    "List the vector stores",
    VectorStoreList,
    errors={400: "A parameter is invalid, or `after` or `before` is not the id of one of the stores; `param` says which."},
    query=[*page_parameters("vector store"), before_parameter("vector store")],
)
_RETRIEVE = Operation("getVectorStore", "Vector stores", "Retrieve a vector store", VectorStoreObject, errors=_NOT_FOUND)
_UPDATE = Operation(
    "modifyVectorStore",
    "Vector stores",
    "Change a vector store's name, metadata or expiry",
    VectorStoreObject,
    UpdateVectorStoreRequest,
    errors=BODY_ERRORS | _NOT_FOUND | _INVALID,
)
_DELETE = Operation(
    "deleteVectorStore",
    "Vector stores",
    "Delete a vector store",
    VectorStoreDeleted,
    errors=_NOT_FOUND,
    description="Its files stay in `/v1/files`.",
)
_SEARCH = Operation(
    "searchVectorStore",
    "Vector stores",
    "Search a vector store",
    SearchResultsPage,
    SearchVectorStoreRequest,
    errors=BODY_ERRORS | _NOT_FOUND | _INVALID | {503: UNAVAILABLE},
)

_create_reader: Reader[CreateVectorStoreRequest] = Reader(CreateVectorStoreRequest)
_update_reader: Reader[UpdateVectorStoreRequest] = Reader(UpdateVectorStoreRequest)
_search_reader: Reader[SearchVectorStoreRequest] = Reader(SearchVectorStoreRequest)


def routes(service: Service) -> list[GuardedRoute]:
    """All routes under `/v1/vector_stores`."""
    one = f"{PATH}/{{vector_store_id}}"
    return guarded_routes(
        service,
        [
            ("POST", PATH, _create(service), "responses:write", _CREATE),
            ("GET", PATH, _list(service), "responses:read", _LIST),
            ("GET", one, _retrieve(service), "responses:read", _RETRIEVE),
            ("POST", one, _update(service), "responses:write", _UPDATE),
            ("DELETE", one, _delete(service), "responses:write", _DELETE),
            ("POST", f"{one}/search", _search(service), "responses:read", _SEARCH),
            *file_rows(service, one),
        ],
    )


def _create(service: Service) -> EndpointFunction:
    async def create(request: Request) -> Response:
        body = await read_json_body(request)
        options = await offload(len(body), _decode_create, body)
        expiry = value_or(options.expires_after, None)
        # The library sets the id, the tenant and the times.
        template = VectorStoreRecord(
            id="",
            tenant="",
            created_at=0,
            last_active_at=0,
            name=value_or(options.name, ""),
            description=value_or(options.description, None),
            expires_after_days=None if expiry is None else expiry.days,
            metadata=encode(value_or(options.metadata, {})),
        )
        store = await service.vector_stores.library.create(request_caller(request.scope).tenant, template, first_files(options))
        return _answer(service, store)

    return create


def _list(service: Service) -> EndpointFunction:
    async def list_stores(request: Request) -> Response:
        library = service.vector_stores.library
        page = await library.page(request_caller(request.scope).tenant, page_cursor(request.query_params))
        stores = [store_object(store, library.now) for store in page.stores]
        first_id, last_id = end_ids(stores)
        return json_response(encode(VectorStoreList(data=stores, first_id=first_id, last_id=last_id, has_more=page.has_more)))

    return list_stores


def _retrieve(service: Service) -> EndpointFunction:
    async def retrieve(request: Request) -> Response:
        return _answer(service, await service.vector_stores.library.find(*_owner_and_id(request)))

    return retrieve


def _update(service: Service) -> EndpointFunction:
    async def update(request: Request) -> Response:
        library = service.vector_stores.library
        # Before the body is read, so that an unknown store is a 404 whatever the body has.
        await library.find(*_owner_and_id(request))
        body = await read_json_body(request)
        options = await offload(len(body), _decode_update, body)
        return _answer(service, await library.update(*_owner_and_id(request), _changes(options)))

    return update


def _delete(service: Service) -> EndpointFunction:
    async def delete(request: Request) -> Response:
        tenant, store_id = _owner_and_id(request)
        # By the service and not the library: the store's index, in memory and on disk, goes with it.
        await service.vector_stores.delete(tenant, store_id)
        return json_response(encode(VectorStoreDeleted(id=store_id)))

    return delete


def _search(service: Service) -> EndpointFunction:
    async def search(request: Request) -> Response:
        body = await read_json_body(request)
        options = await offload(len(body), _decode_search, body)
        results = await service.vector_stores.answer(*_owner_and_id(request), options)
        queries = [options.query] if isinstance(options.query, str) else options.query
        # Up to fifty chunks of text, which are encoded in a thread where they are long.
        size_bytes = sum(len(result.text) for result in results)
        return json_response(await offload(size_bytes, _encode_results, queries, results))

    return search


def _changes(options: UpdateVectorStoreRequest) -> VectorStoreChanges:
    # Absent leaves a field as it is, null clears it.
    expiry = options.expires_after
    return VectorStoreChanges(
        name=options.name or "" if options.name is not UNSET else UNSET,
        metadata=encode(options.metadata or {}) if options.metadata is not UNSET else UNSET,
        expires_after_days=expiry if expiry is UNSET or expiry is None else expiry.days,
    )


def _encode_results(queries: list[str], results: "Sequence[SearchResult]") -> bytes:
    objects = [
        SearchResultObject(
            file_id=result.file_id,
            filename=result.filename,
            score=result.score,
            attributes={**result.attributes},
            content=[TextContent(text=result.text)],
        )
        for result in results
    ]
    return encode(SearchResultsPage(search_query=queries, data=objects))


def _decode_create(body: bytes) -> CreateVectorStoreRequest:
    # First, here and below: it counts the values before any object is made of them.
    check_structure(body)
    options = _create_reader.read(body)
    check_names(options)
    return options


def _decode_update(body: bytes) -> UpdateVectorStoreRequest:
    check_structure(body)
    options = _update_reader.read(body)
    check_names(options)
    return options


def _decode_search(body: bytes) -> SearchVectorStoreRequest:
    check_structure(body)
    options = _search_reader.read(body)
    check_weights(options.ranking_options)
    return options


def _answer(service: Service, store: VectorStoreRecord) -> Response:
    return json_response(encode(store_object(store, service.vector_stores.library.now)))


def _owner_and_id(request: Request) -> tuple[str, str]:
    return request_caller(request.scope).tenant, request.path_params["vector_store_id"]
