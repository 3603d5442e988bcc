"""
From a decoded request to a resolved one: everything that it refers to is loaded, and audio is transcribed for a model
that takes none.
"""

import time
from collections.abc import Sequence

from msgspec import structs

from antiphon.errors import ClientError, pattern_mismatch, previous_response_not_found, references_too_large
from antiphon.offload import offload
from antiphon.protocols.responses.request import ResolvedRequest, has_audio_output, is_set
from antiphon.records import ItemRecord, ResponseRecord
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.speech.service import SpeechService
from antiphon.runtime.speech.transcribe_input import transcribe_item
from antiphon.stores.base import MAX_CHAIN_BYTES, MissingAncestor, Store
from antiphon.wire.codec.types import Unknown
from antiphon.wire.responses import items
from antiphon.wire.responses.request import CreateRequest


async def resolve_request(
    request: CreateRequest,
    model: ServedModel,
    store: Store,
    tenant: str,
    *,
    omit_unsupported: bool = True,
    speech: SpeechService | None = None,
    size_bytes: int = 0,
    record: ResponseRecord | None = None,
) -> ResolvedRequest:
    """
    Resolve a request to `model`.

    Args:
        omit_unsupported: whether tools that the engine can't use are left out rather than refused.
        speech: transcribes audio for an engine that takes none.
        size_bytes: of the request's JSON.
        record: of the response, if it is stored already.

    Raises:
        ApiError: it refers to a response or an item that does not exist, or has audio that can't be decoded; or the model
            has no worker now.
    """
    model.require_worker()
    capabilities = model.engine.capabilities
    input_items = await offload(size_bytes, _input_items, request)
    if any(isinstance(item, items.ItemReference) for item in input_items):
        input_items, reference_bytes = await _resolve_references(input_items, store, tenant)
        size_bytes += reference_bytes
    history = await _load_history(request, store, tenant)
    history_bytes = sum(len(record.body) for record in history)
    previous_items = await offload(history_bytes, lambda: [items.decode_item(record.body) for record in history])
    if speech is not None and speech.missing_reason is None and not capabilities.audio_in:
        input_items = [await transcribe_item(item, f"input[{index}]", speech) for index, item in enumerate(input_items)]
        previous_items = [await transcribe_item(item, "previous_response_id", speech) for item in previous_items]
    if has_audio_output(request):
        capabilities = structs.replace(model.live_engine.capabilities, audio_in=capabilities.audio_in)
    return ResolvedRequest(
        id=new_id("resp") if record is None else record.id,
        tenant=tenant,
        created_at=int(time.time()) if record is None else record.created_at,
        model=model.name,
        request=request,
        capabilities=capabilities,
        input_items=tuple(input_items),
        previous_items=tuple(previous_items),
        size_bytes=size_bytes + history_bytes,
        omit_unsupported=omit_unsupported,
    )


def _input_items(request: CreateRequest) -> Sequence[items.Item]:
    input_items = request.input_items
    for index, item in enumerate(input_items):
        item_id = item.extra.get("id") if isinstance(item, Unknown) else getattr(item, "id", None)
        if "\0" in str(item_id):
            raise pattern_mismatch(f"input[{index}].id", r"^[^\x00]+$")  # PostgreSQL stores no NUL in text
    return input_items


async def _resolve_references(input_items: Sequence[items.Item], store: Store, tenant: str) -> tuple[Sequence[items.Item], int]:
    """The items with those that they refer to, and the size of the latter: each may be named any number of times."""
    all_items: list[items.Item] = []
    size_bytes = 0
    for index, item in enumerate(input_items):
        if not isinstance(item, items.ItemReference):
            all_items.append(item)
            continue
        record = await store.item(tenant, item.id)
        if record is None:
            raise ClientError(f"Item with id '{item.id}' not found.", param="input", status=404)
        size_bytes += len(record.body)
        if size_bytes > MAX_CHAIN_BYTES:
            raise references_too_large(f"input[{index}].id", MAX_CHAIN_BYTES)
        all_items.append(await offload(len(record.body), items.decode_item, record.body))
    return all_items, size_bytes


async def _load_history(request: CreateRequest, store: Store, tenant: str) -> list[ItemRecord]:
    previous_id = request.previous_response_id
    if not is_set(previous_id):
        return []
    assert isinstance(previous_id, str)
    try:
        chain = await store.chain(tenant, previous_id)
    except MissingAncestor as error:
        raise previous_response_not_found(str(error)) from None
    if not chain:
        raise previous_response_not_found(previous_id)
    return [record for response in chain for record in response.items]
