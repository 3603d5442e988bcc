"""The body of a request for a chat completion."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta

from antiphon.errors import ClientError
from antiphon.wire.chat.messages import Messages
from antiphon.wire.chat.tools import ChatFormat, ChatTool, ChatToolChoice, FunctionDefinition, ToolReference
from antiphon.wire.codec.fields import is_set
from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.structure import check_structure
from antiphon.wire.codec.types import JsonDict, Maybe, Opt, Tagged, Typed, Wire
from antiphon.wire.responses.request import Metadata, Moderation, Penalty, ServiceTier, VoiceReference
from antiphon.wire.responses.tools import Effort, SearchContextSize

ChatAudioFormat = Literal["wav", "aac", "mp3", "flac", "opus", "pcm16"]


class ChatAudioOptions(Wire, kw_only=True):
    """The voice and the format of a spoken answer."""

    format: ChatAudioFormat
    voice: str | VoiceReference


class ChatStreamOptions(Wire, kw_only=True):
    """What a stream has besides the answer: its usage at the end, and random `obfuscation` that hides the sizes of deltas."""

    null_is_absent = True

    include_usage: Maybe[bool] = UNSET
    include_obfuscation: Maybe[bool] = UNSET


class ChatSearchPlace(Wire, kw_only=True):
    """A place; `country` is an ISO code of two letters, `timezone` an IANA name."""

    city: Maybe[str] = UNSET
    country: Maybe[str] = UNSET
    region: Maybe[str] = UNSET
    timezone: Maybe[str] = UNSET


class ChatSearchLocation(Tagged, kw_only=True, tag="approximate"):
    """About where the user is."""

    approximate: ChatSearchPlace


class ChatSearchOptions(Wire, kw_only=True):
    """How the web is searched before the model answers."""

    search_context_size: Maybe[SearchContextSize] = UNSET
    user_location: Maybe[Typed[ChatSearchLocation]] = UNSET


class ChatRequest(Wire, kw_only=True):
    """
    What `POST /v1/chat/completions` takes. The limits are those of the original, but wider where local servers take more:
    names of tools, and the number of `stop`.
    """

    null_is_absent = True

    messages: Messages
    model: Opt[str] = UNSET
    audio: Maybe[ChatAudioOptions] = UNSET
    frequency_penalty: Maybe[Penalty] = UNSET
    function_call: Maybe[Literal["none", "auto"] | ToolReference] = UNSET
    functions: Maybe[list[FunctionDefinition]] = UNSET
    logit_bias: Maybe[dict[str, Annotated[float, Meta(ge=-100, le=100)]]] = UNSET
    logprobs: Maybe[bool] = UNSET
    max_completion_tokens: Maybe[Annotated[int, Meta(ge=1)]] = UNSET
    max_tokens: Maybe[Annotated[int, Meta(ge=1)]] = UNSET
    metadata: Maybe[Metadata] = UNSET
    modalities: Maybe[list[Literal["text", "audio"]]] = UNSET
    moderation: Maybe[Moderation] = UNSET
    # The API's limit. How many this server makes of one request is `MAX_CHOICES`, whose error says so.
    n: Maybe[Annotated[int, Meta(ge=1, le=128)]] = UNSET
    parallel_tool_calls: Maybe[bool] = UNSET
    prediction: Maybe[JsonDict] = UNSET
    presence_penalty: Maybe[Penalty] = UNSET
    prompt_cache_key: Maybe[str] = UNSET
    prompt_cache_options: Maybe[JsonDict] = UNSET
    prompt_cache_retention: Maybe[Literal["in_memory", "24h"]] = UNSET
    reasoning_effort: Maybe[Effort] = UNSET
    response_format: Maybe[ChatFormat] = UNSET
    safety_identifier: Maybe[str] = UNSET
    seed: Maybe[int] = UNSET
    service_tier: Maybe[ServiceTier] = UNSET
    stop: Maybe[str | Annotated[list[str], Meta(max_length=16)]] = UNSET
    store: Maybe[bool] = UNSET
    stream: Maybe[bool] = UNSET
    stream_options: Maybe[ChatStreamOptions] = UNSET
    temperature: Maybe[Annotated[float, Meta(ge=0, le=2)]] = UNSET
    tool_choice: Maybe[ChatToolChoice] = UNSET
    tools: Maybe[list[ChatTool]] = UNSET
    top_logprobs: Maybe[Annotated[int, Meta(ge=0, le=20)]] = UNSET
    top_p: Maybe[Annotated[float, Meta(ge=0, le=1)]] = UNSET
    user: Maybe[str] = UNSET
    verbosity: Maybe[Literal["low", "medium", "high"]] = UNSET
    web_search_options: Maybe[ChatSearchOptions] = UNSET

    @property
    def is_stream(self) -> bool:
        """Whether the answer is sent while it is made."""
        return self.stream is True

    @property
    def is_spoken(self) -> bool:
        """Whether the answer has audio."""
        return "audio" in (self.modalities or ())

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return bool(self.stream_options) and self.stream_options.include_usage is True  # type: ignore[union-attr]

    @property
    def choice_count(self) -> int:
        """How many answers are made."""
        return self.n or 1


_reader: Reader[ChatRequest] = Reader(ChatRequest)


def decode_chat_request(body: bytes) -> ChatRequest:
    """
    Decode a request.

    Raises:
        ClientError: it is invalid; `param` says where.
    """
    check_structure(body)
    request = _reader.read(body)
    _check_combinations(request)
    return request


def _check_combinations(request: ChatRequest) -> None:
    """Check what no single field shows: fields that exclude or need each other."""
    if is_set(request.max_tokens) and is_set(request.max_completion_tokens):
        raise ClientError(
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
            code="invalid_parameter_combination",
            param="max_tokens",
        )
    if is_set(request.top_logprobs) and request.logprobs is not True:
        raise ClientError("The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.", param="top_logprobs")
    if is_set(request.stream_options) and not request.is_stream:
        raise ClientError("The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream_options")
    for name, older in (("tools", "functions"), ("tool_choice", "function_call")):
        if getattr(request, name) and getattr(request, older):
            raise ClientError(f"'{older}' is the older form of '{name}': send one of the two.", param=older)
    if request.is_spoken and not request.audio:
        raise ClientError(
            "Missing required parameter: 'audio'. It names the voice and the format where 'modalities' has 'audio'.",
            code="missing_required_parameter",
            param="audio",
        )
