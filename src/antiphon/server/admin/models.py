"""The models, as OpenAI's `GET /v1/models` lists them."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from antiphon.runtime.registry import ServedModel
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute
from antiphon.server.http.errors import json_response


def routes(service: Service) -> list[Route]:
    """`GET /v1/models` and `GET /v1/models/{model}`."""

    async def list_models(_request: Request) -> Response:
        return json_response({"object": "list", "data": [_model_object(model) for model in await service.registry.list_models()]})

    async def retrieve_model(request: Request) -> Response:
        return json_response(_model_object(service.registry.find(request.path_params["model"])))

    return [
        GuardedRoute("/v1/models", list_models, service=service, access="models:read", methods=["GET"]),
        GuardedRoute("/v1/models/{model:path}", retrieve_model, service=service, access="models:read", methods=["GET"]),
    ]


def _model_object(model: ServedModel) -> dict[str, Any]:
    return {"id": model.name, "object": "model", "created": model.created_at, "owned_by": "antiphon"}
