"""
A chat that is ready to be answered, in whichever way its model is reached.

`PREPARERS` is the one place where the ways meet: a chat is mapped to the words that every engine understands, or relayed
as it came to an engine whose server speaks this protocol itself.
"""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

from msgspec import UNSET, Struct
from starlette.types import Scope

from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import Engine
from antiphon.engine_api.options import ConversationSettings
from antiphon.offload import offload
from antiphon.protocols.chat.session import ChatSession
from antiphon.protocols.session import Session
from antiphon.runtime.access.body_budget import BodyLease
from antiphon.runtime.core.ids import new_id, padding
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.resolve_chat import resolve_chat
from antiphon.runtime.service import Service
from antiphon.server.chat.outcome import MeasuredChat
from antiphon.server.chat.spoken import check_audio_format
from antiphon.server.http.auth import caller_settings, request_caller
from antiphon.server.http.body import BODY_LEASE_SCOPE_KEY
from antiphon.server.responses.event_stream import StreamEncoder
from antiphon.wire.chat.request import ChatRequest
from antiphon.wire.chat.stream import ChunkEncoder, RoleChunk

RELAY_PATH = "chat/completions"

NOT_STORED = MappingProxyType({"antiphon-not-stored": "1"})
"""Says that `store` was taken and not done: clients that always send it would fail at an error."""

Way = Literal["mapped", "relayed"]


class ReceivedChat(Struct, frozen=True):
    """A request as it came: `body` is its JSON."""

    request: ChatRequest
    body: bytes
    model: ServedModel


class PreparedChat(Struct, frozen=True, kw_only=True):
    """
    A chat that is ready to be answered.

    Attributes:
        session: answers it; its events are those of `encoder`, or end with a whole answer.
        opening: what the session begins with.
        record: the session, for the metrics and the limits.
        encoder: writes the stream; None for an answer that is sent whole.
        opening_events: types of events that come before any output.
        choice_count: how many responses it makes, each of which counts against the limits of a key.
        lease: of the memory that its files take.
        headers: of the answer.
    """

    session: Session[Any, Any]
    opening: object
    record: MeasuredChat
    engine: Engine
    settings: ConversationSettings
    model: ServedModel
    lease: BodyLease
    encoder: StreamEncoder[Any] | None
    opening_events: tuple[type, ...] = (RoleChunk,)
    choice_count: int = 1
    audio_format: str | None = None
    headers: Mapping[str, str] = {}


Prepare = Callable[[Service, Scope, ReceivedChat], Awaitable[PreparedChat]]


def choose_way(capabilities: Capabilities, request: ChatRequest) -> Way:
    """How a chat reaches an engine: as it came where the engine takes it so, unless this server has something to add."""
    needs_voice = request.is_spoken and not capabilities.audio_out
    return "relayed" if RELAY_PATH in capabilities.relays and not needs_voice else "mapped"


async def prepare_mapped(service: Service, scope: Scope, incoming: ReceivedChat) -> PreparedChat:
    """
    Load what a chat refers to, and make the session that maps it for its engine.

    Raises:
        ApiError: as `resolve_chat`, or the engine can't do what the request asks.
    """
    request, model, caller = incoming.request, incoming.model, request_caller(scope)
    check_audio_format(request)
    lease = service.body_budget.lease(scope[BODY_LEASE_SCOPE_KEY].holder)
    try:
        chat = await resolve_chat(service, request, model, caller.tenant, len(incoming.body), lease)
        session = await offload(chat.size_bytes, ChatSession, chat, new_id)
    except BaseException:
        lease.release()
        raise
    encoder = None
    if request.is_stream:
        options = request.stream_options
        hides_sizes = bool(options) and options.include_obfuscation is True and service.config.responses.obfuscation  # type: ignore[union-attr]
        encoder = ChunkEncoder(
            chat.id,
            chat.created_at,
            chat.model,
            choice_count=request.choice_count,
            includes_usage=request.includes_usage,
            service_tier="default" if request.service_tier else UNSET,
            paddings=padding() if hides_sizes else None,
        )
    return PreparedChat(
        session=session,
        opening=chat,
        record=session,
        engine=model.live_engine if request.is_spoken else model.engine,
        settings=caller_settings(caller, model.name, "responses"),
        model=model,
        lease=lease,
        encoder=encoder,
        choice_count=request.choice_count,
        audio_format=request.audio.format if request.is_spoken and request.audio else None,
        headers=NOT_STORED if request.store is True else {},
    )


PREPARERS: Mapping[Way, Prepare] = {"mapped": prepare_mapped}
"""The ways that there are; a chat that could go another one is mapped."""


async def prepare_chat(service: Service, scope: Scope, request: ChatRequest, body: bytes) -> PreparedChat:
    """
    Make the session that answers a request.

    Raises:
        ApiError: there is no such model, or it can't do what the request asks.
    """
    model = service.registry.find(request.model or None)
    prepare = PREPARERS.get(choose_way(model.engine.capabilities, request), prepare_mapped)
    return await prepare(service, scope, ReceivedChat(request, body, model))
