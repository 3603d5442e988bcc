"""A response of a Realtime session: as it is asked for, and as it is told."""

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, field

from antiphon.wire.codec.types import Maybe, Opt, Unknown, Wire
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


class ResponseAudioOutput(Wire, kw_only=True):
    """How the answer sounds."""

    null_is_absent = True

    format: Opt[Format] = UNSET
    voice: Opt[str | VoiceId] = UNSET


class ResponseAudio(Wire, kw_only=True):
    """The answer's sound."""

    null_is_absent = True

    output: Opt[ResponseAudioOutput] = UNSET


class ResponseParams(Wire, kw_only=True):
    """
    What a client asks of one response; what is absent is as the session has it.

    Attributes:
        conversation: `none` for a response that leaves no items in the conversation.
        input: in place of the conversation; empty for none at all.
        temperature: known to the beta alone.
    """

    null_is_absent = True

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
    Refuse what the types of `params` can't tell to be wrong.

    Raises:
        ClientError: there is something wrong with them.
    """
    check_modalities(params.output_modalities, f"{path}.output_modalities")
    for index, item in enumerate(params.input or ()):
        check_item(item, f"{path}.input[{index}]")


# What came of it


class StatusError(Wire, kw_only=True):
    """Why a response failed."""

    type: Maybe[str] = UNSET
    code: Maybe[str] = UNSET
    message: Maybe[str] = UNSET


class StatusDetails(Wire, kw_only=True):
    """
    Why a response is not whole. Upstreams have more reasons than the original names, and readers must bear them.

    Attributes:
        type: the response's status.
        reason: `turn_detected` or `client_cancelled`; `max_output_tokens` or `content_filter`.
    """

    null_is_absent = True

    type: Opt[str] = UNSET
    reason: Opt[str] = UNSET
    error: Opt[StatusError] = UNSET


class CachedTokensDetails(Wire, kw_only=True):
    """Cached tokens, by kind."""

    null_is_absent = True

    text_tokens: int = 0
    audio_tokens: int = 0
    image_tokens: int = 0


class InputTokenDetails(Wire, kw_only=True):
    """Input tokens, by kind."""

    null_is_absent = True

    text_tokens: int = 0
    audio_tokens: int = 0
    image_tokens: int = 0
    cached_tokens: int = 0
    cached_tokens_details: Opt[CachedTokensDetails] = UNSET


class OutputTokenDetails(Wire, kw_only=True):
    """Output tokens, by kind."""

    null_is_absent = True

    text_tokens: int = 0
    audio_tokens: int = 0


class Usage(Wire, kw_only=True):
    """Tokens counted."""

    null_is_absent = True

    total_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    input_token_details: Opt[InputTokenDetails] = UNSET
    output_token_details: Opt[OutputTokenDetails] = UNSET


class Response(Wire, kw_only=True):
    """
    A response. What it has no value for is told as null: clients have failed for a field that was not there.

    Attributes:
        output: items in the order made.
        conversation_id: None for a response that leaves nothing in the conversation.
        temperature: known to the beta alone.
    """

    null_is_absent = True

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
