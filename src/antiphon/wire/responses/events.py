"""The events of a response's stream."""

from collections.abc import Callable
from typing import Literal

from msgspec import UNSET, field

from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.types import Maybe, Opt, Tagged, Typed, Unknown, Wire, encode
from antiphon.wire.responses.hosted_calls import ShellOutput
from antiphon.wire.responses.items import Item
from antiphon.wire.responses.parts import Annotation, Logprob, StreamedPart, SummaryText
from antiphon.wire.responses.response import Misalignment, Response


class Event(Tagged, kw_only=True):
    """
    What every event has.

    Attributes:
        sequence_number: from 0, one more with each event of a stream.
        stream_id: the lane of a WebSocket that it belongs to.
    """

    sequence_number: int
    stream_id: Maybe[str] = UNSET


class ItemEvent(Event, kw_only=True):
    """An event of the output item `item_id`, which stands at `output_index` of the output."""

    item_id: str
    output_index: int


class PartEvent(ItemEvent, kw_only=True):
    """An event of the part at `content_index` of an item's content."""

    content_index: int


# The response


class ResponseEvent(Event, kw_only=True):
    """An event with the response as it is now."""

    response: Response


class ResponseQueued(ResponseEvent, kw_only=True, tag="response.queued"):
    """The response is queued."""


class ResponseCreated(ResponseEvent, kw_only=True, tag="response.created"):
    """The response was created."""


class ResponseInProgress(ResponseEvent, kw_only=True, tag="response.in_progress"):
    """The response is in progress."""


class ResponseCompleted(ResponseEvent, kw_only=True, tag="response.completed"):
    """The response is complete."""


class ResponseIncomplete(ResponseEvent, kw_only=True, tag="response.incomplete"):
    """The response ended before it was complete."""


class ResponseFailed(ResponseEvent, kw_only=True, tag="response.failed"):
    """The response failed."""


class ErrorDetail(Wire, kw_only=True):
    """What went wrong."""

    type: str
    code: Maybe[str] = UNSET
    message: str
    param: Maybe[str] = UNSET
    headers: Maybe[dict[str, str]] = UNSET
    misalignment: Maybe[Misalignment] = UNSET


class ErrorEvent(Tagged, kw_only=True, tag="error"):
    """
    An error.

    Two shapes are in use: `code`, `message` and `param` in the event itself (OpenAI's server-sent events), or within
    `error` (its WebSocket, and Open Responses). `error_event` writes both, which SDKs read as they read the second
    (docs/decisions/0004).

    Attributes:
        status: the HTTP status that tells it best; on a WebSocket.
    """

    sequence_number: Maybe[int] = UNSET
    stream_id: Maybe[str] = UNSET
    code: Maybe[str] = UNSET
    message: Opt[str] = UNSET
    param: Maybe[str] = UNSET
    error: Opt[ErrorDetail] = UNSET
    status: Maybe[int] = UNSET


def error_event(sequence_number: int, *, message: str, type: str, code: str | None = None, param: str | None = None) -> ErrorEvent:
    """The event of an error, in both shapes; a profile drops the one that it does not use."""
    detail = ErrorDetail(type=type, code=code, message=message, param=param)
    return ErrorEvent(sequence_number=sequence_number, code=code, message=message, param=param, error=detail)


# Its items


class OutputItemAdded(Event, kw_only=True, tag="response.output_item.added"):
    """An item started."""

    output_index: int
    item: Item


class OutputItemDone(Event, kw_only=True, tag="response.output_item.done"):
    """An item is finished."""

    output_index: int
    item: Item


class ContentPartAdded(PartEvent, kw_only=True, tag="response.content_part.added"):
    """A part started."""

    part: StreamedPart


class ContentPartDone(PartEvent, kw_only=True, tag="response.content_part.done"):
    """A part is finished."""

    part: StreamedPart


# Text


class OutputTextDelta(PartEvent, kw_only=True, tag="response.output_text.delta"):
    """More of the text."""

    delta: str
    logprobs: list[Logprob] = field(default_factory=list)
    obfuscation: Maybe[str] = UNSET


class OutputTextDone(PartEvent, kw_only=True, tag="response.output_text.done"):
    """The whole text."""

    text: str
    logprobs: list[Logprob] = field(default_factory=list)


class AnnotationAdded(PartEvent, kw_only=True, tag="response.output_text.annotation.added"):
    """The text was given an annotation, its `annotation_index`-th."""

    annotation_index: int
    annotation: Maybe[Annotation] = UNSET


class RefusalDelta(PartEvent, kw_only=True, tag="response.refusal.delta"):
    """More of the refusal."""

    delta: str
    obfuscation: Maybe[str] = UNSET


class RefusalDone(PartEvent, kw_only=True, tag="response.refusal.done"):
    """The whole refusal."""

    refusal: str


class ReasoningTextDelta(PartEvent, kw_only=True, tag="response.reasoning_text.delta"):
    """More of the reasoning."""

    delta: str
    obfuscation: Maybe[str] = UNSET


class ReasoningTextDone(PartEvent, kw_only=True, tag="response.reasoning_text.done"):
    """The whole reasoning."""

    text: str


class ReasoningSummaryPartAdded(ItemEvent, kw_only=True, tag="response.reasoning_summary_part.added"):
    """A part of the summary started."""

    summary_index: int
    part: Typed[SummaryText]


class ReasoningSummaryPartDone(ItemEvent, kw_only=True, tag="response.reasoning_summary_part.done"):
    """A part of the summary is finished."""

    summary_index: int
    part: Typed[SummaryText]
    status: Maybe[Literal["incomplete"]] = UNSET


class ReasoningSummaryTextDelta(ItemEvent, kw_only=True, tag="response.reasoning_summary_text.delta"):
    """More of a part of the summary."""

    summary_index: int
    delta: str
    obfuscation: Maybe[str] = UNSET


class ReasoningSummaryTextDone(ItemEvent, kw_only=True, tag="response.reasoning_summary_text.done"):
    """A whole part of the summary."""

    summary_index: int
    text: str


class AudioDelta(Event, kw_only=True, tag="response.audio.delta"):
    """More audio, in base64."""

    response_id: Opt[str] = UNSET
    delta: str


class AudioDone(Event, kw_only=True, tag="response.audio.done"):
    """The audio is complete."""

    response_id: Opt[str] = UNSET


class AudioTranscriptDelta(Event, kw_only=True, tag="response.audio.transcript.delta"):
    """More of the audio's transcript."""

    response_id: Opt[str] = UNSET
    delta: str


class AudioTranscriptDone(Event, kw_only=True, tag="response.audio.transcript.done"):
    """The audio's transcript is complete."""

    response_id: Opt[str] = UNSET


# Calls


class FunctionCallArgumentsDelta(ItemEvent, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    delta: str
    obfuscation: Maybe[str] = UNSET


class FunctionCallArgumentsDone(ItemEvent, kw_only=True, tag="response.function_call_arguments.done"):
    """A call's whole arguments."""

    name: Opt[str] = UNSET
    arguments: str


class CustomToolCallInputDelta(ItemEvent, kw_only=True, tag="response.custom_tool_call_input.delta"):
    """More of a custom tool's input."""

    delta: str
    obfuscation: Maybe[str] = UNSET


class CustomToolCallInputDone(ItemEvent, kw_only=True, tag="response.custom_tool_call_input.done"):
    """A custom tool's whole input."""

    input: str


class McpCallArgumentsDelta(ItemEvent, kw_only=True, tag="response.mcp_call_arguments.delta"):
    """More of an MCP call's arguments."""

    delta: str
    obfuscation: Maybe[str] = UNSET


class McpCallArgumentsDone(ItemEvent, kw_only=True, tag="response.mcp_call_arguments.done"):
    """An MCP call's whole arguments."""

    arguments: str


class McpCallInProgress(ItemEvent, kw_only=True, tag="response.mcp_call.in_progress"):
    """An MCP call was begun."""


class McpCallCompleted(ItemEvent, kw_only=True, tag="response.mcp_call.completed"):
    """An MCP call is done."""


class McpCallFailed(ItemEvent, kw_only=True, tag="response.mcp_call.failed"):
    """An MCP call failed."""


class McpListToolsInProgress(ItemEvent, kw_only=True, tag="response.mcp_list_tools.in_progress"):
    """An MCP server is asked for its tools."""


class McpListToolsCompleted(ItemEvent, kw_only=True, tag="response.mcp_list_tools.completed"):
    """An MCP server's tools are known."""


class McpListToolsFailed(ItemEvent, kw_only=True, tag="response.mcp_list_tools.failed"):
    """An MCP server's tools could not be had."""


class FileSearchCallInProgress(ItemEvent, kw_only=True, tag="response.file_search_call.in_progress"):
    """A search of files was begun."""


class FileSearchCallSearching(ItemEvent, kw_only=True, tag="response.file_search_call.searching"):
    """Files are being searched."""


class FileSearchCallCompleted(ItemEvent, kw_only=True, tag="response.file_search_call.completed"):
    """A search of files is done."""


class WebSearchCallInProgress(ItemEvent, kw_only=True, tag="response.web_search_call.in_progress"):
    """A web search started."""


class WebSearchCallSearching(ItemEvent, kw_only=True, tag="response.web_search_call.searching"):
    """The web is being searched."""


class WebSearchCallCompleted(ItemEvent, kw_only=True, tag="response.web_search_call.completed"):
    """A search of the web is done."""


class CodeInterpreterCallInProgress(ItemEvent, kw_only=True, tag="response.code_interpreter_call.in_progress"):
    """A run of code started."""


class CodeInterpreterCallInterpreting(ItemEvent, kw_only=True, tag="response.code_interpreter_call.interpreting"):
    """Code is running."""


class CodeInterpreterCallCompleted(ItemEvent, kw_only=True, tag="response.code_interpreter_call.completed"):
    """A run of code is done."""


class CodeInterpreterCallCodeDelta(ItemEvent, kw_only=True, tag="response.code_interpreter_call_code.delta"):
    """More of the code."""

    delta: str
    obfuscation: Maybe[str] = UNSET


class CodeInterpreterCallCodeDone(ItemEvent, kw_only=True, tag="response.code_interpreter_call_code.done"):
    """The whole code."""

    code: str


class ImageGenerationCallInProgress(ItemEvent, kw_only=True, tag="response.image_generation_call.in_progress"):
    """The generation of an image started."""


class ImageGenerationCallGenerating(ItemEvent, kw_only=True, tag="response.image_generation_call.generating"):
    """The image is being generated."""


class ImageGenerationCallPartialImage(ItemEvent, kw_only=True, tag="response.image_generation_call.partial_image"):
    """The image so far, in base64."""

    partial_image_b64: str
    partial_image_index: int
    background: Maybe[str] = UNSET
    output_format: Maybe[str] = UNSET
    quality: Maybe[str] = UNSET
    size: Maybe[str] = UNSET


class ImageGenerationCallCompleted(ItemEvent, kw_only=True, tag="response.image_generation_call.completed"):
    """The image is complete."""


class CommandEvent(Event, kw_only=True):
    """An event of the command at `command_index` of a shell call."""

    output_index: int
    command_index: int


class ShellCallCommandAdded(CommandEvent, kw_only=True, tag="response.shell_call_command.added"):
    """A shell command started."""

    command: str


class ShellCallCommandDelta(CommandEvent, kw_only=True, tag="response.shell_call_command.delta"):
    """More of a shell command."""

    delta: str
    obfuscation: Maybe[str] = UNSET


class ShellCallCommandDone(CommandEvent, kw_only=True, tag="response.shell_call_command.done"):
    """A whole shell command."""

    command: str


class ShellOutputDelta(Wire, kw_only=True):
    """More of a command's output."""

    stderr: Maybe[str] = UNSET
    stdout: Maybe[str] = UNSET


class ShellCallOutputContentDelta(ItemEvent, kw_only=True, tag="response.shell_call_output_content.delta"):
    """More of a shell command's output."""

    command_index: int
    delta: ShellOutputDelta


class ShellCallOutputContentDone(ItemEvent, kw_only=True, tag="response.shell_call_output_content.done"):
    """The whole output of a shell command."""

    command_index: int
    output: list[ShellOutput]


class CompactionCompacting(ItemEvent, kw_only=True, tag="response.compaction.compacting"):
    """The context is being compacted."""


# Of profiles that add events to the original's


class UnnumberedEvent(Tagged, kw_only=True):
    """
    An event that the original does not have. It has no number until a profile that shows it numbers its events, so that
    a profile which drops it leaves no gap.
    """

    sequence_number: Opt[int] = UNSET
    stream_id: Maybe[str] = UNSET


class RoutingCompleted(UnnumberedEvent, kw_only=True, tag="response.routing.completed"):
    """The model `model_id` was chosen for a request that left the choice to the server."""

    model_id: str
    category: str
    source: str
    reasoning: str


class AnsweredByFallback(UnnumberedEvent, kw_only=True, tag="response.fallback.completed"):
    """Another model answers than the response names; for a profile whose last event says so."""

    model_id: str


class RewriteInProgress(UnnumberedEvent, kw_only=True, tag="response.rewrite.in_progress"):
    """The text is being rewritten; what `response.output_text.done` says is the final text."""


class RewriteFailed(UnnumberedEvent, kw_only=True, tag="response.rewrite.failed"):
    """The text could not be rewritten, and stays as it is; for a profile whose last event says so."""


UNNUMBERED_EVENTS = (RoutingCompleted, AnsweredByFallback, RewriteInProgress, RewriteFailed)
"""Those that only some profiles show."""

OPENING_EVENTS = (ResponseCreated, ResponseQueued, ResponseInProgress, *UNNUMBERED_EVENTS)
"""Events without output."""

TERMINAL_EVENTS = (ResponseCompleted, ResponseIncomplete, ResponseFailed)
"""Each stream ends with one of them."""

OriginalEvent = (
    ResponseQueued
    | ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ErrorEvent
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextDone
    | AnnotationAdded
    | RefusalDelta
    | RefusalDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | ReasoningSummaryPartAdded
    | ReasoningSummaryPartDone
    | ReasoningSummaryTextDelta
    | ReasoningSummaryTextDone
    | AudioDelta
    | AudioDone
    | AudioTranscriptDelta
    | AudioTranscriptDone
    | FunctionCallArgumentsDelta
    | FunctionCallArgumentsDone
    | CustomToolCallInputDelta
    | CustomToolCallInputDone
    | McpCallArgumentsDelta
    | McpCallArgumentsDone
    | McpCallInProgress
    | McpCallCompleted
    | McpCallFailed
    | McpListToolsInProgress
    | McpListToolsCompleted
    | McpListToolsFailed
    | FileSearchCallInProgress
    | FileSearchCallSearching
    | FileSearchCallCompleted
    | WebSearchCallInProgress
    | WebSearchCallSearching
    | WebSearchCallCompleted
    | CodeInterpreterCallInProgress
    | CodeInterpreterCallInterpreting
    | CodeInterpreterCallCompleted
    | CodeInterpreterCallCodeDelta
    | CodeInterpreterCallCodeDone
    | ImageGenerationCallInProgress
    | ImageGenerationCallGenerating
    | ImageGenerationCallPartialImage
    | ImageGenerationCallCompleted
    | ShellCallCommandAdded
    | ShellCallCommandDelta
    | ShellCallCommandDone
    | ShellCallOutputContentDelta
    | ShellCallOutputContentDone
    | CompactionCompacting
    | Unknown
)
"""An event of the original's streams."""

StreamEvent = OriginalEvent | RoutingCompleted | AnsweredByFallback | RewriteInProgress | RewriteFailed
"""An event of a session; a profile decides which of them a client sees."""

_reader: Reader[StreamEvent] = Reader(StreamEvent)

# On the path of every token, so without a function around them.

decode_event: Callable[[bytes], StreamEvent] = _reader.read
"""Decodes a server's event; raises `ClientError` if it is not one."""

encode_event: Callable[[StreamEvent], bytes] = encode
"""JSON of an event, as the original writes it; `profiles` has the other forms."""
