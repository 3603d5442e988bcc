"""Background responses over HTTP: created, streamed from any point, and cancelled."""

import time
from collections.abc import Mapping
from contextlib import AsyncExitStack

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from antiphon.errors import ApiError, ClientError, response_not_found
from antiphon.offload import offload
from antiphon.records import BackgroundRecord, EventRun, ResponseRecord
from antiphon.runtime.access.body_budget import BodyLease
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.background.ending import cancel_response
from antiphon.runtime.background.follow import Follower
from antiphon.runtime.background.journal import encode_run
from antiphon.runtime.background.runner import BackgroundResponse
from antiphon.runtime.service import Service
from antiphon.server.http.auth import EndpointFunction, request_caller
from antiphon.server.http.body import BODY_LEASE_SCOPE_KEY
from antiphon.server.http.errors import json_response
from antiphon.server.http.profile import request_encoder
from antiphon.server.responses.create import PreparedResponse, prepare_for_caller
from antiphon.server.responses.event_stream import HEADERS
from antiphon.server.responses.metrics import ResponseMeasurement
from antiphon.server.responses.queued_request import decode_queued, encode_queued
from antiphon.server.transport import connection
from antiphon.wire.codec.reading import read_query
from antiphon.wire.codec.response_ids import read_response_id
from antiphon.wire.responses.endpoints import RetrieveQuery
from antiphon.wire.responses.profiles import EventEncoder


async def create_background(
    service: Service, scope: Scope, prepared_response: PreparedResponse, body: bytes, started_at: float
) -> Response:
    """
    Store a background response and have it made.

    Args:
        body: of the request, with which another server can begin again.

    Returns:
        The queued response, or the stream of its events.

    Raises:
        ApiError: too many background responses are waiting, or the store failed.
    """
    runner, caller = service.background, request_caller(scope)
    key_id = prepared_response.settings.key_id
    async with AsyncExitStack() as failure:
        await failure.enter_async_context(prepared_response)
        runner.admit(key_id)
        failure.callback(runner.release, key_id)
        response = await _store_queued(service, caller, prepared_response, body, started_at)
        failure.pop_all()  # from here on, the response gives back what it has
    # The request stays in memory until its response ends, and not just until this answer, so its bytes stay counted.
    request_lease: BodyLease = scope[BODY_LEASE_SCOPE_KEY]
    response.limits.callback(request_lease.hand_over().release)
    runner.submit(response)
    encoder = request_encoder(scope)
    if not prepared_response.request.stream:
        return json_response(
            encoder.encode_body(response.record.body, response.record.notes), headers=dict(prepared_response.answer_headers)
        )
    return _event_replay(service, encoder, response.record, after=-1, headers=prepared_response.answer_headers)


async def _store_queued(
    service: Service, caller: Caller, prepared_response: PreparedResponse, body: bytes, started_at: float
) -> BackgroundResponse:
    record, events = prepared_response.session.queue()
    run = encode_run(0, events) if prepared_response.request.stream else None
    limits = await _hold_limits(caller, prepared_response)
    try:
        request = None
        if service.background.restarts_queued:
            route, tenant = prepared_response.session.route, prepared_response.settings.tenant
            request = await encode_queued(service, prepared_response.request, body, route, tenant)
        background = BackgroundRecord(key_id=prepared_response.settings.key_id or None, request=request, is_streamed=run is not None)
        await service.store.background.add(record, background, run)
    except BaseException:
        await limits.aclose()
        raise
    return _background_response(service, caller, prepared_response, record, run, limits, started_at)


def _background_response(
    service: Service,
    caller: Caller,
    prepared_response: PreparedResponse,
    record: ResponseRecord,
    run: EventRun | None,
    limits: AsyncExitStack,
    started_at: float,
) -> BackgroundResponse:
    journal = service.background.new_journal(record, run)
    return BackgroundResponse(
        record=record,
        key=caller.key,
        rank=service.background.order.rank(
            record.tenant, record.model, prepared_response.request.background_options or None, record.created_at
        ),
        journal=journal,
        session=prepared_response.session,
        engine=prepared_response.engine,
        settings=prepared_response.settings,
        opening=prepared_response.resolved_request,
        tools=prepared_response.tools,
        limits=limits,
        measure=lambda: ResponseMeasurement(service, caller, record.id, prepared_response.model, journal, started_at, is_background=True),
    )


async def _hold_limits(caller: Caller, prepared_response: PreparedResponse, *, is_admitted: bool = False) -> AsyncExitStack:
    """
    What is given back at a response's end: its place among those of its key, and then its conversation.

    Args:
        is_admitted: whether it is made though its key's limits are reached.
    """
    session = prepared_response.session
    async with AsyncExitStack() as limits:
        await limits.enter_async_context(prepared_response)
        try:
            if caller.allowance is not None:
                await limits.enter_async_context(caller.allowance.track_response(lambda: session.tokens))
        except ApiError:
            if not is_admitted:
                raise
        return limits.pop_all()


async def restart(service: Service, caller: Caller, record: ResponseRecord, body: bytes) -> BackgroundResponse:
    """
    Make a response ready that another server left queued.

    Args:
        body: of its request.

    Raises:
        ApiError: the request can't be met any more.
    """
    request, route = await decode_queued(service, body, record.tenant)
    # It was admitted before its server died, so limits that are reached by now don't fail it.
    lease = service.body_budget.lease(caller.key.id if caller.key else "", is_admitted=True)
    prepared_response = await prepare_for_caller(service, caller, request, len(body), lease, record, route=route)
    limits = await _hold_limits(caller, prepared_response, is_admitted=True)
    _, events = prepared_response.session.queue()  # they are stored; the session goes on after them
    run = encode_run(0, events) if request.stream else None
    return _background_response(service, caller, prepared_response, record, run, limits, time.perf_counter())


# Streaming again


def response_id_of(request: Request) -> str:
    """The id in the path of a request that reads or deletes a response."""
    response_id: str = read_response_id(request.path_params["id"])
    if response_id in ("input_tokens", "compact"):  # paths of their own, which take POST only
        raise HTTPException(405)
    return response_id


def retrieve(service: Service) -> EndpointFunction:
    """The endpoint that returns a response, or the stream of its events."""

    async def endpoint(request: Request) -> Response:
        tenant, response_id = request_caller(request.scope).tenant, response_id_of(request)
        record = await service.store.get(tenant, response_id)
        if record is None:
            raise response_not_found(response_id)
        query, encoder = read_query(RetrieveQuery, request.query_params.multi_items()), request_encoder(request.scope)
        if not query.stream:
            return json_response(await offload(len(record.body), encoder.encode_body, record.body, record.notes))
        after = query.starting_after if isinstance(query.starting_after, int) else -1
        # Before the head, so that what is wrong can still be an HTTP error.
        page = await service.store.background.events(tenant, response_id, 0, 1)
        if page is None:
            raise ClientError(
                "This response can't be streamed: only responses created with 'background' and 'stream' can be.", param="stream"
            )
        if page.is_expired:
            raise ClientError("This response can't be streamed any more: its events were deleted some time after its end.", param="stream")
        obfuscation = query.include_obfuscation if isinstance(query.include_obfuscation, bool) else None
        return _event_replay(service, encoder, record, after=after, obfuscation=obfuscation)

    return endpoint


def _event_replay(
    service: Service,
    encoder: EventEncoder,
    record: ResponseRecord,
    *,
    after: int,
    obfuscation: bool | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    follower = Follower(
        service.store,
        encoder,
        service.background.journals,
        record.tenant,
        record.id,
        after=after,
        heartbeat_s=service.config.server.heartbeat_s,
        obfuscation=obfuscation,
    )
    return EventReplay(service, record.id, follower, encoder.stream_end, headers or {})


class EventReplay(Response):
    """A stream of stored events. The response goes on when its reader leaves."""

    def __init__(self, service: Service, response_id: str, follower: Follower, stream_end: bytes, headers: Mapping[str, str]) -> None:
        super().__init__()
        self._service = service
        self._response_id = response_id
        self._follower = follower
        self._stream_end = stream_end
        self._head = [*HEADERS, *((name.encode(), value.encode()) for name, value in headers.items())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._head})
        with self._service.live_sessions.track(self), connection.from_scope(scope).notify(self):
            async for page in self._follower.pages():
                # Waits while the client is behind, so that no more than a page is in memory.
                await send({"type": "http.response.body", "body": page, "more_body": True})
        await send({"type": "http.response.body", "body": self._stream_end, "more_body": False})

    def hang_up(self) -> None:
        self._follower.stop()

    def shut_down(self, _error: ApiError) -> None:
        # What is made here ends now, and its last events say why. For the rest the client goes on at another server, after the
        # last event it has got.
        if not self._service.background.is_making(self._response_id):
            self._follower.stop()

    def pause(self) -> None:
        """Do nothing: `send` waits."""

    def resume(self) -> None:
        """Do nothing: `send` returns when the client has caught up."""


# Cancelling


def cancel(service: Service) -> EndpointFunction:
    """The endpoint that cancels a background response."""

    async def endpoint(request: Request) -> Response:
        tenant, response_id = request_caller(request.scope).tenant, response_id_of(request)
        record = await service.store.get(tenant, response_id)
        if record is None:
            raise response_not_found(response_id)
        if await service.store.background.get(tenant, response_id) is None:
            raise ClientError("Cannot cancel a synchronous response.")
        # The store decides: the server that makes the response finds its next write refused. The rest stops the model sooner.
        await cancel_response(service.store, record)
        service.background.stop_everywhere(response_id)
        record = await service.store.get(tenant, response_id)
        if record is None:  # deleted meanwhile
            raise response_not_found(response_id)
        return json_response(await offload(len(record.body), request_encoder(request.scope).encode_body, record.body, record.notes))

    return endpoint
