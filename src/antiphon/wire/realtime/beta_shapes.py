"""
The beta's own shapes of sessions, responses and items, and their conversion from and to GA shapes.

The beta's sessions and responses are flat where GA's are nested: `_MOVED` says where each field went. What both have
under one name is copied; fields that the beta does not have are not sent to a beta client.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import UNSET, field

from antiphon import errors
from antiphon.wire.codec.types import Extra, JsonValue, Maybe, Opt, Unknown, Wire
from antiphon.wire.realtime.base import RealtimeObject
from antiphon.wire.realtime.items import InputItem, InputMessage, Item, ItemReference, MessageItem, OutputAudio, OutputText, Part
from antiphon.wire.realtime.response import ResponseStatus, StatusDetails, Usage
from antiphon.wire.realtime.session import (
    Format,
    Includable,
    MaxOutputTokens,
    Modality,
    NoiseReduction,
    PcmaFormat,
    PcmFormat,
    PcmuFormat,
    ServerVad,
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

T = TypeVar("T")
W = TypeVar("W", bound=Wire)
I = TypeVar("I", bound=Item | InputItem | Unknown)  # noqa: E741 - an item

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
    client_secret: Maybe[JsonValue] = UNSET
    include: Maybe[list[Includable]] = UNSET
    type: Maybe[JsonValue] = UNSET


class FlatParams(RealtimeObject, kw_only=True):
    """
    The parameters of one response; `max_output_tokens` is an old name of `max_response_output_tokens`. Of two names of
    a field the first is written, and wins where both are read.
    """

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
    # GA only, as is its event `input_audio_buffer.timeout_triggered`.
    return msgspec.structs.replace(detection, idle_timeout_ms=UNSET) if isinstance(detection, ServerVad) else detection


def _flat_part(part: Part | ItemReference) -> Part | ItemReference:
    match part:
        case OutputText(text=text, extra=extra):
            return FlatText(text=text, extra=extra)
        case OutputAudio(transcript=transcript, audio=audio, extra=extra):
            return FlatAudio(transcript=transcript, audio=audio, extra=extra)
        case _:
            return part


def flat_item(item: I) -> I:
    """The item in the beta's form; nothing converts it back, as GA's parts are read under the beta's types too."""
    if not isinstance(item, MessageItem | InputMessage):
        return item
    return msgspec.structs.replace(item, content=[_flat_part(each) for each in item.content])


def _flat_items(items: Sequence[I]) -> list[I]:
    return [flat_item(each) for each in items]


# Fields


def _same(value: T) -> T:
    return value


class _Place(NamedTuple):
    """
    Where GA has a field of the beta.

    Attributes:
        path: names of fields, from the outside in.
        flat: converts a value to the beta's; null stays null.
        nested: converts it back.
    """

    path: tuple[str, ...]
    flat: Callable[[Any], Any] = _same
    nested: Callable[[Any], Any] = _same


_MOVED = {
    "modalities": _Place(("output_modalities",), _flat_modalities, _nested_modalities),
    "input_audio_format": _Place(("audio", "input", "format"), _flat_format, _nested_format),
    "input_audio_transcription": _Place(("audio", "input", "transcription")),
    "input_audio_noise_reduction": _Place(("audio", "input", "noise_reduction")),
    "turn_detection": _Place(("audio", "input", "turn_detection"), _flat_turn_detection),
    "output_audio_format": _Place(("audio", "output", "format"), _flat_format, _nested_format),
    "voice": _Place(("audio", "output", "voice"), _flat_voice),
    "speed": _Place(("audio", "output", "speed")),
    "max_response_output_tokens": _Place(("max_output_tokens",)),
    "input": _Place(("input",), _flat_items),
    "output": _Place(("output",), _flat_items),
}

"""
What has another place or another form in GA.

Source: Realtime guide, "Beta to GA migration"; for each field, the types `openai.types.beta.realtime` of openai-python.
"""

_BETA_NAMES = {f".{'.'.join(place.path)}": f".{name}" for name, place in _MOVED.items()} | {
    "'output_text'": "'text'",
    "'output_audio'": "'audio'",
}


def to_beta_names(text: str) -> str:
    """A path or the message of an error, with the beta's names of fields and parts."""
    for name, beta_name in _BETA_NAMES.items():
        text = text.replace(name, beta_name)
    return text


class _Field(NamedTuple):
    name: str
    default: object
    place: _Place


@cache
def _common_fields(flat: type[Wire], nested: type[Wire]) -> tuple[_Field, ...]:
    places = {name: _Place((name,)) for name in nested.__struct_fields__ if name != "extra"} | _MOVED
    if nested is TranscriptionSession:
        # It has input audio only (Realtime reference: `session.update`), though its `audio` has the type of every session's.
        places = {name: place for name, place in places.items() if place.path[:2] != ("audio", "output")}
    return tuple(
        _Field(each.name, each.default, places[each.name])
        for each in msgspec.structs.fields(flat)
        if each.name in places and places[each.name].path[0] in nested.__struct_fields__
    )


@cache
def _known_names(kind: type[Wire]) -> frozenset[str]:
    return frozenset(("type", *(each.encode_name for each in msgspec.structs.fields(kind))))


def _remaining_extra(extra: Opt[Extra], kind: type[Wire]) -> Opt[Extra]:
    """The unknown fields, without those that `kind` knows: they would be written twice."""
    remaining = {name: value for name, value in (extra or {}).items() if name not in _known_names(kind)}
    return Extra(remaining) if remaining else UNSET


def flatten(nested: Wire, kind: type[W]) -> W:
    """A GA object in the beta's form, which is of type `kind`."""
    values = {}
    fields = reversed(_common_fields(kind, type(nested)))
    for name, place in {place.path: (name, place) for name, _, place in fields}.values():  # the first of each path
        value: Any = nested
        for step in place.path:
            value = getattr(value, step, UNSET)  # absent and null groups have no fields
        if value is not UNSET:
            values[name] = value if value is None else place.flat(value)
    return kind(**values, extra=_remaining_extra(nested.extra, kind))


def nest(flat: Wire, kind: type[W]) -> W:
    """An object of the beta in GA's form, which is of type `kind`; groups without a value are absent."""
    values: dict[tuple[str, ...], Any] = {("extra",): _remaining_extra(flat.extra, kind)}
    for name, default, place in _common_fields(type(flat), kind):
        value = getattr(flat, name)
        if value is not default:
            values.setdefault(place.path, value if value is None else place.nested(value))
    return _build(kind, values)


def _build(kind: type[W], values: dict[tuple[str, ...], Any]) -> W:
    fields = {path[0]: value for path, value in values.items() if len(path) == 1}
    for name in {path[0] for path in values if len(path) > 1}:
        inner = {path[1:]: value for path, value in values.items() if path[0] == name}
        fields[name] = _build(_group_type(kind, name), inner)
    return kind(**fields)


@cache
def _group_type(kind: type[Wire], name: str) -> type[Wire]:
    return next(each for each in get_args(get_type_hints(kind)[name]) if isinstance(each, type) and issubclass(each, Wire))


def check_beta_modalities(modalities: Opt[list[Modality]], path: str) -> None:
    """
    Check that a response can have this combination of modalities; `audio` alone means audio and its transcript.

    Raises:
        ClientError: it can't.
    """
    if modalities is not UNSET and (not modalities or len(set(modalities)) < len(modalities)):
        raise errors.invalid_modalities(path, modalities, _MODALITIES)
