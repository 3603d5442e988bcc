"""
An ear that is a server: any that speaks `/v1/audio/transcriptions`, such as OpenAI's, speaches, vLLM, whisper.cpp's or LocalAI.

Servers differ in what they take. Times are asked for as `verbose_json`; one that refuses that is asked for `json` from then on.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import msgspec
from msgspec import Struct

from antiphon.audio import wav
from antiphon.engine_api.options import Transcription
from antiphon.errors import OurFault, UpstreamTrouble, shown
from antiphon.speech.base import HEARING_RATE_HZ, Segment, Transcript
from antiphon.speech.http import faults, overloaded, refused, session
from antiphon.speech.stt.hallucination import Evidence, sensible
from antiphon.speech.stt.options import plain, refuse
from antiphon.speech.stt.segmenting import evidence_of, samples_of

NAME = "transcription server"

ANSWER_BYTES = 8 << 20
"""Of an answer that is read; an hour of speech, with the times of its words, takes less."""

TRIES = 2
"""A connection that was kept may have been closed meanwhile by the server, which has then not seen the request."""


class TranscriptionServer(Struct, frozen=True, kw_only=True):
    """
    A server, and what it is asked for.

    Attributes:
        base_url: up to and with the version, such as `http://127.0.0.1:8000/v1`.
        model: what it calls the model.
        languages: that the model understands, as ISO 639-1 codes; empty for any.
        has_times: whether to ask for times, until the server refuses to tell them.
        takes_lists: whether it takes `keywords[]` and `languages[]`, as OpenAI's gpt-transcribe does. Else keywords go into the prompt, and
            of several languages none is named.
        concurrency: the most requests at once.
        waiting: how many more may wait; beyond that they are refused.
        answer_s: how long an answer may take, a request's time in the queue aside.
    """

    base_url: str
    model: str
    languages: tuple[str, ...] = ()
    has_times: bool = True
    takes_lists: bool = False
    api_key: str | None = None
    headers: dict[str, str] = {}
    concurrency: int = 8
    waiting: int = 64
    connect_s: float = 5.0
    answer_s: float = 60.0


class _Stretch(Struct):
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


class _Answer(Struct):
    text: str
    language: str | None = None
    segments: tuple[_Stretch, ...] | None = None
    words: tuple[_Word, ...] | None = None
    usage: _Usage | None = None


_decoder = msgspec.json.Decoder(_Answer, strict=False)


class UpstreamEar:
    """The ear."""

    takes_prompt = True

    def __init__(self, server: TranscriptionServer) -> None:
        self.languages = server.languages
        self.has_times = server.has_times
        self._server = server
        self._slots = asyncio.Semaphore(server.concurrency)
        self._asked = 0
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Get ready; the server is first asked when there is something to write down."""
        server = self._server
        self._session = session(server.api_key, server.headers, server.connect_s, server.answer_s)

    async def stop(self) -> None:
        """Give up every connection; idempotent."""
        connections, self._session = self._session, None
        if connections is not None:
            await connections.close()

    def check(self, wish: Transcription) -> None:
        """
        Refuse languages that aren't among the server's, probabilities, and times of words where it tells none.

        Raises:
            ClientMistake: one is wished.
        """
        refuse(wish, self._server.model, languages=self.languages, takes_prompt=True, has_word_times=self.has_times)

    async def transcribe(self, pcm: bytes, wish: Transcription) -> Transcript:
        """
        What is said; cancelling it hangs up.

        Raises:
            errors.Fault: it could not be done; a `ClientMistake` where the server says that the request is at fault.
        """
        evidence = evidence_of(samples_of(pcm))
        if evidence.is_silence:
            return Transcript(text="")
        async with self._place(), faults(NAME, self._server.base_url):
            answer = await self._answer(pcm, wish)
        return _transcript(answer, wish, evidence)

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """A place among those that are asked at once."""
        if self._asked >= self._server.concurrency + self._server.waiting:
            raise overloaded("Too much waits for the transcription server already. Please try again later.", 503, 1.0)
        self._asked += 1
        try:
            async with self._slots:
                yield
        finally:
            self._asked -= 1

    async def _answer(self, pcm: bytes, wish: Transcription) -> _Answer:
        if self.has_times:
            status, headers, body = await self._post(pcm, wish, is_verbose=True)
            if status not in (400, 404, 422) or b"response_format" not in body:
                return _read(status, headers, body)
            self.has_times = False
        return _read(*await self._post(pcm, wish, is_verbose=False))

    async def _post(self, pcm: bytes, wish: Transcription, *, is_verbose: bool) -> tuple[int, Mapping[str, str], bytes]:
        if self._session is None:
            raise OurFault("The ear has not been started.")
        url = f"{self._server.base_url.rstrip('/')}/audio/transcriptions"
        for left in reversed(range(TRIES)):
            try:
                form = _form(self._server, pcm, wish, is_verbose)
                async with self._session.post(url, data=form, allow_redirects=False) as reply:
                    return reply.status, reply.headers, await _body(reply)
            except aiohttp.ClientConnectorError:
                raise
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")


def _form(server: TranscriptionServer, pcm: bytes, wish: Transcription, is_verbose: bool) -> aiohttp.FormData:
    form = aiohttp.FormData()
    for name, value in _fields(server, wish, is_verbose):
        form.add_field(name, value)
    form.add_field("file", wav(pcm, HEARING_RATE_HZ), filename="speech.wav", content_type="audio/wav")
    return form


def _fields(server: TranscriptionServer, wish: Transcription, is_verbose: bool) -> list[tuple[str, str]]:
    fields = [("model", server.model), ("response_format", "verbose_json" if is_verbose else "json")]
    if is_verbose:
        fields += [("timestamp_granularities[]", kind) for kind in (("segment", "word") if wish.word_times else ("segment",))]
    if server.takes_lists:
        fields += [("keywords[]", keyword) for keyword in wish.keywords]
        fields += [("languages[]", plain(language)) for language in wish.languages]
    elif len(wish.languages) == 1:
        fields.append(("language", plain(wish.languages[0])))
    prompt = [wish.prompt] if wish.prompt else []
    if wish.keywords and not server.takes_lists:
        prompt.append(", ".join(wish.keywords))
    return [*fields, ("prompt", " ".join(prompt))] if prompt else fields


async def _body(reply: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for piece in reply.content.iter_any():
        body += piece
        if len(body) > ANSWER_BYTES:
            raise UpstreamTrouble(f"The transcription server's answer is longer than {ANSWER_BYTES} bytes.", code="server_error")
    return bytes(body)


# What it says


def _read(status: int, headers: Mapping[str, str], body: bytes) -> _Answer:
    if status != 200:
        raise refused(NAME, status, headers, body, blames_client=True)
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise UpstreamTrouble(
            f"The transcription server's answer is no transcript: {shown(body.decode(errors='replace'))}", code="server_error"
        ) from None


def _transcript(answer: _Answer, wish: Transcription, evidence: Evidence) -> Transcript:
    text = sensible(answer.text, evidence)
    stretches = answer.segments or ()
    named = plain(answer.language or "")
    language = named if 2 <= len(named) <= 3 else plain(wish.languages[0]) if len(wish.languages) == 1 else None
    return Transcript(
        text=text,
        segments=tuple(Segment(each.text.strip(), each.start, each.end) for each in stretches) if text else (),
        words=tuple(Segment(each.word.strip(), each.start, each.end) for each in answer.words or ()) if text and wish.word_times else (),
        language=language if text else None,
        tokens=(answer.usage.output_tokens or 0) if answer.usage else 0,
    )
