"""
Any server that speaks chat completions: vLLM, SGLang, llama.cpp, Ollama, LM Studio, a cloud.

`docs/reference/engine-chat.md` describes every option.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from antiphon.engine_api import commands
from antiphon.engine_api.capabilities import Abilities
from antiphon.engine_api.engine import Fetch, Place
from antiphon.engines.chat.media import settled
from antiphon.engines.chat.quirks import PROBE_REST_S, QUIRKS, Quirks, quirks_of
from antiphon.engines.chat.request import body_of, flat_name
from antiphon.engines.chat.response import ChatReading
from antiphon.engines.upstream.client import Upstream, UpstreamOptions, abilities_from, options_from
from antiphon.engines.upstream.engine import Reading, UpstreamEngine

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


class ChatOptions(UpstreamOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    What the configuration says of a model behind chat completions.

    Attributes:
        model: its name there; None for the name that the client asked for.
        quirks: what kind of server it is; `auto` finds out.
        abilities: what it can do otherwise than its kind; fields of `talk.Abilities`.
        always_stream: whether the server is asked for a stream even where the client wants all at once.
        fetch_urls: who fetches pictures that requests name by URL; None for OpenAI itself, and this server for every other.
    """

    model: str | None = None
    quirks: Literal["auto", "openai", "vllm", "llamacpp", "ollama", "sglang", "lmstudio", "generic"] = "auto"
    abilities: dict[str, Any] = msgspec.field(default_factory=dict)
    fetch_urls: Literal["here", "upstream"] | None = None
    always_stream: bool = False


def build(model: str, options: Mapping[str, Any], place: Place) -> UpstreamEngine:
    """
    An engine for the model's table in the configuration.

    Raises:
        OurFault: an option is unknown, missing or wrong.
    """
    chosen = options_from(ChatOptions, model, options)
    upstream = Upstream(model, chosen, place)
    row = "openai" if chosen.quirks == "auto" and upstream.host == "api.openai.com" else chosen.quirks
    known = QUIRKS.get(row)
    # A server may call itself OpenAI's, as gateways do, and stand in the operator's network all the same: only what is configured counts.
    urls_pass = chosen.fetch_urls == "upstream" or (chosen.fetch_urls is None and row == "openai")
    dialect = _Chat(upstream, chosen, known, place.fetch, urls_pass=urls_pass)
    return UpstreamEngine(upstream, dialect, abilities_of(known, chosen.abilities, model))


def abilities_of(quirks: Quirks | None, otherwise: Mapping[str, Any], model: str) -> Abilities:
    """
    What a server of that kind can do, all else left to its model.

    Raises:
        OurFault: `otherwise` has what is no ability.
    """
    row = quirks or QUIRKS["generic"]
    usual = Abilities(
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
        verbosities=("low", "medium", "high") if row.choice == "openai" else (),
    )
    return abilities_from(usual, otherwise, model)


class _Chat:
    """The dialect of chat completions."""

    path = "/chat/completions"

    def __init__(self, upstream: Upstream, options: ChatOptions, quirks: Quirks | None, fetch: Fetch, *, urls_pass: bool) -> None:
        self._upstream = upstream
        self._model = options.model
        self._always_streams = options.always_stream
        self._quirks = quirks
        self._fetch = fetch
        self._urls_pass = urls_pass
        self._asking = asyncio.Lock()
        self._ask_again_at = 0.0

    async def request(self, ask: commands.Respond, model: str) -> tuple[bytes, Reading]:
        """The request, and the reading of its answer."""
        quirks = self._quirks or await self._found_out()
        ask = await settled(ask, self._fetch, urls_pass=self._urls_pass and quirks.image_urls, takes_files=quirks.files)
        if ask.whole and self._always_streams:
            ask = msgspec.structs.replace(ask, whole=False)
        offered = {flat_name(tool.name, tool.namespace): tool for tool in ask.tools}
        return body_of(ask, self._model or model, quirks), ChatReading(ask.id, offered)

    async def _found_out(self) -> Quirks:
        loop = asyncio.get_running_loop()
        async with self._asking:
            # A server that is down, or has no models yet, is not asked anew for each request.
            if self._quirks is None and loop.time() >= self._ask_again_at:
                self._quirks = await quirks_of(self._upstream)
                self._ask_again_at = loop.time() + PROBE_REST_S
            return self._quirks or QUIRKS["generic"]
