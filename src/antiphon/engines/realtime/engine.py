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

from antiphon.engine_api.capabilities import Abilities
from antiphon.engine_api.engine import Conversation, Deliver, Place
from antiphon.engine_api.options import Settings
from antiphon.engines.realtime.conversation import RealtimeConversation
from antiphon.engines.realtime.session import Patience
from antiphon.engines.upstream.client import Upstream, UpstreamOptions, abilities_from, options_from
from antiphon.engines.upstream.models import Names
from antiphon.wire.realtime.dialects import DIALECTS, DialectName

USUAL = Abilities(
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
        abilities: what it can do otherwise than is usual; fields of `talk.Abilities`.
    """

    model: str | None = None
    dialect: DialectName = "ga"
    abilities: dict[str, Any] = msgspec.field(default_factory=dict)


def build(model: str, options: Mapping[str, Any], place: Place) -> "RealtimeEngine":
    """
    An engine for the model's table in the configuration.

    Raises:
        OurFault: an option is unknown, missing or wrong.
    """
    chosen = options_from(RealtimeOptions, model, options)
    # `wss` and `https` say the same of where a server is.
    chosen = structs.replace(chosen, base_url=chosen.base_url.replace("ws", "http", 1) if chosen.base_url[:2] == "ws" else chosen.base_url)
    usual = structs.replace(USUAL, temperature=chosen.dialect == "beta")
    return RealtimeEngine(Upstream(model, chosen, place), chosen, abilities_from(usual, chosen.abilities, model))


class RealtimeEngine:
    """
    An engine behind which a Realtime server hears and answers.

    Attributes:
        upstream: the server.
        dialect: how its events stand in frames.
        patience: how long an answer is waited for.
        connect_s: the longest that connecting may take, and beginning a session after that.
    """

    def __init__(self, upstream: Upstream, options: RealtimeOptions, abilities: Abilities) -> None:
        self.abilities = abilities
        self.upstream = upstream
        self.dialect = DIALECTS[options.dialect]
        self.patience = Patience(options.timeout_first_byte_s, options.timeout_idle_s)
        self.connect_s = options.timeout_connect_s
        self._model = options.model
        self._names = Names(upstream)
        self._conversations: set[RealtimeConversation] = set()

    async def start(self) -> None:
        """Nothing yet: an upstream that is down must not keep this server down."""

    async def names(self) -> Sequence[str]:
        """The models upstream, those last known where it can't be asked."""
        return await self._names.get()

    async def stop(self) -> None:
        """Let go of everything; answers under way break."""
        for conversation in tuple(self._conversations):
            conversation.shut()
        self.upstream.close()

    def address(self, model: str) -> tuple[str, dict[str, str]]:
        """The URL and the headers that a connection for `model` is opened with."""
        headers = (_BETA_HEADER if self.dialect.name == "beta" else {}) | self.upstream.headers
        return self.upstream.socket_url("/realtime", f"model={quote(self._model or model, safe='')}"), headers

    @contextlib.asynccontextmanager
    async def open(self, settings: Settings, deliver: Deliver) -> AsyncIterator[Conversation]:
        """A conversation, with a connection of its own as soon as there is something to say."""
        async with asyncio.TaskGroup() as tasks:
            conversation = RealtimeConversation(self, settings.model, deliver, tasks)
            self._conversations.add(conversation)
            try:
                yield conversation
            finally:
                self._conversations.discard(conversation)
                conversation.hush()
