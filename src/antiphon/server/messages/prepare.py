"""From a decoded request for a message to its session: the files that it names are loaded, and its tokens are counted."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import cast

from msgspec import Struct
from starlette.types import Scope

from antiphon.engine_api import commands
from antiphon.engine_api.documents import FileContent
from antiphon.engine_api.engine import CountingEngine, Engine
from antiphon.engine_api.options import ConversationSettings
from antiphon.engine_api.token_estimate import estimate_input_tokens
from antiphon.errors import ApiError
from antiphon.offload import offload
from antiphon.protocols.messages.content import file_names, has_thinking
from antiphon.protocols.messages.request import (
    ResolvedMessagesRequest,
    clamp_max_tokens,
    messages_engine_request,
)
from antiphon.protocols.messages.session import MessagesSession
from antiphon.protocols.messages.thinking import Sign, Unsign
from antiphon.protocols.omissions import Omissions
from antiphon.runtime.access.body_budget import BodyLease
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.files.references import FileReference, load_references
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.routing.features import route_caller
from antiphon.runtime.service import Service
from antiphon.server.http.auth import caller_settings, request_caller
from antiphon.server.http.body import BODY_LEASE_SCOPE_KEY
from antiphon.server.http.session_id import make_cache_key
from antiphon.server.messages.routing import message_features, session_id_in
from antiphon.wire.messages.request import CountTokensRequest

COUNT_TIMEOUT_S = 2.0
"""How long a message may wait for the engine to count its input; after that the count is estimated."""


class InputCount(Struct, frozen=True):
    """The tokens of an input, counted by the engine or estimated."""

    tokens: int
    is_estimated: bool


class PreparedMessage(Struct, frozen=True):
    """
    A message that is ready to be made.

    Attributes:
        respond: the engine's command, with `max_tokens` as the client sent it.
        engine: the model's, with the rewrites around it.
        sign: makes the signatures of reasoning; makes none where the client gets no reasoning.
        route_headers: tell the client why it got this model.
    """

    resolved_request: ResolvedMessagesRequest
    respond: commands.Respond
    omissions: Omissions
    model: ServedModel
    engine: Engine
    settings: ConversationSettings
    sign: Sign
    route_headers: Mapping[str, str] = {}

    def session(self, input_tokens: int) -> MessagesSession:
        """
        Its session.

        Args:
            input_tokens: of its input; the answer gets no more than the context window has room for after it.
        """
        # The window is read only here: a model server may not have told it before it was asked to count.
        respond = clamp_max_tokens(self.respond, self.model.engine.capabilities.context_window, input_tokens)
        return MessagesSession(self.resolved_request, respond, new_id, input_tokens, self.sign)


async def prepare_message(service: Service, scope: Scope, request: CountTokensRequest, size_bytes: int) -> PreparedMessage:
    """
    Load all that a request refers to, and translate it.

    Args:
        size_bytes: of the request's JSON.

    Raises:
        ApiError: there is no such model or file, the model has no worker now, or can't do what the request asks.
    """
    caller, session_id = request_caller(scope), session_id_in(scope, request)
    may_omit_tools = service.config.responses.unavailable_tools == "carry"
    resolution = await service.router.resolve(
        request.model, lambda: message_features(request, session_id, may_omit_tools=may_omit_tools), route_caller(caller), size_bytes
    )
    model = resolution.model
    # First: what a model can do is not known while it has no worker.
    model.require_worker()
    capabilities, tenant = model.engine.capabilities, caller.tenant
    settings = caller_settings(caller, model.name, "responses", make_cache_key(session_id))
    lease: BodyLease = scope[BODY_LEASE_SCOPE_KEY]
    documents = await _load_documents(service, request, tenant, lease, fetches_itself=capabilities.files)
    resolved_request = ResolvedMessagesRequest(
        id=new_id("msg"),
        model=model.name,
        request=request,
        capabilities=capabilities,
        # The cipher loads a library and reads its keys, so it is asked for only where there is something to open or to sign.
        unsign=await _unsigning(service, tenant) if has_thinking(request) else _unsign_nothing,
        documents=documents,
        size_bytes=size_bytes + sum(len(document.url) for document in documents.values()),
        omit_unsupported=may_omit_tools,
    )
    engine_request = await offload(resolved_request.size_bytes, messages_engine_request, resolved_request)
    sign = await _signing(service, tenant) if resolved_request.wants_thinking else _sign_nothing
    engine = service.rewriter.around(model.engine, (request.model, model.name), settings.key_id)
    return PreparedMessage(
        resolved_request, engine_request.respond, engine_request.omissions, model, engine, settings, sign, resolution.headers
    )


async def count_input(message: PreparedMessage) -> InputCount:
    """The tokens of a message's input: counted by its engine, or estimated where that can't, fails or takes too long."""
    if message.model.engine.capabilities.counts_tokens:
        with contextlib.suppress(ApiError, TimeoutError):
            async with asyncio.timeout(COUNT_TIMEOUT_S):
                return InputCount(await cast(CountingEngine, message.model.engine).count(message.respond), is_estimated=False)
    tokens = await offload(message.respond.size_bytes, estimate_input_tokens, message.respond)
    return InputCount(tokens, is_estimated=True)


async def _load_documents(
    service: Service, request: CountTokensRequest, tenant: str, lease: BodyLease, *, fetches_itself: bool
) -> Mapping[str, FileContent]:
    # URLs are fetched here, behind this server's guard, unless the engine takes them as they are.
    references = [FileReference(name, path) for name, path in file_names(request)]
    return await load_references(service.files, None if fetches_itself else service.fetch, tenant, references, (), lease, "messages")


async def _signing(service: Service, tenant: str) -> Sign:
    cipher = await service.content_cipher()
    return lambda content: cipher.encrypt(content, tenant, "thinking")


async def _unsigning(service: Service, tenant: str) -> Unsign:
    cipher = await service.content_cipher()

    def unsign(signature: str) -> bytes | None:
        # Another server's or another model's: left out without an error, as people change models within a conversation.
        if not cipher.knows_key(signature):
            return None
        try:
            return cipher.decrypt(signature, tenant, "thinking", "signature")
        except ApiError:  # another tenant's, or it was changed: no reason to fail, as a model can do without it
            return None

    return unsign


def _sign_nothing(_content: bytes) -> str | None:
    return None


def _unsign_nothing(_signature: str) -> bytes | None:
    return None
