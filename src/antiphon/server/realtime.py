"""
`GET /v1/realtime`: who may open which Realtime session, in which dialect, and what is counted of it.

All is decided before the WebSocket is accepted and before an engine is touched. A refusal is an HTTP error, or, where
`realtime.auth_failure` says so, what the original does: the WebSocket is accepted, told one `error` event, and closed.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from starlette.datastructures import Headers, QueryParams
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from antiphon import talk
from antiphon.errors import ClientMistake, OurFault, shown
from antiphon.protocols.realtime import Realtime
from antiphon.protocols.realtime_settings import Opening
from antiphon.runtime.client_secrets import PREFIX
from antiphon.runtime.driver import Driver
from antiphon.runtime.ids import mint
from antiphon.runtime.keyring import Caller
from antiphon.runtime.registry import Model
from antiphon.runtime.service import Service
from antiphon.runtime.taps import Counted, Tap, joined
from antiphon.server import connection, logs
from antiphon.server.auth import GuardedRoute, answering, caller_of, credential
from antiphon.server.realtime_client import RealtimeClient, reason_of
from antiphon.server.realtime_opening import asked, dialect_of, opening_for, subprotocol_of
from antiphon.server.websocket import Listener, Socket, upgrade_required
from antiphon.wire.base import encode
from antiphon.wire.realtime_dialects import DIALECTS
from antiphon.wire.realtime_server import ErrorEvent, RealtimeError
from antiphon.wire.realtime_session import decode_session

# Azure's clients know the API by these; the last is that of its preview, which spoke beta.
PATHS = {"/v1/realtime": "ga", "/openai/v1/realtime": "ga", "/openai/realtime": "beta"}
"""Addresses of the API, and the dialect that is spoken there with a client that asks for none."""

UNAUTHORIZED, REFUSED = 3000, 4000
"""Codes of WebSockets that are closed because of who asks, or of what they ask."""

_ELSEWHERE = ("host_not_allowed", "origin_not_allowed")
"""Refusals that a page of another site is told, which is to learn nothing."""

_PRESET = "antiphon.preset"

LOGGED_LIMIT = 10_000
"""The most characters of an event that are logged: some carry sound."""


def routes(service: Service) -> list[Route]:
    """The WebSocket, by each of its addresses."""
    return [
        RealtimeRoute(path, _Open(service, dialect), service=service, access="realtime", methods=["GET"]) for path, dialect in PATHS.items()
    ]


class RealtimeRoute(GuardedRoute):
    """A route that client secrets open too, and that may refuse on the WebSocket."""

    async def identify(self, scope: Scope, headers: Headers) -> Caller:
        """Who is asking: whoever has a key, or a client secret that was made with one."""
        secret = credential(headers)
        if secret is None or not secret.startswith(PREFIX):
            return await super().identify(scope, headers)
        opened = await self.service.client_secrets.open(secret)
        scope[_PRESET] = opened.session
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


class _Open:
    """`GET /v1/realtime`, as a bare ASGI endpoint: it takes the connection over."""

    def __init__(self, service: Service, dialect: str) -> None:
        self._service = service
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        model, opening = self._opening(scope)
        if not connection.is_handshake(scope):
            raise upgrade_required("This address is for WebSockets: the request must ask for an upgrade to one.")
        self._service.live.admit()
        caller = caller_of(scope)
        async with answering(scope, lambda: 0):  # the tokens of its answers are counted as each of them ends
            tap = Counted(self._service.metrics, model.name, caller.allowance.spend if caller.allowance else lambda _tokens: None)
            taps: list[Tap] = [tap, _Logged()] if self._service.config.logging.content else [tap]
            client = RealtimeClient(DIALECTS[opening.dialect], joined(taps))
            with self._noted(model, opening, client, tap):
                await self._hold(scope, send, model, opening, client)

    async def _hold(self, scope: Scope, send: Send, model: Model, opening: Opening, client: RealtimeClient) -> None:
        """The whole session."""
        driver = Driver(Realtime(opening, mint), client, self._service.store, metrics=self._service.metrics)
        settings = talk.Settings(model=model.name, tenant=caller_of(scope).tenant)

        async def accept() -> None:
            await client.accept(driver, lambda listener: _upgrade(scope, send, listener))

        with self._service.live.during(driver):
            try:
                await driver.run(model.live, settings, opening, accept)
            except Exception:  # where a session ends
                client.close(OurFault("The server had an error, and the session can't go on."))
                await client.wait_closed()
                raise
            await client.wait_closed()

    def _check_room(self) -> None:
        if self._service.metrics.sessions >= self._service.config.realtime.sessions:
            raise OurFault(
                "The server has too many sessions. Please try again later.",
                status=503,
                type="service_unavailable_error",
                code="server_is_overloaded",
                retry_after_s=1,
            )

    @contextlib.contextmanager
    def _noted(self, model: Model, opening: Opening, client: RealtimeClient, tap: Counted) -> Iterator[None]:
        self._check_room()
        metrics, begun_at = self._service.metrics, time.perf_counter()
        metrics.sessions += 1
        try:
            yield
        finally:
            metrics.sessions -= 1
            metrics.sessions_ended[model.name, client.end] += 1
            logs.get().info(
                "session",
                model=model.name,
                dialect=opening.dialect,
                end=client.end,
                seconds=round(time.perf_counter() - begun_at, 1),
                events_in=tap.events_in,
                events_out=tap.events_out,
                responses=tap.responses,
                tokens=tap.tokens,
            )

    def _opening(self, scope: Scope) -> tuple[Model, Opening]:
        """
        The model that is asked for, and what the session begins with.

        Raises:
            ClientMistake: there is no such thing.
        """
        query, headers = QueryParams(scope["query_string"]), Headers(scope=scope)
        preset = decode_session(scope[_PRESET]) if _PRESET in scope else None
        model, is_transcription = asked(query, preset, self._service)
        dialect = dialect_of(query, headers, self._service.config.realtime.dialect, self._dialect)
        return model, opening_for(
            self._service, model, caller_of(scope), session=preset, is_transcription=is_transcription, dialect=dialect
        )


class _Logged:
    """Logs what is said, word for word; sound and the pieces of what is told whole are left out."""

    def said(self, event: Any) -> None:
        """The client said this."""
        _log("asked", event)

    def told(self, event: Any) -> None:
        """The client is told this."""
        _log("answered", event)


def _log(line: str, event: Any) -> None:
    if not event.type.endswith((".append", ".delta")):
        logs.get().info(line, content=shown(encode(event).decode(), LOGGED_LIMIT))
