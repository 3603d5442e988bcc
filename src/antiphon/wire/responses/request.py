"""The body of a request for a response."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta

from antiphon import errors
from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.structure import check_structure
from antiphon.wire.codec.types import Maybe, Opt, Wire, encode
from antiphon.wire.responses.items import AnswerFormat, Item, Message, check_item
from antiphon.wire.responses.parts import InputFile, InputImage, InputText, LongText
from antiphon.wire.responses.tools import Effort, Tool, ToolChoice

ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
Includable = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
# Open Responses requires both penalties of a response; their limits are those of Chat Completions.
Penalty = Annotated[float, Meta(ge=-2, le=2)]
ShortKey = Annotated[str, Meta(max_length=64)]
Items = Annotated[list[Item], Meta(title="an array of input items")]
# Responses reference, `metadata`: up to 16 pairs, keys up to 64 characters and values up to 512.
Metadata = Annotated[dict[ShortKey, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]


class VoiceReference(Wire, kw_only=True):
    """A voice by its id."""

    id: str


class AudioOptions(Wire, kw_only=True):
    """The voice and format of the response's audio."""

    voice: Maybe[str | VoiceReference] = UNSET
    format: Maybe[Literal["wav", "aac", "mp3", "flac", "opus", "pcm16"]] = UNSET


class AccessPrograms(Wire, kw_only=True):
    """Programmes that the caller is admitted to."""

    cyber: Opt[Literal["standard", "daybreak_blue", "daybreak_red"]] = UNSET


class ContextManagement(Wire, kw_only=True):
    """How a growing context is managed; thresholds count tokens."""

    # Responses reference: "Currently only 'compaction' is supported".
    type: Literal["compaction"]
    compact_threshold: Maybe[Annotated[int, Meta(ge=1000)]] = UNSET


class ConversationReference(Wire, kw_only=True):
    """The conversation that a response belongs to."""

    id: str


class ImageOptions(Wire, kw_only=True):
    """Whether images in the context are compressed."""

    context_compression: Opt[Literal["auto", "enabled", "disabled"]] = UNSET


class ModerationRule(Wire, kw_only=True):
    """Whether findings are only scored, or block the response."""

    mode: Literal["score", "block"]


class ModerationPolicy(Wire, kw_only=True):
    """The moderation rules for input and output."""

    input: Maybe[ModerationRule] = UNSET
    output: Maybe[ModerationRule] = UNSET


class Moderation(Wire, kw_only=True):
    """The moderation model and its policy."""

    model: str
    policy: Maybe[ModerationPolicy] = UNSET


class Prompt(Wire, kw_only=True):
    """A stored prompt, and the values of its variables."""

    id: str
    variables: Maybe[dict[str, str | InputText | InputImage | InputFile]] = UNSET
    version: Maybe[str] = UNSET


class PromptCacheOptions(Wire, kw_only=True):
    """How the prompt is cached."""

    comparison_response_id: Maybe[str] = UNSET
    mode: Opt[Literal["implicit", "explicit"]] = UNSET
    prewarm: Opt[bool] = UNSET
    ttl: Opt[Literal["30m", "12h"]] = UNSET


class ReasoningOptions(Wire, kw_only=True):
    """The reasoning effort and its summary; `generate_summary` is the old name of `summary`."""

    context: Maybe[Literal["auto", "current_turn", "all_turns"]] = UNSET
    effort: Maybe[Effort] = UNSET
    generate_summary: Maybe[Literal["auto", "concise", "detailed"]] = UNSET
    mode: Maybe[str] = UNSET
    summary: Maybe[Literal["auto", "concise", "detailed"]] = UNSET


class StreamOptions(Wire, kw_only=True):
    """Whether deltas carry a random `obfuscation`, so that their sizes reveal nothing."""

    include_obfuscation: Opt[bool] = UNSET


class BackgroundOptions(Wire, kw_only=True):
    """How a background response is to be made."""

    completion_window: Maybe[str] = UNSET
    continuation_id: Maybe[str] = UNSET


class TextOptions(Wire, kw_only=True):
    """The format and verbosity of the output."""

    format: Maybe[AnswerFormat] = UNSET
    verbosity: Maybe[Literal["low", "medium", "high"]] = UNSET


class CreateRequest(Wire, kw_only=True):
    """
    What `POST /v1/responses` takes, within the limits of the Responses reference. No field is required: what is absent
    may come from elsewhere.

    The original does not accept null for `model`, `input`, `tools`, `tool_choice` and `text`; clients of Open Responses
    send it.
    """

    null_is_absent = True

    model: Opt[str] = UNSET
    input: Opt[LongText | Items] = UNSET
    instructions: Maybe[str | Items] = UNSET
    stream: Maybe[bool] = UNSET
    stream_options: Maybe[StreamOptions] = UNSET
    previous_response_id: Maybe[str] = UNSET
    conversation: Maybe[str | ConversationReference] = UNSET
    store: Maybe[bool] = UNSET
    background: Maybe[bool] = UNSET
    background_options: Maybe[BackgroundOptions] = UNSET
    metadata: Maybe[Metadata] = UNSET
    include: Maybe[list[Includable]] = UNSET
    tools: Opt[list[Tool]] = UNSET
    tool_choice: Opt[ToolChoice] = UNSET
    parallel_tool_calls: Maybe[bool] = UNSET
    max_tool_calls: Maybe[Annotated[int, Meta(ge=1)]] = UNSET
    max_output_tokens: Maybe[Annotated[int, Meta(ge=16)]] = UNSET
    temperature: Maybe[Annotated[float, Meta(ge=0, le=2)]] = UNSET
    top_p: Maybe[Annotated[float, Meta(ge=0, le=1)]] = UNSET
    top_logprobs: Maybe[Annotated[int, Meta(ge=0, le=20)]] = UNSET
    presence_penalty: Maybe[Penalty] = UNSET
    frequency_penalty: Maybe[Penalty] = UNSET
    reasoning: Maybe[ReasoningOptions] = UNSET
    text: Opt[TextOptions] = UNSET
    modalities: Maybe[list[Literal["text", "audio"]]] = UNSET
    audio: Maybe[AudioOptions] = UNSET
    truncation: Maybe[Literal["auto", "disabled"]] = UNSET
    context_management: Maybe[Annotated[list[ContextManagement], Meta(min_length=1)]] = UNSET
    service_tier: Maybe[ServiceTier] = UNSET
    safety_identifier: Maybe[ShortKey] = UNSET
    prompt: Maybe[Prompt] = UNSET
    prompt_cache_key: Maybe[ShortKey] = UNSET
    prompt_cache_options: Opt[PromptCacheOptions] = UNSET
    prompt_cache_retention: Maybe[Literal["in_memory", "24h"]] = UNSET
    moderation: Maybe[Moderation] = UNSET
    image: Opt[ImageOptions] = UNSET
    access_programs: Opt[AccessPrograms] = UNSET
    user: Opt[str] = UNSET

    @property
    def input_items(self) -> list[Item]:
        """The input as items: text is a message of the user, and an absent input is no item."""
        if isinstance(self.input, str):
            return [Message(role="user", content=[InputText(text=self.input)])]
        return self.input or []

    @property
    def conversation_id(self) -> str | None:
        """The conversation that the response belongs to, however it was given; None for none."""
        if self.conversation is UNSET:  # as in most requests, which are asked several times
            return None
        if isinstance(self.conversation, ConversationReference):
            return self.conversation.id
        return self.conversation if isinstance(self.conversation, str) else None

    @property
    def previous_path(self) -> str:
        """The field that brings the items before the input."""
        return "previous_response_id" if self.conversation_id is None else "conversation"


_reader: Reader[CreateRequest] = Reader(CreateRequest)


def decode_request(body: bytes) -> CreateRequest:
    """
    Decode a request.

    Raises:
        ClientError: it is invalid; `param` says where.
    """
    check_structure(body)
    request = _reader.read(body)
    check_request(request)
    return request


def check_request(request: CreateRequest) -> None:
    """
    Check what no single field shows: fields that exclude each other, parts that don't fit their message's role, and
    URLs that are none.

    Raises:
        ClientError: the request is invalid.
    """
    for path, items in (("input", request.input), ("instructions", request.instructions)):
        if isinstance(items, list):
            for index, item in enumerate(items):
                check_item(item, f"{path}[{index}]")
    # Two names of one option: which of the two values counts would be a guess.
    if request.reasoning and request.reasoning.summary and request.reasoning.generate_summary:
        raise errors.mutually_exclusive("reasoning.generate_summary", ("reasoning.summary", "reasoning.generate_summary"))
    # Responses reference, `previous_response_id`: "Cannot be used in conjunction with `conversation`."
    if request.previous_response_id and request.conversation:
        raise errors.mutually_exclusive("previous_response_id", ("previous_response_id", "conversation"))


def encode_request(request: CreateRequest) -> bytes:
    """JSON of a request, with the fields that its client sent beyond the protocol."""
    return encode(request)
