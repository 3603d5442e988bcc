"""The events of a Realtime server; the fields are in the order in which the original writes them."""

from collections.abc import Callable
from typing import Literal

from msgspec import UNSET

from antiphon.wire.codec.types import Maybe, Opt, Tagged, Unknown, Wire, encode
from antiphon.wire.realtime.base import RealtimeObject, RealtimeTagged
from antiphon.wire.realtime.decode import EventReader
from antiphon.wire.realtime.items import Item, StreamedPart
from antiphon.wire.realtime.response import Response
from antiphon.wire.realtime.session import Session, TranscriptionSession
from antiphon.wire.responses.parts import Logprob as Logprob

AnyItem = Item | Unknown


class Event(RealtimeTagged, kw_only=True):
    """
    The base of all events: `event_id` is the server's id. Every field is written where the original has it: without an
    `event_id` or an `output_index` most clients that check types hear nothing (measured with OpenAI's Agents SDKs and
    pipecat).
    """

    event_id: str


# The session


class SessionCreated(Event, kw_only=True, tag="session.created"):
    """The session at its start; the first event."""

    session: Session | TranscriptionSession


class QueuePosition(Event, kw_only=True, tag="antiphon.queued"):
    """There is no worker yet; position 1 is next. Ours, and only for clients that ask for the queue."""

    ticket_id: str
    position: int
    queue_length: int
    estimated_wait_s: float


class SessionUpdated(Event, kw_only=True, tag="session.updated"):
    """The whole session, after a change."""

    session: Session | TranscriptionSession


class RealtimeError(RealtimeObject, kw_only=True):
    """What went wrong; `event_id` is the client's own id of the event that it is about."""

    type: str
    code: str | None = None
    message: str
    param: str | None = None
    event_id: str | None = None


class ErrorEvent(Event, kw_only=True, tag="error"):
    """An error; in most cases the session goes on."""

    error: RealtimeError


class RateLimit(RealtimeObject, kw_only=True):
    """What is left of a limit, and how many seconds until all of it is available again."""

    name: Opt[Literal["requests", "tokens"]] = UNSET
    limit: Opt[int] = UNSET
    remaining: Opt[int] = UNSET
    reset_seconds: Opt[float] = UNSET


class RateLimitsUpdated(Event, kw_only=True, tag="rate_limits.updated"):
    """What is left of the limits after a response's tokens are subtracted."""

    rate_limits: list[RateLimit]


# The conversation


class Conversation(RealtimeObject, kw_only=True):
    """The conversation of a session."""

    id: Opt[str] = UNSET
    object: Opt[Literal["realtime.conversation"]] = UNSET


class ConversationCreated(Event, kw_only=True, tag="conversation.created"):
    """The conversation was created; in the beta it follows `session.created`."""

    conversation: Conversation


class PositionedItemEvent(Event, kw_only=True):
    """An event of an item; `previous_item_id` is None for the first."""

    previous_item_id: str | None = None
    item: AnyItem


class ConversationItemCreated(PositionedItemEvent, kw_only=True, tag="conversation.item.created"):
    """An item was added; only in the beta."""


class ConversationItemAdded(PositionedItemEvent, kw_only=True, tag="conversation.item.added"):
    """An item was added; it may not be complete yet."""


class ConversationItemDone(PositionedItemEvent, kw_only=True, tag="conversation.item.done"):
    """An item in the conversation is complete."""


class ConversationItemRetrieved(Event, kw_only=True, tag="conversation.item.retrieved"):
    """The item that the client retrieved, with its audio."""

    item: AnyItem


class ConversationItemTruncated(Event, kw_only=True, tag="conversation.item.truncated"):
    """The audio of an item was truncated at `audio_end_ms`; its transcript is removed."""

    item_id: str
    content_index: int
    audio_end_ms: int


class ConversationItemDeleted(Event, kw_only=True, tag="conversation.item.deleted"):
    """An item was deleted."""

    item_id: str


# Input audio


class TokenDetails(RealtimeObject, kw_only=True):
    """Tokens of a transcription's input, by kind."""

    text_tokens: Opt[int] = UNSET
    audio_tokens: Opt[int] = UNSET


class TokensUsage(RealtimeTagged, kw_only=True, tag="tokens"):
    """A transcription that is billed by tokens."""

    total_tokens: int
    input_tokens: int
    input_token_details: Opt[TokenDetails] = UNSET
    output_tokens: int


class DurationUsage(Tagged, kw_only=True, tag="duration"):
    """A transcription that is billed by duration."""

    seconds: float


class Language(Wire, kw_only=True):
    """A language that was heard, as its ISO 639-1 code."""

    code: str


class TranscriptionError(Wire, kw_only=True):
    """Why there is no transcript."""

    type: Maybe[str] = UNSET
    code: Maybe[str] = UNSET
    message: Maybe[str] = UNSET
    param: Maybe[str] = UNSET


class InputAudioTranscriptionEvent(Event, kw_only=True):
    """An event of the transcript of the part at `content_index` of an item."""

    item_id: str
    content_index: int


class InputAudioTranscriptionDelta(InputAudioTranscriptionEvent, kw_only=True, tag="conversation.item.input_audio_transcription.delta"):
    """More of the transcript; upstreams may leave out what is optional in OpenAI's types."""

    content_index: int = 0
    delta: str = ""
    logprobs: Maybe[list[Logprob]] = UNSET


class InputAudioTranscriptionSegment(InputAudioTranscriptionEvent, kw_only=True, tag="conversation.item.input_audio_transcription.segment"):
    """What one speaker said; `start` and `end` in seconds."""

    text: str
    id: str
    speaker: str
    start: float
    end: float


class InputAudioTranscriptionCompleted(
    InputAudioTranscriptionEvent, kw_only=True, tag="conversation.item.input_audio_transcription.completed"
):
    """The whole transcript. Without `usage`, OpenAI's Agents SDK for Python drops it (measured)."""

    transcript: str
    usage: TokensUsage | DurationUsage
    languages: Opt[list[Language]] = UNSET
    logprobs: Maybe[list[Logprob]] = UNSET


class InputAudioTranscriptionFailed(InputAudioTranscriptionEvent, kw_only=True, tag="conversation.item.input_audio_transcription.failed"):
    """The transcription failed."""

    error: TranscriptionError


class InputAudioBufferCommitted(Event, kw_only=True, tag="input_audio_buffer.committed"):
    """The buffered audio becomes the item `item_id`."""

    previous_item_id: str | None = None
    item_id: str


class InputAudioBufferCleared(Event, kw_only=True, tag="input_audio_buffer.cleared"):
    """The buffered audio was dropped."""


class InputAudioBufferSpeechStarted(Event, kw_only=True, tag="input_audio_buffer.speech_started"):
    """
    The user speaks, in the future item `item_id`; in milliseconds of all audio of the session, where that item's audio
    begins, padding included.
    """

    audio_start_ms: int
    item_id: str


class InputAudioBufferSpeechStopped(Event, kw_only=True, tag="input_audio_buffer.speech_stopped"):
    """The user stopped speaking."""

    audio_end_ms: int
    item_id: str


class InputAudioBufferTimeoutTriggered(Event, kw_only=True, tag="input_audio_buffer.timeout_triggered"):
    """The user was silent for `idle_timeout_ms`."""

    audio_start_ms: int
    audio_end_ms: int
    item_id: str


class InputAudioBufferDtmfEventReceived(Tagged, kw_only=True, tag="input_audio_buffer.dtmf_event_received"):
    """A key of a telephone was pressed; the one event without an id. `received_at` in Unix seconds."""

    event: str
    received_at: int


# Output audio, if the server plays it: over WebRTC and SIP, not over a WebSocket


class OutputAudioBufferEvent(Event, kw_only=True):
    """An event of the playback of a response."""

    response_id: str


class OutputAudioBufferStarted(OutputAudioBufferEvent, kw_only=True, tag="output_audio_buffer.started"):
    """The playback started."""


class OutputAudioBufferStopped(OutputAudioBufferEvent, kw_only=True, tag="output_audio_buffer.stopped"):
    """The playback ended."""


class OutputAudioBufferCleared(OutputAudioBufferEvent, kw_only=True, tag="output_audio_buffer.cleared"):
    """The rest of the audio was dropped."""


# The response


class ResponseCreated(Event, kw_only=True, tag="response.created"):
    """A response was created."""

    response: Response


class ResponseDone(Event, kw_only=True, tag="response.done"):
    """A response is over, however it ended."""

    response: Response


class OutputItemEvent(Event, kw_only=True):
    """An event that shows an item of a response."""

    response_id: str
    output_index: int
    item: AnyItem


class ResponseOutputItemAdded(OutputItemEvent, kw_only=True, tag="response.output_item.added"):
    """An item started."""


class ResponseOutputItemDone(OutputItemEvent, kw_only=True, tag="response.output_item.done"):
    """An item is complete, or was cut off."""


class ItemEvent(Event, kw_only=True):
    """An event of an item of a response."""

    response_id: str
    item_id: str
    output_index: int


class PartEvent(ItemEvent, kw_only=True):
    """An event of a part of an item of a response."""

    content_index: int


class ResponseContentPartAdded(PartEvent, kw_only=True, tag="response.content_part.added"):
    """A part started."""

    part: StreamedPart


class ResponseContentPartDone(PartEvent, kw_only=True, tag="response.content_part.done"):
    """A part is complete, or was cut off."""

    part: StreamedPart


class ResponseOutputTextDelta(PartEvent, kw_only=True, tag="response.output_text.delta"):
    """More of the text."""

    delta: str


class ResponseOutputTextDone(PartEvent, kw_only=True, tag="response.output_text.done"):
    """The whole text."""

    text: str


class ResponseOutputAudioTranscriptDelta(PartEvent, kw_only=True, tag="response.output_audio_transcript.delta"):
    """More of the transcript of the audio."""

    delta: str


class ResponseOutputAudioTranscriptDone(PartEvent, kw_only=True, tag="response.output_audio_transcript.done"):
    """The whole transcript of the audio."""

    transcript: str


class ResponseOutputAudioDelta(PartEvent, kw_only=True, tag="response.output_audio.delta"):
    """More audio."""

    delta: bytes


class ResponseOutputAudioDone(PartEvent, kw_only=True, tag="response.output_audio.done"):
    """The audio is complete."""


class ResponseFunctionCallArgumentsDelta(ItemEvent, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    call_id: str
    delta: str


class ResponseFunctionCallArgumentsDone(ItemEvent, kw_only=True, tag="response.function_call_arguments.done"):
    """The whole arguments of a call; `name` is empty if the server does not repeat it, as in the beta."""

    call_id: str
    name: str = ""
    arguments: str


# MCP servers


class ResponseMcpCallArgumentsDelta(ItemEvent, kw_only=True, tag="response.mcp_call_arguments.delta"):
    """More of a call's arguments; `obfuscation` is random."""

    delta: str
    obfuscation: Opt[str] = UNSET


class ResponseMcpCallArgumentsDone(ItemEvent, kw_only=True, tag="response.mcp_call_arguments.done"):
    """The whole arguments of a call."""

    arguments: str


class McpCallEvent(Event, kw_only=True):
    """An event of a call of an MCP server's tool."""

    output_index: int
    item_id: str


class ResponseMcpCallInProgress(McpCallEvent, kw_only=True, tag="response.mcp_call.in_progress"):
    """The tool is at work."""


class ResponseMcpCallCompleted(McpCallEvent, kw_only=True, tag="response.mcp_call.completed"):
    """The tool is done."""


class ResponseMcpCallFailed(McpCallEvent, kw_only=True, tag="response.mcp_call.failed"):
    """The tool failed."""


class McpListToolsEvent(Event, kw_only=True):
    """An event of the list of an MCP server's tools."""

    item_id: str


class McpListToolsInProgress(McpListToolsEvent, kw_only=True, tag="mcp_list_tools.in_progress"):
    """The server is asked for its tools."""


class McpListToolsCompleted(McpListToolsEvent, kw_only=True, tag="mcp_list_tools.completed"):
    """The server's tools are known."""


class McpListToolsFailed(McpListToolsEvent, kw_only=True, tag="mcp_list_tools.failed"):
    """The server's tools could not be listed."""


ServerEvent = (
    SessionCreated
    | QueuePosition
    | SessionUpdated
    | ErrorEvent
    | RateLimitsUpdated
    | ConversationCreated
    | ConversationItemCreated
    | ConversationItemAdded
    | ConversationItemDone
    | ConversationItemRetrieved
    | ConversationItemTruncated
    | ConversationItemDeleted
    | InputAudioTranscriptionDelta
    | InputAudioTranscriptionSegment
    | InputAudioTranscriptionCompleted
    | InputAudioTranscriptionFailed
    | InputAudioBufferCommitted
    | InputAudioBufferCleared
    | InputAudioBufferSpeechStarted
    | InputAudioBufferSpeechStopped
    | InputAudioBufferTimeoutTriggered
    | InputAudioBufferDtmfEventReceived
    | OutputAudioBufferStarted
    | OutputAudioBufferStopped
    | OutputAudioBufferCleared
    | ResponseCreated
    | ResponseDone
    | ResponseOutputItemAdded
    | ResponseOutputItemDone
    | ResponseContentPartAdded
    | ResponseContentPartDone
    | ResponseOutputTextDelta
    | ResponseOutputTextDone
    | ResponseOutputAudioTranscriptDelta
    | ResponseOutputAudioTranscriptDone
    | ResponseOutputAudioDelta
    | ResponseOutputAudioDone
    | ResponseFunctionCallArgumentsDelta
    | ResponseFunctionCallArgumentsDone
    | ResponseMcpCallArgumentsDelta
    | ResponseMcpCallArgumentsDone
    | ResponseMcpCallInProgress
    | ResponseMcpCallCompleted
    | ResponseMcpCallFailed
    | McpListToolsInProgress
    | McpListToolsCompleted
    | McpListToolsFailed
)

_reader: EventReader[ServerEvent | Unknown] = EventReader(ServerEvent | Unknown)

# On the path of every delta, so without a function around them.

decode_server: Callable[[bytes], ServerEvent | Unknown] = _reader.read
"""
Decodes a server's frame; raises `ClientError` if it is not an event. An event of an unknown type, or of a known type in
another shape, is `Unknown`.
"""

encode_server: Callable[[ServerEvent], bytes] = encode
"""JSON of a server's event."""
