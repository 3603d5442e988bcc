"""The ASGI application: every surface's routes under one roof."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp

from antiphon.errors import Fault
from antiphon.runtime.service import Service
from antiphon.server import shared_address
from antiphon.server.admin import docs_page, health, metrics, models, queue, recordings as sessions
from antiphon.server.audio import routes as audio
from antiphon.server.http.access_log import Traced
from antiphon.server.http.errors import on_defect, on_fault, on_gone, on_group, on_http_exception
from antiphon.server.minicpmo import presets as minicpmo_presets
from antiphon.server.openapi import document as openapi
from antiphon.server.realtime import client_secrets as realtime_secrets
from antiphon.server.responses import routes as responses
from antiphon.server.webrtc import routes as realtime_calls
from antiphon.server.workers import join as worker_join


def routes(service: Service) -> list[Route]:
    """Every route of every surface."""
    # Routes are tried in their order: those of the most requests come first.
    surfaces = (
        responses,
        shared_address,
        realtime_secrets,
        realtime_calls,
        minicpmo_presets,
        audio,
        models,
        sessions,
        health,
        metrics,
        queue,
        worker_join,
        docs_page,
    )
    described = [route for surface in surfaces for route in surface.routes(service)]
    return [*described, *openapi.routes(service, described)]


def build(service: Service) -> ASGIApp:
    """The application that serves `service`, which its caller opens and closes."""
    app = Starlette(
        routes=routes(service),
        exception_handlers={
            Fault: on_fault,
            ExceptionGroup: on_group,
            HTTPException: on_http_exception,
            ClientDisconnect: on_gone,
            Exception: on_defect,
        },
    )
    app.router.redirect_slashes = False
    return Traced(app, service)
