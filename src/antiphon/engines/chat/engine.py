"""
Any server that speaks chat completions: vLLM, SGLang, llama.cpp, Ollama, LM Studio, a cloud.

`docs/reference/engine-chat.md` describes every option.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from antiphon.engine_api import commands
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import BuildContext, Fetch
from antiphon.engines.chat.media import inline_media
from antiphon.engines.chat.quirks import PROBE_INTERVAL_S, QUIRKS, Quirks, detect_quirks
from antiphon.engines.chat.request import encode_request, flat_name
from antiphon.engines.chat.response import ChatResponseReader
from antiphon.engines.upstream.client import UpstreamClient, UpstreamOptions, parse_capabilities, parse_options
from antiphon.engines.upstream.engine import UpstreamEngine, UpstreamResponseReader

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


class ChatOptions(UpstreamOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    What the configuration says of a model behind chat completions.

    Attributes:
        model: its name there; None for the name that the client asked for.
        quirks: what kind of server it is; `auto` finds out.
        abilities: what it can do otherwise than its kind; fields of `Capabilities`.
        always_stream: whether the server is asked for a stream even where the client wants all at once.
        fetch_urls: who fetches pictures that requests name by URL; None for OpenAI itself, and this server for every other.
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
    chosen = parse_options(ChatOptions, model, options)
    upstream = UpstreamClient(model, chosen, build_context)
    row = "openai" if chosen.quirks == "auto" and upstream.host == "api.openai.com" else chosen.quirks
    known = QUIRKS.get(row)
    # A server may call itself OpenAI's, as gateways do, and stand in the operator's network all the same: only what is configured counts.
    urls_pass = chosen.fetch_urls == "upstream" or (chosen.fetch_urls is None and row == "openai")
    dialect = _ChatDialect(upstream, chosen, known, build_context.fetch, pass_image_urls=urls_pass)
    return UpstreamEngine(upstream, dialect, server_capabilities(known, chosen.abilities, model))


def server_capabilities(quirks: Quirks | None, overrides: Mapping[str, Any], model: str) -> Capabilities:
    """
    What a server of that kind can do, all else left to its model.

    Raises:
        ServerError: `otherwise` has what is no ability.
    """
    row = quirks or QUIRKS["generic"]
    usual = Capabilities(
        images=True,
        files=row.files,
        audio_in=True,
        tools=True,
        custom_tools=True,
        json_object=True,
        json_schema=True,
        penalties=True,
        max_top_logprobs=20 if row.logprobs else None,
        efforts=EFFORTS,
        verbosities=("low", "medium", "high") if row.tool_choice == "openai" else (),
    )
    return parse_capabilities(usual, overrides, model)


class _ChatDialect:
    """The dialect of chat completions."""

    path = "/chat/completions"

    def __init__(
        self, upstream: UpstreamClient, options: ChatOptions, quirks: Quirks | None, fetch: Fetch, *, pass_image_urls: bool
    ) -> None:
        self._upstream = upstream
        self._model = options.model
        self._always_stream = options.always_stream
        self._quirks = quirks
        self._fetch = fetch
        self._pass_image_urls = pass_image_urls
        self._probe_lock = asyncio.Lock()
        self._next_probe_at = 0.0

    async def prepare_request(self, request: commands.Respond, model: str) -> tuple[bytes, UpstreamResponseReader]:
        """The request, and the reading of its answer."""
        quirks = self._quirks or await self._resolve_quirks()
        request = await inline_media(
            request, self._fetch, pass_image_urls=self._pass_image_urls and quirks.image_urls, supports_files=quirks.files
        )
        if request.whole and self._always_stream:
            request = msgspec.structs.replace(request, whole=False)
        offered = {flat_name(tool.name, tool.namespace): tool for tool in request.tools}
        return encode_request(request, self._model or model, quirks), ChatResponseReader(request.id, offered)

    async def _resolve_quirks(self) -> Quirks:
        loop = asyncio.get_running_loop()
        async with self._probe_lock:
            # A server that is down, or has no models yet, is not asked anew for each request.
            if self._quirks is None and loop.time() >= self._next_probe_at:
                self._quirks = await detect_quirks(self._upstream)
                self._next_probe_at = loop.time() + PROBE_INTERVAL_S
            return self._quirks or QUIRKS["generic"]
