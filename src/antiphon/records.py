"""
What a store keeps, free of any protocol: bodies are bytes that only their protocol reads.
"""

from typing import Literal

from msgspec import Struct

Direction = Literal["input", "output"]


class ItemRecord(Struct, frozen=True, kw_only=True):
    """
    One conversation item of a stored response.

    Attributes:
        id: unique within its tenant; what `item_reference` and the pagination cursors name.
        direction: whether the client sent it with this response, or this response produced it.
        body: the item as JSON, as it is to be shown again.
    """

    id: str
    direction: Direction
    body: bytes


class ResponseRecord(Struct, frozen=True, kw_only=True):
    """
    One stored response, with the items that it added to its conversation.

    Attributes:
        id: unique; begins with `resp_`.
        tenant: whose it is; every look-up names it.
        created_at: Unix seconds.
        status: as on the wire; `in_progress` until it has ended.
        model: the name that the client asked for.
        previous_response_id: the response that it continues, or None.
        body: the response object as JSON.
        items: input in the order given, then output in the order made; none of the ancestors' items.
    """

    id: str
    tenant: str
    created_at: int
    status: str
    model: str
    previous_response_id: str | None
    body: bytes
    items: tuple[ItemRecord, ...] = ()
