"""`POST /reload`: the configuration, read again."""

from starlette.requests import Request
from starlette.responses import Response

from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, guarded_routes
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import Operation
from antiphon.wire.codec.types import encode
from antiphon.wire.http.reload import ReloadReport

_RELOAD = Operation(
    "reloadConfiguration",
    "Server",
    "Read the configuration again",
    ReloadReport,
    errors={409: "There is a mistake in the configuration, so the one in use stays; or this server has none to read again."},
    description="Models, routes, rewrites, prompts and tools are added, changed and removed; responses in progress are finished by the "
    "model that began them, with the tools that they have. The answer names the settings that take effect with a restart only.",
)


def routes(service: Service) -> list[GuardedRoute]:
    """The route `/reload`."""

    async def reload(_request: Request) -> Response:
        return json_response(encode(await service.reload()))

    return guarded_routes(service, [("POST", "/reload", reload, "admin", _RELOAD)])
