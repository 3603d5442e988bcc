"""
How a Realtime session is set: as a patch that a client sends, and as the whole that it is told.

In a patch an absent field keeps what is set and a null one clears it, where there is something to clear; elsewhere null is absent.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta

from antiphon import errors
from antiphon.wire.codec.reading import Reader, check_depth
from antiphon.wire.codec.types import Maybe, Opt, Tagged, Wire, encode
from antiphon.wire.responses import tools as responses_tools
from antiphon.wire.responses.request import Prompt as Prompt

FunctionTool = responses_tools.FunctionTool
McpTool = responses_tools.McpTool
ToolChoiceFunction = responses_tools.FunctionChoice
ToolChoiceMcp = responses_tools.McpChoice

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
"""What an answer can be; sound always comes with its words."""


# Sound


class PcmFormat(Tagged, kw_only=True, tag="audio/pcm"):
    """s16le mono; 24 kHz is the only rate."""

    null_is_absent = True

    rate: Opt[Annotated[int, Meta(ge=24_000, le=24_000)]] = UNSET


class PcmuFormat(Tagged, kw_only=True, tag="audio/pcmu"):
    """G.711 mu-law at 8 kHz."""

    null_is_absent = True


class PcmaFormat(Tagged, kw_only=True, tag="audio/pcma"):
    """G.711 A-law at 8 kHz."""

    null_is_absent = True


Format = PcmFormat | PcmuFormat | PcmaFormat


class NoiseReduction(Wire, kw_only=True):
    """What is done against noise; more `strength` takes away more."""

    null_is_absent = True

    type: Opt[Literal["near_field", "far_field"]] = UNSET
    strength: Opt[Ratio] = UNSET


class Transcription(Wire, kw_only=True):
    """How what is heard is written down."""

    null_is_absent = True

    model: Opt[str] = UNSET
    language: Opt[str] = UNSET
    languages: Opt[list[str]] = UNSET
    prompt: Opt[str] = UNSET
    keywords: Opt[list[str]] = UNSET
    delay: Opt[Literal["minimal", "low", "medium", "high", "xhigh"]] = UNSET


class ServerVad(Tagged, kw_only=True, tag="server_vad"):
    """Turns end by silence; after `idle_timeout_ms` of it the model speaks up."""

    null_is_absent = True

    threshold: Opt[Ratio] = UNSET
    prefix_padding_ms: Opt[DurationMs] = UNSET
    silence_duration_ms: Opt[DurationMs] = UNSET
    idle_timeout_ms: Maybe[Annotated[int, Meta(ge=5000, le=30_000)]] = UNSET
    create_response: Opt[bool] = UNSET
    interrupt_response: Opt[bool] = UNSET


class SemanticVad(Tagged, kw_only=True, tag="semantic_vad"):
    """Turns end by what was said."""

    null_is_absent = True

    eagerness: Opt[Literal["low", "medium", "high", "auto"]] = UNSET
    create_response: Opt[bool] = UNSET
    interrupt_response: Opt[bool] = UNSET


TurnDetection = ServerVad | SemanticVad


class AudioInput(Wire, kw_only=True):
    """What becomes of the client's sound. Without `turn_detection` the client says itself where turns end."""

    null_is_absent = True

    format: Opt[Format] = UNSET
    transcription: Maybe[Transcription] = UNSET
    noise_reduction: Maybe[NoiseReduction] = UNSET
    turn_detection: Maybe[TurnDetection] = UNSET


class VoiceId(Wire, kw_only=True):
    """A voice that was made for somebody."""

    id: str


class AudioOutput(Wire, kw_only=True):
    """How the model sounds."""

    null_is_absent = True

    format: Opt[Format] = UNSET
    voice: Opt[str | VoiceId] = UNSET
    speed: Opt[Speed] = UNSET


class Audio(Wire, kw_only=True):
    """Sound, both ways."""

    null_is_absent = True

    input: Opt[AudioInput] = UNSET
    output: Opt[AudioOutput] = UNSET


# The rest


class TracingConfig(Wire, kw_only=True):
    """How the session is called where it is traced."""

    null_is_absent = True

    workflow_name: Opt[str] = UNSET
    group_id: Opt[str] = UNSET
    metadata: Opt[dict[str, Any]] = UNSET


class TokenLimits(Wire, kw_only=True):
    """How many tokens may stand after the instructions."""

    null_is_absent = True

    post_instructions: Opt[Annotated[int, Meta(ge=0)]] = UNSET


class RetentionRatio(Tagged, kw_only=True, tag="retention_ratio"):
    """How much of the conversation is left when it is truncated."""

    null_is_absent = True

    retention_ratio: Ratio
    token_limits: Opt[TokenLimits] = UNSET


class Reasoning(Wire, kw_only=True):
    """How much the model reasons."""

    null_is_absent = True

    effort: Opt[Literal["minimal", "low", "medium", "high", "xhigh"]] = UNSET


class Session(Tagged, kw_only=True, tag="realtime"):
    """
    A session in which the model answers. Fields stand in the order in which the original writes them.

    Attributes:
        object, id, expires_at: told by the server alone; Unix seconds.
        temperature: known to the beta alone.
    """

    null_is_absent = True

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


class TranscriptionSession(Tagged, kw_only=True, tag="transcription"):
    """A session in which what is heard is written down, and nobody answers."""

    null_is_absent = True

    object: Opt[str] = UNSET
    id: Opt[str] = UNSET
    expires_at: Opt[int] = UNSET
    audio: Opt[Audio] = UNSET
    include: Maybe[list[Includable]] = UNSET


AnySession = Session | TranscriptionSession

_reader: Reader[AnySession] = Reader(AnySession)


def check_session(session: AnySession, path: str = "session") -> None:
    """
    Refuse a combination of modalities that no answer has.

    Raises:
        ClientError: it asks for one.
    """
    if isinstance(session, Session):
        check_modalities(session.output_modalities, f"{path}.output_modalities")


def check_modalities(modalities: Opt[list[Modality]], path: str) -> None:
    """
    Refuse a combination of modalities that no answer has.

    Raises:
        ClientError: it is one.
    """
    if modalities is not UNSET and modalities not in MODALITIES:
        raise errors.invalid_modalities(path, modalities, MODALITIES)


def decode_session(body: bytes, path: str = "session") -> AnySession:
    """
    The session in `body`, which a client sent.

    Args:
        body: JSON.
        path: where it stands, for error messages.

    Raises:
        ClientError: it is none.
    """
    check_depth(body)
    session = _reader.read(body, path)
    check_session(session, path)
    return session


def encode_session(session: AnySession) -> bytes:
    """JSON of a session."""
    return encode(session)
