"""Lists of responses and conversations, which OpenAI's API does not have, in the shape of its lists."""

from typing import Literal

from msgspec import UNSET

from antiphon.wire.codec.types import Maybe, Wire
from antiphon.wire.responses.conversations import Conversation
from antiphon.wire.responses.items import Item
from antiphon.wire.responses.request import Metadata
from antiphon.wire.responses.response import IncompleteDetails, ResponseError, ResponseUsage


class ListedResponse(Wire, kw_only=True):
    """
    A response in a list, without what was said.

    Attributes:
        completed_at: Unix seconds; null where it has not ended well.
        root_id: the first response of those that continue each other.
        title: that in its metadata.
        key_id: the key that it was created with; null where no key was needed, or where it is no longer known.
        input, output, error, incomplete_details: only where they were asked for.
    """

    id: str
    object: Literal["response.summary"] = "response.summary"
    created_at: int
    completed_at: int | None
    model: str
    status: str
    background: bool
    previous_response_id: str | None
    root_id: str
    title: str | None
    usage: ResponseUsage | None
    metadata: dict[str, str]
    key_id: str | None
    input: Maybe[list[Item]] = UNSET
    output: Maybe[list[Item]] = UNSET
    error: Maybe[ResponseError | None] = UNSET
    incomplete_details: Maybe[IncompleteDetails | None] = UNSET


class ListedResponses(Wire, kw_only=True):
    """A page of responses; the next one follows `last_id`."""

    object: Literal["list"] = "list"
    data: list[ListedResponse]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseRoot(Wire, kw_only=True):
    """
    All responses that continue each other, from the first one on: a chat with its branches.

    Attributes:
        id: of the first response.
        created_at: of the first response; null where that was deleted.
        updated_at: when the latest response was created.
        title, metadata: of the first response.
        model, status: of the latest response.
        responses: how many there are.
        last_response_id: the latest response.
    """

    id: str
    object: Literal["response.root"] = "response.root"
    created_at: int | None
    updated_at: int
    title: str | None
    metadata: dict[str, str]
    model: str
    status: str
    responses: int
    last_response_id: str


class ResponseRoots(Wire, kw_only=True):
    """A page of roots; the next one follows `last_id`."""

    object: Literal["list"] = "list"
    data: list[ResponseRoot]
    first_id: str | None
    last_id: str | None
    has_more: bool


class UpdateResponseRequest(Wire, kw_only=True):
    """The metadata that replaces a response's; null for none."""

    metadata: Metadata | None


class ConversationList(Wire, kw_only=True):
    """A page of conversations; the next one follows `last_id`."""

    object: Literal["list"] = "list"
    data: list[Conversation]
    first_id: str | None
    last_id: str | None
    has_more: bool
