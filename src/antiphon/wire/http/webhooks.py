"""What webhooks say."""

from typing import Literal

from antiphon.wire.codec.types import Wire


class WebhookResponse(Wire, kw_only=True):
    """The response that an event is about."""

    id: str


class WebhookEvent(Wire, kw_only=True):
    """
    An event as it is sent. It has no more than the response's id: whoever may read the response, reads it.

    Attributes:
        created_at: Unix seconds of the end of the response.
    """

    id: str
    object: Literal["event"] = "event"
    created_at: int
    type: str
    data: WebhookResponse
