"""Whether the server lives, whether it takes work, and what it is."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from antiphon import __version__
from antiphon.runtime.service import Service
from antiphon.server.replies import json_reply


def routes(service: Service) -> list[Route]:
    """`/livez`, `/readyz` with its alias `/health`, and `/version`."""

    async def livez(_request: Request) -> Response:
        return json_reply({"status": "ok"})

    async def readyz(_request: Request) -> Response:
        ready = service.is_ready and bool(service.registry.all())
        return json_reply({"status": "ok" if ready else "unavailable"}, 200 if ready else 503)

    async def version(_request: Request) -> Response:
        return json_reply({"name": "antiphon", "version": __version__})

    return [
        Route("/livez", livez),
        Route("/readyz", readyz),
        Route("/health", readyz),
        Route("/version", version),
    ]
