"""
How an event is recorded: as plain values, with its audio and images in files beside it.

A line of `events.jsonl` is `{"seq", "at_s", "direction", "event"}`. Each chunk of audio is replaced by a reference to
it: `{"$media": "in.wav", "offset": 640, "bytes": 640, "form": "pcm"}`, counted in bytes of PCM without the WAV header;
an image by its file.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Annotated, Final, Literal, NamedTuple, TypedDict, cast

import msgspec
from msgspec import Meta, Struct, field

from antiphon.audio import decode_alaw, decode_ulaw, encode_alaw, encode_ulaw
from antiphon.runtime.recording.minicpmo import AudioAttachment, ImageFile, ImageForm, encode_event
from antiphon.wire.codec.types import EXTRA_NAME, Extra
from antiphon.wire.minicpmo.client_events import ClientEvent, DuplexAppend
from antiphon.wire.minicpmo.media import from_floats, to_floats
from antiphon.wire.minicpmo.server_events import OutputDelta
from antiphon.wire.realtime.client_events import InputAudioBufferAppend
from antiphon.wire.realtime.server_events import ResponseOutputAudioDelta

MEDIA_KEY = "$media"
"""The key that marks a reference to audio or to an image."""

EventDirection = Literal["in", "out"]

IN: Final = "in"
OUT: Final = "out"
"""From the client, and to it."""

INTERNAL: Final = "internal"
"""Neither: what the server knows of the session, and did not send."""

LineDirection = Literal["in", "out", "internal"]


IMAGE_SUFFIXES: Mapping[str, str] = {"jpeg": "jpg", "png": "png", "gif": "gif", "webp": "webp"}
"""Of the names of files, by the form of the image."""


class AudioEncoding(NamedTuple):
    """
    How audio is encoded on the wire, and its sample rate.

    Attributes:
        is_pcm_in_events: whether events have it as s16le all the same, as the protocol's decoder has turned it into that.
    """

    name: str
    rate_hz: int
    is_pcm_in_events: bool = False


PCM_24, FLOAT32_24 = AudioEncoding("pcm", 24_000), AudioEncoding("float32", 24_000)
FLOAT32_16 = AudioEncoding("float32", 16_000, is_pcm_in_events=True)

ENCODINGS = {"audio/pcm": PCM_24, "audio/pcmu": AudioEncoding("pcmu", 8_000), "audio/pcma": AudioEncoding("pcma", 8_000)}
"""By the name of the format in a Realtime session. Realtime reference: `RealtimeAudioFormats`; PCM is at 24 kHz."""

TO_PCM: dict[str, Callable[[bytes], bytes]] = {
    "pcm": bytes,
    "pcmu": decode_ulaw,
    "pcma": decode_alaw,
    "float32": lambda floats: from_floats(floats) or b"",
}
"""Decoders to s16le, by the encoding's name."""

FROM_PCM: dict[str, Callable[[bytes], bytes]] = {"pcm": bytes, "pcmu": encode_ulaw, "pcma": encode_alaw, "float32": to_floats}
"""Encoders from s16le, by the encoding's name."""

INITIAL_ENCODINGS: dict[str, dict[EventDirection, AudioEncoding]] = {
    "realtime": {IN: PCM_24, OUT: PCM_24},
    "minicpmo": {IN: FLOAT32_16, OUT: FLOAT32_24},
}
"""By protocol and direction: the encoding that sessions start with; MiniCPM-o's have no other."""


class _Format(TypedDict, total=False):
    type: str


class _AudioSide(TypedDict, total=False):
    format: _Format | None


class _Audio(TypedDict, total=False):
    input: _AudioSide
    output: _AudioSide


class _SessionOrResponse(TypedDict, total=False):
    id: str
    status: str
    audio: _Audio


class PartFields(TypedDict, total=False):
    """A part of a message."""

    type: str
    text: str | None
    transcript: str | None


class _Message(TypedDict, total=False):
    id: str
    role: str
    content: str | list[PartFields]


class _Input(TypedDict, total=False):
    messages: list[_Message] | None


class EventFields(TypedDict, total=False):
    """
    The fields of recorded events that are read here: those of Realtime, then those of MiniCPM-o.

    `audio` and the `delta` of audio are a reference to the audio, or base64 on the wire.
    """

    type: str
    session: _SessionOrResponse
    response: _SessionOrResponse
    response_id: str
    item: _Message
    item_id: str
    audio_start_ms: int
    audio_end_ms: int
    start_ms: int | None
    end_ms: int | None
    delta: str | dict[str, object]
    transcript: str | None

    session_id: str
    input: _Input
    kind: str
    text: str | None
    audio: str | dict[str, object] | None
    reason: str
    end_of_turn: bool
    interrupted: bool


_EVENT_BYTES = 300
"""Roughly the memory of an event without its media."""


def event_size_bytes(event: object) -> int:
    """Roughly the memory of an event that waits to be written."""
    match event:
        case InputAudioBufferAppend(audio=audio) | ResponseOutputAudioDelta(delta=audio):
            return _EVENT_BYTES + len(audio)
        case DuplexAppend(pcm=pcm, frames=frames):
            return _EVENT_BYTES + len(pcm) + sum(len(frame.jpeg) for frame in frames)
        case OutputDelta(audio=bytes(audio)):
            return _EVENT_BYTES + len(audio)
        case _:
            return _EVENT_BYTES


def event_to_builtins(event: object) -> EventFields:
    """An event as on the wire, but with its audio as bytes."""
    if isinstance(event, ClientEvent):
        return cast(EventFields, encode_event(event))
    fields: EventFields = msgspec.to_builtins(event, builtin_types=(bytes,), enc_hook=_encode_unknown)
    return fields


def _encode_unknown(value: object) -> object:
    if isinstance(value, Extra):
        return dict(value)
    return str(value)


def created_session_id(event: EventFields) -> str | None:
    """The session's id, if the event is `session.created` of either protocol."""
    if event.get("type") != "session.created":
        return None
    return event["session"].get("id") if "session" in event else event.get("session_id")


_ENCODING_EVENTS = frozenset(("session.created", "session.updated", "response.created"))


def audio_encodings(event: EventFields) -> dict[EventDirection, AudioEncoding]:
    """The audio encodings that an event sets, by direction."""
    if event.get("type") not in _ENCODING_EVENTS:
        return {}
    audio = (event.get("session") or event.get("response") or {}).get("audio") or {}
    sides: dict[EventDirection, _AudioSide] = {IN: audio.get("input") or {}, OUT: audio.get("output") or {}}
    names = {direction: (side.get("format") or {}).get("type", "") for direction, side in sides.items()}
    return {direction: ENCODINGS[name] for direction, name in names.items() if name in ENCODINGS}


class MediaSinks(NamedTuple):
    """Takes the media of an event: each callback stores one and returns the reference that replaces it."""

    audio: Callable[[bytes], dict[str, object]]
    image: Callable[[ImageFile], dict[str, object]]
    attachment: Callable[[AudioAttachment], dict[str, object]]


def extract_media(fields: Mapping[str, object], sinks: MediaSinks) -> dict[str, object]:
    """The fields of an event with each medium replaced by what its sink returns, and without credentials of MCP servers."""
    if fields.get("type") == "mcp":  # a tool of a session: they are stored nowhere
        fields = {name: value for name, value in fields.items() if name not in ("authorization", "headers")}
    extra = fields.get(EXTRA_NAME)
    plain = {name: _extract(value, sinks) for name, value in fields.items() if name != EXTRA_NAME}
    return plain | extra if isinstance(extra, dict) else plain


def _extract(value: object, sinks: MediaSinks) -> object:
    match value:
        case str() | int() | float() | None:  # first, as nearly all values are
            return value
        case dict():
            return extract_media(value, sinks)
        case list():
            return [_extract(each, sinks) for each in value]
        case bytes():
            return sinks.audio(value)
        case ImageFile():
            return sinks.image(value)
        case AudioAttachment():
            return sinks.attachment(value)
        case _:
            return value


class MediaReference(Struct, frozen=True):
    """Where the audio or the image of an event is."""

    file: str = field(name=MEDIA_KEY)
    bytes: Annotated[int, Meta(ge=0)]
    form: Literal["pcm", "pcmu", "pcma", "float32"] | ImageForm
    offset: Annotated[int, Meta(ge=0)] = 0

    @property
    def is_image(self) -> bool:
        return self.form in IMAGE_SUFFIXES


def parse_media(value: Mapping[str, object]) -> MediaReference | None:
    """The reference that `value` is, or None: a client may have sent something that looks much like one."""
    if MEDIA_KEY not in value:
        return None
    try:
        return msgspec.convert(value, MediaReference)
    except msgspec.ValidationError:
        return None


def find_media(value: object) -> Iterable[MediaReference]:
    """All references to media within plain values."""
    if isinstance(value, dict):
        reference = parse_media(value)
        return (reference,) if reference is not None else chain.from_iterable(map(find_media, value.values()))
    return chain.from_iterable(map(find_media, value)) if isinstance(value, list) else ()


def restore_media(fields: Mapping[str, object], load: Callable[[MediaReference], str | None]) -> dict[str, object]:
    """The fields of an event with their media put back; a reference for which `load` returns None stays."""
    return {name: _restore(value, load) for name, value in fields.items()}


def _restore(value: object, load: Callable[[MediaReference], str | None]) -> object:
    match value:
        case dict():
            reference = parse_media(value)
            media = None if reference is None else load(reference)
            return restore_media(value, load) if media is None else media
        case list():
            return [_restore(each, load) for each in value]
        case _:
            return value
