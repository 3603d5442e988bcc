"""The Conversations API over HTTP."""

import time
from collections.abc import Container, Sequence
from types import UnionType
from typing import get_args

from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from antiphon.errors import ClientError, conversation_locked, conversation_not_found, duplicate_item, invalid_value, shorten, unknown_cursor
from antiphon.offload import offload
from antiphon.protocols.responses.response_object import input_records
from antiphon.records import ConversationRecord, ItemRecord
from antiphon.runtime.conversation_lock import check_conversation_id
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.files.references import check_references
from antiphon.runtime.resolve_request import (
    check_conversation_ids,
    check_item_ids,
    name_calls_by_call_id,
    resolve_references,
    restore_results,
)
from antiphon.runtime.service import Service
from antiphon.server.http.auth import EndpointFunction, GuardedRoute, guarded_routes, request_caller
from antiphon.server.http.body import read_json_body
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import BODY_ERRORS, Operation, Parameter
from antiphon.server.http.paging import page_limit, page_order, page_parameters
from antiphon.server.http.profile import profile_routes
from antiphon.stores.base import ConversationLocked, DuplicateItem, UnknownConversation, UnknownCursor
from antiphon.wire.codec.fields import is_set, value_or
from antiphon.wire.codec.reading import Reader, read_query
from antiphon.wire.codec.structure import check_structure
from antiphon.wire.codec.types import Unknown, encode
from antiphon.wire.http.response_lists import ConversationList
from antiphon.wire.responses import items
from antiphon.wire.responses.conversations import (
    AddItemsRequest,
    Conversation,
    ConversationDeleted,
    ConversationItemList,
    CreateConversationRequest,
    UpdateConversationRequest,
)
from antiphon.wire.responses.endpoints import IncludeQuery
from antiphon.wire.responses.hosted_calls import LocalShellCall, LocalShellCallOutput, ToolSearchOutput
from antiphon.wire.responses.request import Includable
from antiphon.wire.responses.response import read_item
from antiphon.wire.responses.tools import NamespaceTool, Tool

_BAD_ID = "The id does not begin with `conv_`."
_NOT_FOUND = {404: "There is no such conversation."}
_ITEM_NOT_FOUND = {404: "There is no such conversation, or it has no such item."}
_LOCKED = "a response is made in the conversation at the moment (`conversation_locked`)"
_INVALID_ITEMS = f"The request is invalid, an item's id is there already, or {_LOCKED}; `param` names the field."
_INCLUDE = Parameter(
    "include",
    "Takes the values of the original; everything is always included.",
    {"type": "array", "items": {"enum": [*get_args(Includable)]}},
)

_LINKS = dict.fromkeys(
    ("getConversation", "updateConversation", "deleteConversation", "createConversationItems", "listConversationItems"), "conversation_id"
)
_CREATE = Operation(
    "createConversation",
    "Conversations",
    "Create a conversation",
    Conversation,
    CreateConversationRequest,
    errors=BODY_ERRORS | {400: "The request is invalid; `param` names the field.", 404: "An item refers to one that is not stored."},
    description="A response that names it as its `conversation` reads its items before its own input, and adds its input and output.",
    links=_LINKS,
)
_RETRIEVE = Operation("getConversation", "Conversations", "Retrieve a conversation", Conversation, errors=_NOT_FOUND | {400: _BAD_ID})
_LIST = Operation(
    "listConversations",
    "Conversations",
    "List the conversations",
    ConversationList,
    errors={400: "A parameter is invalid, or `after` is not the id of one of the conversations; `param` says which."},
    query=page_parameters("conversation"),
)
_UPDATE = Operation(
    "updateConversation",
    "Conversations",
    "Replace a conversation's metadata",
    Conversation,
    UpdateConversationRequest,
    errors=BODY_ERRORS | _NOT_FOUND | {400: "The request is invalid; `param` names the field."},
)
_DELETE = Operation(
    "deleteConversation",
    "Conversations",
    "Delete a conversation with its items",
    ConversationDeleted,
    errors=_NOT_FOUND | {400: _BAD_ID},
    description="Responses that were made in it stay. One that is being made goes on, and adds nothing.",
)
_ADD_ITEMS = Operation(
    "createConversationItems",
    "Conversations",
    "Add items to a conversation",
    ConversationItemList,
    AddItemsRequest,
    errors=BODY_ERRORS | _NOT_FOUND | {400: _INVALID_ITEMS},
    query=[_INCLUDE],
)
_LIST_ITEMS = Operation(
    "listConversationItems",
    "Conversations",
    "List a conversation's items",
    ConversationItemList,
    errors=_NOT_FOUND | {400: "A parameter is invalid, or `after` is not the id of one of its items; `param` says which."},
    query=[*page_parameters("item"), _INCLUDE],
)
_RETRIEVE_ITEM = Operation(
    "getConversationItem",
    "Conversations",
    "Retrieve an item of a conversation",
    items.Item,
    errors=_ITEM_NOT_FOUND | {400: "A parameter is invalid; `param` says which."},
    query=[_INCLUDE],
)
_DELETE_ITEM = Operation(
    "deleteConversationItem",
    "Conversations",
    "Delete an item of a conversation",
    Conversation,
    errors=_ITEM_NOT_FOUND | {400: f"{_BAD_ID} Or {_LOCKED}."},
)


def routes(service: Service) -> list[GuardedRoute]:
    """All routes under `/v1/conversations`."""
    one, all_items = "/v1/conversations/{conversation_id}", "/v1/conversations/{conversation_id}/items"
    paths = guarded_routes(
        service,
        [
            ("POST", "/v1/conversations", _create(service), "responses:write", _CREATE),
            ("GET", "/v1/conversations", _list(service), "responses:read", _LIST),
            ("GET", one, _retrieve(service), "responses:read", _RETRIEVE),
            ("POST", one, _update(service), "responses:write", _UPDATE),
            ("DELETE", one, _delete(service), "responses:write", _DELETE),
            ("POST", all_items, _add_items(service), "responses:write", _ADD_ITEMS),
            ("GET", all_items, _list_items(service), "responses:read", _LIST_ITEMS),
            ("GET", f"{all_items}/{{item_id}}", _retrieve_item(service), "responses:read", _RETRIEVE_ITEM),
            ("DELETE", f"{all_items}/{{item_id}}", _delete_item(service), "responses:write", _DELETE_ITEM),
        ],
    )
    return profile_routes(paths)


_create_reader: Reader[CreateConversationRequest] = Reader(CreateConversationRequest)
_update_reader: Reader[UpdateConversationRequest] = Reader(UpdateConversationRequest)
_add_reader: Reader[AddItemsRequest] = Reader(AddItemsRequest)


def _create(service: Service) -> EndpointFunction:
    async def create(request: Request) -> Response:
        body = await read_json_body(request)
        options = await offload(len(body), _decode_create, body)
        tenant = request_caller(request.scope).tenant
        records = await _new_records(service, tenant, value_or(options.items, []), len(body))
        record = ConversationRecord(
            id=new_id("conv"), tenant=tenant, created_at=int(time.time()), metadata=encode(value_or(options.metadata, {}))
        )
        await service.store.conversations.create(record, records)
        return _conversation_response(record)

    return create


def _list(service: Service) -> EndpointFunction:
    async def list_conversations(request: Request) -> Response:
        query, tenant = request.query_params, request_caller(request.scope).tenant
        after, limit, order = query.get("after"), page_limit(query), page_order(query)
        try:
            page = await service.store.conversations.all(tenant, after=after, limit=limit, order=order)
        except UnknownCursor:
            raise unknown_cursor("Conversation", query["after"]) from None
        ids = [record.id for record in page.conversations]
        return json_response(
            {
                "object": "list",
                "data": [_conversation_object(record) for record in page.conversations],
                "first_id": ids[0] if ids else None,
                "last_id": ids[-1] if ids else None,
                "has_more": page.has_more,
            }
        )

    return list_conversations


def _retrieve(service: Service) -> EndpointFunction:
    async def retrieve(request: Request) -> Response:
        tenant, conversation_id = _owner_and_id(request)
        return _conversation_response(_existing(await service.store.conversations.get(tenant, conversation_id), conversation_id))

    return retrieve


def _update(service: Service) -> EndpointFunction:
    async def update(request: Request) -> Response:
        tenant, conversation_id = _owner_and_id(request)
        body = await read_json_body(request)
        options = await offload(len(body), _decode_update, body)
        record = await service.store.conversations.update(tenant, conversation_id, encode(options.metadata or {}))
        return _conversation_response(_existing(record, conversation_id))

    return update


def _delete(service: Service) -> EndpointFunction:
    async def delete(request: Request) -> Response:
        tenant, conversation_id = _owner_and_id(request)
        if not await service.store.conversations.delete(tenant, conversation_id):
            raise conversation_not_found(conversation_id)
        return json_response(encode(ConversationDeleted(id=conversation_id)))

    return delete


def _add_items(service: Service) -> EndpointFunction:
    async def add_items(request: Request) -> Response:
        tenant, conversation_id = _owner_and_id(request)
        read_query(IncludeQuery, request.query_params.multi_items())  # only to validate: everything is always included
        body = await read_json_body(request)
        options = await offload(len(body), _decode_items, body)
        records = await _new_records(service, tenant, options.items, len(body), conversation_id)
        try:
            await service.store.conversations.add_items(tenant, conversation_id, records)
        except UnknownConversation:
            raise conversation_not_found(conversation_id) from None
        except ConversationLocked:
            raise conversation_locked() from None
        except DuplicateItem as error:
            raise duplicate_item(str(error), "items") from None
        return _items_response(records, has_more=False)

    return add_items


def _list_items(service: Service) -> EndpointFunction:
    async def list_items(request: Request) -> Response:
        tenant, conversation_id = _owner_and_id(request)
        query = request.query_params
        read_query(IncludeQuery, query.multi_items())  # validated only, as above
        after = query.get("after")
        try:
            page = await service.store.conversations.page(
                tenant, conversation_id, after=after, limit=page_limit(query), order=page_order(query)
            )
        except UnknownCursor:
            raise unknown_cursor("Item", after) from None
        if page is None:
            raise conversation_not_found(conversation_id)
        return _items_response(page.items, has_more=page.has_more)

    return list_items


def _retrieve_item(service: Service) -> EndpointFunction:
    async def retrieve_item(request: Request) -> Response:
        tenant, conversation_id = _owner_and_id(request)
        read_query(IncludeQuery, request.query_params.multi_items())  # validated only, as above
        item_id = request.path_params["item_id"]
        record = await service.store.conversations.item(tenant, item_id, conversation_id)
        if record is None:
            raise await _item_not_found(service, tenant, conversation_id, item_id)
        return json_response(record.body)

    return retrieve_item


def _delete_item(service: Service) -> EndpointFunction:
    async def delete_item(request: Request) -> Response:
        tenant, conversation_id = _owner_and_id(request)
        item_id = request.path_params["item_id"]
        try:
            record = await service.store.conversations.delete_item(tenant, conversation_id, item_id)
        except ConversationLocked:
            raise conversation_locked() from None
        if record is None:
            raise await _item_not_found(service, tenant, conversation_id, item_id)
        return _conversation_response(record)

    return delete_item


def _owner_and_id(request: Request) -> tuple[str, str]:
    conversation_id = request.path_params["conversation_id"]
    check_conversation_id(conversation_id, "conversation_id")
    return request_caller(request.scope).tenant, conversation_id


def _existing(record: ConversationRecord | None, conversation_id: str) -> ConversationRecord:
    if record is None:
        raise conversation_not_found(conversation_id)
    return record


async def _item_not_found(service: Service, tenant: str, conversation_id: str, item_id: str) -> ClientError:
    if await service.store.conversations.get(tenant, conversation_id) is None:
        return conversation_not_found(conversation_id)
    return ClientError(f"Item with id '{shorten(item_id)}' not found.", status=404)


def _conversation_response(record: ConversationRecord) -> Response:
    return json_response(_conversation_object(record))


def _conversation_object(record: ConversationRecord) -> dict[str, object]:
    return {"id": record.id, "object": "conversation", "created_at": record.created_at, "metadata": Raw(record.metadata)}


def _items_response(records: Sequence[ItemRecord], *, has_more: bool) -> Response:
    return json_response(
        {
            "object": "list",
            "data": [Raw(record.body) for record in records],
            # The official types have no null here.
            "first_id": records[0].id if records else "",
            "last_id": records[-1].id if records else "",
            "has_more": has_more,
        }
    )


# New items


def _decode_create(body: bytes) -> CreateConversationRequest:
    check_structure(body)
    options = _create_reader.read(body)
    _check_items(value_or(options.items, []))
    return options


def _decode_update(body: bytes) -> UpdateConversationRequest:
    check_structure(body)
    return _update_reader.read(body)


def _decode_items(body: bytes) -> AddItemsRequest:
    check_structure(body)
    options = _add_reader.read(body)
    _check_items(options.items)
    return options


def _check_items(new_items: Sequence[items.Item]) -> None:
    check_item_ids(new_items, "items")
    for index, item in enumerate(new_items):
        path = f"items[{index}]"
        items.check_item(item, path)
        if isinstance(item, Unknown):
            raise invalid_value(f"{path}.type", item.type, items.ITEM_TYPES)
        elif isinstance(item, items.AdditionalTools | ToolSearchOutput):
            _check_tools(item.tools, f"{path}.tools")


def _check_tools(tools: Sequence[object], path: str) -> None:
    for index, tool in enumerate(tools):
        if isinstance(tool, Unknown):
            raise invalid_value(f"{path}[{index}].type", tool.type, _TOOL_TYPES)
        if isinstance(tool, NamespaceTool):
            _check_tools(tool.tools, f"{path}[{index}].tools")


def _known_types(union: UnionType) -> list[str]:
    return [str(kind.__struct_config__.tag) for kind in get_args(union) if kind is not Unknown]


# What this server doesn't know in a response's input, a model may still understand. Here it would only be stored.
_TOOL_TYPES = _known_types(Tool)


async def _new_records(
    service: Service, tenant: str, new_items: Sequence[items.Item], size_bytes: int, conversation_id: str | None = None
) -> Sequence[ItemRecord]:
    """Items as they are stored: references replaced by what they stand for, and each with an id."""
    if any(isinstance(item, items.ItemReference) for item in new_items):
        new_items, reference_bytes = await resolve_references(new_items, service.store, tenant, "items")
        size_bytes += reference_bytes
    # Clients send hosted calls again without their results, which come from the stored items (docs/decisions/0056).
    new_items, result_bytes = await restore_results(new_items, service.store, tenant, "items")
    size_bytes += result_bytes
    new_items = name_calls_by_call_id(new_items, await _stored_shell_calls(service, tenant, new_items, conversation_id))
    check_conversation_ids(new_items, "items", ())
    await check_references(service.files, tenant, new_items, "items")
    return await offload(size_bytes, input_records, new_items, new_id)


async def _stored_shell_calls(
    service: Service, tenant: str, new_items: Sequence[items.Item], conversation_id: str | None
) -> Container[str]:
    """The ids of a conversation's local shell calls that outputs name by the id of the call's item, beside its `call_id`."""
    ids = {str(item.id) for item in new_items if isinstance(item, LocalShellCallOutput) and is_set(item.id) and is_set(item.call_id)}
    if conversation_id is None:
        return ()
    records = [await service.store.conversations.item(tenant, item_id, conversation_id) for item_id in ids]
    return {record.id for record in records if record is not None and isinstance(read_item(record.body), LocalShellCall)}
