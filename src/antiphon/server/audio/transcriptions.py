"""`POST /v1/audio/transcriptions`: transcribes a recording, whole or as a stream."""

import contextlib
import math
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import UNSET, Meta, Raw
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from antiphon.engine_api.options import Transcription as TranscriptionOptions
from antiphon.errors import invalid_value, model_not_found, mutually_exclusive, unsupported_parameter, unsupported_value
from antiphon.runtime.service import Service
from antiphon.runtime.statistics.usage import UsageMeter
from antiphon.server.audio.form import FILE_LIMIT_BYTES, read_form
from antiphon.server.audio.languages import language_name
from antiphon.server.audio.streaming import AUDIO_ERRORS, EVENT_STREAM_TYPE, CancellableRequest, HttpResponseWriter, write_all
from antiphon.server.http.auth import request_caller, track_response
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import COMPRESSED_BODY, Operation
from antiphon.speech.base import TimedText, TranscriptChunk, join_text
from antiphon.wire.codec.types import encode
from antiphon.wire.http.audio import (
    DurationUsage,
    TranscriptEvent,
    Transcription,
    TranscriptionRequest,
    TranscriptSegment,
    TranscriptTextDelta,
    TranscriptTextDone,
    TranscriptWord,
    VerboseTranscription,
    read_transcription_form,
    to_srt,
    to_vtt,
)

if TYPE_CHECKING:
    from antiphon.engines.cascade.parts import SpeechStack


class TranscriptionForm(TranscriptionRequest, kw_only=True):
    """A form with an audio file."""

    file: Annotated[Raw, Meta(extra_json_schema={"type": "string", "contentMediaType": "application/octet-stream"})]


OPERATION = Operation(
    "createTranscription",
    "Audio",
    "Transcribe an audio file",
    Transcription,
    TranscriptionForm,
    TranscriptEvent,
    AUDIO_ERRORS | COMPRESSED_BODY | {413: f"The file is over {FILE_LIMIT_BYTES >> 20} MiB."},
    description="WAV, FLAC, MP3 or Ogg, of two hours at most. With `stream`, each part of the text is sent as soon as it is transcribed. "
    "With `response_format` `verbose_json` the response also has `segments` and `words`; `text`, `srt` and `vtt` are plain text.",
    media_types=("text/plain",),
    request_media_types=("multipart/form-data",),
)

MODEL_ALIASES = (
    "whisper-1",
    "gpt-transcribe",
    "gpt-4o-transcribe",
    "gpt-4o-mini-transcribe",
    "gpt-4o-mini-transcribe-2025-12-15",
)
"""
OpenAI's models. Clients name them, and get the server's transcriber. Those that tell speakers apart are left out, as no
transcriber here can.
"""

TOKENS_PER_S = 20
"""What a second of audio counts as, the same as in conversations."""

FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
STREAMING_FORMATS = ("json", "text")


class TranscriptionEndpoint:
    """A bare ASGI endpoint, so that it can stream its answer."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        # These first: they may refuse the request before 25 MiB are read.
        service.live_sessions.check_admission()
        stack = service.speech.stack
        audio_files = service.speech.audio_files
        form = await read_form(Request(scope, receive))
        request = read_transcription_form(form.fields)
        _check_request(request, service.config.speech.stt)
        job = _TranscriptionJob(request, stack)

        async def work() -> None:
            # Here, as it takes seconds after a start, in which the client may leave or the server stop.
            await service.speech.load()
            job.start(audio_files.decode(form.file))
            if request.stream:
                await write_all(HttpResponseWriter(scope, send, EVENT_STREAM_TYPE), job.events())
            else:
                await (await job.response())(scope, receive, send)

        meter = UsageMeter(request_caller(scope).key_id, service.config.speech.stt, "transcriptions")
        async with track_response(scope, lambda: job.tokens):
            with service.usage.track(meter), job.count(meter):
                await CancellableRequest().run(scope, service.live_sessions, work)


def _check_request(request: TranscriptionRequest, model: str) -> None:
    """
    Refuse what no transcriber supports.

    Raises:
        ClientError: the request asks for it.
    """
    if request.model not in (models := (model, *MODEL_ALIASES)):
        raise model_not_found(request.model, models)
    # The events of a stream have text alone, and no times.
    formats = STREAMING_FORMATS if request.stream else FORMATS
    if request.response_format not in formats:
        raise unsupported_value("response_format", request.response_format, None, formats)
    # Without these the answer would be another one. Hints, such as `prompt` or `temperature`, are accepted without effect.
    unsupported_params = {
        "include": bool(request.include),
        "known_speaker_names": bool(request.known_speaker_names),
        "known_speaker_references": bool(request.known_speaker_references),
    }
    for param, is_set in unsupported_params.items():
        if is_set:
            raise unsupported_parameter(param, None)
    if request.chunking_strategy and not _is_chunking_strategy(request.chunking_strategy):
        raise invalid_value("chunking_strategy", request.chunking_strategy, ["auto", "server_vad"])
    if request.language and request.languages:
        raise mutually_exclusive("languages", ("language", "languages"))


def _is_chunking_strategy(text: str) -> bool:
    """
    Whether it is one of OpenAI's: a hint, as recordings are always cut where they are quietest.

    In a form the object is JSON, if it is not spread over fields as `chunking_strategy[type]`.
    """
    if text in ("auto", "server_vad"):
        return True
    try:
        strategy = msgspec.json.decode(text, type=dict)
    except msgspec.DecodeError:
        return False
    return strategy.get("type") == "server_vad"


def _transcription_options(request: TranscriptionRequest) -> TranscriptionOptions:
    return TranscriptionOptions(
        languages=tuple(request.languages or ()) or ((request.language,) if request.language else ()),
        prompt=request.prompt or None,
        keywords=tuple(request.keywords or ()),
        word_times="word" in (request.timestamp_granularities or ()),
    )


class _TranscriptionJob:
    """Transcribes one recording."""

    def __init__(self, request: TranscriptionRequest, stack: "SpeechStack") -> None:
        self._stack = stack
        self._request = request
        self._options = _transcription_options(request)
        self._chunks: list[TranscriptChunk] = []

    def start(self, audio: AsyncIterator[bytes]) -> None:
        """
        Start transcribing.

        Args:
            audio: the recording, decoded.

        Raises:
            ApiError: there is no transcriber, or it doesn't support an option.
        """
        self._chunk_stream = self._stack.transcribe_long(audio, self._options)

    @property
    def tokens(self) -> int:
        """Tokens of what was transcribed so far, as they count against the limits of the key."""
        return math.ceil(self._duration_s * TOKENS_PER_S) + sum(chunk.transcript.tokens for chunk in self._chunks)

    @contextlib.contextmanager
    def count(self, meter: UsageMeter) -> Iterator[None]:
        """Count what it used, however it ends."""
        try:
            yield
        except Exception:  # a client that leaves is no error, and `CancelledError` no `Exception`
            meter.errors += 1
            raise
        finally:
            text_tokens = sum(chunk.transcript.tokens for chunk in self._chunks)
            meter.requests += 1
            meter.input_tokens += self.tokens - text_tokens
            meter.output_tokens += text_tokens
            meter.input_audio_s += self._duration_s

    @property
    def _duration_s(self) -> float:
        return self._chunks[-1].end_s if self._chunks else 0.0

    @property
    def _text(self) -> str:
        return join_text(self._chunks)

    async def events(self) -> AsyncIterator[TranscriptTextDelta | TranscriptTextDone]:
        """The transcript in deltas, and then whole."""
        async for chunk in self._chunk_stream:
            # Joined as `join_text` does it, so that the deltas add up to the whole text.
            if chunk.transcript.text:
                yield TranscriptTextDelta(delta=(" " if self._text else "") + chunk.transcript.text)
            self._chunks.append(chunk)
        yield TranscriptTextDone(text=self._text)

    async def response(self) -> Response:
        """The whole transcript in the requested format."""
        async for chunk in self._chunk_stream:
            self._chunks.append(chunk)
        match self._request.response_format:
            case "text":
                return PlainTextResponse(self._text + "\n")
            case "srt":
                return PlainTextResponse(to_srt([_cue(each) for each in self._segments]))
            case "vtt":
                return PlainTextResponse(to_vtt([_cue(each) for each in self._segments]))
            case "verbose_json":
                return json_response(encode(self._verbose()))
            case _:
                return json_response(encode(Transcription(text=self._text, usage=self._usage)))

    @property
    def _usage(self) -> DurationUsage:
        return DurationUsage(seconds=math.ceil(self._duration_s))

    @property
    def _segments(self) -> list[TimedText]:
        return [segment for chunk in self._chunks for segment in chunk.segments]

    def _verbose(self) -> VerboseTranscription:
        granularities = self._request.timestamp_granularities or ["segment"]
        # What the transcriber heard counts before what the request expected.
        language = next((chunk.transcript.language for chunk in self._chunks if chunk.transcript.language), None)
        return VerboseTranscription(
            language=language_name(language or next(iter(self._options.languages), "")),
            duration=round(self._duration_s, 3),
            text=self._text,
            segments=_segments(self._segments) if "segment" in granularities else UNSET,
            words=[_word(word) for chunk in self._chunks for word in chunk.words] if "word" in granularities else UNSET,
            usage=self._usage,
        )


def _cue(segment: TimedText) -> tuple[str, float, float]:
    return segment.text, segment.start_s, segment.end_s


def _segments(segments: list[TimedText]) -> list[TranscriptSegment]:
    return [
        TranscriptSegment(id=number, start=round(each.start_s, 3), end=round(each.end_s, 3), text=each.text)
        for number, each in enumerate(segments)
    ]


def _word(word: TimedText) -> TranscriptWord:
    return TranscriptWord(word=word.text, start=round(word.start_s, 3), end=round(word.end_s, 3))
