"""What an engine says to a protocol."""

from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import force_setattr

from antiphon.engine_api.history import Phase
from antiphon.errors import ApiError


class _Event(Struct, frozen=True, tag_field="word"):
    """Tagged by class name, so that it can cross a process boundary."""


class TokenCandidate(Struct, frozen=True):
    """One token, or an alternative to one, with its log probability."""

    token: str
    logprob: float
    bytes: tuple[int, ...] = ()


class TokenLogprob(Struct, frozen=True):
    """A token that was chosen, and the alternatives to it."""

    token: TokenCandidate
    alternatives: tuple[TokenCandidate, ...] = ()


class ItemBoundary(_Event, frozen=True, tag=True):
    """
    The item said so far is whole, and what follows is another; engines whose answers don't come as items never say it.

    Attributes:
        item_id: what the next item is to be called; None leaves that to the protocol.
        phase: of a message that is the next item.
    """

    id: str
    item_id: str | None = None
    phase: Phase | None = None


class TextDelta(_Event, frozen=True, tag=True):
    """More of the answer's text."""

    id: str
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class AnnotationAdded(_Event, frozen=True, tag=True):
    """A citation of the text said so far, in the shape of the Responses API's annotations."""

    id: str
    annotation: dict[str, Any]


class RefusalDelta(_Event, frozen=True, tag=True):
    """More of the words with which the model declines."""

    id: str
    text: str


class ReasoningDelta(_Event, frozen=True, tag=True):
    """More of the model's reasoning: its own words, or where `summary` is set an account of them for the user."""

    id: str
    text: str
    summary: bool = False


class ReasoningBoundary(_Event, frozen=True, tag=True):
    """The summary so far is one whole; what follows is another part of it."""

    id: str


class EncryptedReasoning(_Event, frozen=True, tag=True):
    """The reasoning just given, in a form that only its engine can read back."""

    id: str
    content: str


class ToolCallStarted(_Event, frozen=True, tag=True):
    """The model begins to call a tool; with `custom` the tool takes free text."""

    id: str
    call_id: str
    name: str
    custom: bool = False
    namespace: str | None = None


class ToolArgumentsDelta(_Event, frozen=True, tag=True):
    """More of a call's arguments (JSON text), or of a custom call's input."""

    id: str
    call_id: str
    text: str


class ToolCallDone(_Event, frozen=True, tag=True):
    """The call's arguments are complete. Calls that say nothing of the sort are complete when the answer ends."""

    id: str
    call_id: str


class HostedToolStarted(_Event, frozen=True, tag=True):
    """A hosted tool is at work: `item` as the Responses API has it, its `type` among its fields."""

    id: str
    item: dict[str, Any]


class HostedToolProgress(_Event, frozen=True, tag=True):
    """The hosted tool at work has come further: `event` as the Responses API has it."""

    id: str
    event: dict[str, Any]


class HostedToolDone(_Event, frozen=True, tag=True):
    """The hosted tool is done; `item` is all of it."""

    id: str
    item: dict[str, Any]


MAX_TOKENS = 2**31 - 1
"""More than any answer has; no engine is asked for more, as many count in 32 bits."""


class _Counts(_Event, frozen=True):
    """
    A word that counts tokens.

    What an upstream or a worker claims is taken from limits and added to sums: below 0 it would give back what was used, and in numbers of
    any length it would fit into none of those.
    """

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if name.endswith("_tokens") and not 0 <= (count := getattr(self, name)) <= MAX_TOKENS:
                force_setattr(self, name, min(max(count, 0), MAX_TOKENS))


class Usage(_Counts, frozen=True, kw_only=True, tag=True):
    """Tokens counted; the last one said for a response holds."""

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


class AudioDelta(_Event, frozen=True, tag=True):
    """More of the answer aloud: s16le mono, whole samples, at the rate of the `Respond`'s voice."""

    id: str
    pcm: bytes


class AudioTranscriptDelta(_Event, frozen=True, tag=True):
    """More of the words of the answer's sound, the sound that follows."""

    id: str
    text: str


class SpeechStarted(_Event, frozen=True, tag=True):
    """Someone speaks; `at_ms` is where the turn starts, padding before the speech and all."""

    id: str
    at_ms: int


class SpeechStopped(_Event, frozen=True, tag=True):
    """The turn that had started is over, and is committed; `at_ms` is where it ends."""

    id: str
    at_ms: int


class InputTranscriptDelta(_Event, frozen=True, tag=True):
    """More of the words of a turn; never taken back."""

    id: str
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class InputTranscriptSegment(_Event, frozen=True, kw_only=True, tag=True):
    """A stretch of a turn that one speaker said; seconds from the turn's start."""

    id: str
    text: str
    start_s: float
    end_s: float
    speaker: str = ""


class InputTranscriptDone(_Counts, frozen=True, kw_only=True, tag=True):
    """
    All the words of a turn that is over; the last that is said of its transcript.

    Attributes:
        seconds: of sound that were transcribed, where that is what it costs; else tokens are.
        languages: those that were spoken, as codes, where that is known.
    """

    id: str
    transcript: str
    seconds: float | None = None
    input_tokens: int = 0
    input_audio_tokens: int = 0
    output_tokens: int = 0
    languages: tuple[str, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


class InputTranscriptFailed(_Event, frozen=True, kw_only=True, tag=True):
    """The turn could not be transcribed; the last that is said of its transcript."""

    id: str
    message: str
    code: str | None = "transcription_failed"
    type: str = "server_error"


class EngineError(_Event, frozen=True, kw_only=True, tag=True):
    """Something failed that is no answer's, such as the hearing; the conversation goes on."""

    message: str
    code: str | None = "server_error"
    type: str = "server_error"
    id: str = ""


class DuplexStarted(_Event, frozen=True, tag=True):
    """What `StartDuplex` asked for is there; `metrics` as with `EngineMetrics`."""

    metrics: dict[str, Any] = {}
    id: str = ""


class Listening(_Event, frozen=True, tag=True):
    """The engine listens: it has taken a piece of the sound and says nothing to it, or has said what it had to say."""

    id: str = ""


class EngineMetrics(_Event, frozen=True, tag=True):
    """What the engine measured of the work behind its words that come next, by the names that it has for it."""

    id: str
    metrics: dict[str, Any]


class QueueUpdate(_Event, frozen=True, kw_only=True, tag=True):
    """
    There is no place yet.

    Attributes:
        id: of the ticket.
        position: 1 for who is next.
        queue_length: of all that wait.
        wait_s: how long it may take; None where that is not known.
    """

    id: str
    position: int
    queue_length: int
    wait_s: float | None = None


class WorkerAssigned(_Event, frozen=True, tag=True):
    """There is a place, and what has it is there; `id` is the ticket's, `worker` the name of what answers."""

    id: str
    worker: str = ""


class EngineLost(_Event, frozen=True, kw_only=True, tag=True):
    """
    What answered is gone, or there will be no place; nothing more comes. What was being answered has ended with `ResponseFailed`.

    Attributes:
        code: `queue_full`, `worker_busy`, `backend_error`, or `shutdown`.
        message: what can be told to whoever is at the other end.
    """

    code: str
    message: str
    id: str = ""


EndReason = Literal["stop", "length", "content_filter", "cancelled"]


class ResponseEnded(_Event, frozen=True, tag=True):
    """The answer is over: whole (`stop`, also when it ends in calls), cut at the token limit, filtered, or cancelled."""

    id: str
    reason: EndReason = "stop"


class ResponseFailed(_Event, frozen=True, kw_only=True, tag=True):
    """
    The answer failed; nothing more of it comes.

    Attributes:
        status: the HTTP status that tells it best: 4xx when the request was at fault.
        code: the API's error code.
        type: the API's error family.
        retry_after_s: seconds after which trying again may help.
    """

    id: str
    message: str
    status: int = 500
    code: str | None = "server_error"
    type: str = "server_error"
    param: str | None = None
    retry_after_s: float | None = None

    @classmethod
    def from_error(cls, id: str, error: ApiError) -> "ResponseFailed":
        """The answer `id` failed by `fault`."""
        return cls(
            id=id,
            message=error.message,
            status=error.status,
            code=error.code,
            type=error.type,
            param=error.param,
            retry_after_s=error.retry_after_s,
        )


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
    | ResponseEnded
    | ResponseFailed
)
