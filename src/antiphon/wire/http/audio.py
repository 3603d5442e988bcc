"""What `/v1/audio` takes and gives: recordings written down, and texts read aloud."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, field

from antiphon import errors
from antiphon.wire.codec.reading import Reader, check_depth, read_query
from antiphon.wire.codec.types import Maybe, Opt, Tagged, Wire

TranscriptFormat = Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"]
SpeechFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]

# Recordings written down


class TranscriptionRequest(Wire, kw_only=True):
    """The fields that come with a recording, in a form."""

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
    """What a transcription is counted as: whole seconds of sound, the last one begun counted too."""

    seconds: int


class Transcription(Wire, kw_only=True):
    """What is said in a recording."""

    text: str
    usage: Opt[DurationUsage] = UNSET


class TranscriptSegment(Wire, kw_only=True):
    """
    A stretch of a recording, `start` and `end` in seconds.

    What Whisper tells of its own work beside that has the same values always: ears don't tell it.
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
    """What is said in a recording, and when; `duration` in seconds, `language` as a code, empty where nobody knows it."""

    task: Literal["transcribe"] = "transcribe"
    language: str
    duration: float
    text: str
    segments: Opt[list[TranscriptSegment]] = UNSET
    words: Opt[list[TranscriptWord]] = UNSET
    usage: DurationUsage


class TranscriptTextDelta(Tagged, kw_only=True, tag="transcript.text.delta"):
    """More of what is said."""

    delta: str


class TranscriptTextDone(Tagged, kw_only=True, tag="transcript.text.done"):
    """All that is said."""

    text: str


TranscriptEvent = TranscriptTextDelta | TranscriptTextDone


def read_transcription_form(fields: Iterable[tuple[str, str]]) -> TranscriptionRequest:
    """
    The request in a form's fields. One that is empty is not filled in, as in the forms of pages; `True` is how some clients write it.

    Raises:
        ClientError: it is none; `param` says where.
    """
    filled = ((name, value.lower() if name == "stream" else value) for name, value in fields if value)
    request = read_query(TranscriptionRequest, filled)
    if request.timestamp_granularities is not UNSET and request.response_format != "verbose_json":
        raise errors.ClientError(
            "The 'timestamp_granularities' parameter is only allowed when 'response_format' is 'verbose_json'.",
            code="invalid_value",
            param="timestamp_granularities",
        )
    return request


TimedText = tuple[str, float, float]
"""A text, and the seconds from which and up to which it is said."""


def to_srt(segments: Sequence[TimedText]) -> str:
    """Subtitles as SubRip has them."""
    return "".join(
        f"{number}\n{_timestamp(start, ',')} --> {_timestamp(end, ',')}\n{text}\n\n"
        for number, (text, start, end) in enumerate(segments, 1)
    )


def to_vtt(segments: Sequence[TimedText]) -> str:
    """
    Subtitles as the web has them.

    Source: https://www.w3.org/TR/webvtt1/#syntax
    """
    escapes = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
    cues = (f"{_timestamp(start, '.')} --> {_timestamp(end, '.')}\n{text.translate(escapes)}\n\n" for text, start, end in segments)
    return "WEBVTT\n\n" + "".join(cues)


def _timestamp(seconds: float, separator: str) -> str:
    whole_s, ms = divmod(round(seconds * 1000), 1000)
    return f"{whole_s // 3600:02}:{whole_s // 60 % 60:02}:{whole_s % 60:02}{separator}{ms:03}"


# Texts read aloud


class VoiceId(Wire, kw_only=True):
    """A voice by its id."""

    id: str


class SpeechRequest(Wire, kw_only=True):
    """A text to be read aloud."""

    model: str
    input: Annotated[str, Meta(min_length=1, max_length=4096)]
    voice: str | VoiceId
    instructions: Maybe[str] = UNSET
    response_format: SpeechFormat = "mp3"
    speed: Annotated[float, Meta(ge=0.25, le=4)] = 1.0
    stream_format: Literal["sse", "audio"] = "audio"

    @property
    def voice_name(self) -> str:
        """The voice, however it was given."""
        return self.voice if isinstance(self.voice, str) else self.voice.id


class SpeechAudioDelta(Tagged, kw_only=True, tag="speech.audio.delta"):
    """More of the file, in base64."""

    audio: bytes


class SpeechUsage(Wire, kw_only=True):
    """What a reading is counted as."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class SpeechAudioDone(Tagged, kw_only=True, tag="speech.audio.done"):
    """The file is whole."""

    usage: SpeechUsage


SpeechEvent = SpeechAudioDelta | SpeechAudioDone

_speech_reader: Reader[SpeechRequest] = Reader(SpeechRequest)


def decode_speech_request(body: bytes) -> SpeechRequest:
    """
    The request in `body`.

    Raises:
        ClientError: it is none; `param` says where.
    """
    check_depth(body)
    return _speech_reader.read(body)
