"""
Any server that speaks the Realtime API, in either dialect: OpenAI, LocalAI, speaches, another antiphon.

`docs/reference/engine-realtime.md` describes every option.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import structs

from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import BuildContext, Deliver, EngineConversation
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.realtime.conversation import RealtimeUpstreamConversation
from antiphon.engines.realtime.session import ResponseTimeouts
from antiphon.engines.upstream.client import UpstreamClient, UpstreamOptions, parse_capabilities, parse_options
from antiphon.engines.upstream.models import UpstreamModels
from antiphon.open_conversations import OpenConversations
from antiphon.wire.realtime.dialects import DIALECTS, DialectName

DEFAULT_CAPABILITIES = Capabilities(
    images=True,
    audio_in=True,
    tools=True,
    truncation=True,
    temperature=False,
    top_p=False,
    audio_out=True,
    listens=True,
    turn_detection=("server_vad", "semantic_vad"),
    transcribes=True,
    noise_reduction=("near_field", "far_field"),
)
"""The capabilities of OpenAI's server; some other servers have fewer."""

_BETA_HEADER = {"openai-beta": "realtime=v1"}


class RealtimeOptions(UpstreamOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    A model's table in the configuration.

    Attributes:
        model: the model's name at the server; None for the name in the client's request.
        dialect: the server's dialect of the API.
        abilities: fields of `Capabilities` that differ from the default.
    """

    model: str | None = None
    dialect: DialectName = "ga"
    abilities: dict[str, Any] = msgspec.field(default_factory=dict)


def build(model: str, options: Mapping[str, Any], build_context: BuildContext) -> "RealtimeEngine":
    """
    An engine for the model's table in the configuration.

    Raises:
        ServerError: an option is unknown, missing or wrong.
    """
    engine_options = parse_options(RealtimeOptions, model, options)
    if engine_options.base_url[:2] == "ws":  # `wss` and `https` name the same server
        engine_options = structs.replace(engine_options, base_url=engine_options.base_url.replace("ws", "http", 1))
    # The GA dialect has no `temperature`; see `ResponseParams`.
    default = structs.replace(DEFAULT_CAPABILITIES, temperature=engine_options.dialect == "beta")
    capabilities = parse_capabilities(default, engine_options.abilities, model)
    return RealtimeEngine(UpstreamClient(model, engine_options, build_context), engine_options, capabilities)


class RealtimeEngine:
    """
    An engine in front of a Realtime server.

    Attributes:
        upstream: the server.
        dialect: encodes and decodes its events.
        timeouts: of its responses.
        connect_timeout_s: until a connection is open, and again until its session begins.
    """

    def __init__(self, upstream: UpstreamClient, options: RealtimeOptions, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.upstream = upstream
        self.dialect = DIALECTS[options.dialect]
        self.timeouts = ResponseTimeouts(options.timeout_first_byte_s, options.timeout_idle_s)
        self.connect_timeout_s = options.timeout_connect_s
        self._model = options.model
        self._models = UpstreamModels(upstream)
        self._conversations = OpenConversations[RealtimeUpstreamConversation]()

    async def start(self) -> None:
        pass  # an upstream that is down must not keep this server down

    async def list_models(self) -> Sequence[str]:
        return await self._models.get()

    async def stop(self) -> None:
        self._conversations.abort()
        self.upstream.close()

    def address(self, model: str) -> tuple[str, dict[str, str]]:
        headers = (_BETA_HEADER if self.dialect.name == "beta" else {}) | self.upstream.headers
        return self.upstream.websocket_url("/realtime", f"model={quote(self._model or model, safe='')}"), headers

    def open(self, settings: ConversationSettings, deliver: Deliver) -> AbstractAsyncContextManager[EngineConversation]:
        return self._conversations.open(lambda tasks: RealtimeUpstreamConversation(self, settings.model, deliver, tasks))
