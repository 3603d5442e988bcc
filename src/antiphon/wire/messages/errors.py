"""Errors as the Messages API words them: their types, their statuses, and the one sentence that its clients look for."""

import re

from antiphon.errors import ApiError, ClientError
from antiphon.wire.messages.response import MessageError, MessageErrorDetails, MessageErrorType

OVERLOADED_STATUS = 529

_TYPES: dict[int, MessageErrorType] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    OVERLOADED_STATUS: "overloaded_error",
}
"""Error types by status; those of other statuses below 500 are `invalid_request_error`, and the rest `api_error`."""

# In OpenAI's sentence and this server's own, the window comes first, and then what was asked for.
_FIGURES = re.compile(r"maximum context length is (\d+) tokens.*?(\d+) tokens", re.DOTALL)
_INDEX = re.compile(r"\[(\d+)\]")


def message_error_status(error: ApiError) -> int:
    """The HTTP status of an error, as the Messages API has it."""
    if error.code == "context_length_exceeded":
        return ClientError.status
    # The original says 529 where other APIs say 503: its SDKs have a class for it, and Claude Code retries it in silence.
    return {503: OVERLOADED_STATUS, 502: 500}.get(error.status, error.status)


def message_error(error: ApiError, request_id: str | None = None) -> MessageError:
    """The error as an object of the API; `request_id` is that of the HTTP request, None in a stream."""
    status = message_error_status(error)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    details = MessageErrorDetails(type=kind, message=_message(error))
    return MessageError(error=details) if request_id is None else MessageError(error=details, request_id=request_id)


def _message(error: ApiError) -> str:
    if error.code == "context_length_exceeded":
        # Claude Code compacts the conversation where it reads "prompt is too long".
        figures = _FIGURES.search(error.message)
        if figures is None:
            return f"prompt is too long: {error.message}"
        return f"prompt is too long: {figures[2]} tokens > {figures[1]} maximum"
    if not error.param:
        return error.message
    path = _INDEX.sub(r".\1", error.param)  # `messages[0].content[1]` is `messages.0.content.1` here
    message = error.message.replace(error.param, path)
    return message if path in message else f"{path}: {message}"
