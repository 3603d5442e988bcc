"""`POST /v1/audio/speech`: reads a text aloud and streams the audio while it is made."""

import contextlib
import importlib.util
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from antiphon.audio import OUTPUT_MS_PER_TOKEN, duration_ms
from antiphon.errors import ServerError, model_not_found, unsupported_value
from antiphon.offload import offload
from antiphon.runtime.service import Service
from antiphon.runtime.statistics.usage import UsageMeter
from antiphon.server.audio.streaming import AUDIO_ERRORS, EVENT_STREAM_TYPE, CancellableRequest, HttpResponseWriter, write_all
from antiphon.server.http.auth import request_caller, track_response
from antiphon.server.http.body import read_json_body
from antiphon.server.http.operation import BODY_ERRORS, Operation
from antiphon.speech.base import Synthesizer
from antiphon.speech.text.clauses import ClauseSplitter, ends_melody
from antiphon.speech.text.speakable import TextNormalizer, synthesize_clause
from antiphon.wire.http.audio import (
    SpeechAudioDelta,
    SpeechAudioDone,
    SpeechEvent,
    SpeechFormat,
    SpeechRequest,
    SpeechUsage,
    decode_speech_request,
)

if TYPE_CHECKING:
    from antiphon.engines.cascade.parts import SpeechStack

OPERATION = Operation(
    "createSpeech",
    "Audio",
    "Read a text aloud",
    request_type=SpeechRequest,
    event_type=SpeechEvent,
    errors=BODY_ERRORS | AUDIO_ERRORS,
    description="The audio is sent while it is made: as a file, or with `stream_format` `sse` as events.",
    media_types=("audio/*",),
)

MODEL_ALIASES = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15")
"""OpenAI's models. Clients name them, and get the server's voice."""

CHARACTERS_PER_TOKEN = 4
"""For the usage, as a voice counts no tokens."""

MEDIA_TYPES: dict[SpeechFormat, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "aac": "audio/aac",
}
"""The formats and their media types; `aac` needs PyAV."""

DEFAULT_VOICE_ALIASES = ("fable", "onyx", "nova")
"""Voices that OpenAI has on this route only. Where the server has none of that name, its default voice speaks."""


class SpeechEndpoint:
    """A bare ASGI endpoint, so that it can stream its answer."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        body = await read_json_body(Request(scope, receive))
        service.live_sessions.check_admission()
        stack = service.speech.stack
        request = await offload(len(body), decode_speech_request, body)
        _check_request(request, service.config.speech.voice)
        synthesis = _SpeechSynthesis(service, request, stack)

        async def work() -> None:
            # Here, as it takes seconds after a start, in which the client may leave or the server stop.
            await service.speech.load()
            await write_all(HttpResponseWriter(scope, send, synthesis.media_type), synthesis.body())

        meter = UsageMeter(request_caller(scope).key_id, service.config.speech.voice, "speech")
        async with track_response(scope, lambda: synthesis.usage.total_tokens):
            with service.usage.track(meter), synthesis.count(meter):
                await CancellableRequest().run(scope, service.live_sessions, work)


def _check_request(request: SpeechRequest, model: str) -> None:
    """
    Refuse what the voice can't do.

    Raises:
        ClientError: the request asks for it.
    """
    if request.model not in (models := (model, *MODEL_ALIASES)):
        raise model_not_found(request.model, models)
    # `instructions` are a hint of how to speak, which no voice here can act on.
    formats = [name for name in MEDIA_TYPES if name != "aac" or importlib.util.find_spec("av")]
    if request.response_format not in formats:
        raise unsupported_value("response_format", request.response_format, None, formats)


class _SpeechSynthesis:
    """
    One text, read aloud.

    Attributes:
        media_type: of the answer.
    """

    def __init__(self, service: Service, request: SpeechRequest, stack: "SpeechStack") -> None:
        if stack.synthesizer is None:
            raise ServerError("This server has no text to speech.", status=501, code="speech_not_available")
        self._synthesizer: Synthesizer = stack.synthesizer
        self._request = request
        self._audio_files = service.speech.audio_files
        voice = request.voice_name
        self._voice = None if voice in DEFAULT_VOICE_ALIASES and voice not in stack.voices else voice
        self._audio_ms = 0.0
        self.media_type = EVENT_STREAM_TYPE if request.stream_format == "sse" else MEDIA_TYPES[request.response_format]

    @property
    def usage(self) -> SpeechUsage:
        """Tokens so far: four characters of input are one, and so are 50 ms of audio."""
        input_tokens = -(-len(self._request.input) // CHARACTERS_PER_TOKEN)
        output_tokens = round(self._audio_ms / OUTPUT_MS_PER_TOKEN)
        return SpeechUsage(input_tokens=input_tokens, output_tokens=output_tokens, total_tokens=input_tokens + output_tokens)

    @contextlib.contextmanager
    def count(self, meter: UsageMeter) -> Iterator[None]:
        """Count what it used, however it ends."""
        try:
            yield
        except Exception:  # a client that leaves is no error, and `CancelledError` no `Exception`
            meter.errors += 1
            raise
        finally:
            meter.requests += 1
            meter.input_tokens += self.usage.input_tokens
            meter.output_tokens += self.usage.output_tokens
            meter.output_audio_s += self._audio_ms / 1000

    def body(self) -> AsyncGenerator[bytes, None] | AsyncGenerator[SpeechEvent, None]:
        """The audio file in chunks, or events with its chunks."""
        return self._events() if self.media_type == EVENT_STREAM_TYPE else self._file()

    async def _events(self) -> AsyncGenerator[SpeechEvent, None]:
        # Closed with this generator: a client that leaves stops the voice.
        async with aclosing(self._file()) as file:
            async for piece in file:
                if piece:
                    yield SpeechAudioDelta(audio=piece)
        yield SpeechAudioDone(usage=self.usage)

    def _file(self) -> AsyncGenerator[bytes, None]:
        return self._audio_files.encode(self._synthesize(), self._synthesizer.rate_hz, self._request.response_format)

    async def _synthesize(self) -> AsyncGenerator[bytes, None]:
        clauses, speakable = ClauseSplitter(), TextNormalizer()
        # A clause within a sentence is spoken as a part of it: by itself it would end in a fall and a pause (record 0045).
        complete = [(clause, not ends_melody(clause)) for clause in clauses.feed(self._request.input)]
        for clause, continues in (*complete, *((clause, False) for clause in clauses.flush())):
            speech = synthesize_clause(self._synthesizer, clause, speakable, self._voice, self._request.speed, continues=continues)
            async with aclosing(speech) as chunks:
                async for chunk in chunks:
                    self._audio_ms += duration_ms(len(chunk.pcm), self._synthesizer.rate_hz)
                    yield chunk.pcm
