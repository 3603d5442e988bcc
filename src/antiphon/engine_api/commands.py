"""
The commands that a protocol sends to an engine. What comes back is in `antiphon.engine_api.events`.

Neither side knows the other's wire format. A protocol turns its client's messages into commands, an engine turns them into
whatever its model understands, and the model's output into events. All of them are immutable and carry the id of the response,
or of the turn, that they belong to.

Live audio. A conversation's clock is the audio that it was sent with `AppendAudio`, in milliseconds since the first of it;
audio dropped by `ClearAudio` counts too. A turn is a stretch of that audio. An engine that detects turns reports where each
starts and stops, under an id of its own; a turn committed by hand has the id that `CommitAudio` gave it. Both come back in the
history as a `SpeechPart`. What an engine says aloud is `AudioDelta`; its words are `AudioTranscriptDelta`, which precede the
audio that they are heard in.

Full duplex. After `StartDuplex` no responses are requested: the engine listens, watches, and speaks when it decides to, under
ids of its own that each end with `ResponseEnded`. `AppendImage` and `ForceListen` take effect with the next `AppendAudio`.
`DuplexStarted` says that audio may be sent.

Pooled engines. Where clients wait for a worker, a conversation begins with `QueueUpdate`s and then `WorkerAssigned`; commands
sent before that are held until there is a worker. `EngineLost` says that the engine is gone.
"""

from typing import Any

from msgspec import Struct

from antiphon.engine_api.capabilities import Capabilities as Capabilities
from antiphon.engine_api.history import HistoryItem
from antiphon.engine_api.options import (
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
    """Tagged by class name, so that a word can cross a process boundary."""


class Respond(_Command, frozen=True, kw_only=True, tag=True):
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
    history: tuple[HistoryItem, ...]
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


class Prepare(_Command, frozen=True, tag=True):
    """
    What will be asked if the turn that is open ends now: an engine that has time may begin with it, and say nothing before it is asked.

    Attributes:
        ask: ends with the `SpeechPart` of that turn, whose sound is left out.
    """

    request: Respond


class Cancel(_Command, frozen=True, tag=True):
    """Stop answering; the answer ends with `Ended(id, "cancelled")` unless it had ended before."""

    id: str


class Configure(_Command, frozen=True, kw_only=True, tag=True):
    """
    How what is heard from here on is to be taken; said before the first `AppendAudio`.

    Attributes:
        rate_hz: samples a second.
        turn_detection: None where turns are committed by hand.
        transcription: None where nobody wants to read what was said.
    """

    rate_hz: int = 24_000
    turn_detection: TurnDetection | None = None
    transcription: Transcription | None = None
    noise_reduction: NoiseReduction | None = None


class AppendAudio(_Command, frozen=True, tag=True):
    """The client's sound goes on: s16le mono, whole samples, at the rate of the last `Configure`."""

    pcm: bytes


class CommitAudio(_Command, frozen=True, tag=True):
    """What was heard since the last turn, or the last `ClearAudio`, is a turn, the one that had started where one had; it is over."""

    id: str


class ClearAudio(_Command, frozen=True, tag=True):
    """What was heard since the last turn is dropped; one that had started is none, and nothing more is said of it."""


class StartDuplex(_Command, frozen=True, kw_only=True, tag=True):
    """
    Hear and see what comes, and speak when there is something to say; for an engine that does full duplex, before the first `AppendAudio`.

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
    has_video: bool = False
    voice: Voice | None = Voice()
    reference_audio: bytes | None = None
    options: dict[str, Any] = {}


class AppendImage(_Command, frozen=True, tag=True):
    """
    What the client sees, together with the sound that is told next.

    Attributes:
        jpeg: the picture.
        slices: into how many it may be cut so that more is seen of it.
    """

    jpeg: bytes
    max_slices: int = 1


class ForceListen(_Command, frozen=True, tag=True):
    """Say nothing to the sound that is told next; what is being said ends."""


EngineCommand = Respond | Prepare | Cancel | Configure | AppendAudio | CommitAudio | ClearAudio | StartDuplex | AppendImage | ForceListen
