"""
Events of MiniCPM-o clients, decoded and checked.

One JSON object per frame. Clients of several generations write the same fields in different ways; all are accepted, and
unknown fields are ignored. Audio and images are decoded here too, so that a decoded event is entirely valid. Errors are
`ClientError`s with the codes `invalid_json`, `unknown_event`, `missing_field`, `invalid_payload` and `mode_mismatch`.
What the original's own pages send beside these events is known by name and ignored.

Source: OpenBMB's documentation of the Realtime API of MiniCPM-o 4.5.
"""

from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from antiphon.errors import ClientError, quote_list, shorten
from antiphon.wire.codec.structure import check_depth, check_event_structure
from antiphon.wire.codec.types import JsonDict
from antiphon.wire.minicpmo import media
from antiphon.wire.minicpmo.chat import CHAT_FIELDS, ChatAppend as ChatAppend, decode_chat_append
from antiphon.wire.minicpmo.decode import ID_LIMIT, first_field, invalid_field, missing_field, read, require_field, validate_id

Mode = Literal["chat", "audio", "video"]
MODES: tuple[Mode, ...] = ("chat", "audio", "video")

PROMPT_LIMIT_CHARACTERS = 131_072
"""Characters of the system prompt."""

OPTIONS_LIMIT_BYTES = 65_536
"""Bytes of JSON in `config`."""

SLICES_LIMIT = 9
"""Slices that an image may be cut into."""


# Events


class SessionInit(Struct, frozen=True, kw_only=True):
    """
    Begin the session.

    Attributes:
        instructions: the system prompt.
        options: the client's `config`, unchanged.
        reference: a recording of the voice that the model adopts: s16le, 16 kHz.
        voice_reference: the same for speech synthesis alone; if None, `reference` is used for both.
        slices: into how many slices an image may be cut.
        speaks: whether to synthesize the output.
    """

    instructions: str | None = None
    options: JsonDict = {}
    reference: bytes | None = None
    voice_reference: bytes | None = None
    slices: int | None = None
    speaks: bool = True


class Frame(Struct, frozen=True):
    """A JPEG file, and into how many slices it may be cut; None if the client did not say."""

    jpeg: bytes
    slices: int | None = None


class DuplexAppend(Struct, frozen=True, kw_only=True):
    """More audio and images; `pcm` is s16le, 16 kHz, and may be empty."""

    pcm: bytes
    frames: tuple[Frame, ...] = ()
    force_listen: bool = False
    input_id: str | None = None
    response_id: str | None = None


class SessionClose(Struct, frozen=True):
    """The client ends the session, with or without a reason."""

    reason: str | None = None


class IgnoredEvent(Struct, frozen=True):
    """An event of the original's own pages that has no meaning for a server; `type` is its name."""

    type: str


ClientEvent = SessionInit | DuplexAppend | ChatAppend | SessionClose

IGNORED_EVENT_TYPES = frozenset({"client_diagnostic", "update", "session.update"})
"""
Reports of the pages about themselves, and the update of settings from before `session.init`. The original's servers
close a session for any event that they don't know; its pages run in front of gateways that drop these.
"""

MAX_IGNORED_NAMES = 16
"""Ignored fields that are named, of as many characters at most as an id."""


# JSON


class _Envelope(Struct):
    type: Raw | UnsetType = UNSET
    payload: Raw | UnsetType = UNSET
    input: Raw | UnsetType = UNSET
    reason: Raw | UnsetType = UNSET


class _References(Struct):
    ref_audio_base64: Raw | UnsetType = UNSET
    ref_audio: Raw | UnsetType = UNSET
    tts_ref_audio_base64: Raw | UnsetType = UNSET
    tts_ref_audio: Raw | UnsetType = UNSET


_Slices = int | list[int] | None


class _Payload(_References):
    # `instructions` is a name that OpenBMB's Python server accepts as well, its C++ server not.
    system_prompt: str | None = None
    instructions: str | None = None
    config: Raw | UnsetType = UNSET
    voice: _References | None = None
    max_slice_nums: _Slices = None
    use_tts: bool | None = None


class _Hints(Struct):
    force_listen: bool | None = None
    max_slice_nums: _Slices = None


class _Duplex(_Hints):
    # The first name of each is the protocol's; the others are those that OpenBMB's servers accept as well.
    audio: Raw | UnsetType = UNSET
    audio_base64: Raw | UnsetType = UNSET
    audio_data: Raw | UnsetType = UNSET
    messages: Raw | UnsetType = UNSET
    video_frames: list[Raw] | None = None
    frame_base64_list: list[Raw] | None = None
    frames: list[Raw] | None = None
    hints: _Hints | None = None
    input_id: str | None = None
    response_id: str | None = None


_envelope_decoder = msgspec.json.Decoder(_Envelope)
_payload_decoder = msgspec.json.Decoder(_Payload)
_duplex_decoder = msgspec.json.Decoder(_Duplex)
_options_decoder = msgspec.json.Decoder(JsonDict)
_string_decoder = msgspec.json.Decoder(str)
_object_decoder = msgspec.json.Decoder(dict[str, Raw])
_FIELDS = {
    SessionInit: ("payload", frozenset({*_Payload.__struct_fields__, "mode"})),
    DuplexAppend: ("input", frozenset(_Duplex.__struct_fields__)),
    ChatAppend: ("input", CHAT_FIELDS),
}
"""By event, where its fields are, and their names. A `mode` in the payload only repeats that of the address."""


def decode_client(frame: bytes, mode: Mode) -> ClientEvent | IgnoredEvent:
    """
    Decode a client's frame, in a session of that mode.

    Raises:
        ClientError: it is no valid event.
    """
    try:
        check_event_structure(frame)
    except ClientError as error:
        raise ClientError(error.message, code="invalid_payload") from None
    envelope = read(_envelope_decoder, frame, "")
    tag = read(_string_decoder, require_field(envelope.type, "type"), "type")
    reader = _EVENT_DECODERS.get(tag)
    if reader is None:
        if tag in IGNORED_EVENT_TYPES:
            return IgnoredEvent(tag)
        raise ClientError(
            f"Unknown event type: '{shorten(tag)}'. Known types are: {quote_list(_EVENT_DECODERS)}.", code="unknown_event", param="type"
        )
    return reader(envelope, mode)


def ignored_fields(frame: bytes, event: ClientEvent) -> list[str]:
    """
    The paths of fields that nothing here reads, such as those of older clients; at most `MAX_IGNORED_NAMES`.

    Args:
        frame: was decoded to `event`.
    """
    container, names = _FIELDS.get(type(event), ("reason", frozenset[str]()))
    fields = _object_decoder.decode(frame)
    paths = [name for name in fields if name not in ("type", container)]
    if names:
        paths += [f"{container}.{name}" for name in _object_decoder.decode(fields[container]) if name not in names]
    return [shorten(path, ID_LIMIT) for path in paths[:MAX_IGNORED_NAMES]]


def _decode_init(envelope: _Envelope, _mode: Mode) -> SessionInit:
    raw = require_field(envelope.payload, "payload")
    check_depth(raw)
    payload = read(_payload_decoder, raw, "payload")
    instructions, name = first_field(payload, ("system_prompt", "instructions"))
    if instructions is not None and len(instructions) > PROMPT_LIMIT_CHARACTERS:
        raise invalid_field(f"payload.{name}", f"expected at most {PROMPT_LIMIT_CHARACTERS} characters, but got {len(instructions)}")
    sources = ((payload.voice, "payload.voice"), (payload, "payload"))
    return SessionInit(
        instructions=instructions,
        options=_decode_options(payload.config),
        reference=_decode_reference(sources, ("ref_audio_base64", "ref_audio")),
        voice_reference=_decode_reference(sources, ("tts_ref_audio_base64", "tts_ref_audio")),
        slices=_slice_counts(payload.max_slice_nums, "payload.max_slice_nums", 1)[0],
        speaks=payload.use_tts is not False,
    )


def _decode_options(raw: Raw | UnsetType) -> JsonDict:
    if isinstance(raw, UnsetType) or bytes(raw) == b"null":
        return {}
    if len(raw) > OPTIONS_LIMIT_BYTES:
        raise invalid_field("payload.config", f"expected at most {OPTIONS_LIMIT_BYTES} bytes, but got {len(raw)}")
    return read(_options_decoder, raw, "payload.config")


def _decode_reference(sources: tuple[tuple[_References | None, str], ...], names: tuple[str, ...]) -> bytes | None:
    for references, path in sources:
        raw, name = first_field(references, names)
        if raw is not None:
            return media.decode_audio(raw, f"{path}.{name}", media.REFERENCE_LIMIT_S) or None
    return None


def _slice_counts(value: _Slices, param: str, count: int) -> tuple[int | None, ...]:
    """For each of `count` images, into how many slices it may be cut."""
    numbers = value if isinstance(value, list) else [value] * max(count, 1)  # checked even without an image
    if isinstance(value, list) and len(value) != count:
        raise invalid_field(param, f"expected a number for each of {count} images, but got {len(value)} numbers")
    for number in numbers:
        if number is not None and not 1 <= number <= SLICES_LIMIT:
            raise invalid_field(param, f"expected numbers from 1 to {SLICES_LIMIT}, but got {shorten(number)}")
    return tuple(numbers[:count])


def _decode_append(envelope: _Envelope, mode: Mode) -> DuplexAppend | ChatAppend:
    raw = require_field(envelope.input, "input")
    if mode == "chat":
        check_depth(raw)
        return decode_chat_append(raw)
    duplex_input = read(_duplex_decoder, raw, "input")
    hints = duplex_input.hints or _Hints()
    audio, name = first_field(duplex_input, ("audio", "audio_base64", "audio_data"))
    if audio is None:
        if duplex_input.messages is not UNSET:
            raise ClientError(
                "'input.messages' is for mode=chat; this session takes 'input.audio'.", code="mode_mismatch", param="input.messages"
            )
        raise missing_field("input.audio")
    force_listen = duplex_input.force_listen if duplex_input.force_listen is not None else hints.force_listen
    return DuplexAppend(
        pcm=media.decode_audio(audio, f"input.{name}", media.AUDIO_LIMIT_S),
        frames=_decode_frames(duplex_input, hints),
        force_listen=bool(force_listen),
        input_id=validate_id(duplex_input.input_id, "input.input_id"),
        response_id=validate_id(duplex_input.response_id, "input.response_id"),
    )


def _decode_frames(duplex_input: _Duplex, hints: _Hints) -> tuple[Frame, ...]:
    raws, name = first_field(duplex_input, ("video_frames", "frame_base64_list", "frames"))
    raws = raws or []
    if len(raws) > media.FRAMES_LIMIT:
        raise invalid_field(f"input.{name}", f"expected at most {media.FRAMES_LIMIT} images, but got {len(raws)}")
    source, path = (duplex_input, "input") if duplex_input.max_slice_nums is not None else (hints, "input.hints")
    slices = _slice_counts(source.max_slice_nums, f"{path}.max_slice_nums", len(raws))
    return tuple(
        Frame(media.decode_frame(raw, f"input.{name}[{index}]"), number)
        for index, (raw, number) in enumerate(zip(raws, slices, strict=True))
    )


def _decode_close(envelope: _Envelope, _mode: Mode) -> SessionClose:
    try:
        reason = None if isinstance(envelope.reason, UnsetType) else _string_decoder.decode(envelope.reason)
    except (msgspec.DecodeError, UnicodeDecodeError):  # a client may leave whatever its reason looks like
        reason = None
    return SessionClose(reason[:ID_LIMIT] if reason else None)


_EVENT_DECODERS: dict[str, Callable[[_Envelope, Mode], ClientEvent]] = {
    "session.init": _decode_init,
    "input.append": _decode_append,
    "session.close": _decode_close,
}
