"""
From a decoded request to a resolved one: everything that it refers to is loaded, and audio is transcribed for a model
that takes none.
"""

import time
from collections.abc import Container, Mapping, Sequence

import msgspec
from msgspec import UNSET, Struct, structs

from antiphon.engine_api.documents import FileContent
from antiphon.errors import (
    ClientError,
    conversation_not_found,
    duplicate_item,
    pattern_mismatch,
    previous_response_not_found,
    previous_response_not_ready,
    references_too_large,
    shorten,
    too_long,
)
from antiphon.offload import LARGE_BYTES, offload
from antiphon.protocols.responses.history import is_plain_message
from antiphon.protocols.responses.request import ResolvedRequest, has_audio_output, is_set
from antiphon.records import ItemRecord
from antiphon.runtime.access.body_budget import BodyLease
from antiphon.runtime.access.encrypted_items import decrypt_items
from antiphon.runtime.conversation_lock import check_conversation_id
from antiphon.runtime.core.ids import new_response_id
from antiphon.runtime.files.references import load_documents
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.service import Service
from antiphon.runtime.speech.transcribe_input import transcribe_item
from antiphon.stores.base import MAX_CHAIN_BYTES, UNFINISHED_STATUSES, ItemsTooLarge, MissingAncestor, Store
from antiphon.wire.codec.response_ids import read_response_id
from antiphon.wire.codec.types import Unknown, encode
from antiphon.wire.responses import items
from antiphon.wire.responses.hosted_calls import (
    CodeInterpreterCall,
    FileSearchCall,
    ImageGenerationCall,
    LocalShellCall,
    LocalShellCallOutput,
    SearchAction,
    WebSearchCall,
)
from antiphon.wire.responses.request import CreateRequest
from antiphon.wire.responses.response import read_item

MAX_ITEM_ID_LENGTH = 64
"""The longest id of an item in a conversation, as in the original."""

MAX_ITEM_ID_BYTES = 2048
"""
The longest id of any other item: those of some servers have 1,700 characters, and their clients send them to others.

PostgreSQL has no room for more than 2,704 bytes in a row of an index.
Source: https://www.postgresql.org/docs/current/btree.html
"""


class KnownHistory(Struct, frozen=True):
    """
    The items of the conversation up to a response.

    Attributes:
        size_bytes: of their JSON.
        item_ids: those of all items of the conversation that the response belongs to.
        model: that made the response; None where that is not known.
    """

    items: tuple[items.Item, ...]
    size_bytes: int
    item_ids: frozenset[str] = frozenset()
    model: str | None = None


async def resolve_request(
    service: Service,
    request: CreateRequest,
    model: ServedModel,
    tenant: str,
    size_bytes: int,
    *,
    lease: BodyLease,
    response_id: str | None = None,
    created_at: int | None = None,
    history: KnownHistory | None = None,
    key_id: str | None = None,
) -> ResolvedRequest:
    """
    Resolve a request to `model`.

    Args:
        size_bytes: of the request's JSON.
        lease: counts the memory that uploaded files take.
        response_id: the id of the response, where it has one already.
        created_at: when it was created, in Unix seconds, where that was before.
        history: that of the previous response; None to load it from the store.
        key_id: the key that it came with; None where no key was needed.

    Raises:
        ApiError: it refers to a response, an item or a file that does not exist, or has audio or encrypted reasoning that can't
            be decoded; or the model has no worker now.
    """
    model.require_worker()
    if is_set(request.previous_response_id):
        request = structs.replace(request, previous_response_id=read_response_id(request.previous_response_id))
    store, speech, capabilities = service.store, service.speech, model.engine.capabilities
    has_plain_input = isinstance(request.input, str)  # one message, without an id
    if has_plain_input:
        input_items: Sequence[items.Item] = request.input_items
    else:
        input_items = await _check_items(request.input_items, size_bytes)
        has_plain_input = all(map(is_plain_message, input_items))
    if not has_plain_input and any(isinstance(item, items.ItemReference) for item in input_items):
        input_items, reference_bytes = await resolve_references(input_items, store, tenant, "input")
        size_bytes += reference_bytes
    if not has_plain_input:
        input_items, result_bytes = await restore_results(input_items, store, tenant, "input")
        size_bytes += result_bytes
    history = history or await load_history(request, store, tenant)
    input_items = _behind(history, input_items, in_conversation=request.conversation_id is not None)
    previous_items: Sequence[items.Item] = history.items
    decrypted_texts: Mapping[str, str] = {}
    documents: Mapping[str, FileContent] = {}
    # Nothing but text takes a shorter way to the engine (docs/decisions/0063).
    is_plain = has_plain_input and not previous_items and not isinstance(request.instructions, list)
    if not is_plain:
        decrypted_texts = await decrypt_items(
            input_items,
            previous_items,
            service.content_cipher,
            tenant,
            engine_encrypts=capabilities.encrypts_reasoning,
            engine_compacts=capabilities.compacts,
        )
        documents = await _load_documents(
            service, request, tenant, input_items, previous_items, decrypted_texts, lease, fetches_itself=capabilities.files
        )
    if not is_plain and speech.missing_reason is None and not capabilities.audio_in:
        input_items = [await transcribe_item(item, f"input[{index}]", speech, tenant) for index, item in enumerate(input_items)]
        previous_items = [await transcribe_item(item, request.previous_path, speech, tenant) for item in previous_items]
    # The voice is added to the engine, which by itself may have none.
    if has_audio_output(request):
        capabilities = structs.replace(model.live_engine.capabilities, audio_in=capabilities.audio_in)
    return ResolvedRequest(
        id=response_id or new_response_id(),
        tenant=tenant,
        created_at=int(time.time()) if created_at is None else created_at,
        model=model.name,
        request=request,
        capabilities=capabilities,
        input_items=tuple(input_items),
        previous_items=tuple(previous_items),
        previous_ids=history.item_ids,
        decrypted_texts=decrypted_texts,
        documents=documents,
        size_bytes=size_bytes + history.size_bytes,
        is_plain=is_plain,
        omit_unsupported=service.config.responses.unavailable_tools == "carry",
        key_id=key_id,
    )


async def _check_items(input_items: Sequence[items.Item], size_bytes: int) -> Sequence[items.Item]:
    if size_bytes < LARGE_BYTES:
        return check_item_ids(input_items, "input")
    return await offload(size_bytes, check_item_ids, input_items, "input")


async def _load_documents(
    service: Service,
    request: CreateRequest,
    tenant: str,
    input_items: Sequence[items.Item],
    previous_items: Sequence[items.Item],
    decrypted_texts: Mapping[str, str],
    lease: BodyLease,
    *,
    fetches_itself: bool,
) -> Mapping[str, FileContent]:
    given_items = [("input", input_items)]
    if request.instructions and not isinstance(request.instructions, str):
        given_items.append(("instructions", request.instructions))
    fetch = None if fetches_itself else service.fetch
    return await load_documents(service.files, fetch, tenant, given_items, previous_items, decrypted_texts, lease)


def check_item_ids(input_items: Sequence[items.Item], path: str) -> Sequence[items.Item]:
    """
    The items, whose ids a store takes.

    Args:
        path: of the items in the request.

    Raises:
        ClientError: an id has a NUL, or is longer than `MAX_ITEM_ID_BYTES`.
    """
    for index, item in enumerate(input_items):
        item_id = str(item.extra.get("id")) if isinstance(item, Unknown) else str(getattr(item, "id", None))
        if "\0" in item_id:
            raise pattern_mismatch(f"{path}[{index}].id", r"^[^\x00]+$")  # PostgreSQL stores no NUL in text
        # A character has four bytes at most, so most ids need not be encoded.
        if len(item_id) > MAX_ITEM_ID_BYTES // 4 and (length_bytes := len(item_id.encode())) > MAX_ITEM_ID_BYTES:
            raise too_long(f"{path}[{index}].id", "string", MAX_ITEM_ID_BYTES, length_bytes)
    return input_items


def check_conversation_ids(input_items: Sequence[items.Item], path: str, known_ids: Container[str]) -> None:
    """
    Check that the ids of items are new to a conversation.

    Args:
        path: of the items in the request.
        known_ids: the ids that the conversation has.

    Raises:
        ClientError: an id is there already, or is longer than `MAX_ITEM_ID_LENGTH`.
    """
    ids: set[str] = set()
    for index, item in enumerate(input_items):
        if (item_id := items.id_of(item)) is None:
            continue
        if len(item_id) > MAX_ITEM_ID_LENGTH:
            raise too_long(f"{path}[{index}].id", "string", MAX_ITEM_ID_LENGTH, len(item_id))
        if item_id in ids or item_id in known_ids:
            raise duplicate_item(item_id, path)
        ids.add(item_id)


def _behind(history: KnownHistory, input_items: Sequence[items.Item], *, in_conversation: bool) -> Sequence[items.Item]:
    """
    The items of a request as they stand behind those before them.

    Raises:
        ClientError: an id is there twice.
    """
    if in_conversation:
        input_items = name_calls_by_call_id(input_items, history.item_ids)
        check_conversation_ids(input_items, "input", history.item_ids)
    elif history.items or len(input_items) > 1:
        _check_new_ids(input_items, history.items)
    return input_items


def _check_new_ids(input_items: Sequence[items.Item], previous_items: Sequence[items.Item]) -> None:
    """
    Check that no item is in the input twice, nor among those of the previous responses, as the original does.

    Raises:
        ClientError: one is, by its id.
    """
    # A local shell's output may have the id of its call.
    ids = [item_id for item in input_items if (item_id := items.id_of(item)) and not isinstance(item, LocalShellCallOutput)]
    known_ids = {items.id_of(item) for item in previous_items} if ids else set()
    for item_id in ids:
        if item_id in known_ids:
            raise duplicate_item(item_id, "input")
        known_ids.add(item_id)


def name_calls_by_call_id(input_items: Sequence[items.Item], known_ids: Container[str] = ()) -> Sequence[items.Item]:
    """
    The items for a conversation, in which an item's id is its own: the `id` of a `local_shell_call_output` is that of its
    call, by the specification, and becomes its `call_id`. An id is then given to it like to others without one.

    Args:
        known_ids: those that the conversation has.
    """
    if not any(isinstance(item, LocalShellCallOutput) for item in input_items):
        return input_items
    call_ids = {item.id for item in input_items if isinstance(item, LocalShellCall)}
    named_items: list[items.Item] = []
    for item in input_items:
        if isinstance(item, LocalShellCallOutput) and isinstance(item.id, str) and 0 < len(item.id) <= MAX_ITEM_ID_LENGTH:
            if not item.call_id:
                item = structs.replace(item, call_id=item.id, id=UNSET)
            elif item.id == item.call_id or item.id in call_ids or item.id in known_ids:
                item = structs.replace(item, id=UNSET)
        named_items.append(item)
    return named_items


async def resolve_references(input_items: Sequence[items.Item], store: Store, tenant: str, path: str) -> tuple[Sequence[items.Item], int]:
    """
    The items with those that they refer to, and the size of the latter: each may be named any number of times.

    Args:
        path: of the items in the request.

    Raises:
        ClientError: a reference is to no stored item, or they are too large together.
    """
    ids = [item.id for item in input_items if isinstance(item, items.ItemReference)]
    records = await _load_items(store, tenant, ids, path)
    all_items: list[items.Item] = []
    size_bytes = 0
    for index, item in enumerate(input_items):
        if not isinstance(item, items.ItemReference):
            all_items.append(item)
            continue
        if (record := records.get(item.id)) is None:
            raise _item_not_found(item.id, path)
        size_bytes += len(record.body)
        if size_bytes > MAX_CHAIN_BYTES:
            raise references_too_large(f"{path}[{index}].id", MAX_CHAIN_BYTES)
        all_items.append(await offload(len(record.body), read_item, record.body))
    return all_items, size_bytes


async def _load_items(store: Store, tenant: str, ids: Sequence[str], path: str) -> Mapping[str, ItemRecord]:
    """The stored items with these ids; `path` is what refers to them."""
    if not ids:
        return {}
    try:
        records = dict(await store.items(tenant, ids))
        # Items of conversations are stored apart from those of responses. What the server made goes before what a client sent.
        others = [item_id for item_id in ids if item_id not in records or records[item_id].direction == "input"]
        of_conversations = await store.conversations.items(tenant, others) if others else {}
        for item_id, record in of_conversations.items():
            if record.direction == "output" or item_id not in records:
                records[item_id] = record
    except ItemsTooLarge:
        raise references_too_large(path, MAX_CHAIN_BYTES) from None
    return records


def _item_not_found(item_id: str, path: str) -> ClientError:
    return ClientError(f"Item with id '{shorten(item_id)}' not found.", param=path, status=404)


async def restore_results(input_items: Sequence[items.Item], store: Store, tenant: str, path: str) -> tuple[Sequence[items.Item], int]:
    """
    The items with what tools found, and the size of the stored ones: a client that was not shown it (`include`) sends them
    without, and the model would lose what it has read. A picture may also be named by the id of its call alone.

    Args:
        path: of the items in the request.

    Raises:
        ClientError: they are too large together, or there is no such picture.
    """
    ids = [item_id for item in input_items if (item_id := _id_without_results(item)) is not None]
    records = await _load_items(store, tenant, ids, path)
    all_items: list[items.Item] = []
    size_bytes = 0
    for index, item in enumerate(input_items):
        if (item_id := _id_without_results(item)) is not None:
            if (record := records.get(item_id)) is not None:
                size_bytes += len(record.body)
                if size_bytes > MAX_CHAIN_BYTES:
                    raise references_too_large(f"{path}[{index}].id", MAX_CHAIN_BYTES)
                item = await offload(len(record.body), _with_results, item, record.body)
            if isinstance(item, ImageGenerationCall) and item.status is UNSET and not item.result:
                raise _item_not_found(item_id, path)
        all_items.append(item)
    return all_items, size_bytes


def _id_without_results(item: items.Item) -> str | None:
    """The id of an item of a tool that found something, and that comes without; None for any other."""
    match item:
        case FileSearchCall(id=item_id, results=results):
            return None if results else item_id
        case CodeInterpreterCall(id=item_id, outputs=outputs):
            return None if outputs else item_id
        case ImageGenerationCall(id=item_id, result=result):
            return None if result else item_id
        case WebSearchCall(id=item_id):
            return None if item.extra and item.extra.get("results") else item_id
        case _:
            return None


def _with_results(item: items.Item, body: bytes) -> items.Item:
    """The item with what is in the stored one, unless that only happens to have the same id, as ids that clients make up may."""
    if not _is_part(msgspec.json.decode(encode(item)), msgspec.json.decode(body)):
        return item
    match item, read_item(body):
        case FileSearchCall(), FileSearchCall(results=results):
            return structs.replace(item, results=results)
        case CodeInterpreterCall(), CodeInterpreterCall(outputs=outputs):
            return structs.replace(item, outputs=outputs)
        case ImageGenerationCall(), ImageGenerationCall() as picture:
            return picture
        case WebSearchCall(action=SearchAction() as action), WebSearchCall(action=SearchAction(sources=sources), extra=extra):
            action = action if action.sources else structs.replace(action, sources=sources)
            return structs.replace(item, action=action, extra=extra)
        case WebSearchCall(), WebSearchCall(extra=extra):
            return structs.replace(item, extra=extra)
        case _:
            return item


def _is_part(part: object, whole: object) -> bool:
    """Whether all that one value has is in another too; null and empty lists are nothing."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(_is_part(value, whole.get(name)) for name, value in part.items())
    return part in (None, []) or part == whole


async def load_history(request: CreateRequest, store: Store, tenant: str) -> KnownHistory:
    """
    What a request continues, from the store.

    Raises:
        ClientError: there is no such response or conversation, or the response has not ended.
    """
    conversation_id = request.conversation_id
    if conversation_id is not None:
        check_conversation_id(conversation_id, "conversation")
        window = await store.conversations.window(tenant, conversation_id)
        if window is None:
            raise conversation_not_found(conversation_id)
        return await _decode_history(window.items, window.ids)
    previous_id = request.previous_response_id
    if not is_set(previous_id):
        return KnownHistory((), 0)
    assert isinstance(previous_id, str)
    try:
        chain = await store.chain(tenant, previous_id)
    except MissingAncestor as error:
        raise previous_response_not_found(str(error)) from None
    if not chain:
        raise previous_response_not_found(previous_id)
    if chain[-1].status in UNFINISHED_STATUSES:  # the model would answer as if it had said nothing
        raise previous_response_not_ready(previous_id)
    history = await _decode_history([record for response in chain for record in response.items], frozenset())
    return structs.replace(history, model=chain[-1].model)


async def _decode_history(records: Sequence[ItemRecord], item_ids: frozenset[str]) -> KnownHistory:
    size_bytes = sum(len(record.body) for record in records)
    decoded_items = await offload(size_bytes, lambda: tuple(read_item(record.body) for record in records))
    return KnownHistory(decoded_items, size_bytes, item_ids)
