"""
Any server that speaks the Realtime API, in either dialect: OpenAI, LocalAI, speaches, another antiphon.

`docs/reference/engine-realtime.md` describes every option.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
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
"""What the original can do; of other servers some can do less."""

_BETA_HEADER = {"openai-beta": "realtime=v1"}


class RealtimeOptions(UpstreamOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    What the configuration says of a model behind the Realtime API.

    Attributes:
        model: its name there; None for the name that the client asked for.
        dialect: which the server speaks.
        abilities: what it can do otherwise than is usual; fields of `Capabilities`.
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
    chosen = parse_options(RealtimeOptions, model, options)
    # `wss` and `https` say the same of where a server is.
    chosen = structs.replace(chosen, base_url=chosen.base_url.replace("ws", "http", 1) if chosen.base_url[:2] == "ws" else chosen.base_url)
    usual = structs.replace(DEFAULT_CAPABILITIES, temperature=chosen.dialect == "beta")
    return RealtimeEngine(UpstreamClient(model, chosen, build_context), chosen, parse_capabilities(usual, chosen.abilities, model))


class RealtimeEngine:
    """
    An engine behind which a Realtime server hears and answers.

    Attributes:
        upstream: the server.
        dialect: how its events stand in frames.
        patience: how long an answer is waited for.
        connect_s: the longest that connecting may take, and beginning a session after that.
    """

    def __init__(self, upstream: UpstreamClient, options: RealtimeOptions, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.upstream = upstream
        self.dialect = DIALECTS[options.dialect]
        self.timeouts = ResponseTimeouts(options.timeout_first_byte_s, options.timeout_idle_s)
        self.connect_timeout_s = options.timeout_connect_s
        self._model = options.model
        self._models = UpstreamModels(upstream)
        self._conversations: set[RealtimeUpstreamConversation] = set()

    async def start(self) -> None:
        """Nothing yet: an upstream that is down must not keep this server down."""

    async def list_models(self) -> Sequence[str]:
        """The models upstream, those last known where it can't be asked."""
        return await self._models.get()

    async def stop(self) -> None:
        """Let go of everything; answers under way break."""
        for conversation in tuple(self._conversations):
            conversation.abort()
        self.upstream.close()

    def address(self, model: str) -> tuple[str, dict[str, str]]:
        """The URL and the headers that a connection for `model` is opened with."""
        headers = (_BETA_HEADER if self.dialect.name == "beta" else {}) | self.upstream.headers
        return self.upstream.websocket_url("/realtime", f"model={quote(self._model or model, safe='')}"), headers

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        """A conversation, with a connection of its own as soon as there is something to say."""
        async with asyncio.TaskGroup() as tasks:
            conversation = RealtimeUpstreamConversation(self, settings.model, deliver, tasks)
            self._conversations.add(conversation)
            try:
                yield conversation
            finally:
                self._conversations.discard(conversation)
                conversation.close()
