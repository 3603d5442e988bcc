"""The response object: the request's settings, the output, the usage."""

from typing import Literal

from msgspec import UNSET, Raw, json, structs

from antiphon.errors import ClientError
from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.types import Extra, Maybe, Tagged, Unknown, Wire, encode
from antiphon.wire.responses.items import FunctionCall, Item, Message, decode_item
from antiphon.wire.responses.request import AccessPrograms, ConversationReference, Prompt, ReasoningOptions, ServiceTier, TextOptions
from antiphon.wire.responses.tools import Effort, Tool, ToolChoice

ResponseStatus = Literal["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"]


class MisalignmentSteer(Wire, kw_only=True):
    """A message with which the model can go on."""

    message: str


class Misalignment(Wire, kw_only=True):
    """Why the model was stopped for misalignment."""

    detailed_explanation: Maybe[str] = UNSET
    error_type: Maybe[str] = UNSET
    review_target: Maybe[str] = UNSET
    steer: Maybe[MisalignmentSteer] = UNSET


RESPONSE_ERROR_CODES = frozenset(
    (
        "server_error",
        "rate_limit_exceeded",
        "invalid_prompt",
        "data_residency_mismatch",
        "bio_policy",
        "misalignment_policy_violation",
        "vector_store_timeout",
        "invalid_image",
        "invalid_image_format",
        "invalid_base64_image",
        "invalid_image_url",
        "image_too_large",
        "image_too_small",
        "image_parse_error",
        "image_content_policy_violation",
        "invalid_image_mode",
        "image_file_too_large",
        "unsupported_image_media_type",
        "empty_image_file",
        "failed_to_download_image",
        "image_file_not_found",
    )
)
"""
The values of a failed response's `error.code`. (`ResponseErrorCode` of OpenAI's OpenAPI document; clients with strict
types, such as openai-python's, refuse any other.)
"""


UNDOCUMENTED_ERROR_CODES = frozenset(("context_length_exceeded", "insufficient_quota"))
"""
Codes that the original sends though its document lacks them. Codex ends the turn for them, and asks again after any it
doesn't know. (Recorded failures in the tests of openai/codex, `codex-rs/codex-api/src/sse/responses.rs`.)
"""


class ResponseError(Wire, kw_only=True):
    """
    Why the response failed. The original has the `RESPONSE_ERROR_CODES` and the `UNDOCUMENTED_ERROR_CODES`; upstreams
    have more, so any string is read.
    """

    code: str
    message: str
    misalignment: Maybe[Misalignment] = UNSET
    param: Maybe[str] = UNSET
    type: Maybe[str] = UNSET


class IncompleteDetails(Wire, kw_only=True):
    """Why the response is not complete."""

    reason: Maybe[Literal["max_output_tokens", "max_messages", "content_filter", "steered"]] = UNSET


# Usage


class CacheWriteTokensDetails(Wire, kw_only=True):
    """Tokens written to the prompt cache, by how long they are kept."""

    ttl_12h_tokens: int
    ttl_30m_tokens: int


class InputTokensDetails(Wire, kw_only=True):
    """Input tokens read from and written to the prompt cache."""

    # OpenAI's types require it; the default is for upstreams whose usage lacks it.
    cache_write_tokens: int = 0
    cached_tokens: int
    cache_write_tokens_details: Maybe[CacheWriteTokensDetails] = UNSET


class OutputTokensDetails(Wire, kw_only=True):
    """Output tokens spent on reasoning."""

    reasoning_tokens: int


class ResponseUsage(Wire, kw_only=True):
    """Tokens counted."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ImageTokens(Wire, kw_only=True):
    """Tokens of images and of text."""

    image_tokens: int
    text_tokens: int


class CachedImageTokens(Wire, kw_only=True):
    """Cached tokens of images and of text."""

    cached_image_tokens: int
    cached_text_tokens: int


class ImageGenerationUsage(Wire, kw_only=True):
    """Tokens used to generate images."""

    input_tokens: int
    input_tokens_details: ImageTokens
    output_tokens: int
    total_tokens: int
    cached_tokens: Maybe[int] = UNSET
    cached_tokens_details: Maybe[CachedImageTokens] = UNSET
    output_tokens_details: Maybe[ImageTokens] = UNSET


class WebSearchUsage(Wire, kw_only=True):
    """Searches of the web."""

    num_requests: int


class ToolUsage(Wire, kw_only=True):
    """The usage of hosted tools."""

    image_gen: ImageGenerationUsage
    web_search: WebSearchUsage


# The request's settings, as they were applied


class ResponseReasoning(ReasoningOptions, kw_only=True):
    """How the model reasoned; `effort` and `summary` are always written."""

    # Open Responses requires both keys, null or not.
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseImage(Wire, kw_only=True):
    """Whether images in the context were compressed."""

    context_compression: Literal["enabled", "disabled"]


class InputTransformation(Wire, kw_only=True):
    """An input item that was removed from the model's context, and why."""

    id: str
    action: Literal["removed"]
    reason: Literal["organization_mismatch", "end_user_mismatch", "model_mismatch", "prefix_mismatch", "turn_boundary"]
    type: Literal["reasoning"]


class ModerationResult(Tagged, kw_only=True, tag="moderation_result"):
    """What a moderation model found; scores are 0 to 1."""

    categories: dict[str, bool]
    category_applied_input_types: dict[str, list[Literal["text", "image"]]]
    category_scores: dict[str, float]
    flagged: bool
    model: str


class ModerationError(Tagged, kw_only=True, tag="error"):
    """Why there is no moderation result."""

    code: str
    message: str


class ResponseModeration(Wire, kw_only=True):
    """What moderation found in the input and the output."""

    input: ModerationResult | ModerationError
    output: ModerationResult | ModerationError


class ResponsePromptCacheOptions(Wire, kw_only=True):
    """How the prompt was cached."""

    mode: Literal["implicit", "explicit"]
    ttl: Literal["30m", "12h"]
    comparison_response_id: Maybe[str] = UNSET


class CacheMiss(Tagged, kw_only=True, tag="cache_miss"):
    """The prompt cache missed, and why."""

    cache_missed_tokens: int
    reason: Literal[
        "model_changed",
        "prompt_cache_key_changed",
        "tools_changed",
        "text_format_changed",
        "reasoning_effort_changed",
        "verbosity_changed",
        "context_compacted",
        "input_changed",
        "service_tier_changed",
    ]
    comparison_reusable_tokens: Maybe[int] = UNSET


class CacheHit(Tagged, kw_only=True, tag="cache_hit"):
    """The prompt cache hit."""


class ComparisonResponseNotFound(Tagged, kw_only=True, tag="comparison_response_not_found"):
    """The response to compare with was not found."""


class CacheUnavailable(Tagged, kw_only=True, tag="unavailable"):
    """There is no information about the prompt cache."""


PromptCacheDiagnostics = CacheMiss | CacheHit | ComparisonResponseNotFound | CacheUnavailable


class Response(Wire, kw_only=True):
    """
    A response. The fields are in the order in which the original writes them; absent ones are not written.

    Attributes:
        created_at: Unix seconds.
        completed_at: Unix seconds, None until it is completed.
        output: in the order in which it was produced.
    """

    id: str
    object: Literal["response"] = "response"
    created_at: int | float
    status: Maybe[ResponseStatus] = UNSET
    background: Maybe[bool] = UNSET
    completed_at: Maybe[int | float] = UNSET
    conversation: Maybe[ConversationReference] = UNSET
    error: Maybe[ResponseError] = UNSET
    frequency_penalty: Maybe[float] = UNSET
    incomplete_details: Maybe[IncompleteDetails] = UNSET
    instructions: Maybe[str | list[Item]] = UNSET
    max_output_tokens: Maybe[int] = UNSET
    max_tool_calls: Maybe[int] = UNSET
    model: str
    moderation: Maybe[ResponseModeration] = UNSET
    output: list[Item]
    parallel_tool_calls: bool
    presence_penalty: Maybe[float] = UNSET
    previous_response_id: Maybe[str] = UNSET
    prompt: Maybe[Prompt] = UNSET
    prompt_cache_diagnostics: Maybe[PromptCacheDiagnostics] = UNSET
    prompt_cache_key: Maybe[str] = UNSET
    prompt_cache_options: Maybe[ResponsePromptCacheOptions] = UNSET
    prompt_cache_retention: Maybe[Literal["in_memory", "24h"]] = UNSET
    reasoning: Maybe[ResponseReasoning] = UNSET
    safety_identifier: Maybe[str] = UNSET
    service_tier: Maybe[ServiceTier] = UNSET
    store: Maybe[bool] = UNSET
    temperature: Maybe[float] = UNSET
    text: Maybe[TextOptions] = UNSET
    tool_choice: ToolChoice
    tool_usage: Maybe[ToolUsage] = UNSET
    tools: list[Tool]
    top_logprobs: Maybe[int] = UNSET
    top_p: Maybe[float] = UNSET
    truncation: Maybe[Literal["auto", "disabled"]] = UNSET
    usage: Maybe[ResponseUsage] = UNSET
    user: Maybe[str] = UNSET
    access_programs: Maybe[AccessPrograms] = UNSET
    image: Maybe[ResponseImage] = UNSET
    input_transformations: Maybe[list[InputTransformation]] = UNSET
    metadata: Maybe[dict[str, str]] = UNSET

    @property
    def output_text(self) -> str:
        """The text of all its messages, as `output_text` of OpenAI's SDKs: without refusals."""
        return "".join(item.text for item in self.output if isinstance(item, Message))

    @property
    def function_calls(self) -> list[FunctionCall]:
        """The calls of functions, in order."""
        return [item for item in self.output if isinstance(item, FunctionCall)]


_reader: Reader[Response] = Reader(Response)


def decode_response(body: bytes) -> Response:
    """
    Decode a server's response.

    Raises:
        ClientError: it is invalid.
    """
    return _reader.read(body)


def read_response(body: bytes) -> Response:
    """
    As `decode_response`, one that this server, or an older one, has stored. What model servers send may lack what the
    original's items have, and was passed on as it came: such items are `Unknown`.

    Raises:
        ClientError: more than an item of it can't be read.
    """
    try:
        return decode_response(body)
    except ClientError:
        fields = json.decode(body, type=dict[str, Raw])
    output = [read_item(bytes(item)) for item in json.decode(fields["output"], type=list[Raw])]
    return structs.replace(decode_response(json.encode(fields | {"output": Raw(b"[]")})), output=output)


def read_item(body: bytes) -> Item:
    """An item of a stored response, which is `Unknown` where it lacks something."""
    try:
        return decode_item(body)
    except ClientError:
        return Unknown(extra=Extra(json.decode(body, type=dict[str, Raw])))


def encode_response(response: Response) -> bytes:
    """JSON of a response."""
    return encode(response)
