"""Health and version."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from antiphon import __version__
from antiphon.errors import invalid_value
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, guarded_routes
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import Operation, Parameter
from antiphon.wire.http.queue import WarmUpState
from antiphon.wire.http.start import StartReason, StartStatus, WeightsStatus


class Health(Struct):
    """That the process is alive."""

    status: Literal["ok"]


class Readiness(Struct):
    """
    Whether the server takes new work.

    Attributes:
        status: `unavailable` also while it stops, or can't reach its store.
        warm_up: how far the speech models are.
        reason: with `starting`, what it does: `fetching` weights, or `loading` them; `failed` where they can't be fetched.
        message: why they can't be.
        weights: with `starting`, those that have to be fetched.
    """

    status: Literal["ok", "warming_up", "unavailable", "starting"]
    warm_up: WarmUpState
    reason: StartReason | UnsetType = UNSET
    message: str | UnsetType = UNSET
    weights: list[WeightsStatus] | UnsetType = UNSET


class Version(Struct):
    """The name and the version of the server."""

    name: Literal["antiphon"]
    version: str


_LIVENESS = Operation("getLiveness", "Server", "Whether the process is alive", Health)
_READINESS = Operation(
    "getReadiness",
    "Server",
    "Whether new work is accepted",
    Readiness,
    errors={
        400: "`wait_for` is none of its values.",
        503: "No new work is accepted, or the speech models are being loaded and the request waits for them.",
    },
    query=[
        Parameter(
            "wait_for", "With `speech`, the answer is 503 while the speech models are being loaded.", {"type": "string", "enum": ["speech"]}
        )
    ],
)
_HEALTH = _READINESS._replace(id="getHealth", summary="The same as `/readyz`")
_VERSION = Operation("getVersion", "Server", "Name and version", Version)


def routes(service: Service) -> list[GuardedRoute]:
    """The routes `/livez`, `/readyz` with its alias `/health`, and `/version`."""

    async def livez(_request: Request) -> Response:
        return json_response(Health("ok"))

    async def readyz(request: Request) -> Response:
        waits_for_speech = "wait_for" in request.query_params
        # A misspelt value would be answered at once, and look as if speech were there.
        if waits_for_speech and (value := request.query_params["wait_for"]) != "speech":
            raise invalid_value("wait_for", value, ("speech",))
        warm_up = service.speech.warm_up_state
        if not is_serving(service):
            return json_response(Readiness("unavailable", warm_up), 503)
        # Only for those who ask: voice sessions are accepted and heard meanwhile, and text needs no speech (record 0046).
        if warm_up == "running" and waits_for_speech:
            return json_response(Readiness("warming_up", warm_up), 503)
        return json_response(Readiness("ok", warm_up))

    async def version(_request: Request) -> Response:
        return json_response(Version("antiphon", __version__))

    return guarded_routes(
        service,
        [
            ("GET", "/livez", livez, "probe", _LIVENESS),
            ("GET", "/readyz", readyz, "probe", _READINESS),
            ("GET", "/health", readyz, "probe", _HEALTH),
            ("GET", "/version", version, "public", _VERSION),
        ],
    )


def is_serving(service: Service) -> bool:
    """Whether new work is accepted: the server has started, does not drain, reaches its store, and has a model."""
    # The store counts as away only after some seconds (`STORE_AWAY_S`), so a short outage takes no server out of a load balancer.
    is_up = service.is_ready and not service.live_sessions.is_draining and not service.is_store_away
    return is_up and bool(service.registry.all())


def starting_readiness(start: StartStatus) -> Readiness:
    """The readiness of a server that still starts, with what it waits for."""
    return Readiness("starting", "off", start.reason, UNSET if start.message is None else start.message, start.weights)
