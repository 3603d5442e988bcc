"""What webhooks say."""

from typing import Literal

from antiphon.wire.codec.types import Wire


class WebhookResponse(Wire, kw_only=True):
    """The response that an event is about."""

    id: str


class WebhookEvent(Wire, kw_only=True):
    """
    An event as it is sent. It has the id of the response and nothing of what is in it, which takes a key to read.

    Attributes:
        created_at: Unix seconds of the end of the response.
    """

    id: str
    object: Literal["event"] = "event"
    created_at: int
    type: str
    data: WebhookResponse
