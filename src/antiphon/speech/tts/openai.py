"""
A voice on a server with `POST /v1/audio/speech`, such as OpenAI's, Kokoro-FastAPI, LocalAI or vLLM.

Audio is passed on as it arrives. The API doesn't report word times, so they are estimated from the server's speaking
rate so far.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import aiohttp
from msgspec import Struct

from antiphon.audio import SAMPLE_BYTES, SampleAligner
from antiphon.errors import ServerError, UpstreamError
from antiphon.speech.audio_files.wav_stream import UnplayableAudio, WavStream
from antiphon.speech.base import WHOLE_SENTENCE, AudioChunk, SentenceContext
from antiphon.speech.dsp.resample import Resampler
from antiphon.speech.http import error_from_response, map_exceptions, new_session
from antiphon.speech.tts.alignment import SpeakingRate, split_words
from antiphon.speech.tts.process import resolve_voice

SERVER_NAME = "speech server"

MAX_DURATION_S = 600
"""The most audio that is read from one response; no sentence takes that long."""

MAX_ERROR_BYTES = 4096
"""The most that is read of an error's body."""

SNIFF_BYTES = 4
"""The first bytes of a response; they tell whether it is a file."""

MPEG_TYPES = ("audio/mpeg", "audio/mp3")


class SpeechServer(Struct, frozen=True, kw_only=True):
    """
    A speech server and how it is asked.

    Attributes:
        base_url: including the version, such as `http://127.0.0.1:8880/v1`.
        model: the server's name of the model.
        voices: the server's voices; the first is the default.
        rate_hz: of the output, and of the server's audio if `format` is `pcm`, which has no header that says it.
        format: what the server is asked for: s16le mono, bare or as a WAV file.
        aliases: other names for voices.
    """

    base_url: str
    model: str
    voices: tuple[str, ...]
    rate_hz: int = 24_000
    format: Literal["pcm", "wav"] = "pcm"
    api_key: str | None = None
    headers: dict[str, str] = {}
    aliases: dict[str, str] = {}
    connect_timeout_s: float = 5.0
    first_byte_timeout_s: float = 60.0
    idle_timeout_s: float = 30.0


class OpenAISynthesizer:
    """A `Synthesizer` in front of a speech server."""

    joins_parts = False

    def __init__(self, server: SpeechServer) -> None:
        if not server.voices:
            raise ServerError("A speech server needs `voices`: the API has no way to list them.")
        self.voices = server.voices
        self.rate_hz = server.rate_hz
        self._server = server
        self._speaking_rates: dict[str, SpeakingRate] = {}
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        # Opens no connection: a server that is down must not keep this one down.
        server = self._server
        self._session = new_session(server.api_key, server.headers, server.connect_timeout_s)

    async def stop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def synthesize(
        self, text: str, voice: str | None = None, speed: float = 1.0, context: SentenceContext = WHOLE_SENTENCE
    ) -> AsyncGenerator[AudioChunk]:
        name = resolve_voice(self.voices, voice, self._server.aliases)
        rate = self._speaking_rates.setdefault(name, SpeakingRate(self.rate_hz))
        timer = _WordTimer(split_words(text), rate, speed)
        if text.strip():
            async with self._map_exceptions(), self._request(text, name, speed) as response:
                async for pcm in self._pcm_chunks(response):
                    for chunk in timer.feed(pcm):
                        yield chunk
        for chunk in timer.finish():
            yield chunk

    @asynccontextmanager
    async def _map_exceptions(self) -> AsyncIterator[None]:
        async with map_exceptions(SERVER_NAME, self._server.base_url):
            try:
                yield
            except UnplayableAudio as error:
                raise UpstreamError(f"The {SERVER_NAME}'s sound can't be played: {error}.", code="server_error") from None

    @asynccontextmanager
    async def _request(self, text: str, voice: str, speed: float) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise ServerError("The voice has not been started.")
        server = self._server
        body = {"model": server.model, "input": text, "voice": voice, "response_format": server.format, "speed": speed}
        url = f"{server.base_url.rstrip('/')}/audio/speech"
        async with asyncio.timeout(server.first_byte_timeout_s):
            response = await self._session.post(url, json=body, allow_redirects=False)
        async with response:
            if response.status != 200:
                async with asyncio.timeout(server.idle_timeout_s):
                    error_body = await response.content.read(MAX_ERROR_BYTES)
                # The text is the model's, so a refusal is not the client's fault.
                raise error_from_response(SERVER_NAME, response.status, response.headers, error_body, is_client_input=False)
            if response.content_type in ("application/json", "text/html", "text/plain"):
                raise UpstreamError(f"The speech server answered with '{response.content_type}' instead of sound.", code="server_error")
            yield response

    async def _pcm_chunks(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """The response's audio, as whole samples at the output rate."""
        wav = WavStream() if self._server.format == "wav" else None
        aligner, resampler = SampleAligner(), Resampler(self.rate_hz, self.rate_hz)
        remaining_bytes = MAX_DURATION_S * self.rate_hz * SAMPLE_BYTES
        is_format_known = wav is not None
        async for chunk in self._body_chunks(response):
            if not is_format_known:
                wav, is_format_known = _sniff_wav(chunk, response.content_type), True
            pcm = aligner.align(wav.feed(chunk) if wav else chunk)
            if wav and wav.rate_hz and wav.rate_hz != resampler.from_hz:
                resampler = Resampler(wav.rate_hz, self.rate_hz)
            if output := resampler.process(pcm):
                yield output
            remaining_bytes -= len(chunk)
            if remaining_bytes < 0:
                raise UpstreamError(f"The speech server's answer is longer than {MAX_DURATION_S} seconds.", code="server_error")
        if wav and wav.rate_hz is None:
            raise UnplayableAudio("it is cut off in its head")
        if rest := resampler.flush():
            yield rest

    async def _body_chunks(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """The response's body in chunks, the first at least `SNIFF_BYTES` long."""
        buffer, min_bytes = b"", SNIFF_BYTES
        while chunk := await asyncio.wait_for(response.content.readany(), self._server.idle_timeout_s):
            buffer += chunk
            if len(buffer) >= min_bytes:
                yield buffer
                buffer, min_bytes = b"", 0
        if buffer:
            yield buffer


def _sniff_wav(head: bytes, content_type: str) -> WavStream | None:
    """
    A reader of the WAV file that some servers send although `pcm` was asked for; None for bare samples.

    Raises:
        UnplayableAudio: it is another kind of file; as samples it would be noise.
    """
    # Samples may begin like an MP3 frame, and content types are often wrong; hardly ever both at once.
    is_mpeg = content_type in MPEG_TYPES and head[:1] == b"\xff" and head[1:2] >= b"\xe0"
    if is_mpeg or head.startswith((b"ID3", b"fLaC", b"OggS")):
        raise UnplayableAudio("it is encoded, and not 'pcm' as was asked for")
    return WavStream() if head.startswith(b"RIFF") else None


class _WordTimer:
    """
    Gives words to audio without word times: a word goes with the first chunk of its audio, the other chunks have no
    text.
    """

    def __init__(self, words: Sequence[str], rate: SpeakingRate, speed: float) -> None:
        self._words = words
        self._rate = rate
        self._speed = speed
        self._word_starts = [0, *rate.word_ends(words, speed)[:-1]] if words else []
        self._next_word = 0
        self._samples = 0

    def feed(self, pcm: bytes) -> Iterator[AudioChunk]:
        """The audio, split where words begin."""
        while pcm:
            text = ""
            if self._next_word < len(self._words) and self._word_starts[self._next_word] <= self._samples:
                text = self._words[self._next_word]
                self._next_word += 1
            next_start = self._word_starts[self._next_word] if self._next_word < len(self._words) else math.inf
            count = int(min(len(pcm) // SAMPLE_BYTES, max(0, next_start - self._samples)))
            yield AudioChunk(pcm[: count * SAMPLE_BYTES], text)
            pcm = pcm[count * SAMPLE_BYTES :]
            self._samples += count

    def finish(self) -> Iterator[AudioChunk]:
        """The words that no audio is left for."""
        if self._samples:
            self._rate.learn(self._words, self._speed, self._samples)
        if self._next_word < len(self._words):
            yield AudioChunk(b"", "".join(self._words[self._next_word :]))
