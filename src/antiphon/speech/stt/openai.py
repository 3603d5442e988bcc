"""
A transcriber that uses a server with `/v1/audio/transcriptions`, such as OpenAI, speaches, vLLM, whisper.cpp or
LocalAI.

Servers differ in what they take. Times are requested as `verbose_json`; from a server that refuses that, `json` is
requested from then on.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import structlog
from msgspec import Struct

from antiphon.audio import wav_file
from antiphon.engine_api.options import Transcription
from antiphon.errors import ServerError, UpstreamError, shorten
from antiphon.speech.base import INPUT_RATE_HZ, TimedText, Transcript, check_options, primary_subtag
from antiphon.speech.http import error_from_response, map_exceptions, new_session, overloaded_error
from antiphon.speech.stt.hallucination import Evidence, remove_hallucinations
from antiphon.speech.stt.segmenting import collect_evidence, float_samples

SERVER_NAME = "transcription server"

MAX_RESPONSE_BYTES = 8 << 20
"""Of a response; an hour of speech with the times of its words takes less."""

MAX_ATTEMPTS = 2
"""A server may close a kept connection just before a request, which it then has not seen."""


class TranscriptionServer(Struct, frozen=True, kw_only=True):
    """
    A server, and what is requested of it.

    Attributes:
        base_url: up to and with the version, such as `http://127.0.0.1:8000/v1`.
        model: the server's name for it.
        languages: that the model understands, as ISO 639-1 codes; empty for any.
        has_times: whether to request times, until the server refuses.
        takes_lists: whether it takes `keywords[]` and `languages[]`, as OpenAI's gpt-transcribe does. Else keywords go
            into the prompt, and a language is named only if there is just one.
        concurrency: the most requests at once.
        max_pending: how many more may wait; the rest is refused.
        response_timeout_s: how long a response may take, without the time in the queue.
    """

    base_url: str
    model: str
    languages: tuple[str, ...] = ()
    has_times: bool = True
    takes_lists: bool = False
    api_key: str | None = None
    headers: dict[str, str] = {}
    concurrency: int = 8
    max_pending: int = 64
    connect_timeout_s: float = 5.0
    response_timeout_s: float = 60.0


class _Segment(Struct):
    text: str = ""
    start: float = 0.0
    end: float = 0.0
    no_speech_prob: float | None = None


class _Word(Struct):
    word: str = ""
    start: float = 0.0
    end: float = 0.0


class _Usage(Struct):
    output_tokens: int | None = None


class _TranscriptionResponse(Struct):
    text: str
    language: str | None = None
    segments: tuple[_Segment, ...] | None = None
    words: tuple[_Word, ...] | None = None
    usage: _Usage | None = None


_decoder = msgspec.json.Decoder(_TranscriptionResponse, strict=False)


class OpenAITranscriber:
    """A transcriber that uses a server."""

    takes_prompt = True

    def __init__(self, server: TranscriptionServer) -> None:
        self.languages = server.languages
        self.has_times = server.has_times
        self._server = server
        self._slots = asyncio.Semaphore(server.concurrency)
        self._pending_count = 0
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        server = self._server
        self._session = new_session(server.api_key, server.headers, server.connect_timeout_s, server.response_timeout_s)

    async def stop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @property
    def is_free(self) -> bool:
        return self._pending_count < self._server.concurrency

    def check_options(self, options: Transcription) -> None:
        check_options(options, self._server.model, languages=self.languages, has_word_times=self.has_times)

    async def transcribe(self, pcm: bytes, options: Transcription) -> Transcript:
        evidence = collect_evidence(float_samples(pcm))
        # Models make up words for silence.
        if evidence.is_silence:
            return Transcript(text="")
        async with self._acquire_slot(), map_exceptions(SERVER_NAME, self._server.base_url):
            response = await self._request_transcript(pcm, options)
        return _transcript(response, options, evidence)

    @asynccontextmanager
    async def _acquire_slot(self) -> AsyncIterator[None]:
        """Wait for one of the requests that may run at once."""
        if self._pending_count >= self._server.concurrency + self._server.max_pending:
            raise overloaded_error("Too many requests wait for the transcription server. Please try again later.", 503, 1.0)
        self._pending_count += 1
        try:
            async with self._slots:
                yield
        finally:
            self._pending_count -= 1

    async def _request_transcript(self, pcm: bytes, options: Transcription) -> _TranscriptionResponse:
        if self.has_times:
            status, headers, body = await self._post(pcm, options, is_verbose=True)
            # Only an answer that names the field is about it: a 400 may be about the audio as well.
            if status not in (400, 404, 422) or b"response_format" not in body:
                return _decode_response(status, headers, body)
            self.has_times = False
        return _decode_response(*await self._post(pcm, options, is_verbose=False))

    async def _post(self, pcm: bytes, options: Transcription, *, is_verbose: bool) -> tuple[int, Mapping[str, str], bytes]:
        if self._session is None:
            raise ServerError("The transcriber has not been started.")
        url = f"{self._server.base_url.rstrip('/')}/audio/transcriptions"
        for retries_left in reversed(range(MAX_ATTEMPTS)):
            try:
                # A new form for each try, as aiohttp sends one only once.
                form = _form(self._server, pcm, options, is_verbose)
                async with self._session.post(url, data=form, allow_redirects=False) as response:
                    return response.status, response.headers, await _read_body(response)
            # Caught first, as it is a subclass of `ClientOSError`: where no connection can be made, a second try finds the same.
            except aiohttp.ClientConnectorError:
                raise
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if not retries_left:
                    raise
        raise AssertionError("the last attempt returns or raises")


def _form(server: TranscriptionServer, pcm: bytes, options: Transcription, is_verbose: bool) -> aiohttp.FormData:
    form = aiohttp.FormData()
    for name, value in _fields(server, options, is_verbose):
        form.add_field(name, value)
    form.add_field("file", wav_file(pcm, INPUT_RATE_HZ), filename="speech.wav", content_type="audio/wav")
    return form


def _fields(server: TranscriptionServer, options: Transcription, is_verbose: bool) -> list[tuple[str, str]]:
    fields = [("model", server.model), ("response_format", "verbose_json" if is_verbose else "json")]
    if is_verbose:
        fields += [("timestamp_granularities[]", kind) for kind in (("segment", "word") if options.word_times else ("segment",))]
    if server.takes_lists:
        fields += [("keywords[]", keyword) for keyword in options.keywords]
        fields += [("languages[]", primary_subtag(language)) for language in options.languages]
    elif len(options.languages) == 1:
        fields.append(("language", primary_subtag(options.languages[0])))
    prompt = [options.prompt] if options.prompt else []
    if options.keywords and not server.takes_lists:
        prompt.append(", ".join(options.keywords))
    return [*fields, ("prompt", " ".join(prompt))] if prompt else fields


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            raise UpstreamError(f"The transcription server's response is longer than {MAX_RESPONSE_BYTES} bytes.", code="server_error")
    return bytes(body)


# Responses


def _decode_response(status: int, headers: Mapping[str, str], body: bytes) -> _TranscriptionResponse:
    if status != 200:
        raise error_from_response(SERVER_NAME, status, headers, body, is_client_input=True)
    try:
        return _decoder.decode(body)
    # msgspec raises `RecursionError` for JSON that is nested too deeply.
    except (msgspec.DecodeError, RecursionError):
        structlog.get_logger().warning("speech_server_failed", server=SERVER_NAME, message=shorten(body.decode(errors="replace")))
        raise UpstreamError("The transcription server's response is not a transcript.", code="server_error") from None


def _transcript(response: _TranscriptionResponse, options: Transcription, evidence: Evidence) -> Transcript:
    text = remove_hallucinations(response.text, evidence)
    # Some servers name the language in English, such as `english`: then the requested code stands.
    code = primary_subtag(response.language or "")
    language = code if 2 <= len(code) <= 3 else primary_subtag(options.languages[0]) if len(options.languages) == 1 else None
    return Transcript(
        text=text,
        segments=tuple(TimedText(segment.text.strip(), segment.start, segment.end) for segment in response.segments or ()) if text else (),
        words=tuple(TimedText(word.word.strip(), word.start, word.end) for word in response.words or ())
        if text and options.word_times
        else (),
        language=language if text else None,
        tokens=(response.usage.output_tokens or 0) if response.usage else 0,
    )
