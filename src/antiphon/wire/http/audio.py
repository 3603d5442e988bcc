"""The types of `/v1/audio`: transcriptions and speech."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, field

from antiphon import errors
from antiphon.wire.codec.reading import Reader, read_query
from antiphon.wire.codec.structure import check_structure
from antiphon.wire.codec.types import Maybe, Opt, Tagged, Wire

TranscriptFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]
SpeechFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]

# Transcriptions


class TranscriptionRequest(Wire, kw_only=True):
    """The form fields beside the audio file."""

    model: str
    language: Opt[str] = UNSET
    languages: Opt[list[str]] = UNSET
    prompt: Opt[str] = UNSET
    keywords: Opt[list[str]] = UNSET
    response_format: TranscriptFormat = "json"
    temperature: Opt[Annotated[float, Meta(ge=0, le=1)]] = UNSET
    timestamp_granularities: Opt[list[Literal["word", "segment"]]] = UNSET
    stream: bool = False
    include: Opt[list[Literal["logprobs"]]] = UNSET
    chunking_strategy: Opt[str] = UNSET
    known_speaker_names: Opt[list[str]] = UNSET
    known_speaker_references: Opt[list[str]] = UNSET


class DurationUsage(Tagged, kw_only=True, tag="duration"):
    """Seconds of audio, rounded up."""

    seconds: int


class Transcription(Wire, kw_only=True):
    """The text of an audio file."""

    text: str
    usage: Opt[DurationUsage] = UNSET


class TranscriptSegment(Wire, kw_only=True):
    """
    A part of an audio file, `start` and `end` in seconds.

    The fields about Whisper's decoding (`seek`, `tokens`, `avg_logprob`, …) have constant values: transcribers don't
    report them.
    """

    id: int
    seek: int = 0
    start: float
    end: float
    text: str
    tokens: list[int] = field(default_factory=list)
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 1.0
    no_speech_prob: float = 0.0


class TranscriptWord(Wire, kw_only=True):
    """A word, `start` and `end` in seconds."""

    word: str
    start: float
    end: float


class VerboseTranscription(Wire, kw_only=True):
    """The text with timestamps; `duration` in seconds, `language` by its English name, empty if unknown."""

    task: Literal["transcribe"] = "transcribe"
    language: str
    duration: float
    text: str
    segments: Opt[list[TranscriptSegment]] = UNSET
    words: Opt[list[TranscriptWord]] = UNSET
    usage: DurationUsage


class TranscriptTextDelta(Tagged, kw_only=True, tag="transcript.text.delta"):
    """More of the text."""

    delta: str


class TranscriptTextDone(Tagged, kw_only=True, tag="transcript.text.done"):
    """The whole text."""

    text: str


TranscriptEvent = TranscriptTextDelta | TranscriptTextDone


def read_transcription_form(fields: Iterable[tuple[str, str]]) -> TranscriptionRequest:
    """
    Decode the fields of a form.

    Empty fields count as absent, as web forms send them. `stream` is lower-cased, as some clients send `True`.

    Raises:
        ClientError: a field is wrong; `param` names it.
    """
    present_fields = ((name, value.lower() if name == "stream" else value) for name, value in fields if value)
    request = read_query(TranscriptionRequest, present_fields)
    if request.timestamp_granularities is not UNSET and request.response_format != "verbose_json":
        raise errors.ClientError(
            "The 'timestamp_granularities' parameter is only allowed when 'response_format' is 'verbose_json'.",
            code="invalid_value",
            param="timestamp_granularities",
        )
    return request


TimedText = tuple[str, float, float]
"""A text, and the seconds of its start and end."""


def to_srt(segments: Sequence[TimedText]) -> str:
    """Subtitles in SubRip format, which no document specifies: a comma before the milliseconds, texts as they are."""
    return "".join(
        f"{number}\n{_timestamp(start, ',')} --> {_timestamp(end, ',')}\n{_cue_text(text)}\n\n"
        for number, (text, start, end) in enumerate(segments, 1)
    )


def to_vtt(segments: Sequence[TimedText]) -> str:
    """
    Subtitles in WebVTT format.

    Source: https://www.w3.org/TR/webvtt1/#syntax
    """
    # A cue's text has no `&` and `<` of its own, and nowhere `-->`.
    escapes = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
    cues = (
        f"{_timestamp(start, '.')} --> {_timestamp(end, '.')}\n{_cue_text(text.translate(escapes))}\n\n" for text, start, end in segments
    )
    return "WEBVTT\n\n" + "".join(cues)


def _cue_text(text: str) -> str:
    # A blank line would end the cue.
    return "\n".join(line for line in text.splitlines() if line.strip())


def _timestamp(seconds: float, separator: str) -> str:
    # Rounded before it is split: 0.9996 s is 1.000, and not 0.1000.
    whole_s, ms = divmod(round(seconds * 1000), 1000)
    return f"{whole_s // 3600:02}:{whole_s // 60 % 60:02}:{whole_s % 60:02}{separator}{ms:03}"


# Speech


class VoiceId(Wire, kw_only=True):
    """A voice by its id."""

    id: str


class SpeechRequest(Wire, kw_only=True):
    """A text to synthesize, within the limits of the Audio reference (`POST /audio/speech`)."""

    model: str
    input: Annotated[str, Meta(min_length=1, max_length=4096)]
    voice: str | VoiceId
    instructions: Maybe[str] = UNSET
    response_format: SpeechFormat = "mp3"
    speed: Annotated[float, Meta(ge=0.25, le=4)] = 1.0
    stream_format: Literal["sse", "audio"] = "audio"

    @property
    def voice_name(self) -> str:
        """The name or id of the voice."""
        return self.voice if isinstance(self.voice, str) else self.voice.id


class SpeechAudioDelta(Tagged, kw_only=True, tag="speech.audio.delta"):
    """More of the audio file, in base64."""

    audio: bytes


class SpeechUsage(Wire, kw_only=True):
    """Token counts of a synthesis."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class SpeechAudioDone(Tagged, kw_only=True, tag="speech.audio.done"):
    """The audio file is complete."""

    usage: SpeechUsage


SpeechEvent = SpeechAudioDelta | SpeechAudioDone

_speech_reader: Reader[SpeechRequest] = Reader(SpeechRequest)


def decode_speech_request(body: bytes) -> SpeechRequest:
    """
    Decode a request body.

    Raises:
        ClientError: it is invalid; `param` says where.
    """
    check_structure(body)
    return _speech_reader.read(body)
