"""`POST /v1/responses`: a response, whole or as a stream of events."""

import functools
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Literal, Self, TypeVar

from msgspec import Struct, structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from antiphon.engine_api.engine import Engine
from antiphon.engine_api.options import ConversationSettings
from antiphon.engine_api.routing import RouteDecision
from antiphon.errors import ApiError, ServerError
from antiphon.offload import offload
from antiphon.protocols.responses.include import TOOL_RESULTS
from antiphon.protocols.responses.request import ResolvedRequest
from antiphon.protocols.responses.session import Encrypt, ResponsesSession
from antiphon.records import ResponseRecord
from antiphon.runtime.access.body_budget import BodyLease
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.compaction_engine import CompactingEngine
from antiphon.runtime.conversation_lock import lock_conversation, unlock_conversation
from antiphon.runtime.core.ids import new_id, new_response_id, padding
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.resolve_request import KnownHistory, resolve_request
from antiphon.runtime.rewriting.rewriter import Rewriter
from antiphon.runtime.server_tools import open_tools
from antiphon.runtime.service import Service
from antiphon.server.http.answered_by import rewrite_headers
from antiphon.server.http.auth import caller_settings, request_caller
from antiphon.server.http.body import BODY_LEASE_SCOPE_KEY, read_question
from antiphon.server.http.driving import driving_session
from antiphon.server.http.errors import add_headers, error_response, json_response
from antiphon.server.http.profile import request_encoder
from antiphon.server.http.session_id import make_cache_key, session_id_of
from antiphon.server.responses.event_stream import EventStream, run_stream
from antiphon.server.responses.metrics import ResponseMeasurement
from antiphon.server.responses.omitted import log_omissions, omission_headers
from antiphon.server.responses.routing import RoutedRequest, route_request
from antiphon.stores.base import Store
from antiphon.tools.toolbox import OpenTools
from antiphon.wire.responses.events import TERMINAL_EVENTS, StreamEvent
from antiphon.wire.responses.profiles import without_prefixes
from antiphon.wire.responses.request import CreateRequest, decode_request
from antiphon.wire.responses.summary import ResponseNotes

T = TypeVar("T")


class PreparedResponse(Struct, frozen=True):
    """
    A response that is ready to be made.

    Make it within `async with`, which gives its conversation back, however the making ends.

    Attributes:
        settings: of the engine's conversation.
        answer_headers: tell the client what of its request the model does not get, and why it is this model.
        lease: of the memory that its prompt and its files take.
        encrypt_compaction: encrypts a compaction of the conversation; None where there can't be one.
        rewriter: puts the rewrites around its engine; None for an answer that no client reads.
        tools: runs the tools of the server that the request has; None where it has none.
    """

    request: CreateRequest
    resolved_request: ResolvedRequest
    model: ServedModel
    session: ResponsesSession
    settings: ConversationSettings
    answer_headers: Mapping[str, str]
    store: Store
    lease: BodyLease
    encrypt_compaction: Encrypt | None = None
    rewriter: Rewriter | None = None
    tools: OpenTools | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.lease.release()
        if self.tools is not None:
            self.tools.close()
        # What was stored with its turn has given the conversation back already: then this does nothing.
        if self.resolved_request.conversation_id is not None:
            await unlock_conversation(self.store, self.resolved_request.id)

    @property
    def model_engine(self) -> Engine:
        """The model's own, without what is put around it for this response."""
        return self.model.live_engine if self.resolved_request.is_spoken else self.model.engine

    @property
    def engine(self) -> Engine:
        """What makes the response: the model's own, with rewriting and compaction around it."""
        engine = self.model_engine
        if self.rewriter is not None:  # within the compaction, whose summary is none of the answer
            names, id = (self.request.model or "", self.model.name), self.resolved_request.id
            engine = self.rewriter.around(engine, names, self.settings.key_id, replaces=True, only_response_id=id)
        if self.session.compaction is None or self.encrypt_compaction is None:
            return engine
        return CompactingEngine(engine, self.session.compaction, self.encrypt_compaction)


async def prepare_response(
    service: Service, scope: Scope, request: CreateRequest, size_bytes: int, history: KnownHistory | None = None
) -> PreparedResponse:
    """
    Load all that a request refers to, and make its session.

    Args:
        size_bytes: of the request's JSON.
        history: that of the previous response; None to load it from the store.

    Raises:
        ApiError: as `resolve_request`, or the engine can't do what the request asks, or another response has the
            conversation.
    """
    # Such a profile shows the results of tools in any case, and its clients have no `include` to ask for them.
    if request_encoder(scope).profile.calls_with_output:
        request = structs.replace(request, include=[*(request.include or ()), *TOOL_RESULTS])
    # A lease of its own: a response in the background needs its prompt and its files for longer than the request lives.
    lease = service.body_budget.lease(scope[BODY_LEASE_SCOPE_KEY].holder)
    session_id = session_id_of(scope)
    return await prepare_for_caller(service, request_caller(scope), request, size_bytes, lease, history=history, session_id=session_id)


async def prepare_for_caller(
    service: Service,
    caller: Caller,
    request: CreateRequest,
    size_bytes: int,
    lease: BodyLease,
    record: ResponseRecord | None = None,
    history: KnownHistory | None = None,
    session_id: str = "",
    route: RouteDecision | None = None,
) -> PreparedResponse:
    """
    As `prepare_response`, for a caller without a connection.

    Args:
        lease: is to count what its prompt and its files take; given back at its end.
        record: of the response that is to be made, if it is stored already; then the request is as it was stored with it.
        session_id: what the client calls its conversation, if it does.
        route: why the request was given to its model, where that was decided before.
    """
    added_bytes = 0
    if record is None and request.prompt:  # what is stored has been filled
        filled_request = await service.prompts.fill(caller.tenant, request, size_bytes)
        request, added_bytes = filled_request.request, filled_request.added_bytes
    size_bytes += added_bytes
    response_id = new_response_id() if record is None else record.id
    # Locked before its items are read: what another response adds in between would not be read by this one.
    if (conversation_id := request.conversation_id) is not None:
        await lock_conversation(service.store, caller.tenant, conversation_id, response_id)
    try:
        lease.extend(added_bytes)
        # What was queued keeps the model that was chosen for it, though rules may have changed until it is begun again.
        if route is not None:
            routed_request = RoutedRequest(service.router.restore(route), history)
        else:
            routed_request = await route_request(service, caller, request, size_bytes, history, response_id, session_id)
        cache_key = make_cache_key(session_id, request.prompt_cache_key or None, conversation_id)
        settings = caller_settings(caller, routed_request.resolution.model.name, "responses", cache_key)
        return await _prepare(service, settings, request, size_bytes, routed_request, response_id, record, lease)
    # Cancelled requests as well: no other server takes back the lock of one that lives.
    except BaseException:
        lease.release()
        if conversation_id is not None:
            await unlock_conversation(service.store, response_id)
        raise


async def _prepare(
    service: Service,
    settings: ConversationSettings,
    request: CreateRequest,
    size_bytes: int,
    routed_request: RoutedRequest,
    response_id: str,
    record: ResponseRecord | None,
    lease: BodyLease,
) -> PreparedResponse:
    resolution = routed_request.resolution
    model = resolution.model
    resolved_request = await resolve_request(
        service,
        request,
        model,
        settings.tenant,
        size_bytes,
        lease=lease,
        response_id=response_id,
        created_at=None if record is None else record.created_at,
        history=routed_request.history,
        key_id=settings.key_id or None,
    )
    resolved_request, tools = await open_tools(service.toolbox, service.config.tools, resolved_request)
    encrypt = await _encryption(service, resolved_request.tenant, "reasoning") if resolved_request.encrypts_reasoning else None
    paddings, route = _paddings(service, request), resolution.decision
    session = await offload(resolved_request.engine_bytes, ResponsesSession, resolved_request, new_id, paddings, encrypt, route)
    omitted_headers = omission_headers(session.omissions)
    if omitted_headers:
        log_omissions(session.omissions, model.name)
    encrypt_compaction = None if session.compaction is None else await _encryption(service, settings.tenant, "compaction")
    headers = {**omitted_headers, **resolution.headers}
    return PreparedResponse(
        request, resolved_request, model, session, settings, headers, service.store, lease, encrypt_compaction, service.rewriter, tools
    )


async def _encryption(service: Service, tenant: str, purpose: Literal["reasoning", "compaction"]) -> Encrypt:
    cipher = await service.content_cipher()
    return lambda text: cipher.encrypt(text.encode(), tenant, purpose)


def _paddings(service: Service, request: CreateRequest) -> Sequence[str] | None:
    # Responses, `stream_options.include_obfuscation`: on by default. Padding hides from the network how long each delta is.
    options = request.stream_options
    is_enabled = options.include_obfuscation is not False if options else True
    return padding() if request.stream and is_enabled and service.config.responses.obfuscation else None


CreateBackground = Callable[[Service, Scope, PreparedResponse, bytes, float], Awaitable[Response]]
"""Makes a background response of the request with that body, which came at that time; returns what the client gets."""


class CreateEndpoint:
    """A bare ASGI endpoint, because a stream writes to the transport."""

    def __init__(self, service: Service, create_background: CreateBackground) -> None:
        self._service = service
        self._create_background = create_background

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_at = time.perf_counter()
        # Open Responses puts `openai:` before what it does not know; inside, everything has OpenAI's names (docs/decisions/0036).
        body = without_prefixes(await read_question(self._service, Request(scope, receive)))
        size_bytes = len(body)
        request = await offload(size_bytes, decode_request, body)
        stored_body = body if request.background else b""
        del body  # as large as the request that was made of it
        prepared_response = await prepare_response(self._service, scope, request, size_bytes)
        if request.background:
            background_reply = await self._create_background(self._service, scope, prepared_response, stored_body, started_at)
            await background_reply(scope, receive, send)
            return
        headers = dict(prepared_response.answer_headers)
        heartbeat_s = self._service.config.server.heartbeat_s
        encoder = request_encoder(scope).stream()
        client = EventStream(encoder, scope, send, heartbeat_s, headers) if request.stream else ResponseCollector()
        respond = functools.partial(_run_session, scope, client, prepared_response.session)
        reply = await drive_response(self._service, scope, prepared_response, client, started_at, respond, headers)
        if reply is not None:  # only now, when its tokens are counted, do its headers show the remaining limits
            add_headers(reply, headers | rewrite_headers(prepared_response.session.rewrite_status))
            await reply(scope, receive, send)
        if isinstance(client, EventStream):
            self._service.metrics.stream_events += client.event_count


async def drive_response(
    service: Service,
    scope: Scope,
    prepared_response: PreparedResponse,
    client: "EventStream[StreamEvent] | ResponseCollector",
    started_at: float,
    respond: Callable[[Callable[..., Awaitable[None]]], Awaitable[T]],
    headers: MutableMapping[str, str] | None = None,
) -> T:
    """
    Make a response for the connection of an HTTP request: what `respond` returns, with all around it that counts, limits and
    ends the response.

    Args:
        respond: is given what makes the response; see `Driver.run` for its argument.
        headers: of the answer, which are to say who gives it.
    """
    session, resolved_request, model = prepared_response.session, prepared_response.resolved_request, prepared_response.model
    driving = driving_session(
        service,
        scope,
        session,
        client,
        model=model.name,
        headers={} if headers is None else headers,
        tokens=lambda: session.tokens,
        tools=prepared_response.tools,
    )
    # In this order: `driving` raises where the key may run no more responses, and then what was prepared is given back.
    async with prepared_response, driving as driver:
        with (
            ResponseMeasurement(service, request_caller(scope), resolved_request.id, model, client, started_at),
            service.background.streams.track(resolved_request.id, driver),
        ):
            engine, settings = prepared_response.engine, prepared_response.settings
            return await respond(functools.partial(driver.run, engine, settings, resolved_request, ask=session.ask))


async def _run_session(
    scope: Scope,
    client: "EventStream[StreamEvent] | ResponseCollector",
    session: ResponsesSession,
    run: Callable[..., Awaitable[None]],
) -> Response | None:
    """Run a session. Returns the response that is still to be sent, or None where it was streamed."""
    if isinstance(client, ResponseCollector):
        await run()
        return client.response(scope, session.notes)
    if await run_stream(client, run):
        return None
    return error_response(client.error or ServerError("The stream ended before it began."), scope)


class ResponseCollector:
    """The client of a response that is not streamed: it keeps the last event."""

    def __init__(self) -> None:
        self.first_token_at: float | None = None  # no stream, so no first token
        self.last_event: StreamEvent | None = None
        self.error: ApiError | None = None

    def send(self, event: StreamEvent) -> None:
        self.last_event = event

    def flush(self) -> None:
        """Nothing is sent before the end."""

    def close(self, error: ApiError | None) -> None:
        self.error = error

    def response(self, scope: Scope, notes: ResponseNotes | None) -> Response:
        """The HTTP response, in the profile of its request; `notes` are the session's."""
        if self.error is not None:
            return error_response(self.error, scope)
        if not isinstance(self.last_event, TERMINAL_EVENTS):
            return Response(status_code=499)  # the client hung up; only the log sees this
        return json_response(request_encoder(scope).encode_response(self.last_event.response, notes))
