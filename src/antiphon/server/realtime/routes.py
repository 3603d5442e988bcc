"""
`GET /v1/realtime`: who may open which Realtime session, in which dialect, and what is counted of it.

All is decided before the WebSocket is accepted and before an engine is touched. A refusal is an HTTP error, or, where
`realtime.auth_failure` says so, what the original does: the WebSocket is accepted, told one `error` event, and closed.
"""

from collections.abc import Callable

from starlette.datastructures import Headers, QueryParams
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.errors import ClientMistake, OurFault
from antiphon.protocols.realtime.session import Realtime
from antiphon.protocols.realtime.settings import Opening
from antiphon.runtime.access.client_secrets import PREFIX
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.core.driver import Driver
from antiphon.runtime.core.ids import mint
from antiphon.runtime.registry import Model
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, answering, caller_of, credential, settings_of, spending
from antiphon.server.live.client import reason_of
from antiphon.server.live.recording import recordings_of
from antiphon.server.live.session_log import noted, taps_of
from antiphon.server.live.subprotocols import subprotocol_of
from antiphon.server.realtime.client import RealtimeClient
from antiphon.server.realtime.negotiation import asked, dialect_of, opening_for
from antiphon.server.realtime.sideband import Beside, client_beside
from antiphon.server.transport import connection
from antiphon.server.transport.websocket import Listener, Socket, upgrade_required
from antiphon.wire.realtime.dialects import DIALECTS
from antiphon.wire.realtime.server_events import ErrorEvent, RealtimeError
from antiphon.wire.realtime.session import decode_session

# Azure's clients know the API by these; the last is that of its preview, which spoke beta.
PATHS = {"/v1/realtime": "ga", "/openai/v1/realtime": "ga", "/openai/realtime": "beta"}
"""Addresses of the API, and the dialect that is spoken there with a client that asks for none."""

SHARED_PATH = "/v1/realtime"
"""The address that MiniCPM-o's protocol has, too."""

UNAUTHORIZED, REFUSED = 3000, 4000
"""Codes of WebSockets that are closed because of who asks, or of what they ask."""

_ELSEWHERE = ("host_not_allowed", "origin_not_allowed")
"""Refusals that a page of another site is told, which is to learn nothing."""

PRESET = "antiphon.preset"
"""Where a request carries the session that its client secret holds."""


def routes(service: Service, shared: Callable[[ASGIApp], ASGIApp] = lambda open: open) -> list[Route]:
    """
    The WebSocket, by each of its addresses.

    Args:
        shared: makes of this endpoint the one of the address that another protocol has, too.
    """
    endpoints: dict[str, ASGIApp] = {path: _Open(service, dialect) for path, dialect in PATHS.items()}
    endpoints[SHARED_PATH] = shared(endpoints[SHARED_PATH])
    return [RealtimeRoute(path, endpoint, service=service, access="realtime", methods=["GET"]) for path, endpoint in endpoints.items()]


class RealtimeRoute(GuardedRoute):
    """A route that client secrets open too, and that may refuse on the WebSocket."""

    async def identify(self, scope: Scope, headers: Headers) -> Caller:
        """Who is asking: whoever has a key, or a client secret that was made with one."""
        secret = credential(headers)
        if secret is None or not secret.startswith(PREFIX):
            return await super().identify(scope, headers)
        opened = await self.service.client_secrets.open(secret)
        scope[PRESET] = opened.session
        return opened.caller

    async def refuse(self, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell the client why it is not served."""
        if self.service.config.realtime.auth_failure == "event" and isinstance(error, ClientMistake) and _may_be_told(error, scope):
            await self._refuse_on_socket(error, scope, send)
        else:
            await super().refuse(error, scope, receive, send)

    async def _refuse_on_socket(self, mistake: ClientMistake, scope: Scope, send: Send) -> None:
        told = RealtimeError(
            type=mistake.type, code=mistake.code or "invalid_api_key", message=mistake.message, param=mistake.param, event_id=None
        )
        socket = await _upgrade(scope, send, _Deaf())
        frame = DIALECTS["ga"].encode_server(ErrorEvent(event_id=mint("event"), error=told))  # the same in both
        assert frame is not None
        socket.send(frame)
        socket.flush()
        socket.close(UNAUTHORIZED if mistake.status == 401 else REFUSED, reason_of(f"{told.type}.{told.code}"))
        await socket.wait_closed()


def _may_be_told(mistake: ClientMistake, scope: Scope) -> bool:
    return connection.is_handshake(scope) and mistake.code not in _ELSEWHERE


class _Deaf:
    """Who listens on a WebSocket that is closed at once."""

    def on_text(self, text: bytes) -> None:
        """Nobody cares."""

    def on_gone(self) -> None:
        """Nobody cares."""

    def pause(self) -> None:
        """There is nothing to hold back."""

    def resume(self) -> None:
        """There is nothing to go on with."""


async def _upgrade(scope: Scope, send: Send, listener: Listener) -> Socket:
    return await connection.of(scope).upgrade(send, listener, subprotocol=subprotocol_of(Headers(scope=scope)))


def check_handshake(scope: Scope) -> None:
    """
    Refuse a request that is none for a WebSocket.

    Raises:
        ClientMistake: it is not.
    """
    if not connection.is_handshake(scope):
        raise upgrade_required("This address is for WebSockets: the request must ask for an upgrade to one.")


class _Open:
    """`GET /v1/realtime`, as a bare ASGI endpoint: it takes the connection over."""

    def __init__(self, service: Service, dialect: str) -> None:
        self._service = service
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (call_id := QueryParams(scope["query_string"]).get("call_id")) is not None:
            await self._join(scope, send, call_id)
        else:
            await self._talk(scope, send)

    async def _talk(self, scope: Scope, send: Send) -> None:
        """Hold a session of its own."""
        model, opening = self._opening(scope)
        check_handshake(scope)
        self._service.live.admit()
        async with answering(scope, lambda: 0):  # the tokens of its answers are counted as each of them ends
            recordings = recordings_of(self._service, scope, opening)
            counted, tap = taps_of(self._service, model, recordings)
            client = RealtimeClient(DIALECTS[opening.dialect], tap)
            with noted(self._service, model, opening, client, counted, recordings):
                await self._hold(scope, send, model, opening, client)

    async def _join(self, scope: Scope, send: Send, call_id: str) -> None:
        """Have a part in a call, until either ends."""
        caller = caller_of(scope)
        if PRESET in scope:
            raise ClientMistake("A call can be joined with an API key only, not with a client secret.", status=403, code="key_required")
        call = self._service.calls.find(call_id, caller.tenant)
        check_handshake(scope)
        query, headers = QueryParams(scope["query_string"]), Headers(scope=scope)
        client = client_beside(call, DIALECTS[dialect_of(query, headers, self._service.config.realtime.dialect, self._dialect)])
        beside = Beside(call, client)
        with call.joined(client), self._service.live.during(beside, caller.key):
            await client.accept(beside, lambda listener: _upgrade(scope, send, listener))
            await client.wait_closed()

    async def _hold(self, scope: Scope, send: Send, model: Model, opening: Opening, client: RealtimeClient) -> None:
        """The whole session."""
        session, service = Realtime(opening, mint), self._service
        driver = Driver(session, client, service.store, metrics=service.metrics, spend=spending(scope))
        settings = settings_of(scope, model.name, "realtime")

        async def accept() -> None:
            await client.accept(driver, lambda listener: _upgrade(scope, send, listener))

        with self._service.live.during(driver, caller_of(scope).key):
            try:
                await driver.run(model.live, settings, opening, accept)
            except Exception:  # where a session ends
                client.close(OurFault("The server had an error, and the session can't go on."))
                await client.wait_closed()
                raise
            await client.wait_closed()

    def _opening(self, scope: Scope) -> tuple[Model, Opening]:
        """
        The model that is asked for, and what the session begins with.

        Raises:
            ClientMistake: there is no such thing.
        """
        query, headers = QueryParams(scope["query_string"]), Headers(scope=scope)
        preset = decode_session(scope[PRESET]) if PRESET in scope else None
        model, is_transcription = asked(query, preset, self._service)
        dialect = dialect_of(query, headers, self._service.config.realtime.dialect, self._dialect)
        return model, opening_for(
            self._service, model, caller_of(scope), session=preset, is_transcription=is_transcription, dialect=dialect
        )
