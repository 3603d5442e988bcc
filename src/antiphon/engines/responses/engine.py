"""
Any server with the Responses API: vLLM, SGLang, OGX, a cloud, another antiphon.

`docs/reference/engine-responses.md` describes every option.
"""

from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec

from antiphon.engine_api import commands
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import BuildContext, Fetch
from antiphon.engine_api.token_estimate import estimate_input_tokens, media_tokens, separate_media
from antiphon.engines.chat.engine import DEFAULT_CAPABILITIES, check_relay, relay_reader
from antiphon.engines.chat.media import has_media, inline_media
from antiphon.engines.chat.quirks import QUIRKS
from antiphon.engines.chat.relay_request import relay_body, relay_body_at_once
from antiphon.engines.chat.request import flat_name
from antiphon.engines.responses.request import ResponsesQuirks, encode_request, responses_body
from antiphon.engines.responses.response import ResponsesResponseReader
from antiphon.engines.upstream.client import UpstreamClient, UpstreamOptions, parse_capabilities, parse_options
from antiphon.engines.upstream.counting import CountingEndpoints
from antiphon.engines.upstream.engine import UpstreamEngine, UpstreamResponseReader
from antiphon.offload import LARGE_BYTES, offload

_OPENAI_HOST = "api.openai.com"

_RELAYS = ("embeddings",)
"""The paths, beside its own, that a server with the Responses API is likely to have."""


class ResponsesOptions(UpstreamOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The settings of a model behind the Responses API.

    Attributes:
        model: its name there; None for the name in the client's request.
        ids: item ids are the upstream's (`theirs`) or new ones (`ours`). A response's own id is always this server's.
        tools: types of hosted tools that are passed on, such as `web_search`.
        namespaces: whether the server knows tools of type `namespace`; None means that only OpenAI does.
        abilities: fields of `Capabilities` that differ from the defaults.
        fetch_urls: who fetches images that requests name by URL; None means `upstream` for OpenAI itself, and `here`
            for all others.
    """

    model: str | None = None
    ids: Literal["ours", "theirs"] = "ours"
    tools: tuple[str, ...] = ()
    namespaces: bool | None = None
    abilities: dict[str, Any] = msgspec.field(default_factory=dict)
    fetch_urls: Literal["here", "upstream"] | None = None


def build(model: str, options: Mapping[str, Any], build_context: BuildContext) -> UpstreamEngine:
    """
    An engine for the model's table in the configuration.

    Raises:
        ServerError: an option is unknown, missing or wrong.
    """
    settings = parse_options(ResponsesOptions, model, options)
    upstream = UpstreamClient(model, settings, build_context)
    is_openai = upstream.host == _OPENAI_HOST
    counted_model = settings.model or (None if model.endswith("*") else model)
    capabilities = _capabilities(settings, is_openai, model)
    dialect = _ResponsesDialect(upstream, settings, build_context.fetch, is_openai, counted_model, capabilities.relays)
    return UpstreamEngine(upstream, dialect, capabilities)


def _capabilities(options: ResponsesOptions, is_openai: bool, model: str) -> Capabilities:
    # OpenAI's Responses API has no penalties, and only it has grammars for custom tools.
    defaults = msgspec.structs.replace(
        DEFAULT_CAPABILITIES,
        grammars=is_openai,
        truncation=True,
        penalties=not is_openai,
        summaries=True,
        encrypts_reasoning=True,
        compacts=is_openai,
        hosted=options.tools,
        relays=_RELAYS,
    )
    return parse_capabilities(defaults, options.abilities, model)


_COUNTED_FIELDS = ("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "reasoning")


class _InputTokens(msgspec.Struct):
    input_tokens: int


class _ResponsesDialect:
    path = "/responses"
    context_window = None  # the API does not tell it

    def __init__(
        self,
        upstream: UpstreamClient,
        options: ResponsesOptions,
        fetch: Fetch,
        is_openai: bool,
        counted_model: str | None,
        relays: Collection[str],
    ) -> None:
        self._upstream = upstream
        self._relays = relays
        self._model = options.model
        self._endpoints = CountingEndpoints(upstream)
        self._counted_model = counted_model
        self._keep_ids = options.ids == "theirs"
        has_namespaces = is_openai if options.namespaces is None else options.namespaces
        self._quirks = ResponsesQuirks(namespaces=has_namespaces, obfuscates=is_openai)
        self._fetch = fetch
        self._pass_image_urls = is_openai if options.fetch_urls is None else options.fetch_urls == "upstream"

    async def count_tokens(self, request: commands.Respond) -> int:
        text_history, media = separate_media(request.history)  # the upstream must not fetch a client's URLs
        text_request = msgspec.structs.replace(request, history=text_history)
        body = await offload(request.size_bytes, responses_body, text_request, self._counted_model or "", self._quirks)
        fields = {name: body[name] for name in _COUNTED_FIELDS if name in body and (name != "model" or self._counted_model)}
        endpoints = self._endpoints
        answer = await endpoints.attempt(
            lambda: endpoints.ask("/responses/input_tokens", _InputTokens, fields, size_bytes=request.size_bytes)
        )
        if answer is None:
            return await offload(request.size_bytes, estimate_input_tokens, request)
        return answer.input_tokens + media_tokens(media)

    async def prepare_relay(self, relay: commands.Relay, model: str) -> tuple[bytes, UpstreamResponseReader]:
        check_relay(relay, self._relays, model)
        body, fields = await relay_body(relay, self._model or model, QUIRKS["openai"], self._fetch, pass_image_urls=self._pass_image_urls)
        return body, relay_reader(relay, fields, model, self._upstream.count_mend, is_whole=not relay.stream)

    async def prepare_request(self, request: commands.Respond, model: str) -> tuple[bytes, UpstreamResponseReader]:
        request = await inline_media(request, self._fetch, pass_image_urls=self._pass_image_urls, supports_files=True)
        body = await offload(request.size_bytes, encode_request, request, self._model or model, self._quirks)
        return body, self._response_reader(request)

    def encode_at_once(self, command: commands.Respond | commands.Relay, model: str) -> tuple[bytes, UpstreamResponseReader] | None:
        if isinstance(command, commands.Relay):
            check_relay(command, self._relays, model)
            body_and_fields = relay_body_at_once(command, self._model or model, QUIRKS["openai"], pass_image_urls=self._pass_image_urls)
            if body_and_fields is None:
                return None
            body, fields = body_and_fields
            return body, relay_reader(command, fields, model, self._upstream.count_mend, is_whole=not command.stream)
        if command.size_bytes >= LARGE_BYTES or has_media(command):
            return None
        return encode_request(command, self._model or model, self._quirks), self._response_reader(command)

    def _response_reader(self, request: commands.Respond) -> ResponsesResponseReader:
        tools = {flat_name(tool.name, tool.namespace): tool for tool in request.tools}
        return ResponsesResponseReader(request.id, tools, self._keep_ids)
