"""`POST /v1/audio/speech`: a text read aloud, sent while it is made."""

import importlib.util
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from antiphon.audio import duration_ms
from antiphon.errors import ServerError, unsupported_parameter, unsupported_value
from antiphon.runtime.service import Service
from antiphon.server.audio import models as audio_models
from antiphon.server.audio.streaming import EVENT_STREAM_TYPE, CancellableRequest, HttpResponseWriter, write_all
from antiphon.server.http.auth import track_response
from antiphon.server.http.body import read_json_body
from antiphon.speech.base import AudioChunk, Synthesizer
from antiphon.speech.text.aloud import synthesize_clause
from antiphon.speech.text.clauses import ClauseSplitter
from antiphon.speech.text.speakable import TextNormalizer
from antiphon.wire.http.audio import SpeechAudioDelta, SpeechAudioDone, SpeechEvent, SpeechRequest, SpeechUsage, decode_speech_request

if TYPE_CHECKING:
    from antiphon.engines.cascade.parts import SpeechStack

MS_PER_TOKEN = 50
"""Sound that is counted as a token, as in conversations."""

CHARACTERS_PER_TOKEN = 4

FORMATS = ("mp3", "opus", "flac", "wav", "pcm")
"""And `aac`, where what that takes is installed."""

DEFAULT_VOICE_ALIASES = ("fable", "onyx", "nova")
"""Voices that clients know from this route alone; where there is none of that name, the voice that is there speaks."""


class SpeechEndpoint:
    """The endpoint, as a bare ASGI application: its answer is written as it is made."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        service = self._service
        body = await read_json_body(Request(scope, receive))
        service.live_sessions.check_admission()
        parts = service.speech.stack
        request = decode_speech_request(body)
        _check_request(request, service.config.speech.voice)
        reading = _SpeechSynthesis(service, request, parts)

        async def work() -> None:
            await service.speech.load()
            await write_all(HttpResponseWriter(scope, send, reading.media_type), reading.body())

        async with track_response(scope, lambda: reading.usage.total_tokens):
            await CancellableRequest().run(scope, service.live_sessions, work)


def _check_request(request: SpeechRequest, model: str) -> None:
    """
    Refuse what the voice can't do.

    Raises:
        ClientError: it is asked for.
    """
    audio_models.check_model(request.model, model, audio_models.SPEECH_MODELS)
    if request.instructions:
        raise unsupported_parameter("instructions", request.model)
    formats = (*FORMATS, *(["aac"] if importlib.util.find_spec("av") else []))
    if request.response_format not in formats:
        raise unsupported_value("response_format", request.response_format, request.model, formats)


class _SpeechSynthesis:
    """
    One text, read aloud.

    Attributes:
        media_type: of the answer.
    """

    def __init__(self, service: Service, request: SpeechRequest, stack: "SpeechStack") -> None:
        from antiphon.speech.audio_files import encode  # noqa: PLC0415 - its libraries take a while to load, and many servers need none

        if stack.synthesizer is None:
            raise ServerError("This server has no voice.", status=501, code="speech_not_available")
        self._synthesizer: Synthesizer = stack.synthesizer
        self._request = request
        self._audio_files = service.speech.audio_files
        voice = request.voice_name
        self._voice = None if voice in DEFAULT_VOICE_ALIASES and voice not in stack.voices else voice
        self._rate_hz = encode.RATE_HZ
        self._format = request.response_format
        self._audio_ms = 0.0
        self.media_type = EVENT_STREAM_TYPE if request.stream_format == "sse" else encode.MEDIA_TYPES[self._format]

    @property
    def usage(self) -> SpeechUsage:
        """What it came to so far."""
        read = -(-len(self._request.input) // CHARACTERS_PER_TOKEN)
        said = round(self._audio_ms / MS_PER_TOKEN)
        return SpeechUsage(input_tokens=read, output_tokens=said, total_tokens=read + said)

    def body(self) -> AsyncIterator[bytes] | AsyncIterator[SpeechEvent]:
        """The file, or events with it."""
        return self._events() if self.media_type == EVENT_STREAM_TYPE else self._file()

    async def _events(self) -> AsyncIterator[SpeechEvent]:
        async with aclosing(cast(AsyncGenerator[bytes, None], self._file())) as file:
            async for piece in file:
                if piece:
                    yield SpeechAudioDelta(audio=piece)
        yield SpeechAudioDone(usage=self.usage)

    async def _file(self) -> AsyncIterator[bytes]:
        from antiphon.speech.audio_files import encode  # noqa: PLC0415 - as above

        file = encode.open_encoder(self._format)
        async with aclosing(cast(AsyncGenerator[bytes, None], self._synthesize())) as sound:
            async for pcm in sound:
                self._audio_ms += duration_ms(len(pcm), self._rate_hz)
                yield file.encode(pcm) if file.is_passthrough else await self._audio_files.encode(file, pcm)
        yield await self._audio_files.finish_encoding(file)

    async def _synthesize(self) -> AsyncIterator[bytes]:
        from antiphon.speech.dsp.resample import Resampler  # noqa: PLC0415 - as above

        clauses, speakable = ClauseSplitter(), TextNormalizer()
        resampler = Resampler(self._synthesizer.rate_hz, self._rate_hz, live=True)
        for clause in (*clauses.feed(self._request.input), *clauses.flush()):
            said = cast(
                AsyncGenerator[AudioChunk, None], synthesize_clause(self._synthesizer, clause, speakable, self._voice, self._request.speed)
            )
            async with aclosing(said):
                async for piece in said:
                    if pcm := resampler.process(piece.pcm):
                        yield pcm
        if rest := resampler.flush():
            yield rest
