"""`POST /v1/audio/speech`: a text read aloud, sent while it is made."""

import importlib.util
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from antiphon.audio import ms_of
from antiphon.errors import OurFault, unsupported_parameter, unsupported_value
from antiphon.runtime.service import Service
from antiphon.server.audio import models as audio_models
from antiphon.server.audio.streaming import EVENTS, Outlet, Underway, sent
from antiphon.server.http.auth import answering
from antiphon.server.http.body import body_of
from antiphon.speech.base import Mouth, Piece
from antiphon.speech.text.aloud import aloud
from antiphon.speech.text.clauses import Clauses
from antiphon.speech.text.speakable import Speakable
from antiphon.wire.http.audio import SpeechAudioDelta, SpeechAudioDone, SpeechEvent, SpeechRequest, SpeechUsage, decode_speech_request

if TYPE_CHECKING:
    from antiphon.engines.cascade.parts import Parts

MS_PER_TOKEN = 50
"""Sound that is counted as a token, as in conversations."""

CHARACTERS_PER_TOKEN = 4

FORMATS = ("mp3", "opus", "flac", "wav", "pcm")
"""And `aac`, where what that takes is installed."""

USUAL_VOICES = ("fable", "onyx", "nova")
"""Voices that clients know from this route alone; where there is none of that name, the voice that is there speaks."""


class Speak:
    """The endpoint, as a bare ASGI application: its answer is written as it is made."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        service = self._service
        body = await body_of(Request(scope, receive))
        service.live.admit()
        parts = service.speech.parts
        request = decode_speech_request(body)
        _check(request, service.config.speech.voice)
        reading = _Reading(service, request, parts)

        async def work() -> None:
            await service.speech.ready()
            await sent(Outlet(scope, send, reading.media_type), reading.answer())

        async with answering(scope, lambda: reading.usage.total_tokens):
            await Underway().run(scope, service.live, work)


def _check(request: SpeechRequest, model: str) -> None:
    """
    Refuse what the voice can't do.

    Raises:
        ClientMistake: it is asked for.
    """
    audio_models.check(request.model, model, audio_models.SPEAKING)
    if request.instructions:
        raise unsupported_parameter("instructions", request.model)
    formats = (*FORMATS, *(["aac"] if importlib.util.find_spec("av") else []))
    if request.response_format not in formats:
        raise unsupported_value("response_format", request.response_format, request.model, formats)


class _Reading:
    """
    One text, read aloud.

    Attributes:
        media_type: of the answer.
    """

    def __init__(self, service: Service, request: SpeechRequest, parts: "Parts") -> None:
        from antiphon.speech.audio_files import encode as sound_files  # noqa: PLC0415 - its libraries take a while to load, and many servers need none

        if parts.mouth is None:
            raise OurFault("This server has no voice.", status=501, code="speech_not_available")
        self._mouth: Mouth = parts.mouth
        self._request = request
        self._recordings = service.speech.recordings
        voice = request.voice_name
        self._voice = None if voice in USUAL_VOICES and voice not in parts.voices else voice
        self._rate_hz = sound_files.RATE_HZ
        self._kind = request.response_format
        self._sound_ms = 0.0
        self.media_type = EVENTS if request.stream_format == "sse" else sound_files.TYPES[self._kind]

    @property
    def usage(self) -> SpeechUsage:
        """What it came to so far."""
        read = -(-len(self._request.input) // CHARACTERS_PER_TOKEN)
        said = round(self._sound_ms / MS_PER_TOKEN)
        return SpeechUsage(input_tokens=read, output_tokens=said, total_tokens=read + said)

    def answer(self) -> AsyncIterator[bytes] | AsyncIterator[SpeechEvent]:
        """The file, or events with it."""
        return self._events() if self.media_type == EVENTS else self._file()

    async def _events(self) -> AsyncIterator[SpeechEvent]:
        async with aclosing(cast(AsyncGenerator[bytes, None], self._file())) as file:
            async for piece in file:
                if piece:
                    yield SpeechAudioDelta(audio=piece)
        yield SpeechAudioDone(usage=self.usage)

    async def _file(self) -> AsyncIterator[bytes]:
        from antiphon.speech.audio_files import encode as sound_files  # noqa: PLC0415 - as above

        file = sound_files.opened(self._kind)
        async with aclosing(cast(AsyncGenerator[bytes, None], self._sound())) as sound:
            async for pcm in sound:
                self._sound_ms += ms_of(len(pcm), self._rate_hz)
                yield file.take(pcm) if file.is_bare else await self._recordings.write(file, pcm)
        yield await self._recordings.finish(file)

    async def _sound(self) -> AsyncIterator[bytes]:
        from antiphon.speech.dsp.resample import Resampler  # noqa: PLC0415 - as above

        clauses, speakable = Clauses(), Speakable()
        resampler = Resampler(self._mouth.rate_hz, self._rate_hz, live=True)
        for clause in (*clauses.take(self._request.input), *clauses.flush()):
            said = cast(AsyncGenerator[Piece, None], aloud(self._mouth, clause, speakable, self._voice, self._request.speed))
            async with aclosing(said):
                async for piece in said:
                    if pcm := resampler.take(piece.pcm):
                        yield pcm
        if rest := resampler.flush():
            yield rest
