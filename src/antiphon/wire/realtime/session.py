"""
The settings of a Realtime session: the patch that a client sends, and the whole session that the server reports.

In a patch an absent field keeps its value, and null clears it where it can be cleared; elsewhere null means absent.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta

from antiphon import errors
from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.structure import check_structure
from antiphon.wire.codec.types import JsonDict, Maybe, Opt, Wire, encode
from antiphon.wire.realtime.base import RealtimeObject, RealtimeTagged
from antiphon.wire.responses import tools as responses_tools
from antiphon.wire.responses.request import Prompt as Prompt

FunctionTool = responses_tools.FunctionTool
McpTool = responses_tools.McpTool
ToolChoiceFunction = responses_tools.FunctionChoice
ToolChoiceMcp = responses_tools.McpChoice

# The limits are those of the Realtime reference, under the name of each field.

Modality = Literal["text", "audio"]
Includable = Literal["item.input_audio_transcription.logprobs"]
MaxOutputTokens = Annotated[int, Meta(ge=1, le=4096)] | Literal["inf"]
Speed = Annotated[float, Meta(ge=0.25, le=1.5)]
Temperature = Annotated[float, Meta(ge=0.6, le=1.2)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
DurationMs = Annotated[int, Meta(ge=0)]
Tool = FunctionTool | McpTool
ToolChoice = Literal["none", "auto", "required"] | ToolChoiceFunction | ToolChoiceMcp

MODALITIES: tuple[list[Modality], ...] = (["text"], ["audio"])
"""The possible output of a response; audio always comes with its transcript."""


# Audio


class PcmFormat(RealtimeTagged, kw_only=True, tag="audio/pcm"):
    """s16le mono; 24 kHz is the only rate."""

    rate: Opt[Annotated[int, Meta(ge=24_000, le=24_000)]] = UNSET


class PcmuFormat(RealtimeTagged, kw_only=True, tag="audio/pcmu"):
    """G.711 mu-law at 8 kHz."""


class PcmaFormat(RealtimeTagged, kw_only=True, tag="audio/pcma"):
    """G.711 A-law at 8 kHz."""


Format = PcmFormat | PcmuFormat | PcmaFormat


class NoiseReduction(RealtimeObject, kw_only=True):
    """Noise reduction; a higher `strength` removes more."""

    type: Opt[Literal["near_field", "far_field"]] = UNSET
    strength: Opt[Ratio] = UNSET


class Transcription(RealtimeObject, kw_only=True):
    """How input audio is transcribed."""

    model: Opt[str] = UNSET
    language: Opt[str] = UNSET
    languages: Opt[list[str]] = UNSET
    prompt: Opt[str] = UNSET
    keywords: Opt[list[str]] = UNSET
    delay: Opt[Literal["minimal", "low", "medium", "high", "xhigh"]] = UNSET


class ServerVad(RealtimeTagged, kw_only=True, tag="server_vad"):
    """Turns end with silence; after `idle_timeout_ms` of it the model speaks up."""

    threshold: Opt[Ratio] = UNSET
    prefix_padding_ms: Opt[DurationMs] = UNSET
    silence_duration_ms: Opt[DurationMs] = UNSET
    idle_timeout_ms: Maybe[Annotated[int, Meta(ge=5000, le=30_000)]] = UNSET
    create_response: Opt[bool] = UNSET
    interrupt_response: Opt[bool] = UNSET


class SemanticVad(RealtimeTagged, kw_only=True, tag="semantic_vad"):
    """Turns end when what was said is complete."""

    eagerness: Opt[Literal["low", "medium", "high", "auto"]] = UNSET
    create_response: Opt[bool] = UNSET
    interrupt_response: Opt[bool] = UNSET


TurnDetection = ServerVad | SemanticVad


class AudioInput(RealtimeObject, kw_only=True):
    """How input audio is processed. Without `turn_detection` the client commits turns itself."""

    format: Opt[Format] = UNSET
    transcription: Maybe[Transcription] = UNSET
    noise_reduction: Maybe[NoiseReduction] = UNSET
    turn_detection: Maybe[TurnDetection] = UNSET


class VoiceId(Wire, kw_only=True):
    """A custom voice, by its id."""

    id: str


class AudioOutput(RealtimeObject, kw_only=True):
    """The format, voice and speed of output audio."""

    format: Opt[Format] = UNSET
    voice: Opt[str | VoiceId] = UNSET
    speed: Opt[Speed] = UNSET


class Audio(RealtimeObject, kw_only=True):
    """Audio settings, input and output."""

    input: Opt[AudioInput] = UNSET
    output: Opt[AudioOutput] = UNSET


# The rest


class TracingConfig(RealtimeObject, kw_only=True):
    """How the session is named in traces."""

    workflow_name: Opt[str] = UNSET
    group_id: Opt[str] = UNSET
    metadata: Opt[JsonDict] = UNSET


class TokenLimits(RealtimeObject, kw_only=True):
    """How many tokens may follow the instructions."""

    post_instructions: Opt[Annotated[int, Meta(ge=0)]] = UNSET


class RetentionRatio(RealtimeTagged, kw_only=True, tag="retention_ratio"):
    """How much of the conversation to keep when it is truncated."""

    retention_ratio: Ratio
    token_limits: Opt[TokenLimits] = UNSET


class Reasoning(RealtimeObject, kw_only=True):
    """The reasoning effort."""

    effort: Opt[Literal["minimal", "low", "medium", "high", "xhigh"]] = UNSET


class Session(RealtimeTagged, kw_only=True, tag="realtime"):
    """
    A session in which the model responds. The fields are in the order in which the original writes them.

    Attributes:
        object, id, expires_at: set by the server only; Unix seconds.
        temperature: only in the beta.
    """

    object: Opt[str] = UNSET
    id: Opt[str] = UNSET
    model: Opt[str] = UNSET
    output_modalities: Opt[list[Modality]] = UNSET
    instructions: Maybe[str] = UNSET
    tools: Opt[list[Tool]] = UNSET
    tool_choice: Opt[ToolChoice] = UNSET
    parallel_tool_calls: Opt[bool] = UNSET
    reasoning: Maybe[Reasoning] = UNSET
    max_output_tokens: Opt[MaxOutputTokens] = UNSET
    temperature: Opt[Temperature] = UNSET
    tracing: Maybe[Literal["auto"] | TracingConfig] = UNSET
    truncation: Opt[Literal["auto", "disabled"] | RetentionRatio] = UNSET
    prompt: Maybe[Prompt] = UNSET
    expires_at: Opt[int] = UNSET
    audio: Opt[Audio] = UNSET
    include: Maybe[list[Includable]] = UNSET


class TranscriptionSession(RealtimeTagged, kw_only=True, tag="transcription"):
    """A session that only transcribes."""

    object: Opt[str] = UNSET
    id: Opt[str] = UNSET
    expires_at: Opt[int] = UNSET
    audio: Opt[Audio] = UNSET
    include: Maybe[list[Includable]] = UNSET


AnySession = Session | TranscriptionSession

_reader: Reader[AnySession] = Reader(AnySession)


def check_session(session: AnySession, path: str = "session") -> None:
    """
    Check that a response can have this combination of modalities.

    Raises:
        ClientError: it can't.
    """
    if isinstance(session, Session):
        check_modalities(session.output_modalities, f"{path}.output_modalities")


def check_modalities(modalities: Opt[list[Modality]], path: str) -> None:
    """
    Check that a response can have this combination of modalities.

    Raises:
        ClientError: it can't.
    """
    if modalities is not UNSET and modalities not in MODALITIES:
        raise errors.invalid_modalities(path, modalities, MODALITIES)


def decode_session(body: bytes, path: str = "session") -> AnySession:
    """
    Decode a session that a client sent.

    Args:
        body: JSON.
        path: of the session in the request, for error messages.

    Raises:
        ClientError: it is invalid.
    """
    check_structure(body)
    session = _reader.read(body, path)
    check_session(session, path)
    return session


def encode_session(session: AnySession) -> bytes:
    """JSON of a session."""
    return encode(session)
