"""
Any server with chat completions: vLLM, SGLang, llama.cpp, Ollama, LM Studio, a cloud.

`docs/reference/engine-chat.md` describes every option.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec

from antiphon.engine_api import commands
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import BuildContext, Fetch
from antiphon.engines.chat.media import has_media, inline_media, read_texts
from antiphon.engines.chat.quirks import PROBE_INTERVAL_S, QUIRKS, Quirks, detect_quirks
from antiphon.engines.chat.relay_request import RELAYS, asked_model, choice_count, relay_body, relay_body_at_once, wants_usage
from antiphon.engines.chat.relay_response import CountMend, RelayStreamReader, WholeRelayReader
from antiphon.engines.chat.request import encode_request, flat_name
from antiphon.engines.chat.response import ChatResponseReader
from antiphon.engines.chat.token_counter import TokenCounter
from antiphon.engines.upstream.client import UpstreamClient, UpstreamOptions, parse_capabilities, parse_options
from antiphon.engines.upstream.engine import UpstreamEngine, UpstreamResponseReader
from antiphon.errors import ClientError
from antiphon.offload import LARGE_BYTES, offload

DEFAULT_CAPABILITIES = Capabilities(
    images=True,
    files=True,
    audio_in=True,
    tools=True,
    custom_tools=True,
    json_object=True,
    json_schema=True,
    truncation=True,
    penalties=True,
    max_top_logprobs=20,  # the limit of OpenAI's `top_logprobs`
    efforts=("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    verbosities=("low", "medium", "high"),
    counts_tokens=True,
    relays=RELAYS,
)
"""What OpenAI's API has; what a certain model supports of it is not known here."""


class ChatOptions(UpstreamOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The settings of a model behind chat completions.

    Attributes:
        model: its name there; None for the name in the client's request.
        quirks: the kind of server; `auto` finds out.
        abilities: fields of `Capabilities` that differ from the defaults of its kind.
        fetch_urls: who fetches images that requests name by URL; None means `upstream` for OpenAI itself, and `here`
            for all others.
        always_stream: request a stream even where the client wants the whole response at once.
    """

    model: str | None = None
    quirks: Literal["auto", "openai", "vllm", "llamacpp", "ollama", "sglang", "lmstudio", "generic"] = "auto"
    abilities: dict[str, Any] = msgspec.field(default_factory=dict)
    fetch_urls: Literal["here", "upstream"] | None = None
    always_stream: bool = False


def build(model: str, options: Mapping[str, Any], build_context: BuildContext) -> UpstreamEngine:
    """
    An engine for the model's table in the configuration.

    Raises:
        ServerError: an option is unknown, missing or wrong.
    """
    chat_options = parse_options(ChatOptions, model, options)
    upstream = UpstreamClient(model, chat_options, build_context)
    kind = "openai" if chat_options.quirks == "auto" and upstream.host == "api.openai.com" else chat_options.quirks
    quirks = QUIRKS.get(kind)
    # Only what is configured counts: a gateway in the operator's own network may say that it is OpenAI, and must not
    # fetch URLs there.
    pass_image_urls = chat_options.fetch_urls == "upstream" or (chat_options.fetch_urls is None and kind == "openai")
    capabilities = server_capabilities(quirks, chat_options.abilities, model)
    counter = TokenCounter(upstream, capabilities.context_window)
    # A name that stands for many is no model's; a server with one model needs no name to count.
    counted_model = chat_options.model or (None if model.endswith("*") else model)
    dialect = _ChatDialect(
        upstream,
        chat_options,
        quirks,
        build_context.fetch,
        counter,
        counted_model,
        capabilities.relays,
        pass_image_urls=pass_image_urls,
    )
    return UpstreamEngine(upstream, dialect, capabilities)


def server_capabilities(quirks: Quirks | None, overrides: Mapping[str, Any], model: str) -> Capabilities:
    """
    What a server of that kind can do.

    Raises:
        ServerError: an override is no capability, or has a wrong value.
    """
    quirks = quirks or QUIRKS["generic"]
    capabilities = msgspec.structs.replace(DEFAULT_CAPABILITIES, files=quirks.files)
    if not quirks.logprobs:
        capabilities = msgspec.structs.replace(capabilities, max_top_logprobs=None)
    if quirks.tool_choice != "openai":
        capabilities = msgspec.structs.replace(capabilities, verbosities=())
    return parse_capabilities(capabilities, overrides, model)


def check_relay(relay: commands.Relay, paths: Collection[str], model: str) -> None:
    """
    Check that requests for the path are passed on.

    Raises:
        ClientError: they are not.
    """
    if relay.path not in paths:
        raise ClientError(f"The model '{model}' is sent no requests for /v1/{relay.path}.", code="unsupported_model", param="model")


def relay_reader(
    relay: commands.Relay, fields: Mapping[str, msgspec.Raw], model: str, count_mend: CountMend, *, is_whole: bool
) -> UpstreamResponseReader:
    """The reader of the answer to a request that was passed on; `is_whole` as the client wants it, whatever the server is asked."""
    name = relay.model or asked_model(fields, model)
    stream = RelayStreamReader(
        relay.id,
        name,
        is_chat=relay.path == "chat/completions",
        choices=choice_count(fields),
        wants_usage=is_whole or wants_usage(fields),
        count_mend=count_mend,
        is_whole=is_whole,
    )
    if relay.stream:
        return stream
    return WholeRelayReader(relay.id, name, stream, has_choices=relay.path != "embeddings", count_mend=count_mend)


def _response_reader(request: commands.Respond) -> ChatResponseReader:
    return ChatResponseReader(request.id, {flat_name(tool.name, tool.namespace): tool for tool in request.tools})


class _ChatDialect:
    path = "/chat/completions"

    def __init__(
        self,
        upstream: UpstreamClient,
        options: ChatOptions,
        quirks: Quirks | None,
        fetch: Fetch,
        counter: TokenCounter,
        counted_model: str | None,
        relays: Collection[str],
        *,
        pass_image_urls: bool,
    ) -> None:
        self._upstream = upstream
        self._model = options.model
        self._always_stream = options.always_stream
        self._quirks = quirks
        self._fetch = fetch
        self._counter = counter
        self._counted_model = counted_model
        self._relays = relays
        self._pass_image_urls = pass_image_urls
        self._probe_lock = asyncio.Lock()
        self._next_probe_at = 0.0

    async def prepare_request(self, request: commands.Respond, model: str) -> tuple[bytes, UpstreamResponseReader]:
        quirks = self._quirks or await self._resolve_quirks()
        if not quirks.files:
            request = await read_texts(request, self._fetch)
        if request.truncate:
            request = await self._counter.truncate(request, self._model or model, quirks)
        request = await inline_media(
            request, self._fetch, pass_image_urls=self._pass_image_urls and quirks.image_urls, supports_files=quirks.files
        )
        if request.whole and self._always_stream:
            request = msgspec.structs.replace(request, whole=False)
        body = await offload(request.size_bytes, encode_request, request, self._model or model, quirks)
        return body, _response_reader(request)

    async def prepare_relay(self, relay: commands.Relay, model: str) -> tuple[bytes, UpstreamResponseReader]:
        check_relay(relay, self._relays, model)
        quirks = self._quirks or await self._resolve_quirks()
        pass_image_urls = self._pass_image_urls and quirks.image_urls
        to_send = self._to_send(relay)
        body, fields = await relay_body(to_send, self._model or model, quirks, self._fetch, pass_image_urls=pass_image_urls)
        return body, relay_reader(to_send, fields, model, self._upstream.count_mend, is_whole=not relay.stream)

    def _to_send(self, relay: commands.Relay) -> commands.Relay:
        is_forced = self._always_stream and not relay.stream and not relay.must_be_whole
        return msgspec.structs.replace(relay, stream=True) if is_forced else relay

    def encode_at_once(self, command: commands.Respond | commands.Relay, model: str) -> tuple[bytes, UpstreamResponseReader] | None:
        quirks = self._known_quirks
        if quirks is None:
            return None
        if isinstance(command, commands.Relay):
            check_relay(command, self._relays, model)
            pass_image_urls = self._pass_image_urls and quirks.image_urls
            to_send = self._to_send(command)
            body_and_fields = relay_body_at_once(to_send, self._model or model, quirks, pass_image_urls=pass_image_urls)
            if body_and_fields is None:
                return None
            body, fields = body_and_fields
            return body, relay_reader(to_send, fields, model, self._upstream.count_mend, is_whole=not command.stream)
        if command.truncate or command.size_bytes >= LARGE_BYTES or has_media(command):
            return None
        if command.whole and self._always_stream:
            command = msgspec.structs.replace(command, whole=False)
        return encode_request(command, self._model or model, quirks), _response_reader(command)

    @property
    def _known_quirks(self) -> Quirks | None:
        """What is known of the server, or taken for known until the next probe; None where one is to be waited for."""
        if self._quirks is None and not self._probe_lock.locked() and asyncio.get_running_loop().time() < self._next_probe_at:
            return QUIRKS["generic"]
        return self._quirks

    @property
    def context_window(self) -> int | None:
        return None if self._counted_model is None else self._counter.window_of(self._counted_model)

    async def count_tokens(self, request: commands.Respond) -> int:
        quirks = self._quirks or await self._resolve_quirks()
        if not quirks.files:
            request = await read_texts(request, self._fetch)
        return (await self._counter.count(request, self._counted_model, quirks)).tokens

    async def _resolve_quirks(self) -> Quirks:
        loop = asyncio.get_running_loop()
        async with self._probe_lock:
            # A server that is down, or has no models yet, is not probed again for each request.
            if self._quirks is None and loop.time() >= self._next_probe_at:
                self._quirks = await detect_quirks(self._upstream)
                self._next_probe_at = loop.time() + PROBE_INTERVAL_S
            return self._quirks or QUIRKS["generic"]
