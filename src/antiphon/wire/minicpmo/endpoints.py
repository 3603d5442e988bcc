"""HTTP types for MiniCPM-o's pages and clients: presets, voices, and a page's defaults."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta

from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.structure import check_structure
from antiphon.wire.codec.types import Opt, Tagged, Wire

MAX_VOICE_NAME_CHARACTERS = 100

MAX_UPLOAD_BYTES = 10 << 20
"""Size of a voice file: a minute in any format."""


class PresetTextPart(Tagged, kw_only=True, tag="text"):
    """A text part of the system prompt."""

    text: str


class PresetAudioPart(Tagged, kw_only=True, tag="audio"):
    """An audio part of the system prompt, without its audio; `duration` in seconds, `path` is the file name."""

    name: str
    path: str
    duration: float


class PresetReference(Wire, kw_only=True):
    """The voice to speak with, without its audio; `duration` in seconds, `path` is the file name."""

    name: str
    path: str
    duration: float


class Preset(Wire, kw_only=True):
    """Initial settings of a session."""

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
    """Audio: float32 mono at 16 kHz, in base64; `duration` in seconds."""

    data: bytes
    name: str
    duration: float


class PresetAudio(Wire, kw_only=True):
    """The audio of a preset: the parts of `system_content` in order, and the voice."""

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
    """A saved voice; `created_at` in ISO 8601."""

    id: str
    name: str
    source_type: Literal["upload"] = "upload"
    duration_ms: int
    sample_rate: int = 16_000
    created_at: str


class VoiceList(Wire, kw_only=True):
    """The saved voices, oldest first."""

    total: int
    ref_audios: list[Voice]


class VoiceUpload(Wire, kw_only=True):
    """A voice to save: an audio file in base64."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_VOICE_NAME_CHARACTERS)]
    audio_base64: bytes


class VoiceUploadResult(Wire, kw_only=True):
    """The result of saving or deleting a voice."""

    success: Literal[True] = True
    id: str
    name: str
    message: str = ""


class FrontendDefaults(Wire, kw_only=True):
    """Default settings of a page."""

    playback_delay_ms: int = 200


_upload_reader: Reader[VoiceUpload] = Reader(VoiceUpload)


def decode_voice_upload(body: bytes) -> VoiceUpload:
    """
    Decode a request body.

    Raises:
        ClientError: it is invalid; `param` says where.
    """
    check_structure(body)
    return _upload_reader.read(body)
