"""Describes the requests that this server sends to webhook endpoints."""

from typing import get_args

from antiphon.config.webhooks import EventName
from antiphon.server.openapi.schemas import Schema, reference

_SUMMARIES: dict[EventName, str] = {
    "response.completed": "A background response is complete",
    "response.incomplete": "A background response has reached a limit",
    "response.failed": "A background response has failed",
    "response.cancelled": "A background response was cancelled",
}

_HEADERS = {
    "webhook-id": ("The delivery, the same at every attempt.", {"type": "string", "pattern": "^wh_"}),
    "webhook-timestamp": ("Unix seconds of the attempt.", {"type": "string", "pattern": r"^\d+$"}),
    "webhook-signature": (
        "One or more of `v1,` and the Base64 of HMAC-SHA256 over `id.timestamp.body`, separated by spaces.",
        {"type": "string", "pattern": r"^v1,\S+( v1,\S+)*$"},
    ),
}


def describe_webhooks() -> Schema:
    """The `webhooks` of an OpenAPI document, by event. Source: OpenAPI 3.2, "OpenAPI Object"."""
    return {event: {"post": _describe(event)} for event in get_args(EventName)}


def _describe(event: EventName) -> Schema:
    return {
        "operationId": "on" + "".join(word.capitalize() for word in event.split(".")),
        "tags": ["Responses"],
        "summary": _SUMMARIES[event],
        "parameters": [
            {"name": name, "in": "header", "required": True, "description": text, "schema": schema}
            for name, (text, schema) in _HEADERS.items()
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": reference("WebhookEvent")}}},
        "responses": {
            "2XX": {"description": "Accepted. Any other status but 410 is retried."},
            "410": {"description": "The endpoint wants no more events."},
        },
    }
