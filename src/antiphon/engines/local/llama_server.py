"""
llama.cpp's own server inside this process, on a loopback port with a random key, and a client of its HTTP API.

HTTP, because only its server has continuous batching, a prompt cache and cancelling when the connection closes.
Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

import asyncio
import io
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import aiohttp
import msgspec
from msgspec import Struct

from antiphon.engines.local.prompt import PromptSegment
from antiphon.errors import ApiError, ServerError, context_length_exceeded
from antiphon.installation import install_hint, missing_modules
from antiphon.wire.codec.sse import SseParser

# A batch can't be interrupted: its size bounds how long a cancelled prompt keeps the processor. Measured with a 1.5B
# model on two processors: 0.6 s at 64; twice as long at 128, where prompts are processed only 5 % faster.
BATCH_TOKENS = 64
# The server answers when it has processed the prompt, or the chunk of it that it was given. Then it sends a comment after
# `PING_S` of silence. So a longer silence means that it hangs.
PING_S = 10
READ_TIMEOUT_S = 300
CACHED_SEGMENTS = 2048
CACHED_CHARACTERS = 4_000_000


class LlamaTimings(Struct, frozen=True):
    """The server's measurements; `cache_n` tokens of the prompt came from the cache."""

    cache_n: int = 0


class LlamaToken(Struct, frozen=True):
    """A token with its log probability."""

    token: str
    logprob: float | None
    bytes: tuple[int, ...] = ()


class LlamaTokenLogprob(LlamaToken, frozen=True):
    """A generated token, with its alternatives."""

    top_logprobs: tuple[LlamaToken, ...] = ()


class LlamaErrorBody(Struct, frozen=True):
    """The server's error object."""

    message: str
    code: int = 500
    type: str = "server_error"
    n_prompt_tokens: int = 0
    n_ctx: int = 0


class LlamaChunk(Struct, frozen=True):
    """
    One event of a streamed completion.

    Attributes:
        tokens: the ids that `content` is made of.
        stop_type: of the last one: `eos`, `limit` or `word`, which is then `stopping_word`.
    """

    content: str = ""
    tokens: tuple[int, ...] = ()
    stop: bool = False
    stop_type: str = "none"
    stopping_word: str = ""
    tokens_predicted: int = 0
    tokens_evaluated: int = 0
    timings: LlamaTimings | None = None
    completion_probabilities: tuple[LlamaTokenLogprob, ...] = ()
    error: LlamaErrorBody | None = None


class _ErrorResponse(Struct, frozen=True):
    error: LlamaErrorBody


class _TokenizeResponse(Struct, frozen=True):
    tokens: list[int]


class _ApplyTemplateResponse(Struct, frozen=True):
    prompt: str


class _GenerationSettings(Struct, frozen=True):
    n_ctx: int


class _PropsResponse(Struct, frozen=True):
    default_generation_settings: _GenerationSettings


_ALWAYS_READING = asyncio.Event()
_ALWAYS_READING.set()

_T = TypeVar("_T")
_chunk_decoder: msgspec.json.Decoder[LlamaChunk] = msgspec.json.Decoder(LlamaChunk)


class LlamaSettings(Struct, frozen=True, kw_only=True):
    """
    How a model is loaded.

    Attributes:
        context: tokens for each slot.
        gpu_layers: how many layers go to a GPU where there is one; None for as many as fit.
        spin: whether the threads wait for each other without sleeping.
    """

    path: Path
    slots: int
    context: int
    threads: int
    gpu_layers: int | None = None
    spin: bool = False


class _NativeServer(Protocol):
    """`xllamacpp.Server`; it stops when its last reference goes."""

    listening_address: str


class LlamaServer:
    """
    A loaded model.

    Attributes:
        context: tokens of a slot; the model may allow fewer than configured.
    """

    def __init__(self, native: list[_NativeServer], session: aiohttp.ClientSession) -> None:
        self._native = native
        self._session = session
        self._token_cache: dict[tuple[str, bool], list[int]] = {}
        self._cached_characters = 0
        self.context = 0

    @classmethod
    async def load(cls, settings: LlamaSettings) -> "LlamaServer":
        """
        Load the model; takes about a second for each gigabyte.

        Raises:
            ServerError: the extra `local` is not installed, or the file can't be loaded.
        """
        key = secrets.token_urlsafe(32)
        native = await asyncio.to_thread(_serve, settings, key)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=READ_TIMEOUT_S)
        session = aiohttp.ClientSession(
            native.listening_address,
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
            timeout=timeout,
            # The server closes connections after a completion, which the client may notice only when it sends the next.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
        )
        llama = cls([native], session)
        llama.context = (await llama._get("/props", _PropsResponse)).default_generation_settings.n_ctx
        return llama

    async def close(self) -> None:
        """Cancel every completion, and unload the model."""
        await self._session.close()
        await asyncio.to_thread(self._native.clear)

    async def tokenize(self, segment: PromptSegment, add_special: bool = False) -> list[int]:
        """The segment's tokens; with `add_special`, after those with which the model wants a prompt to begin."""
        text, parse_special = segment
        if not add_special and (cached_tokens := self._token_cache.get((text, parse_special))) is not None:
            return cached_tokens
        payload = {"content": text, "parse_special": parse_special, "add_special": add_special}
        tokens = (await self._post("/tokenize", payload, _TokenizeResponse)).tokens
        if not add_special:
            self._cache_tokens((text, parse_special), tokens)
        return tokens

    async def apply_template(self, messages: Sequence[dict[str, str]]) -> str:
        """The prompt from the model's own chat template."""
        return (await self._post("/apply-template", {"messages": messages}, _ApplyTemplateResponse)).prompt

    async def complete(
        self,
        payload: dict[str, Any],
        may_read: asyncio.Event,
        on_chunks: Callable[[list[LlamaChunk]], bool],
        on_begin: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Stream a completion.

        Args:
            may_read: output is read only while it is set.
            on_chunks: gets the chunks of one read; returning false ends the completion early.
            on_begin: called once the prompt is processed: only then the server answers.

        Raises:
            ApiError: the server refused it, or failed while generating.
            ValueError: the server sent what is no chunk.
            aiohttp.ClientError: the connection broke.
        """
        parser = SseParser()
        async with self._session.post("/completion", data=_json_stream(payload)) as response:
            if response.status != 200:
                raise _decode_error(await response.read())
            on_begin()
            while piece := await response.content.readany():
                chunks = [_chunk_decoder.decode(event) for event in parser.feed(piece)]
                for chunk in chunks:
                    if chunk.error is not None:
                        raise _error_from(chunk.error)
                if chunks and (not on_chunks(chunks) or chunks[-1].stop):
                    return
                await may_read.wait()
        raise ServerError("The local model's answer ended too early.")

    async def process_prompt(self, tokens: Sequence[int], slot: int, *, can_reuse: bool) -> None:
        """
        Process a prompt into a slot's cache, and generate nothing.

        Raises:
            ApiError: as `complete`.
        """
        payload = {"prompt": tokens, "stream": True, "n_predict": 0, "id_slot": slot, "cache_prompt": can_reuse}
        await self.complete(payload, _ALWAYS_READING, lambda _chunks: True)

    async def _get(self, path: str, type: type[_T]) -> _T:
        async with self._session.get(path) as response:
            return msgspec.json.decode(await response.read(), type=type)

    async def _post(self, path: str, payload: Any, type: type[_T]) -> _T:
        async with self._session.post(path, data=_json_stream(payload)) as response:
            body = await response.read()
            if response.status != 200:
                raise _decode_error(body)
            return msgspec.json.decode(body, type=type)

    def _cache_tokens(self, key: tuple[str, bool], tokens: list[int]) -> None:
        self._token_cache[key] = tokens
        self._cached_characters += len(key[0])
        while len(self._token_cache) > CACHED_SEGMENTS or self._cached_characters > CACHED_CHARACTERS:
            oldest = next(iter(self._token_cache))
            del self._token_cache[oldest]
            self._cached_characters -= len(oldest[0])


def _json_stream(payload: Any) -> io.BytesIO:
    """JSON as a stream: aiohttp warns of bodies over 1 MB that are one `bytes`, and prompts can be that long."""
    return io.BytesIO(msgspec.json.encode(payload))


def runtime_problem() -> str | None:
    """What the engine lacks to run at all, and what installs it; None where it can run. It loads nothing."""
    return f"The engine 'local' is not installed. {install_hint('local')}" if missing_modules(("xllamacpp",)) else None


def openmp_variables(*, spin: bool) -> dict[str, str]:
    """
    How the native threads wait for each other, which they do after every layer.

    By default they would spin for long, and one other busy process then takes most of their speed (measured on two
    processors: from 16 to 0.6 tokens a second; to 9 if they sleep). On processors of their own a short spin saves the
    time to wake up (from 57 to 40 ms a token); beside others it makes the first audio of an answer wait for seconds.

    Source: the GNU Offloading and Multi Processing Runtime Library, "GOMP_SPINCOUNT".
    """
    return {"OMP_WAIT_POLICY": "passive"} | ({"GOMP_SPINCOUNT": "5000"} if spin else {})


def _serve(settings: LlamaSettings, key: str) -> _NativeServer:
    """The native server, loaded and listening."""
    for name, value in openmp_variables(spin=settings.spin).items():  # OpenMP reads them when the library is loaded
        os.environ.setdefault(name, value)
    try:
        import xllamacpp  # noqa: PLC0415 - an extra, and 100 MB of native code
    except ImportError:
        raise ServerError(runtime_problem() or "The library of the engine 'local' does not fit this system.") from None
    params = xllamacpp.CommonParams()
    params.model.path = os.fspath(settings.path)
    params.n_parallel = settings.slots
    params.n_ctx = settings.context * settings.slots
    params.n_batch = params.n_ubatch = BATCH_TOKENS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.threads
    if settings.gpu_layers is not None:
        params.n_gpu_layers = settings.gpu_layers
    params.fit_params = False
    params.cache_ram_mib = 0
    params.api_keys = [key]
    params.cors_origins, params.cors_credentials = "", False
    params.ui = params.endpoint_slots = False
    params.sse_ping_interval = PING_S
    params.verbosity = 0
    try:
        server: _NativeServer = xllamacpp.Server(params)
    except RuntimeError:
        raise ServerError(f"The file {settings.path} can't be loaded: it is not a GGUF model that llama.cpp supports.") from None
    return server


def _decode_error(body: bytes) -> ApiError:
    try:
        return _error_from(msgspec.json.decode(body, type=_ErrorResponse).error)
    except msgspec.DecodeError:
        return ServerError("The local model's server refused the request.")


def _error_from(error_body: LlamaErrorBody) -> ApiError:
    if error_body.type == "exceed_context_size_error":
        return context_length_exceeded(error_body.n_ctx, error_body.n_prompt_tokens)
    return ServerError(f"The local model failed: {error_body.message}")
