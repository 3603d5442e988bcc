"""`GET /console/state`: what the page shows before anybody has signed in."""

import importlib.util
from typing import Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from antiphon import __version__
from antiphon.config.load import Config
from antiphon.runtime.service import Service
from antiphon.server.admin.health import is_serving
from antiphon.server.http.auth import GuardedRoute, guarded_routes
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import Operation
from antiphon.wire.http.start import StartReason, StartStatus, WeightsStatus


class ConsoleAbilities(Struct):
    """
    What the page can offer.

    Attributes:
        webrtc: whether there are calls.
        tls: whether this connection is one that browsers give a microphone to from other machines.
        recording: whether sessions are recorded, all or some.
    """

    webrtc: bool
    tls: bool
    recording: bool


class ConsoleState(Struct):
    """
    The state of the server for the page.

    Attributes:
        needs_key: whether requests need a key.
        ready: whether new work is accepted.
        weights: those that had to be fetched for this start, as long as it lasts.
        reason: why it is not ready while it starts; null afterwards.
        message: why weights can't be fetched.
    """

    name: Literal["antiphon"]
    version: str
    needs_key: bool
    ready: bool
    console: ConsoleAbilities
    weights: list[WeightsStatus]
    reason: StartReason | None = None
    message: str | None = None


_STATE = Operation("getConsoleState", "Console", "What the page shows before anybody has signed in", ConsoleState)


def routes(service: Service) -> list[GuardedRoute]:
    """The route `/console/state`; none without the page."""
    if not service.config.server.console:
        return []

    async def state(request: Request) -> Response:
        # Anyone may read this, so it names no model.
        access = await service.keyring.current_access()
        is_recording = service.recorder is not None and service.config.recording.when != "never"
        answer = ConsoleState("antiphon", __version__, not access.is_open, is_serving(service), _abilities(request, is_recording), [])
        return json_response(answer, headers={"cache-control": "no-store"})

    return guarded_routes(service, [("GET", "/console/state", state, "public", _STATE)])


def starting_state(request: Request, config: Config, start: StartStatus, *, needs_key: bool) -> ConsoleState:
    """The state of a server that still starts; `needs_key` is known before its address is open."""
    is_recording = config.database_url is not None and config.recording.when != "never"
    abilities = _abilities(request, is_recording)
    return ConsoleState("antiphon", __version__, needs_key, False, abilities, start.weights, start.reason, start.message)


def _abilities(request: Request, is_recording: bool) -> ConsoleAbilities:
    has_calls = importlib.util.find_spec("aiortc") is not None
    return ConsoleAbilities(webrtc=has_calls, tls=request.scope.get("scheme") == "https", recording=is_recording)
