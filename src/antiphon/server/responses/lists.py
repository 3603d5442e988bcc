"""Stored responses as lists, and their metadata: what a page needs to show chats, and OpenAI's API does not have."""

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct
from starlette.requests import Request
from starlette.responses import Response

from antiphon.errors import ClientError, invalid_value, response_not_found, unknown_cursor
from antiphon.offload import offload
from antiphon.runtime.service import Service
from antiphon.server.http.auth import EndpointFunction, GuardedRoute, guarded_routes, request_caller
from antiphon.server.http.body import read_json_body
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import BODY_ERRORS, Operation, Parameter
from antiphon.server.http.paging import MAX_LIMIT, page_limit, page_order, page_parameters
from antiphon.server.http.profile import request_encoder
from antiphon.server.responses import background
from antiphon.stores.base import UNFINISHED_STATUSES, UnknownCursor
from antiphon.stores.response_list import ResponsePage, ResponseQuery, ResponseRow, RootRow, search_words
from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.structure import check_structure
from antiphon.wire.http.response_lists import ListedResponses, ResponseRoots, UpdateResponseRequest
from antiphon.wire.responses.response import Response as ResponseObject

STATUSES = ("queued", "in_progress", "completed", "incomplete", "failed", "cancelled")

MAX_SEARCH_LENGTH, MAX_SEARCH_WORDS = 256, 16

MAX_INCLUDED_BYTES = 8 << 20
"""A page with items ends before it has more, but has one response in any case: each may be as large as a request."""

_SEARCH = Parameter(
    "q",
    "Only those in whose title or messages there are words that begin with each of these.",
    {"type": "string", "maxLength": MAX_SEARCH_LENGTH},
)
_BAD_PARAMETER = {400: "A parameter is invalid, or `after` is not in the list; `param` says which."}
LIST = Operation(
    "listResponses",
    "Responses",
    "List the stored responses",
    ListedResponses,
    errors=_BAD_PARAMETER,
    description="Where the request is a WebSocket handshake, it opens a WebSocket for responses instead, which needs the scope "
    "`responses:write`, and gets status 101. Each `response.create` that the client then sends has the fields of a request for a response, "
    "and is answered by the events of its stream. The reference of WebSocket mode has the rest.",
    query=(
        *page_parameters("response"),
        Parameter("model", "Only those of this model.", {"type": "string"}),
        Parameter("status", "Only those with this status.", {"type": "string", "enum": [*STATUSES]}),
        Parameter("root", "Only this response and those that continue it, one after another.", {"type": "string"}),
        Parameter("ids", f"Only these: at most {MAX_LIMIT} ids, with commas between them.", {"type": "string"}),
        Parameter(
            "include",
            "Each with its `input`, `output`, `error` and `incomplete_details`. A page then ends after some megabytes.",
            {"type": "string", "enum": ["items"]},
        ),
        _SEARCH,
    ),
)
LIST_ROOTS = Operation(
    "listResponseRoots",
    "Responses",
    "List the stored responses by what they continue",
    ResponseRoots,
    errors=_BAD_PARAMETER,
    description="One entry for each response that continues no other, with all that continue it; those first that were continued last.",
    query=(*(each for each in page_parameters("root") if each.name != "order"), _SEARCH),
)
UPDATE = Operation(
    "updateResponse",
    "Responses",
    "Replace a response's metadata",
    ResponseObject,
    UpdateResponseRequest,
    errors=BODY_ERRORS
    | {400: "The request is invalid; `param` names the field.", 404: "There is no such response.", 409: "It is still being made."},
)


class _BodyPart(Struct):
    """What a list shows of a response object; the last three only with its items."""

    completed_at: int | None = None
    background: bool | None = None
    usage: Raw = Raw(b"null")
    metadata: dict[str, str] | None = None
    output: Raw = Raw(b"[]")
    error: Raw = Raw(b"null")
    incomplete_details: Raw = Raw(b"null")


_body_decoder = msgspec.json.Decoder(_BodyPart)
_object_decoder = msgspec.json.Decoder(dict[str, Raw])
_update_reader: Reader[UpdateResponseRequest] = Reader(UpdateResponseRequest)


def list_route(service: Service) -> GuardedRoute:
    """`GET /v1/responses`, whose path is also that of WebSocket mode."""
    return guarded_routes(service, [("GET", "/v1/responses", _list(service), "responses:read", LIST)])[0]


def _list(service: Service) -> EndpointFunction:
    async def list_responses(request: Request) -> Response:
        query, tenant = request.query_params, request_caller(request.scope).tenant
        status = query.get("status")
        if status is not None and status not in STATUSES:
            raise invalid_value("status", status, STATUSES)
        # A `q` without a letter or a digit has no words, and finds nothing; without the parameter everything is listed.
        words, limit, order = _words(query.get("q")), page_limit(query), page_order(query)
        if words == ():
            return _page([], has_more=False)
        selection = ResponseQuery(
            limit=limit,
            after=query.get("after"),
            order=order,
            model=query.get("model"),
            status=status,
            root=query.get("root"),
            ids=_ids(query.get("ids")),
            words=words or (),
        )
        has_items = _has_items(query.get("include"))
        # Words are indexed after a response is stored; a search waits for what is left of its tenant (docs/decisions/0060).
        if words:
            await service.search.refresh(tenant)
        try:
            page = await service.store.lists.page(tenant, selection)
        except UnknownCursor:
            raise unknown_cursor("Response", query["after"]) from None
        if has_items:
            return await _with_items(service, tenant, page)
        rows = await offload(sum(len(row.body) for row in page.rows), lambda: [_response(row) for row in page.rows])
        return _page(rows, has_more=page.has_more)

    return list_responses


async def _with_items(service: Service, tenant: str, page: ResponsePage) -> Response:
    inputs = await service.store.lists.inputs(tenant, page.rows, MAX_INCLUDED_BYTES)
    pairs = list(zip(page.rows, inputs, strict=False))  # fewer, where they would be too large together
    rows = await offload(sum(len(row.body) for row, _ in pairs), lambda: [_response(row, bodies) for row, bodies in pairs])
    return _page(rows, has_more=page.has_more or len(pairs) < len(page.rows))


def list_roots(service: Service) -> EndpointFunction:
    """The endpoint of `GET /v1/responses/roots`."""

    async def endpoint(request: Request) -> Response:
        query, tenant = request.query_params, request_caller(request.scope).tenant
        words, limit = _words(query.get("q")), page_limit(query)
        if words == ():
            return _page([], has_more=False)
        if words:
            await service.search.refresh(tenant)
        try:
            page = await service.store.lists.roots(tenant, after=query.get("after"), limit=limit, words=words or ())
        except UnknownCursor:
            raise unknown_cursor("Root", query["after"]) from None
        size_bytes = sum(len(row.root.body) for row in page.rows if row.root is not None)
        rows = await offload(size_bytes, lambda: [_root(row) for row in page.rows])
        return _page(rows, has_more=page.has_more)

    return endpoint


def update_response(service: Service) -> EndpointFunction:
    """The endpoint that changes the metadata of a response."""

    async def update(request: Request) -> Response:
        tenant, response_id = request_caller(request.scope).tenant, background.response_id_of(request)
        record = await service.store.get(tenant, response_id)
        if record is None:
            raise response_not_found(response_id)
        body = await read_json_body(request)
        options = await offload(len(body), _decode_update, body)
        new_body = await offload(len(record.body), _with_metadata, record.body, options.metadata or {})
        # The end of a response under way replaces the whole body, and would undo the change.
        is_unfinished = record.status in UNFINISHED_STATUSES
        if is_unfinished or not await service.store.lists.replace_body(tenant, response_id, new_body):
            raise ClientError(
                "This response is still being made. Change its metadata when it has ended.", status=409, code="response_unfinished"
            )
        encoder = request_encoder(request.scope)
        return json_response(await offload(len(new_body), encoder.encode_body, new_body, record.notes))

    return update


def _ids(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    ids = tuple(text.split(","))
    if len(ids) > MAX_LIMIT:
        raise ClientError(f"Invalid 'ids': expected at most {MAX_LIMIT} ids.", code="array_above_max_length", param="ids")
    return ids


def _has_items(text: str | None) -> bool:
    if text not in (None, "items"):
        raise invalid_value("include", text, ("items",))
    return text is not None


def _words(text: str | None) -> tuple[str, ...] | None:
    """What to look for; None for anything."""
    if text is None:
        return None
    if len(text) > MAX_SEARCH_LENGTH:
        raise ClientError(f"Invalid 'q': expected at most {MAX_SEARCH_LENGTH} characters.", code="string_above_max_length", param="q")
    words = search_words(text)
    if len(words) > MAX_SEARCH_WORDS:
        raise ClientError(f"Invalid 'q': expected at most {MAX_SEARCH_WORDS} words.", code="invalid_value", param="q")
    return tuple(words)


def _decode_update(body: bytes) -> UpdateResponseRequest:
    check_structure(body)
    return _update_reader.read(body)


def _with_metadata(body: bytes, metadata: dict[str, str]) -> bytes:
    # The other values stay the very bytes that were stored, whichever version has written them.
    return msgspec.json.encode(_object_decoder.decode(body) | {"metadata": Raw(msgspec.json.encode(metadata))})


def _response(row: ResponseRow, input_bodies: Sequence[bytes] | None = None) -> dict[str, object]:
    body = _body_decoder.decode(row.body)
    metadata = body.metadata or {}
    summary: dict[str, object] = {
        "id": row.id,
        "object": "response.summary",
        "created_at": row.created_at,
        "completed_at": body.completed_at,
        "model": row.model,
        "status": row.status,
        "background": bool(body.background),
        "previous_response_id": row.previous_response_id,
        "root_id": row.root_id,
        "title": metadata.get("title"),
        "usage": body.usage,
        "metadata": metadata,
        "key_id": row.key_id,
    }
    if input_bodies is None:
        return summary
    content = {"output": body.output, "error": body.error, "incomplete_details": body.incomplete_details}
    return summary | {"input": [Raw(each) for each in input_bodies]} | content


def _root(row: RootRow) -> dict[str, object]:
    metadata = {} if row.root is None else _body_decoder.decode(row.root.body).metadata or {}
    return {
        "id": row.id,
        "object": "response.root",
        "created_at": None if row.root is None else row.root.created_at,
        "updated_at": row.latest.created_at,
        "title": metadata.get("title"),
        "metadata": metadata,
        "model": row.latest.model,
        "status": row.latest.status,
        "responses": row.count,
        "last_response_id": row.latest.id,
    }


def _page(rows: Sequence[dict[str, object]], *, has_more: bool) -> Response:
    return json_response(
        {
            "object": "list",
            "data": rows,
            "first_id": rows[0]["id"] if rows else None,
            "last_id": rows[-1]["id"] if rows else None,
            "has_more": has_more,
        }
    )
