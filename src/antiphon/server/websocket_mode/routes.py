"""`GET /v1/responses`: opens a WebSocket for many responses, one after the other and side by side."""

import asyncio

from starlette.types import Receive, Scope, Send

from antiphon.errors import ClientError
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, request_caller
from antiphon.server.http.operation import UNAVAILABLE, UPGRADE_REQUIRED, Operation
from antiphon.server.http.profile import ProfileRoute, profile_routes, request_encoder
from antiphon.server.live.handshake import check_handshake, upgrade
from antiphon.server.websocket_mode.socket import ResponsesSocket

_CONNECT = Operation(
    "connectResponses",
    "Responses",
    "Open a WebSocket for responses",
    errors={400: "The handshake is invalid.", 426: UPGRADE_REQUIRED, 503: UNAVAILABLE},
    description="The request must be a WebSocket handshake, and gets status 101. Each `response.create` that the client then sends has the "
    "fields of a request for a response, and is answered by the events of its stream. The reference of WebSocket mode has the rest.",
)


def routes(service: Service) -> list[GuardedRoute]:
    """The route of WebSocket mode."""
    route = _ResponsesSocketRoute("/v1/responses", _ConnectEndpoint(service), service=service, access="responses:write", operation=_CONNECT)
    return profile_routes([route])


class _ResponsesSocketRoute(ProfileRoute):
    """Its requests are counted as they come over the WebSocket; the handshake is none of them."""

    async def count_request(self, caller: Caller) -> None:
        """Nothing to count yet."""


class _ConnectEndpoint:
    """A bare ASGI endpoint that takes the connection over."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        encoder = request_encoder(scope)
        if not encoder.profile.websocket:
            raise ClientError(f"The profile '{encoder.profile.name}' has no WebSocket mode. Stream with `POST {scope['path']}` instead.")
        check_handshake(scope)
        live_sessions = self._service.live_sessions
        live_sessions.check_admission()
        async with asyncio.TaskGroup() as tasks:
            socket = ResponsesSocket(self._service, scope, encoder, tasks)
            with live_sessions.track(socket, request_caller(scope).key), live_sessions.on_drain(socket.drain):
                await socket.run(await upgrade(scope, send, socket))
