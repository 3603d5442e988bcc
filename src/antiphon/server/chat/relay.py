"""Requests that are passed on as they came: which ones are, and their sessions."""

import msgspec
from msgspec import Struct
from starlette.types import Scope

from antiphon.engine_api import commands
from antiphon.engine_api.capabilities import Capabilities
from antiphon.protocols.chat.relay import RelayEncoder, RelaySession
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.routing.router import Resolution
from antiphon.runtime.service import Service
from antiphon.server.chat.prepared import NOT_STORED, PreparedChat
from antiphon.server.http.auth import caller_settings, request_caller
from antiphon.server.http.body import BODY_LEASE_SCOPE_KEY
from antiphon.server.http.session_id import make_cache_key, session_id_of
from antiphon.wire.codec.structure import check_structure

CHAT_PATH = "chat/completions"

MAX_VALUES = 400_000
"""
The most JSON values of a request that is passed on. OpenAI takes 300,000 tokens for embeddings, each of which may be a
number; few of the values are decoded.
"""

_OWN_FILES = b'"file_id"'
"""
What a request has that names files uploaded to this server, which its model's server lacks. A text that has it too is
only mapped without need.
"""


class RelayHead(Struct):
    """What this server needs to know of a request that it passes on; all else is for the model's server to check."""

    model: str | None = None
    stream: bool | None = None
    n: int | None = None
    best_of: object = None
    modalities: list[str] | None = None
    prompt_cache_key: str | None = None
    store: bool | None = None
    web_search_options: dict[str, object] | None = None

    @property
    def is_spoken(self) -> bool:
        """Whether the answer has audio."""
        return "audio" in (self.modalities or ())

    @property
    def must_be_whole(self) -> bool:
        """Whether its answer can't be streamed."""
        # OpenAI's reference: streams have no audio but `pcm16`, and "results cannot be streamed" with `best_of`.
        return self.is_spoken or self.best_of not in (None, 1)


def read_head(body: bytes) -> RelayHead | None:
    """
    The head of a request; None for what is no such request, and has to be read in full to say why.

    Raises:
        ClientError: it has too many values, or too many levels.
    """
    check_structure(body, MAX_VALUES)
    try:
        return msgspec.json.decode(body, type=RelayHead)
    except (ValueError, RecursionError):
        return None


def can_relay(capabilities: Capabilities, head: RelayHead, body: bytes) -> bool:
    """Whether a chat can be passed on as it came: its engine takes it so, and this server has nothing to add."""
    needs_voice = head.is_spoken and not capabilities.audio_out
    return CHAT_PATH in capabilities.relays and not needs_voice and _OWN_FILES not in body


def prepare_relay(
    service: Service, scope: Scope, path: str, body: bytes, head: RelayHead, resolution: Resolution[ServedModel]
) -> PreparedChat:
    """The session that passes a request on to the model's server, below `path` of its API."""
    model = resolution.model
    # The Embeddings API has no streams, whatever the request says.
    is_stream = bool(head.stream) and path != "embeddings"
    # The answer repeats the name in the request, but for a route: there the client learns which model it got.
    answer_model = model.name if resolution.decision is not None else ""
    must_be_whole = head.must_be_whole or path == "embeddings"
    relay = commands.Relay(id=new_id("relay"), path=path, body=body, stream=is_stream, model=answer_model, must_be_whole=must_be_whole)
    cache_key = make_cache_key(session_id_of(scope), head.prompt_cache_key)
    session = RelaySession(relay, model.engine.capabilities.context_window, keeps_content=service.config.logging.content)
    return PreparedChat(
        session=session,
        opening=relay,
        result=session,
        engine=model.engine,
        settings=caller_settings(request_caller(scope), model.name, "responses", cache_key),
        model=model,
        lease=service.body_budget.lease(scope[BODY_LEASE_SCOPE_KEY].holder),
        encoder=RelayEncoder() if is_stream else None,
        opening_events=(),
        # Each takes a place of the key's. `n` is the model server's to check, so it is bounded here: 128 is OpenAI's most.
        choice_count=min(max(head.n or 1, 1), 128),
        protocol="chat" if path == CHAT_PATH else path,
        headers={**resolution.headers, **(NOT_STORED if head.store is True else {})},
    )
