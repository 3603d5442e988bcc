"""`POST /v1/audio/transcriptions`: a recording written down, whole or as it is heard."""

import math
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from antiphon.engine_api.options import Transcription as Wish
from antiphon.errors import OurFault, mutually_exclusive, unsupported_parameter, unsupported_value
from antiphon.runtime.service import Service
from antiphon.server.audio import models as audio_models
from antiphon.server.audio.form import form_of
from antiphon.server.audio.streaming import EVENTS, Outlet, Underway, sent
from antiphon.server.http.auth import answering
from antiphon.server.http.errors import json_reply
from antiphon.speech.base import Ear, Segment
from antiphon.wire.codec.types import encode
from antiphon.wire.http.audio import (
    DurationUsage,
    Transcription,
    TranscriptionRequest,
    TranscriptSegment,
    TranscriptTextDelta,
    TranscriptTextDone,
    TranscriptWord,
    VerboseTranscription,
    read_transcription_form,
    srt,
    vtt,
)

if TYPE_CHECKING:
    from antiphon.engines.cascade.parts import Parts
    from antiphon.speech.stt.long_form import Passage

TOKENS_PER_S = 20
"""Tokens that a second of sound is counted as, as in conversations."""

FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
STREAMED_FORMATS = ("json", "text")


class Transcribe:
    """The endpoint, as a bare ASGI application: its answer may be written as it is made."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        service = self._service
        service.live.admit()
        parts = service.speech.parts
        recordings = service.speech.recordings
        form = await form_of(Request(scope, receive))
        request = read_transcription_form(form.fields)
        _check(request, service.config.speech.ears)
        writing = _Writing(request, parts)

        async def work() -> None:
            await service.speech.ready()
            writing.hear(recordings.sound(form.file))
            if request.stream:
                await sent(Outlet(scope, send, EVENTS), writing.events())
            else:
                await (await writing.whole())(scope, receive, send)

        async with answering(scope, lambda: writing.tokens):
            await Underway().run(scope, service.live, work)


def _check(request: TranscriptionRequest, model: str) -> None:
    """
    Refuse what no ear does, whichever it is.

    Raises:
        ClientMistake: it is asked for.
    """
    audio_models.check(request.model, model, audio_models.HEARING)
    formats = STREAMED_FORMATS if request.stream else FORMATS
    if request.response_format not in formats:
        raise unsupported_value("response_format", request.response_format, request.model, formats)
    refused = {
        "include": bool(request.include),
        "temperature": bool(request.temperature),
        "known_speaker_names": bool(request.known_speaker_names),
        "known_speaker_references": bool(request.known_speaker_references),
    }
    for param, is_refused in refused.items():
        if is_refused:
            raise unsupported_parameter(param, request.model)
    if request.chunking_strategy not in (UNSET, "", "auto"):
        raise unsupported_value("chunking_strategy", request.chunking_strategy, request.model, ["auto"])
    if request.language and request.languages:
        raise mutually_exclusive("languages", ("language", "languages"))


def _wish(request: TranscriptionRequest) -> Wish:
    return Wish(
        languages=tuple(request.languages or ()) or ((request.language,) if request.language else ()),
        prompt=request.prompt or None,
        keywords=tuple(request.keywords or ()),
        word_times="word" in (request.timestamp_granularities or ()),
    )


class _Writing:
    """One recording, written down."""

    def __init__(self, request: TranscriptionRequest, parts: "Parts") -> None:
        if parts.ear is None:
            raise OurFault("This server has no ears.", status=501, code="speech_not_available")
        self._ear: Ear = parts.ear
        self._request = request
        self._wish = _wish(request)
        self._passages: list[Passage] = []

    def hear(self, sound: AsyncIterator[bytes]) -> None:
        """
        The recording that is to be written down.

        Raises:
            ClientMistake: the ear can't do what is wished.
        """
        from antiphon.speech.stt.long_form import dictated  # noqa: PLC0415 - its libraries take a while to load, and many servers need none

        self._ear.check(self._wish)
        self._told = dictated(self._ear, sound, self._wish)

    @property
    def tokens(self) -> int:
        """What it is counted as."""
        return math.ceil(self._seconds * TOKENS_PER_S) + sum(passage.transcript.tokens for passage in self._passages)

    @property
    def _seconds(self) -> float:
        return self._passages[-1].end_s if self._passages else 0.0

    @property
    def _text(self) -> str:
        return " ".join(passage.transcript.text for passage in self._passages if passage.transcript.text)

    async def events(self) -> AsyncIterator[TranscriptTextDelta | TranscriptTextDone]:
        """What is said, a stretch at a time, and then all of it."""
        async for passage in self._told:
            if passage.transcript.text:
                yield TranscriptTextDelta(delta=(" " if self._text else "") + passage.transcript.text)
            self._passages.append(passage)
        yield TranscriptTextDone(text=self._text)

    async def whole(self) -> Response:
        """All that is said, in the form that was asked for."""
        async for passage in self._told:
            self._passages.append(passage)
        match self._request.response_format:
            case "text":
                return PlainTextResponse(self._text + "\n")
            case "srt":
                return PlainTextResponse(srt([_timed(each) for each in self._segments]))
            case "vtt":
                return PlainTextResponse(vtt([_timed(each) for each in self._segments]))
            case "verbose_json":
                return json_reply(encode(self._verbose()))
            case _:
                return json_reply(encode(Transcription(text=self._text, usage=self._usage)))

    @property
    def _usage(self) -> DurationUsage:
        return DurationUsage(seconds=math.ceil(self._seconds))

    @property
    def _segments(self) -> list[Segment]:
        return [segment for passage in self._passages for segment in passage.segments]

    def _verbose(self) -> VerboseTranscription:
        wanted = self._request.timestamp_granularities or ["segment"]
        heard_in = next((passage.transcript.language for passage in self._passages if passage.transcript.language), None)
        return VerboseTranscription(
            language=heard_in or next(iter(self._wish.languages), ""),
            duration=round(self._seconds, 3),
            text=self._text,
            segments=_segments(self._segments) if "segment" in wanted else UNSET,
            words=[_word(word) for passage in self._passages for word in passage.words] if "word" in wanted else UNSET,
            usage=self._usage,
        )


def _timed(segment: Segment) -> tuple[str, float, float]:
    return segment.text, segment.start_s, segment.end_s


def _segments(segments: list[Segment]) -> list[TranscriptSegment]:
    return [
        TranscriptSegment(id=number, start=round(each.start_s, 3), end=round(each.end_s, 3), text=each.text)
        for number, each in enumerate(segments)
    ]


def _word(word: Segment) -> TranscriptWord:
    return TranscriptWord(word=word.text, start=round(word.start_s, 3), end=round(word.end_s, 3))
