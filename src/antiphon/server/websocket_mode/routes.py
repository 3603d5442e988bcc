"""
`GET /v1/responses`: opens a WebSocket for many responses, one after the other and side by side; without a handshake, it
lists the stored responses.
"""

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.errors import ClientError
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.service import Service
from antiphon.server.http.auth import Access, EndpointFunction, GuardedRoute, request_caller
from antiphon.server.http.operation import Operation
from antiphon.server.http.profile import ProfileRoute, profile_routes, request_encoder
from antiphon.server.live.handshake import check_handshake, upgrade
from antiphon.server.responses.lists import list_route
from antiphon.server.transport import connection
from antiphon.server.websocket_mode.socket import ResponsesSocket


def routes(service: Service) -> list[GuardedRoute]:
    """The route of WebSocket mode, which is also that of the list of responses."""
    listing = list_route(service)
    route = _ResponsesRoute(listing.path, listing.endpoint, service=service, access=listing.access, operation=listing.operation)
    return profile_routes([route])


class _ResponsesRoute(ProfileRoute):
    """Opens a WebSocket where the request asks for one, and lists the responses where it doesn't."""

    def __init__(
        self,
        path: str,
        endpoint: EndpointFunction | ASGIApp,
        *,
        service: Service,
        access: Access,
        operation: Operation,
        method: str = "GET",
    ) -> None:
        super().__init__(path, endpoint, service=service, access=access, operation=operation, method=method)
        self._socket_route = _ResponsesSocketRoute(
            path, _ConnectEndpoint(service), service=service, access="responses:write", operation=operation, method=method
        )

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The list is this server's own: other base paths are those of a profile, which has none.
        if self.profile is None and not connection.is_handshake(scope):
            await super().handle(scope, receive, send)
            return
        self._socket_route.profile = self.profile
        await self._socket_route.handle(scope, receive, send)


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
