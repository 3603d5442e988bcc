"""
How an event is recorded: as plain values, with its audio and images in files beside it.

A line of `events.jsonl` is `{"seq", "at_s", "direction", "event"}`. Each chunk of audio is replaced by a reference to
it: `{"$media": "in.wav", "offset": 640, "bytes": 640, "form": "pcm"}`, counted in bytes of PCM without the WAV header;
an image by its file.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct, field

from antiphon.audio import decode_alaw, decode_ulaw, encode_alaw, encode_ulaw
from antiphon.runtime.recording.minicpmo import EVENT_ENCODERS, AudioAttachment, JpegImage
from antiphon.wire.codec.types import EXTRA_NAME, Extra
from antiphon.wire.minicpmo.client_events import DuplexAppend
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


class AudioEncoding(NamedTuple):
    """How audio is encoded on the wire, and its sample rate."""

    name: str
    rate_hz: int


PCM_16, PCM_24, FLOAT32_24 = AudioEncoding("pcm", 16_000), AudioEncoding("pcm", 24_000), AudioEncoding("float32", 24_000)

ENCODINGS = {"audio/pcm": PCM_24, "audio/pcmu": AudioEncoding("pcmu", 8_000), "audio/pcma": AudioEncoding("pcma", 8_000)}
"""By the name of the format in a Realtime session."""

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
    "minicpmo": {IN: PCM_16, OUT: FLOAT32_24},
}
"""By protocol and direction: the encoding that sessions start with."""

_MEDIA_SIZES: dict[type, Callable[[Any], int]] = {
    InputAudioBufferAppend: lambda event: len(event.audio),
    ResponseOutputAudioDelta: lambda event: len(event.delta),
    DuplexAppend: lambda event: len(event.pcm) + sum(len(frame.jpeg) for frame in event.frames),
    OutputDelta: lambda event: len(event.audio) if event.audio else 0,
}

_EVENT_BYTES = 300
"""Roughly the memory of an event without its media."""


def event_size_bytes(event: Any) -> int:
    """Roughly the memory of an event that waits to be written."""
    measure = _MEDIA_SIZES.get(type(event))
    return _EVENT_BYTES if measure is None else _EVENT_BYTES + measure(event)


def event_to_builtins(event: Any) -> Any:
    """An event as on the wire, but with its audio as bytes."""
    if (encode := EVENT_ENCODERS.get(type(event))) is not None:
        return encode(event)
    return msgspec.to_builtins(event, builtin_types=(bytes,), enc_hook=_encode_unknown)


def _encode_unknown(value: Any) -> Any:
    if isinstance(value, Extra):
        return dict(value)
    return str(value)


def created_session_id(event: dict[str, Any]) -> str | None:
    """The session's id, if the event is `session.created` of either protocol."""
    if event.get("type") != "session.created":
        return None
    session = event.get("session", event)
    session_id = session.get("id") or session.get("session_id")
    return session_id if isinstance(session_id, str) else None


_ENCODING_EVENTS = frozenset(("session.created", "session.updated", "response.created"))


def audio_encodings(event: Mapping[str, Any]) -> dict[EventDirection, AudioEncoding]:
    """The audio encodings that an event sets, by direction."""
    if event.get("type") not in _ENCODING_EVENTS:
        return {}
    audio = (event.get("session") or event.get("response") or {}).get("audio")
    if not isinstance(audio, dict):
        return {}
    sides: dict[EventDirection, Any] = {IN: audio.get("input"), OUT: audio.get("output")}
    names = {direction: (side.get("format") or {}).get("type") for direction, side in sides.items() if isinstance(side, dict)}
    return {direction: ENCODINGS[name] for direction, name in names.items() if name in ENCODINGS}


class MediaSinks:
    """Takes the media of an event: each callback stores one and returns the reference that replaces it."""

    def __init__(
        self, audio: Callable[[bytes], Any], image: Callable[[JpegImage], Any], attachment: Callable[[AudioAttachment], Any]
    ) -> None:
        self.by_type: dict[type, Callable[[Any], Any]] = {bytes: audio, JpegImage: image, AudioAttachment: attachment}


def extract_media(value: Any, sinks: MediaSinks) -> Any:
    """Plain values with each medium replaced by what its sink returns."""
    kind = type(value)
    if kind is dict:
        fields = {name: extract_media(each, sinks) for name, each in value.items() if name != EXTRA_NAME}
        return fields | value.get(EXTRA_NAME, {})
    if kind is list:
        return [extract_media(each, sinks) for each in value]
    sink = sinks.by_type.get(kind)
    return value if sink is None else sink(value)


class MediaReference(Struct, frozen=True):
    """Where the audio or the image of an event is."""

    file: str = field(name=MEDIA_KEY)
    bytes: Annotated[int, Meta(ge=0)]
    form: Literal["pcm", "pcmu", "pcma", "float32", "jpeg"]
    offset: Annotated[int, Meta(ge=0)] = 0


def parse_media(value: dict[str, Any]) -> MediaReference | None:
    """The reference that `value` is, or None: a client may have sent something that looks much like one."""
    if MEDIA_KEY not in value:
        return None
    try:
        return msgspec.convert(value, MediaReference)
    except msgspec.ValidationError:
        return None


def find_media(value: Any) -> Iterable[MediaReference]:
    """All references to media within plain values."""
    if isinstance(value, dict):
        reference = parse_media(value)
        return (reference,) if reference is not None else chain.from_iterable(map(find_media, value.values()))
    return chain.from_iterable(map(find_media, value)) if isinstance(value, list) else ()


def restore_media(value: Any, load: Callable[[MediaReference], Any]) -> Any:
    """Plain values with their media put back; a reference for which `load` returns None stays."""
    if isinstance(value, dict):
        reference = parse_media(value)
        media = None if reference is None else load(reference)
        return media if media is not None else {name: restore_media(each, load) for name, each in value.items()}
    if isinstance(value, list):
        return [restore_media(each, load) for each in value]
    return value
