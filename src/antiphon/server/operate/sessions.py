"""`/sessions`: the Realtime and MiniCPM-o sessions that are under way. Recordings are at `/v1/sessions`."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from antiphon.errors import ClientError, shorten
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, guarded_routes
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import Operation
from antiphon.server.operate.facts import FactsQuery, close_session, gather, now
from antiphon.server.operate.rows import build_rows
from antiphon.server.transport import logs
from antiphon.wire.codec.types import encode
from antiphon.wire.http.operate import LiveSessionClosed, LiveSessionEntry, LiveSessionList

_LIST = Operation("listLiveSessions", "Sessions", "List the sessions under way", LiveSessionList)
_CLOSE = Operation(
    "closeSession",
    "Sessions",
    "Close a session that is under way",
    LiveSessionClosed,
    errors={404: "There is no such session, or it has ended."},
    description="Its client is told: a Realtime client by the close code 1008, one of MiniCPM-o by `session.closed` with `closed`.",
)


def routes(service: Service) -> list[GuardedRoute]:
    """The routes under `/sessions`."""

    async def list_sessions(_request: Request) -> Response:
        parts = await gather(service, FactsQuery(("sessions",)))
        rows = [msgspec.json.decode(row, type=LiveSessionEntry) for row in build_rows(service, "sessions", parts).values()]
        return json_response(encode(LiveSessionList(now=now(), sessions=rows)))

    async def close(request: Request) -> Response:
        session_id = request.path_params["id"]
        if not await close_session(service, session_id):
            raise ClientError(f"Session '{shorten(session_id)}' not found.", status=404, code="session_not_found")
        logs.get().info("session_closed", session=session_id)
        return json_response(encode(LiveSessionClosed(id=session_id)))

    return guarded_routes(
        service,
        [("GET", "/sessions", list_sessions, "admin", _LIST), ("POST", "/sessions/{id}/close", close, "admin", _CLOSE)],
    )
