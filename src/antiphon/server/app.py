"""The ASGI application: every surface's routes under one roof."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp

from antiphon.errors import Fault
from antiphon.runtime.service import Service
from antiphon.server import health, models, responses
from antiphon.server.replies import Traced, on_fault, on_http_exception


def routes(service: Service) -> list[Route]:
    """Every route of every surface."""
    return [*health.routes(service), *models.routes(service), *responses.routes(service)]


def build(service: Service) -> ASGIApp:
    """The application that serves `service`, which its caller opens and closes."""
    app = Starlette(
        routes=routes(service),
        exception_handlers={Fault: on_fault, HTTPException: on_http_exception},
    )
    app.router.redirect_slashes = False
    return Traced(app)
