"""
From a decoded request to an order: the model found, everything loaded that the request refers to, and recordings written down for a
model that can't hear.
"""

import time
from collections.abc import Sequence

from msgspec import structs

from antiphon.errors import ClientMistake, pattern_mismatch, previous_response_not_found
from antiphon.protocols.responses.request import Order, given, wants_sound
from antiphon.records import ItemRecord
from antiphon.runtime.core.ids import mint
from antiphon.runtime.registry import Model
from antiphon.runtime.speech.service import Speech
from antiphon.runtime.speech.transcribe_input import written_down
from antiphon.stores.base import MissingAncestor, Store
from antiphon.wire.codec.types import Unknown
from antiphon.wire.responses import items
from antiphon.wire.responses.parts import InputText
from antiphon.wire.responses.request import CreateRequest


async def order_of(
    request: CreateRequest, model: Model, store: Store, tenant: str, *, carries: bool = True, speech: Speech | None = None
) -> Order:
    """
    The order for a request to `model`.

    Args:
        carries: whether tools that its engine can't do are carried rather than refused.
        speech: hears for an engine that can't.

    Raises:
        ClientMistake: it refers to a response or an item that is not there, or has a recording that can't be read.
    """
    abilities = model.engine.abilities
    given_items = tuple([await _resolved(item, store, tenant) for item in _items(request)])
    past = await _past(request, store, tenant)
    if speech is not None and speech.missing is None and not abilities.audio_in:
        given_items = tuple([await written_down(item, f"input[{place}]", speech) for place, item in enumerate(given_items)])
        past = tuple([await written_down(item, "previous_response_id", speech) for item in past])
    if wants_sound(request):
        abilities = structs.replace(model.live.abilities, audio_in=abilities.audio_in)
    return Order(
        id=mint("resp"),
        tenant=tenant,
        created_at=int(time.time()),
        model=model.name,
        request=request,
        abilities=abilities,
        given=given_items,
        past=past,
        carries=carries,
    )


def _items(request: CreateRequest) -> Sequence[items.Item]:
    if isinstance(request.input, str):
        return [items.Message(role="user", content=[InputText(text=request.input)])]
    given_items = request.input or []
    for place, item in enumerate(given_items):
        item_id = item.extra.get("id") if isinstance(item, Unknown) else getattr(item, "id", None)
        if "\0" in str(item_id):
            raise pattern_mismatch(f"input[{place}].id", r"^[^\x00]+$")  # which not every database could keep
    return given_items


async def _resolved(item: items.Item, store: Store, tenant: str) -> items.Item:
    if not isinstance(item, items.ItemReference):
        return item
    record = await store.item(tenant, item.id)
    if record is None:
        raise ClientMistake(f"Item with id '{item.id}' not found.", param="input", status=404)
    return items.decode_item(record.body)


async def _past(request: CreateRequest, store: Store, tenant: str) -> tuple[items.Item, ...]:
    previous_id = request.previous_response_id
    if not given(previous_id):
        return ()
    assert isinstance(previous_id, str)
    try:
        chain = await store.chain(tenant, previous_id)
    except MissingAncestor as missing:
        raise previous_response_not_found(str(missing)) from None
    if not chain:
        raise previous_response_not_found(previous_id)
    told: list[ItemRecord] = [record for response in chain for record in response.items]
    return tuple(items.decode_item(record.body) for record in told)
