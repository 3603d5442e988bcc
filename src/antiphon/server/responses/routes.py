"""The Responses API over HTTP: create, retrieve, delete, and list input items."""

import functools

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from antiphon.errors import response_not_found, unknown_cursor
from antiphon.runtime.service import Service
from antiphon.server.http.answered_by import ANSWER_HEADERS, REWRITE_HEADERS, ROUTE_HEADERS
from antiphon.server.http.auth import (
    EndpointFunction,
    GuardedRoute,
    guarded_routes,
    request_caller,
)
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import BODY_ERRORS, INVALID_REQUEST, UNAVAILABLE, Header, Operation, Parameter
from antiphon.server.http.paging import page_limit, page_order, page_parameters
from antiphon.server.http.profile import profile_routes, request_encoder
from antiphon.server.responses import background, lists
from antiphon.server.responses.compact import compact_conversation
from antiphon.server.responses.create import CreateEndpoint
from antiphon.server.responses.input_tokens import count_input_tokens
from antiphon.stores.base import UnknownCursor
from antiphon.wire.codec.reading import read_query
from antiphon.wire.responses.endpoints import (
    CompactedResponse,
    CompactRequest,
    IncludeQuery,
    InputTokens,
    InputTokensRequest,
    ItemList,
    ResponseDeleted,
)
from antiphon.wire.responses.events import OriginalEvent
from antiphon.wire.responses.request import CreateRequest
from antiphon.wire.responses.response import Response as ResponseObject

_REQUEST_ERRORS = BODY_ERRORS | {
    400: INVALID_REQUEST,
    404: "There is no such model or item.",
    502: "The engine failed, or the server behind it.",
    503: UNAVAILABLE,
}
_NOT_FOUND = {404: "There is no such response."}

_NAMES = {"type": "string", "examples": ["web_search, computer"]}

_CREATE = Operation(
    "createResponse",
    "Responses",
    "Create a response, whole or as a stream of events",
    ResponseObject,
    CreateRequest,
    OriginalEvent,
    _REQUEST_ERRORS,
    description="With `stream`, the response is sent as server-sent events while it is made. Unless `store` is false it is stored, so that "
    "`previous_response_id` can continue the conversation. Without a `model`, the first of those configured answers. Fields that this "
    "server does not know are passed on to the model's engine.",
    links=dict.fromkeys(("getResponse", "deleteResponse", "cancelResponse", "listInputItems"), "id"),
    headers={
        "antiphon-tools-not-offered": Header("Tools that the model was not offered.", _NAMES),
        "antiphon-grammars-not-enforced": Header("Tools whose grammar is not enforced.", _NAMES),
        "antiphon-items-not-told": Header("Types of items that were not passed on to the model.", _NAMES),
    }
    | ROUTE_HEADERS
    | REWRITE_HEADERS
    | ANSWER_HEADERS,
)
_COUNT_TOKENS = Operation(
    "countInputTokens",
    "Responses",
    "Count the tokens of an input",
    InputTokens,
    InputTokensRequest,
    errors=_REQUEST_ERRORS,
    description="The engine that would read them counts them. No response is made, and nothing is stored.",
)
_COMPACT = Operation(
    "compactResponse",
    "Responses",
    "Compact a conversation",
    CompactedResponse,
    CompactRequest,
    errors=_REQUEST_ERRORS,
    description="Returns all user messages of the conversation, and one item that stands for the rest: a summary by the model, "
    "encrypted. The output is the input of the next request. Nothing is stored.",
)
_RETRIEVE = Operation(
    "getResponse",
    "Responses",
    "Retrieve a response, or stream its events again",
    ResponseObject,
    event_type=OriginalEvent,
    errors=_NOT_FOUND | {400: INVALID_REQUEST},
    description="With `stream`, the events of a response that was created with `background` and `stream` are sent from the beginning, or "
    "after the one with the number `starting_after`; then those that still come.",
    query=(
        Parameter("stream", "Whether to stream the events.", {"type": "boolean", "default": False}),
        Parameter("starting_after", "The number of the event before the first one to send.", {"type": "integer", "minimum": 0}),
        Parameter("include_obfuscation", "Whether deltas are padded; unset: as they were first sent.", {"type": "boolean"}),
    ),
)
_DELETE = Operation(
    "deleteResponse",
    "Responses",
    "Delete a response",
    ResponseDeleted,
    errors=_NOT_FOUND,
    description="Conversations can't be continued from it any more. The model stops if it is being made.",
)
_CANCEL = Operation(
    "cancelResponse",
    "Responses",
    "Cancel a background response",
    errors=_NOT_FOUND | {400: "The response is not a background response."},
    description="The model is stopped, on whichever server it runs. A response that has ended is returned as it is. To cancel one that "
    "was not created with `background`, close the connection of its request.",
)
_LIST_INPUT_ITEMS = Operation(
    "listInputItems",
    "Responses",
    "List the input items of a response",
    ItemList,
    errors=_NOT_FOUND | {400: "A parameter is invalid, or `after` is not the id of one of its items; `param` says which."},
    query=page_parameters("item"),
)


def routes(service: Service) -> list[GuardedRoute]:
    """All routes under `/v1/responses`."""
    create = CreateEndpoint(service, background.create_background)
    service.background.attach(functools.partial(background.restart, service))
    paths = guarded_routes(
        service,
        [
            ("POST", "/v1/responses", create, "responses:write", _CREATE),
            # Before `{id}`, which matches them too.
            ("POST", "/v1/responses/input_tokens", count_input_tokens(service), "responses:write", _COUNT_TOKENS),
            ("POST", "/v1/responses/compact", compact_conversation(service), "responses:write", _COMPACT),
            ("POST", "/v1/responses/{id}", lists.update_response(service), "responses:write", lists.UPDATE),
            ("GET", "/v1/responses/{id}", background.retrieve(service), "responses:read", _RETRIEVE),
            ("DELETE", "/v1/responses/{id}", _delete(service), "responses:write", _DELETE),
            ("POST", "/v1/responses/{id}/cancel", background.cancel(service), "responses:write", _CANCEL),
            ("GET", "/v1/responses/{id}/input_items", _input_items(service), "responses:read", _LIST_INPUT_ITEMS),
        ],
    )
    # Before `{id}`, which matches it too; and in no profile, as this list is the server's own.
    roots = guarded_routes(service, [("GET", "/v1/responses/roots", lists.list_roots(service), "responses:read", lists.LIST_ROOTS)])
    return [*roots, *profile_routes(paths)]


def _delete(service: Service) -> EndpointFunction:
    async def delete(request: Request) -> Response:
        response_id = background.response_id_of(request)
        if not await service.store.delete(request_caller(request.scope).tenant, response_id):
            raise response_not_found(response_id)
        # The server that makes it notices at its next write that it is gone; this stops the model sooner.
        service.background.stop_everywhere(response_id)
        shown_id = request_encoder(request.scope).response_id(response_id)
        return json_response({"id": shown_id, "object": "response", "deleted": True})

    return delete


def _input_items(service: Service) -> EndpointFunction:
    async def input_items(request: Request) -> Response:
        response_id = background.response_id_of(request)
        query = request.query_params
        read_query(IncludeQuery, query.multi_items())  # only to validate: everything is always included
        tenant = request_caller(request.scope).tenant
        after = query.get("after")
        try:
            page = await service.store.list_items(
                tenant, response_id, direction="input", after=after, limit=page_limit(query), order=page_order(query)
            )
        except UnknownCursor:
            raise unknown_cursor("Item", after) from None
        if page is None:
            raise response_not_found(response_id)
        return json_response(
            {
                "object": "list",
                "data": [msgspec.Raw(item.body) for item in page.items],
                # The official types have no null here, nor for the items of a conversation, as they have for other lists.
                "first_id": page.items[0].id if page.items else "",
                "last_id": page.items[-1].id if page.items else "",
                "has_more": page.has_more,
            }
        )

    return input_items
