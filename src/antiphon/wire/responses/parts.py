"""Content parts of messages, tool outputs and reasoning; annotations; log probabilities."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, field

from antiphon.wire.codec.types import Maybe, Tagged, Wire

# Lengths: Responses reference, under `input`.
LongText = Annotated[str, Meta(max_length=10_485_760)]
ImageUrl = Annotated[str, Meta(max_length=20_971_520)]
FileBase64 = Annotated[str, Meta(max_length=33_554_432)]  # Open Responses; OpenAI takes 73,400,320, more than a body may have
ImageDetail = Literal["low", "high", "auto", "original"]


class PromptCacheBreakpoint(Wire, kw_only=True):
    """Where a cached prefix of the prompt may end."""

    mode: Literal["explicit"]
    ttl: Maybe[Literal["30m", "12h"]] = UNSET


# Input


class InputText(Tagged, kw_only=True, tag="input_text"):
    """Text for the model."""

    text: LongText
    prompt_cache_breakpoint: Maybe[PromptCacheBreakpoint] = UNSET


class InputImage(Tagged, kw_only=True, tag="input_image"):
    """An image in a message: `image_url` is an http(s) or data URL, `file_id` names an uploaded file."""

    detail: ImageDetail = "auto"
    file_id: Maybe[str] = UNSET
    image_url: Maybe[ImageUrl] = UNSET
    prompt_cache_breakpoint: Maybe[PromptCacheBreakpoint] = UNSET


class OutputImage(InputImage, kw_only=True, tag="input_image"):
    """An image in a tool's output, where `detail` may be absent."""

    detail: Maybe[ImageDetail] = UNSET  # type: ignore[assignment]  # wider than in a message, as the original has it


class InputFile(Tagged, kw_only=True, tag="input_file"):
    """A document: by URL, by uploaded file, or whole in base64 (`file_data`)."""

    detail: Maybe[Literal["auto", "low", "high"]] = UNSET
    file_data: Maybe[FileBase64] = UNSET
    file_id: Maybe[str] = UNSET
    file_url: Maybe[str] = UNSET
    filename: Maybe[str] = UNSET
    prompt_cache_breakpoint: Maybe[PromptCacheBreakpoint] = UNSET


class AudioClip(Wire, kw_only=True):
    """An audio file, `data` in base64."""

    data: str
    format: Literal["mp3", "wav"]


# In OpenAI's document, but not among a message's parts there; here models that can hear take it in messages.
class InputAudio(Tagged, kw_only=True, tag="input_audio"):
    """Audio for the model; `transcript` is what is said in it, if known."""

    input_audio: AudioClip
    transcript: Maybe[str] = UNSET


# Output


class FileCitation(Tagged, kw_only=True, tag="file_citation"):
    """An uploaded file as the source; `index` counts characters of the text."""

    file_id: str
    filename: str
    index: int


class UrlCitation(Tagged, kw_only=True, tag="url_citation"):
    """A page as the source of a stretch of text, in characters."""

    end_index: int
    start_index: int
    title: str
    url: str


class ContainerFileCitation(Tagged, kw_only=True, tag="container_file_citation"):
    """A file in a code interpreter's container as the source of a stretch of text, in characters."""

    container_id: str
    end_index: int
    file_id: str
    filename: str
    start_index: int


class FilePath(Tagged, kw_only=True, tag="file_path"):
    """A file that the text names; `index` counts characters of the text."""

    file_id: str
    index: int


Annotation = FileCitation | UrlCitation | ContainerFileCitation | FilePath


class TopLogprob(Wire, kw_only=True):
    """An alternative to a token, with its log probability; `bytes` is its UTF-8."""

    token: Maybe[str] = UNSET
    logprob: Maybe[float] = UNSET
    bytes: Maybe[list[int]] = UNSET


class Logprob(Wire, kw_only=True):
    """A token that was chosen, with its log probability and the alternatives; `bytes` is its UTF-8."""

    token: str
    logprob: float
    bytes: Maybe[list[int]] = UNSET
    top_logprobs: Maybe[list[TopLogprob]] = UNSET


class OutputText(Tagged, kw_only=True, tag="output_text"):
    """Text of the model."""

    annotations: list[Annotation] = field(default_factory=list)
    text: LongText
    logprobs: Maybe[list[Logprob]] = UNSET


class Refusal(Tagged, kw_only=True, tag="refusal"):
    """The text of a refusal."""

    refusal: str


class SummaryText(Tagged, kw_only=True, tag="summary_text"):
    """A summary of the model's reasoning."""

    text: str


class ReasoningText(Tagged, kw_only=True, tag="reasoning_text"):
    """The model's own reasoning."""

    text: str


class ComputerScreenshot(Tagged, kw_only=True, tag="computer_screenshot"):
    """A computer's screen, after an action."""

    detail: Maybe[ImageDetail] = UNSET
    file_id: Maybe[str] = UNSET
    image_url: Maybe[ImageUrl] = UNSET
    prompt_cache_breakpoint: Maybe[PromptCacheBreakpoint] = UNSET


InputPart = InputText | InputImage | InputFile | InputAudio
ToolOutputPart = InputText | OutputImage | InputFile
OutputPart = OutputText | Refusal
MessagePart = InputText | InputImage | OutputText | Refusal | InputFile | InputAudio
StreamedPart = OutputText | Refusal | ReasoningText
