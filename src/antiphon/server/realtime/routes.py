"""
`GET /v1/realtime`: opens Realtime sessions.

Everything is checked before the WebSocket is accepted and before an engine is opened. A refusal is an HTTP error. With
`realtime.auth_failure = "event"` it is what OpenAI does: the WebSocket is accepted, gets one `error` event, and is
closed.
"""

import contextlib
from collections.abc import Sequence

from starlette.datastructures import Headers, QueryParams
from starlette.types import Receive, Scope, Send

from antiphon.errors import ClientError
from antiphon.protocols.realtime.settings import RealtimeSessionConfig
from antiphon.runtime.access.keys import CLIENT_SECRET_PREFIX, Caller
from antiphon.runtime.core.driver import Driver
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.core.sessions import LiveSession
from antiphon.runtime.recording.recorder import RecordingTap
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.server_tools import session_tools
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, conversation_settings, credential, request_caller, token_counter, track_response
from antiphon.server.http.operation import MODEL_NOT_FOUND, UNAVAILABLE, UPGRADE_REQUIRED, Operation, Parameter
from antiphon.server.live.client import close_reason, session_failed
from antiphon.server.live.handshake import check_handshake, upgrade
from antiphon.server.live.recording import observe_with, realtime_recording_taps
from antiphon.server.live.session_log import log_realtime_session, realtime_taps
from antiphon.server.realtime.client import RealtimeClient
from antiphon.server.realtime.negotiation import SESSION_PARAMETERS, build_session, build_session_config, negotiate_dialect, select_model
from antiphon.server.realtime.sideband import SidebandListener, sideband_client
from antiphon.server.transport import connection
from antiphon.server.transport.websocket import ServerWebSocket
from antiphon.wire.realtime.dialects import DIALECTS, DialectName
from antiphon.wire.realtime.server_events import ErrorEvent, RealtimeError
from antiphon.wire.realtime.session import decode_session

UNAUTHORIZED_CODE, REFUSED_CODE = 3000, 4000
"""
WebSocket close codes for a bad key, and for a bad request. 3000 is registered with IANA as "Unauthorized"; 4000 is from
the range that RFC 6455 (7.4.2) leaves to applications.
"""

_CROSS_SITE_CODES = ("host_not_allowed", "origin_not_allowed")
"""Refusals of pages of other sites: no WebSocket for them, so that the page can't read why."""

PRESET_SCOPE_KEY = "antiphon.preset"
"""Key in the ASGI scope for the session that the client secret carries."""


def routes(service: Service) -> list[GuardedRoute]:
    """The paths of Azure's clients. Its preview speaks the beta dialect, unless the client asks for another."""
    azure = open_session_operation("openSessionOnAzure", "The same, for Azure's clients")
    preview = open_session_operation("openSessionOnAzurePreview", "The same, for clients of Azure's preview")
    return [
        RealtimeRoute("/openai/v1/realtime", RealtimeEndpoint(service, "ga"), service=service, access="realtime", operation=azure),
        RealtimeRoute("/openai/realtime", RealtimeEndpoint(service, "beta"), service=service, access="realtime", operation=preview),
    ]


def open_session_operation(id: str, summary: str, *, description: str = "", parameters: Sequence[Parameter] = ()) -> Operation:
    """The operation of a path for WebSockets; `description` and `parameters` are added."""
    return Operation(
        id,
        "Realtime",
        summary,
        errors=MODEL_NOT_FOUND | {400: "A parameter is invalid.", 426: UPGRADE_REQUIRED, 503: UNAVAILABLE},
        query=[*SESSION_PARAMETERS, *parameters],
        description="The request must be a WebSocket handshake, and gets status 101. The reference of the Realtime API has the events "
        f"that follow. {description}".rstrip(),
    )


class RealtimeRoute(GuardedRoute):
    """A route that also accepts client secrets, and that may report refusals on the WebSocket."""

    async def identify(self, scope: Scope, headers: Headers) -> Caller:
        secret = credential(headers)
        if secret is None or not secret.startswith(CLIENT_SECRET_PREFIX):
            return await super().identify(scope, headers)
        client_secret = await self.service.client_secrets.redeem(secret)
        scope[PRESET_SCOPE_KEY] = client_secret.session
        return client_secret.caller

    async def refuse(self, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        if self.service.config.realtime.auth_failure == "event" and isinstance(error, ClientError) and _is_reportable(error, scope):
            try:
                websocket = await upgrade(scope, send, None)
            except ClientError:  # a wrong version or key of the handshake: then there is no WebSocket to say it on
                await super().refuse(error, scope, receive, send)
            else:
                await self._refuse_on_websocket(error, websocket)
        else:
            await super().refuse(error, scope, receive, send)

    async def _refuse_on_websocket(self, error: ClientError, websocket: ServerWebSocket) -> None:
        body = RealtimeError(type=error.type, code=error.code or "invalid_api_key", message=error.message, param=error.param, event_id=None)
        frame = DIALECTS["ga"].encode_server(ErrorEvent(event_id=new_id("event"), error=body))  # the same in both dialects
        assert frame is not None
        websocket.send(frame)
        websocket.flush()
        websocket.close(UNAUTHORIZED_CODE if error.status == 401 else REFUSED_CODE, close_reason(f"{body.type}.{body.code}"))
        await websocket.wait_closed()


def _is_reportable(error: ClientError, scope: Scope) -> bool:
    return connection.is_handshake(scope) and error.code not in _CROSS_SITE_CODES


class RealtimeEndpoint:
    """A bare ASGI endpoint that takes the connection over."""

    def __init__(self, service: Service, default_dialect: DialectName) -> None:
        self._service = service
        self._default_dialect = default_dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (call_id := QueryParams(scope["query_string"]).get("call_id")) is not None:
            await self._join_call(scope, send, call_id)
        else:
            await self._open_session(scope, send)

    async def _open_session(self, scope: Scope, send: Send) -> None:
        await self._service.speech.prepare()
        model, session_config = self._resolve_session(scope)
        check_handshake(scope)
        self._service.live_sessions.check_admission()
        async with track_response(scope, lambda: 0):  # tokens are counted as each response ends
            recordings = realtime_recording_taps(self._service, scope, session_config)
            counts, tap = realtime_taps(self._service, model, request_caller(scope), recordings)
            client = RealtimeClient(DIALECTS[session_config.dialect], tap)
            with log_realtime_session(self._service, request_caller(scope), model, session_config, client, counts, recordings) as live:
                await self._run_session(scope, send, model, session_config, client, recordings, live)

    async def _join_call(self, scope: Scope, send: Send, call_id: str) -> None:
        """Join a call as a second client, until either ends."""
        caller = request_caller(scope)
        # A secret opens a session of its own and nothing else: a page that has one must not listen to others' calls.
        if PRESET_SCOPE_KEY in scope:
            raise ClientError("Joining a call needs an API key; a client secret does not allow it.", status=403, code="key_required")
        call = self._service.calls.find(call_id, caller.tenant)
        check_handshake(scope)
        query, headers = QueryParams(scope["query_string"]), Headers(scope=scope)
        client = sideband_client(
            call, DIALECTS[negotiate_dialect(query, headers, self._service.config.realtime.dialect, self._default_dialect)]
        )
        listener = SidebandListener(call, client)
        with call.attach(client), self._service.live_sessions.track(listener, caller.key):
            await client.accept(listener, lambda listener: upgrade(scope, send, listener))
            await client.wait_closed()

    async def _run_session(
        self,
        scope: Scope,
        send: Send,
        model: ServedModel,
        session_config: RealtimeSessionConfig,
        client: RealtimeClient,
        recordings: Sequence[RecordingTap],
        live: LiveSession,
    ) -> None:
        service, observe = self._service, observe_with(recordings)
        session = build_session(QueryParams(scope["query_string"]), model, session_config)
        settings = conversation_settings(scope, model.name, "realtime")
        tools = session_tools(service.toolbox, settings.tenant, model.name)
        driver = Driver(
            session,
            client,
            service.store,
            metrics=service.metrics,
            count_tokens=token_counter(scope),
            observe=observe,
            tools=tools,
        )
        engine = service.rewriter.around(model.live_engine, (model.name,), settings.key_id)
        live.stop = driver.shut_down

        async def accept() -> None:
            await client.accept(driver, lambda listener: upgrade(scope, send, listener))

        with contextlib.closing(tools), service.live_sessions.track(driver, request_caller(scope).key):
            try:
                await driver.run(engine, settings, session_config, accept)
            except Exception:  # where a session ends
                client.close(session_failed())
                await client.wait_closed()
                raise
            await client.wait_closed()

    def _resolve_session(self, scope: Scope) -> tuple[ServedModel, RealtimeSessionConfig]:
        """
        The model and the initial configuration of the session.

        Raises:
            ClientError: the request asks for something that does not exist.
        """
        query, headers = QueryParams(scope["query_string"]), Headers(scope=scope)
        preset = decode_session(scope[PRESET_SCOPE_KEY]) if PRESET_SCOPE_KEY in scope else None
        model, is_transcription = select_model(query, preset, self._service, request_caller(scope))
        dialect = negotiate_dialect(query, headers, self._service.config.realtime.dialect, self._default_dialect)
        return model, build_session_config(
            self._service, model, request_caller(scope), session=preset, is_transcription=is_transcription, dialect=dialect
        )
