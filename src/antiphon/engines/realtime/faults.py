"""What a Realtime server says is wrong, told as the API tells it."""

from collections.abc import Callable
from typing import Any

import msgspec

from antiphon.engines.upstream.faults import is_too_long, refused, said_midway, too_long
from antiphon.errors import ClientMistake, Fault, UpstreamTrouble
from antiphon.wire.codec.types import Unknown
from antiphon.wire.realtime.response import StatusError
from antiphon.wire.realtime.server_events import ErrorEvent, RealtimeError

STATUSES: dict[str, int] = {
    "invalid_api_key": 401,
    "missing_api_key": 401,
    "invalid_authentication": 401,
    "account_deactivated": 403,
    "model_not_found": 404,
    "invalid_model": 404,
    "insufficient_quota": 429,
    "credit_balance_exhausted": 429,
    "billing_hard_limit_reached": 429,
    "rate_limit_exceeded": 429,
    "inference_rate_limit_exceeded": 429,
    "server_is_overloaded": 503,
}
"""The HTTP status that a code would have had, had it come before the upgrade."""

HARMLESS = frozenset(
    {
        "response_cancel_not_active",
        "conversation_already_has_active_response",
        "item_delete_invalid_item_id",
        "item_truncate_invalid_item_id",
        "item_already_truncated",
        "item_create_duplicate_item_id",
        "input_audio_buffer_commit_empty",
        "session_expired",
    }
)
"""Races that were lost, where what was asked for was so already, and what the connection's end tells once more."""

Judge = Callable[[RealtimeError | StatusError | None], Fault]
"""The fault that an error stands for, fit to be told to a client."""

CLOSE_STATUSES = {3000: 401, 1008: 403, 1013: 503}


def fault_of(error: RealtimeError | StatusError | None) -> Fault:
    """The fault that an error stands for."""
    message, code, kind = _given(error, "message"), _given(error, "code") or None, _given(error, "type")
    if is_too_long(message, code):
        return too_long(message)
    status = STATUSES.get(code or "")
    if status is not None:
        return refused(status, {}, msgspec.json.encode({"error": {"message": message, "code": code}}))
    if kind == "invalid_request_error":
        return ClientMistake(message or "The model server refused the request.", code=code, param=_given(error, "param") or None)
    return said_midway({"message": message, "code": code, "type": kind})


def error_in(event: ErrorEvent | Unknown) -> RealtimeError:
    """The error of an event, also of one that is not in the API's shape."""
    if isinstance(event, ErrorEvent):
        return event.error
    said = event.extra.get("error") or event.extra.get("message")
    fields = said if isinstance(said, dict) else {"message": said}
    texts = {name: text for name in ("type", "code", "message", "event_id") if isinstance(text := fields.get(name), str)}
    return RealtimeError(
        type=texts.get("type", "server_error"), code=texts.get("code"), message=texts.get("message", ""), event_id=texts.get("event_id")
    )


def farewell(code: int, reason: str) -> Fault:
    """Why the upstream closed the connection; `reason` is `type.code` where it says an error."""
    _, _, error_code = reason.partition(".")
    status = CLOSE_STATUSES.get(code) or STATUSES.get(error_code)
    if status in (401, 403):
        return refused(status, {}, b"")
    if status is not None:
        return refused(status, {}, msgspec.json.encode({"error": {"message": reason, "code": error_code or None}}))
    said = f" ({code}{': ' + reason if reason else ''})" if code else ""
    return UpstreamTrouble(f"The model server closed the connection{said}.", code="upstream_broke_off")


def _given(error: Any, name: str) -> str:
    text = getattr(error, name, None)
    return text if isinstance(text, str) else ""
