"""The ASGI application: every surface's routes under one roof."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp

from antiphon.errors import Fault
from antiphon.runtime.service import Service
from antiphon.server import (
    audio,
    docs_page,
    health,
    metrics,
    minicpmo_presets,
    models,
    openapi,
    queue,
    realtime_calls,
    realtime_secrets,
    responses,
    sessions,
    shared_address,
    worker_join,
)
from antiphon.server.replies import on_defect, on_fault, on_gone, on_group, on_http_exception
from antiphon.server.tracing import Traced


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
