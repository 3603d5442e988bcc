"""What the clients of all live protocols share."""

from typing import Protocol, TypeVar

from antiphon.errors import SESSION_CLOSED_CODE, SHUTTING_DOWN_CODE, ApiError, ClientError, ServerError, innermost_error

REASON_LIMIT_BYTES = 123
"""RFC 6455 5.5: a control frame carries 125 bytes, and the code takes two."""


# RFC 6455, 7.4.1: 1001 is going away, 1008 a policy. IANA's registry adds 1012, service restart; 1013, try again later; 3000, unauthorized.
_CLOSE_BY_ERROR_CODE = {
    "session_expired": (1001, "expired"),
    "queue_full": (1013, "no_worker"),
    "worker_busy": (1013, "no_worker"),
    "websocket_connection_limit_reached": (1001, "expired"),
    SHUTTING_DOWN_CODE: (1012, "stopped"),
    "invalid_api_key": (3000, "revoked"),
    SESSION_CLOSED_CODE: (1008, "closed"),
}

MessageT_contra = TypeVar("MessageT_contra", contravariant=True)


class ClientListener(Protocol[MessageT_contra]):
    """Receives a client's events; normally the driver of its session."""

    def receive_from_client(self, message: MessageT_contra) -> None:
        """The client sent an event."""

    def hang_up(self) -> None:
        """The client has gone."""

    def pause(self) -> None:
        """The client reads too slowly: send less."""

    def resume(self) -> None:
        """The client reads again."""


def close_code(error: ApiError | None) -> tuple[int, str]:
    """The WebSocket close code for a session that ends with `error`, and the reason as a metrics label."""
    return (1000, "left") if error is None else _CLOSE_BY_ERROR_CODE.get(error.code or "", (1011, failure_reason(error)))


def failure_reason(error: Exception) -> str:
    """Why a session could not begin or go on, as a metrics label."""
    error = innermost_error(error)
    # A queue that is full for this key alone is the client's error (429), so this comes before the look at the code.
    if isinstance(error, ClientError):
        return "refused"
    return "no_worker" if isinstance(error, ApiError) and error.code in _NO_WORKER_CODES else "failed"


_NO_WORKER_CODES = ("worker_busy", "queue_full")
"""Codes for a full queue, a cancelled ticket, and a model without workers."""


def close_reason(text: str) -> str:
    """`text`, cut to what a close frame can carry."""
    # RFC 6455, 5.5.1: the reason is UTF-8, and the cut may fall within a character.
    return text.encode()[:REASON_LIMIT_BYTES].decode(errors="ignore")


def session_failed(code: str | None = None) -> ServerError:
    """A bug ended the session; its traceback is in the log."""
    return ServerError("The server had an error, and the session can't go on.", code=code)
