"""
`GET /v1/realtime`: the path that the OpenAI Realtime API and the MiniCPM-o protocol share.

`is_minicpmo_request` decides which one a client speaks.
"""

from starlette.datastructures import Headers, QueryParams
from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.errors import ClientError
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute
from antiphon.server.live.handshake import check_handshake
from antiphon.server.minicpmo import routes as minicpmo
from antiphon.server.realtime import routes as realtime
from antiphon.server.transport import connection

_OPEN_SESSION = realtime.open_session_operation(
    "openSession",
    "Open a session",
    description="With `mode`, or where nothing in the request belongs to the Realtime API, MiniCPM-o's protocol is spoken.",
    parameters=minicpmo.SESSION_PARAMETERS,
)


def routes(service: Service) -> list[GuardedRoute]:
    """The WebSocket routes of both protocols."""
    endpoint = _SharedAddress(realtime.RealtimeEndpoint(service, "ga"), minicpmo.MinicpmoEndpoint(service))
    return [
        realtime.RealtimeRoute("/v1/realtime", endpoint, service=service, access="realtime", operation=_OPEN_SESSION),
        *realtime.routes(service),
    ]


class _SharedAddress:
    def __init__(self, realtime_open: ASGIApp, minicpmo_open: minicpmo.MinicpmoEndpoint) -> None:
        self._realtime_open = realtime_open
        self._minicpmo_open = minicpmo_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query, has_secret = QueryParams(scope["query_string"]), realtime.PRESET_SCOPE_KEY in scope
        if not minicpmo.is_minicpmo_request(query, Headers(scope=scope), has_secret=has_secret):
            await self._realtime_open(scope, receive, send)
            return
        if has_secret:  # its model and settings would be ignored by this protocol
            message = "A MiniCPM-o session needs an API key; a client secret can't open one."
            raise ClientError(message, status=403, code="key_required")
        # A handshake gets what is wrong with its parameters on the WebSocket, any other request as an HTTP error.
        if not connection.is_handshake(scope):
            minicpmo.parse_session_request(query)
        check_handshake(scope)
        await self._minicpmo_open(scope, send)
