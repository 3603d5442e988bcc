"""What the failure of a request means for the next try: who may answer instead, and what it says about the upstream."""

import re
from enum import StrEnum
from typing import Literal

from msgspec import Struct

from antiphon.engine_api.events import ResponseFailed
from antiphon.errors import SHUTTING_DOWN_CODE

FallbackReason = Literal["overload", "context", "feature"]
"""Why another model is asked, as `fallback_on` names it."""

OPERATOR_REST_S = 60.0
"""An upstream that needs its operator is not tried again before."""

LIMIT_REST_S = 5.0
"""How long an upstream rests after a 429 that does not say for how long."""

MAX_OVERLOAD_REST_S = 60.0
"""An upstream that says by a 503 when to come again is believed up to this."""

STALL_CAUSE = "stalled"
"""The cause of a try that was left because its upstream said nothing for too long."""


class FailureKind(StrEnum):
    """Who is to blame for a failure, and so what follows from it."""

    BREAKDOWN = "breakdown"
    RATE_LIMIT = "rate_limit"
    CREDENTIALS = "credentials"
    MODEL = "model"
    CONTEXT = "context"
    FEATURE = "feature"
    REQUEST = "request"
    SHUTDOWN = "shutdown"


class Consequence(Struct, frozen=True):
    """
    What follows from a failure.

    Attributes:
        tries_next: whether another upstream of the model may answer.
        fallback: why another model may answer; None if it would say the same.
        needs_operator: whether the upstream will fail until its operator does something.
    """

    tries_next: bool = False
    fallback: FallbackReason | None = None
    needs_operator: bool = False


CONSEQUENCES: dict[FailureKind, Consequence] = {
    FailureKind.BREAKDOWN: Consequence(tries_next=True, fallback="overload"),
    FailureKind.RATE_LIMIT: Consequence(tries_next=True, fallback="overload"),
    FailureKind.CREDENTIALS: Consequence(tries_next=True, fallback="overload", needs_operator=True),
    FailureKind.MODEL: Consequence(tries_next=True, fallback="overload", needs_operator=True),
    FailureKind.CONTEXT: Consequence(tries_next=True, fallback="context"),  # only an upstream with a larger window
    FailureKind.FEATURE: Consequence(tries_next=True, fallback="feature"),
    FailureKind.REQUEST: Consequence(),
    FailureKind.SHUTDOWN: Consequence(),
}

_FEATURE_CODES = frozenset({"unsupported_value", "unsupported_parameter", "unknown_parameter", "unsupported_feature", "not_supported"})

_FEATURE_PARAMS = re.compile(r"(?:tools|tool_choice|response_format|text|messages|input|logprobs|top_logprobs|reasoning\w*)\b")

_FEATURE_TEXT = re.compile(r"(?:not|n't|un)[ -]?support|no support for|does not accept", re.IGNORECASE)


def classify(failure: ResponseFailed) -> FailureKind:
    """The kind of a failure before the first output."""
    match failure.code:
        case "context_length_exceeded":
            return FailureKind.CONTEXT
        case "upstream_credentials":
            return FailureKind.CREDENTIALS
        case code if code == SHUTTING_DOWN_CODE:
            return FailureKind.SHUTDOWN
    # By its status, as servers have many codes for it.
    if failure.status == 429:
        return FailureKind.RATE_LIMIT
    # Any other 404 is about something that the request names, such as a file.
    if failure.status == 404 and failure.code == "model_not_found":
        return FailureKind.MODEL
    # A 500 may be the request's fault, and counts all the same: breakers are ignored if that hits most of them.
    if failure.status >= 500 or failure.status == 408:
        return FailureKind.BREAKDOWN
    # OpenAI's servers refuse a field with 400, those with FastAPI's validation with 422.
    return FailureKind.FEATURE if failure.status in (400, 422) and _refuses_feature(failure) else FailureKind.REQUEST


def _refuses_feature(failure: ResponseFailed) -> bool:
    """Whether the server refused something that another may have. Prose alone does not tell: a user's text may be in it."""
    if failure.code in _FEATURE_CODES:
        return True
    return failure.param is not None and bool(_FEATURE_PARAMS.match(failure.param)) and bool(_FEATURE_TEXT.search(failure.message))


def describe_failure(failure: ResponseFailed) -> str:
    """The failure in a word, for headers and the log."""
    return failure.cause or failure.code or str(failure.status)


def is_temporary(failure: ResponseFailed) -> bool:
    """
    Whether a server that fails so is there: it answers with 5xx, or is slow. One that can't be reached, or breaks off,
    is not.
    """
    return failure.cause in ("timeout", STALL_CAUSE) or re.fullmatch(r"5\d\d|408", failure.cause or "") is not None


def rest_s(failure: ResponseFailed, kind: FailureKind) -> float:
    """How long the upstream is to be left alone, whatever its breaker says; 0 for not at all."""
    if kind is FailureKind.RATE_LIMIT:
        # A quota does not come back in seconds: somebody has to pay.
        if failure.code == "insufficient_quota":
            return max(failure.retry_after_s or 0.0, OPERATOR_REST_S)
        return LIMIT_REST_S if failure.retry_after_s is None else failure.retry_after_s
    # RFC 9110, 15.6.4: a 503 may say with Retry-After how long to wait.
    if kind is FailureKind.BREAKDOWN and failure.status == 503 and failure.retry_after_s is not None:
        return min(failure.retry_after_s, MAX_OVERLOAD_REST_S)
    return 0.0
