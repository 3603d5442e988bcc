"""
What MiniCPM-o workers are told and say: the protocol between a gateway and a worker, or the model's server behind one.

Two implementations are in use, one in Python and one in C++ (`llama-omni-server`), which agree on the frames and not on their order. Sound
is float32 in base64, the low byte first: 16 kHz to the worker, 24 kHz from it. What comes is read leniently: no two versions say the same.
"""

from typing import Any, Literal

import msgspec
from msgspec import Struct, field

Mode = Literal["turn_based", "full_duplex"]
"""How a session goes: question by question, or all the time."""

INPUT_RATE_HZ = 16_000
OUTPUT_RATE_HZ = 24_000


class _MessagePart(Struct, kw_only=True, omit_defaults=True, gc=False):
    """Part of a message; what is as it is by default is left out."""


# To the worker


class VoiceReferences(_MessagePart):
    """Voices, as sound: whose the model is to take for its own, and whose it speaks with."""

    ref_audio_base64: bytes | None = None
    tts_ref_audio_base64: bytes | None = None


class SessionPayload(_MessagePart):
    """
    How a session is to be.

    Attributes:
        use_tts: whether the model speaks; said always, as a worker takes an hour of silence for yes.
        config: settings of the model that speaks all the time.
    """

    mode: Mode
    use_tts: bool
    system_prompt: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    voice: VoiceReferences | None = None


class SessionInit(_MessagePart, tag_field="type", tag="session.init"):
    """Begin."""

    payload: SessionPayload


class DuplexInput(_MessagePart):
    """A piece of what is heard and seen."""

    audio: bytes
    video_frames: list[bytes] = field(default_factory=list)
    force_listen: bool = False
    max_slice_nums: int = 1
    input_id: str = ""


class Text(_MessagePart, tag_field="type", tag="text"):
    """Words."""

    text: str


class Image(_MessagePart, tag_field="type", tag="image"):
    """A picture, base64."""

    data: str


class Audio(_MessagePart, tag_field="type", tag="audio"):
    """Sound."""

    data: bytes


class Video(_MessagePart, tag_field="type", tag="video"):
    """A film, base64."""

    data: str
    stack_frames: int = 1


Content = Text | Image | Audio | Video


class Message(Struct, kw_only=True, gc=False):
    """What one side said."""

    role: Literal["system", "user", "assistant"]
    content: str | list[Content]


class Generation(_MessagePart):
    """How the answer is made; what is left out is for the worker to choose."""

    max_new_tokens: int | None = None
    length_penalty: float | None = None


class TtsOptions(_MessagePart):
    """Whether the answer is spoken, and with whose voice."""

    enabled: bool = False
    ref_audio_data: bytes | None = None


class ImageOptions(_MessagePart):
    """Into how many pieces a picture may be cut."""

    max_slice_nums: int = 1


class ChatInput(_MessagePart):
    """All that was said so far, to be answered."""

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
    """Hear this, or answer it."""

    input: DuplexInput | ChatInput


class SessionClose(_MessagePart, tag_field="type", tag="session.close"):
    """Let the session end; for workers only: the server behind one takes it for a breach, and is asked over HTTP."""

    reason: str = "user_stop"


# From the worker


class TokenDetails(Struct, gc=False):
    """What kinds of tokens there were."""

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
    A message of a worker, whichever it is.

    Attributes:
        type: `session.created`, `response.output.delta`, `response.done`, `session.closed` or `error`.
        kind: of a delta: `listen`, `text` or `audio`.
        text: of a delta what is new, of `response.done` all of it.
        diagnostic: why a session was closed, for the operator.
    """

    type: str
    kind: str | None = None
    session_id: str | None = None
    response_id: str | None = None
    text: str | None = None
    audio: bytes | None = None
    reason: str | None = None
    metrics: dict[str, Any] | None = None
    usage: Usage | None = None
    diagnostic: Any = None
    error: Any = None


class Health(Struct, gc=False):
    """
    Answer to `GET /health`, whoever gives it.

    Attributes:
        status: `ready` or `loading` of the Python server, `ok` of the C++ one, `healthy` of a worker.
        worker_status: what it does: `idle`, `loading`, `error`, else it is busy; the C++ server doesn't say.
        engine: `comni` is the C++ server.
    """

    status: str = ""
    worker_status: str | None = None
    active_session_id: str | None = None
    current_session_id: str | None = None
    engine: str | None = None


decode_event = msgspec.json.Decoder(BackendEvent).decode
"""The message in a frame; raises `msgspec.DecodeError` or `UnicodeDecodeError` where there is none."""

decode_health = msgspec.json.Decoder(Health).decode
"""The health in a body; raises as `decode_said` does."""

encode = msgspec.json.Encoder().encode
"""A message as a frame."""
