"""
The protocol between a MiniCPM-o gateway and a worker, or the model's server behind one.

Two implementations are in use, one in Python and one in C++ (`llama-omni-server`), which agree on the messages and not
on their order. Audio is float32 in base64, little-endian: 16 kHz to the worker, 24 kHz from it. What comes is read
leniently: versions differ.
"""

from typing import Literal

import msgspec
from msgspec import Struct, field

from antiphon.wire.codec.types import JsonDict, JsonValue

Mode = Literal["turn_based", "full_duplex"]
"""Turn by turn, or full duplex."""

INPUT_RATE_HZ = 16_000
OUTPUT_RATE_HZ = 24_000


class _MessagePart(Struct, kw_only=True, omit_defaults=True, gc=False):
    """Part of a message; fields with their default are left out."""


# To the worker


class VoiceReferences(_MessagePart):
    """Recordings of voices: for the language model, and for the speech that is synthesised."""

    ref_audio_base64: bytes | None = None
    tts_ref_audio_base64: bytes | None = None


class SessionPayload(_MessagePart):
    """
    Settings of a session.

    Attributes:
        use_tts: the model speaks. No default, so it is always sent: without it a worker assumes yes.
        config: settings of the full-duplex model.
    """

    mode: Mode
    use_tts: bool
    system_prompt: str | None = None
    config: JsonDict = field(default_factory=dict)
    voice: VoiceReferences | None = None


class SessionInit(_MessagePart, tag_field="type", tag="session.init"):
    """Begin a session."""

    payload: SessionPayload


class DuplexInput(_MessagePart):
    """A piece of audio, with the video frames of its time."""

    audio: bytes
    video_frames: list[bytes] = field(default_factory=list)
    force_listen: bool = False
    max_slice_nums: int = 1
    input_id: str = ""


class Text(_MessagePart, tag_field="type", tag="text"):
    """Text."""

    text: str


class Image(_MessagePart, tag_field="type", tag="image"):
    """An image, base64."""

    data: str


class Audio(_MessagePart, tag_field="type", tag="audio"):
    """Audio."""

    data: bytes


class Video(_MessagePart, tag_field="type", tag="video"):
    """A video, base64."""

    data: str
    stack_frames: int = 1


Content = Text | Image | Audio | Video


class Message(Struct, kw_only=True, gc=False):
    """One message of the conversation."""

    role: Literal["system", "user", "assistant"]
    content: str | list[Content]


class Generation(_MessagePart):
    """Generation options; the worker has defaults for those left out."""

    max_new_tokens: int | None = None
    length_penalty: float | None = None


class TtsOptions(_MessagePart):
    """Whether the response is spoken, and with which voice."""

    enabled: bool = False
    ref_audio_data: bytes | None = None


class ImageOptions(_MessagePart):
    """Into how many slices an image may be cut."""

    max_slice_nums: int = 1


class ChatInput(_MessagePart):
    """The conversation so far, to be answered."""

    messages: list[Message]
    streaming: bool
    input_id: str = ""
    generation: Generation = field(default_factory=Generation)
    tts: TtsOptions = field(default_factory=TtsOptions)
    image: ImageOptions = field(default_factory=ImageOptions)
    use_tts_template: bool = False
    omni_mode: bool = False
    enable_thinking: bool = False


class InputAppend(_MessagePart, tag_field="type", tag="input.append"):
    """Input: more audio in full duplex, or a conversation to answer."""

    input: DuplexInput | ChatInput


class SessionClose(_MessagePart, tag_field="type", tag="session.close"):
    """
    End the session. For workers only: to the model's server it is a protocol error; that one is stopped over HTTP.
    """

    reason: str = "user_stop"


# From the worker


class TokenDetails(Struct, gc=False):
    """Tokens by kind."""

    text_tokens: int = 0
    audio_tokens: int = 0
    vision_tokens: int = 0


class Usage(Struct, gc=False):
    """Tokens of the session so far."""

    input_tokens: int = 0
    output_tokens: int = 0
    input_token_details: TokenDetails | None = None
    output_token_details: TokenDetails | None = None


class BackendEvent(Struct, gc=False):
    """
    A message of a worker, of any type.

    Attributes:
        type: `session.created`, `response.output.delta`, `response.done`, `session.closed` or `error`.
        kind: of a delta: `listen`, `text` or `audio`.
        text: of a delta the new text, of `response.done` all of it.
        diagnostic: why the session was closed, for the operator.
    """

    type: str
    kind: str | None = None
    session_id: str | None = None
    response_id: str | None = None
    text: str | None = None
    audio: bytes | None = None
    reason: str | None = None
    metrics: JsonDict | None = None
    usage: Usage | None = None
    diagnostic: JsonValue = None
    error: JsonValue = None


class Health(Struct, gc=False):
    """
    Response to `GET /health`, of a worker or a model's server.

    Attributes:
        status: `ready` or `loading` of the Python server, `ok` of the C++ one, `healthy` of a worker.
        worker_status: `idle`, `loading` or `error`; anything else means busy. The C++ server doesn't send it.
        engine: `comni` for the C++ server.
    """

    status: str = ""
    worker_status: str | None = None
    active_session_id: str | None = None
    current_session_id: str | None = None
    engine: str | None = None


decode_event = msgspec.json.Decoder(BackendEvent).decode
"""Decodes a frame; raises `msgspec.DecodeError` or `UnicodeDecodeError`."""

decode_health = msgspec.json.Decoder(Health).decode
"""Decodes a response to `GET /health`; raises as `decode_event` does."""

encode = msgspec.json.Encoder().encode
"""Encodes a message as a frame."""
