"""The message that answers a request, and the other objects of the Messages API."""

from typing import Literal

from msgspec import UNSET, field

from antiphon.wire.codec.types import Opt, Tagged, Wire
from antiphon.wire.messages.blocks import ContentBlock

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "refusal", "model_context_window_exceeded"]

MessageErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "billing_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "timeout_error",
    "api_error",
    "overloaded_error",
]


class OutputTokenDetails(Wire, kw_only=True):
    """Output tokens by kind."""

    thinking_tokens: int


class MessageUsage(Wire, kw_only=True):
    """Token counts. `input_tokens` are those that were neither read from a cache nor written to one."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: Opt[OutputTokenDetails] = UNSET


class MessageResponse(Tagged, kw_only=True, tag="message"):
    """A message of the model."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock] = field(default_factory=list)
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageTokensCount(Wire, kw_only=True):
    """How many tokens an input has."""

    input_tokens: int


class MessageErrorDetails(Wire, kw_only=True):
    """What went wrong."""

    type: MessageErrorType
    message: str


class MessageError(Tagged, kw_only=True, tag="error"):
    """An error, as the body of a response or as the last event of a stream."""

    error: MessageErrorDetails
    request_id: Opt[str] = UNSET


class ModelInfo(Tagged, kw_only=True, tag="model"):
    """A model; `created_at` as in RFC 3339."""

    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None
    max_tokens: int | None


class ModelInfoList(Wire, kw_only=True):
    """A page of the models."""

    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None
