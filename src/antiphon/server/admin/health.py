"""Health, version, and the models as OpenAI's `GET /v1/models` lists them."""

from typing import Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from antiphon import __version__
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, guarded_routes
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import MODEL_NOT_FOUND, Operation
from antiphon.wire.http.queue import WarmUpState


class Health(Struct):
    """That the process is alive."""

    status: Literal["ok"]


class Readiness(Struct):
    """
    Whether the server takes new work, and serves it at once.

    Attributes:
        warm_up: how far the speech models are.
    """

    status: Literal["ok", "warming_up", "unavailable"]
    warm_up: WarmUpState


class Version(Struct):
    """The name and the version of the server."""

    name: Literal["antiphon"]
    version: str


class Model(Struct):
    """A model of this server; `created` is in Unix seconds."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Struct):
    """The models of this server."""

    object: Literal["list"]
    data: list[Model]


_LIST_MODELS = Operation("listModels", "Models", "List the models", ModelList)
_RETRIEVE_MODEL = Operation("retrieveModel", "Models", "Retrieve a model", Model, errors=MODEL_NOT_FOUND)
_LIVENESS = Operation("getLiveness", "Server", "Whether the process is alive", Health)
_READINESS = Operation(
    "getReadiness",
    "Server",
    "Whether new work is accepted, and served at once",
    Readiness,
    errors={503: "No new work is accepted, or the speech models are still being loaded."},
)
_HEALTH = _READINESS._replace(id="getHealth", summary="The same as `/readyz`")
_VERSION = Operation("getVersion", "Server", "Name and version", Version)


def routes(service: Service) -> list[GuardedRoute]:
    """The routes `/livez`, `/readyz` with its alias `/health`, `/version`, and those under `/v1/models`."""

    async def livez(_request: Request) -> Response:
        return json_response(Health("ok"))

    async def readyz(_request: Request) -> Response:
        warm_up = service.speech.warm_up_state
        is_serving = service.is_ready and not service.live_sessions.is_draining and not service.is_store_away
        if not is_serving or not service.registry.all():
            return json_response(Readiness("unavailable", warm_up), 503)
        # Requests are answered all the same, but the first voice session would wait.
        return json_response(Readiness("warming_up", warm_up), 503) if warm_up == "running" else json_response(Readiness("ok", warm_up))

    async def version(_request: Request) -> Response:
        return json_response(Version("antiphon", __version__))

    async def list_models(_request: Request) -> Response:
        models = [_model_object(model) for model in await service.registry.list_models()]
        return json_response(ModelList("list", [*models, *map(_route_object, service.router.names)]))

    async def retrieve_model(request: Request) -> Response:
        name = request.path_params["model"]
        return json_response(_route_object(name) if service.router.has(name) else _model_object(service.registry.find(name)))

    def _route_object(name: str) -> Model:
        return Model(name, "model", service.started_at, "antiphon")

    return guarded_routes(
        service,
        [
            ("GET", "/v1/models", list_models, "models:read", _LIST_MODELS),
            ("GET", "/v1/models/{model:path}", retrieve_model, "models:read", _RETRIEVE_MODEL),
            ("GET", "/livez", livez, "probe", _LIVENESS),
            ("GET", "/readyz", readyz, "probe", _READINESS),
            ("GET", "/health", readyz, "probe", _HEALTH),
            ("GET", "/version", version, "public", _VERSION),
        ],
    )


def _model_object(model: ServedModel) -> Model:
    return Model(model.name, "model", model.created_at, "antiphon")
