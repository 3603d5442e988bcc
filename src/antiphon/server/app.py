"""The ASGI application: the routes of all surfaces."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from antiphon.errors import ApiError
from antiphon.runtime.service import Service
from antiphon.server import shared_address
from antiphon.server.admin import authority, docs_page, health, metrics, models, queue, recordings, reload
from antiphon.server.audio import routes as audio
from antiphon.server.chat import relay_routes, routes as chat
from antiphon.server.console import keys as console_keys, page, state, tools as console_tools
from antiphon.server.containers import routes as containers
from antiphon.server.files import routes as files
from antiphon.server.http.access_log import AccessLogMiddleware
from antiphon.server.http.auth import GuardedRoute
from antiphon.server.http.dispatch import Dispatcher
from antiphon.server.http.errors import on_api_error, on_client_disconnect, on_exception_group, on_http_exception, on_unexpected_error
from antiphon.server.http.profile import other_base_paths
from antiphon.server.messages import routes as messages
from antiphon.server.minicpmo import presets
from antiphon.server.openapi import document
from antiphon.server.operate import configuration, keys, log, models as model_health, sessions, updates, usage
from antiphon.server.realtime import client_secrets
from antiphon.server.responses import conversations, routes as responses
from antiphon.server.vector_stores import routes as vector_stores
from antiphon.server.webrtc import routes as realtime_calls
from antiphon.server.websocket_mode import routes as websocket_mode
from antiphon.server.workers import join


def routes(service: Service) -> list[GuardedRoute]:
    """All routes."""
    # Starlette tries routes in order, so those with the most requests come first.
    surfaces = (
        responses,
        chat,
        relay_routes,
        messages,
        conversations,
        files,
        containers,
        vector_stores,
        websocket_mode,
        shared_address,
        client_secrets,
        realtime_calls,
        presets,
        audio,
        models,
        health,
        recordings,
        metrics,
        queue,
        reload,
        keys,
        configuration,
        usage,
        log,
        sessions,
        model_health,
        updates,
        join,
        docs_page,
        authority,
        page,
        state,
        console_keys,
        console_tools,
    )
    all_routes = [route for surface in surfaces for route in surface.routes(service)]
    return [*all_routes, *document.routes(service, all_routes)]


def build(service: Service) -> ASGIApp:
    """The application that serves `service`. The caller opens and closes the service."""
    all_routes = routes(service)
    all_routes += other_base_paths(all_routes)
    app = Starlette(
        routes=all_routes,
        exception_handlers={
            ApiError: on_api_error,
            ExceptionGroup: on_exception_group,
            HTTPException: on_http_exception,
            ClientDisconnect: on_client_disconnect,
            Exception: on_unexpected_error,
        },
    )
    # A path with a slash too many gets a 404 that names the right one (`absent_paths`).
    app.router.redirect_slashes = False
    return AccessLogMiddleware(Dispatcher(app, all_routes), service)
