"""Chat completions, whole and in chunks."""

from typing import Literal

from msgspec import UNSET, field

from antiphon.wire.chat.messages import CalledFunction, ChatToolCall
from antiphon.wire.codec.types import Opt, Tagged, Wire
from antiphon.wire.responses.parts import Logprob

ChatFinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]


class PromptTokenDetails(Wire, kw_only=True):
    """Kinds of input tokens."""

    cached_tokens: int = 0
    audio_tokens: int = 0
    cache_write_tokens: Opt[int] = UNSET
    image_tokens: Opt[int] = UNSET


class CompletionTokenDetails(Wire, kw_only=True):
    """Kinds of output tokens."""

    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class ChatUsage(Wire, kw_only=True):
    """The tokens of a completion; the prompt counts once, however many choices there are."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokenDetails = field(default_factory=PromptTokenDetails)
    completion_tokens_details: CompletionTokenDetails = field(default_factory=CompletionTokenDetails)


class ChatLogprobs(Wire, kw_only=True):
    """Log probabilities of the tokens beside them."""

    content: list[Logprob] | None = None
    refusal: list[Logprob] | None = None


class ChatPage(Wire, kw_only=True):
    """A page as the source of a stretch of text, in characters."""

    start_index: int
    end_index: int
    title: str
    url: str


class ChatCitation(Tagged, kw_only=True, tag="url_citation"):
    """A source of the text."""

    url_citation: ChatPage


class ChatAnswerAudio(Wire, kw_only=True):
    """A spoken answer: its file in base64, and what it says."""

    id: str
    data: bytes
    expires_at: int
    transcript: str


class ChatAnswer(Wire, kw_only=True):
    """The model's answer. `content` is null where it calls tools only, refuses or speaks."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: str | None = None
    annotations: list[ChatCitation] = field(default_factory=list)
    reasoning_content: Opt[str] = UNSET
    tool_calls: Opt[list[ChatToolCall]] = UNSET
    function_call: Opt[CalledFunction] = UNSET
    audio: Opt[ChatAnswerAudio] = UNSET


class ChatChoice(Wire, kw_only=True):
    """One answer."""

    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinishReason


class ChatCompletion(Wire, kw_only=True):
    """A whole completion."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage | None
    service_tier: Opt[str] = UNSET


# In chunks


class FunctionDelta(Wire, kw_only=True):
    """More of a function's call."""

    name: Opt[str] = UNSET
    arguments: Opt[str] = UNSET


class CustomDelta(Wire, kw_only=True):
    """More of a custom tool's call."""

    name: Opt[str] = UNSET
    input: Opt[str] = UNSET


class ChatToolCallDelta(Wire, kw_only=True):
    """More of the call with this index among those of its choice; the first of a call has its id and name."""

    index: int
    id: Opt[str] = UNSET
    type: Opt[Literal["function", "custom"]] = UNSET
    function: Opt[FunctionDelta] = UNSET
    custom: Opt[CustomDelta] = UNSET


class ChatAudioDelta(Wire, kw_only=True):
    """More of a spoken answer: s16le mono at 24 kHz in base64, or its words; the first has its id."""

    id: Opt[str] = UNSET
    data: Opt[bytes] = UNSET
    transcript: Opt[str] = UNSET
    expires_at: Opt[int] = UNSET


class ChatDelta(Wire, kw_only=True):
    """What a chunk adds to an answer."""

    role: Opt[Literal["assistant"]] = UNSET
    content: Opt[str | None] = UNSET
    refusal: Opt[str | None] = UNSET
    reasoning_content: Opt[str] = UNSET
    tool_calls: Opt[list[ChatToolCallDelta]] = UNSET
    function_call: Opt[FunctionDelta] = UNSET
    annotations: Opt[list[ChatCitation]] = UNSET
    audio: Opt[ChatAudioDelta] = UNSET


class ChatChunkChoice(Wire, kw_only=True):
    """What a chunk adds to the choice with this index; the last one of a choice has its `finish_reason`."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinishReason | None = None


class ChatCompletionChunk(Wire, kw_only=True):
    """
    A piece of a streamed completion. Where the usage is asked for, it is null in all chunks but the last, which has no
    choices.
    """

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Opt[ChatUsage | None] = UNSET
    service_tier: Opt[str] = UNSET
    obfuscation: Opt[str] = UNSET
