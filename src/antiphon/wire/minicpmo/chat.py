"""
Requests of MiniCPM-o clients in chat mode.

A message's parts become parts of a `history.Message` one to one, so that an error about the third part is about the
client's third part.
"""

import base64
import re
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from antiphon.engine_api import history
from antiphon.errors import ClientError, shorten
from antiphon.wire.minicpmo import media
from antiphon.wire.minicpmo.decode import invalid_field, missing_field, read, require_field, validate_id

MESSAGES_LIMIT = 256
"""Messages in one request."""

PARTS_LIMIT = 64
"""Parts in one message."""

STACK_LIMIT = 64
"""Video frames that the model takes together, at most."""

MAX_TOKENS_DEFAULT = 256
"""Output tokens if the client gives no limit; the original's default."""

MAX_TOKENS_LIMIT = 1_000_000
"""The highest limit a client may give: beyond any model's context, and within what engines can count."""


class ChatAppend(Struct, frozen=True, kw_only=True):
    """
    A request, with the whole conversation before it.

    Attributes:
        messages: oldest first.
        streaming: whether to send the output as it is generated.
        max_tokens: of the output.
        length_penalty: None if the client gave none.
        slices: into how many slices an image may be cut.
        is_omni: whether audio and video frames are interleaved, as in a video.
        speaks: whether to synthesize the output.
        voice_reference: a recording of the voice to speak with: s16le, 16 kHz.
        thinks: whether to reason; None if the client did not say.
    """

    messages: tuple[history.Message, ...]
    streaming: bool = True
    max_tokens: int = MAX_TOKENS_DEFAULT
    length_penalty: float | None = None
    slices: int | None = None
    is_omni: bool = False
    speaks: bool = False
    voice_reference: bytes | None = None
    thinks: bool | None = None
    input_id: str | None = None
    response_id: str | None = None


_OTHER_SCHEME = re.compile(r"(?!data:)[A-Za-z][A-Za-z0-9+.-]*:")


class _Url(Struct):
    url: str | None = None


class _InputAudio(Struct):
    data: Raw | UnsetType = UNSET
    format: str | None = None


class _Part(Struct):
    type: str
    text: str | None = None
    data: Raw | UnsetType = UNSET
    image: Raw | UnsetType = UNSET
    audio: Raw | UnsetType = UNSET
    video: Raw | UnsetType = UNSET
    image_url: _Url | str | None = None
    input_audio: _InputAudio | None = None
    stack_frames: Annotated[int, Meta(ge=1, le=STACK_LIMIT)] | None = None


class _Message(Struct):
    role: Literal["system", "user", "assistant"]
    content: str | list[_Part]


class _Generation(Struct):
    max_new_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS_LIMIT)] | None = None
    length_penalty: float | None = None


class _Image(Struct):
    max_slice_nums: Annotated[int, Meta(ge=1, le=9)] | None = None


class _Tts(Struct):
    enabled: bool | None = None
    ref_audio_data: Raw | UnsetType = UNSET


class _Chat(Struct):
    messages: list[_Message] | None = None
    audio: Raw | UnsetType = UNSET
    streaming: bool | None = None
    generation: _Generation | None = None
    image: _Image | None = None
    tts: _Tts | None = None
    omni_mode: bool | None = None
    use_tts_template: bool | None = None
    enable_thinking: bool | None = None
    input_id: str | None = None
    response_id: str | None = None


CHAT_FIELDS = frozenset(_Chat.__struct_fields__)
"""The names of the fields of a request."""

_chat_decoder = msgspec.json.Decoder(_Chat)


def decode_chat_append(raw: bytes) -> ChatAppend:
    """
    Decode a request, from the `input` of its event.

    Raises:
        ClientError: it is invalid.
    """
    chat = read(_chat_decoder, raw, "input")
    if chat.messages is None and chat.audio is not UNSET:
        raise ClientError("'input.audio' is for full duplex; mode=chat takes 'input.messages'.", code="mode_mismatch", param="input.audio")
    generation, image, tts = chat.generation or _Generation(), chat.image or _Image(), chat.tts or _Tts()
    return ChatAppend(
        messages=_messages(chat.messages),
        streaming=chat.streaming is not False,
        max_tokens=generation.max_new_tokens or MAX_TOKENS_DEFAULT,
        length_penalty=generation.length_penalty,
        slices=image.max_slice_nums,
        is_omni=bool(chat.omni_mode),
        speaks=bool(tts.enabled or chat.use_tts_template),
        voice_reference=_reference(tts.ref_audio_data),
        thinks=chat.enable_thinking,
        input_id=validate_id(chat.input_id, "input.input_id"),
        response_id=validate_id(chat.response_id, "input.response_id"),
    )


def _reference(raw: Raw | UnsetType) -> bytes | None:
    if isinstance(raw, UnsetType) or bytes(raw) == b"null":
        return None
    return media.decode_audio(raw, "input.tts.ref_audio_data", media.REFERENCE_LIMIT_S) or None


def _messages(messages: list[_Message] | None) -> tuple[history.Message, ...]:
    if messages is None:
        raise missing_field("input.messages")
    if not 1 <= len(messages) <= MESSAGES_LIMIT:
        raise invalid_field("input.messages", f"expected 1 to {MESSAGES_LIMIT} messages, but got {len(messages)}")
    return tuple(history.Message(message.role, _parts(message.content, index)) for index, message in enumerate(messages))


def _parts(content: str | list[_Part], message_index: int) -> tuple[history.HistoryPart, ...]:
    if isinstance(content, str):
        return (history.TextPart(content),)
    path = f"input.messages[{message_index}].content"
    if len(content) > PARTS_LIMIT:
        raise invalid_field(path, f"expected at most {PARTS_LIMIT} parts, but got {len(content)}")
    return tuple(_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part(part: _Part, path: str) -> history.HistoryPart:
    reader = _PART_READERS.get(part.type)
    if reader is None:
        raise invalid_field(f"{path}.type", f"expected one of {', '.join(_PART_READERS)}, but got '{shorten(part.type)}'")
    return reader(part, path)


def _text_part(part: _Part, path: str) -> history.HistoryPart:
    if part.text is None:
        raise missing_field(f"{path}.text")
    return history.TextPart(part.text)


def _part_value(part: _Part, name: str, path: str) -> tuple[bytes, str]:
    """The value of a part and its path: in `data`, or under the part's own name."""
    other: Raw | UnsetType = getattr(part, name)
    if isinstance(part.data, UnsetType) and not isinstance(other, UnsetType):
        return require_field(other, f"{path}.{name}"), f"{path}.{name}"
    return require_field(part.data, f"{path}.data"), f"{path}.data"


def _image_part(part: _Part, path: str) -> history.HistoryPart:
    return history.ImagePart(url=media.image_data_url(*_part_value(part, "image", path)))


def _image_url_part(part: _Part, path: str) -> history.HistoryPart:
    image_url, url_path = part.image_url, f"{path}.image_url"
    url = image_url.url if isinstance(image_url, _Url) else image_url
    if url is None:
        raise missing_field(url_path)
    if url.startswith(("http://", "https://")):
        return history.ImagePart(url=url)
    if _OTHER_SCHEME.match(url):
        raise invalid_field(url_path, "expected a URL of data, http, or https")
    return history.ImagePart(url=media.image_data_url(msgspec.json.encode(url), url_path))


def _audio_part(part: _Part, path: str) -> history.HistoryPart:
    return _audio_from_base64(*_part_value(part, "audio", path))


def _audio_from_base64(raw: bytes, path: str) -> history.HistoryPart:
    """Audio as float32 samples, or as a WAV file."""
    audio = media.decode_base64(raw, path, media.RECORDING_LIMIT_S * media.RATE_IN_HZ * media.FLOAT_BYTES)
    if audio[:4] == b"RIFF" and audio[8:12] == b"WAVE":
        return history.AudioPart(base64.b64encode(audio).decode(), "wav")
    return history.SpeechPart(media.decode_samples(audio, path), media.RATE_IN_HZ)


def _input_audio_part(part: _Part, path: str) -> history.HistoryPart:
    input_audio = part.input_audio or _InputAudio()
    data_path = f"{path}.input_audio.data"
    raw = require_field(input_audio.data, data_path)
    if input_audio.format in (None, "wav"):
        return _audio_from_base64(raw, data_path)
    return history.AudioPart(media.validate_base64(raw, data_path, media.IMAGE_LIMIT_BYTES), str(input_audio.format))


def _video_part(part: _Part, path: str) -> history.HistoryPart:
    raw, value_path = _part_value(part, "video", path)
    return history.VideoPart(media.validate_base64(raw, value_path, media.VIDEO_LIMIT_BYTES), part.stack_frames or 1)


_PART_READERS: dict[str, Callable[[_Part, str], history.HistoryPart]] = {
    "text": _text_part,
    "image": _image_part,
    "audio": _audio_part,
    "video": _video_part,
    "image_url": _image_url_part,
    "input_audio": _input_audio_part,
}
