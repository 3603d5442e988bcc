"""
Makes a chat ready to be answered.

`prepare_chat` is where the two ways part: a chat is passed on as it came, to an engine whose server speaks this protocol
itself, or mapped to what every engine understands.
"""

from msgspec import UNSET
from starlette.types import Scope

from antiphon.offload import offload
from antiphon.protocols.chat.session import ChatSession
from antiphon.runtime.core.ids import new_id, padding
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.resolve_chat import resolve_chat
from antiphon.runtime.routing.features import route_caller
from antiphon.runtime.routing.router import Resolution
from antiphon.runtime.server_tools import open_search
from antiphon.runtime.service import Service
from antiphon.server.chat.prepared import NOT_STORED, PreparedChat
from antiphon.server.chat.relay import CHAT_PATH, can_relay, prepare_relay, read_head
from antiphon.server.chat.routing import chat_features
from antiphon.server.chat.spoken import check_audio_format
from antiphon.server.http.auth import caller_settings, request_caller
from antiphon.server.http.body import BODY_LEASE_SCOPE_KEY
from antiphon.server.http.session_id import make_cache_key, session_id_of
from antiphon.wire.chat.request import ChatRequest, decode_chat_request
from antiphon.wire.chat.stream import ChunkEncoder


async def prepare_mapped(
    service: Service, scope: Scope, request: ChatRequest, size_bytes: int, resolution: Resolution[ServedModel]
) -> PreparedChat:
    """
    Load what a chat refers to, and make the session that maps it for its engine.

    Raises:
        ApiError: as `resolve_chat`, or the engine can't do what the request asks.
    """
    caller, model = request_caller(scope), resolution.model
    cache_key = make_cache_key(session_id_of(scope), request.prompt_cache_key or None)
    settings = caller_settings(caller, model.name, "responses", cache_key)
    # Before any file is fetched, or any model asked.
    check_audio_format(request)
    lease = service.body_budget.lease(scope[BODY_LEASE_SCOPE_KEY].holder)
    try:
        chat = await resolve_chat(service, request, model, caller.tenant, size_bytes, lease)
        chat, tools = open_search(service.toolbox, service.config.tools, chat, caller.tenant)
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
    # Only the live engine has the server's voice around a model that doesn't speak.
    engine = model.live_engine if request.is_spoken else model.engine
    return PreparedChat(
        session=session,
        opening=chat,
        result=session,
        engine=service.rewriter.around(engine, (request.model or "", model.name), settings.key_id),
        settings=settings,
        model=model,
        lease=lease,
        tools=tools,
        encoder=encoder,
        choice_count=request.choice_count,
        audio_format=request.audio.format if request.is_spoken and request.audio else None,
        headers={**resolution.headers, **(NOT_STORED if request.store is True else {})},
    )


async def prepare_chat(service: Service, scope: Scope, body: bytes) -> PreparedChat:
    """
    Make the session that answers a request. It is passed on to the model's server, unless it has to be mapped: because its
    model is not behind such a server, or has its answers rewritten, or because the request is wrong, or needs what this
    server adds: a voice, or uploaded files.

    Raises:
        ApiError: the request is invalid, or there is no such model, or it can't do what the request asks.
    """
    # A wrong request has no head. It is read in full, which names the field at fault.
    head, size_bytes = await offload(len(body), read_head, body), len(body)
    request = await offload(size_bytes, decode_chat_request, body) if head is None else None
    name = head.model if request is None and head is not None else request.model if request is not None else None
    caller, session_id = request_caller(scope), session_id_of(scope)
    resolution = await service.router.resolve(name or None, lambda: chat_features(body, session_id), route_caller(caller), size_bytes)
    model = resolution.model
    # A search of this server is its tool, which a request that is passed on can't call.
    searches_here = head is not None and head.web_search_options is not None and "web_search" in service.toolbox.types
    if head is not None and not searches_here and can_relay(model.engine.capabilities, head, body):
        key_id = caller.key.id if caller.key else ""
        # A rewrite needs the answer in the words of our own engines (record 0034).
        if not service.rewriter.is_for((name or "", model.name), key_id):
            return prepare_relay(service, scope, CHAT_PATH, body, head, resolution)
    if request is None:
        request = await offload(size_bytes, decode_chat_request, body)
    return await prepare_mapped(service, scope, request, size_bytes, resolution)
