"""`GET /models/health`: whether each model answers, how often it fails, and how fast it is."""

from starlette.requests import Request
from starlette.responses import Response

from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, guarded_routes
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import Operation
from antiphon.server.operate.facts import FactsQuery, gather, now
from antiphon.server.operate.rows import model_entries
from antiphon.wire.codec.types import encode
from antiphon.wire.http.operate import ModelHealthList

_LIST = Operation(
    "listModelHealth",
    "Models",
    "List the health of each model",
    ModelHealthList,
    description="Answers and errors of the last hour, and the time to the first token of the last 15 minutes.",
)


def routes(service: Service) -> list[GuardedRoute]:
    """The route `/models/health`."""

    async def list_health(_request: Request) -> Response:
        parts = await gather(service, FactsQuery(("models",)))
        return json_response(encode(ModelHealthList(now=now(), models=[*model_entries(parts)])))

    return guarded_routes(service, [("GET", "/models/health", list_health, "admin", _LIST)])
