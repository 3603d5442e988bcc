"""What the pages and clients of MiniCPM-o ask for over HTTP: presets, voices to speak with, and what a page begins with."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta

from antiphon.wire.codec.reading import Reader, check_depth
from antiphon.wire.codec.types import Opt, Tagged, Wire

MAX_VOICE_NAME_CHARACTERS = 100

MAX_UPLOAD_BYTES = 10 << 20
"""Of a file with a voice: a minute of it in any format that there is."""


class PresetTextPart(Tagged, kw_only=True, tag="text"):
    """What the model is told, in writing."""

    text: str


class PresetAudioPart(Tagged, kw_only=True, tag="audio"):
    """What the model is told, as sound, which is to be had apart; `duration` in seconds, `path` the file's name."""

    name: str
    path: str
    duration: float


class PresetReference(Wire, kw_only=True):
    """The voice to speak with, whose sound is to be had apart; `duration` in seconds, `path` the file's name."""

    name: str
    path: str
    duration: float


class Preset(Wire, kw_only=True):
    """What a session may begin with."""

    id: str
    name: str
    description: str = ""
    order: int = 999
    system_prompt: Opt[str] = UNSET
    system_content: Opt[list[PresetTextPart | PresetAudioPart]] = UNSET
    ref_audio: Opt[PresetReference] = UNSET


Presets = dict[str, list[Preset]]
"""Presets by the mode that they are for."""


class PcmFile(Wire, kw_only=True):
    """Sound: float32 mono at 16 kHz, in base64; `duration` in seconds."""

    data: bytes
    name: str
    duration: float


class PresetAudio(Wire, kw_only=True):
    """The sound of a preset: that of its `system_content`, in its order, and its voice."""

    system_content_audio: Opt[list[PcmFile]] = UNSET
    ref_audio: Opt[PcmFile] = UNSET


class ReferenceAudio(Wire, kw_only=True):
    """A voice to speak with: float32 mono, in base64; `duration` in seconds."""

    name: str
    duration: float
    sample_rate: int = 16_000
    samples: int
    base64: bytes


class Voice(Wire, kw_only=True):
    """A voice that was kept; `created_at` as ISO 8601 has it."""

    id: str
    name: str
    source_type: Literal["upload"] = "upload"
    duration_ms: int
    sample_rate: int = 16_000
    created_at: str


class VoiceList(Wire, kw_only=True):
    """The voices that were kept, the oldest first."""

    total: int
    ref_audios: list[Voice]


class VoiceUpload(Wire, kw_only=True):
    """A voice to keep: a file of sound, in base64."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_VOICE_NAME_CHARACTERS)]
    audio_base64: bytes


class VoiceUploadResult(Wire, kw_only=True):
    """What became of a voice."""

    success: Literal[True] = True
    id: str
    name: str
    message: str = ""


class FrontendDefaults(Wire, kw_only=True):
    """What a page begins with."""

    playback_delay_ms: int = 200


_upload_reader: Reader[VoiceUpload] = Reader(VoiceUpload)


def decode_voice_upload(body: bytes) -> VoiceUpload:
    """
    The voice in `body`.

    Raises:
        ClientError: it is none; `param` says where.
    """
    check_depth(body)
    return _upload_reader.read(body)
