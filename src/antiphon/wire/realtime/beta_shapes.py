"""
The beta's own shapes of sessions, responses and items, and their conversion from and to GA shapes.

The beta's sessions and responses are flat where GA's are nested. It has other names for formats and modalities, and the
model's parts have the types `text` and `audio`. Fields that the beta does not have are not sent to a beta client.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, field

from antiphon import errors
from antiphon.wire.codec.types import Extra, Maybe, Opt, Unknown, Wire
from antiphon.wire.realtime.base import RealtimeObject
from antiphon.wire.realtime.items import InputItem, Item, MessageItem, OutputAudio, OutputText, Part
from antiphon.wire.realtime.response import (
    Response,
    ResponseAudio,
    ResponseAudioOutput,
    ResponseParams,
    ResponseStatus,
    StatusDetails,
    Usage,
)
from antiphon.wire.realtime.session import (
    AnySession,
    Audio,
    AudioInput,
    AudioOutput,
    Format,
    Includable,
    MaxOutputTokens,
    Modality,
    NoiseReduction,
    PcmaFormat,
    PcmFormat,
    PcmuFormat,
    ServerVad,
    Session,
    Speed,
    Temperature,
    Tool,
    ToolChoice,
    TracingConfig,
    Transcription,
    TranscriptionSession,
    TurnDetection,
    VoiceId,
)
from antiphon.wire.responses.request import Metadata

W = TypeVar("W", bound=Wire)
I = TypeVar("I", bound=InputItem | Unknown)  # noqa: E741 - an item

FlatFormat = Literal["pcm16", "g711_ulaw", "g711_alaw"]


class FlatSession(RealtimeObject, kw_only=True):
    """
    A session, of either kind.

    Attributes:
        type: a field of GA sessions; accepted and ignored.
        client_secret: only in the HTTP endpoints.
    """

    object: Opt[str] = UNSET
    id: Opt[str] = UNSET
    model: Opt[str] = UNSET
    expires_at: Opt[int] = UNSET
    modalities: Opt[list[Modality]] = UNSET
    instructions: Maybe[str] = UNSET
    voice: Opt[str] = UNSET
    speed: Opt[Speed] = UNSET
    input_audio_format: Opt[FlatFormat] = UNSET
    output_audio_format: Opt[FlatFormat] = UNSET
    input_audio_transcription: Maybe[Transcription] = UNSET
    input_audio_noise_reduction: Maybe[NoiseReduction] = UNSET
    turn_detection: Maybe[TurnDetection] = UNSET
    tools: Opt[list[Tool]] = UNSET
    tool_choice: Opt[ToolChoice] = UNSET
    temperature: Opt[Temperature] = UNSET
    max_response_output_tokens: Opt[MaxOutputTokens] = UNSET
    tracing: Maybe[Literal["auto"] | TracingConfig] = UNSET
    client_secret: Maybe[Any] = UNSET
    include: Maybe[list[Includable]] = UNSET
    type: Maybe[Any] = UNSET


class FlatParams(RealtimeObject, kw_only=True):
    """The parameters of one response; `max_output_tokens` is an old name of `max_response_output_tokens`."""

    conversation: Opt[Literal["auto", "none"]] = UNSET
    input: Opt[list[InputItem]] = UNSET
    instructions: Opt[str] = UNSET
    modalities: Opt[list[Modality]] = UNSET
    voice: Opt[str] = UNSET
    output_audio_format: Opt[FlatFormat] = UNSET
    tools: Opt[list[Tool]] = UNSET
    tool_choice: Opt[ToolChoice] = UNSET
    temperature: Opt[Temperature] = UNSET
    max_response_output_tokens: Opt[MaxOutputTokens] = UNSET
    max_output_tokens: Opt[MaxOutputTokens] = UNSET
    metadata: Opt[Metadata] = UNSET


class FlatResponse(RealtimeObject, kw_only=True):
    """A response. Fields without a value are null."""

    object: Literal["realtime.response"] = "realtime.response"
    id: str
    status: ResponseStatus
    status_details: StatusDetails | None = None
    output: Sequence[Item | Unknown] = field(default_factory=list)
    conversation_id: str | None = None
    modalities: list[Modality] | None = None
    voice: str | None = None
    output_audio_format: FlatFormat | None = None
    temperature: Opt[float] = UNSET
    max_output_tokens: int | Literal["inf"] | None = None
    usage: Usage | None = None
    metadata: dict[str, str] | None = None


class FlatText(OutputText, kw_only=True, tag="text"):
    """Text of the model."""


class FlatAudio(OutputAudio, kw_only=True, tag="audio"):
    """Audio of the model, and its transcript."""


# Fields that may be absent


def _convert_if_set(value: Any, convert: Callable[[Any], Any]) -> Any:
    """`convert(value)`; absent and null stay as they are."""
    return value if value is None or value is UNSET else convert(value)


def _unset_if_empty(group: W) -> Opt[W]:
    """`group`, or `UNSET` if all its fields are absent."""
    return UNSET if group == type(group)() else group


@cache
def _field_names(kind: type[Wire]) -> frozenset[str]:
    return frozenset(("type", *(each.encode_name for each in msgspec.structs.fields(kind))))


def _remaining_extra(extra: Opt[Extra], kind: type[Wire]) -> Opt[Extra]:
    """The unknown fields, without those that `kind` knows: they would be written twice."""
    remaining = {name: value for name, value in (extra or {}).items() if name not in _field_names(kind)}
    return Extra(remaining) if remaining else UNSET


# Values


_FLAT_FORMATS: dict[type[Format], FlatFormat] = {PcmFormat: "pcm16", PcmuFormat: "g711_ulaw", PcmaFormat: "g711_alaw"}
_NESTED_FORMATS: dict[FlatFormat, Callable[[], Format]] = {
    "pcm16": lambda: PcmFormat(rate=24_000),
    "g711_ulaw": PcmuFormat,
    "g711_alaw": PcmaFormat,
}
_MODALITIES: tuple[list[Modality], ...] = (["text"], ["audio", "text"])


def _flat_format(format: Format) -> FlatFormat:
    return _FLAT_FORMATS[type(format)]


def _nested_format(name: FlatFormat) -> Format:
    return _NESTED_FORMATS[name]()


def _flat_modalities(modalities: list[Modality]) -> list[Modality]:
    return ["text", "audio"] if "audio" in modalities else modalities


def _nested_modalities(modalities: list[Modality]) -> list[Modality]:
    return ["audio"] if "audio" in modalities else modalities


def _flat_voice(voice: str | VoiceId) -> str:
    return voice.id if isinstance(voice, VoiceId) else voice


def _flat_turn_detection(detection: TurnDetection) -> TurnDetection:
    return msgspec.structs.replace(detection, idle_timeout_ms=UNSET) if isinstance(detection, ServerVad) else detection


def check_beta_modalities(modalities: Opt[list[Modality]], path: str) -> None:
    """
    Check that a response can have this combination of modalities; `audio` alone means audio and its transcript.

    Raises:
        ClientError: it can't.
    """
    if modalities is not UNSET and (not modalities or len(set(modalities)) < len(modalities)):
        raise errors.invalid_modalities(path, modalities, _MODALITIES)


# Sessions


def nested_session(flat: FlatSession) -> Session:
    """The GA form of a session or a patch of one."""
    return Session(
        object=flat.object,
        id=flat.id,
        model=flat.model,
        output_modalities=_convert_if_set(flat.modalities, _nested_modalities),
        instructions=flat.instructions,
        tools=flat.tools,
        tool_choice=flat.tool_choice,
        max_output_tokens=flat.max_response_output_tokens,
        temperature=flat.temperature,
        tracing=flat.tracing,
        expires_at=flat.expires_at,
        audio=_unset_if_empty(Audio(input=_unset_if_empty(_nested_input(flat)), output=_unset_if_empty(_nested_output(flat)))),
        include=flat.include,
        extra=_remaining_extra(flat.extra, Session),
    )


def nested_transcription_session(flat: FlatSession) -> TranscriptionSession:
    """The GA form of a transcription session or a patch of one."""
    return TranscriptionSession(
        object=flat.object,
        id=flat.id,
        expires_at=flat.expires_at,
        audio=_unset_if_empty(Audio(input=_unset_if_empty(_nested_input(flat)))),
        include=flat.include,
        extra=_remaining_extra(flat.extra, TranscriptionSession),
    )


def _nested_input(flat: FlatSession) -> AudioInput:
    return AudioInput(
        format=_convert_if_set(flat.input_audio_format, _nested_format),
        transcription=flat.input_audio_transcription,
        noise_reduction=flat.input_audio_noise_reduction,
        turn_detection=flat.turn_detection,
    )


def _nested_output(flat: FlatSession) -> AudioOutput:
    return AudioOutput(format=_convert_if_set(flat.output_audio_format, _nested_format), voice=flat.voice, speed=flat.speed)


def flat_session(session: AnySession) -> FlatSession:
    """The session in the beta's form."""
    audio_in = (session.audio or Audio()).input or AudioInput()
    flat = FlatSession(
        object=session.object,
        id=session.id,
        expires_at=session.expires_at,
        input_audio_format=_convert_if_set(audio_in.format, _flat_format),
        input_audio_transcription=audio_in.transcription,
        input_audio_noise_reduction=audio_in.noise_reduction,
        turn_detection=_convert_if_set(audio_in.turn_detection, _flat_turn_detection),
        include=session.include,
        extra=_remaining_extra(session.extra, FlatSession),
    )
    return _with_output_fields(flat, session) if isinstance(session, Session) else flat


def _with_output_fields(flat: FlatSession, session: Session) -> FlatSession:
    audio_out = (session.audio or Audio()).output or AudioOutput()
    return msgspec.structs.replace(
        flat,
        model=session.model,
        modalities=_convert_if_set(session.output_modalities, _flat_modalities),
        instructions=session.instructions,
        voice=_convert_if_set(audio_out.voice, _flat_voice),
        speed=audio_out.speed,
        output_audio_format=_convert_if_set(audio_out.format, _flat_format),
        tools=session.tools,
        tool_choice=session.tool_choice,
        temperature=session.temperature,
        max_response_output_tokens=session.max_output_tokens,
        tracing=session.tracing,
    )


# Responses


def nested_params(flat: FlatParams) -> ResponseParams:
    """The parameters in GA form."""
    output = ResponseAudioOutput(format=_convert_if_set(flat.output_audio_format, _nested_format), voice=flat.voice)
    return ResponseParams(
        conversation=flat.conversation,
        input=flat.input,
        instructions=flat.instructions,
        output_modalities=_convert_if_set(flat.modalities, _nested_modalities),
        audio=_unset_if_empty(ResponseAudio(output=_unset_if_empty(output))),
        tools=flat.tools,
        tool_choice=flat.tool_choice,
        max_output_tokens=flat.max_output_tokens if flat.max_response_output_tokens is UNSET else flat.max_response_output_tokens,
        temperature=flat.temperature,
        metadata=flat.metadata,
        extra=_remaining_extra(flat.extra, ResponseParams),
    )


def flat_params(params: ResponseParams) -> FlatParams:
    """The parameters in the beta's form."""
    output = (params.audio or ResponseAudio()).output or ResponseAudioOutput()
    return FlatParams(
        conversation=params.conversation,
        input=_convert_if_set(params.input, lambda items: [flat_item(each) for each in items]),
        instructions=params.instructions,
        modalities=_convert_if_set(params.output_modalities, _flat_modalities),
        voice=_convert_if_set(output.voice, _flat_voice),
        output_audio_format=_convert_if_set(output.format, _flat_format),
        tools=params.tools,
        tool_choice=params.tool_choice,
        temperature=params.temperature,
        max_response_output_tokens=params.max_output_tokens,
        metadata=params.metadata,
        extra=_remaining_extra(params.extra, FlatParams),
    )


def nested_response(flat: FlatResponse) -> Response:
    """The response in GA form."""
    output = ResponseAudioOutput()
    if flat.output_audio_format is not None:
        output.format = _nested_format(flat.output_audio_format)
    if flat.voice is not None:
        output.voice = flat.voice
    return Response(
        id=flat.id,
        status=flat.status,
        status_details=flat.status_details,
        output=flat.output,
        conversation_id=flat.conversation_id,
        output_modalities=_convert_if_set(flat.modalities, _nested_modalities),
        max_output_tokens=flat.max_output_tokens,
        temperature=flat.temperature,
        audio=ResponseAudio(output=output) if _unset_if_empty(output) else None,
        usage=flat.usage,
        metadata=flat.metadata,
        extra=_remaining_extra(flat.extra, Response),
    )


def flat_response(response: Response) -> FlatResponse:
    """The response in the beta's form."""
    output = (response.audio or ResponseAudio()).output or ResponseAudioOutput()
    return FlatResponse(
        id=response.id,
        status=response.status,
        status_details=response.status_details,
        output=[flat_item(each) for each in response.output],
        conversation_id=response.conversation_id,
        modalities=_convert_if_set(response.output_modalities, _flat_modalities),
        voice=_convert_if_set(output.voice or None, _flat_voice),
        output_audio_format=_convert_if_set(output.format or None, _flat_format),
        temperature=response.temperature,
        max_output_tokens=response.max_output_tokens,
        usage=response.usage,
        metadata=response.metadata,
        extra=_remaining_extra(response.extra, FlatResponse),
    )


# Items; nothing converts them back, as `OutputText` and `OutputAudio` also accept the beta's types


def flat_item(item: I) -> I:
    """The item in the beta's form."""
    if not isinstance(item, MessageItem):
        return item
    return msgspec.structs.replace(item, content=[_flat_part(each) for each in item.content])


def _flat_part(part: Part) -> Part:
    match part:
        case OutputText(text=text, extra=extra):
            return FlatText(text=text, extra=extra)
        case OutputAudio(transcript=transcript, audio=audio, extra=extra):
            return FlatAudio(transcript=transcript, audio=audio, extra=extra)
        case _:
            return part
