"""
The commands that a protocol sends to an engine. What comes back is in `antiphon.engine_api.events`.

Neither side knows the other's wire format. A protocol turns its client's messages into commands, an engine turns them
into whatever its model understands, and the model's output into events. All of them are immutable and carry the id of
the response, or of the turn, that they belong to.

Live audio. A conversation's clock is the audio that it was sent with `AppendAudio`, in milliseconds since the first of
it; audio dropped by `ClearAudio` counts too. A turn is a stretch of that audio. An engine that detects turns reports
where each starts and stops, under an id of its own; a turn committed by hand has the id that `CommitAudio` gave it.
Both come back in the history as a `SpeechPart`. What an engine says aloud is `AudioDelta`; its words are
`AudioTranscriptDelta`, which precede the audio that they are heard in.

Full duplex. After `StartDuplex` no responses are requested: the engine listens, watches, and speaks when it decides to,
under ids of its own that each end with `ResponseEnded`. `AppendImage` and `ForceListen` take effect with the next
`AppendAudio`. `DuplexStarted` says that audio may be sent.

Pooled engines. Where clients wait for a worker, a conversation begins with `QueueUpdate`s and then `WorkerAssigned`;
commands sent before that are held until there is a worker. `EngineLost` says that the engine is gone.
"""

from typing import Any

from msgspec import Struct

from antiphon.engine_api.capabilities import Capabilities as Capabilities
from antiphon.engine_api.history import HistoryItem
from antiphon.engine_api.options import (
    Compaction as Compaction,
    ConversationKind as ConversationKind,
    ConversationSettings as ConversationSettings,
    CustomTool as CustomTool,
    FunctionTool as FunctionTool,
    HostedTool as HostedTool,
    JsonObject as JsonObject,
    JsonSchema as JsonSchema,
    NoiseReduction as NoiseReduction,
    Retention as Retention,
    Sampling as Sampling,
    Tool as Tool,
    ToolChoice as ToolChoice,
    Transcription as Transcription,
    TurnDetection as TurnDetection,
    Voice as Voice,
)


class _Command(Struct, frozen=True, tag_field="word"):
    """Tagged by class name, so that it can cross a process boundary."""


class Respond(_Command, frozen=True, kw_only=True, tag=True):
    """
    Generate a response.

    Attributes:
        id: of the response; every event of it carries this id.
        size_bytes: about how much text the request has; an engine handles a large one in a thread (`antiphon.offload`).
        history: the conversation so far, oldest first; it ends with what is to be answered.
        instructions: the developer's instructions for this response, placed before everything else.
        hosted_tools: tools that the engine runs itself.
        namespaces: the description of each namespace of tools.
        format: the shape of the output; None for plain text.
        truncate: whether the oldest items may be dropped to fit; if not, too long an input is refused.
        reasoning_effort: None leaves it to the engine.
        reasoning_summary: whether and how to summarise the reasoning (`auto`, `concise`, `detailed`).
        encrypt_reasoning: whether to add the reasoning in encrypted form, for a client that will send it back itself.
        whole: whether the client reads nothing before the response is complete, so it may come all at once.
        voice: how the response is spoken; None for text output.
        retention: how much of a conversation is left when it is truncated; None for as much as fits.
        out_of_band: whether the response stays out of the conversation, so that later ones don't build on it.
        compaction: for an engine that `compacts`: when to; None for never.
    """

    id: str
    history: tuple[HistoryItem, ...]
    size_bytes: int = 0
    instructions: str | None = None
    tools: tuple[Tool, ...] = ()
    hosted_tools: tuple[HostedTool, ...] = ()
    namespaces: dict[str, str] = {}
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    sampling: Sampling = Sampling()
    format: JsonObject | JsonSchema | None = None
    truncate: bool = False
    reasoning_effort: str | None = None
    reasoning_summary: str | None = None
    encrypt_reasoning: bool = False
    verbosity: str | None = None
    whole: bool = False
    voice: Voice | None = None
    retention: Retention | None = None
    out_of_band: bool = False
    compaction: Compaction | None = None


class Relay(_Command, frozen=True, kw_only=True, tag=True):
    """
    Send a request to the model's server as it is, for an engine whose capabilities name its path in `relays`.

    It is answered by `RelayData`, at most one `Usage`, and one `ResponseEnded` or `ResponseFailed`, and cancelled by
    `Cancel`, as a `Respond` is.

    Attributes:
        path: of the server's API, such as `chat/completions`.
        body: the JSON of the request; the engine sets its `model`.
        stream: whether the answer is a stream of server-sent events.
        model: what the answer calls the model; empty for what the request calls it.
        must_be_whole: whether the server can't stream what is asked for.
    """

    id: str
    path: str
    body: bytes
    stream: bool = False
    model: str = ""
    must_be_whole: bool = False


class Prepare(_Command, frozen=True, tag=True):
    """
    What will be requested if the open turn ends now: an engine may start on it, and delivers nothing before it is
    requested.

    Attributes:
        request: ends with the `SpeechPart` of that turn, whose audio is left out.
    """

    request: Respond


class Cancel(_Command, frozen=True, tag=True):
    """Stop the response; it ends with `ResponseEnded(id, "cancelled")` unless it ended before."""

    id: str


class Configure(_Command, frozen=True, kw_only=True, tag=True):
    """
    How the audio that follows is to be processed; sent before the first `AppendAudio`.

    Attributes:
        rate_hz: samples per second.
        turn_detection: None if turns are committed by hand.
        transcription: None if no transcript is wanted.
    """

    rate_hz: int = 24_000
    turn_detection: TurnDetection | None = None
    transcription: Transcription | None = None
    noise_reduction: NoiseReduction | None = None


class AppendAudio(_Command, frozen=True, tag=True):
    """More of the client's audio: s16le mono, whole samples, at the rate of the last `Configure`."""

    pcm: bytes


class CommitAudio(_Command, frozen=True, tag=True):
    """Make a turn, with this id, of the audio since the last turn or `ClearAudio`; a turn that had started ends."""

    id: str


class ClearAudio(_Command, frozen=True, tag=True):
    """Drop the audio since the last turn; a turn that had started is discarded, and no more events of it follow."""


class StartDuplex(_Command, frozen=True, kw_only=True, tag=True):
    """
    Start full duplex: listen to and watch what follows, and speak when there is something to say; sent before the first
    `AppendAudio`.

    Attributes:
        instructions: the developer's instructions, placed before everything else.
        rate_hz: samples per second of the audio that follows.
        has_video: whether images will follow too.
        voice: how it speaks, with the recording to clone, if any; None for an engine that only writes.
        reference_audio: the voice that the model should take as its own, s16le mono at 16 kHz.
        options: further options of the client; an engine takes those it knows.
    """

    instructions: str | None = None
    rate_hz: int = 16_000
    has_video: bool = False
    voice: Voice | None = Voice()
    reference_audio: bytes | None = None
    options: dict[str, Any] = {}


class AppendImage(_Command, frozen=True, tag=True):
    """
    An image that belongs to the next `AppendAudio`.

    Attributes:
        jpeg: the image.
        max_slices: into how many slices it may be cut so that more detail is seen.
    """

    jpeg: bytes
    max_slices: int = 1


class ForceListen(_Command, frozen=True, tag=True):
    """Stay silent during the next `AppendAudio`; speech under way ends."""


EngineCommand = (
    Respond | Relay | Prepare | Cancel | Configure | AppendAudio | CommitAudio | ClearAudio | StartDuplex | AppendImage | ForceListen
)
