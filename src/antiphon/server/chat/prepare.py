"""
Making a chat ready to be answered.

`prepare_chat` is the one place where the ways meet: a chat is passed on as it came to an engine whose server speaks this
protocol itself, or mapped to what every engine understands.
"""

from msgspec import UNSET
from starlette.types import Scope

from antiphon.offload import offload
from antiphon.protocols.chat.session import ChatSession
from antiphon.runtime.core.ids import new_id, padding
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.resolve_chat import resolve_chat
from antiphon.runtime.service import Service
from antiphon.server.chat.prepared import NOT_STORED, PreparedChat
from antiphon.server.chat.relay import prepare_relayed_chat
from antiphon.server.chat.spoken import check_audio_format
from antiphon.server.http.auth import caller_settings, request_caller
from antiphon.server.http.body import BODY_LEASE_SCOPE_KEY
from antiphon.wire.chat.request import ChatRequest, decode_chat_request
from antiphon.wire.chat.stream import ChunkEncoder


async def prepare_mapped(service: Service, scope: Scope, request: ChatRequest, size_bytes: int, model: ServedModel) -> PreparedChat:
    """
    Load what a chat refers to, and make the session that maps it for its engine.

    Raises:
        ApiError: as `resolve_chat`, or the engine can't do what the request asks.
    """
    caller = request_caller(scope)
    check_audio_format(request)
    lease = service.body_budget.lease(scope[BODY_LEASE_SCOPE_KEY].holder)
    try:
        chat = await resolve_chat(service, request, model, caller.tenant, size_bytes, lease)
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


async def prepare_chat(service: Service, scope: Scope, body: bytes) -> PreparedChat:
    """
    Make the session that answers a request.

    Raises:
        ApiError: the request is invalid, or there is no such model, or it can't do what the request asks.
    """
    if (chat := await prepare_relayed_chat(service, scope, body)) is not None:
        return chat
    request = await offload(len(body), decode_chat_request, body)
    return await prepare_mapped(service, scope, request, len(body), service.registry.find(request.model or None))
