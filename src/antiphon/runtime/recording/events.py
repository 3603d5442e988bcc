"""
An event as it is recorded: plain values, and its sound and pictures apart, in files.

A line of `events.jsonl` is `{"seq", "at_s", "direction", "event"}`. In place of each piece of sound stands where it went:
`{"$media": "in.wav", "offset": 640, "bytes": 640, "form": "pcm"}`, in bytes of the sound itself; in place of a picture its file.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct, field

from antiphon.audio import decode_alaw, decode_ulaw
from antiphon.runtime.recording.minicpmo import EVENT_ENCODERS, AudioAttachment, JpegImage
from antiphon.wire.codec.types import EXTRA_NAME, Extra
from antiphon.wire.minicpmo.client_events import DuplexAppend
from antiphon.wire.minicpmo.media import from_floats
from antiphon.wire.minicpmo.server_events import OutputDelta
from antiphon.wire.realtime.client_events import InputAudioBufferAppend
from antiphon.wire.realtime.server_events import ResponseOutputAudioDelta

MEDIA_KEY = "$media"
"""What stands where sound or a picture was."""

IN, OUT = "in", "out"
"""From the client, and to it."""


class AudioEncoding(NamedTuple):
    """How sound is written on the wire, and how many samples a second it has."""

    name: str
    rate_hz: int


PCM_16, PCM_24, FLOAT32_24 = AudioEncoding("pcm", 16_000), AudioEncoding("pcm", 24_000), AudioEncoding("float32", 24_000)

ENCODINGS = {"audio/pcm": PCM_24, "audio/pcmu": AudioEncoding("pcmu", 8_000), "audio/pcma": AudioEncoding("pcma", 8_000)}
"""By their names in a Realtime session."""

TO_PCM: dict[str, Callable[[bytes], bytes]] = {
    "pcm": bytes,
    "pcmu": decode_ulaw,
    "pcma": decode_alaw,
    "float32": lambda floats: from_floats(floats) or b"",
}
"""By the form's name: s16le of it."""

INITIAL_ENCODINGS: dict[str, dict[str, AudioEncoding]] = {"realtime": {IN: PCM_24, OUT: PCM_24}, "minicpmo": {IN: PCM_16, OUT: FLOAT32_24}}
"""By protocol: the sound of its sessions until they say otherwise."""


_MEDIA_SIZES: dict[type, Callable[[Any], int]] = {
    InputAudioBufferAppend: lambda event: len(event.audio),
    ResponseOutputAudioDelta: lambda event: len(event.delta),
    DuplexAppend: lambda event: len(event.pcm) + sum(len(frame.jpeg) for frame in event.frames),
    OutputDelta: lambda event: len(event.audio) if event.audio else 0,
}

_EVENT_BYTES = 300
"""What an event takes besides its sound, more or less."""


def event_size_bytes(event: Any) -> int:
    """What an event takes while it waits to be written, more or less."""
    measure = _MEDIA_SIZES.get(type(event))
    return _EVENT_BYTES if measure is None else _EVENT_BYTES + measure(event)


def event_to_builtins(event: Any) -> Any:
    """An event as it is on the wire, save that sound is bytes."""
    if (write := EVENT_ENCODERS.get(type(event))) is not None:
        return write(event)
    return msgspec.to_builtins(event, builtin_types=(bytes,), enc_hook=_encode_unknown)


def _encode_unknown(value: Any) -> Any:
    if isinstance(value, Extra):
        return dict(value)
    return str(value)


def created_session_id(event: dict[str, Any]) -> str | None:
    """The session's id, in the event that says that it has begun."""
    if event.get("type") != "session.created":
        return None
    told = event.get("session", event)
    found = told.get("id") or told.get("session_id")
    return found if isinstance(found, str) else None


_ENCODING_EVENTS = frozenset(("session.created", "session.updated", "response.created"))


def audio_encodings(event: dict[str, Any]) -> dict[str, AudioEncoding]:
    """The forms of sound that an event sets, by direction."""
    if event.get("type") not in _ENCODING_EVENTS:
        return {}
    audio = (event.get("session") or event.get("response") or {}).get("audio")
    if not isinstance(audio, dict):
        return {}
    found = {direction: audio.get(side) for direction, side in ((IN, "input"), (OUT, "output"))}
    named = {direction: (side.get("format") or {}).get("type") for direction, side in found.items() if isinstance(side, dict)}
    return {direction: ENCODINGS[name] for direction, name in named.items() if name in ENCODINGS}


class MediaSinks:
    """Who takes the media of an event; each returns what is to stand in their place."""

    def __init__(
        self, audio: Callable[[bytes], Any], image: Callable[[JpegImage], Any], attachment: Callable[[AudioAttachment], Any]
    ) -> None:
        self.by_type: dict[type, Callable[[Any], Any]] = {bytes: audio, JpegImage: image, AudioAttachment: attachment}


def extract_media(value: Any, sinks: MediaSinks) -> Any:
    """Plain values without their media."""
    kind = type(value)
    if kind is dict:
        told = {name: extract_media(each, sinks) for name, each in value.items() if name != EXTRA_NAME}
        return told | (value[EXTRA_NAME] if EXTRA_NAME in value else {})
    if kind is list:
        return [extract_media(each, sinks) for each in value]
    take = sinks.by_type.get(kind)
    return value if take is None else take(value)


class MediaReference(Struct, frozen=True):
    """What stands where sound or a picture was."""

    file: str = field(name=MEDIA_KEY)
    bytes: Annotated[int, Meta(ge=0)]
    form: Literal["pcm", "pcmu", "pcma", "float32", "jpeg"]
    offset: Annotated[int, Meta(ge=0)] = 0


def parse_media(value: dict[str, Any]) -> MediaReference | None:
    """The media that stood here; None where none did: a client may have said something that looks much like it."""
    if MEDIA_KEY not in value:
        return None
    try:
        return msgspec.convert(value, MediaReference)
    except msgspec.ValidationError:
        return None


def find_media(value: Any) -> Iterable[MediaReference]:
    """All media that stood somewhere in plain values."""
    if isinstance(value, dict):
        found = parse_media(value)
        return (found,) if found is not None else chain.from_iterable(map(find_media, value.values()))
    return chain.from_iterable(map(find_media, value)) if isinstance(value, list) else ()


def restore_media(value: Any, load: Callable[[MediaReference], Any]) -> Any:
    """Plain values with their media in them again; what `content` has none for stays as it is."""
    if isinstance(value, dict):
        found = parse_media(value)
        told = None if found is None else load(found)
        return told if told is not None else {name: restore_media(each, load) for name, each in value.items()}
    if isinstance(value, list):
        return [restore_media(each, load) for each in value]
    return value
