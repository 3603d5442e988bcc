"""Health, version, and the models as OpenAI's `GET /v1/models` lists them."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from antiphon import __version__
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, guarded_routes
from antiphon.server.http.errors import json_response


def routes(service: Service) -> list[Route]:
    """The routes `/livez`, `/readyz` with its alias `/health`, `/version`, and those under `/v1/models`."""

    async def livez(_request: Request) -> Response:
        return json_response({"status": "ok"})

    async def readyz(_request: Request) -> Response:
        ready = service.is_ready and not service.live_sessions.is_draining and not service.is_store_away and bool(service.registry.all())
        return json_response({"status": "ok" if ready else "unavailable"}, 200 if ready else 503)

    async def version(_request: Request) -> Response:
        return json_response({"name": "antiphon", "version": __version__})

    async def list_models(_request: Request) -> Response:
        return json_response({"object": "list", "data": [_model_object(model) for model in await service.registry.list_models()]})

    async def retrieve_model(request: Request) -> Response:
        return json_response(_model_object(service.registry.find(request.path_params["model"])))

    return [
        *guarded_routes(
            service, [("GET", "/v1/models", list_models, "models:read"), ("GET", "/v1/models/{model:path}", retrieve_model, "models:read")]
        ),
        GuardedRoute("/livez", livez, service=service, access="probe"),
        GuardedRoute("/readyz", readyz, service=service, access="probe"),
        GuardedRoute("/health", readyz, service=service, access="probe"),
        GuardedRoute("/version", version, service=service, access="public"),
    ]


def _model_object(model: ServedModel) -> dict[str, Any]:
    return {"id": model.name, "object": "model", "created": model.created_at, "owned_by": "antiphon"}
