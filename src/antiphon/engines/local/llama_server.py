"""
llama.cpp's own server inside this process, on a loopback port with a key that nobody else has, and its HTTP side.

Its continuous batching, prompt cache and cancelling at a closed connection are why it is spoken to by HTTP at all.
Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

import asyncio
import io
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec
from msgspec import Struct

from antiphon.engines.local.prompt import Segment
from antiphon.errors import Fault, OurFault, context_length_exceeded
from antiphon.wire.codec.sse import SseParser

# A batch can't be interrupted: its size bounds how long a cancelled prompt keeps the processor. At 64 that is some 0.6 s for a 1.5B
# model on two processors; at 128 twice as long, and prompts are read 5 % faster.
BATCH_TOKENS = 64
# The server sends a comment when it has been silent for a while; without even that, it hangs.
PING_S = 10
SILENCE_S = 60
CACHED_SEGMENTS = 2048
CACHED_CHARACTERS = 4_000_000


class Timings(Struct, frozen=True):
    """What the server measured; `cache_n` tokens of the prompt were known."""

    cache_n: int = 0


class Likely(Struct, frozen=True):
    """A token with its log probability."""

    token: str
    logprob: float | None
    bytes: tuple[int, ...] = ()


class Chosen(Likely, frozen=True):
    """A token that was chosen, with the alternatives."""

    top_logprobs: tuple[Likely, ...] = ()


class Failure(Struct, frozen=True):
    """The server's error object."""

    message: str
    code: int = 500
    type: str = "server_error"
    n_prompt_tokens: int = 0
    n_ctx: int = 0


class Chunk(Struct, frozen=True):
    """
    One event of a streamed completion.

    Attributes:
        tokens: the ids that `content` is made of.
        stop_type: in the last one: `eos`, `limit` or `word`.
    """

    content: str = ""
    tokens: tuple[int, ...] = ()
    stop: bool = False
    stop_type: str = "none"
    tokens_predicted: int = 0
    tokens_evaluated: int = 0
    timings: Timings | None = None
    completion_probabilities: tuple[Chosen, ...] = ()
    error: Failure | None = None


class _Refused(Struct, frozen=True):
    error: Failure


class _Tokens(Struct, frozen=True):
    tokens: list[int]


class _Rendered(Struct, frozen=True):
    prompt: str


class _Generation(Struct, frozen=True):
    n_ctx: int


class _Properties(Struct, frozen=True):
    default_generation_settings: _Generation


_T = TypeVar("_T")
_chunk: msgspec.json.Decoder[Chunk] = msgspec.json.Decoder(Chunk)


class Setup(Struct, frozen=True, kw_only=True):
    """
    How a model is loaded.

    Attributes:
        context: tokens for each slot.
        gpu_layers: how many go to a GPU where there is one; None for as many as fit.
    """

    path: Path
    slots: int
    context: int
    threads: int
    gpu_layers: int | None = None


class Llama:
    """
    A model, loaded and spoken to.

    Attributes:
        context: tokens that a slot really has; the model may allow fewer than asked for.
    """

    def __init__(self, native: list[Any], session: aiohttp.ClientSession) -> None:
        self._native = native
        self._session = session
        self._tokens: dict[tuple[str, bool], list[int]] = {}
        self._cached_characters = 0
        self.context = 0

    @classmethod
    async def load(cls, setup: Setup) -> "Llama":
        """
        Load the model; takes a second or so for each gigabyte.

        Raises:
            OurFault: the runtime is not installed, or the file is no model that it can load.
        """
        key = secrets.token_urlsafe(32)
        native = await asyncio.to_thread(_serve, setup, key)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=SILENCE_S)
        session = aiohttp.ClientSession(
            native.listening_address,
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
            timeout=timeout,
            connector=aiohttp.TCPConnector(limit=0),
        )
        llama = cls([native], session)
        llama.context = (await llama._get("/props", _Properties)).default_generation_settings.n_ctx
        return llama

    async def close(self) -> None:
        """Drop every answer under way, and the model."""
        await self._session.close()
        await asyncio.to_thread(self._native.clear)

    async def tokenise(self, segment: Segment, begins: bool = False) -> list[int]:
        """The segment's tokens; those of one that `begins` a prompt have what the model wants before it."""
        text, control = segment
        if not begins and (known := self._tokens.get((text, control))) is not None:
            return known
        order = {"content": text, "parse_special": control, "add_special": begins}
        tokens = (await self._post("/tokenize", order, _Tokens)).tokens
        if not begins:
            self._remember((text, control), tokens)
        return tokens

    async def apply_template(self, messages: Sequence[dict[str, str]]) -> str:
        """The prompt as the model's own template writes it."""
        return (await self._post("/apply-template", {"messages": messages}, _Rendered)).prompt

    async def complete(self, order: dict[str, Any], may_read: asyncio.Event, take: Callable[[list[Chunk]], bool]) -> None:
        """
        Stream a completion.

        Args:
            may_read: nothing is read while it is clear.
            take: gets what arrived together; False ends the completion early.

        Raises:
            Fault: the server refused it, or failed on the way.
            aiohttp.ClientError: the connection broke.
        """
        parser = SseParser()
        async with self._session.post("/completion", data=_body(order)) as response:
            if response.status != 200:
                raise _fault(await response.read())
            while piece := await response.content.readany():
                chunks = [_chunk.decode(event) for event in parser.feed(piece)]
                for chunk in chunks:
                    if chunk.error is not None:
                        raise _told(chunk.error)
                if chunks and (not take(chunks) or chunks[-1].stop):
                    return
                await may_read.wait()
        raise OurFault("The local model's answer broke off.")

    async def _get(self, path: str, type: type[_T]) -> _T:
        async with self._session.get(path) as response:
            return msgspec.json.decode(await response.read(), type=type)

    async def _post(self, path: str, order: Any, type: type[_T]) -> _T:
        async with self._session.post(path, data=_body(order)) as response:
            body = await response.read()
            if response.status != 200:
                raise _fault(body)
            return msgspec.json.decode(body, type=type)

    def _remember(self, key: tuple[str, bool], tokens: list[int]) -> None:
        self._tokens[key] = tokens
        self._cached_characters += len(key[0])
        while len(self._tokens) > CACHED_SEGMENTS or self._cached_characters > CACHED_CHARACTERS:
            oldest = next(iter(self._tokens))
            del self._tokens[oldest]
            self._cached_characters -= len(oldest[0])


def _body(order: Any) -> io.BytesIO:
    """As a stream: what people paste may be megabytes, which aiohttp won't write in one go."""
    return io.BytesIO(msgspec.json.encode(order))


def _serve(setup: Setup, key: str) -> Any:
    """The native server, loaded and listening; it stops when the last reference to it goes."""
    # The native threads meet after every layer; by default they wait there at full speed, and one other busy process then costs them
    # nine tenths of theirs (measured: 16 to 0.6 tokens a second on two processors; 16 to 9 this way). Read when the library is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        import xllamacpp  # noqa: PLC0415 - 100 MB of native code, and an extra: only those who use it load it
    except ImportError:
        raise OurFault("The engine 'local' needs the extra of that name: pip install 'antiphon[local]'.") from None
    params = xllamacpp.CommonParams()
    params.model.path = os.fspath(setup.path)
    params.n_parallel = setup.slots
    params.n_ctx = setup.context * setup.slots
    params.n_batch = params.n_ubatch = BATCH_TOKENS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = setup.threads
    if setup.gpu_layers is not None:
        params.n_gpu_layers = setup.gpu_layers
    params.fit_params = False
    params.cache_ram_mib = 0
    params.api_keys = [key]
    params.cors_origins, params.cors_credentials = "", False
    params.ui = params.endpoint_slots = False
    params.sse_ping_interval = PING_S
    params.verbosity = 0
    try:
        return xllamacpp.Server(params)
    except RuntimeError:
        raise OurFault(f"The file {setup.path} can't be loaded: it is no GGUF model that llama.cpp knows.") from None


def _fault(body: bytes) -> Fault:
    try:
        return _told(msgspec.json.decode(body, type=_Refused).error)
    except msgspec.DecodeError:
        return OurFault("The local model's server refused the request.")


def _told(failure: Failure) -> Fault:
    if failure.type == "exceed_context_size_error":
        return context_length_exceeded(failure.n_ctx, failure.n_prompt_tokens)
    return OurFault(f"The local model failed: {failure.message}")
