"""A response of a Realtime session: its parameters, and the object that shows it."""

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, field

from antiphon.wire.codec.types import Maybe, Opt, Unknown, Wire
from antiphon.wire.realtime.base import RealtimeObject
from antiphon.wire.realtime.items import InputItem, Item, check_item
from antiphon.wire.realtime.session import (
    Format,
    MaxOutputTokens,
    Modality,
    Prompt,
    Reasoning,
    Temperature,
    Tool,
    ToolChoice,
    VoiceId,
    check_modalities,
)
from antiphon.wire.responses.request import Metadata

ResponseStatus = Literal["in_progress", "completed", "cancelled", "failed", "incomplete"]


class ResponseAudioOutput(RealtimeObject, kw_only=True):
    """The format and voice of the response's audio."""

    format: Opt[Format] = UNSET
    voice: Opt[str | VoiceId] = UNSET


class ResponseAudio(RealtimeObject, kw_only=True):
    """The response's audio settings."""

    output: Opt[ResponseAudioOutput] = UNSET


class ResponseParams(RealtimeObject, kw_only=True):
    """
    The parameters of one response; absent ones are the session's.

    Attributes:
        conversation: `none` for a response that leaves no items in the conversation.
        input: replaces the conversation; an empty list is an empty context.
        temperature: only in the beta.
    """

    conversation: Opt[Literal["auto", "none"]] = UNSET
    input: Opt[list[InputItem]] = UNSET
    instructions: Opt[str] = UNSET
    output_modalities: Opt[list[Modality]] = UNSET
    audio: Opt[ResponseAudio] = UNSET
    tools: Opt[list[Tool]] = UNSET
    tool_choice: Opt[ToolChoice] = UNSET
    parallel_tool_calls: Opt[bool] = UNSET
    reasoning: Opt[Reasoning] = UNSET
    max_output_tokens: Opt[MaxOutputTokens] = UNSET
    temperature: Opt[Temperature] = UNSET
    metadata: Opt[Metadata] = UNSET
    prompt: Opt[Prompt] = UNSET


def check_params(params: ResponseParams, path: str = "response") -> None:
    """
    Check what the types of `params` can't express.

    Raises:
        ClientError: a value is invalid.
    """
    check_modalities(params.output_modalities, f"{path}.output_modalities")
    for index, item in enumerate(params.input or ()):
        check_item(item, f"{path}.input[{index}]")


# The response object


class StatusError(Wire, kw_only=True):
    """Why a response failed."""

    type: Maybe[str] = UNSET
    code: Maybe[str] = UNSET
    message: Maybe[str] = UNSET


class StatusDetails(RealtimeObject, kw_only=True):
    """
    Why a response is not complete. Upstreams have more reasons than the original, so any string is accepted.

    Attributes:
        type: the response's status.
        reason: `turn_detected` or `client_cancelled`; `max_output_tokens` or `content_filter`.
    """

    type: Opt[str] = UNSET
    reason: Opt[str] = UNSET
    error: Opt[StatusError] = UNSET


class CachedTokensDetails(RealtimeObject, kw_only=True):
    """Cached tokens, by kind."""

    text_tokens: int = 0
    audio_tokens: int = 0
    image_tokens: int = 0


class InputTokenDetails(RealtimeObject, kw_only=True):
    """Input tokens, by kind."""

    text_tokens: int = 0
    audio_tokens: int = 0
    image_tokens: int = 0
    cached_tokens: int = 0
    cached_tokens_details: Opt[CachedTokensDetails] = UNSET


class OutputTokenDetails(RealtimeObject, kw_only=True):
    """Output tokens, by kind."""

    text_tokens: int = 0
    audio_tokens: int = 0


class Usage(RealtimeObject, kw_only=True):
    """Tokens counted."""

    total_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    input_token_details: Opt[InputTokenDetails] = UNSET
    output_token_details: Opt[OutputTokenDetails] = UNSET


class Response(RealtimeObject, kw_only=True):
    """
    A response. Fields without a value are null, not absent: the original writes them all, and clients have failed on
    absent ones (pipecat 1.7).

    Attributes:
        output: items in the order in which they were produced.
        conversation_id: None for a response out of band.
        temperature: only in the beta.
    """

    object: Literal["realtime.response"] = "realtime.response"
    id: str
    status: ResponseStatus
    status_details: StatusDetails | None = None
    output: Sequence[Item | Unknown] = field(default_factory=list)
    conversation_id: str | None = None
    output_modalities: list[Modality] | None = None
    max_output_tokens: int | Literal["inf"] | None = None
    temperature: Opt[float] = UNSET
    audio: ResponseAudio | None = None
    usage: Usage | None = None
    metadata: dict[str, str] | None = None
