"""`GET /config`: every setting, as `antiphon config show --origin` prints it."""

from starlette.requests import Request
from starlette.responses import Response

from antiphon.config.listing import list_settings
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, guarded_routes
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import Operation
from antiphon.wire.codec.types import encode
from antiphon.wire.http.operate import ConfigurationSetting

_SHOW = Operation(
    "getConfiguration",
    "Server",
    "List the settings in use",
    list[ConfigurationSetting],
    description="Without the secrets in them, each with the file, variable or flag that set it.",
)


def routes(service: Service) -> list[GuardedRoute]:
    """The route `/config`."""

    async def show(_request: Request) -> Response:
        settings = [
            ConfigurationSetting(
                key=setting.key,
                value=setting.value,
                origin=setting.origin,
                default=setting.default,
                secret=setting.secret,
                restart=setting.needs_restart,
            )
            for setting in list_settings(service.config)
        ]
        return json_response(encode(settings), headers={"cache-control": "no-store"})

    return guarded_routes(service, [("GET", "/config", show, "admin", _SHOW)])
