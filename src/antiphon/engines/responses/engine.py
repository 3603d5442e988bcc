"""
Any server that speaks the Responses API: vLLM, SGLang, OGX, a cloud, another antiphon.

`docs/reference/engine-responses.md` describes every option.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from antiphon.engine_api import commands
from antiphon.engine_api.capabilities import Abilities
from antiphon.engine_api.engine import Fetch, Place
from antiphon.engines.chat.engine import EFFORTS
from antiphon.engines.chat.media import settled
from antiphon.engines.chat.request import flat_name
from antiphon.engines.responses.request import Manners, body_of
from antiphon.engines.responses.response import ResponsesReading
from antiphon.engines.upstream.client import Upstream, UpstreamOptions, abilities_from, options_from
from antiphon.engines.upstream.engine import Reading, UpstreamEngine

_OPENAI = "api.openai.com"


class ResponsesOptions(UpstreamOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    What the configuration says of a model behind the Responses API.

    Attributes:
        model: its name there; None for the name that the client asked for.
        ids: whether items are called as they are upstream, or as this server calls them. A response's own id is always this server's.
        tools: types of tools that are handed on as they are, such as `web_search`.
        namespaces: whether the server knows tools of type `namespace`; None for whether it is OpenAI's.
        abilities: what it can do otherwise than is usual; fields of `talk.Abilities`.
        fetch_urls: who fetches pictures that requests name by URL; None for OpenAI itself, and this server for every other.
    """

    model: str | None = None
    ids: Literal["ours", "theirs"] = "ours"
    tools: tuple[str, ...] = ()
    namespaces: bool | None = None
    abilities: dict[str, Any] = msgspec.field(default_factory=dict)
    fetch_urls: Literal["here", "upstream"] | None = None


def build(model: str, options: Mapping[str, Any], place: Place) -> UpstreamEngine:
    """
    An engine for the model's table in the configuration.

    Raises:
        OurFault: an option is unknown, missing or wrong.
    """
    chosen = options_from(ResponsesOptions, model, options)
    upstream = Upstream(model, chosen, place)
    is_openai = upstream.host == _OPENAI
    return UpstreamEngine(upstream, _Responses(chosen, place.fetch, is_openai), _abilities(chosen, is_openai, model))


def _abilities(options: ResponsesOptions, is_openai: bool, model: str) -> Abilities:
    """What a server with that API can do, all else left to its model."""
    usual = Abilities(
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
    return abilities_from(usual, options.abilities, model)


class _Responses:
    """The dialect of the Responses API."""

    path = "/responses"

    def __init__(self, options: ResponsesOptions, fetch: Fetch, is_openai: bool) -> None:
        self._model = options.model
        self._keeps_ids = options.ids == "theirs"
        knows = is_openai if options.namespaces is None else options.namespaces
        self._manners = Manners(namespaces=knows, pads=is_openai)
        self._fetch = fetch
        self._urls_pass = is_openai if options.fetch_urls is None else options.fetch_urls == "upstream"

    async def request(self, ask: commands.Respond, model: str) -> tuple[bytes, Reading]:
        """The request, and the reading of its answer."""
        ask = await settled(ask, self._fetch, urls_pass=self._urls_pass, takes_files=True)
        offered = {flat_name(tool.name, tool.namespace): tool for tool in ask.tools}
        return body_of(ask, self._model or model, self._manners), ResponsesReading(ask.id, offered, self._keeps_ids)
