"""
The events that an engine delivers to a protocol. The commands that it answers are in `antiphon.engine_api.commands`.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import force_setattr

from antiphon.engine_api.history import Phase
from antiphon.errors import ApiError


class _Event(Struct, frozen=True, tag_field="word"):
    """Tagged by class name, so that it can cross a process boundary."""


class TokenCandidate(Struct, frozen=True):
    """A token with its log probability."""

    token: str
    logprob: float
    bytes: tuple[int, ...] = ()


class TokenLogprob(Struct, frozen=True):
    """A token that was sampled, and the alternatives to it."""

    token: TokenCandidate
    alternatives: tuple[TokenCandidate, ...] = ()


class ItemBoundary(_Event, frozen=True, tag=True):
    """
    The current output item is complete and another follows; only from engines whose output comes as items.

    Attributes:
        item_id: the id of the next item; None lets the protocol choose.
        phase: of the next item, if it is a message.
    """

    id: str
    item_id: str | None = None
    phase: Phase | None = None


class TextDelta(_Event, frozen=True, tag=True):
    """More of the output text."""

    id: str
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class AnnotationAdded(_Event, frozen=True, tag=True):
    """An annotation of the text so far, in the shape of the Responses API."""

    id: str
    annotation: dict[str, Any]


class RefusalDelta(_Event, frozen=True, tag=True):
    """More of the text with which the model refuses."""

    id: str
    text: str


class ReasoningDelta(_Event, frozen=True, tag=True):
    """More of the model's reasoning: raw, or with `summary` a summary for the user."""

    id: str
    text: str
    summary: bool = False


class ReasoningBoundary(_Event, frozen=True, tag=True):
    """The current part of the reasoning summary is complete; another follows."""

    id: str


class EncryptedReasoning(_Event, frozen=True, tag=True):
    """The reasoning so far, in a form that only its engine can read."""

    id: str
    content: str


class ToolCallStarted(_Event, frozen=True, tag=True):
    """The model starts a tool call; `custom` if the tool takes free text."""

    id: str
    call_id: str
    name: str
    custom: bool = False
    namespace: str | None = None


class ToolArgumentsDelta(_Event, frozen=True, tag=True):
    """More of a call's arguments (JSON text), or of a custom tool's input."""

    id: str
    call_id: str
    text: str


class ToolCallDone(_Event, frozen=True, tag=True):
    """The call's arguments are complete. Without this event a call is complete when the response ends."""

    id: str
    call_id: str


class HostedToolStarted(_Event, frozen=True, tag=True):
    """A hosted tool starts: `item` as in the Responses API, with its `type`."""

    id: str
    item: dict[str, Any]


class HostedToolProgress(_Event, frozen=True, tag=True):
    """The running hosted tool has progressed: `event` as in the Responses API."""

    id: str
    event: dict[str, Any]


class HostedToolDone(_Event, frozen=True, tag=True):
    """The hosted tool is done: `item` is complete."""

    id: str
    item: dict[str, Any]


MAX_TOKENS = 2**31 - 1
"""More than any answer has; no engine is asked for more, as many count in 32 bits."""


class _Counts(_Event, frozen=True):
    """
    An event that counts tokens.

    Counts from an upstream server or a worker are taken from rate limits and added to sums, so they are clamped: below
    0 they would give back what was used, and beyond 32 bits they would overflow.
    """

    def __post_init__(self) -> None:
        names, read = _counts_of(type(self))
        counts = read(self)
        if min(counts) < 0 or max(counts) > MAX_TOKENS:
            for name, count in zip(names, counts, strict=True):
                force_setattr(self, name, min(max(count, 0), MAX_TOKENS))


@functools.cache
def _counts_of(kind: type[_Counts]) -> tuple[Sequence[str], Callable[[_Counts], tuple[int, ...]]]:
    """The names of the fields of a class that are counts, and what reads them all."""
    names = [name for name in kind.__struct_fields__ if name.endswith("_tokens")]
    return names, operator.attrgetter(*names)


class Usage(_Counts, frozen=True, kw_only=True, tag=True):
    """Token counts; the last one delivered for a response counts."""

    id: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    input_audio_tokens: int = 0
    input_image_tokens: int = 0
    output_audio_tokens: int = 0
    cached_audio_tokens: int = 0

    def plus(self, earlier: "Usage | None") -> "Usage":
        """The tokens of both, for a response that took another one first, or after it."""
        if earlier is None:
            return self
        counts = {name: getattr(self, name) + getattr(earlier, name) for name in self.__struct_fields__ if name != "id"}
        return Usage(id=self.id, **counts)


class AudioDelta(_Event, frozen=True, tag=True):
    """More of the spoken output: s16le mono, whole samples, at the rate of the `Respond`'s voice."""

    id: str
    pcm: bytes


class AudioTranscriptDelta(_Event, frozen=True, tag=True):
    """More of the text of the spoken output; precedes the audio in which it is heard."""

    id: str
    text: str


class SpeechStarted(_Event, frozen=True, tag=True):
    """A turn starts at `at_ms`, including the padding before the speech."""

    id: str
    at_ms: int


class SpeechStopped(_Event, frozen=True, tag=True):
    """The turn ends at `at_ms`, and is committed."""

    id: str
    at_ms: int


class InputTranscriptDelta(_Event, frozen=True, tag=True):
    """More of the transcript of a turn; never taken back."""

    id: str
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class InputTranscriptSegment(_Event, frozen=True, kw_only=True, tag=True):
    """A segment of a turn by one speaker; seconds from the turn's start."""

    id: str
    text: str
    start_s: float
    end_s: float
    speaker: str = ""


class InputTranscriptDone(_Counts, frozen=True, kw_only=True, tag=True):
    """
    The whole transcript of a turn that is over; the last event of its transcript.

    Attributes:
        seconds: of audio that were transcribed, if that is what it costs; else tokens are counted.
        languages: that were detected, as codes; empty if unknown.
        start_ms: in full duplex, where the turn starts in the input; else `SpeechStarted` says it. `end_ms` is where it
            ends.
    """

    id: str
    transcript: str
    seconds: float | None = None
    input_tokens: int = 0
    input_audio_tokens: int = 0
    output_tokens: int = 0
    languages: tuple[str, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    start_ms: int | None = None
    end_ms: int | None = None


class InputTranscriptFailed(_Event, frozen=True, kw_only=True, tag=True):
    """The turn could not be transcribed; the last event of its transcript."""

    id: str
    message: str
    code: str | None = "transcription_failed"
    type: str = "server_error"


class EngineError(_Event, frozen=True, kw_only=True, tag=True):
    """An error that belongs to no response, such as one of the speech models; the conversation goes on."""

    message: str
    code: str | None = "server_error"
    type: str = "server_error"
    id: str = ""


class DuplexStarted(_Event, frozen=True, tag=True):
    """Full duplex has started; `metrics` as in `EngineMetrics`."""

    metrics: dict[str, Any] = {}
    id: str = ""


class Listening(_Event, frozen=True, tag=True):
    """The engine is listening: it has processed a chunk of audio and stays silent, or has finished speaking."""

    id: str = ""


class EngineMetrics(_Event, frozen=True, tag=True):
    """What the engine measured for its next events, under the engine's own names."""

    id: str
    metrics: dict[str, Any]


class QueueUpdate(_Event, frozen=True, kw_only=True, tag=True):
    """
    There is no worker yet.

    Attributes:
        id: of the ticket.
        position: 1 for the next to be served.
        queue_length: how many wait.
        wait_s: the estimated wait.
    """

    id: str
    position: int
    queue_length: int
    wait_s: float


class WorkerAssigned(_Event, frozen=True, tag=True):
    """There is a worker, and it is ready; `id` is the ticket, `worker` the name of the worker."""

    id: str
    worker: str = ""


class EngineLost(_Event, frozen=True, kw_only=True, tag=True):
    """
    The engine is gone, or there will be no worker; no more events follow. Responses under way have ended with
    `ResponseFailed`.

    Attributes:
        code: `queue_full`, `worker_busy`, `backend_error`, or `server_shutting_down`.
        message: for the client.
    """

    code: str
    message: str
    id: str = ""


class CompactionProgress(_Event, frozen=True, tag=True):
    """
    A summary of the conversation is being written, which is to be the output item `item_id`. It may still fail, and the
    response go on without.
    """

    id: str
    item_id: str


RewriteStatus = Literal["completed", "failed"]


class RewriteStarted(_Event, frozen=True, tag=True):
    """
    The response's text is complete as a draft, and is being rewritten. It is what is open; `RewriteEnded` follows.
    """

    id: str


class RewriteEnded(_Event, frozen=True, kw_only=True, tag=True):
    """
    The text has been rewritten, or the attempt has failed.

    Attributes:
        text: takes the place of all the text of the open part; None leaves it as it is, or where it was not delivered yet.
        annotations: of `text`, in the shape of the Responses API.
    """

    id: str
    status: RewriteStatus
    text: str | None = None
    annotations: tuple[dict[str, Any], ...] = ()


class RetryScheduled(_Event, frozen=True, tag=True):
    """
    The model's server refused the request, or didn't answer, and is asked again in a moment. The response has no output
    yet.
    """

    id: str


class Attempt(Struct, frozen=True):
    """
    One try to have a request answered.

    Attributes:
        model: the name of the model.
        upstream: the configured name of its server; empty for a model with one.
        outcome: `ok`, or why it has no answer, in a word.
        started_ms: when it began, from the beginning of the first.
        duration_ms: how long it took: to the first output, or to its failure.
    """

    model: str
    upstream: str
    outcome: str
    started_ms: int
    duration_ms: int


class AttemptsReported(_Event, frozen=True, kw_only=True, tag=True):
    """
    Who answers, from an engine that chooses between several: before the first output of the response, or before its
    failure.

    Attributes:
        attempts: all of them, in order; the last one is who answers.
        fallback_reason: why another model answers than the one that was asked for; empty if it does not.
    """

    id: str
    attempts: tuple[Attempt, ...]
    fallback_reason: str = ""


class RelayData(_Event, frozen=True, tag=True):
    """
    More of the answer to a `Relay`: the data of one server-sent event, or the whole body of an answer that is not
    streamed.

    Attributes:
        is_chunk: whether it is an event of a stream, though the answer was to be whole: its session puts it together.
    """

    id: str
    data: bytes
    is_chunk: bool = False


EndReason = Literal["stop", "length", "content_filter", "cancelled"]


class ResponseEnded(_Event, frozen=True, tag=True):
    """
    The response is over: complete (`stop`, also if it ends with tool calls), cut at the token limit, filtered, or
    cancelled.

    Attributes:
        stop_sequence: which of the request's stop sequences ended it, if one did and the engine tells.
    """

    id: str
    reason: EndReason = "stop"
    stop_sequence: str | None = None


class ResponseFailed(_Event, frozen=True, kw_only=True, tag=True):
    """
    The response failed; no more of it follows.

    Attributes:
        status: the HTTP status that fits best: 4xx if the request was at fault.
        code: the API's error code.
        type: the API's error type.
        retry_after_s: seconds after which a retry may help.
        cause: what an upstream server did, in a word; see `errors.ApiError`.
    """

    id: str
    message: str
    status: int = 500
    code: str | None = "server_error"
    type: str = "server_error"
    param: str | None = None
    retry_after_s: float | None = None
    cause: str | None = None

    @classmethod
    def from_error(cls, id: str, error: ApiError) -> "ResponseFailed":
        """The failure of response `id` by this error."""
        return cls(
            id=id,
            message=error.message,
            status=error.status,
            code=error.code,
            type=error.type,
            param=error.param,
            retry_after_s=error.retry_after_s,
            cause=error.cause,
        )


TerminalEvent = ResponseEnded | ResponseFailed
"""The last event of a response."""

EngineEvent = (
    ItemBoundary
    | TextDelta
    | AnnotationAdded
    | RefusalDelta
    | ReasoningDelta
    | ReasoningBoundary
    | EncryptedReasoning
    | ToolCallStarted
    | ToolArgumentsDelta
    | ToolCallDone
    | HostedToolStarted
    | HostedToolProgress
    | HostedToolDone
    | Usage
    | AudioDelta
    | AudioTranscriptDelta
    | SpeechStarted
    | SpeechStopped
    | InputTranscriptDelta
    | InputTranscriptSegment
    | InputTranscriptDone
    | InputTranscriptFailed
    | EngineError
    | DuplexStarted
    | Listening
    | EngineMetrics
    | QueueUpdate
    | WorkerAssigned
    | EngineLost
    | CompactionProgress
    | RewriteStarted
    | RewriteEnded
    | RetryScheduled
    | AttemptsReported
    | RelayData
    | ResponseEnded
    | ResponseFailed
)
