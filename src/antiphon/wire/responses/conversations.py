"""Conversations, and what their endpoints take and return."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta

from antiphon.wire.codec.types import Maybe, Wire
from antiphon.wire.responses.items import Item
from antiphon.wire.responses.request import Metadata

MAX_NEW_ITEMS = 20
"""The most items in one request. Conversations reference: "You may add up to 20 items at a time"."""

NewItems = Annotated[list[Item], Meta(max_length=MAX_NEW_ITEMS, title="an array of input items")]


class Conversation(Wire, kw_only=True):
    """A conversation, without its items."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


class ConversationDeleted(Wire, kw_only=True):
    """A conversation was deleted."""

    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


class ConversationItemList(Wire, kw_only=True):
    """A page of a conversation's items; the next one follows `last_id`. Both ids are empty where there is no item."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str
    last_id: str
    has_more: bool


class CreateConversationRequest(Wire, kw_only=True):
    """The first items of a conversation, and its metadata."""

    items: Maybe[NewItems] = UNSET
    metadata: Maybe[Metadata] = UNSET


class UpdateConversationRequest(Wire, kw_only=True):
    """The metadata that replaces a conversation's; null for none."""

    metadata: Metadata | None


class AddItemsRequest(Wire, kw_only=True):
    """Items to add to a conversation."""

    items: NewItems
