"""Whether the server lives, whether it takes work, and what it is."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from antiphon import __version__
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute
from antiphon.server.http.errors import json_response


def routes(service: Service) -> list[Route]:
    """`/livez`, `/readyz` with its alias `/health`, and `/version`."""

    async def livez(_request: Request) -> Response:
        return json_response({"status": "ok"})

    async def readyz(_request: Request) -> Response:
        ready = service.is_ready and not service.live_sessions.is_draining and bool(service.registry.all())
        return json_response({"status": "ok" if ready else "unavailable"}, 200 if ready else 503)

    async def version(_request: Request) -> Response:
        return json_response({"name": "antiphon", "version": __version__})

    return [
        GuardedRoute("/livez", livez, service=service, access="probe"),
        GuardedRoute("/readyz", readyz, service=service, access="probe"),
        GuardedRoute("/health", readyz, service=service, access="probe"),
        GuardedRoute("/version", version, service=service, access="public"),
    ]
