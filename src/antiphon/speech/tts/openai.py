"""
A voice that is a server: any that speaks `/v1/audio/speech`, such as OpenAI's, Kokoro-FastAPI, LocalAI or vLLM.

Its sound is passed on as it comes. Where the words are nobody tells, so they are placed by the pace at which the server has spoken so far.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import aiohttp
from msgspec import Struct

from antiphon.audio import SAMPLE_BYTES, SampleAligner
from antiphon.errors import ServerError, UpstreamError
from antiphon.speech.audio_files.wav_stream import UnplayableAudio, WavStream
from antiphon.speech.base import AudioChunk
from antiphon.speech.dsp.resample import Resampler
from antiphon.speech.http import error_from_response, map_exceptions, new_session
from antiphon.speech.tts.alignment import SpeakingRate, split_words
from antiphon.speech.tts.synthesizer import resolve_voice

SERVER_NAME = "speech server"

MAX_DURATION_S = 600
"""Of sound in one answer; no sentence takes that long, and no server is listened to for longer."""

MAX_ERROR_BYTES = 4096
"""Of an error's body that is read."""

SNIFF_BYTES = 4
"""Of an answer, by which it is told whether it is a file."""

MPEG_TYPES = ("audio/mpeg", "audio/mp3")


class SpeechServer(Struct, frozen=True, kw_only=True):
    """
    A server, and what it is asked for.

    Attributes:
        base_url: up to and with the version, such as `http://127.0.0.1:8880/v1`.
        model: what it calls the model.
        voices: those that it is known to have; the first is used where none is wished.
        rate_hz: of the mouth's sound; of the server's too where `format` is `pcm`, which says nothing of its rate.
        format: what it is asked to send: s16le mono, bare or as a WAV file.
        aliases: other names for its voices.
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
    """The mouth."""

    def __init__(self, server: SpeechServer) -> None:
        if not server.voices:
            raise ServerError("A speech server needs its `voices` named: it can't be asked which it has.")
        self.voices = server.voices
        self.rate_hz = server.rate_hz
        self._server = server
        self._speaking_rates: dict[str, SpeakingRate] = {}
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Get ready; the server is first asked when there is something to say."""
        server = self._server
        self._session = new_session(server.api_key, server.headers, server.connect_timeout_s)

    async def stop(self) -> None:
        """Give up every connection; idempotent."""
        connections, self._session = self._session, None
        if connections is not None:
            await connections.close()

    async def synthesize(self, text: str, voice: str | None = None, speed: float = 1.0) -> AsyncIterator[AudioChunk]:
        """
        Speak; closing the iterator hangs up.

        Raises:
            ApiError: it could not be done; a voice that is not among `voices` is a `ClientError` that names those.
        """
        name = resolve_voice(self.voices, voice, self._server.aliases)
        pace = self._speaking_rates.setdefault(name, SpeakingRate(self.rate_hz))
        words = _WordTimer(split_words(text), pace, speed)
        if text.strip():
            async with self._map_exceptions(), self._request(text, name, speed) as reply:
                async for pcm in self._pcm_chunks(reply):
                    for piece in words.feed(pcm):
                        yield piece
        for piece in words.finish():
            yield piece

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
            reply = await self._session.post(url, json=body, allow_redirects=False)
        async with reply:
            if reply.status != 200:
                async with asyncio.timeout(server.idle_timeout_s):
                    complaint = await reply.content.read(MAX_ERROR_BYTES)
                # The text is the model's.
                raise error_from_response(SERVER_NAME, reply.status, reply.headers, complaint, is_client_input=False)
            if reply.content_type in ("application/json", "text/html", "text/plain"):
                raise UpstreamError(f"The speech server answered with '{reply.content_type}' instead of sound.", code="server_error")
            yield reply

    async def _pcm_chunks(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """What comes, as whole samples at our rate."""
        wav = WavStream() if self._server.format == "wav" else None
        samples, resampler, left = SampleAligner(), Resampler(self.rate_hz, self.rate_hz), MAX_DURATION_S * self.rate_hz * SAMPLE_BYTES
        is_known = wav is not None
        async for received in self._body_chunks(response):
            if not is_known:
                wav, is_known = _sniff_wav(received, response.content_type), True
            pcm = samples.align(wav.feed(received) if wav else received)
            if wav and wav.rate_hz and wav.rate_hz != resampler.from_hz:
                resampler = Resampler(wav.rate_hz, self.rate_hz)
            if made := resampler.process(pcm):
                yield made
            left -= len(received)
            if left < 0:
                raise UpstreamError(f"The speech server's answer is longer than {MAX_DURATION_S} seconds.", code="server_error")
        if wav and wav.rate_hz is None:
            raise UnplayableAudio("it is cut off in its head")
        if rest := resampler.flush():
            yield rest

    async def _body_chunks(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """What comes, the first of it long enough to tell what it is."""
        held, least = b"", SNIFF_BYTES
        while received := await asyncio.wait_for(response.content.readany(), self._server.idle_timeout_s):
            held += received
            if len(held) >= least:
                yield held
                held, least = b"", 0
        if held:
            yield held


def _sniff_wav(head: bytes, content_type: str) -> WavStream | None:
    """
    The file that samples were asked for and a server sends instead, as some know but one kind; None where it sends samples.

    Raises:
        UnplayableAudio: it is of another kind, and would be noise.
    """
    # What an MP3 file begins with may also be samples, and types are often wrong; hardly both.
    is_mpeg = content_type in MPEG_TYPES and head[:1] == b"\xff" and head[1:2] >= b"\xe0"
    if is_mpeg or head.startswith((b"ID3", b"fLaC", b"OggS")):
        raise UnplayableAudio("it is encoded, and not 'pcm' as was asked for")
    return WavStream() if head.startswith(b"RIFF") else None


class _WordTimer:
    """Gives words to sound that comes without: a word goes with the first of its sound, and its other sound has no word."""

    def __init__(self, words: Sequence[str], rate: SpeakingRate, speed: float) -> None:
        self._words = words
        self._rate = rate
        self._speed = speed
        self._word_starts = [0, *rate.word_ends(words, speed)[:-1]] if words else []
        self._next_word = 0
        self._samples = 0

    def feed(self, pcm: bytes) -> Iterator[AudioChunk]:
        """More sound, cut where words begin."""
        while pcm:
            text = ""
            if self._next_word < len(self._words) and self._word_starts[self._next_word] <= self._samples:
                text = self._words[self._next_word]
                self._next_word += 1
            following = self._word_starts[self._next_word] if self._next_word < len(self._words) else math.inf
            count = int(min(len(pcm) // SAMPLE_BYTES, max(0, following - self._samples)))
            yield AudioChunk(pcm[: count * SAMPLE_BYTES], text)
            pcm = pcm[count * SAMPLE_BYTES :]
            self._samples += count

    def finish(self) -> Iterator[AudioChunk]:
        """The words that no sound is left for."""
        if self._samples:
            self._rate.learn(self._words, self._speed, self._samples)
        if self._next_word < len(self._words):
            yield AudioChunk(b"", "".join(self._words[self._next_word :]))
