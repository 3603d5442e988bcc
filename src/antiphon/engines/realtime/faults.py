"""The errors of a Realtime server as errors of this server."""

import re
from collections.abc import Callable

import msgspec

from antiphon.engines.upstream.faults import error_from_response, error_from_stream, input_too_long, is_input_too_long
from antiphon.errors import ApiError, ClientError, UpstreamError
from antiphon.wire.codec.types import Unknown
from antiphon.wire.realtime.response import StatusError
from antiphon.wire.realtime.server_events import ErrorEvent, RealtimeError

STATUS_BY_ERROR_CODE: dict[str, int] = {
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
"""The HTTP status for an error code, as if the error had come before the upgrade to WebSocket."""

HARMLESS_ERROR_CODES = frozenset(
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
"""
Errors of lost races, where the wanted state holds already; and `session_expired`, which the end of the connection
reports too.
"""

ErrorMapper = Callable[[RealtimeError | StatusError | None], ApiError]
"""Maps a server's error to one for the client, with secrets redacted."""

STATUS_BY_CLOSE_CODE = {3000: 401, 1008: 403, 1013: 503}


def to_api_error(error: RealtimeError | StatusError | None) -> ApiError:
    """The error for the client."""
    message, code, kind = _text_field(error, "message"), _text_field(error, "code") or None, _text_field(error, "type")
    if is_input_too_long(message, code):
        return input_too_long(message)
    status = STATUS_BY_ERROR_CODE.get(code or "")
    if status is not None:
        return error_from_response(status, {}, msgspec.json.encode({"error": {"message": message, "code": code}}))
    if kind == "invalid_request_error":
        return ClientError(message or "The model server refused the request.", code=code, param=_text_field(error, "param") or None)
    return error_from_stream({"message": message, "code": code, "type": kind})


def error_from_event(event: ErrorEvent | Unknown) -> RealtimeError:
    """The error of an event, also of one that is not in the API's shape, as some servers send."""
    if isinstance(event, ErrorEvent):
        return event.error
    payload = event.extra.get("error") or event.extra.get("message")
    fields = payload if isinstance(payload, dict) else {"message": payload}
    texts = {name: text for name in ("type", "code", "message", "event_id") if isinstance(text := fields.get(name), str)}
    return RealtimeError(
        type=texts.get("type", "server_error"), code=texts.get("code"), message=texts.get("message", ""), event_id=texts.get("event_id")
    )


_CLOSE_REASON = re.compile(r"[a-z_]+\.[a-z_]+")


def close_error(code: int, reason: str) -> ApiError:
    """The error of a closed connection; the API's close reasons have the form `type.code`."""
    _, _, error_code = reason.partition(".")
    status = STATUS_BY_CLOSE_CODE.get(code) or STATUS_BY_ERROR_CODE.get(error_code)
    if status in (401, 403):
        return error_from_response(status, {}, b"")
    if status is not None:
        return error_from_response(status, {}, msgspec.json.encode({"error": {"message": reason, "code": error_code or None}}))
    # Other words may name the server's paths and hosts.
    words = f": {reason}" if _CLOSE_REASON.fullmatch(reason) else ""
    error = UpstreamError(f"The model server closed the connection{f' ({code}{words})' if code else ''}.", code="upstream_broke_off")
    error.operator_message = f"{error.message} {reason}" if reason and not words else error.message
    return error


def _text_field(error: RealtimeError | StatusError | None, name: str) -> str:
    text = getattr(error, name, None)
    return text if isinstance(text, str) else ""
