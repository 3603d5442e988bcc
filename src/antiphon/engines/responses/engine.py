"""
Any server that speaks the Responses API: vLLM, SGLang, OGX, a cloud, another antiphon.

`docs/reference/engine-responses.md` describes every option.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from antiphon.engine_api import commands
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import BuildContext, Fetch
from antiphon.engines.chat.engine import EFFORTS
from antiphon.engines.chat.media import inline_media
from antiphon.engines.chat.request import flat_name
from antiphon.engines.responses.request import ResponsesQuirks, encode_request
from antiphon.engines.responses.response import ResponsesResponseReader
from antiphon.engines.upstream.client import UpstreamClient, UpstreamOptions, parse_capabilities, parse_options
from antiphon.engines.upstream.engine import UpstreamEngine, UpstreamResponseReader

_OPENAI_HOST = "api.openai.com"


class ResponsesOptions(UpstreamOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    What the configuration says of a model behind the Responses API.

    Attributes:
        model: its name there; None for the name that the client asked for.
        ids: whether items are called as they are upstream, or as this server calls them. A response's own id is always this server's.
        tools: types of tools that are handed on as they are, such as `web_search`.
        namespaces: whether the server knows tools of type `namespace`; None for whether it is OpenAI's.
        abilities: what it can do otherwise than is usual; fields of `Capabilities`.
        fetch_urls: who fetches pictures that requests name by URL; None for OpenAI itself, and this server for every other.
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
    chosen = parse_options(ResponsesOptions, model, options)
    upstream = UpstreamClient(model, chosen, build_context)
    is_openai = upstream.host == _OPENAI_HOST
    return UpstreamEngine(upstream, _ResponsesDialect(chosen, build_context.fetch, is_openai), _capabilities(chosen, is_openai, model))


def _capabilities(options: ResponsesOptions, is_openai: bool, model: str) -> Capabilities:
    """What a server with that API can do, all else left to its model."""
    usual = Capabilities(
        images=True,
        files=True,
        audio_in=True,
        tools=True,
        custom_tools=True,
        grammars=is_openai,
        json_object=True,
        json_schema=True,
        truncation=True,
        penalties=not is_openai,
        max_top_logprobs=20,
        efforts=EFFORTS,
        summaries=True,
        verbosities=("low", "medium", "high"),
        hosted=options.tools,
    )
    return parse_capabilities(usual, options.abilities, model)


class _ResponsesDialect:
    """The dialect of the Responses API."""

    path = "/responses"

    def __init__(self, options: ResponsesOptions, fetch: Fetch, is_openai: bool) -> None:
        self._model = options.model
        self._keep_ids = options.ids == "theirs"
        knows = is_openai if options.namespaces is None else options.namespaces
        self._quirks = ResponsesQuirks(namespaces=knows, obfuscates=is_openai)
        self._fetch = fetch
        self._pass_image_urls = is_openai if options.fetch_urls is None else options.fetch_urls == "upstream"

    async def prepare_request(self, request: commands.Respond, model: str) -> tuple[bytes, UpstreamResponseReader]:
        """The request, and the reading of its answer."""
        request = await inline_media(request, self._fetch, pass_image_urls=self._pass_image_urls, supports_files=True)
        offered = {flat_name(tool.name, tool.namespace): tool for tool in request.tools}
        return encode_request(request, self._model or model, self._quirks), ResponsesResponseReader(request.id, offered, self._keep_ids)
