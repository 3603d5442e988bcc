"""
The vocabulary between protocols and engines: every word that one can say to the other.

Neither side knows the other's wire. A protocol turns its client's messages into these words, an engine turns these words into
whatever its model understands, and back. Words are immutable and carry the id of the response, or of the turn, that they belong to. The
history that a `Respond` carries is in `antiphon.turns`, what it asks for in `antiphon.asks`.

Live sound. A conversation's clock is the sound that it was told with `Hear`, in milliseconds since the first of it; what was dropped by
`Forget` counts too. A turn is a stretch of that sound: an engine that detects turns says where one starts and stops, under an id of its
own; one that was committed by hand has the id that `Commit` gave it. Both come back in the history as a `turns.SpeechPart`. What an engine
says aloud is `Sound`, and the words of it are `Spoken`, which stand before the sound that they are heard in.

Full duplex. After `Converse` nobody asks for answers: the engine hears, sees, and speaks when it wants to, under ids of its own that each
end with `Ended`. What was said with `See` and `Listen` goes with the next `Hear`. `Ready` says that it may begin.

Scarce engines. Where there are fewer places than people, a conversation begins with `Waiting`s, then `Assigned`; what it is told before is
kept for then. `Lost` says that what answered is gone.
"""

from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import force_setattr

from antiphon.asks import (
    Abilities as Abilities,
    CustomTool as CustomTool,
    FunctionTool as FunctionTool,
    HostedTool as HostedTool,
    JsonObject as JsonObject,
    JsonSchema as JsonSchema,
    Kind as Kind,
    NoiseReduction as NoiseReduction,
    Retention as Retention,
    Sampling as Sampling,
    Settings as Settings,
    Tool as Tool,
    ToolChoice as ToolChoice,
    Transcription as Transcription,
    TurnDetection as TurnDetection,
    Voice as Voice,
)
from antiphon.errors import Fault
from antiphon.turns import Phase, Turn


class _Word(Struct, frozen=True, tag_field="word"):
    """Tagged by class name, so that a word can cross a process boundary."""


class Respond(_Word, frozen=True, kw_only=True, tag=True):
    """
    Answer.

    Attributes:
        id: of the response; every word of the answer carries it.
        history: all that was said, oldest first; ends with what is to be answered.
        instructions: what the developer tells the model for this answer, before everything else.
        hosted: tools that the engine takes as they are.
        namespaces: what the tools of each namespace have in common, in words for the model.
        format: the shape of the answer; None for plain text.
        truncate: whether the oldest turns may be dropped to fit; else too long an input is refused.
        effort: how much to reason; None leaves it to the engine.
        summarise: whether and how to summarise the reasoning (`auto`, `concise`, `detailed`).
        seal: whether the reasoning is wanted in a sealed form too, by a client that will give it back itself.
        whole: whether nobody reads any of the answer before it is all there; it may then be said all at once.
        voice: how the answer is spoken; None for an answer in writing.
        retain: how much of a conversation is left when it is truncated; None for as much as fits.
        aside: whether the answer is no part of the conversation: what is said next does not follow from it.
    """

    id: str
    history: tuple[Turn, ...]
    instructions: str | None = None
    tools: tuple[Tool, ...] = ()
    hosted: tuple[HostedTool, ...] = ()
    namespaces: dict[str, str] = {}
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    sampling: Sampling = Sampling()
    format: JsonObject | JsonSchema | None = None
    truncate: bool = False
    effort: str | None = None
    summarise: str | None = None
    seal: bool = False
    verbosity: str | None = None
    whole: bool = False
    voice: Voice | None = None
    retain: Retention | None = None
    aside: bool = False


class Foresee(_Word, frozen=True, tag=True):
    """
    What will be asked if the turn that is open ends now: an engine that has time may begin with it, and say nothing before it is asked.

    Attributes:
        ask: ends with the `turns.SpeechPart` of that turn, whose sound is left out.
    """

    ask: Respond


class Cancel(_Word, frozen=True, tag=True):
    """Stop answering; the answer ends with `Ended(id, "cancelled")` unless it had ended before."""

    id: str


class Configure(_Word, frozen=True, kw_only=True, tag=True):
    """
    How what is heard from here on is to be taken; said before the first `Hear`.

    Attributes:
        rate_hz: samples a second.
        turn_detection: None where turns are committed by hand.
        transcription: None where nobody wants to read what was said.
    """

    rate_hz: int = 24_000
    turn_detection: TurnDetection | None = None
    transcription: Transcription | None = None
    noise_reduction: NoiseReduction | None = None


class Hear(_Word, frozen=True, tag=True):
    """The client's sound goes on: s16le mono, whole samples, at the rate of the last `Configure`."""

    pcm: bytes


class Commit(_Word, frozen=True, tag=True):
    """What was heard since the last turn, or the last `Forget`, is a turn, the one that had started where one had; it is over."""

    id: str


class Forget(_Word, frozen=True, tag=True):
    """What was heard since the last turn is dropped; one that had started is none, and nothing more is said of it."""


class Converse(_Word, frozen=True, kw_only=True, tag=True):
    """
    Hear and see what comes, and speak when there is something to say; for an engine that does full duplex, before the first `Hear`.

    Attributes:
        instructions: what the model is told before everything else.
        rate_hz: samples a second of the sound to come.
        sees: whether pictures will come too.
        voice: how it speaks, with the recording whose voice it is to have; None for an engine that is to write only.
        reference: a recording, s16le mono at 16 kHz, of the voice that the model is to take for its own.
        options: what the client asked beyond that; an engine takes what it knows.
    """

    instructions: str | None = None
    rate_hz: int = 16_000
    sees: bool = False
    voice: Voice | None = Voice()
    reference: bytes | None = None
    options: dict[str, Any] = {}


class See(_Word, frozen=True, tag=True):
    """
    What the client sees, together with the sound that is told next.

    Attributes:
        jpeg: the picture.
        slices: into how many it may be cut so that more is seen of it.
    """

    jpeg: bytes
    slices: int = 1


class Listen(_Word, frozen=True, tag=True):
    """Say nothing to the sound that is told next; what is being said ends."""


ToEngine = Respond | Foresee | Cancel | Configure | Hear | Commit | Forget | Converse | See | Listen


class Likelihood(Struct, frozen=True):
    """One token, or an alternative to one, with its log probability."""

    token: str
    logprob: float
    bytes: tuple[int, ...] = ()


class TokenLogprob(Struct, frozen=True):
    """A token that was chosen, and the alternatives to it."""

    chosen: Likelihood
    alternatives: tuple[Likelihood, ...] = ()


class ItemBreak(_Word, frozen=True, tag=True):
    """
    The item said so far is whole, and what follows is another; engines whose answers don't come as items never say it.

    Attributes:
        item_id: what the next item is to be called; None leaves that to the protocol.
        phase: of a message that is the next item.
    """

    id: str
    item_id: str | None = None
    phase: Phase | None = None


class Text(_Word, frozen=True, tag=True):
    """More of the answer's text."""

    id: str
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class Annotated(_Word, frozen=True, tag=True):
    """A citation of the text said so far, in the shape of the Responses API's annotations."""

    id: str
    annotation: dict[str, Any]


class Refusal(_Word, frozen=True, tag=True):
    """More of the words with which the model declines."""

    id: str
    text: str


class Reasoning(_Word, frozen=True, tag=True):
    """More of the model's reasoning: its own words, or where `summary` is set an account of them for the user."""

    id: str
    text: str
    summary: bool = False


class ReasoningBreak(_Word, frozen=True, tag=True):
    """The summary so far is one whole; what follows is another part of it."""

    id: str


class Sealed(_Word, frozen=True, tag=True):
    """The reasoning just given, in a form that only its engine can read back."""

    id: str
    sealed: str


class Calling(_Word, frozen=True, tag=True):
    """The model begins to call a tool; with `custom` the tool takes free text."""

    id: str
    call_id: str
    name: str
    custom: bool = False
    namespace: str | None = None


class Arguments(_Word, frozen=True, tag=True):
    """More of a call's arguments (JSON text), or of a custom call's input."""

    id: str
    call_id: str
    text: str


class Called(_Word, frozen=True, tag=True):
    """The call's arguments are complete. Calls that say nothing of the sort are complete when the answer ends."""

    id: str
    call_id: str


class HostedBegan(_Word, frozen=True, tag=True):
    """A hosted tool is at work: `item` as the Responses API has it, its `type` among its fields."""

    id: str
    item: dict[str, Any]


class HostedMoved(_Word, frozen=True, tag=True):
    """The hosted tool at work has come further: `event` as the Responses API has it."""

    id: str
    event: dict[str, Any]


class HostedDone(_Word, frozen=True, tag=True):
    """The hosted tool is done; `item` is all of it."""

    id: str
    item: dict[str, Any]


MOST_TOKENS = 2**31 - 1
"""More than any answer has; no engine is asked for more, as many count in 32 bits."""


class _Counts(_Word, frozen=True):
    """
    A word that counts tokens.

    What an upstream or a worker claims is taken from limits and added to sums: below 0 it would give back what was used, and in numbers of
    any length it would fit into none of those.
    """

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if name.endswith("_tokens") and not 0 <= (count := getattr(self, name)) <= MOST_TOKENS:
                force_setattr(self, name, min(max(count, 0), MOST_TOKENS))


class Used(_Counts, frozen=True, kw_only=True, tag=True):
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


class Sound(_Word, frozen=True, tag=True):
    """More of the answer aloud: s16le mono, whole samples, at the rate of the `Respond`'s voice."""

    id: str
    pcm: bytes


class Spoken(_Word, frozen=True, tag=True):
    """More of the words of the answer's sound, the sound that follows."""

    id: str
    text: str


class SpeechStarted(_Word, frozen=True, tag=True):
    """Someone speaks; `at_ms` is where the turn starts, padding before the speech and all."""

    id: str
    at_ms: int


class SpeechStopped(_Word, frozen=True, tag=True):
    """The turn that had started is over, and is committed; `at_ms` is where it ends."""

    id: str
    at_ms: int


class Heard(_Word, frozen=True, tag=True):
    """More of the words of a turn; never taken back."""

    id: str
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class HeardSegment(_Word, frozen=True, kw_only=True, tag=True):
    """A stretch of a turn that one speaker said; seconds from the turn's start."""

    id: str
    text: str
    start_s: float
    end_s: float
    speaker: str = ""


class HeardAll(_Counts, frozen=True, kw_only=True, tag=True):
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


class NotHeard(_Word, frozen=True, kw_only=True, tag=True):
    """The turn could not be transcribed; the last that is said of its transcript."""

    id: str
    message: str
    code: str | None = "transcription_failed"
    type: str = "server_error"


class Trouble(_Word, frozen=True, kw_only=True, tag=True):
    """Something failed that is no answer's, such as the hearing; the conversation goes on."""

    message: str
    code: str | None = "server_error"
    type: str = "server_error"
    id: str = ""


class Ready(_Word, frozen=True, tag=True):
    """What `Converse` asked for is there; `metrics` as with `Measured`."""

    metrics: dict[str, Any] = {}
    id: str = ""


class Listening(_Word, frozen=True, tag=True):
    """The engine listens: it has taken a piece of the sound and says nothing to it, or has said what it had to say."""

    id: str = ""


class Measured(_Word, frozen=True, tag=True):
    """What the engine measured of the work behind its words that come next, by the names that it has for it."""

    id: str
    metrics: dict[str, Any]


class Waiting(_Word, frozen=True, kw_only=True, tag=True):
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


class Assigned(_Word, frozen=True, tag=True):
    """There is a place, and what has it is there; `id` is the ticket's, `worker` the name of what answers."""

    id: str
    worker: str = ""


class Lost(_Word, frozen=True, kw_only=True, tag=True):
    """
    What answered is gone, or there will be no place; nothing more comes. What was being answered has ended with `Broke`.

    Attributes:
        code: `queue_full`, `worker_busy`, `backend_error`, or `shutdown`.
        message: what can be told to whoever is at the other end.
    """

    code: str
    message: str
    id: str = ""


EndReason = Literal["stop", "length", "content_filter", "cancelled"]


class Ended(_Word, frozen=True, tag=True):
    """The answer is over: whole (`stop`, also when it ends in calls), cut at the token limit, filtered, or cancelled."""

    id: str
    reason: EndReason = "stop"


class Broke(_Word, frozen=True, kw_only=True, tag=True):
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
    def by(cls, id: str, fault: Fault) -> "Broke":
        """The answer `id` failed by `fault`."""
        return cls(
            id=id,
            message=fault.message,
            status=fault.status,
            code=fault.code,
            type=fault.type,
            param=fault.param,
            retry_after_s=fault.retry_after_s,
        )


FromEngine = (
    ItemBreak
    | Text
    | Annotated
    | Refusal
    | Reasoning
    | ReasoningBreak
    | Sealed
    | Calling
    | Arguments
    | Called
    | HostedBegan
    | HostedMoved
    | HostedDone
    | Used
    | Sound
    | Spoken
    | SpeechStarted
    | SpeechStopped
    | Heard
    | HeardSegment
    | HeardAll
    | NotHeard
    | Trouble
    | Ready
    | Listening
    | Measured
    | Waiting
    | Assigned
    | Lost
    | Ended
    | Broke
)
